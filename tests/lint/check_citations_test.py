#!/usr/bin/env python3
"""The citations lint finds each kind of breach and passes valid citations."""

import pathlib
import subprocess
import sys
import tempfile

LINT = pathlib.Path(__file__).with_name("check_citations.py")
GOOD = {
    "model/decoding/METHOD.md": "# The method\n\n## 1. First\n\n### 1.2 Part\n\n- I1 Holds.\n- I10 Too.\n",
    "tests/FAULTS.md": "| 1 | a fault | what happens | `Suite.Case`, `test_it` |\n| 12 | b | c | `Suite.Case` |\n",
    "tests/a_test.cpp": "TEST_F(Suite, Case) {}  // I10\n",
    "tests/a_test.py": "def test_it(self):\n",
    "runtime/a.h": "/// METHOD.md §1 and §1.2, invariants I1 and I10; tests/FAULTS.md row 12; (faults 1, 12)\n",
    "README.md": "[m](model/decoding/METHOD.md#1-first) [here](#title)\n\n# Title\n",
}
CASES = [
    ("runtime/b.h", "/// METHOD.md §3", "no section 3"),
    ("runtime/b.h", "/// (METHOD.md I2)", "no invariant I2"),
    ("runtime/b.h", "/// invariant I7", "no invariant I7"),
    ("tests/b_test.cpp", "TEST(A, B) {  // I3", "no invariant I3"),
    ("runtime/b.h", "/// tests/FAULTS.md row 2", "no row 2"),
    ("runtime/b.h", "// refused (faults 11 – 12).", "no row 11"),
    ("runtime/b.h", "/// see algorithm.md", "cites algorithm.md"),
    ("tests/FAULTS.md", "| 1 | a | b | `Suite.Gone` |", "no test case Suite.Gone"),
    ("tests/FAULTS.md", "| 1 | a | b | `test_gone` |", "is called test_gone"),
    ("README.md", "[a](gone.md)", "link to gone.md"),
    ("README.md", "[a](model/decoding/METHOD.md#gone)", "no heading #gone"),
    ("README.md", "[a](#gone)", "no heading #gone"),
]


def run(files):
    with tempfile.TemporaryDirectory() as root:
        for name, text in files.items():
            path = pathlib.Path(root) / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        done = subprocess.run([sys.executable, str(LINT), root], capture_output=True, text=True, check=False)
        return done.returncode, done.stdout


failures = 0
code, output = run(GOOD)
if code != 0:
    print(f"false alarm: {output}")
    failures += 1
for name, text, expected in CASES:
    code, output = run({**GOOD, name: GOOD.get(name, "") + text + "\n"})
    if code != 1 or expected not in output:
        print(f"missed: {name}: {text!r}: {output!r}")
        failures += 1
sys.exit(1 if failures else 0)
