#!/usr/bin/env python3
"""`jforge grade`: verdicts do not depend on rank count or interruptions; real completions get their published
verdicts."""

import gzip
import importlib.util
import json
import os
import pathlib
import subprocess
import sys
import unittest

from harness import SOURCE, EndToEndTest

DATA = pathlib.Path(os.environ.get("JFORGE_TEST_DATA", SOURCE.parent / "shared" / "data"))
PROBLEMS = 7

PROMPT = 'def add_{0}(a, b):\n    """Sum of a and b, and {0}."""\n'
TEST = "def check(candidate):\n    assert candidate(1, 2) == 3 + {0}\n    assert candidate(-1, 1) == {0}\n"
FORMS = [
    "    return a + b + {0}\n",                              # continues the prompt
    "def add_{0}(a, b):\n    return a + b + {0}\n",           # a whole program
    "    return a - b\n",                                     # wrong
    "    raise ValueError({0})\n",
    "    import os\n    os._exit(0)\n",
    "    print('pass')\n",
]
EXPECTED = ["pass", "pass", "fail", "fail", "fail", "fail"]


def write_lines(path, records):
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return path


class GradeTest(EndToEndTest):
    def setUp(self):
        self.problems = write_lines(self.root / "HumanEval.jsonl", [
            {"task_id": f"HumanEval/{index}", "prompt": PROMPT.format(index), "entry_point": f"add_{index}",
             "canonical_solution": FORMS[0].format(index), "test": TEST.format(index)} for index in range(PROBLEMS)])
        self.completions = write_lines(self.root / "completions.jsonl", [
            {"task_id": f"HumanEval/{index}", "completion": form.format(index)}
            for form in FORMS for index in range(PROBLEMS)])

    def grade(self, completions, out="verdicts.json", task="humaneval", data=None, options=(), **settings):
        result = self.jforge("grade", "--task", task, "--completions", completions, "--data", data or self.problems,
                             "--out", self.root / out, *options, **settings)
        return result, self.root / out


