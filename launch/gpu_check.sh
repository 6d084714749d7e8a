#!/usr/bin/env bash
# gpu_check.sh [--build DIR] [--out FILE.md] [--emulated]: everything that a GPU must show, on the GPU of this machine: the
# tests labelled gpu, compute-sanitizer where it is, the benchmarks. Prints one table (what, result, figure, bound, ratio)
# and writes it to FILE (gpu_check.md); what each part printed is in FILE's folder, gpu_check_logs.
# gpu_check.sh [--build DIR] --bundle OUT.tar.zst|OUT.tar.gz: packs all of it for a machine that has neither our packages nor
# a build; there the unpacked launch/gpu_check.sh does the same.
# With several devices collectives are tested and measured on all of them; there a row that goes without NCCL is a failure.
#
# --build: a CUDA build with its gpu_tests (build/cuda-release). --emulated: a short part on the emulated GPU
# (tests/cuda_emulator), which proves this script, not a device.
# Exit codes: 0 all passed, 1 something failed, 2 usage, 4 a library or program is missing, 77 no GPU here.
set -euo pipefail
ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
export ROOT

usage() {
  sed -n '2,/^set /{s/^# \{0,1\}//;/^set /d;p}' "${BASH_SOURCE[0]}" >&2
  exit 2
}
build=$ROOT/build/cuda-release out=gpu_check.md emulated=no bundle=
while [ $# -gt 0 ]; do
  case $1 in
    --emulated) emulated=yes; shift; continue ;;
    --build | --out | --bundle) [ $# -ge 2 ] || usage ;;
    *) usage ;;
  esac
  case $1 in
    --build) build=$(cd "$2" && pwd) ;;
    --out) out=$2 ;;
    --bundle) bundle=$2 ;;
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

# In a bundle programs lie together; in a build each in its folder.
if [ -e "$ROOT/checks.tsv" ]; then
  packed=yes
  emulator=$ROOT/emulator
  checks() { cat "$ROOT/checks.tsv"; }
  program() { echo "$ROOT/bin/$1"; }
else
  packed=no
  emulator=$build/tests/cuda_emulator/libraries
  checks() { python3 -B "$ROOT/launch/scripts/gpu_bundle.py" list "$build"; }
  program() { find "$build/tests/gpu" "$build/tests/benchmarks" "$build/launch" -maxdepth 1 -name "$1" -type f | head -1; }
  [ -x "$(program gpu_kernel_agreement_test)" ] ||
    missing "$build has no GPU tests; cmake --preset cuda-release && cmake --build --preset cuda-release --target gpu_tests"
fi

