#!/usr/bin/env bash
# gpu_check.sh [--build DIR] [--out FILE.md] [--only LIST] [--seconds N] [--emulated]: checks this machine's GPU by the
# tests labelled gpu, the benchmarks and, if installed, compute-sanitizer. Prints one table (what, result, figure, bound,
# ratio) and writes it row by row to FILE (gpu_check.md), with logs in gpu_check_logs beside it.
# gpu_check.sh [--build DIR] --bundle OUT.tar.xz|OUT.tar.zst: packs everything for a machine without our packages; there,
# run the unpacked launch/gpu_check.sh. xz is smaller, takes minutes, and python3 can unpack it.
# gpu_check.sh [--build DIR] [--emulated] --libraries: prints CUDA's folders, as JFORGE_CUDA_LIBRARIES for other programs.
# With several devices, collectives are tested and measured on all of them, and a row without NCCL fails.
#
# --build: a CUDA build with its gpu_tests (build/cuda-release). --only: comma-separated parts (tests, benchmarks,
# sanitizer) or regular expressions on rows ("test: gpu_golden_test"). --seconds: total time; the last line counts the
# rows left out. --emulated: a short part on the emulated GPU (tests/cuda_emulator), to test this script.
# Exit codes: 0 all that ran passed, 1 something failed, 2 usage, 4 a library, program or driver is missing or does not
# work, 77 no GPU here, 129, 130 or 143 ended by a signal (the table is written).
set -euo pipefail
ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
export ROOT
# Decimal points in all figures; and started programs must not see the job that this script runs in.
[ -n "$(LC_ALL=C.UTF-8 bash -c : 2>&1)" ] && export LC_ALL=C || export LC_ALL=C.UTF-8
unset ${!SLURM_@} ${!PMI_@} ${!PMIX_@} ${!OMPI_@} ${!GTEST_@}
export GTEST_COLOR=no # mpirun may give rank 0 a terminal

usage() {
  sed -n '2,/^set /{s/^# \{0,1\}//;/^set /d;p}' "${BASH_SOURCE[0]}" >&2
  exit 2
}
refuse() {
  echo "gpu_check.sh: $1" >&2
  exit 2
}
build=$ROOT/build/cuda-release out=gpu_check.md only='' seconds_in_all='' emulated=no bundle='' libraries=no
while [ $# -gt 0 ]; do
  case $1 in
    --emulated) emulated=yes; shift; continue ;;
    --libraries) libraries=yes; shift; continue ;;
    --build | --out | --only | --seconds | --bundle) [ $# -ge 2 ] || usage ;;
    *) usage ;;
  esac
  case $1 in
    --build) build=$(cd "$2" 2>/dev/null && pwd) || refuse "--build $2: no such folder" ;;
    --out) out=$2 ;;
    --only) only=$2 ;;
    --seconds) [[ $2 =~ ^[1-9][0-9]*$ ]] || refuse "--seconds $2: not a number of seconds"; seconds_in_all=$2 ;;
    --bundle) [[ $2 =~ \.tar\.(xz|zst)$ ]] || refuse "--bundle $2: must end with .tar.xz or .tar.zst"; bundle=$2 ;;
  esac
  shift 2
done

missing() {
  echo "gpu_check.sh: $1" >&2
  exit 4
}
if [ -n "$bundle" ]; then
  exec python3 -B "$ROOT/launch/scripts/gpu_bundle.py" pack "$build" "$bundle"
fi

# A bundle has one folder of programs; a build has many.
if [ -e "$ROOT/checks.tsv" ]; then
  packed=yes
  emulator=$ROOT/emulator
  checks() { cat "$ROOT/checks.tsv"; }
  program() { echo "$ROOT/bin/$1"; }
else
  packed=no
  emulator=$build/tests/cuda_emulator/libraries
  checks() { python3 -B "$ROOT/launch/scripts/gpu_bundle.py" list "$build"; }
  program() { find "$build/tests/gpu" "$build/tests/benchmarks" "$build/launch" -maxdepth 1 -name "$1" -type f 2>/dev/null | head -1 || true; }
  [ -x "$(program gpu_kernel_agreement_test)" ] ||
    missing "$build has no GPU tests; cmake --preset cuda-release && cmake --build --preset cuda-release --target gpu_tests"
