#!/usr/bin/env bash
# Builds and tests. Plain: every test not labelled slow, manual or gpu (at most 12 minutes on 2 cores). --all: adds label
# slow (at most 40 minutes). Installs what is missing first.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"

exclude='manual|gpu|slow'
case "${1:-}" in
  "") ;;
  --all) exclude='manual|gpu' ;;
  *) echo "usage: launch/test.sh [--all]" >&2; exit 2 ;;
esac

launch/scripts/setup.sh
jobs=$(nproc)
build=build/cpu-release
cmake -S . -B "$build" -G Ninja -DJFORGE_CUDA=OFF -DJFORGE_WERROR="${JFORGE_WERROR:-ON}"
cmake --build "$build" -j "$jobs"
ctest --test-dir "$build" --output-on-failure -j "$jobs" -LE "$exclude" --no-tests=error
