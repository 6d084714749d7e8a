#!/usr/bin/env bash
# signal_shield.sh PROGRAM [ARGUMENT...]: executes PROGRAM with SIGTERM blocked, for Open MPI's daemons on other hosts
# if env(1) cannot. Sourced by run_cluster.sh:
#
# jforge_shield: sets two command prefixes. JFORGE_DEAF blocks SIGTERM; JFORGE_DEAF_LEADER also starts a session, does
# not ignore SIGINT, and gets signal JFORGE_STOP when its parent ends. Needs coreutils 8.31 and util-linux 2.33, or Python 3.

# Python starts with SIGPIPE and SIGXFSZ ignored, which PROGRAM would inherit.
JFORGE_SHIELD_CODE='
import os, signal, sys
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
if sys.argv[1] == "leader":
    import ctypes
    set_parent_death_signal = 1
    stop = getattr(signal, "SIG" + sys.argv.pop(2))
    ctypes.CDLL(None).prctl(set_parent_death_signal, ctypes.c_ulong(stop))
    os.setsid()
    signal.signal(signal.SIGINT, signal.SIG_DFL)
for number in signal.SIGPIPE, signal.SIGXFSZ:
    signal.signal(number, signal.SIG_DFL)
try:
    os.execvp(sys.argv[2], sys.argv[2:])
except OSError as error:
    sys.stderr.write("%s: %s\n" % (sys.argv[2], error.strerror))
    sys.exit(127)
'

# jforge_first_that_starts MANNER WORD...: sets jforge_words to the WORDs if they work, else to Python's. MANNER is "deaf"
# or "leader SIGNAL".
jforge_first_that_starts() {
  local manner=($1) python
  shift
  jforge_words=("$@")
  ! "${jforge_words[@]}" true 2>/dev/null || return 0
  # Enterprise Linux 8 lacks these versions, but always has platform-python.
  for python in python3 /usr/libexec/platform-python; do
    jforge_words=("$python" -I -S -c "$JFORGE_SHIELD_CODE" "${manner[@]}")
    ! "${jforge_words[@]}" true 2>/dev/null || return 0
  done
  return 1
}

jforge_shield() {
  jforge_first_that_starts deaf env --block-signal=TERM || return 1
  JFORGE_DEAF=("${jforge_words[@]}")
  jforge_first_that_starts "leader ${JFORGE_STOP:-USR2}" \
    setpriv --pdeathsig "${JFORGE_STOP:-USR2}" setsid env --block-signal=TERM --default-signal=INT || return 1
  JFORGE_DEAF_LEADER=("${jforge_words[@]}")
}

JFORGE_NO_SHIELD="SIGTERM cannot be kept from mpirun: neither coreutils 8.31 (env --block-signal) and util-linux 2.33 (setpriv \
--pdeathsig) nor python3 is there"

if [ "${BASH_SOURCE[0]}" = "$0" ]; then
  if ! jforge_shield; then
    echo "signal_shield.sh: $(uname -n): $JFORGE_NO_SHIELD" >&2
    exit 4
  fi
  exec "${JFORGE_DEAF[@]}" "$@"
fi