fi

# Tests set GPU_CHECK_SYSTEM, which replaces / in the search for drivers and toolkits.
system=${GPU_CHECK_SYSTEM:-}
cuda=$([ $packed = yes ] && sed -n 's/^libcudart\.so\.//p' "$ROOT/cuda_libraries.txt" || true)
cuda=${cuda:-13}
declare -A drivers=([12]=525 [13]=580)

# Folders that may hold CUDA's libraries, which a bundle lacks.
cuda_folders() {
  local IFS=:
  printf '%s\n' ${JFORGE_CUDA_LIBRARIES:-} ${LD_LIBRARY_PATH:-} ${CUDA_HOME:+"$CUDA_HOME/lib64"} \
    "$system"/usr/local/cuda/{lib64,targets/x86_64-linux/lib} "$system"/usr/local/cuda-"$cuda"*/lib64 \
    ${CONDA_PREFIX:+"$CONDA_PREFIX/lib"}
  /sbin/ldconfig -p 2>/dev/null | sed -n 's!.* => \(.*\)/lib\(cudart\|cublasLt\|nccl\)\.so.*!\1!p' | sort -u
  python3 -c 'import glob, site
for folder in [*site.getsitepackages(), site.getusersitepackages()]:
    print(*glob.glob(folder + "/nvidia/*/lib"), sep="\n")' 2>/dev/null || true
}
has_driver() { [ -e "$system/dev/nvidiactl" ] || [ -e "$system/dev/dxg" ]; }
driver_version() {
  { nvidia-smi --query-gpu=driver_version --format=csv,noheader 2>/dev/null ||
    cat "$system/proc/driver/nvidia/version" 2>/dev/null || true; } | grep -om1 '[0-9]\{3,\}\.[0-9.]*' | head -1 || true
}
# no_gpu REASON: exits 77 without a driver, else 4.
no_gpu() {
  has_driver || { echo "no GPU here: $1"; exit 77; }
  local version
  version=$(driver_version)
  version="${version:-of unknown version}; CUDA $cuda needs ${drivers[$cuda]:-a newer one} or newer"
  missing "there is a driver ($version) but no device can be used: $1"
}
if [ $emulated = yes ]; then
  export JFORGE_CUDA_LIBRARIES=$emulator
  [ $packed = yes ] || export LD_LIBRARY_PATH=$emulator${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
elif [ $packed = yes ]; then
  found='' absent=''
  folders=$(cuda_folders | sed '/^$/d')
  # find_library NAME: adds its folder to `found`, or fails.
  find_library() {
    local one
    while read -r one; do
      [ -e "$one/$1" ] || continue
      case ":$found:" in *":$one:"*) ;; *) found=$found${found:+:}$one ;; esac
      return 0
    done <<<"$folders"
    return 1
  }
  while read -r library; do
    find_library "$library" || absent="$absent $library"
  done <"$ROOT/cuda_libraries.txt"
  if [ -n "$absent" ]; then
    has_driver || no_gpu "no NVIDIA driver (/dev/nvidiactl), and CUDA's libraries are missing:$absent"
    missing "CUDA's libraries are missing:$absent; install CUDA's toolkit, or: pip install nvidia-cuda-runtime nvidia-cublas nvidia-nccl-cu13 (README.md says where they are looked for)"
  fi
  # Programs open NCCL at run time, so the dynamic linker does not list it.
  find_library libnccl.so.2 ||
    echo "gpu_check.sh: libnccl.so.2 is not found: what needs it is skipped, or fails where there are several devices (README.md says where it is looked for)" >&2
  export JFORGE_CUDA_LIBRARIES=$found
fi
if [ $libraries = yes ]; then
  echo "${JFORGE_CUDA_LIBRARIES:-}"
  exit 0
fi
[ $packed = no ] || export PATH="$ROOT/bin:$PATH"

