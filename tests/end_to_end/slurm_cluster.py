"""A Slurm of two nodes for tests: munged, slurmctld and two slurmd in their own directory, on free ports of 127.0.0.1.
Needs Debian's munge, slurmctld, slurmd and slurm-client.
"""

import contextlib
import getpass
import os
import pathlib
import re
import secrets
import shutil
import signal
import socket
import subprocess
import time

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "scontrol")
NODES = ("n1", "n2")
# Final states; SIGNALING, while a job is warned, passes.
ENDED = ("BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED",
         "TIMEOUT")

CONFIG = """
ClusterName=jforge
SlurmctldHost={host}(127.0.0.1)
SlurmUser={user}
SlurmdUser={user}
SlurmctldPort={ports[0]}
AuthType=auth/munge
CryptoType=crypto/munge
AuthInfo=socket={root}/run/munge.sock,cred_expire=15
CredType=cred/munge
StateSaveLocation={root}/state
SlurmdSpoolDir={root}/spool/%n
TmpFS={root}/tmp/%n
SlurmctldPidFile={root}/run/slurmctld.pid
SlurmdPidFile={root}/run/slurmd.%n.pid
SlurmctldLogFile={root}/log/slurmctld.log
SlurmdLogFile={root}/log/slurmd.%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=2,bf_interval=2,batch_sched_delay=0
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
ReturnToService=2
SlurmdTimeout=15
SlurmctldTimeout=15
InactiveLimit=0
KillWait=30
MinJobAge=600
JobRequeue=1
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
JobCompType=jobcomp/none
SlurmdParameters=config_overrides
NodeName=n1 NodeHostname=n1 NodeAddr=127.0.0.1 Port={ports[1]} CPUs=8 RealMemory=4000 State=UNKNOWN
NodeName=n2 NodeHostname=n2 NodeAddr=127.0.0.1 Port={ports[2]} CPUs=8 RealMemory=4000 State=UNKNOWN
PartitionName=debug Nodes=n1,n2 Default=YES MaxTime=INFINITE State=UP
"""


def program(name):
    """Searches sbin, too, for daemons."""
    return shutil.which(name, path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin")


def missing_programs():
    return [name for name in PROGRAMS if program(name) is None]


class SlurmCluster:
    """All processes end with `with`."""

    def __init__(self, root):
        self.root = pathlib.Path(root)
        self.daemons = {}
        self.environment = {**os.environ, "SLURM_CONF": str(self.root / "slurm.conf")}

    def __enter__(self):
        try:
            self.start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def start(self):
        for name in ("state", "run", "log", "key", *(f"{kind}/{node}" for kind in ("spool", "tmp") for node in NODES)):
            (self.root / name).mkdir(parents=True, mode=0o755)
        with contextlib.ExitStack() as stack:
            sockets = [stack.enter_context(socket.socket()) for _ in range(3)]
            for free in sockets:
                free.bind(("127.0.0.1", 0))
            ports = [free.getsockname()[1] for free in sockets]
        (self.root / "slurm.conf").write_text(CONFIG.format(
            root=self.root, host=socket.gethostname(), user=getpass.getuser(), ports=ports), encoding="utf-8")
        key = self.root / "key" / "munge.key"
        key.write_bytes(secrets.token_bytes(1024))
        key.chmod(0o400)
        (self.root / "key").chmod(0o700)
        run, log = self.root / "run", self.root / "log"
        self.daemon("munged", "--foreground", f"--key-file={key}", f"--socket={run}/munge.sock", "--force",
                    f"--pid-file={run}/munged.pid", f"--log-file={log}/munged.log", f"--seed-file={run}/munged.seed")
        self.wait_until((run / "munge.sock").exists, "munged's socket")
        self.daemon("slurmctld", "-D", "-c")
        for node in NODES:
            self.start_node(node)
        self.wait_until(lambda: self.run("sinfo", "-h", "-o", "%T").split() == ["idle"], "two idle nodes", 60)

    def start_node(self, node):
        self.daemon("slurmd", "-D", "-N", node, name=node)

    def daemon(self, command, *words, name=None):
        # A killed test must not leave daemons behind.
        with open(self.root / "log" / f"{name or command}.out", "ab") as out:
            self.daemons[name or command] = subprocess.Popen(
                ["setpriv", "--pdeathsig", "TERM", program(command), *words], stdout=out, stderr=out, stdin=subprocess.DEVNULL, env=self.environment,
                start_new_session=True)

    def lose_node(self, node):
        """Simulates a power failure."""
        victims = [self.daemons.pop(node)]
        os.kill(victims[0].pid, signal.SIGKILL)
        victims[0].wait()
        for pid in self.processes(f"SLURMD_NODENAME={node}\0"):
            with contextlib.suppress(OSError):
                status = pathlib.Path("/proc", str(pid), "status").read_text(encoding="utf-8")
                parent = int(re.search(r"PPid:\s*(\d+)", status)[1])
                if pathlib.Path("/proc", str(parent), "comm").read_text(encoding="utf-8").startswith("slurmstepd"):
                    os.kill(parent, signal.SIGKILL)
                os.kill(pid, signal.SIGKILL)

    def processes(self, variable=""):
        """Returns ids of processes with this cluster's directory and `variable` in their environment."""
        found = []
        for entry in os.listdir("/proc"):
            with contextlib.suppress(OSError):
                if entry.isdigit() and int(entry) != os.getpid():
                    environment = pathlib.Path("/proc", entry, "environ").read_bytes()
                    if str(self.root).encode() in environment and variable.encode() in environment:
                        found.append(int(entry))
        return found

    def run(self, name, *words, environment=None, **options):
        """Empty on failure, as before the controller listens."""
        return subprocess.run([program(name), *map(str, words)], check=False, stdout=subprocess.PIPE, text=True,
                              timeout=60, env={**self.environment, **(environment or {})}, **options).stdout

    def job(self, number):
        return dict(re.findall(r"(\S+?)=(\S*)", self.run("scontrol", "show", "job", number)))

    @staticmethod
    def wait_until(condition, what, seconds=30):
        end = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > end:
                raise TimeoutError(f"{what}: not within {seconds} s")
            time.sleep(0.1)

    def __exit__(self, *_):
        for daemon in reversed(self.daemons.values()):
            daemon.terminate()
        for daemon in self.daemons.values():
            try:
                daemon.wait(10)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()
        for pid in self.processes():
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
