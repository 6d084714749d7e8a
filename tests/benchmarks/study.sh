#!/usr/bin/env bash
# The study of launch/configs/study.toml and its controls at equal steps and data, on 2 ranks, as one Markdown page on
# standard output: noise mask, SFT alone (consistency weight 0) and clean mask, all with a random schedule; what the
# test problems share with the training data, and for how much of training the masks differ at all.
# Usage: tests/benchmarks/study.sh [BUILD] > results/reference/study.md      BUILD (default build/cpu-release) holds
# jforge and mask_contexts; runs stay in results/runs/study-*.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
cd "$root"
build=${1:-build/cpu-release}
jforge=$build/launch/jforge
masks=$build/tests/benchmarks/mask_contexts
data=results/runs/study-data
for program in "$jforge" "$masks"; do
  [ -x "$program" ] || { echo "$program is not there: cmake --build $build --target jforge mask_contexts" >&2; exit 4; }
done

python3 -B launch/quickstart/make_word_problems.py --out "$data" --prompts 30000 >&2
cmp <(gzip -dc "$data/test.jsonl.gz") <(gzip -dc launch/quickstart/word_problems/test.jsonl.gz) >&2 ||
  { echo "the test problems differ from the committed ones" >&2; exit 3; }

arms=()
while read -r name overrides; do
  settings=()
  for override in $overrides; do settings+=(--set "$override"); done
  start=$SECONDS
  launch/scripts/local_mpirun.sh -n 2 "$jforge" run launch/configs/study.toml \
    --set "run.directory=results/runs/study-$name" "${settings[@]}" >&2 </dev/null
  arms+=(--arm "$name" "results/runs/study-$name" "$((SECONDS - start))" "${overrides:-none}")
done <<'ARMS'
noise
sft train.consistency_weight=0
clean rounds.1.mask=clean rounds.2.mask=clean rounds.1.schedule=random rounds.2.schedule=random
ARMS

python3 -B tests/benchmarks/study_page.py "${arms[@]}" \
  --overlap "$(python3 -B launch/quickstart/measure_overlap.py --train "$data/train.jsonl.gz" \
    --train "$data/prompts.jsonl.gz" --test "$data/test.jsonl.gz")" \
  --masks "$("$masks" results/runs/study-noise/round-2/trajectories)"