probe=$(program gpu_kernel_agreement_test)
status=0
said=$("$probe" '--gtest_filter=-*' 2>&1) || status=$?
unusable=$(sed -n 's/^no CUDA device can be used: //p' <<<"$said")
if [ $status -eq 77 ]; then
  no_gpu "$(sed -n 's/^skipped: //p' <<<"$said")"
elif [ $status -ne 0 ]; then
  [ -z "$unusable" ] || no_gpu "$unusable"
  missing "$probe does not start: $(tail -1 <<<"$said")"
fi
device=$(sed -n '/^device: /{s///p;q}' <<<"$said")
export JFORGE_REQUIRE_GPU=1

# Asks the program's CUDA library, which respects CUDA_VISIBLE_DEVICES and MIG, or nvidia-smi, which indents MIG slices.
count_devices() {
  local file=$probe path=${LD_LIBRARY_PATH:-} cudart listed chosen
  if [ $packed = yes ]; then
    file=$ROOT/libexec/$(basename "$probe") path=$ROOT/lib:$JFORGE_CUDA_LIBRARIES${path:+:$path}
  fi
  cudart=$(LD_LIBRARY_PATH=$path ldd "$file" 2>/dev/null | sed -n 's/^\tlibcudart\.so[^ ]* => \(.*\) (0x.*/\1/p' || true)
  python3 -c 'import ctypes, sys
count = ctypes.c_int()
sys.exit(ctypes.CDLL(sys.argv[1]).cudaGetDeviceCount(ctypes.byref(count)) or print(count.value))' "$cudart" 2>/dev/null && return
  listed=$(nvidia-smi --list-gpus 2>/dev/null | grep -c '^GPU ' || true)
  chosen=$(tr , '\n' <<<"${CUDA_VISIBLE_DEVICES-}" | grep -c . || true)
  if [ -n "${CUDA_VISIBLE_DEVICES-}" ] && [ "$chosen" -lt "$listed" ]; then
    listed=$chosen
  fi
  echo $((listed > 1 ? listed : 1)) # the probe has found one
}
devices=1
[ $emulated = yes ] || devices=$(count_devices)

# With one device per rank training uses NCCL, so a check without it would prove nothing.
without_nccl="**failed: $devices devices, no NCCL**"
if ! grep -qs 'libnccl\.so\.2' "$([ $packed = yes ] && echo "$ROOT/libexec/jforge" || program jforge)"; then
  get_nccl="this build has no NCCL: build where nccl.h is (package libnccl-dev)"
elif [ $packed = yes ]; then
  get_nccl="get libnccl.so.2: pip install nvidia-nccl-cu13, or name its folder in JFORGE_CUDA_LIBRARIES"
else
  get_nccl="get libnccl.so.2: package libnccl2, or name its folder in LD_LIBRARY_PATH"
fi

note=
mode=$(nvidia-smi --query-gpu=compute_mode --format=csv,noheader 2>/dev/null || true)
if [ "$devices" -eq 1 ] && [[ $mode == *Exclusive* ]]; then
  note="compute mode $mode: two ranks cannot share this device, and their rows fail; nvidia-smi -c DEFAULT ends it"
  echo "gpu_check.sh: $note" >&2
fi

[ ! -d "$out" ] || refuse "--out $out: is a folder; name a file"
logs=$(mkdir -p "$(dirname "$out")" 2>/dev/null && cd "$(dirname "$out")" && pwd)/gpu_check_logs ||
  missing "cannot make the folder of $out"
rm -rf "$logs"
mkdir "$logs" 2>/dev/null || missing "cannot write to $(dirname "$logs")"
# Otherwise the benchmarks alone would pass.
list=
if [ $emulated = no ]; then
  list=$(checks 2>"$logs/checks.log") ||
    missing "the tests cannot be listed, which takes python3 and ctest: $(tail -n 1 "$logs/checks.log")"
fi
out=$(dirname "$logs")/$(basename "$out")
failed=0 all_skipped=0 ran=0 left_out=0
rows=() lacking=()
ended="Not finished." # the last line's start

if [ $emulated = yes ]; then
  device="emulated GPU: no figure here says anything about a device"
else
  version=$(driver_version)
  device="${device:-unknown}, driver ${version:-unknown}$([ "$devices" -eq 1 ] || echo ", the first of $devices")"
