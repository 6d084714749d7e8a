#!/usr/bin/env bash
# unity_test.sh ROOT: the sources of every library compile together, all as one, so that no grouping by JFORGE_UNITY
# (which the quickstart sets) can fail. Checks the syntax only.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cmake -S "$1" -B "$folder" -G Ninja -DJFORGE_TESTS=OFF -DJFORGE_CUDA=OFF -DJFORGE_UNITY=ON \
  -DCMAKE_UNITY_BUILD_BATCH_SIZE=0 >/dev/null
cd "$folder"
ninja -t commands jforge | grep ' -c .*/Unity/' | sed 's/ -c / -fsyntax-only -Werror -c /' >commands
[ "$(wc -l <commands)" -gt 20 ] || { echo "too few libraries"; exit 1; }
xargs -d '\n' -P "$(nproc)" -n 1 bash -c <commands
