#!/usr/bin/env bash
# The batch script's requeues, warnings and mpirun options, with a fake mpirun, srun and scontrol.
set -uo pipefail
source_dir=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/bin" "$work/run"

# Records its arguments, then runs $work/behaviour. Its version is $MPI_VERSION.
cat >"$work/bin/mpirun" <<'SCRIPT'
#!/usr/bin/env bash
if [ "$1" = --version ]; then
  [ "${MPI_VERSION:-}" != hydra ] || exec echo "HYDRA build details:"
  printf 'mpirun (Open MPI) %s\n\nReport bugs to http://www.open-mpi.org/community/help/\n' "${MPI_VERSION:-4.1.4}"
  exit
fi
printf '%s\n' "$@" >"$WORK/mpirun_arguments"
say() { printf '{\n  "attempt": %s,\n  "status": "%s"\n}\n' "$RANDOM$RANDOM" "$1" >"$WORK/run/run.json"; }
source "$WORK/behaviour"
SCRIPT
# Records requeues and updates; knows the job's end ($END_TIME, seconds from now), nodes and script.
cat >"$work/bin/scontrol" <<'SCRIPT'
#!/usr/bin/env bash
case "$1" in
  requeue) echo "$@" >>"$WORK/scontrol_calls" ;;
  update)
    echo "$@" >>"$WORK/updates"
    [ -z "${REFUSES:-}" ]
    ;;
  show)
    [ "$2" = job ] || exec printf '%s\n' n1 n2 n3
    end=Unknown
    [ -z "${END_TIME:-}" ] || end=$(date -d "$END_TIME" +%FT%T)
    printf '   StartTime=2026-01-01T00:00:00 EndTime=%s Deadline=N/A\n   ExcNodeList=%s\n   Partition=p AllocNode:Sid=n9:1\n   Features=f DelayBoot=0\n   Command=%s some.toml run\n' \
      "$end" "${EXCLUDED:-(null)}" "$ORIGINAL"
    ;;
esac
SCRIPT
# Like mpirun; has --ignore-signals if $IGNORES is set. Without it, or at SIGHUP, kills its ranks.
cat >"$work/bin/srun" <<'SCRIPT'
#!/usr/bin/env bash
if [ "$1" = --help ]; then
  echo "Usage: srun [OPTIONS...] executable [args...]"
  [ -z "${IGNORES:-}" ] || echo "      --ignore-signals=<signals>  signals that srun takes no notice of"
  exit
fi
if [ "$1" = --mpi=list ]; then
  printf "${TYPES-MPI plugin types are...\n\tnone\n\tpmix\n\tpmi2\nspecific pmix plugin versions available: pmix_v4\n}"
  exit
fi
echo $$ >"$WORK/srun_process"
printf '%s\n' "$@" >"$WORK/mpirun_arguments"
say() { printf '{\n  "attempt": %s,\n  "status": "%s"\n}\n' "$RANDOM$RANDOM" "$1" >"$WORK/run/run.json"; }
killed='say running; echo "forcing job termination"; exit 137'
trap "$killed" HUP
case " $* " in
  *" --ignore-signals=TERM "*) trap '' TERM ;;
  *) trap "$killed" TERM ;;
