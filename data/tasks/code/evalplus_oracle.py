"""EvalPlus' comparison of returned with expected values (evalplus_grader.h), in a separate sandbox."""

import json
import math
import sys

import numpy

if hasattr(sys, "set_int_max_str_digits"):
    sys.set_int_max_str_digits(0)

_NOT_NONE = {"check_str", "text_match_three", "text_starta_endb"}
_SETS = {"similar_elements", "find_char_long", "common_in_nested_lists", "extract_singly", "larg_nnum",
         "intersection_array", "find_dissimilar", "Diff"}


class _Other:
    """Value of an unsupported type; equals nothing."""

    __hash__ = object.__hash__

    def __eq__(self, other):
        return False


def decode(node):
    """Returns the Python value of a JSON value (data/tasks/code_runner.h). Raises an exception if it is malformed."""
    if isinstance(node, list):
        return [decode(part) for part in node]
    if not isinstance(node, dict):
        if isinstance(node, (int, float)) and not isinstance(node, bool):
            raise ValueError("a bare number")
        return node
    (kind, body), = node.items()
    if kind in ("int", "float"):
        return {"int": int, "float": float}[kind](str.__str__(body))
    if kind == "complex":
        real, imaginary = map(float, body)
        return complex(real, imaginary)
    if kind == "bytes":
        return bytes.fromhex(body)
    if kind == "str_utf16":
        return bytes.fromhex(body).decode("utf-16-be", "surrogatepass")
    if kind == "tuple":
        return tuple([decode(part) for part in body])
    if kind == "set":
        return frozenset([decode(part) for part in body])
    if kind == "dict":
        return {decode(key): decode(value) for key, value in body}
    if kind == "array":
        return numpy.array(decode(body))
    if kind == "other":
        return _Other()
    raise ValueError("an unknown kind of value")


def is_floats(value, later):
    """Returns True if such values are compared with a tolerance. 0.2.1 includes empty lists."""
    if isinstance(value, (list, tuple)):
        return all(isinstance(part, float) for part in value) and bool(value or not later)
    return isinstance(value, float)


def is_surface_area(inputs, out, atol):
    """Accepts the rounded surface of a square pyramid if `height` means its height, not its slant height."""
    edge, height = inputs
    slant = math.sqrt((edge / 2) ** 2 + height ** 2)
    return abs(out - round(edge ** 2 + 4 * (edge * slant) / 2)) <= atol


def is_digit_distance(inputs, out):
    """Accepts the sum of the digits' differences after zero-padding the shorter number."""
    left, right = map(str, inputs)
    width = max(len(left), len(right))
    return out == sum(abs(int(a) - int(b)) for a, b in zip(left.zfill(width), right.zfill(width)))


class Oracle:
    """Judges the values of one run in the order of the calls."""

    def __init__(self, suite, later, entry_point, atol):
        """`later`: release 0.3.1, else 0.2.1."""
        self.mbpp, self.later, self.name, self.atol = suite == "mbpp", later, entry_point, atol

    def matches(self, out, expected, inputs):
        """Python's ==, or EvalPlus' replacement for some MBPP problems."""
        if self.mbpp and self.name == "are_equivalent":
            return True
        if self.mbpp and self.name in _NOT_NONE:
            return (out if isinstance(out, bool) else out is not None) == (expected is not None)
        if self.mbpp and self.later and self.name in _SETS:
            return set(out) == set(expected)
        # An array's == has no truth value, so both releases fail it.
        match = bool(out == expected)
        if self.mbpp and self.name == "sum_div":
            return match or bool(out == 0)
        if self.mbpp and self.later and self.name == "surface_Area":
            return match or is_surface_area(inputs, out, self.atol)
        if self.mbpp and self.later and self.name == "digit_distance_nums":
            return match or is_digit_distance(inputs, out)
        return match

    def close(self, out, expected):
        if not self.later:
            numpy.testing.assert_allclose(out, expected, rtol=1e-7, atol=self.atol)
            return True
        if type(out) is not type(expected) or isinstance(expected, (list, tuple)) and len(out) != len(expected):
            return False
        return bool(numpy.allclose(out, expected, rtol=1e-7, atol=self.atol))

    def accepts(self, out, expected, inputs):
        if not self.mbpp and self.name == "find_zero":
            # Every root is right, as in later releases; 0.3.1 forgets to record it and fails every program.
            return abs(sum(c * math.pow(out, i) for i, c in enumerate(inputs[0]))) <= self.atol
        try:
            match = self.matches(out, expected, inputs)
        finally:
            if self.atol == 0 and self.name not in _NOT_NONE and is_floats(expected, self.later):
                self.atol = 1e-6
        return match or self.atol != 0 and self.close(out, expected)


def judge(out, expected, inputs):
    """Returns True if the next value is right; arguments are JSON. Values that cannot be compared are wrong."""
    expected = decode(json.loads(expected))
    try:
        return bool(oracle.accepts(decode(json.loads(out)), expected, json.loads(inputs)))  # noqa: F821
    except Exception:
        return False