class Grade(GradeTest):
    def test_any_rank_count_writes_the_same_file(self):
        files = []
        for ranks in (1, 2, 4):
            _, out = self.grade(self.completions, f"verdicts-{ranks}.json", options=("--jobs", 2), ranks=ranks)
            files.append(out.read_bytes())
        self.assertEqual(files[0], files[1])
        self.assertEqual(files[0], files[2])
        verdicts = json.loads(files[0])
        self.assertEqual("humaneval", verdicts["task"])
        self.assertEqual(PROBLEMS, len(verdicts["eval"]))
        for index in range(PROBLEMS):
            entries = verdicts["eval"][f"HumanEval/{index}"]
            self.assertEqual(EXPECTED, [entry["base_status"] for entry in entries], entries)
            self.assertTrue(all(bool(entry["reason"]) == (entry["base_status"] == "fail") for entry in entries))
            self.assertNotIn("plus_status", entries[0])
        self.assertEqual(["base"], list(verdicts["pass@1"]))
        self.assertAlmostEqual(2 / 6, verdicts["pass@1"]["base"], places=12)

    def test_a_finished_grading_is_not_done_again(self):
        _, out = self.grade(self.completions, "finished.json")
        before = out.read_bytes(), out.stat().st_ino
        for ranks in (1, 2):
            again, _ = self.grade(self.completions, out.name, options=("--inject", "kill@grade.lease:0:1"), ranks=ranks)
            self.assertRegex(again.out, rf"^humaneval/\S+: all {len(FORMS) * PROBLEMS} completions were graded before.*\n$")
        self.assertEqual(before, (out.read_bytes(), out.stat().st_ino))
        out.write_bytes(before[0].replace(b'"fail"', b'"pass"', 1))
        again, _ = self.grade(self.completions, out.name)
        self.assertIn("everything is graded again", again.err)
        self.assertEqual(before[0], out.read_bytes())

    def test_forms_of_completions(self):
        solutions = [{"task_id": index if index % 2 else f"HumanEval/{index}", "solution": FORMS[1].format(index)}
                     for index in range(PROBLEMS)]
        path = self.root / "solutions.jsonl.gz"
        with gzip.open(path, "wt", encoding="utf-8") as file:
            file.write("".join(json.dumps(record) + "\n" for record in solutions))
        _, out = self.grade(path, "folder/solutions.json", ranks=2)
        self.assertEqual(1.0, json.loads(out.read_text())["pass@1"]["base"])

    def test_missing_problems_are_refused_unless_allowed(self):
        part = write_lines(self.root / "part.jsonl", [{"task_id": "HumanEval/3", "completion": FORMS[0].format(3)}])
        result, out = self.grade(part, "part.json", expect=3)
        self.assertIn(f"{PROBLEMS - 1} of {PROBLEMS} problems have no completion", result.lines()[0])
        self.assertFalse(out.exists())
        _, out = self.grade(part, "part.json", options=("--allow-missing",), ranks=2)
        self.assertEqual({"base": 1.0}, json.loads(out.read_text())["pass@1"])

    def test_bad_input_is_named(self):
        good = json.dumps({"task_id": "HumanEval/0", "completion": "    pass\n"})
        for line, words in (("{", "not a JSON object"), ("[1]", "not a JSON object"),
                            ('{"completion": "x"}', "no 'task_id'"),
                            ('{"task_id": "HumanEval/99", "completion": "x"}', "task 'humaneval' has no problem 'HumanEval/99'"),
                            ('{"task_id": "HumanEval/1", "completion": 3}', "no text 'completion'")):
            with self.subTest(line=line):
                path = self.root / "bad.jsonl"
                path.write_text(f"{good}\n{line}\n", encoding="utf-8")
                result, out = self.grade(path, "bad.json", expect=3)
                self.assertIn(f"{path}:2: ", result.lines()[0])
                self.assertIn(words, result.lines()[0])
                self.assertFalse(out.exists())
        self.grade(self.root / "absent.jsonl", expect=3, ranks=2)
        self.grade(self.completions, task="no-such-task", expect=2)
        self.grade(self.completions, data=self.root / "absent", expect=3)
        self.jforge("grade", "--task", "humaneval", expect=2)
        self.grade(self.completions, options=("--jobs", "0"), expect=2)
        self.grade(self.completions, out=".", expect=2)

    def test_problems_of_another_suite_are_refused(self):
        data = write_lines(self.root / "mbpp.jsonl", [
            {"task_id": 11, "text": "Add.", "code": "def f():\n    return 1\n", "test_setup_code": "",
             "test_list": ["assert f() == 1"]}])
        path = self.root / "answers.jsonl"
        write_lines(path, [{"task_id": "HumanEval/11", "solution": "def f():\n    return 1\n"}])
        result, _ = self.grade(path, "mbpp.json", task="mbpp", data=data, options=("--allow-missing",), expect=3)
        self.assertIn("task 'mbpp' has no problem 'HumanEval/11'", result.lines()[0])
        write_lines(path, [{"task_id": "Mbpp/11", "solution": "def f():\n    return 1\n"}])
        _, out = self.grade(path, "mbpp.json", task="mbpp", data=data)
        self.assertEqual(["11"], list(json.loads(out.read_text())["eval"]))

    def test_ranks_that_read_other_files_are_found(self):
        other = write_lines(self.root / "other.jsonl", [
            {"task_id": f"HumanEval/{index}", "completion": FORMS[0].format(index)} for index in range(PROBLEMS)])
        out = self.root / "ranks.json"
        words = ["grade", "--task", "humaneval", "--data", self.problems, "--out", out, "--completions"]
        command = self.command(*words, self.completions, ranks=2)
        command[command.index("2")] = "1"
        result = self.finish(self.start([*command, ":", "-n", "1", *self.command(*words, other)]))
        self.assertEqual(3, result.code, str(result))
        self.assertIn("rank 1", result.lines()[0])
        self.assertIn("other completions or benchmark files than rank 0", result.lines()[0])
        self.assertFalse(out.exists())

    def test_completions_are_taken_as_their_evaluations_take_them(self):
        prompt = ('from typing import List\n\n\ndef helper(v):\n    return v[0]\n\n\n'
                  'def first(v: List[int]) -> int:\n    """The first."""\n')
        data = write_lines(self.root / "typed.jsonl", [
            {"task_id": "HumanEval/0", "prompt": prompt, "entry_point": "first", "canonical_solution": "    return v[0]\n",
             "test": "def check(candidate):\n    assert candidate([3, 1]) == 3\n"}])
        whole = "def first(v: List[int]) -> int:\n    return helper(v)\n"
        rows = {  # completion: verdicts without a style, with lm-eval's and with evalchemy's
            "    return v[0]\n\n\n" + whole: ("pass", "pass", "pass"),
            whole: ("pass", "pass", "pass"),
            "    return v[0]\n\n\nprint(first('a', 3))\n": ("fail", "pass", "fail"),
            "Sure!\n\n  ```python\n  def first(v):\n      return v[0]\n  ```\n": ("fail", "fail", "pass"),
            "    print('\\ud800')\n    return v[0]\n": ("pass", "pass", "pass"),
            whole.replace("helper", "len"): ("fail", "fail", "fail")}
        path = write_lines(self.root / "rows.jsonl", [{"task_id": "HumanEval/0", "completion": text} for text in rows])
        for column, style in enumerate(("", ":lm-eval", ":evalchemy")):
            _, out = self.grade(path, f"rows-{column}.json", task="humaneval" + style, data=data)
            found = [one["base_status"] for one in json.loads(out.read_text())["eval"]["HumanEval/0"]]
            self.assertEqual([verdicts[column] for verdicts in rows.values()], found, style)
            if not style:
                reasons = [one["reason"] for one in json.loads(out.read_text())["eval"]["HumanEval/0"]]
                self.assertEqual("", reasons[1], "a whole program that passes")
                self.assertNotIn("; its", reasons[2])
                self.assertIn("; its program is in a block of text: --task humaneval:evalchemy takes it out", reasons[3])
                self.assertIn("; its `completion` defines first instead of continuing the prompt: give it as `solution`",
                              reasons[5])

    def test_a_style_grades_as_its_namesake(self):
        """Only evalchemy prepends imports; EvalPlus extracts the program."""
        body = "    return math.floor(a + b + {0})\n"
        text = "Sure, it's:\n```python\nimport math\n" + FORMS[1] + "```\nassert add_{0}(1, 2) == 0, 'no'\n"
        path = write_lines(self.root / "styles.jsonl", [
            record for index in range(PROBLEMS) for record in (
                {"task_id": f"HumanEval/{index}", "completion": body.format(index)},
                {"task_id": f"HumanEval/{index}", "solution": text.format(index)})])
        for style, verdicts in (("", ["fail", "fail"]), (":evalchemy", ["pass", "fail"]), (":lm-eval", ["fail", "fail"]),
                                (":evalplus", ["fail", "pass"])):
            with self.subTest(style=style):
                _, out = self.grade(path, "style.json", task=f"humaneval{style}", ranks=2)
                written = json.loads(out.read_text())
                self.assertIn(f"humaneval/{style[1:] or 'completion'}/", written["version"])
                for entries in written["eval"].values():
                    self.assertEqual(verdicts, [entry["base_status"] for entry in entries], entries)
        for task, words in (("humaneval:", "neither TASK nor TASK:STYLE"), ("humaneval:plain", "unknown prompt style 'plain'"),
                            ("gsm8k:evalchemy", "now called 'cot_boxed'"), ("math:lm-eval", "now called '4-shot'")):
            result, _ = self.grade(path, task=task, expect=2)
            self.assertIn(words, result.lines()[0])

    def test_tasks_that_run_no_code(self):
        path = write_lines(self.root / "answers.jsonl",
                           [{"task_id": "gsm8k/0", "completion": "The answer is 1."}])
        _, out = self.grade(path, "answers.json", task="gsm8k", data=self.prompts, options=("--allow-missing",))
        verdicts = json.loads(out.read_text())
        self.assertEqual(["gsm8k/0"], list(verdicts["eval"]))
        self.assertNotIn("rules", verdicts["eval"]["gsm8k/0"][0])
        self.assertIn(verdicts["eval"]["gsm8k/0"][0]["base_status"], ("pass", "fail"))

    def test_answers_are_judged_by_each_rule(self):
        data = write_lines(self.root / "math500.jsonl", [{"problem": "Half of one?", "answer": "\\frac{1}{2}"}])
        path = write_lines(self.root / "halves.jsonl", [
            {"task_id": "math500/0", "completion": f"\\boxed{{{answer}}}"} for answer in ("\\frac{1}{2}", "\\frac{3}{6}", "2")])
        _, out = self.grade(path, "halves.json", task="math500", data=data)
        entries = json.loads(out.read_text())["eval"]["math500/0"]
        self.assertEqual([("pass", True), ("fail", False), ("fail", False)],
                         [(entry["base_status"], entry["rules"]["minerva"]) for entry in entries], entries)
        self.assertEqual({"string", "minerva"}, set(entries[0]["rules"]))

        stand_in = self.root / "stand_in"  # Stand-in for Math-Verify: compares the values of fractions.
        stand_in.mkdir()
        if importlib.util.find_spec("math_verify") is None:
            (stand_in / "math_verify.py").write_text(
                "import re\n"
                "from fractions import Fraction\n"
                "def parse(text):\n"
                "    return Fraction(*map(int, re.findall(r'\\d+', text)))\n"
                "def verify(gold, answer):\n"
                "    return gold == answer\n")
        program = SOURCE / "launch" / "scripts" / "math_values.py"
        arguments = [sys.executable, "-B", str(program), "--data", str(data), "--verdicts", str(out)]
        environment = {**os.environ, "PYTHONPATH": str(stand_in)}
        result = subprocess.run([*arguments, str(path)], env=environment, capture_output=True, text=True)
        self.assertEqual(("2 of 3 answers are right by value (66.7 %)\n", ""), (result.stdout, result.stderr))
        again, _ = self.grade(path, out.name, task="math500", data=data)
        self.assertIn("all 3 completions were graded before", again.out)
        entries = json.loads(out.read_text())["eval"]["math500/0"]
        self.assertEqual([("pass", True), ("fail", True), ("fail", False)],
                         [(entry["base_status"], entry["rules"]["math_verify"]) for entry in entries], entries)
        fewer = write_lines(self.root / "fewer.jsonl", [{"task_id": "math500/0", "completion": "\\boxed{2}"}])
        before = out.read_bytes()
        result = subprocess.run([*arguments, str(fewer)], env=environment, capture_output=True, text=True)
        self.assertEqual(1, result.returncode)
        self.assertIn("its verdicts are on other completions than", result.stderr)
        self.assertEqual(before, out.read_bytes())


