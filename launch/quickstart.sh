#!/usr/bin/env bash
# From nothing to a report: installs what is missing, builds, runs the whole pipeline on the bundled small model with
# two CPU ranks, and prints the report's path and main table. Takes about 10 minutes on 2 cores. --cuda: builds the CUDA
# kernels too (nvcc is needed) and computes on a CUDA device, which the two ranks share where there is only one.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"

cuda=OFF
case "${1:-}" in
  "") ;;
  --cuda) cuda=ON ;;
  *) echo "usage: launch/quickstart.sh [--cuda]" >&2; exit 2 ;;
esac

launch/scripts/setup.sh
build=build/quickstart
device=cpu
if [ $cuda = ON ]; then
  build=build/quickstart-cuda
  device=cuda
fi
cmake -S . -B "$build" -G Ninja -DJFORGE_TESTS=OFF -DJFORGE_CUDA=$cuda >/dev/null
cmake --build "$build" --target jforge

run=results/runs/quickstart
if [ -e "$run" ]; then
  earlier="$run.$(date +%Y-%m-%d-%H%M%S)"
  mv "$run" "$earlier"
  echo "The earlier run is now $earlier"
fi
status=0
launch/scripts/local_mpirun.sh -n 2 "$build/launch/jforge" run launch/configs/quickstart.toml \
  --set model.device=$device || status=$?
if [ $status -ne 0 ]; then
  echo "The pipeline ended with exit code $status; see $run/logs" >&2
  exit $status
fi
echo
echo "Report: $root/$run/report.md"
sed -n '/^## Accuracy and speed/,/^TPF =/p' "$run/report.md"
