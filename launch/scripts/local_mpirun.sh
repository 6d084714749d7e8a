#!/usr/bin/env bash
# local_mpirun.sh -n N PROGRAM [ARGUMENT...]: runs N ranks of a program on this machine.
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
source "$(dirname "${BASH_SOURCE[0]}")/mpi_env.sh"
jforge_threads_for_ranks "$ranks"
exec mpirun "${JFORGE_MPIRUN_ARGS[@]}" -n "$ranks" "$@"
