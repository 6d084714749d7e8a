#!/usr/bin/env bash
# What each choice of the training does, on a small model and ledgers (launch/quickstart/make_ledger.py): masks ×
# schedules, windows, two rounds, kept offsets, teacher, each with several seeds; Jacobi and multi-block decoding at
# inference blocks of the training's size and larger; mean ± standard deviation as one Markdown page, WORK/ablations.md.
#
#   tests/benchmarks/ablations.sh [OPTION …] WORK
#
# Can be stopped and started again. Options:
#   --build DIR      holds launch/jforge (default build/cpu-release)
#   --ranks N        (default 2)
#   --base N         steps of 32 samples that make the base from the quickstart's model (default 600)
#   --steps N        of an arm's first round, of 16 samples (default 120); a second round has half
#   --seeds "S …"    (default "1 2 3")
#   --blocks "B …"   inference block sizes (default "16 64 128")
#   --limit N        test problems (default 100)
#   --tiny           tries the script in minutes
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
cd "$root"

usage() { sed -n '2,/^set -e/{/^set -e/d;s/^# \{0,1\}//;p}' "${BASH_SOURCE[0]}" >&2; exit 2; }
build=build/cpu-release ranks=2 base_steps=600 steps=120 seeds="1 2 3" blocks="16 64 128" limit=100 sizes=(8000 4000)
while [[ ${1:-} == --* ]]; do
  if [ "$1" = --tiny ]; then
    base_steps=20 steps=3 seeds="1 2" blocks="16 128" limit=2 sizes=(400 100)
    shift
    continue
  fi
  [ $# -ge 2 ] || usage
  case $1 in
    --build) build=$2 ;;
    --ranks) ranks=$2 ;;
    --base) base_steps=$2 ;;
    --steps) steps=$2 ;;
    --seeds) seeds=$2 ;;
    --blocks) blocks=$2 ;;
    --limit) limit=$2 ;;
    *) usage ;;
  esac
  shift 2
done
[ $# = 1 ] || usage
work=$1
jforge=$build/launch/jforge
[ -x "$jforge" ] || { echo "$jforge is not there: cmake --build $build --target jforge" >&2; exit 4; }
. tests/benchmarks/stages.sh

run() { "$root/launch/scripts/local_mpirun.sh" -n "$ranks" "$jforge" "$@" </dev/null; }

make_data() {
  # So short that question and answer fit the model's 512 positions.
  python3 -B launch/quickstart/make_ledger.py --out "$work/data" --fewest 6 --most 9 --train "${sizes[0]}" \
    --prompts "${sizes[1]}" --validation 0 --test 200
}

make_base() {
  run finetune launch/configs/finetune_smollm2.toml --set model.source=launch/quickstart/model \
    --set "run.directory=$work/base" --set "finetune.output=$work/base/model" --set "finetune.steps=$base_steps" \
    --set "finetune.files=[\"$work/data/train.jsonl.gz\"]" --set train.batch_samples=32 --set train.tokens_per_rank=4096 \
    --set train.learning_rate=2e-3 --set checkpoint.every_steps=100
}

train() {
  local arm=$1 seed=$2 settings=() override
  shift 2
  for override in "$@"; do settings+=(--set "$override"); done
  # The first arm of a seed generates for all of them.
  [ "$arm" = noise-linear ] || take_round_1 "$work/runs/noise-linear.$seed" "$work/runs/$arm.$seed"
  run run "$config" --set "run.directory=$work/runs/$arm.$seed" --set "run.seed=$seed" --set "model.source=$work/base/model" \
    --set "prompts.files=[\"$work/data/prompts.jsonl.gz\"]" --set "rounds.1.steps=$steps" "${settings[@]}"
  # A hundred runs' checkpoints and trajectories are not kept; what is shared stays.
  rm -rf "$work/runs/$arm.$seed/checkpoints" "$work/runs/$arm.$seed/round-2"
  [ "$arm" = noise-linear ] || rm -rf "$work/runs/$arm.$seed/round-1"
}

evaluate() {
  local name=$1 model=$2 method
  for method in jacobi mr; do
    run sweep launch/configs/ablations.toml --model "$model" --name "$name" --out "$work/evaluation/$name" \
      --set "sweep.method=$method" --set "sweep.block_size=[${blocks// /, }]" --set 'evaluate.tasks=["ledger"]' \
      --set "evaluate.data=$work/data" --set "evaluate.limit=$limit"
    cp "$work/evaluation/$name/sweep/sweep.json" "$work/evaluation/$name/$method.json"
  done
}

stage data make_data
stage base make_base
stage evaluate-base evaluate base "$work/base/model"
# A second round is a table of its own.
config=launch/configs/ablations.toml
printf '[[rounds]]\nblock_size = 32\nnoise_window = 4\nschedule = "linear"\nmask = "noise"\nsteps = %s\n' "$((steps / 2))" |
  cat launch/configs/ablations.toml - >"$work/two-rounds.toml"
for seed in $seeds; do
  while read -r arm settings; do
    config=launch/configs/ablations.toml
    [ "$arm" != two-rounds ] || config=$work/two-rounds.toml
    # shellcheck disable=SC2086
    stage "train-$arm.$seed" train "$arm" "$seed" $settings
    stage "evaluate-$arm.$seed" evaluate "$arm.$seed" "$work/runs/$arm.$seed/model"
  done <<'ARMS'
noise-linear
noise-random rounds.1.schedule=random
noise-reverse rounds.1.schedule=reverse
window-linear rounds.1.mask=window
window-random rounds.1.mask=window rounds.1.schedule=random
window-reverse rounds.1.mask=window rounds.1.schedule=reverse
clean-linear rounds.1.mask=clean
clean-random rounds.1.mask=clean rounds.1.schedule=random
clean-reverse rounds.1.mask=clean rounds.1.schedule=reverse
window-of-4 rounds.1.noise_window=4
window-of-16 rounds.1.noise_window=16
all-kept train.kept=all
frozen-teacher train.teacher=frozen
two-rounds
ARMS
done
python3 -B tests/benchmarks/study_real.py ablations --work "$work" \
  --command "tests/benchmarks/ablations.sh --base $base_steps --steps $steps --seeds '$seeds' --limit $limit" >"$work/ablations.md.tmp"
mv "$work/ablations.md.tmp" "$work/ablations.md"
cat "$work/ablations.md"