esac
source "$WORK/behaviour"
SCRIPT
printf '#!/bin/sh\necho "$@" >"$WORK/asked"\n[ -z "${TOO_FEW:-}" ]\n' >"$work/bin/sbatch"
printf '#!/bin/sh\n' >"$work/bin/jforge"
printf '#!/bin/sh\nprintf "jforge 1 (commit 2)\\nCUDA: none\\n"\n' >"$work/bin/jforge_cpu"
printf '#!/bin/sh\nprintf "jforge 1 (commit 2)\\nCUDA: 13.0.48\\n"\n' >"$work/bin/jforge_cuda"
chmod +x "$work"/bin/*

failures=0
fail() {
  echo "FAILED: $case_name: $1" >&2
  sed 's/^/  | /' "$work/log" >&2
  failures=$((failures + 1))
}

wait_until_ready() {
  for _ in $(seq 1200); do
    [ -e "$work/ready" ] && break
    sleep 0.05
  done
}

# run_case NAME BEHAVIOUR [SIGNALS [VARIABLE=VALUE...]]: sends SIGNALS ("-": none) after the start. $RUN is another name
# of $work/run. CANCEL is scancel's SIGTERM to all processes of the script's step, srun first.
run_case() {
  case_name=$1
  printf '%s\n' "$2" >"$work/behaviour"
  local signals=${3:--} signal
  shift 3 2>/dev/null || shift $#
  rm -f "$work/scontrol_calls" "$work/mpirun_arguments" "$work/ready" "$work/updates" "$work/asked"
  cp "$source_dir/launch/scripts/run_slurm.sbatch" "$work/slurm_script"  # Slurm runs a copy from its spool directory.
  # shellcheck disable=SC2086
  env PATH="$work/bin:$PATH" WORK="$work" JFORGE="$work/bin/jforge" SLURM_JOB_ID=17 SLURM_JOB_NODELIST=n1 \
    SLURM_NTASKS=4 SLURM_CPUS_PER_TASK=3 ORIGINAL="$source_dir/launch/scripts/run_slurm.sbatch" "$@" \
    bash "$work/slurm_script" some.toml "${RUN-$work/run}" ${RESUME-} --set train.ar_weight=2.0 \
    >"$work/log" 2>&1 &
  local script=$!
  if [ "$signals" != - ]; then
    wait_until_ready
    for signal in $signals; do
      case $signal in
        CANCEL)
          kill -TERM "$(cat "$work/srun_process")"
          sleep 0.2
          kill -TERM "$script" 2>/dev/null
          ;;
        *) kill "-$signal" "$script" ;;
      esac
      sleep 0.2
    done
  fi
  wait "$script"
  code=$?
}
# expect_code CODE [requeued|not_requeued]
expect_code() {
  [ "$code" -eq "$1" ] || fail "exit code $code instead of $1"
  [ -z "${2:-}" ] || "expect_$2"
}
expect_requeued() { [ "$(cat "$work/scontrol_calls" 2>/dev/null)" = "requeue 17" ] || fail "was not queued again once"; }
expect_not_requeued() { [ ! -e "$work/scontrol_calls" ] || fail "was queued again"; }

stops_when_warned='trap "say interrupted; exit 75" USR2; touch "$WORK/ready"
for _ in $(seq 600); do sleep 0.1; done; exit 1'

run_case "finished" 'say finished; exit 0'
expect_code 0 not_requeued
for argument in -n 4 OMP_NUM_THREADS slot:PE=3 oob_tcp_keepalive_time "$work/bin/jforge" run \
  some.toml "run.directory=\"$work/run\"" train.ar_weight=2.0; do
  grep -qxF -- "$argument" "$work/mpirun_arguments" || fail "mpirun did not get $argument"
done
grep -qx -- --oversubscribe "$work/mpirun_arguments" && fail "mpirun got an option for local runs"

array=(SLURM_ARRAY_TASK_ID=2 SLURM_ARRAY_TASK_MIN=1 SLURM_ARRAY_TASK_MAX=4)
run_case "task of an array" 'say finished; mv "$WORK/run/run.json" "$WORK/run/parts/2-of-4"; exit 0' - "${array[@]}" SLURM_ARRAY_TASK_COUNT=4
expect_code 0 not_requeued
[[ "$(tr '\n' ' ' <"$work/mpirun_arguments")" == *"/jforge generate --part 2/4 some.toml --set run.directory=\"$work/run\" "* ]] || fail "not part 2/4"
run_case "task of an array that is not 1-N" 'exit 0' - "${array[@]}" SLURM_ARRAY_TASK_COUNT=2
expect_code 2 not_requeued

run_case "warned before the time limit" "$stops_when_warned" USR2
expect_code 0 requeued

# Each signal interrupts a wait of the script.
run_case "warned three times" "${stops_when_warned/say inter/sleep 1; say inter}" "USR2 USR2 USR2"
expect_code 0 requeued

run_case "warned, but mpirun says 1" "${stops_when_warned/exit 75/exit 1}" USR2
expect_code 0 requeued

run_case "terminated" "$stops_when_warned" TERM
expect_code 75 not_requeued

run_case "restarted too often" "$stops_when_warned" USR2 SLURM_RESTART_COUNT=3 JFORGE_MAX_RESTARTS=3
expect_code 75 not_requeued

run_case "the last restart allowed" "$stops_when_warned" USR2 SLURM_RESTART_COUNT=2 JFORGE_MAX_RESTARTS=3
expect_code 0 requeued

# Prints the words that the ranks got between the run directory and the first --set.
resumed() { sed -n '/^run.directory=/,/^--set$/p' "$work/mpirun_arguments" | sed '1d;$d' | tr '\n' ' ' | sed 's/ $//'; }
expect_resume() { [ "$(resumed)" = "$1" ] || fail "mpirun got \"$(resumed)\" instead of \"$1\""; }
for RESUME in "--resume /some/checkpoint" "--resume=/some/checkpoint" "--resume never" "--resume auto"; do
  run_case "first start, $RESUME" 'say finished; exit 0' - SLURM_RESTART_COUNT=0
  expect_resume "$RESUME"
done
RESUME="--resume /some/checkpoint"
rm "$work/run/.slurm-17.first"
run_case "a node was lost before the script first ran, in a directory of an earlier run" 'say finished; exit 0' - SLURM_RESTART_COUNT=1
expect_resume "$RESUME"
run_case "queued again without a checkpoint of its own" 'say finished; exit 0' - SLURM_RESTART_COUNT=1
expect_resume "$RESUME"
RESUME="--resume never"
run_case "queued again, its directory exists" 'say finished; exit 0' - SLURM_RESTART_COUNT=1
expect_resume ""
# Abandoned checkpoints do not count.
mkdir -p "$work/run/checkpoints/round-1-step-00000020.abandoned-2"
touch "$work/run/checkpoints/round-1-step-00000020.abandoned-2/manifest.json"
RESUME="--resume /some/checkpoint"
run_case "queued again, all of its own set aside" 'say finished; exit 0' - SLURM_RESTART_COUNT=1
expect_resume "$RESUME"
mkdir -p "$work/run/checkpoints/round-1-step-00000010"
touch "$work/run/checkpoints/round-1-step-00000010/manifest.json"
for RESUME in "--resume /some/checkpoint" "--resume=/some/checkpoint" "--resume never"; do
  run_case "queued again, $RESUME" 'say finished; exit 0' - SLURM_RESTART_COUNT=1
  expect_resume ""
done
RESUME="--resume /some/checkpoint"
ln -s run "$work/r[1]"
RUN="$work/r[1]"
run_case "queued again, $RESUME, in a directory whose name looks like a pattern" 'say finished; exit 0' - SLURM_RESTART_COUNT=1
expect_resume ""
unset RUN
# Lost before it could go back.
for RESUME in "--resume /some/checkpoint" "--resume never"; do
  rm -f "$work/run/logs/slurm-17.failed"
  run_case "first start, $RESUME, lost at once" 'exit 137' - SLURM_RESTART_COUNT=0
  expect_requeued
  run_case "queued again, $RESUME, after a start that was lost at once" 'say running; exit 137' - SLURM_RESTART_COUNT=1
  expect_resume "$RESUME"
  run_case "queued again, $RESUME, after a start that began" 'say finished; exit 0' - SLURM_RESTART_COUNT=2
  expect_resume ""
done
unset RESUME

for failure in 2 3 5; do
  run_case "failed with $failure, which would come again" "say failed; exit $failure"
  expect_code $failure not_requeued
done

failures_noted=$work/run/logs/slurm-17.failed
# expect_excluded NAME NODES CODE LOG [VARIABLE=VALUE...]: LOG are lines of a rank's log.
expect_excluded() {
  local nodes=$2 failure=$3
  rm -f "$failures_noted"
  printf '2026-01-01 00:00:00.000 critical rank 1 [x] hang: rank 1 (n3, pid 5) stands still in phase "x"\n' >"$work/run/logs/rank_0001.log"
  run_case "$1" "{ date '+%F %T.000 critical rank 0 [x] $4'; } >>\"\$WORK/run/logs/rank_0001.log\"; say failed; exit $failure" - "${@:5}"
  expect_requeued
  [ "$(cat "$work/updates" 2>/dev/null)" = "${nodes:+update JobId=17 ExcNodeList=$nodes}" ] || fail "not without \"$nodes\""
}
mkdir -p "$work/run/logs"
expect_excluded "wrong ranks" n1,n2 4 'failed: rank 0 (n1): computes another product; rank 1 (n2.site.org): receives other bytes'
grep -q -- "--test-only --partition=p --constraint=f --nodes=1 --ntasks=4 --cpus-per-task=3 --exclude=n1,n2 " "$work/asked" || fail "asks otherwise"
expect_excluded "a hang" n8,n2 70 'hang: rank 1 (n2, pid 5) stands still in phase "x"' EXCLUDED=n8
expect_excluded "a silent rank" n2 70 'rank 1 is silent (n2); what every rank did last:'
expect_excluded "a silent coordinator" n1 70 'rank 0 (host n1, pid 5) is silent: its coordinator has not answered'
expect_excluded "a rank that waits" "" 70 'hang: rank 1 (n2, pid 5) waits for other ranks'
expect_excluded "a full disk" "" 4 'rank 1 (n2): cannot write'
expect_excluded "a host of another job" "" 70 'rank 0 (host n5, pid 5) is silent'
expect_excluded "all hosts" "" 4 'rank 0 (n1): computes, rank 1 (n2): computes, rank 2 (n3): computes'
expect_excluded "killed" "" 137 'hang: rank 1 (n2, pid 5) stands still'
expect_excluded "too few other nodes" "" 70 'rank 1 is silent (n2); what' TOO_FEW=1
grep -q "blame n2, but without it too few nodes are left" "$work/log" || fail "does not say so"
expect_excluded "Slurm refuses" n2 70 'rank 1 is silent (n2); what' REFUSES=1
grep -q "Slurm does not exclude n2" "$work/log" || fail "does not say so"
rm -f "$failures_noted"
for failure in 4 70 137; do
  rm -f "$failures_noted"
  run_case "failed with $failure" "say failed; exit $failure"
  expect_code 0 requeued
done
run_case "failed again" 'say failed; exit 137' - SLURM_RESTART_COUNT=1
expect_requeued
run_case "failed a third time" 'say failed; exit 137' - SLURM_RESTART_COUNT=2
expect_code 137 not_requeued
run_case "failed once more, but after a checkpoint" \
  'd=$WORK/run/checkpoints/$RANDOM$RANDOM; mkdir "$d"; touch "$d/manifest.json"; say failed; exit 137' - SLURM_RESTART_COUNT=3
expect_code 0 requeued
[ "$(wc -l <"$failures_noted")" -eq 1 ] || fail "a checkpoint did not begin the count anew"
for place in directory link; do
  if [ $place = link ]; then
    mv "$work/run" "$work/elsewhere"
    ln -s elsewhere "$work/run"
  fi
  for name in gsm8k.ar.attempt-1.rank-0-of-4.part gsm8k.speed; do
    run_case "failed once more, but after a line of $name, the run directory is a $place" \
      "d=\$WORK/run/evaluation/base; mkdir -p \"\$d\"; echo {} >>\"\$d/$name\"; say failed; exit 137"
    expect_code 0 requeued
    [ "$(wc -l <"$failures_noted")" -eq 1 ] || fail "an evaluated sample did not begin the count anew"
  done
done
rm "$work/run"
mv "$work/elsewhere" "$work/run"
mv "$work/run/checkpoints" "$work/elsewhere"
ln -s "$work/elsewhere" "$work/run/checkpoints"
RUN=$(realpath -s --relative-to=. "$work/run")
run_case "failed once more, but after a checkpoint in a folder that is a link" \
  'd=$WORK/run/checkpoints/$RANDOM$RANDOM; mkdir "$d"; touch "$d/manifest.json"; say failed; exit 137' - SLURM_RESTART_COUNT=3
expect_code 0 requeued
[ "$(wc -l <"$failures_noted")" -eq 1 ] || fail "a checkpoint behind a link did not begin the count anew"
mkdir "$work/evaluation"
ln -s ../run "$work/evaluation/run"
RUN="$work/evaluation/run"
rm -f "$failures_noted"
for start in 0 1 2; do
  run_case "failed start $start below a folder named evaluation, without a commit" \
    'echo {} >>"$WORK/run/journal.jsonl"; say failed; exit 70' - SLURM_RESTART_COUNT=$start
done
expect_code 70 not_requeued
unset RUN
mkdir "$work/unwritable"
: >"$work/unwritable/logs"
RUN="$work/unwritable"
run_case "failed where that cannot be noted" 'say failed; exit 4'
expect_code 4 not_requeued
unset RUN
rm -f "$failures_noted"
run_case "failed again before another bound" 'say failed; exit 137' - SLURM_RESTART_COUNT=1
run_case "another bound" 'say failed; exit 137' - JFORGE_MAX_FAILURES=2
expect_code 137 not_requeued
rm -f "$failures_noted"
run_case "failed, restarted too often" 'say failed; exit 137' - SLURM_RESTART_COUNT=3 JFORGE_MAX_RESTARTS=3
expect_code 137 not_requeued

never_stops='trap "" USR2; trap "exit 1" INT; touch "$WORK/ready"; for _ in $(seq 600); do sleep 0.1; done; exit 0'
run_case "warned, but no boundary comes before the time limit" "$never_stops" USR2 END_TIME="4 seconds"
grep -q "ended with exit code 143" "$work/log" || fail "was not ended before the limit"
expect_code 0 requeued
rm -f "$failures_noted"

printf '{\n  "status": "interrupted"\n}\n' >"$work/run/run.json"
run_case "failed before its first line, an old attempt was interrupted" 'exit 2'
expect_code 2 not_requeued

run_case "claims success without finishing" 'say running; exit 0'
expect_code 70 not_requeued

run_case "unknown launcher" 'say finished' - JFORGE_LAUNCHER=telegraph
expect_code 2
[ ! -e "$work/mpirun_arguments" ] || fail "mpirun was started"

run_case "srun that can ignore signals" 'say finished; exit 0' - JFORGE_LAUNCHER=srun IGNORES=1
expect_code 0
for argument in --mpi=pmix --kill-on-bad-exit=1 --cpus-per-task=3 --cpu-bind=cores --ignore-signals=TERM "$work/bin/jforge"; do
  grep -qxF -- "$argument" "$work/mpirun_arguments" || fail "srun did not get $argument"
done
! grep -q warning "$work/log" || fail "a warning"
for types in "pmi2=srun: MPI types are...\nsrun: none\nsrun: cray_shasta\nsrun: pmi2\n" "cray_shasta=\tcray_shasta\n" "=\tnone\n\tpmix_v4\n"; do
  run_case "srun of $types" 'say finished; exit 0' - JFORGE_LAUNCHER=srun IGNORES=1 TYPES="${types#*=}"
  expect_code "$([ -n "${types%%=*}" ] && echo 0 || echo 4)"
  grep -qx -e "--mpi=${types%%=*}" "$work/mpirun_arguments" 2>/dev/null || [ "${types%%=*}" = "" ] || fail "another type"
done
[ "$(cat "$work/log")" = "run_slurm.sbatch: srun --mpi=list names none of pmix, pmi2 and cray_shasta; use JFORGE_LAUNCHER=mpirun" ] ||
  fail "not one clear line"
run_case "srun with a CUDA build and GPUs" 'say finished; exit 0' - JFORGE_LAUNCHER=srun IGNORES=1 JFORGE="$work/bin/jforge_cuda" \
  SLURM_GPUS_ON_NODE=4
grep -qxF -- --cpu-bind=none "$work/mpirun_arguments" || fail "ranks are bound to cores"
run_case "srun that cannot ignore signals" 'say finished; exit 0' - JFORGE_LAUNCHER=srun
expect_code 0
[ "$(grep -c "warning: this srun has no --ignore-signals" "$work/log")" -eq 1 ] || fail "no warning, or several"
! grep -q -e --ignore-signals "$work/mpirun_arguments" || fail "srun got an option that it does not know"
run_case "cancelled under srun" "$stops_when_warned" CANCEL JFORGE_LAUNCHER=srun IGNORES=1
expect_code 75 not_requeued
run_case "warned under srun" "$stops_when_warned" USR2 JFORGE_LAUNCHER=srun IGNORES=1
expect_code 0 requeued
run_case "warned under srun, but no boundary comes before the time limit" "$never_stops" USR2 JFORGE_LAUNCHER=srun IGNORES=1 \
  END_TIME="4 seconds"
grep -q "ended with exit code 137" "$work/log" || fail "was not ended before the limit"
expect_code 0 requeued
rm -f "$failures_noted"

ends='echo "limit ${SLURM_JOB_END_TIME:-none}"; say finished; exit 0'
run_case "the program knows the time limit" "$ends" - END_TIME="@4000000000"
grep -q "^limit 4000000000$" "$work/log" || fail "no time limit"
run_case "no time limit" "$ends" -
grep -q "^limit none$" "$work/log" || fail "a time limit"

run_case "no binary" 'say finished' - JFORGE="$work/bin/absent"
expect_code 4

run_case "a copy of the script elsewhere" 'say finished; exit 0' - ORIGINAL="$work/copy.sbatch"
expect_code 4
run_case "a copy that is told where the checkout is" 'say finished; exit 0' - ORIGINAL="$work/copy.sbatch" \
  JFORGE_HOME="$source_dir"
expect_code 0

unset SLURM_GPUS_ON_NODE SLURM_JOB_GPUS CUDA_VISIBLE_DEVICES  # of this test's own job
for variables in "JFORGE=$work/bin/jforge_cuda" "JFORGE=$work/bin/jforge_cuda CUDA_VISIBLE_DEVICES= SLURM_JOB_GPUS=" \
  "JFORGE=$work/bin/jforge_cuda CUDA_VISIBLE_DEVICES=NoDevFiles"; do
  # shellcheck disable=SC2086
  run_case "a CUDA build without a GPU: $variables" 'say finished; exit 0' - $variables
  expect_code 0
  [ "$(grep -c "warning: .* the job was given no GPU: .* --gpus-per-node$" "$work/log")" -eq 1 ] || fail "no warning, or several"
done
for variables in "JFORGE=$work/bin/jforge_cpu" "JFORGE=$work/bin/jforge_cuda SLURM_GPUS_ON_NODE=4" \
  "JFORGE=$work/bin/jforge_cuda SLURM_JOB_GPUS=0,1" "JFORGE=$work/bin/jforge_cuda CUDA_VISIBLE_DEVICES=0"; do
  # shellcheck disable=SC2086
  run_case "nothing to warn of: $variables" 'say finished; exit 0' - $variables
  expect_code 0
  ! grep -q warning "$work/log" || fail "a warning"
done

run_case "GPUs and a CPU build" 'say finished; exit 0' - JFORGE="$work/bin/jforge_cpu" SLURM_GPUS_ON_NODE=4
expect_code 0
[ "$(grep -c "warning: the job has GPUs, but .* built without CUDA" "$work/log")" -eq 1 ] || fail "no warning, or several"
checkout=$work/checkout
mkdir -p "$checkout"/build/{cpu,cuda}-release/launch
cp -r "$source_dir/launch" "$checkout/"
cp "$work/bin/jforge_cpu" "$checkout/build/cpu-release/launch/jforge"
cp "$work/bin/jforge_cuda" "$checkout/build/cuda-release/launch/jforge"
for pair in "=cpu" "2=cuda"; do
  run_case "the build for SLURM_GPUS_ON_NODE=${pair%=*}" 'say finished; exit 0' - JFORGE= JFORGE_HOME="$checkout" \
    SLURM_GPUS_ON_NODE="${pair%=*}"
  expect_code 0
  grep -q "/build/${pair#*=}-release/launch/jforge run" "$work/log" || fail "another build"
  ! grep -q warning "$work/log" || fail "a warning"
done

case_name="run_cluster.sh"
: >"$work/log"
printf '# none\n\n' >"$work/no_hosts"
for arguments in "" "-n 0 x" "-n two x" "-n 2" "-n 2 --threads 0 x" "-n 2 --hostfile $work/absent x" \
  "-n 2 --hostfile $work/no_hosts x" \
  "-n 2 --grace soon x" "--fast x" "-n"; do
  # shellcheck disable=SC2086
  PATH="$work/bin:$PATH" WORK="$work" "$source_dir/launch/scripts/run_cluster.sh" $arguments >"$work/log" 2>&1
  [ $? -eq 2 ] || fail "accepted: $arguments"
done

case_name="ranks on other hosts get what decides how they run, once"
echo 'exit 0' >"$work/behaviour"
# Empty variables, and values with lines like the others'.
env -i PATH="$work/bin:$PATH" WORK="$work" HOME="$work" LD_LIBRARY_PATH=/some/lib NCCL_ALGO=Ring NCCL_PROTO=LL NCCL_HOSTID=first \
  CUDA_VISIBLE_DEVICES=1,0 CUDA_DEVICE_ORDER=PCI_BUS_ID JFORGE_CHECK_COLLECTIVES=1 UCX_TLS= OMP_WAIT_POLICY=$'passive\nNCCL_LINE=1' \
  MY_NCCL_ALGO=Tree "$source_dir/launch/scripts/run_cluster.sh" -n 2 --threads 3 true >"$work/log" 2>&1 || fail "exit code $?"
got=$(grep -x -A 1 -e -x "$work/mpirun_arguments" | grep -vx -e -x -e -- | sort | tr '\n' ' ')
expected="CUDA_DEVICE_ORDER JFORGE_CHECK_COLLECTIVES LD_LIBRARY_PATH NCCL_ALGO NCCL_PROTO OMP_NUM_THREADS OMP_WAIT_POLICY PATH UCX_TLS "
[ "$got" = "$expected" ] || fail "mpirun was told to pass on $got"

# The second signal comes before the script notices the end.
case_name="run_cluster.sh: a signal to ranks that have just stopped"
echo 'trap "exit 75" USR2; touch "$WORK/ready"; for _ in $(seq 3000); do sleep 0.02; done; exit 1' >"$work/behaviour"
rm -f "$work/ready"
PATH="$work/bin:$PATH" WORK="$work" "$source_dir/launch/scripts/run_cluster.sh" -n 2 true >"$work/log" 2>&1 &
script=$!
wait_until_ready
kill -TERM "$script"
for _ in $(seq 20); do
  sleep 0.01
  kill -USR2 "$script" 2>/dev/null
done
wait "$script"
code=$?
expect_code 75

mkdir "$work/old" "$work/bare"  # env of coreutils 8.30, setpriv of util-linux 2.32.
cat >"$work/old/env" <<'SCRIPT'
#!/bin/sh
case "$1" in
  --*-signal*) echo "env: unrecognized option '$1'" >&2; exit 125 ;;
esac
exec /usr/bin/env "$@"
SCRIPT
printf '#!/bin/sh\necho "setpriv: unrecognized option" >&2; exit 1\n' >"$work/old/setpriv"
chmod +x "$work"/old/*
cat >"$work/behaviour" <<'SCRIPT'
grep -E '^Sig(Blk|Ign)' /proc/$$/status >"$WORK/signals"
[ "$(ps -o sid= -p $$ | tr -d ' ')" = $$ ] || exit 41
trap 'echo told >"$WORK/told"; exit 7' USR2
trap 'exit 42' TERM
touch "$WORK/ready"
for _ in $(seq 1200); do sleep 0.05; done
SCRIPT
for path in "" "$work/old:"; do
  case_name="mpirun is deaf to SIGTERM, path \"$path\""
  rm -f "$work/ready" "$work/told"
  PATH="$path$work/bin:$PATH" WORK="$work" "$source_dir/launch/scripts/run_cluster.sh" -n 2 true >"$work/log" 2>&1 &
  script=$!
  wait_until_ready
  blocked=$(sed -n 's/^SigBlk:[[:space:]]*//p' "$work/signals") ignored=$(sed -n 's/^SigIgn:[[:space:]]*//p' "$work/signals")
  # SIGTERM is bit 14. SIGINT (1), SIGPIPE (12) and SIGXFSZ (24) have their default action.
  [ $((0x$blocked >> 14 & 1)) -eq 1 ] || fail "SIGTERM reaches mpirun"
  [ $((0x$ignored & (1 << 1 | 1 << 12 | 1 << 24))) -eq 0 ] || fail "mpirun ignores signals $ignored"
  kill -KILL "$script"  # it is told of its parent's death
  wait "$script" 2>/dev/null
  for _ in $(seq 1200); do
    [ -e "$work/told" ] && break
    sleep 0.05
  done
  [ -e "$work/told" ] || fail "mpirun got no SIGUSR2 when the script was killed"