# Folders of CUDA's libraries for a bundle, which has none of its own; a build knows its toolkit.
cuda_folders() {
  local IFS=:
  printf '%s\n' ${JFORGE_CUDA_LIBRARIES:-} ${LD_LIBRARY_PATH:-} ${CUDA_HOME:+"$CUDA_HOME/lib64"} \
    /usr/local/cuda/lib64 /usr/local/cuda/targets/x86_64-linux/lib
  /sbin/ldconfig -p 2>/dev/null | sed -n 's!.* => \(.*\)/lib\(cudart\|cublasLt\|nccl\|cudnn\)\.so.*!\1!p' | sort -u
  python3 -c 'import glob, site
for folder in [*site.getsitepackages(), site.getusersitepackages()]:
    print(*glob.glob(folder + "/nvidia/*/lib"), sep="\n")' 2>/dev/null || true
}
no_gpu() {
  echo "no GPU here: $1"
  exit 77
}
if [ $emulated = yes ]; then
  export JFORGE_CUDA_LIBRARIES=$emulator
  [ $packed = yes ] || export LD_LIBRARY_PATH=$emulator${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
elif [ $packed = yes ]; then
  found='' absent=''
  folders=$(cuda_folders | sed '/^$/d')
  # find_library NAME: the folder that has it joins `found`; fails where none has.
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
    [ -e /dev/nvidiactl ] || [ -e /dev/dxg ] || no_gpu "no NVIDIA driver (/dev/nvidiactl), and CUDA's libraries are missing:$absent"
    missing "CUDA's libraries are missing:$absent; install CUDA's toolkit, or: pip install nvidia-cuda-runtime nvidia-cublas nvidia-nccl-cu13 nvidia-cudnn-cu13 (README.md says where they are looked for)"
  fi
  # Programs open these themselves when they first need them, so that the dynamic linker lists neither.
  for library in libnccl.so.2 libcudnn.so.9; do
    find_library $library ||
      echo "gpu_check.sh: $library is not found: what needs it is skipped, or fails where there are several devices (README.md says where it is looked for)" >&2
  done
  export JFORGE_CUDA_LIBRARIES=$found
fi
[ $packed = no ] || export PATH="$ROOT/bin:$PATH"

probe=$(program gpu_kernel_agreement_test)
status=0
said=$("$probe" '--gtest_filter=-*' 2>&1) || status=$?
if [ $status -eq 77 ]; then
  no_gpu "$(sed -n 's/^skipped: no CUDA device (\(.*\))$/\1/p' <<<"$said")"
elif [ $status -ne 0 ]; then
  missing "$probe does not start: $(tail -1 <<<"$said")"
fi
export JFORGE_REQUIRE_GPU=1

# As many devices as the program finds, so by the CUDA library that it loads: this knows CUDA_VISIBLE_DEVICES, and that a
# process sees one slice of a divided (MIG) device. Without python3 by nvidia-smi, which indents slices.
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

# With a device for each rank collectives go by NCCL: where they do not, nothing here says how such a machine trains.
without_nccl="**failed: $devices devices, no NCCL**"
if ! grep -qs 'libnccl\.so\.2' "$([ $packed = yes ] && echo "$ROOT/libexec/jforge" || program jforge)"; then
  get_nccl="this build has no NCCL: build where nccl.h is (package libnccl-dev)"
elif [ $packed = yes ]; then
  get_nccl="get libnccl.so.2: pip install nvidia-nccl-cu13, or name its folder in JFORGE_CUDA_LIBRARIES"
else
  get_nccl="get libnccl.so.2: package libnccl2, or name its folder in LD_LIBRARY_PATH"
fi

logs=$(mkdir -p "$(dirname "$out")" && cd "$(dirname "$out")" && pwd)/gpu_check_logs
rm -rf "$logs"
mkdir -p "$logs"
failed=0 all_skipped=0
rows=()
row() { rows+=("| $1 | $2 | $3 | $4 | $5 |"); }

# run NAME SECONDS COMMAND: shell text, its output to a log. Sets `result` and `seconds`.
run() {
  local status=0 begin=$EPOCHREALTIME
  echo "$1 …" >&2
  timeout --kill-after=10 "$2" bash -c "$3" >"$logs/$1.log" 2>&1 </dev/null || status=$?
  seconds=$(awk -v a="$begin" -v b="$EPOCHREALTIME" 'BEGIN { printf "%.1f", b - a }')
  case $status in
    0) result=passed ;;
    124 | 137) result="**timed out**" ;;
    77) result="**skipped**" ;;
    *) result="**failed ($status)**" ;;
  esac
  [ "$result" = passed ] || failed=1
}

# read_cases LOG: what a test program's output says, GoogleTest's or unittest's: how many cases ran, how many were skipped,
# and why, each reason once.
read_cases() {
  awk 'function reason(text) {
      gsub(/[|]/, "/", text)
      if (!(text in known)) { known[text]; why = why (why == "" ? "" : "; ") substr(text, 1, 120) }
    }
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

# mpi_instead LOG: why collectives went by MPI, where a program says so.
mpi_instead() { sed -n '/.*collectives by MPI through host memory, not by NCCL: /{s///;s/|/\//g;p;q}' "$1"; }

# run_cases KIND NAME SECONDS COMMAND: a row of a test program: how many cases it ran, which it skipped.
run_cases() {
  run "$2" "$3" "$4"
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
  # More ranks than devices share them, by MPI; no row skips for that where there are several devices.
  if [ "$devices" -gt 1 ] && [[ $why == *NCCL* || ( -n $instead && $instead != *"share a device"* ) ]]; then
    result=$without_nccl failed=1 figure="$figure${instead:+; by MPI: $instead}; $get_nccl"
  fi
  row "$1: $2" "$result" "$figure" "" ""
}

