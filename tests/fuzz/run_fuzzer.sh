#!/usr/bin/env bash
# run_fuzzer.sh PROGRAM TARGET SECONDS FOLDER [OPTION...]: runs one fuzzer on the committed corpus. What it finds of new
# inputs goes to FOLDER, and an input that breaks something to FOLDER.broken, with its report on standard error. Exits as the fuzzer.
set -euo pipefail
program=$1 target=$2 seconds=$3 folder=$4
corpus=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)/corpus/$target
mkdir -p "$folder" "$folder.broken"
export ASAN_OPTIONS=allocator_may_return_null=1:quarantine_size_mb=16:malloc_context_size=8
export UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1
exec "$program" "--target=$target" -max_total_time="$seconds" -timeout=60 -rss_limit_mb=2048 -max_len=8192 \
  -artifact_prefix="$folder.broken/" -print_final_stats=1 "${@:5}" "$folder" "$corpus"
