#!/usr/bin/env bash
# 1_right.sh OUT [SECONDS]: is everything right on this machine's GPU? The first of three calls of at most ten minutes
# in a bundle of gpu_check.sh (CONTRIBUTING.md, "On a real GPU"). Describes the machine, runs all GPU tests and
# memcheck; writes to the folder OUT. Exits 1 if anything failed. GPU_HOUR_EMULATED=1 tests the three scripts on the
# emulated device.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
out=${1:?usage: 1_right.sh OUT [SECONDS]}
seconds=${2:-560}
mkdir -p "$out"
out=$(cd "$out" && pwd)
emulated=${GPU_HOUR_EMULATED:+--emulated}

{
  nvidia-smi -q || true
  uname -a
  lscpu || true
  free -g
  nvcc --version || true
  python3 -c 'import torch; print("torch", torch.__version__, torch.version.cuda, torch.backends.cudnn.version(), torch.cuda.nccl.version())' || true
  "$root/bin/jforge" --version || true
} >"$out/machine.txt" 2>&1

status=0
"$root/launch/gpu_check.sh" $emulated --only tests --seconds $((seconds * 3 / 5)) --out "$out/tests/gpu_check.md" || status=1
left=$((seconds - SECONDS))
if [ -z "$emulated" ] && [ $left -gt 20 ]; then
  "$root/launch/gpu_check.sh" --only memcheck --seconds $left --out "$out/memcheck/gpu_check.md" || status=1
fi
tar czf "$out/logs.tar.gz" -C "$out" $(cd "$out" && find . -name gpu_check_logs)
find "$out" -name gpu_check_logs -prune -exec rm -r {} +
exit $status