# What compute-sanitizer runs, which slows a kernel a hundred times: the kernels' own cases, but for memory that runs out on
# purpose (an error to it) and cuDNN's; drafts and sampling; a model's losses and gradients in bfloat16. Not several ranks.
declare -A sanitized=(
  [gpu_kernel_agreement_test]='-*OutOfMemory*'
  [gpu_tensor_core_attention_test]='-*Cudnn*'
  [gpu_model_agreement_test]='DraftPasses.*:SampledOnADevice.*:Narrow.*'
)

# measure LABEL COMMAND: a benchmark prints rows of its own, | what | figure | bound | ratio |, for what it compares.
measure() {
  run "$1" 600 "$2"
  local measured by='' figure="$seconds s"
  if [ "$1" = collectives ] && grep -q '^| all_reduce ' "$logs/$1.log"; then
    measured=$(mpi_instead "$logs/$1.log")
    if [ -z "$measured" ]; then
      # NCCL says its version to NCCL_DEBUG.
      by="NCCL$(sed -n '/.*NCCL version \([^ ]*\).*/{s// \1/p;q}' "$logs/$1.log")"
      figure="by $by, $figure" by=", by NCCL"
    else
      figure="by MPI: $measured, $figure" by=", by MPI"
      if [ "$devices" -gt 1 ]; then
        result=$without_nccl failed=1 figure="$figure; $get_nccl"
      fi
    fi
  fi
  row "benchmark: $1" "$result" "$figure" "" ""
  while read -r measured; do
    rows+=("$measured")
  done < <(awk -F' *[|] *' -v by="$by" 'NF == 6 && !/---/ && $2 != "measurement" {
    printf "| %s%s | measured | %s | %s | %s |\n", $2, by, $3, $4, $5 }' "$logs/$1.log")
}

# run_benchmark LABEL [STARTER -n N] PROGRAM ARGUMENT…
run_benchmark() {
  local label=$1 file starter=()
  shift
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
  measure "$label" "$(printf '%q ' "${starter[@]}" "$file" "$@")"
}

