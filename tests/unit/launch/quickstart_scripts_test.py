#!/usr/bin/env python3
"""The quickstart's generators: equal input gives equal files, the sets are disjoint, the sums are right. Environment:
JFORGE_SOURCE_DIR (root of the tree); ctest sets it.
"""

import gzip
import json
import math
import os
import pathlib
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import unittest

SOURCE = pathlib.Path(os.environ.get("JFORGE_SOURCE_DIR", pathlib.Path(__file__).resolve().parents[3]))
QUICKSTART = SOURCE / "launch" / "quickstart"
sys.path.insert(0, str(QUICKSTART))
sys.path.insert(0, str(SOURCE / "tests" / "benchmarks"))
import make_ledger as drawn  # noqa: E402
import study_real  # noqa: E402

PARTS = ("train", "prompts", "validation", "test")
DRAWN = [*drawn.BOYS, *drawn.GIRLS, *drawn.THINGS, *drawn.PLACES, *drawn.DAYS,
         *(word for pair in drawn.CONTAINERS for word in pair)]
DRAWN_WORD = re.compile(r"\b(?:%s)\b" % "|".join(sorted(map(re.escape, DRAWN), key=len, reverse=True)))
STEP = re.compile(r"(\d+) ([-+*/]) (\d+) = (\d+)")


class ScriptTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.root = pathlib.Path(tempfile.mkdtemp(prefix="jforge-quickstart-"))
        cls.addClassCleanup(shutil.rmtree, cls.root, True)

    def script(self, name, *words, expect=0):
        result = subprocess.run([sys.executable, "-B", QUICKSTART / name, *map(str, words)], check=False,
                                capture_output=True, text=True, timeout=1100)
        if expect == 0:
            self.assertEqual(0, result.returncode, result.stderr)
        else:
            self.assertNotEqual(0, result.returncode, result.stdout)
        return result

    def problems(self, name, *words, train=300, prompts=300, validation=60, test=60, seed=7):
        """Made once for each name."""
        folder = self.root / name
        if not folder.exists():
            self.script("make_ledger.py", "--out", folder, "--train", train, "--prompts", prompts, "--validation",
                        validation, "--test", test, "--seed", seed, *words)
        return folder

    @staticmethod
    def read(path):
        with gzip.open(path, "rt", encoding="utf-8") as stream:
            return [json.loads(line) for line in stream]


class Ledger(ScriptTest):
    LINE = re.compile(r"^(.+): (?:(\d+) \* (\d+) = (\d+), )?(\d+) ([-+]) (\d+) = (\d+)\.$")

    def ledger(self, name, *words, **sizes):
        folder = self.problems(f"ledger-{name}", *words, **sizes)
        return {part: self.read(folder / ("ledger" if part == "test" else "") / f"{part}.jsonl.gz") for part in PARTS}

    def lines(self, problem):
        return problem["answer"].split("\n")[1:-1]

    def test_the_seed_alone_decides_and_a_larger_set_begins_with_the_smaller(self):
        first, again, other = self.ledger("a"), self.ledger("again", train=400), self.ledger("other", seed=8)
        for part in PARTS:
            self.assertEqual(first[part], again[part][:len(first[part])], part)
            self.assertNotEqual(first[part], other[part], part)

    def test_every_line_goes_on_from_the_one_before(self):
        for part, problems in self.ledger("a").items():
            for problem in problems:
                total = int(re.fullmatch(r".*: (\d+)\.", problem["answer"].split("\n")[0])[1])
                self.assertIn(str(total), problem["question"])
                self.assertTrue(10 <= len(self.lines(problem)) <= 20, problem)
                for line in self.lines(problem):
                    _, count, each, amount, before, sign, change, after = self.LINE.match(line).groups()
                    self.assertEqual(total, int(before), line)
                    if count is not None:
                        self.assertEqual((int(count) * int(each), change), (int(amount), amount), line)
                    total += int(sign + change)
                    self.assertEqual(total, int(after), line)
                    self.assertGreater(total, 0, line)
                self.assertTrue(problem["answer"].endswith(f"\n#### {total}"), part)

    def test_no_held_out_sequence_of_lines_is_trained_on(self):
        """Nor are a whole answer's sums; and questions are unique."""
        # Short enough for sequences to repeat by chance.
        sets = self.ledger("short", "--fewest", 4, "--most", 4, train=6000, prompts=6000, validation=500, test=500)
        shapes = {part: {re.sub(r"\d+", "0", DRAWN_WORD.sub("_", problem["answer"])) for problem in sets[part]}
                  for part in PARTS}
        lines = {line for shape in shapes["train"] for line in shape.split("\n")[1:-1]}
        self.assertEqual(20, len(lines), f"something drawn is left in the lines: {lines}")
        for part in ("test", "validation"):
            self.assertFalse(shapes[part] & (shapes["train"] | shapes["prompts"]), part)
        sums = {part: {tuple(STEP.findall(problem["answer"])) for problem in sets[part]} for part in PARTS}
        self.assertFalse((sums["test"] | sums["validation"]) & (sums["train"] | sums["prompts"]))
        questions = [problem["question"] for part in sets.values() for problem in part]
        self.assertEqual(len(questions), len(set(questions)))

    def test_the_committed_sets_are_what_the_script_writes(self):
        made = self.ledger("bundled", "--fewest", 6, "--most", 9, prompts=2000, test=500)
        for part, committed in (("prompts", "prompts.jsonl.gz"), ("test", "ledger/test.jsonl.gz")):
            self.assertEqual(made[part], self.read(QUICKSTART / committed), part)

    def test_a_size_of_0_leaves_a_file_out(self):
        folder = self.problems("no-train", train=0, validation=0)
        self.assertEqual({"prompts.jsonl.gz", "ledger"}, {path.name for path in folder.iterdir()})

    def test_bad_sizes_are_refused(self):
        for words in (("--train", -1), ("--fewest", 3), ("--fewest", 9, "--most", 8)):
            self.script("make_ledger.py", "--out", self.root / "none", *words, expect=2)


