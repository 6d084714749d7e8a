#!/usr/bin/env bash
# run_cluster.sh -n RANKS [--hostfile FILE] [--threads T] PROGRAM [ARGUMENT...]
#
# Runs RANKS ranks of a program over the hosts of a cluster: those of FILE, or inside a batch job those of its
# allocation. T OpenMP threads for each rank (default: SLURM_CPUS_PER_TASK, else OMP_NUM_THREADS, else 1); every rank is
# bound to T cores. Send SIGUSR2 to this process to make the job stop at its next boundary (exit code 75).
set -euo pipefail

usage="usage: run_cluster.sh -n RANKS [--hostfile FILE] [--threads T] PROGRAM [ARGUMENT...]"
fail() {
  echo "run_cluster.sh: $1; $usage" >&2
  exit 2
}

ranks="" hostfile="" threads=${SLURM_CPUS_PER_TASK:-${OMP_NUM_THREADS:-1}}
while [ $# -gt 0 ]; do
  case "$1" in
    -n | --hostfile | --threads)
      [ $# -ge 2 ] || fail "$1 needs a value"
      case "$1" in
        -n) ranks=$2 ;;
        --hostfile) hostfile=$2 ;;
        --threads) threads=$2 ;;
      esac
      shift 2
      ;;
    -*) fail "unknown option $1" ;;
    *) break ;;
  esac
done
[[ $ranks =~ ^[1-9][0-9]*$ ]] || fail "-n \"$ranks\" is not a number of ranks"
[[ $threads =~ ^[1-9][0-9]*$ ]] || fail "--threads \"$threads\" is not a number of threads"
[ $# -ge 1 ] || fail "no program given"
[ -z "$hostfile" ] || [ -r "$hostfile" ] || fail "cannot read the host file $hostfile"
if ! command -v mpirun >/dev/null; then
  echo "run_cluster.sh: mpirun is missing (Debian package openmpi-bin)" >&2
  exit 4
fi

export OMP_NUM_THREADS=$threads
options=(-n "$ranks" -x OMP_NUM_THREADS
  --map-by "slot:PE=$threads" --bind-to core
  # After SIGTERM Open MPI kills its ranks within 2 s. The grace must cover a training step and a checkpoint.
  --mca odls_base_sigkill_timeout 120
  # A cut link would hang mpirun for ever; so it ends after about a minute.
  --mca oob_tcp_keepalive_time 30 --mca oob_tcp_keepalive_intvl 10 --mca oob_tcp_keepalive_probes 3)
if [ -n "$hostfile" ]; then
  options+=(--hostfile "$hostfile")
fi
exec mpirun "${options[@]}" "$@"