fi
head=("- device: $device" "- program: $("$(program jforge)" --version 2>/dev/null | head -1)"
  "- date: $(date -u +%Y-%m-%dT%H:%MZ)" ${note:+"- note: $note"})
table() {
  local verdict="$ended${only:+ Only: $only.}"
  [ ${#lacking[@]} -eq 0 ] || verdict+=$(printf ' Without %s.' "${lacking[@]}")
  [ $left_out -eq 0 ] || verdict+=" Left out for time: $left_out rows."
  printf '%s\n' "# GPU check" "" "${head[@]}" "" "| what | result | figure | bound | ratio |" \
    "| --- | --- | --- | --- | --- |" ${rows[@]+"${rows[@]}"} "" "$verdict"
}
write_table() { table >"$out.part" && mv "$out.part" "$out"; }
row() {
  rows+=("| $1 | $2 | $3 | $4 | $5 |")
  write_table
}

write_table 2>/dev/null || missing "cannot write $out"

# wanted PART ROW: whether --only selects it.
wanted() {
  local word words
  [ -n "$only" ] || return 0
  IFS=, read -ra words <<<"$only"
  for word in "${words[@]}"; do
    case $word in
      tests | benchmarks | sanitizer) [ "$word" != "$1" ] || return 0 ;;
      *) [[ ! $2 =~ $word ]] || return 0 ;;
    esac
  done
  return 1
}

# Marks processes started here, whatever their group, session or parent.
export GPU_CHECK_STARTED_BY=$$
end_strays() {
  local stray none=0 look
  # During exec a process has no environment, so look until nothing is found twice.
  for ((look = 0; look < 50 && none < 2; ++look)); do
    [ $look -eq 0 ] || sleep 0.05
    none=$((none + 1))
    for stray in $(unset GPU_CHECK_STARTED_BY && # else grep would find itself
      grep -lsaz "^GPU_CHECK_STARTED_BY=$$\$" /proc/[0-9]*/environ | cut -d/ -f3); do
      kill -KILL "$stray" 2>/dev/null || true
      none=0
    done
  done
}
child='' running=''
end_child() {
  local i
  [ -n "$child" ] || return 0
  kill -TERM -- "-$child" 2>/dev/null || true
  for ((i = 0; i < 30; ++i)); do
    kill -0 -- "-$child" 2>/dev/null || break
    sleep 0.1
  done
  end_strays
}
# Writes the table and ends all started processes, however the script ends.
finish() {
  local status=$?
  trap '' HUP INT TERM
  trap - EXIT
  end_child
  if [ -n "$running" ]; then
    row "$running" "**ended by ${signal:-an error}**" "" "" ""
    add_figures "$logs/${running#*: }.log" ""
  fi
  [ -z "$signal" ] || ended="Ended by $signal: not all ran; logs: $logs."
  write_table
  cat "$out"
  exit $status
}
signal=
trap finish EXIT
trap 'signal=SIGHUP; exit 129' HUP
trap 'signal=SIGINT; exit 130' INT
trap 'signal=SIGTERM; exit 143' TERM

# launch SECONDS LOG COMMAND: runs shell text in a process group. Sets `status` and `seconds`.
launch() {
  local begin=$EPOCHREALTIME
  status=0
  set -m
  timeout --kill-after=5 "$1" bash -c "$3" >"$2" 2>&1 </dev/null &
  child=$!
  set +m
  wait "$child" || status=$?
  child=
  end_strays
  seconds=$(awk -v a="$begin" -v b="$EPOCHREALTIME" 'BEGIN { printf "%.1f", b - a }')
}

# fits SECONDS: sets `limit`, a row's time; false if too little is left.
fits() {
  limit=$1
  [ -n "$seconds_in_all" ] || return 0
  local left=$((seconds_in_all - SECONDS - 5)) # five to end the row
  [ $left -ge "$limit" ] || limit=$left
  [ $left -ge 5 ]
}

