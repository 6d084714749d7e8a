#!/usr/bin/env bash
# mpi_harness_test.sh MPIRUN PROBE: an MPI test program must fail if a rank fails, hangs or goes missing.
set -uo pipefail
mpirun=$1
probe=$2
failures=0

# expect WANTED_TEXT pass|fail|CODE ARGUMENT... (CODE: exactly this exit code)
expect() {
  local wanted=$1 outcome=$2
  shift 2
  local output code=0
  output=$(timeout -k 5 40 "$mpirun" -n 2 "$probe" "$@" 2>&1) || code=$?
  if [ "$outcome" = pass ] && [ $code -ne 0 ]; then
    echo "FAILED: $* ended with $code instead of 0"
  elif [ "$outcome" = fail ] && { [ $code -eq 0 ] || [ $code -ge 124 ]; }; then
    echo "FAILED: $* ended with $code instead of a failure of its own"
  elif [[ $outcome =~ ^[0-9]+$ ]] && [ $code -ne "$outcome" ]; then
    echo "FAILED: $* ended with $code instead of $outcome"
  elif ! grep -qF -- "$wanted" <<<"$output"; then
    echo "FAILED: $* did not say \"$wanted\""
  else
    echo "ok: $* ($code)"
    return
  fi
  echo "$output"
  failures=$((failures + 1))
}

expect "PASSED" pass --world-size=2 --gtest_filter=Probe.Passes
expect "needs 3 ranks and runs on 2" fail --world-size=3 --gtest_filter=Probe.Passes
expect "--world-size=N is missing" fail --gtest_filter=Probe.Passes
expect "unknown option --word-size=2" fail --word-size=2
expect "no test was selected" fail --world-size=2 --gtest_filter=Nothing.Here
expect "failed on rank(s) 1" fail --world-size=2 --gtest_filter=Probe.FailsOnTheLastRank
expect "[rank 1]" fail --world-size=2 --gtest_filter=Probe.FailsOnTheLastRank
expect "wanted exception" fail --world-size=2 --gtest_filter=Probe.ThrowsOnTheLastRank
expect "hangs in Probe.HangsOnTheLastRank" 70 --world-size=2 --test-deadline=1 \
  --gtest_filter=Probe.HangsOnTheLastRank
expect "rank 0 hangs in Probe.LeavesOthersInACollective" 70 --world-size=2 --test-deadline=1 \
  --gtest_filter=Probe.LeavesOthersInACollective
expect "" 7 --world-size=2 --gtest_filter=Probe.AbortsWithSeven
expect "" fail --world-size=2 --gtest_filter=Probe.EndsWithZeroOnTheLastRank

[ $failures -eq 0 ]
