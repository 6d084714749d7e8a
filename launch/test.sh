#!/usr/bin/env bash
# test.sh [--all]: installs missing packages, builds, and runs the tests not labelled slow, manual or gpu (at most 12
# minutes on 2 cores). --all (26 to 40, by processor) adds label slow; with nvcc, a CUDA build and its tests without a
# device; a build and tests with MPICH; with clang, a minute of fuzzers. With a device, see launch/gpu_hour.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"

exclude='manual|gpu|slow'
all=no
tools=--tests
case "${1:-}" in
  "") ;;
  --all) exclude='manual|gpu'; all=yes; tools=--all-tests ;;
  *) echo "usage: launch/test.sh [--all]" >&2; exit 2 ;;
esac

launch/scripts/setup.sh $tools
if [ $all = yes ]; then
  launch/scripts/setup.sh --cluster-tests || echo "No Slurm: end_to_end.slurm is left out"
fi
jobs=$(nproc)
part_began=0
# took PART: prints the time since the last part.
took() {
  echo "launch/test.sh: $1: $((SECONDS - part_began)) s"
  part_began=$SECONDS
}
took "setting up"
build=build/cpu-release
options=(-DJFORGE_TESTS=ON -DJFORGE_WERROR="${JFORGE_WERROR:-ON}")
if [ $all = yes ]; then
  # The CUDA build compiles mostly the same C++ again, in another folder.
  export CMAKE_C_COMPILER_LAUNCHER=ccache CMAKE_CXX_COMPILER_LAUNCHER=ccache CCACHE_BASEDIR=$root
  # Less for a small change, so a folder that is there keeps its setting.
  [ -e "$build/CMakeCache.txt" ] || options+=(-DJFORGE_UNITY=ON)
fi
cuda_build='' cuda12='' mpich_build='' fuzz_build='' folder=''
clean_up() {
  local session
  for session in $fuzz_build $mpich_build $cuda_build; do kill -- "-$session" 2>/dev/null || true; done
  [ -z "$folder" ] || rm -rf "$folder"
}
# build_beside FOLDER AFTER TARGET…: builds on idle cores once process AFTER (if any) has ended. Writes
# FOLDER/build.log, sets $!. The kernel first divides cores among sessions, and tests are sessions: lowers the session's
# priority, too.
build_beside() {
  local folder=$1 after=$2
  shift 2
  setsid bash -c 'echo 19 >/proc/self/autogroup || true; [ -z "$1" ] || tail --pid="$1" -f /dev/null; shift
    exec nice -n 19 "$@"' bash "$after" ninja -C "$folder" -j "$jobs" "$@" >"$folder/build.log" 2>&1 &
}
trap clean_up EXIT
cmake -S . -B "$build" -G Ninja -DJFORGE_CUDA=OFF "${options[@]}"
cmake --build "$build" -j "$jobs"
took "the build"

cuda='' mpich='' fuzz=''
if [ $all = no ]; then
  :
elif command -v nvcc >/dev/null || [ -x "${CUDACXX:-/usr/local/cuda/bin/nvcc}" ]; then
  cuda=build/cuda-release
  cmake -S . -B "$cuda" -G Ninja -DJFORGE_CUDA=ON "${options[@]}"
  build_beside "$cuda" '' jforge gpu_tests
  cuda_build=$!
  export JFORGE_CUDA12=${JFORGE_CUDA12:-$root/build/cuda12}  # NVIDIA's packages (600 MB), for test cuda12.
  if [ ! -e "$JFORGE_CUDA12" ]; then
    python3 -m pip install -q --retries 1 --no-deps --target "$JFORGE_CUDA12" 'nvidia-cuda-runtime-cu12==12.4.*' \
      'nvidia-cublas-cu12==12.4.*' 'nvidia-cuda-nvcc-cu12==12.9.*' ||
      echo "No pip or PyPI: test cuda12 is left out"
  fi &
  cuda12=$!
else
  echo "No nvcc: the CUDA build is left out"
fi

mpich_tests=(collectives_test collective_checks_test messages_test failure_agreement_test host_collectives_test
  control_plane_test zero_trainer_test)
