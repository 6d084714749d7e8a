#!/usr/bin/env python3
"""data/tasks/code/evalplus_sanitizer.py: its rules on examples, its search, and hostile texts."""

import pathlib
import random
import sys
import time
import unittest
import warnings

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[4] / "data/tasks/code"))

import evalplus_sanitizer  # noqa: E402

ANSWER = "def f(x):\n    return x"


def span_by_definition(text):
    """Tries every span."""
    lines = text.split("\n")
    best, most = (0, 0), 0
    for first in range(len(lines)):
        for last in range(first + 1, len(lines)):
            size = sum(1 for line in lines[first:last + 1] if line.strip())
            if size > most and evalplus_sanitizer.parse("\n".join(lines[first:last + 1]))[0] is not None:
                best, most = (first, last), size
    return best


class Rules(unittest.TestCase):
    def check(self, text, program, entry_point="f"):
        self.assertEqual(program, evalplus_sanitizer.sanitize(text, entry_point))

    def test_text_and_fences_around_the_code_go(self):
        self.check(ANSWER, ANSWER)
        self.check(f"Sure, here it is:\n\n```python\n{ANSWER}\n```\nIt's simple.", ANSWER)
        self.check(f"{ANSWER}\n```", ANSWER)
        self.check(f"{ANSWER}\n\nassert f(1) == 1\nprint(f(2))", ANSWER)

    def test_the_longest_span_wins_and_the_first_of_equals(self):
        self.check("def f(x):\n    return 1\nsome words between\ndef f(x):\n    y = x\n    return y",
                   "def f(x):\n    y = x\n    return y")
        self.check("def f(x):\n    return 1\nsome words between\ndef f(x):\n    return 2", "def f(x):\n    return 1")
        self.check("def f(x):\n    return 1\n\n\n\nsome words between\n# two\ndef f(x):\n    return 2", "def f(x):\n    return 2")

    def test_a_program_of_one_line_is_taken_as_it_is(self):
        self.check("def f(x): return x", "def f(x): return x")
        self.check("def f(x): return x\n", "def f(x): return x")

    def test_where_nothing_parses_the_first_line_stays(self):
        self.check("no code here\nnor (here", "no code here")
        self.check("f(\n", "f(")
        self.check("", "")

    def test_a_helper_is_reached_through_another(self):
        self.check("def unused():\n    return 0\ndef deep(x):\n    return x\ndef helper(x):\n    return deep(x)\n"
                   "def f(x):\n    return helper(x)",
                   "def deep(x):\n    return x\ndef helper(x):\n    return deep(x)\ndef f(x):\n    return helper(x)")

    def test_attributes_arguments_and_formats_are_names_too(self):
        self.check("def size(x):\n    return x\ndef key(x):\n    return x\ndef shown(x):\n    return x\n"
                   "def f(x):\n    return g(x.size, key=f'{shown!r}')",
                   "def size(x):\n    return x\ndef key(x):\n    return x\ndef shown(x):\n    return x\n"
                   "def f(x):\n    return g(x.size, key=f'{shown!r}')")
        self.check("def text(x):\n    return x\ndef f(x):\n    return 'text'", "def f(x):\n    return 'text'")

    def test_imports_come_first_and_all_stay(self):
        self.check("def f(x):\n    return x\nimport math\nfrom os import (\n    path,\n    sep)\nother = 1",
                   "import math\nfrom os import (\n    path,\n    sep)\ndef f(x):\n    return x")
        self.check("import math; import re\n" + ANSWER, "import math\nimport re\n" + ANSWER)
        self.check("try:\n    import numpy\nexcept ImportError:\n    pass\n" + ANSWER, ANSWER)
        self.check("from __future__ import annotations\nfrom . import y\n" + ANSWER, "from . import y\n" + ANSWER)

    def test_functions_need_a_return(self):
        self.check("def helper(x):\n    print(x)\ndef f(x):\n    helper(x)\n    return x",
                   "def f(x):\n    helper(x)\n    return x")
        self.check("def f(x):\n    def inner():\n        return x\n    inner()",
                   "def f(x):\n    def inner():\n        return x\n    inner()")
        self.check("import math\ndef f(x):\n    yield x", "import math")
        self.check("async def f(x):\n    return x\n", "async def f(x):\n    return x")

    def test_a_decorated_definition_goes(self):
        self.check("import functools\n@functools.cache\ndef f(x):\n    return x", "import functools")
        self.check("@one\nclass A:\n    pass\ndef f(x):\n    return A", "def f(x):\n    return A")
        self.check("@one\ndef f(x):\n    return 1\ndef f(x):\n    return 2", "def f(x):\n    return 2")

    def test_the_first_of_a_name_counts(self):
        self.check("def f(x):\n    return 1\ndef f(x):\n    return 2", "def f(x):\n    return 1")
        self.check("g = 1\ndef g():\n    return 2\ndef f(x):\n    return g", "g = 1\ndef f(x):\n    return g")
        self.check("def f(x):\n    pass\ndef f(x):\n    return 2", "def f(x):\n    return 2")

    def test_assignments_are_known_by_their_target_else_by_their_value(self):
        names = "def f(x):\n    return a, b, c, d, g, h"
        for line in ("a = 1", "a: int = 1", "a: int", "a = b = 1", "x.y = g", "x[0] = h", "x, y = c", "x.y: int = d", "(b) = c"):
            self.check(f"{line}\n{names}", f"{line}\n{names}")
        for line in ("a += 1", "x.y = 1", "x, y = 1, 2", "x.y = (g)", "x.y = x.z = g", "other = a", "(a) = 1"):
            self.check(f"{line}\n{names}", names)
        self.check("a = 1; b = 2\nc = 3\ndef f(x):\n    return b", "b = 2\ndef f(x):\n    return b")

    def test_classes_stay_where_they_are_needed(self):
        kept = "class A:\n    size = 3\ndef f(x):\n    return A.size"
        self.check("class B:\n    pass\n" + kept, kept)

    def test_without_an_entry_point_every_definition_stays(self):
        self.check("print(1)\nx = 1\ndef g():\n    return 1\nclass A:\n    pass", "x = 1\ndef g():\n    return 1\nclass A:\n    pass",
                   entry_point=None)

    def test_where_nothing_is_left_the_span_stays(self):
        self.check("some words first\nprint(1)\nprint(2)", "print(1)\nprint(2)")
        self.check("g = 1\ng += 1", "g = 1\ng += 1")

    def test_places_count_bytes_and_lines_as_python_does(self):
        self.check("é = 'ü'; ß = é\ndef f(x):\n    return ß", "é = 'ü'\nß = é\ndef f(x):\n    return ß")
        self.check("a = 1\r\nb = 2\r\ndef f(x):\r\n    return b\r\n", "b = 2\ndef f(x):\n    return b")


