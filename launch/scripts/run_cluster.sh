#!/usr/bin/env bash
# run_cluster.sh -n RANKS [--hostfile FILE] [--threads T] [--grace SECONDS] PROGRAM [ARGUMENT...]
#
# Runs RANKS ranks on the hosts of FILE or, in a batch job, of its allocation: evenly on the hosts of FILE, or by slots
# if every line says slots=. Each rank gets T threads (default: SLURM_CPUS_PER_TASK, else OMP_NUM_THREADS, else this
# host's cores divided among its ranks) and T cores; with NVIDIA GPUs here, ranks bind themselves to their GPU's socket
# instead. Returns the ranks' exit code (137 after a killed rank). Ranks on other hosts get PATH, LD_LIBRARY_PATH,
# CUDA_*, JFORGE_*, NCCL_*, OMP_* and UCX_* from here, except CUDA_VISIBLE_DEVICES and NCCL_HOSTID.
#
# SIGUSR2 stops the job at its next boundary, without a time limit (exit code 75). So do SIGTERM, SIGINT (Ctrl-C) and
# SIGHUP, which SECONDS (default 120) later, or if repeated, end it (exit code 143); the last commit stays intact.
set -euo pipefail
trap 'exit 75' USR2 TERM INT HUP # nothing has begun

usage="usage: run_cluster.sh -n RANKS [--hostfile FILE] [--threads T] [--grace SECONDS] PROGRAM [ARGUMENT...]"
fail() {
  echo "run_cluster.sh: $1; $usage" >&2
  exit 2
}

ranks="" hostfile="" threads=${SLURM_CPUS_PER_TASK:-${OMP_NUM_THREADS:-}} grace=120
while [ $# -gt 0 ]; do
  case "$1" in
    -n | --hostfile | --threads | --grace)
      [ $# -ge 2 ] || fail "$1 needs a value"
      case "$1" in
        -n) ranks=$2 ;;
        --hostfile) hostfile=$2 ;;
        --threads) threads=$2 ;;
        --grace) grace=$2 ;;
      esac
      shift 2
      ;;
    -*) fail "unknown option $1" ;;
    *) break ;;
  esac
done
[[ $ranks =~ ^[1-9][0-9]*$ ]] || fail "-n \"$ranks\" is not a number of ranks"
[ -z "$hostfile" ] || [ -r "$hostfile" ] || fail "cannot read the host file $hostfile"
host_lines() { sed -e 's/#.*//' -e 's|//.*||' "$hostfile" | grep '[^[:space:]]' || true; }
[ -z "$hostfile" ] || [ -n "$(host_lines)" ] || fail "the host file $hostfile names no host"
slots='[[:space:]](slots|count|cpu)[[:space:]]*='
has_all_slots=false
if [ -n "$hostfile" ] && ! host_lines | grep -vE "$slots" >/dev/null; then
  has_all_slots=true
fi
# Ranks of a host, at most.
if $has_all_slots; then
  here=$(host_lines | sed -nE "s/.*$slots[[:space:]]*([0-9]+).*/\\2/p" | sort -n | tail -n 1)
  here=$((${here:-1} < ranks ? ${here:-1} : ranks))
else
  hosts=${SLURM_JOB_NUM_NODES:-1}
  [ -z "$hostfile" ] || hosts=$(host_lines | awk '{print $1}' | sort -u | wc -l)
  here=$(((ranks + hosts - 1) / hosts))
fi
if [ -z "$threads" ]; then
  # Ranks are bound to cores, so hardware threads do not count.
  cores=$(lscpu -p=CORE,SOCKET | grep -v '^#' | sort -u | wc -l)
  allowed=$(env -u OMP_NUM_THREADS nproc)
  cores=$((cores < allowed ? cores : allowed))
  threads=$((cores / (here > 0 ? here : 1)))
  [ "$threads" -ge 1 ] || threads=1
fi
[[ $threads =~ ^[1-9][0-9]*$ ]] || fail "--threads \"$threads\" is not a number of threads"
[[ $grace =~ ^[0-9]+$ ]] || fail "--grace \"$grace\" is not a number of seconds"
[ $# -ge 1 ] || fail "no program given"
if ! command -v mpirun >/dev/null; then
  echo "run_cluster.sh: mpirun is missing (Debian package openmpi-bin)" >&2
  exit 4
fi

scripts=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
source "$scripts/mpi_launcher.sh"
jforge_know_launcher
source "$scripts/outlive_readers.sh"
jforge_outlive_readers
source "$scripts/signal_shield.sh"
if ! jforge_shield; then
  echo "run_cluster.sh: $JFORGE_NO_SHIELD" >&2
  exit 4
fi
# Blocks SIGTERM for daemons on other hosts (reason below). Open MPI splits this at blanks to find its daemon's name.
if [ "${JFORGE_DEAF[0]}" = env ]; then
  agent="${JFORGE_DEAF[*]}"
elif [ $JFORGE_MPI_LAUNCHER != hydra ] && [[ $scripts =~ [[:space:]] ]]; then
  echo "run_cluster.sh: Open MPI cannot start its daemons by $scripts/signal_shield.sh, whose path has blanks" >&2
  exit 4
else
  agent=$scripts/signal_shield.sh
fi

export OMP_NUM_THREADS=$threads
# ssh passes almost no variables to other hosts; Slurm passes all. Those that change a rank's algorithms must agree:
# ranks with different NCCL_ALGO or NCCL_PROTO hang. Programs and libraries have the same paths everywhere.
# CUDA_VISIBLE_DEVICES and NCCL_HOSTID belong to one host.
passed=()
while read -r name; do
  case $name in
    CUDA_VISIBLE_DEVICES | NCCL_HOSTID) ;;
    PATH | LD_LIBRARY_PATH | CUDA_* | JFORGE_* | NCCL_* | OMP_* | UCX_*) passed+=("$name") ;;
  esac
