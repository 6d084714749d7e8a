#!/usr/bin/env bash
# reproduce.sh [JFORGE_BINARY [DESTINATION [WORK]]]: regenerates the quickstart's data, tokenizer and base model from
# seeds, in about 10 minutes on 2 cores. DESTINATION (launch/quickstart) gets prompts, test problems and model; WORK
# (results/runs) gets intermediate files and, in pretrain-data, the validation problems for choosing settings.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
cd "$root"
jforge=${1:-build/cpu-release/launch/jforge}
destination=${2:-launch/quickstart}
work=${3:-results/runs}
data=$work/pretrain-data
run=$work/pretrain

# Short enough for the model's 640 positions.
python3 launch/quickstart/make_ledger.py --out "$data" --fewest 6 --most 9 --train 40000 --prompts 2000
python3 launch/quickstart/make_tokenizer.py --data "$data/train.jsonl.gz" --out "$data/tokenizer"
# Shorter ones are cheaper to train on.
python3 launch/quickstart/make_ledger.py --out "$data" --fewest 4 --most 9 --train 64000 --prompts 0 --validation 0 --test 0
rm -rf "$run"
# The shipped model was trained on the CPU; a GPU gives different last bits.
launch/scripts/local_mpirun.sh -n 2 "$jforge" pretrain launch/configs/pretrain_quickstart.toml \
  --set model.device=cpu --set "run.directory=$run" --set "pretrain.tokenizer=$data/tokenizer" \
  --set "pretrain.output=$run/model" --set "pretrain.files=[\"$data/train.jsonl.gz\"]"
mkdir -p "$destination"
cp -r "$data/prompts.jsonl.gz" "$data/ledger" "$destination/"
rm -rf "${destination:?}/model"
cp -r "$run/model" "$destination/model"
rm "$destination/model/checksums.json"  # Git checks these files, and users may change them.
