#!/usr/bin/env python3
"""The bundled small model: launch/quickstart/reproduce.sh makes it; through launch/configs/quickstart.toml, what the
README says of it holds, and a sweep on the result makes the complete report."""

import json
import re
import subprocess
import unittest

from harness import BINARY, SOURCE, EndToEndTest


class Quickstart(EndToEndTest):
    def test_becomes_a_parallel_decoder_and_stays_accurate(self):
        run = self.root / "quickstart"
        self.jforge("run", "launch/configs/quickstart.toml", "--set", f"run.directory={run}", ranks=2, timeout=3000,
                    cwd=SOURCE)
        models = json.loads((run / "evaluation" / "summary.json").read_text(encoding="utf-8"))["models"]
        base, final = (models[name]["word_problems"] for name in ("base", "final"))
        for model in (base, final):
            self.assertEqual(500, model["jacobi"]["n"])
            self.assertEqual(0, model["jacobi"]["disagreements_with_ar"])
            self.assertEqual(model["ar"]["accuracy"], model["jacobi"]["accuracy"])
        self.assertGreaterEqual(base["jacobi"]["accuracy"], 0.90)
        self.assertLessEqual(base["jacobi"]["tpf"], 1.5)
        # docs/results.md has 2.52, with other seeds 2.48 to 2.59. What could be lost (results/reference/ablations.md): without
        # consistency_decay four seeds have 2.31, and a second round brings 1.09 to 1.13 times on another task.
        self.assertGreaterEqual(final["jacobi"]["tpf"], 2.4)
        self.assertLessEqual(abs(final["jacobi"]["accuracy"] - base["jacobi"]["accuracy"]), 0.05)

        self.jforge("sweep", "launch/configs/sweep_quickstart.toml", "--model", run / "model", "--out", run,
                    "--name", "final", "--roofline", "--set", "evaluate.limit=20", ranks=2, timeout=1800, cwd=SOURCE)
        report = (run / "report.md").read_text(encoding="utf-8")
        shown = re.findall(r"!\[[^\]]*\]\(([^)]+)\)", report)
        for name in shown:
            self.assertIn("</svg>", (run / name).read_text(encoding="utf-8"), name)
        self.assertGreaterEqual(len(shown), 4, report)
        for part in ("Accuracy and speed", "Roofline", "block size", "loss"):
            self.assertIn(part.lower(), report.lower())


class Reproduce(EndToEndTest):
    def test_the_bundled_model_comes_from_seeds_byte_for_byte(self):
        made = self.root / "made"
        subprocess.run([SOURCE / "launch/quickstart/reproduce.sh", BINARY, made, self.root / "work"], check=True,
                       stdout=subprocess.DEVNULL, timeout=1500)
        bundled = SOURCE / "launch/quickstart"
        for name in ("prompts.jsonl.gz", "word_problems/*", "model/*"):
            originals = sorted(bundled.glob(name))
            self.assertTrue(originals, name)
            for original in originals:
                self.assertEqual(original.read_bytes(), (made / original.relative_to(bundled)).read_bytes(), original)
        self.assertEqual({path.name for path in (bundled / "model").iterdir()},
                         {path.name for path in (made / "model").iterdir()})


if __name__ == "__main__":
    unittest.main()
