#!/usr/bin/env bash
# Makes the quickstart's data, tokenizer and base model anew, all from seeds: about 8 minutes on 2 cores. Results are
# written to launch/quickstart. Usage: launch/quickstart/reproduce.sh [JFORGE_BINARY]
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
cd "$root"
jforge=${1:-build/quickstart/launch/jforge}
data=results/runs/pretrain-data

python3 launch/quickstart/make_word_problems.py --out "$data"
python3 launch/quickstart/make_tokenizer.py --data "$data/train.jsonl.gz" --out "$data/tokenizer"
rm -rf results/runs/pretrain
# The shipped model was trained on the CPU; a device gives other last bits.
CUDA_VISIBLE_DEVICES= launch/scripts/local_mpirun.sh -n 2 "$jforge" pretrain launch/configs/pretrain_quickstart.toml
cp "$data/prompts.jsonl.gz" "$data/test.jsonl.gz" launch/quickstart/
rm -rf launch/quickstart/model
cp -r results/runs/pretrain/model launch/quickstart/model