class RealPrompts(ScriptTest):
    """tests/benchmarks/real_prompts.py on a few records."""

    TESTED = "Tom has seven red hats and gives two of them to his sister Anna on Sunday. How many are left?"

    def put(self, name, records):
        path = self.root / "real" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        text = "".join(json.dumps(record) + "\n" for record in records)
        if name.endswith(".gz"):
            path.write_bytes(gzip.compress(text.encode()))
        else:
            path.write_text(text if name.endswith(".jsonl") else json.dumps(records), encoding="utf-8")

    def test_no_test_problem_is_among_the_prompts(self):
        self.put("gsm8k/test.jsonl", [{"question": self.TESTED, "answer": "#### 5"}])
        self.put("gsm8k/train.jsonl.gz", [{"question": question, "answer": "#### 1"} for question in (
            "A quite different question?", "So: " + self.TESTED.upper().replace(" ", "\n * ") + " Say it.",
            "Tom has seven red hats and gives two of them to his sister Anna, no more.", "Tom has seven red hats.")])
        self.put("math/test.jsonl.gz", [{"problem": "$1 + 1 = $"}])
        self.put("humaneval/HumanEval.jsonl.gz", [
            {"prompt": 'import math\n\ndef turn(s):\n    """Turn the text around, letter by letter.\n    >>> turn("ab")\n    """\n'}])
        self.put("mbpp/MbppPlus.jsonl.gz", [{"task_id": "Mbpp/700"}])
        self.put("mbpp/sanitized-mbpp.json", [{"task_id": 12, "prompt": "Write a function to sort a list of lists."}])
        self.put("mbpp/mbpp.jsonl", [{"task_id": number, "text": f"Write a function to {what}."} for number, what in
                                     ((12, "sort a list of lists"), (700, "count the words"), (800, "cube a number"))])
        self.put("prompts/Code.jsonl.gz", [{"query": "Turn the text around,\n# letter by letter!", "prompt": "import x"},
                                           {"query": "Find the shortest path.", "prompt": "import x"}])
        self.put("prompts/mbxp/a.jsonl.gz", [
            {"task_id": f"MBJP/{number}", "language": "java", "prompt": f"// Write a java function to {what}."} for number, what in
            ((900, "sort a list of lists"), (700, "do something"), (800, "cube a number"))])
        out = self.root / "real-prompts"
        result = subprocess.run([sys.executable, "-B", SOURCE / "tests/benchmarks/real_prompts.py", "--data",
                                 self.root / "real", "--out", out, "--window", "13"], check=True, capture_output=True, text=True)
        self.assertEqual(["A quite different question?", "Tom has seven red hats."],
                         [record["question"] for record in self.read(out / "gsm8k.jsonl.gz")])
        self.assertEqual(["Find the shortest path.",
                          "Complete this java program:\n\n// Write a java function to cube a number."],
                         [record["question"] for record in self.read(out / "code.jsonl.gz")])
        self.assertIn("2 prompts, 2 left out", result.stdout)


