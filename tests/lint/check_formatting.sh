#!/usr/bin/env bash
# check_formatting.sh ROOT: C++ and CUDA sources are formatted by Debian 12's clang-format (14); exits 77 without it,
# which ctest counts as skipped.
set -euo pipefail
cd "$1"
if ! clang-format --version 2>/dev/null | grep -q 'version 14\.'; then
  echo "clang-format 14 is not installed (Debian package clang-format): skipped"
  exit 77
fi
find . \( -path './build*' -o -path './.git' -o -path './results' \) -prune -o \
  \( -name '*.cpp' -o -name '*.h' -o -name '*.cu' -o -name '*.cuh' -o -name '*.c' \) -type f -print0 |
  xargs -0 clang-format --dry-run -Werror
