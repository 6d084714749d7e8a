#!/usr/bin/env bash
# Builds and tests. Plain: every test not labelled slow, manual or gpu (at most 12 minutes on 2 cores). --all: adds label
# slow, and where nvcc is a CUDA build with the tests that need no device (at most 40 minutes). Tests that need a device
# have label gpu: cmake --preset cuda-release && cmake --build --preset cuda-release --target gpu_tests &&
# ctest --preset cuda-release-gpu. Installs what is missing first.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"

exclude='manual|gpu|slow'
all=no
case "${1:-}" in
  "") ;;
  --all) exclude='manual|gpu'; all=yes ;;
  *) echo "usage: launch/test.sh [--all]" >&2; exit 2 ;;
esac

launch/scripts/setup.sh
jobs=$(nproc)
build=build/cpu-release
cmake -S . -B "$build" -G Ninja -DJFORGE_CUDA=OFF -DJFORGE_WERROR="${JFORGE_WERROR:-ON}"
cmake --build "$build" -j "$jobs"
ctest --test-dir "$build" --output-on-failure -j "$jobs" -LE "$exclude" --no-tests=error

# A case that this machine could not run counts as passed above.
left_out=$(awk '/: Skipped$/ { getline; print } / \.\.\. skipped / { sub(/.* skipped /, ""); print }' \
  "$build/Testing/Temporary/LastTest.log" | sort | uniq -c)
if [ -n "$left_out" ]; then
  printf 'Test cases left out on this machine, by reason:\n%s\n' "$left_out"
fi

if [ $all = yes ]; then
  if command -v nvcc >/dev/null || [ -x "${CUDACXX:-/usr/local/cuda/bin/nvcc}" ]; then
    build=build/cuda-release
    cmake -S . -B "$build" -G Ninja -DJFORGE_CUDA=ON -DJFORGE_WERROR="${JFORGE_WERROR:-ON}"
    cmake --build "$build" -j "$jobs" --target jforge gpu_tests
    ctest --test-dir "$build" --output-on-failure -L cuda_build --no-tests=error
  else
    echo "No nvcc: the CUDA build is left out"
  fi
fi
