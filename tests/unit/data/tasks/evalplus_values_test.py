#!/usr/bin/env python3
"""data/tasks/code/evalplus_call.py and evalplus_oracle.py: as in EvalPlus' two releases."""

import json
import pathlib
import sys
import unittest

sys.dont_write_bytecode = True
FOLDER = pathlib.Path(__file__).resolve().parents[4] / "data/tasks/code"
sys.path.insert(0, str(FOLDER))

import evalplus_oracle  # noqa: E402

NAN, INF = {"float": "nan"}, {"float": "inf"}


def number(x):
    return {"int": str(x)} if isinstance(x, int) else {"float": repr(x)}


def caller(task, function):
    names = {"function": function, "task": task}
    exec((FOLDER / "evalplus_call.py").read_text(), names)
    return names["call"]


def arguments(task, text):
    return caller(task, lambda *given: list(given))(text)


def accepts(out, expected, name="f", inputs="[]", atol=0, suite="mbpp"):
    """Returns the verdicts of releases 0.2.1 and 0.3.1."""
    verdicts = []
    for later in (False, True):
        evalplus_oracle.oracle = evalplus_oracle.Oracle(suite, later, name, atol)
        verdicts.append(evalplus_oracle.judge(json.dumps(out), json.dumps(expected), inputs))
    return tuple(verdicts)


class Calls(unittest.TestCase):
    def test_arguments_are_what_the_problem_takes(self):
        for task, text, expected in (
                ("HumanEval/2", "[[1], \"a\"]", [[1], "a"]), ("HumanEval/2", "[]", []), ("Mbpp/4", "[[1]]", [[1]]),
                ("Mbpp/2", "[[1], [2]]", [(1,), (2,)]), ("Mbpp/2", "[]", []), ("Mbpp/63", "[[[1]]]", [[(1,)]]),
                ("Mbpp/75", "[[[1]], [2]]", [[(1,)], [2]]), ("Mbpp/106", "[[1], [2]]", [[1], (2,)]),
                ("Mbpp/115", "[[[1], [], {}]]", [[{1}, {}, {}]]), ("Mbpp/124", "[\"1\", \"1j\"]", [1.0, 1j]),
                ("Mbpp/252", "[\"2+1j\"]", [2 + 1j]), ("Mbpp/259", "[[[1]], [[2]]]", [((1,),), ((2,),)]),
                ("Mbpp/278", "[[1, [2]]]", [(1, (2,))]), ("Mbpp/307", "[[1], 2, [3]]", [(1,), 2, [3]]),
                ("Mbpp/580", "[[1, [2, []]]]", [(1, (2, ()))]),
                ("Mbpp/722", "[{\"a\": [1]}, 2.5, 3]", [{"a": (1,)}, 2.5, 3]),
                ("HumanEval/2", f"[{'9' * 5000}]", [10 ** 5000 - 1])):
            with self.subTest(task=task, text=text[:40]):
                self.assertEqual(repr(expected) if len(text) < 99 else expected,
                                 repr(arguments(task, text)) if len(text) < 99 else arguments(task, text))
        for task, text in (("Mbpp/106", "[[1]]"), ("Mbpp/4", "3"), ("Mbpp/4", "[")):
            self.assertRaises((TypeError, ValueError), arguments, task, text)

    def test_a_value_of_many_parts_is_a_digest(self):
        values = [[(i, "x", [n]) for i in range(100000)] for n in (1, 1, 2)]
        first, same, other = [caller("HumanEval/0", lambda value=value: value)("[]") for value in values]
        self.assertEqual(("list", 100000), first[:2])
        self.assertEqual(first, same)
        self.assertNotEqual(first, other)
        self.assertEqual([1], caller("HumanEval/0", lambda: [1])("[]"))