done

echo 'exit 0' >"$work/behaviour"
agent() { grep -x -A 1 -e "$1" "$work/mpirun_arguments" | tail -n 1; }
case_name="daemons on other hosts are deaf to SIGTERM"
PATH="$work/bin:$PATH" WORK="$work" "$source_dir/launch/scripts/run_cluster.sh" -n 2 true >"$work/log" 2>&1 || fail "exit code $?"
[ "$(agent orte_launch_agent)" = "env --block-signal=TERM orted" ] || fail "agent $(agent orte_launch_agent)"
case_name="daemons on other hosts are deaf to SIGTERM without a new env"
PATH="$work/old:$work/bin:$PATH" WORK="$work" "$source_dir/launch/scripts/run_cluster.sh" -n 2 true >"$work/log" 2>&1 ||
  fail "exit code $?"
[[ "$(agent orte_launch_agent)" =~ ^(/.*/launch/scripts/signal_shield.sh)\ orted$ ]] || fail "agent $(agent orte_launch_agent)"
for path in "" "$work/old:"; do
  blocked=$(PATH="$path$PATH" "${BASH_REMATCH[1]:-false}" sed -n 's/^SigBlk:[[:space:]]*//p' /proc/self/status)
  [ $((0x${blocked:-0} >> 14 & 1)) -eq 1 ] || fail "the agent does not block SIGTERM, path \"$path\""
