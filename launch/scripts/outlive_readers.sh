#!/usr/bin/env bash
# Sourced by local_mpirun.sh and run_cluster.sh: defines jforge_outlive_readers.
#
# jforge_outlive_readers: from here on a reader of this script's standard output or error that goes away
# (`… | head -1`), or streams that were closed from the start (`2>&-`), do not end the job. mpirun itself dies when it
# writes to a closed pipe; so a pipe gets a process in between that reads on, whoever listens.

jforge_pass_on() {
  # A Ctrl-C at the terminal is for the job; what it says of it is still to be passed on.
  trap '' PIPE INT TERM HUP USR1 USR2
  cat 2>/dev/null || true
  exec cat >/dev/null
}

# bash has opened the script under the lowest free number.
jforge_closed() { [ ! -e "/dev/fd/$1" ] || [ "/dev/fd/$1" -ef "$0" ]; }

jforge_outlive_readers() {
  ! jforge_closed 0 || exec </dev/null
  ! jforge_closed 1 || exec >/dev/null
  ! jforge_closed 2 || exec 2>/dev/null
  if [ -p /dev/stdout ] || [ -S /dev/stdout ]; then
    exec > >(jforge_pass_on)
  fi
  if [ -p /dev/stderr ] || [ -S /dev/stderr ]; then
    exec 2> >(jforge_pass_on >&2)
  fi
}