# run KIND NAME SECONDS COMMAND: logs its output. Sets `result` and `seconds`; false if no time is left.
run() {
  local limit
  if ! fits "$3"; then
    left_out=$((left_out + 1))
    row "$1: $2" "**left out: time**" "" "" ""
    return 1
  fi
  echo "$2 …" >&2
  running="$1: $2"
  launch "$limit" "$logs/$2.log" "$4"
  running=
  ran=$((ran + 1))
  case $status in
    0) result=passed ;;
    77) result="**skipped**" ;;
    *) result="**failed ($status)**" ;;
  esac
  if [[ $status =~ ^(124|137)$ ]] && [ "${seconds%.*}" -ge "$limit" ]; then
    result="**timed out**"
    [ "$limit" -eq "$3" ] || result="**left out: time**"
  fi
  case $result in
    passed) ;;
    *time\*\*) left_out=$((left_out + 1)) ;;
    *) failed=1 ;;
  esac
}

# figures LOG BY: a program's rows | what | figure | bound | ratio | as rows of the table.
figures() {
  awk -F' *[|] *' -v by="$2" 'NF == 6 && /^[|]/ && !/---/ && $2 != "measurement" {
    printf "| %s%s | measured | %s | %s | %s |\n", $2, by, $3, $4, $5 }' "$1"
}
add_figures() {
  local line
  while read -r line; do
    rows+=("$line")
  done < <(figures "$@")
  write_table
}

# last_words LOG: its last line, for a row.
last_words() {
  local said
  said=$(sed 's/^[= ]*//;s/|/\//g' "$1" | grep . | tail -1 || true)
  said=${said:-it says nothing}
  echo "${said:0:160}"
}

