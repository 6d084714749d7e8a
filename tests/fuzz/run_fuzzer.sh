#!/usr/bin/env bash
# run_fuzzer.sh PROGRAM TARGET SECONDS FOLDER [OPTION...]: runs a fuzzer on the committed corpus. New inputs go to
# FOLDER, failing ones to FOLDER.broken with a report on standard error. Exits with the fuzzer's code.
set -euo pipefail
program=$1 target=$2 seconds=$3 folder=$4
corpus=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)/corpus/$target
mkdir -p "$folder" "$folder.broken"
export ASAN_OPTIONS=allocator_may_return_null=1:quarantine_size_mb=16:malloc_context_size=8
export UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1
exec "$program" "--target=$target" -max_total_time="$seconds" -timeout=60 -rss_limit_mb=2048 -max_len=8192 \
  -artifact_prefix="$folder.broken/" -print_final_stats=1 "${@:5}" "$folder" "$corpus"