done < <(compgen -e)

binding=core
if compgen -G "${JFORGE_GPUS:-/proc/driver/nvidia/gpus/*}" >/dev/null; then # a test names other files
  binding=none
fi
options=(-n "$ranks")
if [ $JFORGE_MPI_LAUNCHER = hydra ]; then
  [ $binding = none ] || binding=core:$threads
  options+=(-genvlist "$(IFS=, && echo "${passed[*]}")" -ppn "$here" -bind-to $binding)
  if [ -n "$hostfile" ]; then
    exec {hosts_of_hydra}< <(host_lines |
      sed -E "s/^[[:space:]]*([^[:space:]]+)/\1/; s/^([^[:space:]]+).*$slots[[:space:]]*([0-9]+).*/\1:\3/; s/[[:space:]].*//")
    options+=(-f "/dev/fd/$hosts_of_hydra")
  fi
else
  for name in "${passed[@]}"; do options+=(-x "$name"); done
  # A host without slots= has a slot per core, so the first host could get all ranks. Divides them evenly instead.
  places=slot ranking=()
  if [ -n "$hostfile" ] && ! $has_all_slots; then
    places=node ranking=(--rank-by slot)
  fi
  if [ $binding = core ]; then
    places+=:PE=$threads
  fi
  options+=(--map-by $places "${ranking[@]}" --bind-to $binding)
  if [ -n "$hostfile" ]; then
    options+=(--hostfile "$hostfile")
  fi
fi

# Without keep-alives a cut link hangs mpirun; with them it ends after about a minute. Open MPI 5 launches by PRRTE,
# whose names differ, also by version; it ignores unknown parameters.
alive_time=30 alive_interval=10 alive_probes=3
case $JFORGE_MPI_LAUNCHER in
  prrte)
    options+=(--prtemca prte_launch_agent "$agent prted")
    for family in oob_tcp prte; do
      options+=(--prtemca "${family}_keepalive_time" $alive_time --prtemca "${family}_keepalive_intvl" $alive_interval
        --prtemca "${family}_keepalive_probes" $alive_probes)
    done
    ;;
  orte)
    options+=(--mca orte_launch_agent "$agent orted" --mca oob_tcp_keepalive_time $alive_time
      --mca oob_tcp_keepalive_intvl $alive_interval --mca oob_tcp_keepalive_probes $alive_probes)
    ;;
esac

# After SIGTERM or SIGINT mpirun kills its ranks within 2 s, too soon for a step and a checkpoint. Its own grace
# (odls_base_sigkill_timeout) would delay every failure. So mpirun runs in its own session, out of the terminal's reach,
# with SIGTERM blocked, which a batch system sends to all processes of a job (ranks unblock it). JFORGE_STOP, which mpirun
# passes on, stops the ranks; SIGINT ends mpirun. If this shell is killed, mpirun gets JFORGE_STOP.
"${JFORGE_DEAF_LEADER[@]}" mpirun "${options[@]}" "$@" <&0 &
mpirun=$!

endings=0 deadline="" ended=false
stop() {
  endings=$((endings + 1))
  if [ $endings -gt 1 ]; then
    deadline=$SECONDS
    return 0 # not the interrupted command's status
  fi
  echo "run_cluster.sh: stopping at the next boundary, within $grace s; the same signal again ends the job at once" >&2
  deadline=$((SECONDS + grace))
  kill -$JFORGE_STOP "$mpirun" 2>/dev/null || true  # It may have ended; its exit code still counts.
}
trap stop TERM INT HUP
trap 'kill -$JFORGE_STOP "$mpirun" 2>/dev/null || true' USR2

# A trapped signal ends `wait` early.
while kill -0 "$mpirun" 2>/dev/null; do
  if [ -z "$deadline" ]; then
    wait "$mpirun" || true
  elif [ $SECONDS -lt "$deadline" ]; then
    sleep 0.2 || true # The signal may have gone to the whole group.
  else
    echo "run_cluster.sh: the job is ended" >&2
    ended=true
    kill -INT "$mpirun" 2>/dev/null || true
    deadline=$((SECONDS + 10))
  fi
done
code=0
wait "$mpirun" || code=$?
if $ended; then
  exit 143
fi
if [ $JFORGE_MPI_LAUNCHER = hydra ]; then
  case $code in 6 | 7 | 9 | 10 | 11) code=$((128 + code)) ;; esac # Hydra returns a killed rank's signal.
fi
# The stop came before the program could handle it: nothing had begun.
case $code in $((128 + 10)) | $((128 + 12))) code=75 ;; esac
exit $code