# read_cases LOG: counts GoogleTest's or unittest's cases, run and skipped, with each reason once.
read_cases() {
  awk 'function reason(text) {
      gsub(/[|]/, "/", text)
      if (!(text in known)) { known[text]; why = why (why == "" ? "" : "; ") substr(text, 1, 120) }
    }
    { gsub(/\033\[[0-9;]*[A-Za-z]/, "") }
    next_line { next_line = 0; reason($0) }
    / Skipped$/ { next_line = 1 }
    / [.][.][.] skipped ./ { sub(/^.* [.][.][.] skipped ./, ""); sub(/.$/, ""); reason($0) }
    /^\[  PASSED  \] [0-9]+ tests?[.]$/ { ran = $4 }
    /^\[  SKIPPED \] [0-9]+ tests?, listed below:$/ { skipped += $4 }
    /^Ran [0-9]+ tests? in / { ran = $2 }
    /^(OK|FAILED) [(].*skipped=[0-9]+/ {
      sub(/.*skipped=/, "")
      skipped += $0 + 0
      ran = ran > $0 + 0 ? ran - $0 : 0 # unittest counts them as run
    }
    END { printf "%s\t%d\t%s\n", ran == "" ? "-" : ran, skipped, why }' "$1"
}

# mpi_instead LOG: why collectives used MPI, if given.
mpi_instead() { sed -n '/.*collectives by MPI through host memory, not by NCCL: /{s///;s/|/\//g;p;q}' "$1"; }

# run_cases KIND NAME SECONDS COMMAND: a test program's row.
run_cases() {
  run "$@" || return 0
  local count skipped why instead figure
  IFS=$'\t' read -r count skipped why < <(read_cases "$logs/$2.log")
  instead=$(mpi_instead "$logs/$2.log")
  figure="$seconds s"
  [ "$count" = - ] || figure="$count cases, $figure"
  if [ "$skipped" -gt 0 ]; then
    all_skipped=$((all_skipped + skipped))
    [ "$result" != passed ] || result="passed, $skipped skipped"
    figure="$figure; $skipped skipped: ${why:-no reason given}"
  fi
  if [ "$count" = 0 ] && [[ $result == passed* ]]; then
    result="**no case ran**" failed=1
  fi
  # Ranks that share a device use MPI. With several devices any other lack of NCCL is a failure.
  if [ "$devices" -gt 1 ] && [[ $why == *NCCL* || ( -n $instead && $instead != *"share a device"* ) ]]; then
    result=$without_nccl failed=1 figure="$figure${instead:+; by MPI: $instead}; $get_nccl"
  fi
  row "$1: $2" "$result" "$figure" "" ""
  add_figures "$logs/$2.log" ""
}

# Cases for compute-sanitizer, which slows kernels a hundredfold: kernels without deliberate errors, sampled decoding,
# bfloat16 losses and gradients; one rank. racecheck is slowest: a case or two per kernel with shared memory.
sanitized() { # TOOL PROGRAM
  case $2:$1 in
    gpu_kernel_agreement_test:racecheck)
      local name cases=
      for name in Embedding RmsNorm AddAndNormInOnePass PackedAttentionForwardAndBackward VocabularyLoss SumOfSquares \
        ContentHash AdamWWithItsCopyAndHashes InvariantLinearHasTheCpusBits Bfloat16Arithmetic ArgmaxTakesTheCpusTokens \
        SampledTokensAreTheCpus CachedAttention; do
        cases="$cases${cases:+:}KernelAgreement.$name"
      done
      echo "$cases" ;;
    gpu_kernel_agreement_test:*) echo '-*OutOfMemory*:CudaErrors*' ;;
    gpu_tensor_core_attention_test:racecheck) echo '*.AgreesWithFloat32OnTheCpu:*DoesNotDependOnTheBatch/7*:*DoesNotDependOnTheBatch/8*' ;;
    gpu_tensor_core_attention_test:*) echo '*' ;;
    gpu_model_agreement_test:racecheck) echo 'SampledOnADevice.*' ;;
    gpu_model_agreement_test:*) echo 'SampledOnADevice.*:Narrow.*' ;;
  esac
}
sanitize() {
  local tool name sanitizer result=unusable reason='' limit chosen=()
  for tool in memcheck racecheck synccheck initcheck; do
    for name in gpu_kernel_agreement_test gpu_tensor_core_attention_test gpu_model_agreement_test; do
      ! wanted sanitizer "compute-sanitizer: ${tool}_$name" || chosen+=("$tool $name")
    done
  done
  [ ${#chosen[@]} -gt 0 ] || return 0
  sanitizer=$(PATH=$PATH:/usr/local/cuda/bin command -v compute-sanitizer || true)
  # All processes: a bundle's programs are started by a script. Tests cause API errors on purpose.
  under() { # TOOL PROGRAM FILTER
    printf '%q ' "$sanitizer" --target-processes all --report-api-errors no --tool "$1" --error-exitcode 9 \
      "$(program "$2")" "--gtest_filter=$3"
  }
  if [ -z "$sanitizer" ]; then
    result="not on this machine"
  elif fits 180; then
    # Not every machine permits it: first a small case that passes without it.
    local log=$logs/compute-sanitizer.log
    launch "$limit" "$log" "$(under memcheck gpu_kernel_agreement_test KernelAgreement.RmsNorm)"
    if grep -iE 'device not supported|internal sanitizer error|failed to initialize' "$log" >"$log.why" ||
      { [ $status -ne 0 ] && [ $status -ne 9 ] && cp "$log" "$log.why"; }; then
      reason=$(last_words "$log.why")
    fi
  fi
  if [ -z "$sanitizer" ] || [ -n "$reason" ]; then
    row compute-sanitizer "$result" "$reason" "" ""
    lacking+=("compute-sanitizer ($result${reason:+: $reason})")
    return
  fi
  for name in "${chosen[@]}"; do
    tool=${name% *} name=${name#* }
    run_cases compute-sanitizer "${tool}_$name" 600 "$(under "$tool" "$name" "$(sanitized "$tool" "$name")")"
  done
}

# measure LABEL ROWS COMMAND: a benchmark that prints at least ROWS rows of figures.
measure() {
  run benchmark "$1" 600 "$3" || return 0
  local printed instead by='' figure="$seconds s" log=$logs/$1.log
  if [ "$1" = collectives ] && grep -q '^| all_reduce ' "$log"; then
    instead=$(mpi_instead "$log")
    if [ -z "$instead" ]; then
      # NCCL_DEBUG makes NCCL print its version.
      by="NCCL$(sed -n '/.*NCCL version \([^ ]*\).*/{s// \1/p;q}' "$log")"
      figure="by $by, $figure" by=", by NCCL"
    else
      figure="by MPI: $instead, $figure" by=", by MPI"
      if [ "$devices" -gt 1 ]; then
        result=$without_nccl failed=1 figure="$figure; $get_nccl"
      fi
    fi
  fi
  printed=$(figures "$log" "" | grep -c . || true)
  if [ "$result" = passed ] && [ "$printed" -lt "$2" ]; then
    result="**no figure**" failed=1
    [ "$printed" -eq 0 ] || result="**$printed of $2 figures**"
  fi
  row "benchmark: $1" "$result" "$figure" "" ""
  add_figures "$log" "$by"
}

# run_benchmark LABEL ROWS [STARTER -n N] PROGRAM ARGUMENT…
run_benchmark() {
  local label=$1 least=$2 file starter=()
  wanted benchmarks "benchmark: $label" || return 0
  shift 2
  if [ "${2:-}" = -n ]; then
    starter=("${@:1:3}")
    shift 3
  fi
  file=$(program "$1")
  shift
  if [ -z "$file" ]; then
    row "benchmark: $label" "**not built**" "" "" ""
    failed=1
    return
  fi
  measure "$label" "$least" "$(printf '%q ' "${starter[@]}" "$file" "$@")"
}

# compare_flex_attention ROWS ARGUMENT…: packed attention of benchmark `kernels` against FlexAttention, if PyTorch can
# compile it. Its failures do not count.
compare_flex_attention() {
  [ -e "$logs/kernels.log" ] || return 0
  local least=$1 log=$logs/flex_attention.log limit reason='' failed_before=$failed compared none=yes
  shift
  if fits 120; then
    launch "$limit" "$log" "python3 -c 'import sys, torch
from torch.nn.attention.flex_attention import flex_attention
sys.exit(None if torch.cuda.is_available() else \"no torch with CUDA\")'"
    [ $status -eq 0 ] || reason=$(last_words "$log")
  fi
  if [ -z "$reason" ]; then
    run benchmark flex_attention 600 "$(printf '%q ' python3 -B "$ROOT/tests/benchmarks/flex_attention.py" "$@")" ||
      return 0
    if [ "$result" != passed ] || [ "$(figures "$log" "" | grep -c .)" -lt "$least" ]; then
      failed=$failed_before reason="$result: $(last_words "$log")"
    fi
  fi
  if [ -n "$reason" ]; then
    row FlexAttention "ratio left out" "$reason" "" ""
    lacking+=("FlexAttention ($reason)")
    return
  fi
  row "benchmark: flex_attention" "$result" "$seconds s" "" ""
  add_figures "$log" ""
  while read -r compared; do
    none=no
    rows+=("$compared")
  done < <(awk -F' *[|] *' 'sub(/^packed attention /, "", $2) { own[$2] = $3 + 0 }
    sub(/^FlexAttention /, "", $2) && $2 in own && $3 + 0 > 0 {
      printf "| packed attention against FlexAttention, %s | measured | %s TFLOP/s | FlexAttention %s, target 1.2 at least | %.2f |\n",
        $2, own[$2], $3, own[$2] / ($3 + 0)
    }' "$logs/kernels.log" "$logs/flex_attention.log")
  if [ $none = yes ]; then
    row "packed attention against FlexAttention" "**no row of the same shape**" "" "" ""
    failed=1
  fi
}

mpirun=$ROOT/launch/scripts/local_mpirun.sh
run_test() { ! wanted tests "test: $1" || run_cases test "$@"; }
if [ $emulated = yes ]; then
  export JFORGE_SOURCE_DIR=$ROOT
  run_test kernel_agreement 120 "'$probe' --gtest_filter=*.RmsNorm:KernelAgreement.AdamW*:KernelAgreement.ArgmaxTies*"
  run_test two_ranks 120 "'$mpirun' -n 2 '$(program gpu_zero_trainer_test)' --world-size=2 --gtest_filter=*TwoRuns*"
else
  if [ -n "$list" ]; then
    while IFS=$'\t' read -r name limit command; do
      run_test "$name" "$limit" "$command"
    done <<<"$list"
  elif wanted tests tests; then
    row "tests" "**none listed**" "" "" ""
    failed=1
  fi
  # Tests of several processes use two ranks; this uses a rank per device.
  if [ "$devices" -gt 2 ]; then
    run_test "device_collectives_on_$devices" 600 \
      "$(printf '%q ' "$mpirun" -n "$devices" "$(program gpu_device_collectives_test)" "--world-size=$devices")"
  fi
fi

training() { # LABEL ARGUMENT…
  run_benchmark "$1" 2 "$mpirun" -n "$devices" model_benchmark --device cuda --only training "${@:2}"
}
if [ $emulated = yes ]; then
  tiny=(--hidden 64 --intermediate 64 --layers 1 --heads 2 --kv-heads 1 --vocabulary 128 --prompt 16)
  run_benchmark kernels 9 kernel_benchmark --device cuda --compute bfloat16 --tiny
  compare_flex_attention 1 --tiny
  for storage in bfloat16_arithmetic bfloat16 float32; do
    run_benchmark decoding_$storage 5 model_benchmark --device cuda --only decoding --storage $storage "${tiny[@]}" --tokens 2
  done
  training training --compute bfloat16 "${tiny[@]}" --rows 112 --steps 1
  training training_zero3 --compute bfloat16 "${tiny[@]}" --rows 112 --steps 1 --zero-stage 3
  training training_float32 --compute float32 "${tiny[@]}" --rows 112 --steps 1
  for storage in bfloat16_arithmetic bfloat16; do
    run_benchmark trajectories_$storage 2 trajectory_benchmark --device cuda --storage $storage "${tiny[@]}" --batch 1 \
      --parallel-blocks 1
  done
  run_benchmark collectives 3 "$mpirun" -n 2 collectives_benchmark --device cuda 1
else
  run_benchmark kernels 17 kernel_benchmark --device cuda --compute bfloat16
  compare_flex_attention 4
  # First the model width that users have, then the small model.
  wide=(--device cuda --shape qwen2.5-7b)
  run_benchmark decoding_7b 5 model_benchmark "${wide[@]}" --only decoding --storage bfloat16_arithmetic --prompt 512 --tokens 128
  run_benchmark trajectories_7b 2 trajectory_benchmark "${wide[@]}" --storage bfloat16_arithmetic --batch 32 --parallel-blocks 4
  for stage in 1 3; do
    training training_7b_zero$stage --shape qwen2.5-7b --layers 8 --zero-stage $stage --compute bfloat16 --rows 8192 --steps 5
  done
  # bfloat16_arithmetic has the targets for many rows; bfloat16 and float32 are for comparison.
  for storage in bfloat16_arithmetic bfloat16 float32; do
    run_benchmark decoding_$storage 5 model_benchmark --device cuda --only decoding --storage $storage --prompt 512 \
      --tokens 128
  done
  training training --compute bfloat16 --rows 8192 --steps 5
  training training_float32 --compute float32 --rows 8192 --steps 2
  for storage in bfloat16_arithmetic bfloat16; do
    run_benchmark trajectories_$storage 2 trajectory_benchmark --device cuda --storage $storage --batch 32
  done
  # With one device two ranks share it, through host memory.
  NCCL_DEBUG=${NCCL_DEBUG:-VERSION} run_benchmark collectives 9 "$mpirun" -n $((devices > 1 ? devices : 2)) \
    collectives_benchmark --device cuda 256
  # Last, because it takes longest.
  sanitize
fi

if [ ${#rows[@]} -eq 0 ]; then
  trap - EXIT
  rm -rf "$logs"
  refuse "--only $only: no row is called so"
elif [ $failed -eq 0 ] && [ $ran -eq 0 ]; then
  ended="Nothing ran." failed=1
elif [ $failed -eq 0 ] && [ $all_skipped -gt 0 ]; then
  ended="All passed but $all_skipped skipped cases."
elif [ $failed -eq 0 ]; then
  ended=$([ -z "$only" ] && [ $left_out -eq 0 ] && echo "All passed." || echo "All that ran passed.")
else
  ended="Not all passed; logs: $logs."
fi
exit $failed
