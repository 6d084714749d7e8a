# Sourced by scripts that start mpirun. jforge_know_launcher sets JFORGE_MPI_LAUNCHER to orte (Open MPI up to 4), prrte
# (Open MPI 5) or hydra (MPICH and Intel MPI), and JFORGE_STOP to the signal that it passes on to its ranks.
jforge_know_launcher() {
  local version
  version=$(mpirun --version 2>/dev/null </dev/null) || true
  JFORGE_MPI_LAUNCHER=orte JFORGE_STOP=USR2
  if [[ $version =~ ^HYDRA|Intel\(R\)\ MPI ]]; then
    JFORGE_MPI_LAUNCHER=hydra JFORGE_STOP=USR1
  elif [[ $version =~ ^mpirun\ \(Open\ MPI\)\ ([0-9]+) ]] && [ "${BASH_REMATCH[1]}" -ge 5 ]; then
    JFORGE_MPI_LAUNCHER=prrte
  fi
}
