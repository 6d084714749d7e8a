#!/usr/bin/env bash
# setup.sh [--tests | --all-tests | --cluster-tests]: installs the Debian packages to build and run Jacobi Forge;
# --tests and --all-tests add those for its tests and for test.sh --all. --cluster-tests: only Slurm (whose services
# stay off without /etc/slurm/slurm.conf). Without root it prints the command and exits 4.
set -euo pipefail

packages=(g++ cmake ninja-build pkg-config python3 python3-jinja2 python3-numpy
  libopenmpi-dev openmpi-bin libhdf5-dev libtomlplusplus-dev libspdlog-dev libfmt-dev
  libsimdjson-dev nlohmann-json3-dev libicu-dev libpcre2-dev libcli11-dev zlib1g-dev libbz2-dev libzstd-dev
  libxxhash-dev libseccomp-dev bubblewrap)
# oneDNN is the benchmarks' comparison.
test_packages=(git libgtest-dev libgmock-dev libbenchmark-dev libdnnl-dev)
all_test_packages=(dpkg-dev file ccache clang-format clang-tidy-16 libmpich-dev mpich
  zsh fish help2man groff-base zstd environment-modules)
cluster_test_packages=(slurmctld slurmd slurm-client munge)
size=600  # MB, with dependencies
case "${1:-}" in
  "") ;;
  --tests) packages+=("${test_packages[@]}"); size=700 ;;
  --all-tests) packages+=("${test_packages[@]}" "${all_test_packages[@]}"); size=1300 ;;
  --cluster-tests) packages=("${cluster_test_packages[@]}"); size=15 ;;
  *) echo "usage: setup.sh [--tests | --all-tests | --cluster-tests]" >&2; exit 2 ;;
esac

missing=()
for package in "${packages[@]}"; do
  if ! dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'install ok installed'; then
    missing+=("$package")
  fi
done
if [ ${#missing[@]} -eq 0 ]; then
  exit 0
fi

echo "Packages to install: ${missing[*]}"
echo "(about $size MB on disk when all are missing, 1-3 minutes)"
command="apt-get update && apt-get install -y --no-install-recommends ${missing[*]}"
if [ "$(id -u)" -ne 0 ]; then
  echo "Not root. Run this, then start again:"
  echo "  sudo sh -c '$command'"
  exit 4
fi
echo "Running: $command"
export DEBIAN_FRONTEND=noninteractive
for attempt in 1 2 3; do
  if apt-get update -qq && apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null; then
    exit 0
  fi
  echo "apt-get failed (attempt $attempt of 3); trying again in 10 s" >&2
  sleep 10
done
echo "The packages could not be installed. By hand: $command" >&2
exit 4
