#!/usr/bin/env bash
# Sourced by local_mpirun.sh and run_cluster.sh. jforge_outlive_readers: the job survives closed output, from the start
# (`2>&-`) or later (`… | head -1`). mpirun dies when it writes to a closed pipe, so a process in between reads on.

jforge_pass_on() {
  # Ctrl-C is for the job, which may still print.
  trap '' PIPE INT TERM HUP USR1 USR2
  cat 2>/dev/null || true
  exec cat >/dev/null
}

# bash opens the script as the lowest free descriptor, perhaps a closed stream's.
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
