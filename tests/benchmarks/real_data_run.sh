#!/usr/bin/env bash
# real_data_run.sh [--jforge BINARY] [--ranks N] [--limit N] [--work DIRECTORY] [--keep]
#
# Imports every prompt of the real data set and generates trajectories for all of them with the real Qwen2.5 vocabulary
# and a small random model, checks that no prompt is lost or doubled, and prints a Markdown report. Data:
# $JFORGE_TEST_DATA, default ../shared/data beside the tree. Exits 0 only if every check passes.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
data=${JFORGE_TEST_DATA:-$root/../shared/data}
jforge=${JFORGE_BINARY:-$root/build/launch/jforge}
ranks=2
limit=
work=
keep=0
while [ $# -gt 0 ]; do
  case $1 in
    --jforge) jforge=${2:?--jforge needs a path}; shift 2 ;;
    --ranks) ranks=${2:?--ranks needs a number}; shift 2 ;;
    --limit) limit=${2:?--limit needs a number}; shift 2 ;;
    --work) work=${2:?--work needs a directory}; keep=1; shift 2 ;;
    --keep) keep=1; shift ;;
    *) sed -n '2,6s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" >&2; exit 2 ;;
  esac
done
if [ ! -d "$data/prompts" ] || [ ! -d "$data/qwen_tokenizer" ]; then
  echo "real_data_run.sh: $data has no prompts and qwen_tokenizer; set JFORGE_TEST_DATA" >&2
  exit 3
fi
if [ ! -x "$jforge" ]; then
  echo "real_data_run.sh: $jforge is not there; build it or name it with --jforge" >&2
  exit 2
fi
for program in h5dump python3; do
  if ! command -v "$program" >/dev/null; then
    echo "real_data_run.sh: $program is missing (Debian packages hdf5-tools, python3)" >&2
    exit 4
  fi
done
if [ -z "$work" ]; then
  work=$(mktemp -d "${TMPDIR:-/tmp}/jforge-real-data.XXXXXX")
fi
mkdir -p "$work"
work=$(cd "$work" && pwd)
if [ -e "$work/run" ]; then
  echo "real_data_run.sh: $work/run exists; give another directory" >&2
  exit 2
fi
cleanup() {
  if [ "$keep" -eq 0 ]; then rm -rf "$work"; fi
}
trap cleanup EXIT

python3 "$root/tests/benchmarks/make_random_model.py" "$data/qwen_tokenizer" "$work/model"

# batch_samples = 1, so that an epoch's full batches are all prompts; no length bound, so that none is dropped.
cat >"$work/config.toml" <<TOML
[run]
directory = "$work/run"
seed = 42
[model]
source = "$work/model"
[prompts]
files = ["$data/prompts/*.jsonl.gz", "$data/prompts/mbxp/*.jsonl.gz"]
field = "query | prompt"
${limit:+limit = $limit}
[generate]
max_new_tokens = 32
batch_prompts = 64
prompts_per_lease = 256
[[rounds]]
block_size = 16
epochs = 1
[train]
batch_samples = 1
allow_idle_ranks = true
tokens_per_rank = 32768
TOML

now() { date +%s.%N; }
begin=$(now)
"$jforge" import "$work/config.toml" 2>&1 | tee "$work/import.log" >&2
imported=$(now)
"$root/launch/scripts/local_mpirun.sh" -n "$ranks" "$jforge" generate "$work/config.toml" --round 1 2>&1 |
  tee "$work/generate.log" >&2
generated=$(now)
"$jforge" verify "$work/run" >"$work/verify.log"

commit=$(git -C "$root" describe --always --dirty 2>/dev/null || echo unknown)
cpu=$(sed -n 's/^model name[[:space:]]*: //p' /proc/cpuinfo | head -n 1)
echo "- command: \`tests/benchmarks/real_data_run.sh --ranks $ranks${limit:+ --limit $limit}\`"
echo "- CPU: ${cpu:-unknown}, $(nproc) cores; $ranks ranks"
echo "- commit: $commit"
echo
python3 "$root/tests/benchmarks/check_real_data_run.py" "$work" --data "$data/prompts" ${limit:+--limit "$limit"} \
  --import-seconds "$(python3 -c "print($imported - $begin)")" \
  --generate-seconds "$(python3 -c "print($generated - $imported)")"
