#!/usr/bin/env python3
"""Checks that citations resolve: METHOD.md sections and invariants, rows of tests/FAULTS.md and the tests that it
names, links between Markdown pages; none may lead outside the tree. Prints a line per breach; exits 1 if there is any.
"""

import pathlib
import re
import subprocess
import sys

METHOD = "model/decoding/METHOD.md"
FAULTS = "tests/FAULTS.md"
SOURCES = (".cpp", ".h", ".cu", ".cuh", ".c", ".py", ".sh", ".toml", ".md", ".txt", ".cmake")
# Design notes outside the tree.
FOREIGN = re.compile(r"\b(algorithm|faults|performance|platform|compute_floor|architecture|style)\.md\b")
LINK = re.compile(r"\]\(([^)#\s]+)(?:#([\w-]+))?\)|\]\(#([\w-]+)\)")


def tracked(root):
    names = subprocess.run(["git", "-C", root, "ls-files"], capture_output=True, text=True).stdout.split("\n")
    if not any(names):  # an unpacked archive without a repository
        names = [p.relative_to(root).as_posix() for p in root.rglob("*") if p.is_file() and "build" not in p.parts]
    return [n for n in names if n.endswith(SOURCES) and (root / n).is_file()]


def anchors(text):
    """As on GitHub: lower case, blanks to hyphens, other signs dropped."""
    for heading in re.findall(r"^#+ (.*)$", text, re.M):
        yield re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def ranges(text):
    """"1, 2 and 12–15" → {1, 2, 12 … 15}."""
    for first, last in re.findall(r"(\d+)(?:\s*[–-]\s*(\d+))?", text):
        yield from range(int(first), int(last or first) + 1)


def check(root):
    method = (root / METHOD).read_text(encoding="utf-8")
    sections = set(re.findall(r"^#+ (\d+(?:\.\d+)?)\.? ", method, re.M))
    invariants = set(re.findall(r"^- (I\d+) ", method, re.M))
    faults = (root / FAULTS).read_text(encoding="utf-8")
    rows = set(re.findall(r"^\| (\d+) \|", faults, re.M))

    cases, functions = set(), set()
    texts = {name: (root / name).read_text(encoding="utf-8", errors="replace") for name in tracked(root)}
    for name, text in texts.items():
        if name.startswith("tests/"):
            cases.update(".".join(m) for m in re.findall(r"TEST(?:_F|_P)?\(\s*(\w+),\s*(\w+)\)", text))
            functions.update(re.findall(r"def (test_\w+)", text))
    for test in re.findall(r"`([\w.]+)`", faults):
        if test.startswith("test_") and test not in functions:
            yield f"{FAULTS}: no end-to-end test is called {test}"
        elif re.fullmatch(r"[A-Z]\w*\.[A-Z]\w*", test) and test not in cases:
            yield f"{FAULTS}: there is no test case {test}"

    for name, text in texts.items():
        if name.startswith("tests/lint/"):
            continue
        for number, line in enumerate(text.splitlines(), 1):
            where = f"{name}:{number}"
            for page in FOREIGN.findall(line):
                yield f"{where}: cites {page}.md, which is not part of the tree"
            if "METHOD.md" in line and name != METHOD:
                for section in re.findall(r"§(\d+(?:\.\d+)?)", line):
                    if section not in sections:
                        yield f"{where}: {METHOD} has no section {section}"
            if re.search(r"[Ii]nvariants? |METHOD\.md.*\bI\d|//.*\bI\d+$", line) and not name.endswith(".md"):
                for invariant in re.findall(r"\bI\d{1,2}\b", line):
                    if invariant not in invariants:
                        yield f"{where}: {METHOD} has no invariant {invariant}"
            for cited in re.findall(r"(?:FAULTS\.md rows?|\((?:faults?)) ((?:\d+[\s,–-]*)+)", line):
                for row in ranges(cited):
                    if str(row) not in rows:
                        yield f"{where}: {FAULTS} has no row {row}"
            if name.endswith(".md"):
                for target, anchor, own in LINK.findall(line):
                    if target.startswith(("http:", "https:")):
                        continue
                    page = (root / name).parent / target if target else root / name
                    if not page.exists():
                        yield f"{where}: link to {target}, which does not exist"
                    elif (anchor or own) and page.suffix == ".md":
                        if (anchor or own) not in set(anchors(page.read_text(encoding="utf-8"))):
                            yield f"{where}: {target or name} has no heading #{anchor or own}"


def main():
    breaches = list(check(pathlib.Path(sys.argv[1]).resolve()))
    for breach in breaches:
        print(breach)
    return 1 if breaches else 0


if __name__ == "__main__":
    sys.exit(main())
