#!/usr/bin/env bash
# container.sh build SOURCE PACKAGES | install PACKAGES: the stages of Containerfile and apptainer.def, as root on a
# bare Debian 12. PACKAGES is the folder between them. CUDA=13-0, a version of NVIDIA's Debian repository, adds the CUDA
# kernels; all else comes from Debian.
set -euo pipefail
cuda=${CUDA:-}

cuda_packages() {
  local keyring=cuda-keyring_1.1-1_all.deb
  apt-get install -y --no-install-recommends ca-certificates curl
  curl -fsSLO "https://developer.download.nvidia.com/compute/cuda/repos/debian12/x86_64/$keyring"
  apt-get install -y "./$keyring"
  rm "$keyring"
  apt-get update
  apt-get install -y --no-install-recommends "$@"
}

apt-get update
case "${1:-}" in
  build)
    source=$2 packages=$3
    "$source/launch/scripts/setup.sh"
    apt-get install -y --no-install-recommends dpkg-dev file git
    if [ -n "$cuda" ]; then
      cuda_packages "cuda-nvcc-$cuda" "cuda-cudart-dev-$cuda" "libcublas-dev-$cuda" libnccl-dev
    fi
    cmake -S "$source" -B /build -G Ninja -DJFORGE_TESTS=OFF -DJFORGE_CUDA="$([ -n "$cuda" ] && echo ON || echo OFF)" \
      -DJFORGE_UNITY=ON -DCMAKE_BUILD_TYPE=Release
    cmake --build /build --target jforge
    (cd /build && cpack -G DEB)
    mkdir -p "$packages"
    mv /build/jforge_*.deb "$packages"
    ;;
  install)
    if [ -n "$cuda" ]; then
      cuda_packages "cuda-cudart-$cuda" "libcublas-$cuda" libnccl2
    fi
    apt-get install -y "$2"/jforge_*.deb
    rm -rf "$2" /var/lib/apt/lists/*
    ;;
  *) echo "usage: container.sh build SOURCE PACKAGES | install PACKAGES" >&2; exit 2 ;;
esac
