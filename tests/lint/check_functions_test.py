#!/usr/bin/env python3
"""The lint of functions finds each form of a long one and passes short and excepted ones."""

import sys

from check_functions import MOST, breaches

C = "\n\nint f(int a,\n      int b) {{\n#if A\n{0}#endif\n}}\n".format
CASES = [
    ("a.cpp", C("  ++a;\n" * (MOST - 4)), "a.cpp:3: 101 lines, 100 at most: int f(int a,       int b) {"),
    ("a.cpp", C("  ++a;\n" * (MOST - 5)), None),
    ("a.h", "class A {\n  void f() {\n" + "    g();\n" * MOST + "  }\n};\n", "a.h:2: 102 lines"),
    ("a.h", "struct A {\n" + "  int a;\n" * MOST + "};\n", None),
    ("a.cu", "__global__ void\n    cached_attention() {\n" + "  g();\n" * MOST + "}\n", None),
    ("a.py", "class A:\n  def f():\n" + "    pass\n" * MOST, "a.py:2: 101 lines, 100 at most: f"),
    ("a.sh", "f() {\n" + "  g\n" * MOST + "}\n", "a.sh:1: 102 lines"),
]

failures = 0
for name, text, expected in CASES:
    found = "\n".join(breaches(name, text))
    if expected not in found if expected else found:
        print(f"{name}: expected {expected}, found {found!r}")
        failures += 1
sys.exit(1 if failures else 0)
