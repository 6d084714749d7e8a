#!/usr/bin/env python3
"""The registration lint finds a test source that ctest does not run, and passes a complete tree."""

import json
import pathlib
import subprocess
import sys
import tempfile

LINT = pathlib.Path(__file__).with_name("check_registered.py")


def run(registered, scripts, names=None, chosen=()):
    """Runs the lint on tests/a_test.cpp, tests/b_test.cpp and tests/c_test.py with a fake build folder. ctest starts
    the programs `registered` and the scripts `scripts`, with arguments `chosen`."""
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder).resolve()
        build = root / "build"
        (root / "tests").mkdir()
        build.mkdir()
        entries, lines = [], []
        for name in ("a", "b"):
            source = root / "tests" / f"{name}_test.cpp"
            source.touch()
            if name == "b":  # as with JFORGE_UNITY
                merged = build / "Unity" / "unity_0_cxx.cxx"
                merged.parent.mkdir()
                merged.write_text(f'#include "{source}"\n', encoding="utf-8")
                source = merged
            entries.append({"file": str(source), "directory": str(build),
                            "command": f"c++ -o tests/CMakeFiles/{name}.dir/{name}_test.cpp.o -c {source}"})
        (root / "tests" / "c_test.py").write_text(
            "class A:\n  def test_x(self): pass\n  def test_y(self): pass\nclass B:\n  def test_z(self): pass\n",
            encoding="utf-8")
        for number, name in enumerate(registered):
            lines.append(f'add_test({(names or registered)[number]} "{build}/tests/{name}")')
        arguments = "".join(f' "{choice}"' for choice in chosen)
        lines += [f'add_test({name} "python3" "{root}/tests/{name}_test.py"{arguments})' for name in scripts]
        (build / "CTestTestfile.cmake").write_text("\n".join(lines), encoding="utf-8")
        (build / "compile_commands.json").write_text(json.dumps(entries), encoding="utf-8")
        (build / "CMakeCache.txt").write_text("JFORGE_CUDA:STRING=OFF\n", encoding="utf-8")
        done = subprocess.run([sys.executable, str(LINT), str(root), str(build)], capture_output=True, text=True,
                              check=False)
        return done.returncode, done.stdout + done.stderr


failures = 0
for arguments, code, expected in [
    ((["a", "b"], ["c"]), 0, "3 test sources, 3 tests"),
    ((["a"], ["c"]), 1, "tests/b_test.cpp: compiled into tests/b, which no test starts"),
    ((["a", "b"], []), 1, "tests/c_test.py: no test runs it"),
    ((["a", "b"], ["c"], ["x", "x"]), 1, "two tests called x"),
    ((["a", "b"], ["c"], None, ["--points", "3"]), 0, "3 test sources, 3 tests"),
    ((["a", "b"], ["c"], None, ["A", "B.test_z"]), 0, "3 test sources, 3 tests"),
    ((["a", "b"], ["c"], None, ["A.test_x", "B"]), 1, "tests/c_test.py: no test runs A.test_y"),
    ((["a", "b"], ["c"], None, ["A"]), 1, "tests/c_test.py: no test runs B.test_z"),
]:
    found, output = run(*arguments)
    if found != code or expected not in output:
        print(f"{arguments}: {found}, {output!r}")
        failures += 1
sys.exit(1 if failures else 0)