class GradeAgain(GradeTest):
    EVERYTHING = list(range(4 * PROBLEMS))

    def setUp(self):
        super().setUp()
        self.completions = write_lines(self.completions, [
            {"task_id": f"HumanEval/{index}", "completion": form.format(index)}
            for form in FORMS[:4] for index in range(PROBLEMS)])

    @staticmethod
    def parts(out):
        return sorted(pathlib.Path(f"{out}.parts").glob("*.part"))

    def kept(self, out):
        """Indices of the graded completions in the parts."""
        return sorted(json.loads(line)["index"] for path in self.parts(out)
                      for line in path.read_text(encoding="utf-8").rpartition("\n")[0].splitlines())

    def uninterrupted(self):
        out = self.root / "uninterrupted.json"
        if not out.exists():
            self.grade(self.completions, out.name, ranks=2)
            self.assertFalse(pathlib.Path(f"{out}.parts").exists())
        return out.read_bytes()

    def interrupt(self, fault, out, ranks=1, expect=None):
        result, out = self.grade(self.completions, out, options=("--inject", self.alone(fault, ranks)), ranks=ranks,
                                 expect=expect)
        self.assertIn(f"injected fault {fault} acts now", result.err, str(result))
        if expect is None:
            self.assertNotIn(result.code, (0, 75), str(result))
        self.assertFalse(out.exists())
        self.expect_no_processes()
        return result, out

    def expect_same(self, expected, out, ranks, before):
        """`before` verdicts are taken over; the parts are gone."""
        result, out = self.grade(self.completions, out.name, ranks=ranks)
        self.assertIn(f"{before} of {len(self.EVERYTHING)} completions graded before", result.err)
        self.assertEqual(expected, out.read_bytes())
        self.assertFalse(pathlib.Path(f"{out}.parts").exists())

    def test_a_killed_grading_goes_on(self):
        expected = self.uninterrupted()
        for ranks, rank, visit in ((1, 0, 9), (2, 1, 3)):
            with self.subTest(ranks=ranks):
                _, out = self.interrupt(f"kill@grade:{rank}:{visit}", f"killed-{ranks}.json", ranks)
                before = self.kept(out)
                self.assertGreaterEqual(len(before), visit)
                self.assertLess(len(before), len(self.EVERYTHING))
                # All completions are graded, but not published.
                result, out = self.interrupt("kill@publish.data:0:1", out.name, 3 - ranks)
                self.assertIn(f"{len(before)} of {len(self.EVERYTHING)} completions graded before", result.err)
                self.assertEqual(self.EVERYTHING, self.kept(out))
                self.expect_same(expected, out, ranks, len(self.EVERYTHING))

    def test_a_stop_keeps_what_is_graded(self):
        expected = self.uninterrupted()
        result, out = self.interrupt("interrupt@grade:1:2", "stopped.json", 2, expect=75)
        self.assertIn("every verdict so far is safe", result.err)
        before = self.kept(out)
        self.assertGreaterEqual(len(before), 2)
        self.assertLess(len(before), len(self.EVERYTHING))
        self.expect_same(expected, out, 1, len(before))

    def test_damaged_parts_cost_what_is_damaged(self):
        expected = self.uninterrupted()
        _, out = self.interrupt("kill@grade:0:8", "damaged.json")
        self.assertEqual(8, len(self.kept(out)))
        (part,) = self.parts(out)
        lines = part.read_bytes().splitlines(keepends=True)
        lines[2] = lines[2].replace(b'"verdict":"', b'"verdict":" ')
        part.write_bytes(b"".join(lines) + lines[0][:-9])
        self.expect_same(expected, out, 2, 7)

    def test_verdicts_on_other_completions_do_not_count(self):
        """One answer has changed, one is new."""
        other = [json.loads(line) for line in self.completions.read_text(encoding="utf-8").splitlines()]
        other[0]["completion"] = FORMS[2]
        other.append({"task_id": "HumanEval/0", "completion": FORMS[0].format(0)})
        _, out = self.interrupt("kill@grade:0:8", "other.json")
        before = [index for index in self.kept(out) if index != 0]
        self.completions = write_lines(self.completions, other)
        result, out = self.grade(self.completions, out.name)
        self.assertIn(f"{len(before)} of {len(other)} completions graded before", result.err)
        if len(before) < 8:
            self.assertIn(f"{8 - len(before)} verdicts are on other completions", result.err)
        verdicts = out.read_bytes()
        out.unlink()
        again, _ = self.grade(self.completions, out.name)
        self.assertIn(f"0 of {len(other)} completions graded before", again.err)
        self.assertEqual(verdicts, out.read_bytes())

    def test_two_jobs_do_not_share_a_file(self):
        self.expect_one_at_a_time("grade", "grade", "--task", "humaneval", "--completions", self.completions, "--data",
                                  self.problems, "--out", self.root / "shared.json")
        self.assertFalse((self.root / "shared.json.parts").exists())


