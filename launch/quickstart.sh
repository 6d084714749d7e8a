#!/usr/bin/env bash
# quickstart.sh [--cuda]: installs missing packages, builds, runs the pipeline on the bundled small model with two CPU
# ranks, and decodes an answer both ways, in 5 to 8 minutes on 2 cores after the build. --cuda (needs nvcc): also builds
# the CUDA kernels and computes on a device, which the ranks may share.
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
build=build/cpu-release
device=cpu
if [ $cuda = ON ]; then
  build=build/cuda-release
  device=cuda
fi
# A folder that is already configured keeps its tests.
fresh=()
if [ ! -e "$build/CMakeCache.txt" ]; then
  fresh=(-DJFORGE_TESTS=OFF -DJFORGE_UNITY=ON)
fi
cmake -S . -B "$build" -G Ninja "${fresh[@]}" -DJFORGE_CUDA=$cuda >/dev/null
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
# A test problem, which training has not seen.
question=$(python3 -c 'import gzip, json, sys; print(json.loads(gzip.open(sys.argv[1]).readline())["question"])' \
  launch/quickstart/ledger/test.jsonl.gz)
printf '\n%s\n\n' "$question"
"$build/launch/jforge" decode --model "$run/model" --device "$device" --prompt "$question" --compare \
  --compare-svg "$run/comparison.svg"
echo "The same, moving: $run/comparison.svg"
echo "Next: train your own model (README.md) or serve this one elsewhere (launch/models/SERVING.md)"