class Search(unittest.TestCase):
    LINES = ["", "", "   ", "\t", "import math", "x = 1", "a, b = c", "def f(x):", "    return x", "    pass", "def g(y):", "class A:",
             "    v = f", "@dec", "else:", "elif x:", "except ValueError:", "finally:", "try:", "if x:", "    if g:", "    else:",
             "for i in f(3):", "'''", '"""', "    '''doc'''", "(", "[", ")", "]", "f(1,", "g)", "# comment", "    # comment",
             "Here is the code:", "It's mine", "print(f(1))", "```", "```python", "x = '''a", "b'''", "x = 1 \\", "\\", "    \\",
             "\u00a0", "\x0c", "  \x0cy = 3", "x = 5\r", "x\ry", "# q\rdef f", "\ufeffx = 1", "match f:", "    case A(v=g):", "return",
             "     2)", "   return 3", "Use f(x y) or g", "it's a \\", "10th of g)", "\u201cquoted\u201d", "a ? b", "x = 'a\\",
             'return "x']

    def check(self, text):
        self.assertEqual(span_by_definition(text), evalplus_sanitizer.longest_span(text.split("\n")), repr(text))

    def test_finds_the_span_of_the_definition(self):
        for text in ("@dec\n\n# comment\ndef f(x):\n    return x\nwords that end it",
                     "if x:\n    y = 1\nelif z:\n    y = 2\n\n# comment\nelse:\n    y = 3",
                     "try:\n    y = 1\nexcept E:\n    y = 2\nfinally:\n    y = 3", "x = 1\n\ufeffx = 2\nx = 3", "\ufeffx = 2\nx = 3",
                     "x = 1 \\\n\ny = 2", "it's\nx = '''\n'''", "x = 'a\\\nb'\ny = 2", "x = (\nit's)\ny = 2"):
            self.check(text)
        draw = random.Random(11)
        for _ in range(4000):
            self.check("\n".join(draw.choice(self.LINES) for _ in range(draw.randint(0, 12))))

    def test_hostile_texts_are_soon_done(self):
        for text in ("(" * 5000, ("(" * 100 + "\n") * 20, "x = " + "-" * 20000 + "1", "x = " + "1+" * 20000 + "1", "x = a" + ".b" * 20000,
                     "\n".join(" " * depth + "if x:" for depth in range(150)), "it's (all\n" * 400, "a b\n" * 768,
                     "x = '''\n" + "word\n" * 600, "\0", "y\n" * 1500):
            begin = time.monotonic()
            self.assertEqual(ANSWER, evalplus_sanitizer.sanitize(text + "\n" + ANSWER + "\n", "f"), text[:40])
            self.assertLess(time.monotonic() - begin, 20, text[:40])


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    unittest.main(verbosity=2)
