#!/usr/bin/env bash
# 3_program.sh OUT [SECONDS]: the third of three calls (1_right.sh). Runs the quickstart on the GPU in bfloat16, stopped
# once and resumed, profiles the decoding and training kernels with Nsight Compute, and runs racecheck. Writes to OUT.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
out=${1:?usage: 3_program.sh OUT [SECONDS]}
seconds=${2:-540}
mkdir -p "$out"
out=$(cd "$out" && pwd)
emulated=${GPU_HOUR_EMULATED:+--emulated}
JFORGE_CUDA_LIBRARIES=$("$root/launch/gpu_check.sh" $emulated --libraries)
export JFORGE_CUDA_LIBRARIES PATH="$root/bin:$PATH"
cd "$root"
status=0

run=$out/run
# About a minute's work for the emulated device.
few=(--set prompts.limit=16 --set rounds.1.steps=6 --set checkpoint.every_steps=2 --set evaluate.limit=2
  --set evaluate.speed_problems=0 --set train.tokens_per_rank=512 --set train.batch_samples=2
  --set generate.max_new_tokens=32 --set evaluate.max_new_tokens=32)
quickstart=(launch/scripts/local_mpirun.sh -n 1 jforge run launch/configs/quickstart.toml --set "run.directory=\"$run\""
  --set 'model.device="cuda"' --set 'model.compute="bfloat16"' --set 'model.decode_weights="bfloat16_arithmetic"'
  ${emulated:+"${few[@]}"})
# Stops the run after its first checkpoint.
"${quickstart[@]}" >"$out/quickstart_stopped.log" 2>&1 &
job=$!
until ls "$run"/checkpoints/round-1-step-* >/dev/null 2>&1 || ! kill -0 $job 2>/dev/null; do sleep 0.2; done
kill -USR2 $job 2>/dev/null || true
stopped=0
wait $job || stopped=$?
began=$SECONDS
"${quickstart[@]}" >"$out/quickstart_resumed.log" 2>&1 || status=1
jforge verify "$run" >"$out/verify.log" 2>&1 || status=1
[ $stopped -eq 75 ] || status=1
echo "quickstart: stopped with exit code $stopped (75 expected), resumed in $((SECONDS - began)) s: $(tail -n 1 "$out/verify.log")"
cp "$run/report.md" "$out/report.md" 2>/dev/null || status=1

ncu=$(PATH=$PATH:/usr/local/cuda/bin command -v ncu || true)
sections=(--section SpeedOfLight --section MemoryWorkloadAnalysis --section Occupancy --section LaunchStats --section WarpStateStats)
# profile NAME SKIP COUNT COMMAND…: profiles COUNT kernel launches after the first SKIP with Nsight Compute.
profile() {
  local name=$1 skip=$2 count=$3
  shift 3
  [ $((seconds - SECONDS)) -gt 30 ] || { echo "ncu $name: left out for time"; return 0; }
  timeout $((seconds - SECONDS)) "$ncu" --clock-control none "${sections[@]}" --launch-skip "$skip" --launch-count "$count" \
    --target-processes all --csv --page details --log-file "$out/ncu_$name.csv" "$@" >"$out/ncu_$name.log" 2>&1 ||
    { status=1; tail -n 3 "$out/ncu_$name.log"; }
  [ ! -e "$out/ncu_$name.csv" ] || gzip -f "$out/ncu_$name.csv"
}
if [ -n "$ncu" ] && [ -z "$emulated" ]; then
  wide=(--device cuda --shape qwen2.5-7b --layers 1)
  profile decoding 40 30 model_benchmark "${wide[@]}" --only decoding --storage bfloat16_arithmetic --prompt 512 --tokens 4
  profile training 60 70 launch/scripts/local_mpirun.sh -n 1 model_benchmark "${wide[@]}" --only training --compute bfloat16 \
    --rows 8192 --steps 1
else
  echo "ncu: not here"
fi
left=$((seconds - SECONDS))
if [ -z "$emulated" ] && [ $left -gt 20 ]; then
  "$root/launch/gpu_check.sh" --only racecheck --seconds $left --out "$out/racecheck/gpu_check.md" || status=1
  tar czf "$out/racecheck_logs.tar.gz" -C "$out" racecheck/gpu_check_logs
fi
tar czf "$out/run_logs.tar.gz" -C "$out" $(cd "$out" && ls | grep -E '^(quickstart|ncu|verify).*log$')
rm -rf "$run" "$out"/quickstart*.log "$out"/ncu*.log "$out/racecheck/gpu_check_logs"
exit $status
