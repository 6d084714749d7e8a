#!/usr/bin/env bash
# configuring_test.sh ROOT
set -euo pipefail
root=$1
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

# Without tests, libraries for tests and benchmarks are not needed.
cmake -S "$root" -B "$folder/build" -G Ninja -DJFORGE_TESTS=OFF -DJFORGE_CUDA=OFF \
  -DCMAKE_DISABLE_FIND_PACKAGE_GTest=ON -DCMAKE_DISABLE_FIND_PACKAGE_benchmark=ON >"$folder/log" 2>&1 ||
  { cat "$folder/log"; echo "configuring without tests failed"; exit 1; }
if grep -q 'DNNL' "$folder/build/CMakeCache.txt"; then
  echo "configuring without tests looks for oneDNN"
  exit 1
fi

# A misspelt folder in a CMakeLists.txt is an error.
mkdir -p "$folder/tree/there"
touch "$folder/tree/there/CMakeLists.txt"
configure_tree() {
  printf 'cmake_minimum_required(VERSION 3.25)\nproject(tree NONE)\ninclude("%s")\njforge_subfolders(%s)\n' \
    "$root/launch/cmake/JforgeTargets.cmake" "$1" >"$folder/tree/CMakeLists.txt"
  cmake -S "$folder/tree" -B "$folder/tree-build" -G Ninja >"$folder/log" 2>&1
}
configure_tree there || { cat "$folder/log"; echo "a folder that exists is refused"; exit 1; }
if configure_tree "there ther"; then
  echo "a misspelt folder is no error"
  exit 1
fi
grep -q 'ther' "$folder/log" || { cat "$folder/log"; echo "the misspelt folder is not named"; exit 1; }
