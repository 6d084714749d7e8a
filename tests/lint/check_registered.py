#!/usr/bin/env python3
"""check_registered.py ROOT BUILD: ctest runs every test source. A *_test.cpp must be compiled into a program of a ctest
entry, a *_test.py or *_test.sh must be in a ctest command, a command must select each case of a *_test.py, and test
names must be unique. Prints a line per breach; exits 1 if there is any."""

import ast
import json
import pathlib
import re
import subprocess
import sys
import tempfile

from run_clang_tidy import sources_of

# Checked only in a build with CUDA.
DEVICE_ONLY = ("tests/gpu/", "tests/cuda_emulator/", "tests/end_to_end/device_")


def registered(build):
    """Yields (name, command) of every test, including programs not yet built, which ctest does not list."""
    for listing in build.rglob("CTestTestfile.cmake"):
        for name, command in re.findall(r'^add_test\((?:\[=*\[)?(.*?)(?:\]=*\])? (".*")\)$',
                                        listing.read_text(encoding="utf-8"), re.M):
            yield name, re.findall(r'"([^"]*)"', command)


def target_of(output):
    """"tests/unit/a/CMakeFiles/NAME.dir/b_test.cpp.o" → "tests/unit/a", "NAME"."""
    match = re.search(r"(.*?)/?CMakeFiles/([^/]+)\.dir/", output)
    return match.groups() if match else None


def object_of(entry):
    return entry.get("output") or re.search(r"-o (\S+)", entry["command"]).group(1)


def cases(source):
    """Returns "Class.test_case" of every case."""
    tree = ast.parse(source.read_text(encoding="utf-8"))
    return {f"{node.name}.{method.name}" for node in tree.body if isinstance(node, ast.ClassDef)
            for method in node.body if isinstance(method, ast.FunctionDef) and method.name.startswith("test_")}


def left_out(source, commands):
    """Returns cases that no command selects. A command without a class or case runs all."""
    chosen = set()
    for command in commands:
        for at, part in enumerate(command):
            if part.startswith("/") and pathlib.Path(part).name == source.name:
                names = [a for a in command[at + 1:] if re.fullmatch(r"[A-Z]\w*(\.test_\w+)?", a)]
                if not names:
                    return set()
                chosen.update(names)
    return {case for case in cases(source) if not {case, case.partition(".")[0]} & chosen}


def main():
    root, build = (pathlib.Path(a).resolve() for a in sys.argv[1:3])
    tests = list(registered(build))
    commands = [part for _, command in tests for part in command]
    programs = {pathlib.Path(c) for c in commands if c.startswith("/")}
    started = {p.relative_to(build).as_posix() for p in programs if p.is_relative_to(build)}
    cuda = "JFORGE_CUDA:STRING=ON" in (build / "CMakeCache.txt").read_text(encoding="utf-8")

    breaches = []
    # In another directory, because ctest would empty the log of the running tests.
    with tempfile.TemporaryDirectory() as elsewhere:
        pathlib.Path(elsewhere, "CTestTestfile.cmake").write_text(f'subdirs("{build}")\n', encoding="utf-8")
        shown = subprocess.run(["ctest", "-N"], cwd=elsewhere, capture_output=True, text=True, check=True).stdout
    count = int(re.search(r"Total Tests: (\d+)", shown).group(1))
    if count != len(tests):
        breaches.append(f"ctest -N lists {count} tests, the build's files {len(tests)}")
    names = [name for name, _ in tests]
    for name in sorted({n for n in names if names.count(n) > 1}):
        breaches.append(f"ctest knows two tests called {name}")

    targets = {}
    for entry in json.loads((build / "compile_commands.json").read_text(encoding="utf-8")):
        for path in sources_of(pathlib.Path(entry["file"]).resolve()):
            if path.is_relative_to(root):
                targets.setdefault(path.relative_to(root).as_posix(), set()).add(target_of(object_of(entry)))
    scripts = {pathlib.Path(c).name for c in commands if c.endswith((".py", ".sh"))}
    sources = 0
    for source in sorted((root / "tests").rglob("*_test.*")):
        name = source.relative_to(root).as_posix()
        if source.suffix == ".cpp":
            sources += 1
            found = {f"{folder}/{target}" for folder, target in targets.get(name, set())}
            if not found and not (name.startswith(DEVICE_ONLY) and not cuda):
                breaches.append(f"{name}: no CMakeLists.txt compiles it")
            elif found and not found & started:
                breaches.append(f"{name}: compiled into {', '.join(sorted(found))}, which no test starts")
        elif source.suffix in (".py", ".sh"):
            sources += 1
            if source.name not in scripts and not (name.startswith(DEVICE_ONLY) and not cuda):
                breaches.append(f"{name}: no test runs it")
            elif source.suffix == ".py" and source.name in scripts:
                breaches += [f"{name}: no test runs {case}" for case in sorted(left_out(source, [c for _, c in tests]))]
    for breach in breaches:
        print(breach)
    if not breaches:
        print(f"{sources} test sources, {len(tests)} tests")
    return 1 if breaches else 0


if __name__ == "__main__":
    sys.exit(main())