class StudyReal(ScriptTest):
    """tests/benchmarks/study_real.py: its measures, and a page."""

    def test_accuracy_under_parallelism(self):
        score = study_real.accuracy_under_parallelism
        self.assertAlmostEqual(80, score([(1, 80)], 80))
        # Without loss it is the plain area.
        self.assertAlmostEqual(80 * 4, score([(4, 80), (1, 80), (2, 80)], 80))
        self.assertAlmostEqual(80 + 80 * math.exp(-3 * 0.2), score([(1, 80), (2, 80)], 100))
        self.assertAlmostEqual(80 + 0.5 * (80 + 76 * math.exp(-3 * 0.05)), score([(1, 80), (2, 76)], 80))
        self.assertAlmostEqual(80 * 2, score([(1, 80), (2, 80), (9, 74)], 80))
        self.assertEqual(0, score([(1, 0), (2, 0)], 0))

    def test_repetition(self):
        self.assertEqual(0, study_real.repetition("a b c"))
        self.assertEqual(0, study_real.repetition("one two three four five six"))
        self.assertAlmostEqual(1 - 2 / 6, study_real.repetition("x y x y x y x y x"))

    def test_paired_interval(self):
        # Mean 0.1, standard deviation 1: half of 95 % is 1.96 / 20.
        shared = [10.0 * math.sin(i) for i in range(400)]
        others = [value + (1.1 if i % 2 else -0.9) for i, value in enumerate(shared)]
        low, high = study_real.paired_interval(statistics.mean, others, shared)
        self.assertAlmostEqual(0.1 - 1.96 / 20, low, delta=0.01)
        self.assertAlmostEqual(0.1 + 1.96 / 20, high, delta=0.01)
        self.assertEqual((0, 0), study_real.paired_interval(statistics.mean, shared, shared))

    def test_titles(self):
        self.assertEqual("clean mask, random schedule", study_real.title("cllm"))
        self.assertEqual("clean mask, random schedule, 50 % of the way from the base", study_real.title("cllm@0.5"))

    def test_page(self):
        work = self.root / "study-real"

        def put(path, text):
            (work / path).parent.mkdir(parents=True, exist_ok=True)
            (work / path).write_text(text, encoding="utf-8")

        def figures(accuracy, tpf, **more):
            return {"accuracy": accuracy, "accuracy_low": accuracy / 2, "accuracy_high": 1, "tpf": tpf, "tpf_low": tpf - 0.1,
                    "tpf_high": tpf + 0.1, "scorer": "ledger/number/extract-3", "n": 2, **more}

        put("data/ledger/test.jsonl", "".join(json.dumps({"question": f"q{i}", "answer": "#### 1"}) + "\n" for i in range(2)))
        page = SOURCE / "tests/benchmarks/study_real.py"
        for arm, tpf, texts in (("base", 1.1, ("a b c d e", "same")), ("sft", 3, ("a b a b a b a b", "same"))):
            for method in ("jacobi", "mr"):
                speed = [{"batch_prompts": 4, "tokens_per_second": 50.0, "speed_up": 1.5, "speed_up_low": 1.4,
                          "speed_up_high": 1.6, "remark": "a busy machine"}]
                put(f"evaluation/{arm}/{method}.json", json.dumps(
                    {"task": "ledger", "baseline": figures(0.8, 1),
                     "points": [{"settings": {"block_size": 64}, **figures(0.8, tpf, speed=speed)}]}))
            put(f"evaluation/{arm}/sweep/{arm}/ledger.ar.jsonl", "".join(json.dumps(
                {"index": i, "text": text, "stop": ("eos", "length")[i]}) + "\n" for i, text in enumerate(texts)))
            answers = work / f"evaluation/{arm}/answers.jsonl"
            subprocess.run([sys.executable, "-B", page, "answers", "--task", "ledger", "--data", work / "data", "--evaluation",
                            work / "evaluation" / arm, "--model", arm, "--out", answers], check=True)
            self.assertEqual([("q0", texts[0]), ("q1", texts[1])], [
                (one["question"], one["answer"]) for one in map(json.loads, answers.read_text("utf-8").splitlines())])
            # Without an end of sequence, the last value does not count.
            put(f"evaluation/{arm}/likelihood.jsonl", "".join(json.dumps({"log_probabilities": values}) + "\n" for values in (
                [-1, -2 if arm == "base" else -3], [-1, -2, -50])))
        put("seconds/finetune", "12\n")
        out = subprocess.run([sys.executable, "-B", page, "page", "--task", "ledger", "--work", work, "--arms", "sft",
                              "--command", "the command"], check=True, capture_output=True, text=True).stdout
        self.assertIn("`the command`", out)
        self.assertIn("| SFT (consistency weight 0) | jacobi | 64 | 80.0 % | 40.0–100.0 % | 3.00 | 2.90–3.10 | 50.0 | "
                      "1.50× (1.40–1.60) |", out)
        self.assertIn("| tokens/s, batch 4 | over AR |", out)
        self.assertIn("**Speeds at batch 4 mean little: a busy machine.**", out)
        self.assertIn("| SFT (consistency weight 0) | mr | 240.0 |", out)
        self.assertIn("| base | -1.5000 | – | 100.0 % | 0.0 % | – |", out)
        self.assertIn("| SFT (consistency weight 0) | -1.7500 | -0.2500 (-0.5000 to +0.0000) | 50.0 % | 30.0 % | "
                      "+30.0 (+0.0 to +60.0) |", out)
        self.assertIn("| finetune | 12 |", out)


    def test_ablations(self):
        work = self.root / "ablations"

        def put(name, accuracy, tpf):
            (work / "evaluation" / name).mkdir(parents=True)
            for method in ("jacobi", "mr"):
                (work / "evaluation" / name / f"{method}.json").write_text(json.dumps(
                    {"baseline": {"accuracy": accuracy, "tpf": 1.0},
                     "points": [{"settings": {"block_size": 16}, "accuracy": accuracy, "tpf": tpf}]}), encoding="utf-8")

        put("base", 0.96, 1.1)
        for seed in (1, 2):
            put(f"noise-linear@240.{seed}", 0.90, 2.0)
            put(f"clean-random@240.{seed}", 0.91, 4.0)
            put(f"mixed-random@240.{seed}", 0.91 + seed / 100, 2.0 * seed)
        (work / "seconds").mkdir()
        (work / "seconds" / "base").write_text("7\n", encoding="utf-8")
        out = subprocess.run([sys.executable, "-B", SOURCE / "tests/benchmarks/study_real.py", "ablations", "--work", work,
                              "--command", "the command"], check=True, capture_output=True, text=True).stdout
        self.assertNotIn("{", out)
        self.assertIn("the arm's tokens per forward over noise-linear's", out)
        self.assertIn("y_max = 96 %", out)
        self.assertIn("| clean-random | 240 | 2 | 91.0 ± 0.0 | 4.00 ± 0.00 |", out)
        self.assertIn("| clean-random | 240 | 2 | +1.0 | 2.00", out)  # Equal differences of two seeds give no interval.
        self.assertIn("| mixed-random | 240 | 2 | +2.5 ± 6.4 | 1.41", out)


