#!/usr/bin/env python3
"""run_cluster.sh with the real mpirun: it ends with its ranks and gives them time to stop. Placement is simulated."""

import ctypes
import os
import re
import signal
import time
import unittest

from harness import BINARY, SOURCE, EndToEndTest

RUN_CLUSTER = SOURCE / "launch" / "scripts" / "run_cluster.sh"
LIMIT_SECONDS = 90  # after the last rank's end
# 3 s in each step, longer than mpirun waits after a SIGTERM.
SLOW_STEPS = ",".join(f"delay@train:0:{step}" for step in range(3, 7))
SLOW_END = "delay@close:0:1,delay@end:0:1"  # a second signal might kill the stopped job


class ClusterScript(EndToEndTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        os.environ.update({"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"})

    @staticmethod
    def cluster_command(*words, options=()):
        return [str(word) for word in [RUN_CLUSTER, "-n", 2, "--threads", 1, *options, BINARY, *words]]

    def setUp(self):
        probe = self.finish(self.start([*self.cluster_command()[:5], "true"]), LIMIT_SECONDS)
        if probe.code != 0:
            self.skipTest("mpirun cannot bind two ranks to cores of this machine")

    def finish_after_ranks(self, process):
        """Limits only the time after the last rank's end."""
        seen = time.monotonic()
        while process.poll() is None and time.monotonic() - seen < LIMIT_SECONDS:
            time.sleep(0.1)
            if self.ranks_of(process):
                seen = time.monotonic()
        return self.finish(process, 1)

    def signalled(self, name, *numbers, faults=SLOW_STEPS, options=()):
        """Sends each signal after the previous one took effect. Returns (result, run directory, config)."""
        config, run = self.config(name)
        process = self.start(self.cluster_command("run", config, "--inject", faults, options=options))
        self.wait_for_text(process, "acts now")
        for number in numbers:
            # As a terminal does; ranks and mpirun must not be in the group.
            os.killpg(process.pid, number)
            if number != signal.SIGUSR2:
                self.wait_for_text(process, "stopping at the next boundary")
        result = self.finish_after_ranks(process)
        self.expect_no_processes()
        return result, run, config

    def expect_stopped(self, name, number):
        result, run, config = self.signalled(name, number)
        self.assertEqual(75, result.code, str(result))
        self.assertEqual("interrupted", self.status(run))
        last = max(self.losses(run))
        self.assertGreaterEqual(last, (1, 3))
        self.assertEqual(last, max(self.checkpoint_steps(run)), "the step at hand was finished and committed")
        self.jforge("run", config, ranks=2)
        self.assertEqual(self.bytes_of(self.uninterrupted(2)), self.bytes_of(run))

    def test_finishes(self):
        config, run = self.config("finishes")
        result = self.finish_after_ranks(self.start(self.cluster_command("run", config)))
        self.assertEqual(0, result.code, str(result))
        self.assertEqual("finished", self.status(run))

    def test_wrong_configuration_ends_at_once(self):
        config, _ = self.config("typo", extra="[trian]\nlearning_rate = 1e-3\n")
        result = self.finish_after_ranks(self.start(self.cluster_command("run", config)))
        self.assertEqual(2, result.code, str(result))
        self.assertIn("trian", result.err)

    def test_killed_rank_ends_it(self):
        config, _ = self.config("killed")
        result = self.finish_after_ranks(
            self.start(self.cluster_command("run", config, "--inject", "kill@train:1:3")))
        self.assertEqual(137, result.code, str(result))
        self.expect_no_processes()

    def test_usr2_stops_at_a_boundary(self):
        self.expect_stopped("usr2", signal.SIGUSR2)

    def test_term_stops_at_a_boundary(self):
        self.expect_stopped("term", signal.SIGTERM)

    def test_interrupt_key_stops_at_a_boundary(self):
        self.expect_stopped("interrupt", signal.SIGINT)

    def test_a_second_term_ends_it_at_once(self):
        result, run, _ = self.signalled("twice", signal.SIGTERM, signal.SIGTERM, faults=f"{SLOW_STEPS},{SLOW_END}")
        self.assertEqual(143, result.code, str(result))
        self.assertIn("run_cluster.sh: the job is ended", result.err)
        self.jforge("verify", run)

    def test_no_longer_than_the_grace(self):
        result, run, _ = self.signalled("grace", signal.SIGTERM, faults=f"{SLOW_STEPS},{SLOW_END}",
                                        options=("--grace", 0))
        self.assertEqual(143, result.code, str(result))
        self.jforge("verify", run)

    def test_a_killed_script_leaves_no_ranks(self):
        config, run = self.config("script-killed")
        process = self.start(self.cluster_command("run", config, "--inject", SLOW_STEPS))
        self.wait_for_text(process, "acts now")
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        self.expect_no_processes(60)
        self.assertEqual("interrupted", self.status(run))


class Places(EndToEndTest):
    """Four hosts of two sockets with 16 cores each."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        os.environ.update({"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"})
        try:
            hwloc = ctypes.CDLL("libhwloc.so.15")
        except OSError:
            raise unittest.SkipTest("no libhwloc.so.15, which describes hosts")
        cls.topology = cls.root / "topology.xml"
        handle = ctypes.c_void_p()
        hwloc.hwloc_topology_init(ctypes.byref(handle))
        hwloc.hwloc_topology_set_synthetic(handle, b"pack:2 numa:1 core:16 pu:1")
        hwloc.hwloc_topology_load(handle)
        hwloc.hwloc_topology_export_xml(handle, str(cls.topology).encode(), ctypes.c_ulong(0))
        hwloc.hwloc_topology_destroy(handle)

    def ranks_on_hosts(self, ranks, line, simulated=()):
        """Returns [[0, 1], [2], …]; `line`: a host in the host file."""
        hosts = self.root / "hosts"
        hosts.write_text("".join(line.format(number) + "\n" for number in range(4)), encoding="utf-8")
        settings = {"orte_do_not_launch": 1, "rmaps_base_display_map": 1, **dict(simulated)}
        command = ["env", *(f"OMPI_MCA_{name}={value}" for name, value in settings.items()), str(RUN_CLUSTER), "-n", str(ranks),
                   "--hostfile", str(hosts), "--threads", "16", "true"]
        result = self.finish(self.start(command), LIMIT_SECONDS)  # mpirun fails after a map without a launch.
        text = result.out + result.err
        if "JOB MAP" not in text and "processes than cpus" not in text:
            self.skipTest("this mpirun cannot map without a launch: " + text)
        return [[int(rank) for rank in re.findall(r"Process rank: (\d+)", host)]
                for host in text.split("Data for node:")[1:]], text

    def test_hosts_without_slots_share_the_ranks(self):
        # Like hosts whose cores are counted.
        simulated = {"ras": "simulator", "ras_simulator_num_nodes": 4, "ras_simulator_topo_files": self.topology,
                     "ras_simulator_slots": 32, "ras_simulator_max_slots": 32}
        for ranks, expected in [(8, [[0, 1], [2, 3], [4, 5], [6, 7]]), (5, [[0, 1], [2], [3], [4]]), (3, [[0], [1], [2]])]:
            places, text = self.ranks_on_hosts(ranks, "nodeA{}", simulated)
            self.assertEqual(expected, places, text)
            self.assertEqual(ranks, len(re.findall(r"Bound: socket \d\[core (?:0|16)\[", text)), text)

    def test_slots_are_filled_in_order(self):
        places, text = self.ranks_on_hosts(5, "n{} slots=2", {"hwloc_base_topo_file": self.topology})
        self.assertEqual([[0, 1], [2, 3], [4]], places, text)


if __name__ == "__main__":
    unittest.main(verbosity=2)