class FrozenRank(GradeTest):
    def test_it_ends_the_job(self):
        """The default limit: grade reads no configuration."""
        result, out = self.grade(self.completions, options=("--inject", self.alone("stop@grade:1:1")), ranks=2,
                                 expect=70, timeout=150)
        self.assertIn("rank 1 is silent", result.err)
        self.assertFalse(out.exists())
        self.expect_no_processes()


@unittest.skipUnless((DATA / "qwen_outputs").is_dir(), f"no benchmark data under {DATA}")
class PublishedVerdicts(EndToEndTest):
    """Completions of Qwen2.5-Coder-7B with EvalPlus' verdicts."""

    EVERY = 1  # grades each EVERY-th completion

    def completions(self, path):
        if self.EVERY == 1:
            return path
        with gzip.open(path, "rt", encoding="utf-8") as file:
            lines = list(file)
        some = self.root / "some.jsonl"
        some.write_text("".join(lines[::self.EVERY]), encoding="utf-8")
        return some

    def check(self, benchmark, task, plus_key, known=()):
        """`known`: programs whose verdict may differ."""
        outputs = DATA / "qwen_outputs"
        stem = f"qwen2.5-coder-7b-base.{benchmark}"
        out = self.root / f"{benchmark}.json"
        completions = self.completions(outputs / f"{stem}.generated.jsonl.gz")
        self.jforge("grade", "--task", task, "--completions", completions, "--data", DATA, "--out", out,
                    *(["--allow-missing"] if self.EVERY > 1 else []), ranks=2,
                    timeout=3000)
        verdicts = json.loads(out.read_text(encoding="utf-8"))
        with gzip.open(outputs / f"{stem}.generated_eval_results.json.gz", "rt", encoding="utf-8") as file:
            published = json.load(file)["eval"]
        if self.EVERY > 1:
            self.assertEqual(-(-len(published) // self.EVERY), len(verdicts["eval"]))
            published = {name: published[name] for name in verdicts["eval"]}
        self.assertEqual(set(published), set(verdicts["eval"]))
        differing, passed = [], {"base": 0, "plus": 0}
        for name, (expected,) in published.items():
            (entry,) = verdicts["eval"][name]
            base = expected["base_status"] == "pass"
            plus = base and expected["plus_status"] == "pass"
            if name in known:
                entry = {"base_status": expected["base_status"], "plus_status": expected["plus_status"]}
            passed["base"] += entry["base_status"] == "pass"
            passed["plus"] += entry["base_status"] == entry["plus_status"] == "pass"
            if (base, plus) != (entry["base_status"] == "pass", entry["plus_status"] == "pass"):
                differing.append((name, expected["base_status"], expected["plus_status"], entry))
        self.assertEqual([], differing)
        if self.EVERY > 1:
            return
        result = json.loads((outputs / f"{stem}.result.json").read_text(encoding="utf-8"))
        self.assertEqual(result[benchmark]["pass@1"], round(100 * passed["base"] / len(published), 1))
        self.assertEqual(result[plus_key]["pass@1"], round(100 * passed["plus"] / len(published), 1))
        if not known:
            self.assertAlmostEqual(passed["base"] / len(published), verdicts["pass@1"]["base"], places=12)
            self.assertAlmostEqual(passed["plus"] / len(published), verdicts["pass@1"]["plus"], places=12)

    def test_humaneval(self):
        self.check("humaneval", "humaneval_plus", "humaneval+")

    def test_humaneval_in_the_style_of_evalplus(self):
        # Published completions are sanitized already.
        self.check("humaneval", "humaneval_plus:evalplus", "humaneval+")

    def test_mbpp(self):
        # Published as failed under a limit of one second (results/reference/published_verdicts.md).
        self.check("mbpp", "mbpp_plus@0.1.0", "mbpp+", known=("Mbpp/160", "Mbpp/392"))


class SomePublishedVerdicts(PublishedVerdicts):
    EVERY = 12


if __name__ == "__main__":
    unittest.main(verbosity=2)