class Tokenizer(ScriptTest):
    def tokenizer(self, name, size=300):
        folder = self.root / f"tokenizer-{name}-{size}"
        if not folder.exists():
            self.script("make_tokenizer.py", "--data", self.problems("a") / "train.jsonl.gz", "--out", folder,
                        "--vocab-size", size)
        return folder

    def test_equal_text_gives_equal_files(self):
        first, second = self.tokenizer("first"), self.tokenizer("second")
        names = sorted(path.name for path in first.iterdir())
        self.assertEqual(["merges.txt", "tokenizer.json", "tokenizer_config.json", "vocab.json"], names)
        for name in names:
            self.assertEqual((first / name).read_bytes(), (second / name).read_bytes(), name)

    def test_both_forms_describe_one_vocabulary(self):
        folder = self.tokenizer("first")
        tokenizer = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
        vocabulary = json.loads((folder / "vocab.json").read_text(encoding="utf-8"))
        merges = (folder / "merges.txt").read_text(encoding="utf-8").splitlines()[1:]
        self.assertEqual(tokenizer["model"]["vocab"], vocabulary)
        self.assertEqual(tokenizer["model"]["merges"], merges)
        self.assertEqual(sorted(vocabulary.values()), list(range(297)))
        specials = {token["content"]: token["id"] for token in tokenizer["added_tokens"]}
        self.assertEqual({"<|endoftext|>": 297, "<|im_start|>": 298, "<|im_end|>": 299}, specials)
        known = {token for token in vocabulary if len(token) == 1}
        self.assertEqual(256, len(known))
        for merge in merges:  # in order: a merge joins existing tokens
            left, right = merge.split(" ")
            self.assertIn(left, known)
            self.assertIn(right, known)
            self.assertIn(left + right, vocabulary)
            known.add(left + right)

    def test_a_larger_vocabulary_continues_a_smaller_one(self):
        small = (self.tokenizer("first", 300) / "merges.txt").read_text(encoding="utf-8").splitlines()
        large = (self.tokenizer("first", 340) / "merges.txt").read_text(encoding="utf-8").splitlines()
        self.assertEqual(small, large[:len(small)])

    def test_bad_input_is_named(self):
        bad = self.root / "bad.jsonl"
        bad.write_text('{"question": "a", "answer": "b"}\n{"question": "a"}\n', encoding="utf-8")
        result = self.script("make_tokenizer.py", "--data", bad, "--out", self.root / "bad", expect=1)
        self.assertIn("bad.jsonl:2", result.stderr)
        result = self.script("make_tokenizer.py", "--data", self.problems("a") / "prompts.jsonl.gz", "--out",
                             self.root / "bad", "--vocab-size", 100, expect=2)
        self.assertIn("--vocab-size", result.stderr)


if __name__ == "__main__":
    unittest.main(verbosity=2)
