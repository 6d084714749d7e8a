# Sourced by local_mpirun.sh: sets JFORGE_MPIRUN_ARGS, options for ranks on one machine (never for a cluster).

source "$(dirname "${BASH_SOURCE[0]}")/mpi_launcher.sh"
jforge_know_launcher
JFORGE_MPIRUN_ARGS=()
if [ $JFORGE_MPI_LAUNCHER != hydra ]; then
  # `plm isolated` needs no ssh, which containers often lack. Trying other layers than `pml ob1` takes 0.2 s.
  JFORGE_MPIRUN_ARGS=(--oversubscribe --bind-to none --mca plm isolated --mca pml ob1 --mca btl self,vader
    --mca mpi_yield_when_idle 1)

  # Open MPI refuses to start as root unless both variables are set.
  if [ "$(id -u)" -eq 0 ] && [ "${OMPI_ALLOW_RUN_AS_ROOT:-}${OMPI_ALLOW_RUN_AS_ROOT_CONFIRM:-}" != 11 ]; then
    export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
    echo "mpi_env.sh: running as root, so OMPI_ALLOW_RUN_AS_ROOT and OMPI_ALLOW_RUN_AS_ROOT_CONFIRM are set to 1" >&2
  fi
fi

# Copies between processes (CMA) need ptrace rights; without them Open MPI may fail.
jforge_cma_permitted() {
  local scope
  scope=$(cat /proc/sys/kernel/yama/ptrace_scope 2>/dev/null || echo 0)
  [ "$scope" -eq 0 ] && grep -q '^Seccomp:[[:space:]]*0$' /proc/self/status
}
if [ $JFORGE_MPI_LAUNCHER != hydra ] && ! jforge_cma_permitted; then
  JFORGE_MPIRUN_ARGS+=(--mca btl_vader_single_copy_mechanism none)
fi

# jforge_threads_for_ranks N: divides the cores among N ranks, unless OMP_NUM_THREADS is set.
jforge_threads_for_ranks() {
  local ranks=$1 cores
  if [ -z "${OMP_NUM_THREADS:-}" ]; then
    cores=$(nproc)
    export OMP_NUM_THREADS=$((cores / ranks > 0 ? cores / ranks : 1))
  else
    cores=$(env -u OMP_NUM_THREADS nproc)
  fi
  if [ $((ranks * ${OMP_NUM_THREADS%%,*})) -gt "$cores" ]; then
    export OMP_WAIT_POLICY=${OMP_WAIT_POLICY:-passive}
  fi
}