class Values(unittest.TestCase):
    def test_decode_refuses_what_is_no_value(self):
        for node in (1, 1.5, {}, {"int": "x"}, {"int": 1}, {"float": "abc"}, {"complex": ["1.0"]}, {"dict": [["a"]]},
                     {"str_utf16": "00"}, {"unknown": "a"}, {"int": "1", "float": "2"}, [1]):
            with self.subTest(node=node), self.assertRaises((TypeError, ValueError)):
                evalplus_oracle.decode(node)
        self.assertEqual("a\ud800", evalplus_oracle.decode({"str_utf16": "0061d800"}))
        self.assertEqual((False, False), accepts({"unknown": "a"}, None))

    def test_equality_is_pythons(self):
        for out, expected, equal in (
                (True, number(1), True), (number(3), number(3.0), True), (number(10 ** 5000), number(10 ** 5000), True),
                (number(2 ** 53 + 1), {"complex": ["9007199254740992.0", "0.0"]}, False), (number(0), None, False),
                ([None], {"tuple": [None]}, False), ({"set": ["a", "b"]}, {"set": ["b", "a"]}, True),
                ({"set": [{"set": ["a"]}]}, {"set": [{"set": ["a"]}]}, True), ({"bytes": "61"}, "a", False),
                ({"dict": [["a", None], [number(1), "x"]]}, {"dict": [[True, "x"], ["a", None]]}, True),
                ({"other": "map"}, {"other": "map"}, False), ({"tuple": [True]}, {"tuple": [number(1)]}, True)):
            with self.subTest(out=str(out)[:40], expected=str(expected)[:40]):
                self.assertEqual((equal, equal), accepts(out, expected))

    def test_the_tolerance_comes_with_floats_and_stays(self):
        evalplus_oracle.oracle = evalplus_oracle.Oracle("mbpp", True, "f", 0)
        almost, mixed = [number(3.0000001), number(1)], [number(3), number(1)]
        for out, expected, right in ((almost, mixed, False), (almost[0], number(3.0), True), (almost, mixed, True),
                                     (almost[0], number(3), False)):
            self.assertEqual(right, evalplus_oracle.judge(json.dumps(out), json.dumps(expected), "[]"))

    def test_the_two_releases_differ(self):
        for out, expected, name, atol, verdicts in (
                ({"set": ["a"]}, {"tuple": ["a"]}, "similar_elements", 0, (False, True)),
                (None, None, "similar_elements", 0, (True, False)), ([["a"]], [["a"]], "Diff", 0, (True, False)),
                (NAN, NAN, "f", 0, (True, False)), (number(5), [], "f", 0, (True, False)), (None, [], "f", 0, (False, False)),
                ({"tuple": [number(1.0)]}, [number(1.0)], "f", 0, (True, False)), (number(2), True, "f", 0, (False, False)),
                ({"array": [True, False]}, [True, False], "f", 1e-4, (False, False)),
                (number(10000001), number(10000000), "f", 1e-6, (True, True)),
                (number(10000003), number(10000000), "f", 1e-6, (False, False)),
                (INF, {"float": "-inf"}, "f", 0, (False, False)), (INF, number(1.0), "f", 0, (False, False)),
                ([number(1.0)], [number(1.0)] * 2, "f", 0, (False, False)), ("a", "b", "f", 1e-6, (False, False)),
                (number(2 ** 64), number(2 ** 64 + 1), "f", 1e-6, (False, False))):
            with self.subTest(out=out, expected=expected, name=name):
                self.assertEqual(verdicts, accepts(out, expected, name, atol=atol))

    def test_special_problems(self):
        yes, no = (True, True), (False, False)
        match = {"other": "Match"}
        for out, expected, name, inputs, atol, verdicts in (
                (False, True, "are_equivalent", "[]", 0, yes), (number(0), number(7), "sum_div", "[]", 0, yes),
                (number(1), number(7), "sum_div", "[]", 0, no), ("found", match, "check_str", "[]", 0, yes),
                (True, match, "check_str", "[]", 0, yes), (False, None, "check_str", "[]", 0, yes),
                (None, match, "check_str", "[]", 0, no),
                (number(9), number(5), "digit_distance_nums", "[12, 345]", 0, (False, True)),
                (number(8), number(5), "digit_distance_nums", "[12, 345]", 0, no),
                (number(35), number(1), "surface_Area", "[3, 4]", 1.0, (False, True)),
                ("33", number(1), "surface_Area", "[3, 4]", 1.0, no)):
            with self.subTest(out=out, name=name):
                self.assertEqual(verdicts, accepts(out, expected, name, inputs, atol))
        self.assertEqual(no, accepts(False, True, "are_equivalent", suite="humaneval"))
        for out, verdicts in ((number(2.0000001), yes), (number(3), yes), (number(1.5), no), (number(2.5), no), (NAN, no),
                              (number(1e200), no), (None, no)):
            with self.subTest(root=out):
                self.assertEqual(verdicts, accepts(out, number(1.0), "find_zero", "[[-6, 11, -6, 1]]", 1e-4, "humaneval"))


if __name__ == "__main__":
    unittest.main()
