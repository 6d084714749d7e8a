#!/usr/bin/env bash
# Makes the quickstart's data, tokenizer and base model anew, all from seeds: about 5 minutes on 2 cores. Usage:
# launch/quickstart/reproduce.sh [JFORGE_BINARY [DESTINATION [WORK]]]
# DESTINATION (default launch/quickstart) gets prompts, test problems and model; WORK (default results/runs) what is
# needed on the way, and in pretrain-data also the validation problems, on which settings are chosen.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
cd "$root"
jforge=${1:-build/cpu-release/launch/jforge}
destination=${2:-launch/quickstart}
work=${3:-results/runs}
data=$work/pretrain-data
run=$work/pretrain

python3 launch/quickstart/make_word_problems.py --out "$data"
python3 launch/quickstart/make_tokenizer.py --data "$data/train.jsonl.gz" --out "$data/tokenizer"
rm -rf "$run"
# The shipped model was trained on the CPU; a device gives other last bits.
launch/scripts/local_mpirun.sh -n 2 "$jforge" pretrain launch/configs/pretrain_quickstart.toml \
  --set pretrain.device=cpu --set "run.directory=$run" --set "pretrain.tokenizer=$data/tokenizer" \
  --set "pretrain.output=$run/model" --set "pretrain.files=[\"$data/train.jsonl.gz\"]"
mkdir -p "$destination/word_problems"
cp "$data/prompts.jsonl.gz" "$destination/"
cp "$data/test.jsonl.gz" "$destination/word_problems/"
rm -rf "${destination:?}/model"
cp -r "$run/model" "$destination/model"
rm "$destination/model/checksums.json"  # The bundled model's files are under git's own sums, and meant to be copied and changed.