# compare_flex_attention ARGUMENT…: packed attention of the benchmark `kernels` against FlexAttention over the same rows.
compare_flex_attention() {
  if ! python3 -c 'import sys, torch; sys.exit(not torch.cuda.is_available())' 2>/dev/null; then
    row FlexAttention "no torch with CUDA: the ratio to FlexAttention is left out" "" "" ""
    return
  fi
  measure flex_attention "$(printf '%q ' python3 -B "$ROOT/tests/benchmarks/flex_attention.py" "$@")"
  local compared none=yes
  while read -r compared; do
    rows+=("$compared") none=no
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

if [ $emulated = yes ]; then
  export JFORGE_SOURCE_DIR=$ROOT
  run_cases test kernel_agreement 120 "'$probe' --gtest_filter=KernelAgreement.RmsNorm:KernelAgreement.AdamW*:KernelAgreement.ArgmaxTies*"
  run_cases test two_ranks 120 "'$ROOT/launch/scripts/local_mpirun.sh' -n 2 '$(program gpu_zero_trainer_test)' --world-size=2 --gtest_filter=*TwoRuns*"
else
  # Without them the benchmarks alone would pass.
  list=$(checks 2>"$logs/checks.log") ||
    missing "the tests cannot be listed, which takes python3 and ctest: $(tail -n 1 "$logs/checks.log")"
  if [ -n "$list" ]; then
    while IFS=$'\t' read -r name limit command; do
      run_cases test "$name" "$limit" "$command"
    done <<<"$list"
  else
    row "tests" "**none listed**" "" "" ""
    failed=1
  fi
  # Tests of several processes have two ranks; collectives once more with one on each device.
  if [ "$devices" -gt 2 ]; then
    run_cases test "device_collectives_on_$devices" 600 "$(printf '%q ' "$ROOT/launch/scripts/local_mpirun.sh" -n "$devices" \
      "$(program gpu_device_collectives_test)" "--world-size=$devices")"
  fi
  sanitizer=$(command -v compute-sanitizer || true)
  [ -n "$sanitizer" ] || [ ! -x /usr/local/cuda/bin/compute-sanitizer ] || sanitizer=/usr/local/cuda/bin/compute-sanitizer
  if [ -n "$sanitizer" ]; then
    # All processes: in a bundle a script starts the program.
    for tool in memcheck racecheck synccheck initcheck; do
      for name in "${!sanitized[@]}"; do
        run_cases compute-sanitizer "${tool}_$name" 600 \
          "$(printf '%q ' "$sanitizer" --target-processes all --tool "$tool" --error-exitcode 9 "$(program "$name")" "--gtest_filter=${sanitized[$name]}")"
      done
    done
  else
    row "compute-sanitizer" "not on this machine" "" "" ""
  fi
fi

if [ $emulated = yes ]; then
  tiny=(--hidden 64 --intermediate 64 --layers 1 --heads 2 --kv-heads 1 --vocabulary 128 --prompt 16)
  run_benchmark kernels kernel_benchmark --device cuda --compute bfloat16 --tiny
  compare_flex_attention --tiny
  for storage in bfloat16_arithmetic bfloat16 float32; do
    run_benchmark decoding_$storage model_benchmark --device cuda --only decoding --storage $storage "${tiny[@]}" --tokens 2
  done
  run_benchmark training model_benchmark --device cuda --only training --compute bfloat16 "${tiny[@]}" --rows 112 --steps 1
  run_benchmark training_float32 model_benchmark --device cuda --only training --compute float32 "${tiny[@]}" --rows 112 --steps 1
  for storage in bfloat16_arithmetic bfloat16; do
    run_benchmark trajectories_$storage trajectory_benchmark --device cuda --storage $storage "${tiny[@]}" --batch 1 --parallel-blocks 1
  done
  run_benchmark collectives "$ROOT/launch/scripts/local_mpirun.sh" -n 2 collectives_benchmark --device cuda 1
else
  run_benchmark kernels kernel_benchmark --device cuda --compute bfloat16
  compare_flex_attention
  # The targets of many rows are bfloat16_arithmetic's, on tensor cores; bfloat16 and float32, on lanes, stand beside it.
  for storage in bfloat16_arithmetic bfloat16 float32; do
    run_benchmark decoding_$storage model_benchmark --device cuda --only decoding --storage $storage --prompt 512 --tokens 128
  done
  run_benchmark training model_benchmark --device cuda --only training --compute bfloat16 --rows 8192 --steps 5
  run_benchmark training_float32 model_benchmark --device cuda --only training --compute float32 --rows 8192 --steps 2
  for storage in bfloat16_arithmetic bfloat16; do
    run_benchmark trajectories_$storage trajectory_benchmark --device cuda --storage $storage --batch 32
  done
  # As many ranks as devices; with one device two ranks share it, and show the way over the host.
  NCCL_DEBUG=${NCCL_DEBUG:-VERSION} run_benchmark collectives "$ROOT/launch/scripts/local_mpirun.sh" -n $((devices > 1 ? devices : 2)) collectives_benchmark --device cuda 256
fi

# Named so that a reader of the table knows what it is of.
if [ $emulated = yes ]; then
  device="emulated GPU: no figure here says anything about a device"
else
  device=$(nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader 2>/dev/null | head -1 || true)
fi
{
  echo "# GPU check"
  echo
  echo "- device: ${device:-unknown (no nvidia-smi)}$([ "$devices" -eq 1 ] || echo ", the first of $devices")"
  echo "- program: $("$(program jforge)" --version 2>/dev/null | head -1)"
  echo "- date: $(date -u +%Y-%m-%dT%H:%MZ)"
  echo
  echo "| what | result | figure | bound | ratio |"
  echo "| --- | --- | --- | --- | --- |"
  printf '%s\n' "${rows[@]}"
  echo
  if [ $failed -eq 0 ] && [ $all_skipped -gt 0 ]; then
    echo "All passed but $all_skipped skipped cases."
  elif [ $failed -eq 0 ]; then
    echo "All passed."
  else
    echo "Not all passed; logs: $logs"
  fi
} | tee "$out"
exit $failed
