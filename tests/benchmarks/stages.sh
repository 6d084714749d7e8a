# Sourced by the studies. stage NAME COMMAND…: runs COMMAND (a function) unless WORK/done/NAME exists. Prints its
# seconds over all starts and keeps them in WORK/seconds/NAME.
#
#   work=DIR; . tests/benchmarks/stages.sh
mkdir -p "$work/seconds" "$work/done"
# A stopped stage fails by its programs' exit code, and its seconds are kept.
trap : INT TERM

stage() {
  local name=$1 start=$SECONDS status before=0
  shift
  if [ -e "$work/done/$name" ]; then
    echo "$name: done already ($(cat "$work/seconds/$name") s)"
    return
  fi
  echo "$name …"
  # Not in a condition, where set -e would be ignored.
  set +e
  (
    set -e
    "$@"
  )
  status=$?
  set -e
  [ ! -e "$work/seconds/$name" ] || before=$(cat "$work/seconds/$name")
  echo $((before + SECONDS - start)) >"$work/seconds/$name"
  echo "$name: $((SECONDS - start)) s (with earlier starts $(cat "$work/seconds/$name") s)"
  if [ $status -ne 0 ]; then
    echo "$name ended with exit code $status; start again to go on" >&2
    exit $status
  fi
  touch "$work/done/$name"
}

# take_round_1 DONOR RUN: gives RUN the prompts and first trajectories of DONOR. A start sets shards of other settings
# aside, by the hash in each.
take_round_1() {
  if [ -e "$2/prompts.h5" ] || [ ! -e "$1/round-1/generation.json" ]; then
    return 0
  fi
  mkdir -p "$2/round-1"
  cp -r "$1/round-1/trajectories" "$1/round-1/generation.json" "$2/round-1/"
  cp "$1/prompts_import.json" "$2/"
  cp "$1/prompts.h5" "$2/"
}
