"""Calls a program's function in its own process (evalplus_grader.h). Globals: `function`, `task` ("Mbpp/2").

JSON has no tuples, sets and complex numbers: as in EvalPlus, arguments are converted to them by MBPP problem number.
"""

import hashlib
import json
import marshal
import sys

FORMS = {
    "same": lambda x: x,
    "tuple": tuple,
    "tuples": lambda x: [tuple(part) for part in x],
    "tuple of tuples": lambda x: tuple([tuple(part) for part in x]),
    "tuple of lists as tuples": lambda x: tuple([tuple(part) if isinstance(part, list) else part for part in x]),
    "sets": lambda x: [set(part) if isinstance(part, list) and len(part) else {} for part in x],
    "dict of tuples": lambda x: {key: tuple(part) for key, part in x.items()},
    "real": float,
    "complex": complex,
    "tuples all the way":
        lambda x: tuple([FORMS["tuples all the way"](part) for part in x]) if isinstance(x, list) else x,
}

# Problem numbers, and the form of each argument. "*": the last form applies to all further arguments; "+": further
# arguments stay unchanged. Otherwise there must be exactly as many arguments as forms.
RULES = (
    ("2 116 132 143 222 261 273 394 399 421 424 429 470 560 579 596 616 630 726 740 744 809", "tuple", "*"),
    ("63 64 70 94 120 237 272 299 400 409 417 438 473 614 780", "tuples", "*"),
    ("75 413 444 753", "tuples", "same"),
    ("106 750", "same", "tuple"),
    ("115", "sets"),
    ("124", "real", "complex"),
    ("250 405 446 617 720 763 808", "tuple", "same"),
    ("259 401 445", "tuple of tuples", "*"),
    ("278", "tuple of lists as tuples"),
    ("307", "tuple", "same", "same"),
    ("722", "dict of tuples", "+"),
    ("252", "complex"),
    ("580 615 791", "tuples all the way", "*"),
)


def arguments_of(text):
    """Returns the arguments of a call from their JSON."""
    # Allows integers with any number of digits. Older releases of Python have no limit.
    digits = getattr(sys, "get_int_max_str_digits", int)()
    getattr(sys, "set_int_max_str_digits", int)(0)
    try:
        arguments = json.loads(text)
    finally:
        getattr(sys, "set_int_max_str_digits", int)(digits)
    if not isinstance(arguments, list):
        raise TypeError("an input is not a list of arguments")
    suite, _, number = task.partition("/")  # noqa: F821
    for numbers, *forms in RULES:
        if suite == "Mbpp" and number in numbers.split():
            if forms[-1] == "*":
                forms[-1:] = forms[-2:-1] * (len(arguments) - len(forms) + 1)
            elif forms[-1] == "+":
                forms[-1:] = ["same"] * (len(arguments) - len(forms) + 1)
            elif len(forms) != len(arguments):
                raise TypeError("an input has not the arguments that the problem takes")
            return [FORMS[form](x) for form, x in zip(forms, arguments)]
    return arguments


def call(text):
    """Returns the entry point's value or, over 200,000 parts, its digest: one MBPP value has 128 million parts.
    marshal's version 2 writes equal bytes for equal content."""
    value = function(*arguments_of(text))  # noqa: F821
    rest, parts = [value], 0
    while rest and parts + len(rest) <= 200000:
        part = rest.pop()
        parts += 1
        if isinstance(part, (list, tuple, set, frozenset)):
            rest.extend(part)
        elif isinstance(part, dict):
            rest.extend(part.keys())
            rest.extend(part.values())
    if not rest:
        return value
    digest = hashlib.sha256()
    for part in value if isinstance(value, (list, tuple)) else [value]:
        try:
            digest.update(marshal.dumps(part, 2))
        except ValueError:
            digest.update(repr(part).encode("utf-8", "surrogatepass"))
    return (type(value).__name__, len(value), digest.hexdigest())
