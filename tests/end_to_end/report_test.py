#!/usr/bin/env python3
"""A whole report by one command, and a comparison of two runs."""

import csv
import json
import re
import unittest
import xml.etree.ElementTree as ElementTree

from harness import EndToEndTest

SWEEP = """
[evaluate]
tasks = ["gsm8k"]
data = "{prompts}"
prompt_style = "plain"
max_new_tokens = 12
limit = 3
[sweep]
block_size = [2, 4, 8]
"""


class Report(EndToEndTest):
    evaluate = True

    def check_report(self, directory, parts, figures):
        report = (directory / "report.md").read_text(encoding="utf-8")
        for line in report.splitlines():
            self.assertTrue(not line.startswith("|") or len(line) <= 100, line)
        for part in parts:
            self.assertIn(part, report)
        shown = re.findall(r"\]\(figures/(\w+)\.svg\)", report)
        self.assertEqual(len(shown), len(set(shown)), "a figure is shown twice")
        for name in figures:
            self.assertIn(name, shown)
        for name in shown:
            root = ElementTree.parse(directory / "figures" / f"{name}.svg").getroot()
            self.assertTrue(root.tag.endswith("svg"), name)
        return report

    def test_a_sweep_gives_the_whole_report(self):
        config, _ = self.config("sweep", SWEEP)
        out = self.root / "swept"
        words = ("sweep", config, "--model", self.model, "--out", out, "--name", "tiny")
        result = self.jforge(*words, ranks=2)
        self.assertIn(str(out / "report.md"), result.out)
        self.assertEqual(2, len(re.findall(r"^\| 8 ", result.out, re.MULTILINE)), "a table cut in two")
        report = self.check_report(out, ["## Decoding settings", "Fastest by the clock at batch 1:",
                                         "## Not in this report"],
                                   ["tpf_block_size", "sweep_speed_gsm8k_jacobi"])
        self.assertEqual(2, len(re.findall(r"^\| AR ", report, re.MULTILINE)))
        self.assertEqual(3, len(re.findall(r"\| 0    \|$", report, re.MULTILINE)), "every block size gives greedy decoding's tokens")

    def test_a_run_is_compared_with_another(self):
        first = self.uninterrupted()
        self.check_report(first, ["## Accuracy and speed", "## Training", "## Trajectories", "## Prompts", "## Run",
                                  "no sweep in this run"], ["tpf", "accuracy", "speed", "loss_consistency"])
        summary = json.loads((first / "evaluation" / "summary.json").read_text(encoding="utf-8"))["models"]
        with open(first / "evaluation" / "results.csv", newline="", encoding="utf-8") as file:
            rows = {(row["model"], row["task"], row["method"]): row for row in csv.DictReader(file, strict=True)}
        self.assertEqual({(model, task, method) for model in summary for task in summary[model] for method in summary[model][task]},
                         set(rows))
        for (model, task, method), row in rows.items():
            self.assertEqual(summary[model][task][method]["tpf"], float(row["tpf"]))
        same = self.jforge("inspect", first, first).out
        self.assertIn("Both have the same configuration", same)
        self.assertIn("within chance", same)
        self.assertIn("## Verdicts that differ\n\nNone.", same)
        config, second = self.config("other")
        self.jforge("run", config, "--set", "rounds.2.steps=3", ranks=2)
        other = self.jforge("inspect", first, second).out
        self.assertRegex(other, r"rounds\.2\.steps\W+(A: )?5\W+(B: )?3\b")
        self.assertRegex(other, r"\| final \| gsm8k \| jacobi ")
        self.assertIn("rounds.2.steps", self.jforge("inspect", first / "evaluation", second).out)

    def test_what_is_no_run_is_refused(self):
        for path in (self.model, self.root / "absent"):
            result = self.jforge("inspect", self.uninterrupted(), path, expect=3)
            self.assertEqual(1, len(result.lines()), str(result))
            self.assertIn(f"{path} is neither run nor evaluation", result.lines()[0])


if __name__ == "__main__":
    unittest.main(verbosity=2)
