#!/usr/bin/env bash
# local_mpirun.sh -n N PROGRAM [ARGUMENT...]: runs N ranks on this machine. On a terminal, the first Ctrl-C stops jforge
# at its next boundary with everything committed (exit code 75); the second ends it at once.
set -euo pipefail

usage="usage: local_mpirun.sh -n N PROGRAM [ARGUMENT...]"
if [ $# -lt 3 ] || [ "$1" != -n ]; then
  echo "$usage" >&2
  exit 2
fi
if ! [[ $2 =~ ^[1-9][0-9]*$ ]]; then
  echo "local_mpirun.sh: \"$2\" is not a number of ranks; $usage" >&2
  exit 2
fi
ranks=$2
shift 2

if ! command -v mpirun >/dev/null; then
  echo "local_mpirun.sh: mpirun is missing (Debian package openmpi-bin)" >&2
  exit 4
fi
source "$(dirname "${BASH_SOURCE[0]}")/outlive_readers.sh"
jforge_outlive_readers
source "$(dirname "${BASH_SOURCE[0]}")/mpi_env.sh"
jforge_threads_for_ranks "$ranks"
if ! [ -t 0 ]; then
  exec mpirun "${JFORGE_MPIRUN_ARGS[@]}" -n "$ranks" "$@"
fi

interrupts=0
interrupted() {
  interrupts=$((interrupts + 1))
  if [ $interrupts -eq 1 ]; then
    echo "stopping at the next boundary; what is committed is safe (Ctrl-C again ends at once)" >&2
    pass $JFORGE_STOP
  else
    end
  fi
}
pass() {
  [ -n "${!-}" ] || exit 130             # Nothing has started.
  kill "-$1" $! 2>/dev/null || true  # It may have ended; its exit code still counts.
}
end() {
  if [ $JFORGE_MPI_LAUNCHER = hydra ]; then
    for _ in 1 2 3; do pass INT; sleep 0.2 || true; done # It needs two; signals may merge.
  else
    pass TERM
  fi
}
trap interrupted INT
trap 'pass $JFORGE_STOP' USR2
trap end TERM HUP
# Ctrl-C would make mpirun kill the ranks at once, so mpirun gets its own process group.
set -m
mpirun "${JFORGE_MPIRUN_ARGS[@]}" -n "$ranks" "$@" </dev/null &
# A trapped signal ends `wait` early.
while true; do
  wait $! && status=0 || status=$?
  kill -0 $! 2>/dev/null || exit $status
done
