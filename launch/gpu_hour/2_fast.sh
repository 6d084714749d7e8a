#!/usr/bin/env bash
# 2_fast.sh OUT [SECONDS]: how fast is this machine's GPU? The second of three calls (1_right.sh): all benchmarks, with
# the device's clocks and power.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
out=${1:?usage: 2_fast.sh OUT [SECONDS]}
seconds=${2:-560}
mkdir -p "$out"
out=$(cd "$out" && pwd)

monitor=
if command -v nvidia-smi >/dev/null; then
  nvidia-smi dmon -s pucm -o T >"$out/dmon.txt" 2>&1 &
  monitor=$!
fi
trap '[ -z "$monitor" ] || kill "$monitor" 2>/dev/null || true' EXIT
status=0
"$root/launch/gpu_check.sh" ${GPU_HOUR_EMULATED:+--emulated} --only benchmarks --seconds "$seconds" \
  --out "$out/benchmarks/gpu_check.md" || status=1
tar czf "$out/logs.tar.gz" -C "$out" benchmarks/gpu_check_logs
rm -r "$out/benchmarks/gpu_check_logs"
exit $status
