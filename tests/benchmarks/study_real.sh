#!/usr/bin/env bash
# The study on a real model: base, two rounds (block size 16, then 32), controls at equal samples, AR against Jacobi and
# multi-block decoding at inference blocks larger than the training's, fidelity to the base, as one Markdown page.
#
#   tests/benchmarks/study_real.sh [OPTION …] WORK [STAGE …]
#
# Finished stages are skipped, stopped ones are continued. A stage's seconds, over all starts, are printed and kept in
# WORK/seconds. Without STAGE all of them in order:
#   data                    problems and prompts
#   finetune                (task ledger) the base: MODEL trained on the problems' answers
#   train-ARM               generation and training of the rounds; ARM: jacobi-forcing jf-random cllm sft, or one of them
#                           and a share: cllm@0.5, after cllm, has the weights half way between the base's and cllm's
#   evaluate-base evaluate-ARM    AR and every method at every block size; speeds at batch 1 and 8
#   fidelity                greedy answers of every arm under the base model
#   page                    WORK/study.md
# Options (the same in every start on one WORK):
#   --model DIR      Hugging Face directory (default models/smollm2, made by launch/models/smollm2.sh)
#   --task T         ledger (default: launch/quickstart/make_ledger.py, a base is trained first) or open (GSM8K and code
#                    prompts of --data, tested on gsm8k:plain, humaneval and mbpp; the base is the model itself)
#   --tasks "A B"    of the open task, tested on these alone
#   --data DIR       of the open task (default ../shared/data beside the tree)
#   --build DIR      holds launch/jforge (default build/cpu-release)
#   --ranks N        (default 2)
#   --arms "A B"     (default all four)
#   --finetune N     steps of 16 samples (default 300)
#   --steps "N M"    of the two rounds, of 16 samples each (default "300 150"); "N": the first round alone
#   --blocks "B …"   inference block sizes (default "16 32 64 128")
#   --methods "A B"  measured beside AR (default "jacobi mr")
#   --limit N        test problems (default 60)
#   --lines "N M"    fewest and most changes of a ledger (default those of make_ledger.py; "8 12": 164 to 257 tokens)
#   --tiny           the quickstart's small model, short ledgers and few steps: tries the script in minutes
#   --set K=V        for every arm and evaluation, may be repeated; --set-finetune K=V for the base
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
cd "$root"

usage() { sed -n '2,/^set -e/{/^set -e/d;s/^# \{0,1\}//;p}' "${BASH_SOURCE[0]}" >&2; exit 2; }
model=models/smollm2 task=ledger data=../shared/data build=build/cpu-release ranks=2 tiny=0
arms="jacobi-forcing jf-random cllm sft" finetune_steps=300 steps="300 150" blocks="16 32 64 128"
methods="jacobi mr" limit=60 lines=() open_tasks="gsm8k:plain humaneval mbpp"
extra=() finetune_extra=() command=$(printf ' %q' "$@")
while [[ ${1:-} == --* ]]; do
  option=$1
  if [ "$option" = --tiny ]; then
    tiny=1 model=launch/quickstart/model finetune_steps=40 steps="12 6" blocks="16 32" limit=8
    for setting in generate.max_new_tokens=160 evaluate.max_new_tokens=160 evaluate.speed_problems=2 \
      evaluate.speed_repeats=2 train.collapse_check_every=0; do extra+=(--set "$setting"); done
    finetune_extra+=(--set train.learning_rate=2e-3)
    shift
    continue
  fi
  [ $# -ge 2 ] || usage
  case $option in
    --model) model=$2 ;;
    --task) task=$2 ;;
    --tasks) open_tasks=$2 ;;
    --data) data=$2 ;;
    --build) build=$2 ;;
    --ranks) ranks=$2 ;;
    --arms) arms=$2 ;;
    --finetune) finetune_steps=$2 ;;
    --steps) steps=$2 ;;
    --blocks) blocks=$2 ;;
    --methods) methods=$2 ;;
    --limit) limit=$2 ;;
    --lines) lines=(--fewest "${2% *}" --most "${2#* }") ;;
    --set) extra+=(--set "$2") ;;
    --set-finetune) finetune_extra+=(--set "$2") ;;
    *) usage ;;
  esac
  shift 2
done
[ $# -ge 1 ] || usage
work=$1
shift
jforge=$build/launch/jforge
[ -x "$jforge" ] || { echo "$jforge is not there: cmake --build $build --target jforge" >&2; exit 4; }
[ -e "$model/config.json" ] || { echo "no model in $model: launch/models/smollm2.sh $model" >&2; exit 3; }
case $task in
  ledger)
    base=$work/finetune/model tasks='["ledger"]' tested=$work/data
    prompts="[\"$work/data/prompts.jsonl.gz\"]" ;;
  open)
    base=$model tasks="[\"${open_tasks// /\", \"}\"]" tested=$data
    prompts="[\"$work/data/gsm8k.jsonl.gz\", \"$work/data/code.jsonl.gz\"]" ;;
  *) usage ;;
esac
read -r first_steps second_steps <<<"$steps"
. tests/benchmarks/stages.sh
config=launch/configs/study_real.toml
if [ -z "$second_steps" ]; then
  # Drops the second [[rounds]], which --set cannot.
  awk '/^\[/ { rounds += $0 == "[[rounds]]"; kept = !($0 == "[[rounds]]" && rounds == 2) } rounds < 1 || kept' "$config" \
    >"$work/study_real.toml"
  config=$work/study_real.toml
