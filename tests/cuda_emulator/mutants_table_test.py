#!/usr/bin/env python3
"""mutants.md has a row for each barrier and each copies' wait in the kernels of a program, by the PTX that it carries,
and none for another kernel; its totals are those of its rows."""

import collections
import os
import pathlib
import re
import sys
import unittest

import barrier_mutants

SOURCE = pathlib.Path(os.environ.get("JFORGE_SOURCE_DIR", pathlib.Path(__file__).resolve().parents[2]))
PROGRAM = pathlib.Path(os.environ.get("JFORGE_BINARY", SOURCE / "build/cuda-release/launch/jforge"))
sys.path.insert(0, str(SOURCE / "tests/gpu"))
import kernel_resources  # noqa: E402  (where it lies is known here only)

# As mutants.cpp tells them apart.
INSTRUCTIONS = {"b": r"\bbar(?:rier)?(?:\.cta)?\.sync\b", "w": r"\bbar\.warp\.sync\b", "c": r"\bcp\.async\.wait"}
TOTALS = r"\b(\d+) of (\d+) were noticed, (\d+) are idle, (\d+) were not noticed"


def sites_of_program(program):
    """{kernel: {"barrier 0", …}} of the kernels that have any."""
    found = collections.defaultdict(set)
    for kind, _, body in kernel_resources.images(program):
        if kind != kernel_resources.PTX:
            continue
        for mangled, text in kernel_resources.ptx_kernels(body).items():
            for letter, pattern in INSTRUCTIONS.items():
                sites = [f"{barrier_mutants.BARRIERS[letter]} {i}" for i in range(len(re.findall(pattern, text)))]
                if sites:
                    found[barrier_mutants.kernel_name(mangled)].update(sites)
    return found


def sites_of_page(page):
    found = collections.defaultdict(set)
    kinds = "|".join(barrier_mutants.BARRIERS.values())
    for kernel, site in re.findall(rf"^\| (.+), ((?:{kinds}) \d+) \| ", page, re.M):
        found[kernel].add(site)
    return found


def differences(page, program):
    """One line for each kernel that differs, from {kernel: sites} of either."""
    lines = []
    for kernel in sorted({*page, *program}):
        written, found = page.get(kernel, set()), program.get(kernel, set())
        if found - written:
            lines.append(f"{kernel}: in the program and not on the page: {', '.join(sorted(found - written))}")
        if written - found:
            lines.append(f"{kernel}: on the page and not in the program: {', '.join(sorted(written - found))}")
    return lines


def wrong_totals(page):
    """One line for each table, and for the whole page, that says other numbers than its rows."""
    lines, whole = [], collections.Counter()

    def compare(title, text, rows):
        said = [int(number) for number in re.search(TOTALS, text).groups()]
        noticed = rows.total() - rows["idle"] - rows["not noticed"]
        counted = [noticed, rows.total(), rows["idle"], rows["not noticed"]]
        if said != counted:
            lines.append(f"{title}: says {said} (noticed, of, idle, not noticed), its rows are {counted}")

    first, *parts = page.split("\n## ")
    for part in parts:
        rows = collections.Counter(re.findall(r"^\| .+ \| (.+) \|$", part.partition("| --- | --- |\n")[2], re.M))
        if rows:
            compare(part.partition("\n")[0], part, rows)
        whole += rows
    compare("the page", first, whole)
    return lines


class MutantsTable(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.page = (SOURCE / "tests/cuda_emulator/mutants.md").read_text(encoding="utf-8")
        cls.program = sites_of_program(PROGRAM.read_bytes())
        cls.kernel = min(cls.program)

    def found(self, page):
        return differences(sites_of_page(page), self.program) + wrong_totals(page)

    def test_has_a_row_for_each(self):
        found = self.found(self.page)
        if found:
            self.fail("\n" + "\n".join(found))

    def test_names_a_row_that_is_missing(self):
        row = rf"^\| {re.escape(self.kernel)}, barrier 1 \| .*\n"
        lines = "\n".join(self.found(re.sub(row, "", self.page, flags=re.M)))
        self.assertIn(f"{self.kernel}: in the program and not on the page: barrier 1\n", lines)
        self.assertIn("the page: says", lines)

    def test_names_a_kernel_that_is_gone(self):
        lines = self.found(self.page.replace(f"| {self.kernel}, ", "| Other, "))
        sites = ", ".join(sorted(self.program[self.kernel]))
        self.assertIn(f"Other: on the page and not in the program: {sites}", lines)
        self.assertIn(f"{self.kernel}: in the program and not on the page: {sites}", lines)


if __name__ == "__main__":
    unittest.main()
