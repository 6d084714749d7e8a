#!/usr/bin/env python3
"""An installed tree and the Debian package are complete and usable where they are unpacked. Environment besides the
harness's: JFORGE_BUILD_DIR (the build folder), JFORGE_CMAKE and JFORGE_CPACK; ctest sets them.
"""

import gzip
import os
import pathlib
import shutil
import subprocess
import unittest

from harness import BINARY, EndToEndTest

BUILD = os.environ.get("JFORGE_BUILD_DIR", "")


def files_under(prefix):
    """Relative paths; the package has the man page compressed."""
    names = (str(path.relative_to(prefix)) for path in prefix.rglob("*") if path.is_file())
    return sorted(name.replace("jforge.1.gz", "jforge.1") for name in names)


class PackageTest(EndToEndTest):
    def run_program(self, *words, expect=0, **options):
        result = self.finish(self.start([str(word) for word in words], **options))
        self.assertEqual(expect, result.code, str(result))
        return result

    def installed(self):
        """An installed tree, far from checkout and build folder."""
        prefix = self.root / "installed" / "prefix"
        self.run_program(os.environ["JFORGE_CMAKE"], "--install", BUILD, "--prefix", prefix)
        return prefix

    def expect_complete(self, prefix, man_page):
        self.expect_shell_files(prefix, man_page)
        installed, share = prefix / "bin" / "jforge", prefix / "share" / "jforge"
        self.assertEqual(self.run_program(BINARY, "--version").out, self.run_program(installed, "--version").out)
        paths = subprocess.run(["readelf", "-d", installed], check=True, capture_output=True, text=True).stdout
        self.assertNotIn("RUNPATH", paths)
        plan = self.run_program(installed, "run", "launch/configs/quickstart.toml", "--dry-run", "--set",
                                f"run.directory=\"{self.root / 'planned'}\"", cwd=share)
        self.assertIn("steps", plan.out + plan.err)
        for name in ("README.md", "LICENSE", "docs/commands.md"):
            self.assertTrue((prefix / "share" / "doc" / "jforge" / name).is_file(), name)

    def expect_usable(self, prefix):
        """Checks `prefix` without checkout and build folder."""
        installed, share = prefix / "bin" / "jforge", prefix / "share" / "jforge"
        scripts = share / "launch" / "scripts"
        config, run = self.config("by-" + prefix.parent.name)
        self.run_program(scripts / "local_mpirun.sh", "-n", "2", installed, "run", config)
        self.assertEqual(self.bytes_of(self.uninterrupted(2)), self.bytes_of(run))
        # It refuses the launcher after finding the binary.
        batch = self.run_program("bash", scripts / "run_slurm.sbatch", config, run, expect=2,
                                 env={**os.environ, "JFORGE_LAUNCHER": "telegraph", "SLURM_JOB_ID": "0"})
        self.assertIn("neither mpirun nor srun", batch.err)
        self.expect_self_test(installed, share)
        self.expect_module_file(prefix)

    def expect_self_test(self, installed, share):
        """Detects a model that answers wrongly."""
        words = (share / "launch" / "scripts" / "local_mpirun.sh", "-n", "2", installed, "selftest")
        folder = self.root / f"self-test-{installed.parent.parent.parent.name}"
        folder.mkdir()
        self.assertIn("Self-test passed: 2 ranks", self.run_program(*words, cwd=folder).out)
        self.assertEqual([], list(folder.iterdir()))
        (weights,) = (share / "launch" / "quickstart" / "model").glob("*.safetensors")
        kept = weights.read_bytes()
        header = 8 + int.from_bytes(kept[:8], "little")
        weights.write_bytes(kept[:header] + kept[header + 2:] + kept[header:header + 2])
        failed = self.run_program(*words, "--directory", folder / "damaged", cwd=folder, expect=70)
        self.assertIn("selftest: this program computes wrongly on this machine: the bundled model answers", failed.err)
        weights.write_bytes(kept)
        again = self.run_program(*words, "--directory", folder / "damaged", cwd=folder, expect=2)
        self.assertIn("exists: remove it", again.err)

    def expect_module_file(self, prefix):
        found = list(pathlib.Path("/usr/lib").glob("*/modulecmd.tcl"))
        if not found:
            self.skipTest("environment-modules is not installed")
        script = self.run_program(found[0], "bash", "load", "jforge",
                                  env={**os.environ, "MODULEPATH": str(prefix / "share" / "jforge" / "modulefiles")}).out
        self.assertIn(f"{prefix / 'bin'}:", script)

    def expect_shell_files(self, prefix, man_page):
        """The completions equal the installed program's output."""
        installed = prefix / "bin" / "jforge"
        path = prefix / "share/man/man1" / man_page
        if (pathlib.Path(BUILD) / "generated/shell/jforge.1").is_file():  # help2man was there for the build
            self.assertEqual([path], list(path.parent.iterdir()))
            page = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
            for part in (b"SUBCOMMAND", b"\nselftest", b"EXIT STATUS", b"JFORGE_CPU", b"metrics.jsonl"):
                self.assertIn(part, page)
            if shutil.which("groff"):
                shown = subprocess.run(["groff", "-ww", "-man", "-Tascii"], input=page, check=True, capture_output=True)
                self.assertEqual(b"", shown.stderr)
        for shell, name in (("bash", "bash-completion/completions/jforge"), ("zsh", "zsh/vendor-completions/_jforge"),
                            ("fish", "fish/vendor_completions.d/jforge.fish")):
            self.assertEqual(self.run_program(installed, "completion", shell).out,
                             (prefix / "share" / name).read_text(encoding="utf-8"), name)


class Install(PackageTest):
    def test_an_installed_tree_works(self):
        prefix = self.installed()
        self.expect_complete(prefix, "jforge.1")
        self.expect_usable(prefix)


@unittest.skipUnless(shutil.which("dpkg-shlibdeps") and shutil.which("file"), "dpkg-dev or file is not installed")
class DebianPackage(PackageTest):
    def test_the_package_names_its_libraries_and_holds_the_installed_tree(self):
        folder = self.root / "packages"
        self.run_program(os.environ["JFORGE_CPACK"], "-G", "DEB", "-B", folder, "--config",
                         pathlib.Path(BUILD) / "CPackConfig.cmake", cwd=self.root)
        (package,) = folder.glob("jforge_*.deb")
        depends = self.run_program("dpkg-deb", "-f", package, "Depends").out
        for name in ("libc6", "libopenmpi3", "libhdf5-", "openmpi-bin"):
            self.assertIn(name, depends)
        self.assertNotIn("-dev", depends)
        self.run_program("dpkg-deb", "-x", package, self.root / "unpacked")
        prefix = self.root / "unpacked" / "usr"
        self.expect_complete(prefix, "jforge.1.gz")
        self.assertEqual(files_under(self.installed()), files_under(prefix))


if __name__ == "__main__":
    unittest.main(verbosity=2)