done
PATH="$work/old:$PATH" "$source_dir/launch/scripts/signal_shield.sh" "$work/absent" >"$work/log" 2>&1
[ $? -eq 127 ] || fail "a missing daemon has another exit code"
mkdir "$work/a b"
cp "$source_dir"/launch/scripts/*.sh "$work/a b"
PATH="$work/old:$work/bin:$PATH" WORK="$work" "$work/a b/run_cluster.sh" -n 2 true >"$work/log" 2>&1
[ $? -eq 4 ] && grep -q "whose path has blanks" "$work/log" || fail "a path with blanks was taken"

if [ ! -e /usr/libexec/platform-python ]; then
  case_name="neither a new env nor Python"
  printf '#!/bin/sh\nexit 127\n' >"$work/bare/python3"
  chmod +x "$work/bare/python3"
  rm -f "$work/mpirun_arguments"
  PATH="$work/bare:$work/old:$work/bin:$PATH" WORK="$work" "$source_dir/launch/scripts/run_cluster.sh" -n 2 true >"$work/log" 2>&1
  [ $? -eq 4 ] || fail "another exit code than 4"
  [ "$(wc -l <"$work/log")" -eq 1 ] && grep -q "neither coreutils 8.31 .* nor python3 is there" "$work/log" || fail "not one clear line"
  [ ! -e "$work/mpirun_arguments" ] || fail "mpirun was started"
fi

# expect_places HOSTS PLACES: HOSTS are the host file's lines.
expect_places() {
  case_name="host file \"$1\""
  printf "$1" >"$work/hosts"
  PATH="$work/bin:$PATH" WORK="$work" "$source_dir/launch/scripts/run_cluster.sh" -n 7 --threads 16 --hostfile "$work/hosts" true \
    >"$work/log" 2>&1 || fail "exit code $?"
  [ "$(sed -n '/^--map-by$/,/^--bind-to$/p' "$work/mpirun_arguments" | sed '1d;$d' | tr '\n' ' ')" = "$2 " ] || fail "not $2"
}
expect_places 'n1\nn2' 'node:PE=16 --rank-by slot'
expect_places 'n1 # slots=2\nn2 max_slots=4\n' 'node:PE=16 --rank-by slot'
expect_places 'n1 slots=2\nn2\n' 'node:PE=16 --rank-by slot'
expect_places '# two\n\nn1 slots=4\nn2\tmax_slots=4 slots = 4 # more\n   \n' slot:PE=16

expect_bound() {
  PATH="$work/bin:$PATH" WORK="$work" JFORGE_GPUS="$1" "$source_dir/launch/scripts/run_cluster.sh" -n 2 --threads 3 true \
    >"$work/log" 2>&1 || fail "exit code $?"
  [ "$(sed -n '/^--map-by$/,$p' "$work/mpirun_arguments" | head -n 4 | tr '\n' ' ')" = "$2 " ] || fail "not $2"
}
case_name="run_cluster.sh binds ranks to cores unless GPUs are there"
expect_bound "$work/no*such*file" '--map-by slot:PE=3 --bind-to core'
expect_bound "$work/h*sts" '--map-by slot --bind-to none'

# expect_threads HOSTS RANKS THREADS [VARIABLE=VALUE…], on hosts of 48 cores with 2 hardware threads each.
printf '#!/bin/sh\necho "# Core,Socket"\nfor i in $(seq 0 23); do printf "%%s\\n" "$i,0" "$i,0" "$i,1" "$i,1"; done\n' >"$work/bin/lscpu"
printf '#!/bin/sh\necho 96\n' >"$work/bin/nproc"
chmod +x "$work/bin/lscpu" "$work/bin/nproc"
expect_threads() {
  case_name="threads of $2 ranks on \"$1\""
  printf "$1" >"$work/hosts"
  local expected=$3 file=() ranks=$2
  [ -z "$1" ] || file=(--hostfile "$work/hosts")
  shift 3
  env -u OMP_NUM_THREADS -u SLURM_CPUS_PER_TASK "$@" PATH="$work/bin:$PATH" WORK="$work" \
    "$source_dir/launch/scripts/run_cluster.sh" -n "$ranks" ${file[0]+"${file[@]}"} true >"$work/log" 2>&1 || fail "exit code $?"
  grep -qx -e "[a-z]*:PE=$expected" "$work/mpirun_arguments" || fail "not $expected"
}
expect_threads '' 8 6
expect_threads '' 100 1
expect_threads '' 8 3 OMP_NUM_THREADS=3
expect_threads '' 8 12 SLURM_JOB_NUM_NODES=2
expect_threads 'n1\nn2 # a\n\n' 7 12
expect_threads 'n1 slots=8\nn2 slots=4\n' 12 6
rm "$work/bin/lscpu" "$work/bin/nproc"

for version in 5.0.3 10.1.0rc2; do
  case_name="Open MPI $version: PRRTE's names"
  PATH="$work/bin:$PATH" WORK="$work" MPI_VERSION=$version "$source_dir/launch/scripts/run_cluster.sh" -n 2 true >"$work/log" 2>&1 ||
    fail "exit code $?"
  arguments=" $(tr '\n' ' ' <"$work/mpirun_arguments")"
  for words in "prte_launch_agent env --block-signal=TERM prted" "oob_tcp_keepalive_time 30" "prte_keepalive_probes 3"; do
    [[ $arguments == *" --prtemca $words "* ]] || fail "mpirun did not get $words"
  done
  [[ $arguments != *" --mca "* ]] || fail "mpirun got an option of Open MPI 4's launcher"
done
case_name="Open MPI 4.1.4: its own names"
PATH="$work/bin:$PATH" WORK="$work" "$source_dir/launch/scripts/run_cluster.sh" -n 2 true >"$work/log" 2>&1 || fail "exit code $?"
grep -qx -- --prtemca "$work/mpirun_arguments" && fail "mpirun got an option of PRRTE"
[ "$(agent oob_tcp_keepalive_probes)" = 3 ] || fail "no keepalive"

# expect_hydra HOSTS OPTIONS RANKS: run_cluster.sh on HOSTS.
expect_hydra() {
  case_name="MPICH's options on \"$1\""
  printf "$1" >"$work/hosts"
  local file=()
  [ -z "$1" ] || file=(--hostfile "$work/hosts")
  echo 'sed "s/^/host /" <"${*: -2:1}" >"$WORK/hydra_hosts" || true' >"$work/behaviour"
  PATH="$work/bin:$PATH" WORK="$work" MPI_VERSION=hydra JFORGE_GPUS="$work/no/*" NCCL_ALGO=Ring "$source_dir/launch/scripts/run_cluster.sh" \
    -n "$3" --threads 3 ${file[0]+"${file[@]}"} true >"$work/log" 2>&1 || fail "exit code $?"
  arguments=" $(tr '\n' ' ' <"$work/mpirun_arguments")"
  [[ $arguments == *" -n $3 -genvlist "*NCCL_ALGO*" "$2" "* ]] || fail "mpirun got $arguments"
  [[ $arguments != *" --"* ]] || fail "mpirun got an option of Open MPI: $arguments"
}
expect_hydra '' '-ppn 2 -bind-to core:3' 2
expect_hydra 'n1\nn2 # a\n\n' '-ppn 4 -bind-to core:3 -f /dev/fd/*' 7
[ "$(tr '\n' ' ' <"$work/hydra_hosts")" = "host n1 host n2 " ] || fail "$(cat "$work/hydra_hosts")"
expect_hydra 'n1 slots=8\n  n2  slots = 4 # b\n' '-ppn 8 -bind-to core:3 -f /dev/fd/*' 12
[ "$(tr '\n' ' ' <"$work/hydra_hosts")" = "host n1:8 host n2:4 " ] || fail "$(cat "$work/hydra_hosts")"
case_name="MPICH returns a killed rank's signal, and passes on SIGUSR1 alone"
for codes in "9 137" "10 75" "2 2" "75 75"; do
  echo "exit ${codes% *}" >"$work/behaviour"
  PATH="$work/bin:$PATH" WORK="$work" MPI_VERSION=hydra "$source_dir/launch/scripts/run_cluster.sh" -n 2 true >"$work/log" 2>&1
  code=$?
  [ $code = "${codes#* }" ] || fail "exit code $code for ${codes% *}"
done
echo 'trap "exit 75" USR1; : >"$WORK/is_up"; while :; do sleep 0.1; done' >"$work/behaviour"
rm -f "$work/is_up"
PATH="$work/bin:$PATH" WORK="$work" MPI_VERSION=hydra "$source_dir/launch/scripts/run_cluster.sh" -n 2 true >"$work/log" 2>&1 &
job=$!
until [ -e "$work/is_up" ]; do sleep 0.1; done
kill -USR2 $job
wait $job
code=$?
[ $code = 75 ] || fail "exit code $code after a stop"

[ "$failures" -eq 0 ] && echo "all cases hold"
exit $((failures == 0 ? 0 : 1))
