#!/usr/bin/env bash
# The effect of each training choice on the quickstart's model and ledgers (launch/quickstart): masks × schedules,
# windows, two rounds, kept offsets, teacher, with several seeds; Jacobi and multi-block decoding at several inference
# block sizes. Writes mean ± standard deviation to WORK/ablations.md, pictures to WORK/ablations.METHOD.svg.
#
#   tests/benchmarks/ablations.sh [OPTION …] WORK
#
# Can be stopped and started again. Options:
#   --build DIR      holds launch/jforge (default build/cpu-release)
#   --ranks N        (default 2)
#   --steps "N …"    of an arm's first round, of 16 samples (default 240); a second round has half. With several numbers
#                    every arm is trained for each, the largest first: learning curves.
#   --arms "A …"     (default: the fourteen listed below; also mixed-linear, mixed-random, and any of these with settings:
#                    clean-random,rounds.1.noise_window=4,train.ar_weight=1)
#   --prompts N      that trajectories are made of (default 4000)
#   --seeds "S …"    (default "1 2 3")
#   --blocks "B …"   inference block sizes (default "16 64 128")
#   --limit N        test problems (default 100)
#   --tiny           tries the script in minutes
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
cd "$root"

usage() { sed -n '2,/^set -e/{/^set -e/d;s/^# \{0,1\}//;p}' "${BASH_SOURCE[0]}" >&2; exit 2; }
build=build/cpu-release ranks=2 steps=240 seeds="1 2 3" blocks="16 64 128" limit=100 prompts=4000
command=$(printf ' %q' "$@")
arms="noise-linear noise-random noise-reverse window-linear window-random window-reverse clean-linear clean-random"
arms+=" clean-reverse window-of-4 window-of-8 all-kept frozen-teacher two-rounds"
while [[ ${1:-} == --* ]]; do
  if [ "$1" = --tiny ]; then
    steps="3 2" seeds="1 2" arms="noise-linear mixed-random two-rounds" blocks="16 128" limit=2 prompts=100
    shift
    continue
  fi
  [ $# -ge 2 ] || usage
  case $1 in
    --build) build=$2 ;;
    --ranks) ranks=$2 ;;
    --steps) steps=$2 ;;
    --arms) arms=$2 ;;
    --prompts) prompts=$2 ;;
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
  python3 -B launch/quickstart/make_ledger.py --out "$work/data" --fewest 6 --most 9 --train 0 --prompts "$prompts" \
    --validation 0 --test 500
}

# Prints an arm's differences from the configuration.
settings_of() {
  case $1 in
    *,*) settings_of "${1%%,*}" && tr ',' '\n' <<<"${1#*,}" && return ;;
    noise-linear | two-rounds) ;;
    noise-* | window-linear | window-random | window-reverse | clean-* | mixed-*)
      echo "rounds.1.mask=${1%-*} rounds.1.schedule=${1#*-}" ;;
    window-of-*) echo "rounds.1.noise_window=${1##*-}" ;;
    all-kept) echo train.kept=all ;;
    frozen-teacher) echo train.teacher=frozen ;;
    *) echo "no arm $1" >&2; return 2 ;;
  esac
}

train() {
  local name=$1 arm=$2 count=$3 seed=$4 donor=$5 override config=launch/configs/ablations.toml settings=()
  for override in $(settings_of "$arm"); do settings+=(--set "$override"); done
  if [ "${arm%%,*}" = two-rounds ]; then
    config=$work/two-rounds.$count.toml
    printf '[[rounds]]\nblock_size = 32\nnoise_window = 8\nsteps = %s\n' \
      "$((count / 2))" | cat launch/configs/ablations.toml - >"$config"
  fi
  # A seed's first run generates for all its arms.
  [ "$name" = "$donor" ] || take_round_1 "$work/runs/$donor" "$work/runs/$name"
  run run "$config" --set "run.directory=$work/runs/$name" --set "run.seed=$seed" \
    --set "prompts.files=[\"$work/data/prompts.jsonl.gz\"]" --set "rounds.1.steps=$count" "${settings[@]}"
  # Deletes checkpoints and trajectories that later runs do not share.
  rm -rf "$work/runs/$name/checkpoints" "$work/runs/$name/round-2"
  [ "$name" = "$donor" ] || rm -rf "$work/runs/$name/round-1"
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
stage evaluate-base evaluate base launch/quickstart/model
for arm in $arms; do settings_of "$arm" >/dev/null; done
steps=$(tr ' ' '\n' <<<"$steps" | sort -rn | tr '\n' ' ')
for seed in $seeds; do
  donor=
  for count in $steps; do
    for arm in $arms; do
      name=$arm@$count.$seed
      donor=${donor:-$name}
      stage "train-$name" train "$name" "$arm" "$count" "$seed" "$donor"
      stage "evaluate-$name" evaluate "$name" "$work/runs/$name/model"
    done
  done
done
python3 -B tests/benchmarks/study_real.py ablations --work "$work" \
  --command "tests/benchmarks/ablations.sh$command" >"$work/ablations.md.tmp"
mv "$work/ablations.md.tmp" "$work/ablations.md"
for method in jacobi mr; do
  python3 -B tests/benchmarks/study_real.py picture --work "$work" --method "$method" --block "${blocks##* }" \
    >"$work/ablations.$method.svg"
done
cat "$work/ablations.md"