if [ $all = no ]; then
  :
elif command -v mpicxx.mpich >/dev/null; then
  mpich=build/mpich
  cmake -S . -B "$mpich" -G Ninja -DJFORGE_CUDA=OFF -DMPI_CXX_COMPILER="$(command -v mpicxx.mpich)" "${options[@]}"
  mkdir -p "$mpich/bin"
  printf '#!/bin/sh\nexec mpirun.mpich "$@"\n' >"$mpich/bin/mpirun"
  chmod +x "$mpich/bin/mpirun"
  build_beside "$mpich" "$cuda_build" jforge "${mpich_tests[@]}"
  mpich_build=$!
else
  echo "No MPICH (packages mpich, libmpich-dev): its build is left out"
fi

if [ $all = no ]; then
  :
elif echo 'extern "C" int LLVMFuzzerTestOneInput(const char*, unsigned long) { return 0; }' |
  clang++ -x c++ -fopenmp -fsanitize=fuzzer,address,undefined - -o /dev/null 2>/dev/null; then
  fuzz=build/fuzz
  cmake -S . -B "$fuzz" -G Ninja -DJFORGE_FUZZ=ON -DJFORGE_UNITY=ON -DCMAKE_C_COMPILER=clang -DCMAKE_CXX_COMPILER=clang++
  build_beside "$fuzz" "${mpich_build:-$cuda_build}" jforge_fuzz
  fuzz_build=$!
else
  echo "No clang with libFuzzer and OpenMP (packages clang, libclang-rt-14-dev, libomp-dev): the fuzzers are left out"
fi

# Small files can take minutes while a compiler writes to the disk. Tests also start programs there.
memory=/dev/shm
if [ -z "${TMPDIR:-}" ] && [ -w $memory ] && ! grep -q " $memory .*noexec" /proc/mounts &&
  [ "$(df --output=avail -B 1G $memory | tail -n 1)" -ge 4 ]; then
  folder=$(mktemp -d $memory/jf.XXXXXX)
  export TMPDIR=$folder
fi

# Each start of a pyenv's python3 costs 0.15 s, in which it looks for the interpreter.
python=$(python3 -c 'import sys; print(sys.executable)')
[ "$python" = "$(command -v python3)" ] || PATH=${python%/*}:$PATH

# Threads that spin would delay those that they wait for.
export OMP_WAIT_POLICY=passive

# End-to-end tests mostly wait: two per core.
ctest --test-dir "$build" --output-on-failure -j $((2 * jobs)) -LE "$exclude" --no-tests=error
took "its tests"

# Skipped cases count as passed above.
left_out=$(awk '/: Skipped$/ { getline; print } / \.\.\. skipped / { sub(/.* skipped /, ""); print }' \
  "$build/Testing/Temporary/LastTest.log" | sort | uniq -c)
if [ -n "$left_out" ]; then
  printf 'Test cases left out on this machine, by reason:\n%s\n' "$left_out"
fi

# tests_of FOLDER BUILD OPTION…: waits for process BUILD, then runs the tests that ctest's OPTIONs choose.
tests_of() {
  local folder=$1
  wait "$2" || { cat "$folder/build.log"; exit 1; }
  tail -n 1 "$folder/build.log"
  took "what was left of the build of $folder"
  shift 2
  ctest --test-dir "$folder" --output-on-failure -j $((2 * jobs)) --no-tests=error "$@"
  took "its tests"
}
[ -z "$cuda12" ] || wait "$cuda12"
[ -z "$cuda" ] || tests_of "$cuda" "$cuda_build" -L cuda_build
# MPICH's waits spin, so without four ranks in the longest.
[ -z "$mpich" ] || PATH=$root/$mpich/bin:$PATH tests_of "$mpich" "$mpich_build" -E '^(collectives_test\.active|zero.*)\.ranks4$' \
  -R "^($(IFS='|' && echo "${mpich_tests[*]}"))\.|^end_to_end\.(run_pipeline|rank_count|kill_and_resume|failing_rank)$"
[ -z "$fuzz" ] || tests_of "$fuzz" "$fuzz_build" -L fuzz
echo "launch/test.sh: $SECONDS s in all"
