#!/usr/bin/env python3
"""The README's two commands up to the build: what is missing is named, installed by root alone, and never half done.

Make-believe dpkg-query, apt-get, id and sleep come first on PATH; nothing is installed.
Environment: JFORGE_SOURCE_DIR (root of the tree); ctest sets it.
"""

import os
import pathlib
import pty
import re
import shutil
import subprocess
import tempfile
import unittest

SOURCE = pathlib.Path(os.environ.get("JFORGE_SOURCE_DIR", pathlib.Path(__file__).resolve().parents[3]))
SETUP = SOURCE / "launch" / "scripts" / "setup.sh"
PACKAGES, TEST_PACKAGES, ALL_TEST_PACKAGES = (
    re.search(rf"^{name}=\((.*?)\)", SETUP.read_text(encoding="utf-8"), re.M | re.S)[1].split()
    for name in ("packages", "test_packages", "all_test_packages"))


class SetupScripts(unittest.TestCase):
    def setUp(self):
        self.root = pathlib.Path(tempfile.mkdtemp(prefix="jforge-setup-"))
        self.addCleanup(shutil.rmtree, self.root, True)
        self.calls = self.root / "apt-calls"
        self.fake("sleep", "exit 0")

    def fake(self, name, body):
        path = self.root / name
        path.write_text(f"#!/bin/bash\n{body}\n", encoding="utf-8")
        path.chmod(0o755)

    def machine(self, missing=(), root=False, apt="exit 0"):
        case = "|".join(missing) or "-"
        self.fake("dpkg-query", f'case "${{@: -1}}" in {case}) exit 1 ;; esac\necho "install ok installed"')
        self.fake("id", f"echo {0 if root else 1000}")
        self.fake("apt-get", f'echo "$@" >>"{self.calls}"\n{apt}')

    def run_script(self, *words, **environment):
        environment = {**os.environ, "PATH": f"{self.root}:{os.environ['PATH']}", **environment}
        return subprocess.run([str(word) for word in words], check=False, capture_output=True, text=True, timeout=60,
                              env=environment)

    def apt_calls(self):
        return self.calls.read_text(encoding="utf-8").splitlines() if self.calls.exists() else []

    def test_nothing_missing_says_nothing(self):
        self.machine()
        result = self.run_script(SETUP)
        self.assertEqual((0, "", ""), (result.returncode, result.stdout, result.stderr))
        self.assertEqual([], self.apt_calls())

    def test_a_user_gets_the_exact_command_and_exit_4(self):
        self.machine(missing=("cmake", "libhdf5-dev"))
        result = self.run_script(SETUP)
        self.assertEqual(4, result.returncode)
        self.assertIn("sudo sh -c 'apt-get update && apt-get install -y --no-install-recommends cmake libhdf5-dev'",
                      result.stdout)
        self.assertRegex(result.stdout, r"\d+ MB.*minute")
        self.assertEqual([], self.apt_calls())

    def test_both_commands_end_there_for_a_user(self):
        self.machine(missing=("cmake",))
        for script in ("quickstart.sh", "test.sh"):
            result = self.run_script(SOURCE / "launch" / script)
            self.assertEqual(4, result.returncode, script)
            self.assertIn("install -y --no-install-recommends cmake'", result.stdout)

    def test_root_is_told_and_installs_only_what_is_missing(self):
        self.machine(missing=("ninja-build", "bubblewrap"), root=True)
        result = self.run_script(SETUP)
        self.assertEqual(0, result.returncode, result.stderr)
        self.assertIn("apt-get install -y --no-install-recommends ninja-build bubblewrap", result.stdout)
        self.assertRegex(result.stdout, r"\d+ MB.*minute")
        self.assertEqual(["update -qq", "install -y -qq --no-install-recommends ninja-build bubblewrap"],
                         self.apt_calls())

    def test_a_failing_mirror_is_tried_again_then_exit_4(self):
        self.machine(missing=("cmake",), root=True, apt="exit 100")
        result = self.run_script(SETUP)
        self.assertEqual(4, result.returncode)
        self.assertEqual(3, len(self.apt_calls()))
        self.assertIn("apt-get install -y --no-install-recommends cmake", result.stderr)

    def test_every_package_is_asked_for_once(self):
        tested = PACKAGES + TEST_PACKAGES
        everything = tested + ALL_TEST_PACKAGES
        self.assertEqual(len(everything), len(set(everything)))
        self.machine(missing=everything)
        self.assertIn(f"Packages to install: {' '.join(PACKAGES)}\n", self.run_script(SETUP).stdout)
        self.assertIn(f"Packages to install: {' '.join(tested)}\n", self.run_script(SETUP, "--tests").stdout)
        self.assertIn(f"Packages to install: {' '.join(everything)}\n", self.run_script(SETUP, "--all-tests").stdout)

    def test_who_builds_no_tests_needs_none_of_their_libraries(self):
        self.machine(missing=TEST_PACKAGES)
        self.assertEqual(0, self.run_script(SETUP).returncode)
        result = self.run_script(SOURCE / "launch" / "test.sh")
        self.assertEqual(4, result.returncode)
        self.assertIn(" ".join(TEST_PACKAGES) + "'", result.stdout)
        self.machine(missing=ALL_TEST_PACKAGES)
        result = self.run_script(SOURCE / "launch" / "test.sh", "--all")
        self.assertEqual(4, result.returncode)
        self.assertIn(" ".join(ALL_TEST_PACKAGES) + "'", result.stdout)

    def test_slurm_is_asked_for_by_the_cluster_tests_alone(self):
        self.machine(missing=("slurmctld", "munge"))
        self.assertEqual(0, self.run_script(SETUP, "--tests").returncode)
        result = self.run_script(SETUP, "--cluster-tests")
        self.assertEqual(4, result.returncode)
        self.assertIn("Packages to install: slurmctld munge\n", result.stdout)

    def test_an_unknown_option_is_exit_2(self):
        self.machine()
        for script in ("quickstart.sh", "test.sh"):
            result = self.run_script(SOURCE / "launch" / script, "--everything")
            self.assertEqual(2, result.returncode)
            self.assertIn("usage: ", result.stderr)

    def mpi_environment(self, **environment):
        script = ('source "$1" && source "$1" && jforge_threads_for_ranks 2 && echo "args=${JFORGE_MPIRUN_ARGS[*]}" && '
                  'echo "root=${OMPI_ALLOW_RUN_AS_ROOT:-}${OMPI_ALLOW_RUN_AS_ROOT_CONFIRM:-}" && '
                  'echo "threads=$OMP_NUM_THREADS policy=${OMP_WAIT_POLICY:-}"')
        clean = {name: "" for name in ("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "OMP_NUM_THREADS",
                                       "OMP_WAIT_POLICY")}
        result = self.run_script("bash", "-euc", script, "-", SOURCE / "launch" / "scripts" / "mpi_env.sh",
                                 **{**clean, **environment})
        self.assertEqual(0, result.returncode, result.stderr)
        return result

    def test_root_may_start_mpi_and_is_told_once(self):
        self.machine(root=True)
        result = self.mpi_environment()
        self.assertIn("root=11\n", result.stdout)
        self.assertEqual(1, result.stderr.count("running as root"))
        self.assertIn("--oversubscribe --bind-to none", result.stdout)

    def test_a_user_needs_no_such_thing(self):
        self.machine()
        result = self.mpi_environment()
        self.assertIn("root=\n", result.stdout)
        self.assertEqual("", result.stderr)

    def test_ranks_share_the_cores_and_sleep_when_there_are_too_few(self):
        self.machine()
        self.fake("nproc", "echo 8")
        self.assertIn("threads=4 policy=\n", self.mpi_environment().stdout)
        self.assertIn("threads=3 policy=\n", self.mpi_environment(OMP_NUM_THREADS="3").stdout)
        self.assertIn("threads=5 policy=passive", self.mpi_environment(OMP_NUM_THREADS="5").stdout)
        self.fake("nproc", "echo 1")
        self.assertIn("threads=1 policy=passive", self.mpi_environment().stdout)

    def interrupt(self, mpirun, times):
        """Ctrl-C, `times` times, on a terminal that runs local_mpirun.sh; returns its exit code and what was shown."""
        self.machine()
        self.fake("mpirun", f"trap 'echo asked to stop; {mpirun}' USR2\ntrap 'echo ended; exit 143' TERM\n"
                            "trap 'echo interrupted; exit 1' INT\necho up\nwhile :; do read -t 0.05 </dev/zero; done")
        os.unlink(self.root / "sleep")
        pid, terminal = pty.fork()
        if pid == 0:
            os.environ["PATH"] = f"{self.root}:{os.environ['PATH']}"
            os.execv("/bin/bash", ["bash", str(SOURCE / "launch/scripts/local_mpirun.sh"), "-n", "2", "program"])
        shown = ""
        expected = ["up", "asked to stop", "ended"][:times + 1]
        sent = 0
        while True:
            try:
                shown += os.read(terminal, 1000).decode()
            except OSError:  # Linux' way to say that the other side is closed.
                break
            if sent < times and expected[sent] in shown:
                os.write(terminal, b"\x03")
                sent += 1
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), shown

    def test_ctrl_c_stops_at_the_next_boundary(self):
        code, shown = self.interrupt("exit 75", 1)
        self.assertEqual(75, code, shown)
        self.assertIn("what is committed is safe", shown)
        self.assertNotIn("interrupted", shown)

    def test_a_second_ctrl_c_ends_at_once(self):
        code, shown = self.interrupt(":", 2)
        self.assertEqual(143, code, shown)
        self.assertIn("ended", shown)

    def test_no_copies_between_processes_where_they_are_not_permitted(self):
        self.machine()
        self.fake("grep", "exit 1")  # as under a seccomp filter
        self.assertIn("btl_vader_single_copy_mechanism none", self.mpi_environment().stdout)


if __name__ == "__main__":
    unittest.main()