fi

run() { "$root/launch/scripts/local_mpirun.sh" -n "$ranks" "$jforge" "$@" </dev/null; }
block_list() { local list=${blocks// /, }; echo "[$list]"; }

stage_data() {
  if [ "$task" = open ]; then
    python3 -B tests/benchmarks/real_prompts.py --data "$data" --out "$work/data"
  elif [ $tiny = 1 ]; then
    python3 -B launch/quickstart/make_ledger.py --out "$work/data" --train 400 --prompts 400 --validation 40 --test 40 \
      --fewest 4 --most 5
  else
    python3 -B launch/quickstart/make_ledger.py --out "$work/data" "${lines[@]}"
  fi
}

stage_finetune() {
  [ "$task" = ledger ] || return 0
  run finetune launch/configs/finetune_smollm2.toml --set "model.source=$model" --set model.compute=bfloat16 \
    --set "run.directory=$work/finetune" --set "finetune.output=$base" --set "finetune.steps=$finetune_steps" \
    --set "finetune.files=[\"$work/data/train.jsonl.gz\"]" "${finetune_extra[@]}"
}

# Prints an arm's differences from the configuration, and the arm whose first trajectories it can take.
settings_of() {
  local round rounds=(1 ${second_steps:+2})
  case $1 in
    jacobi-forcing) ;;
    jf-random) for round in "${rounds[@]}"; do echo "rounds.$round.schedule=random"; done ;;
    cllm) for round in "${rounds[@]}"; do echo "rounds.$round.schedule=random rounds.$round.mask=clean"; done ;;
    sft)
      # Always trains on tokens: a frozen teacher would teach nothing.
      echo "train.consistency_weight=0 train.teacher=detached train.ar_loss=cross_entropy"
      for round in "${rounds[@]}"; do echo "rounds.$round.schedule=random"; done ;;
    *) echo "no arm $1" >&2; return 2 ;;
  esac
}
donor_of() { case $1 in cllm | sft) echo jf-random ;; esac; }

train() {
  local arm=$1 directory=$work/$1 donor override settings=()
  if [[ $arm == *@* ]]; then
    # A stopped start may have left a part. Names sort by step, so the last one is the newest.
    rm -rf "$directory"
    mkdir "$directory"
    local checkpoints=("$work/${arm%@*}"/checkpoints/round-*-step-????????)
    "$jforge" export "${checkpoints[-1]}" "$directory/model" --interpolate "${arm#*@}" --source "$base"
    return
  fi
  for override in $(settings_of "$arm"); do settings+=(--set "$override"); done
  donor=$(donor_of "$arm")
  [ -z "$donor" ] || take_round_1 "$work/$donor" "$directory"
  settings+=(--set "rounds.1.steps=$first_steps" ${second_steps:+--set "rounds.2.steps=$second_steps"})
  run run "$config" --set "run.directory=$directory" --set "model.source=$base" --set "prompts.files=$prompts" \
    "${extra[@]}" "${settings[@]}"
}

evaluate() {
  local name=$1 directory=$2 method
  for method in $methods; do
    # AR's answers are decoded once; its speed is measured beside each method.
    run sweep "$config" --model "$directory" --name "$name" --out "$work/evaluation/$name" \
      --set "sweep.method=$method" --set "sweep.block_size=$(block_list)" --set "evaluate.tasks=$tasks" \
      --set "evaluate.data=$tested" --set "evaluate.limit=$limit" "${extra[@]}"
    cp "$work/evaluation/$name/sweep/sweep.json" "$work/evaluation/$name/$method.json"
  done
}

stage_fidelity() {
  local arm
  for arm in base $arms; do
    python3 -B tests/benchmarks/study_real.py answers --task "$task" --data "$tested" --evaluation "$work/evaluation/$arm" \
      --model "$arm" --out "$work/evaluation/$arm/answers.jsonl"
    "$jforge" probe likelihood --model "$base" --pairs "$work/evaluation/$arm/answers.jsonl" \
      --out "$work/evaluation/$arm/likelihood.jsonl"
  done
}

stage_page() {
  python3 -B tests/benchmarks/study_real.py page --task "$task" --work "$work" --arms "$arms" \
    --command "tests/benchmarks/study_real.sh$command" \
    >"$work/study.md.tmp"
  mv "$work/study.md.tmp" "$work/study.md"
  cat "$work/study.md"
}

run_stage() {
  case $1 in
    data | finetune | fidelity) stage "$1" "stage_$1" ;;
    page) stage_page ;;
    train-*) stage "$1" train "${1#train-}" ;;
    evaluate-base) stage "$1" evaluate base "$base" ;;
    evaluate-*) stage "$1" evaluate "${1#evaluate-}" "$work/${1#evaluate-}/model" ;;
    *) usage ;;
  esac
}

stages=("$@")
if [ ${#stages[@]} = 0 ]; then
  stages=(data finetune evaluate-base)
  for arm in $arms; do stages+=("train-$arm" "evaluate-$arm"); done
  stages+=(fidelity page)
fi
for name in "${stages[@]}"; do run_stage "$name"; done
