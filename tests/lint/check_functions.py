#!/usr/bin/env python3
"""Finds functions of more than 100 lines, signature included, outside tests/. Prints a line for each; exits 1 if there is
any. In C++, CUDA and shell a function ends at a brace of its own, indented as the line that begins it."""

import ast
import pathlib
import re
import subprocess
import sys

MOST = 100
KERNEL = "its fragments are registers that all its stages share"
EXCEPTIONS = {name: KERNEL for name in ("attention_forward", "attention_query_gradient", "attention_key_gradient",
                                        "cached_attention")}
EXCEPTIONS |= {name: "its state must be locals of one function, out of reach of the program that it runs"
               for name in ("serve", "encode")}


def functions(name, text):
    """Yields (first line, number of lines, signature) of each function, and of other blocks in it."""
    if name.endswith(".py"):
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef):
                yield node.lineno, node.end_lineno - node.lineno + 1, node.name
        return
    lines = text.splitlines()
    for last, line in enumerate(lines):
        if end := re.fullmatch(r"( *)\}", line):
            begins = re.compile(end[1] + r"[^\s#}]")
            first = next((i for i in range(last - 1, -1, -1) if begins.match(lines[i])), last)
            opening = next((i for i in range(first, last) if lines[i].endswith("{")), first)
            yield first + 1, last - first + 1, " ".join(lines[first:opening + 1])


def breaches(name, text):
    for line, count, signature in functions(name, text):
        if count > MOST and EXCEPTIONS.keys().isdisjoint(re.findall(r"\w+", signature)):
            yield f"{name}:{line}: {count} lines, {MOST} at most: {signature.strip()[:80]}"


def main(root):
    listed = subprocess.run(["git", "-C", root, "ls-files"], capture_output=True, text=True, check=False)
    if listed.returncode != 0:
        print("no git history here: nothing is read")
        return 77
    found = [breach for name in listed.stdout.splitlines() if re.search(r"\.(cpp|h|cu|cuh|c|py|sh)$", name)
             if not name.startswith("tests/") and (root / name).is_file()
             for breach in breaches(name, (root / name).read_text(encoding="utf-8"))]
    print(*found, sep="\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(pathlib.Path(sys.argv[1])))
