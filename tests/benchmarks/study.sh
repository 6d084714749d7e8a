#!/usr/bin/env bash
# The study of launch/configs/study.toml and its controls at equal steps and data, on 2 ranks, as one Markdown page on
# standard output: Jacobi Forcing, SFT alone (consistency weight 0) and CLLM* (clean mask, random schedule).
# Usage: tests/benchmarks/study.sh JFORGE_BINARY > results/reference/study.md     (runs stay in results/runs/study-*)
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
cd "$root"
jforge=${1:?usage: tests/benchmarks/study.sh JFORGE_BINARY}
config=launch/configs/study.toml
data=results/runs/study-data

python3 launch/quickstart/make_word_problems.py --out "$data" --prompts 30000 >&2
cmp <(gzip -dc "$data/test.jsonl.gz") <(gzip -dc launch/quickstart/test.jsonl.gz) >&2 ||
  { echo "the held-out problems differ from the committed ones" >&2; exit 3; }

run() { # NAME OVERRIDE...
  local name=$1 settings=(); shift
  for override in "$@"; do settings+=(--set "$override"); done
  local start=$SECONDS
  launch/scripts/local_mpirun.sh -n 2 "$jforge" run $config --set "run.directory=results/runs/study-$name" \
    "${settings[@]}" >&2
  seconds=$((SECONDS - start))
}

echo "# Study: two rounds on the quickstart's base model"
echo
echo "- command: \`tests/benchmarks/study.sh JFORGE\`; configuration launch/configs/study.toml"
echo "- CPU: $(sed -n 's/^model name\s*: //p' /proc/cpuinfo | head -n 1), $(nproc) cores, 2 ranks"
echo "- commit: $(git describe --always --dirty)"
echo
for arm in "jacobi-forcing" \
           "sft train.consistency_weight=0" \
           "cllm rounds.0.mask=clean rounds.1.mask=clean rounds.0.schedule=random rounds.1.schedule=random"; do
  read -r name overrides <<<"$arm"
  # shellcheck disable=SC2086  # overrides are words
  run "$name" $overrides
  echo "## $name"
  echo
  echo "Overrides: ${overrides:-none}. Wall time ${seconds} s."
  echo
  # grep fails, and with it the study, when the report has no such table.
  sed -n '/^## Accuracy and speed/,/^TPF =/p' "results/runs/study-$name/report.md" | grep '^|'
  echo
done
