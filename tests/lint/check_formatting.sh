#!/usr/bin/env bash
# Every C++ and CUDA source is as clang-format leaves it: check_formatting.sh ROOT. Debian 12's clang-format (14) is the
# one that counts; without it exit 77, which ctest counts as skipped.
set -euo pipefail
cd "$1"
if ! clang-format --version 2>/dev/null | grep -q 'version 14\.'; then
  echo "clang-format 14 is not installed (Debian package clang-format): skipped"
  exit 77
fi
find . \( -path './build*' -o -path './.git' -o -path './results' \) -prune -o \
  \( -name '*.cpp' -o -name '*.h' -o -name '*.cu' -o -name '*.cuh' -o -name '*.c' \) -type f -print0 |
  xargs -0 clang-format --dry-run -Werror
