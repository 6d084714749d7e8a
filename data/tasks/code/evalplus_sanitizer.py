"""Extracts the program from a model's answer as EvalPlus does (evalplus_grader.h). Runs in the sandbox."""

import ast
import re
import warnings

# Lines that no parser sees: blank ones and comments. Only Python ends a line at a carriage return within it.
_SKIPPED = re.compile(r"[ \t\f]*(#[^\r]*)?\r?\Z")
# Indentation in a text's first line is always an error.
_INDENTED = re.compile(r"[ \t]+[^ \t\f\r#\\]")
# The beginning of a new statement after complete ones, not a further part of the last.
_NEXT_STATEMENT = re.compile(r"(?!(?:else|elif|except|finally)\b)[^\s\\]")


# Token errors, which no further lines can cure. Other errors may come from cutting the text.
_FINAL_ERRORS = ("invalid character ", "invalid decimal literal", "unmatched ")
_OPEN_STRING = re.compile(r"unterminated string literal \(detected at line (\d+)\)")


def parse(text):
    """Returns (module, None) or (None, error)."""
    try:
        return ast.parse(text), None
    except (SyntaxError, ValueError, MemoryError, RecursionError) as error:
        return None, error


def is_final(error, last_line):
    """Returns True if no further lines can cure this error. `last_line`, from 1, holds the last token.

    A plain "invalid syntax" refers to the last token read: if that is in an earlier line, later ones do not matter.
    """
    if not isinstance(error, SyntaxError) or not isinstance(error.lineno, int):
        return False
    string = _OPEN_STRING.match(error.msg)
    if string:
        return int(string[1]) < last_line
    return (error.msg == "invalid syntax" or error.msg.startswith(_FINAL_ERRORS)) and error.lineno < last_line


def longest_span(lines):
    """Returns first and last line of the span of at least two lines that parses and has the most non-blank lines; of
    equals, the one that begins first, then ends first. (0, 0) if nothing parses.

    Text that parses can only be followed by a part of its last statement or by text that parses too. So spans are built
    from the last line upwards: if a new statement follows a complete span, its best continuation is known.
    """
    count = len(lines)
    filled = [0]
    for line in lines:
        filled.append(filled[-1] + bool(line.strip()))
    follows = [True] * (count + 1)  # Does a new statement or the end follow at or after this line?
    best_end = [None] * (count + 1)  # Last line of the best span that begins here, even of one line.
    span, most = (0, 0), 0
    for first in reversed(range(count)):
        line = lines[first]
        follows[first] = follows[first + 1] if _SKIPPED.match(line) else bool(_NEXT_STATEMENT.match(line))
        if _INDENTED.match(line):
            continue
        ends = []
        solid = first
        for last in range(first, count):
            solid = solid if _SKIPPED.match(lines[last]) else last
            module, error = parse("\n".join(lines[first:last + 1]))
            if module is None:
                if is_final(error, solid + 1 - first):
                    break
                continue
            ends.append(last)
            if follows[last + 1]:
                if best_end[last + 1] is not None:
                    ends.append(best_end[last + 1])
                break
        if ends:
            # The ends ascend, so max() returns the first of equals.
            best_end[first] = max(ends, key=lambda last: filled[last + 1])
        ends = [last for last in ends if last > first]
        if ends:
            last = max(ends, key=lambda last: filled[last + 1])
            size = filled[last + 1] - filled[first]
            if size > 0 and size >= most:
                span, most = (first, last), size
    return span


def identifiers(node):
    """Returns every name in `node`, including attributes, arguments and imported modules."""
    names = set()
    for part in ast.walk(node):
        for field, value in ast.iter_fields(part):
            if isinstance(part, ast.Constant) or field == "type_comment":
                continue
            for item in value if isinstance(value, list) else [value]:
                if isinstance(item, str):
                    names.update(item.split("."))
    return names


def bare_name(node, place, wanted):
    """Returns the name that `node` is, or None in brackets, which make `place` differ from its statement's."""
    return node.id if isinstance(node, ast.Name) and place == wanted else None


def assigned_name(node):
    """Returns the name of an assignment: its target or, if that is not a plain name, its value if that is one."""
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    target, value = targets[0], node.value
    name = bare_name(target, (target.lineno, target.col_offset), (node.lineno, node.col_offset))
    if name is None and len(targets) == 1 and value is not None:
        name = bare_name(value, (value.end_lineno, value.end_col_offset), (node.end_lineno, node.end_col_offset))
    return name


def definition_name(node):
    """Returns (True, name) for a top-level statement that defines a name."""
    if isinstance(node, ast.ClassDef):
        return not node.decorator_list, node.name
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        returns = any(isinstance(part, ast.Return) for part in ast.walk(node))
        return returns and not node.decorator_list, node.name
    if isinstance(node, (ast.Assign, ast.AnnAssign)):
        return True, assigned_name(node)
    return False, None


def reachable(entry_point, definitions):
    """Returns `entry_point` and all names that its definition mentions, transitively."""
    found, rest = {entry_point}, [entry_point]
    while rest:
        node = definitions.get(rest.pop())
        new = identifiers(node) - found if node is not None else set()
        found |= new
        rest.extend(new)
    return found


def source_of(node, lines):
    part = lines[node.lineno - 1:node.end_lineno]
    part[-1] = part[-1][:node.end_col_offset]
    part[0] = part[0][node.col_offset:]
    return b"\n".join(part).decode("utf-8")


def is_import(node):
    return isinstance(node, ast.Import) or (
        isinstance(node, ast.ImportFrom) and not (node.module == "__future__" and node.level == 0))


def sanitize(text, entry_point):
    """Returns the program in `text`. entry_point: the function to be called, or None."""
    warnings.simplefilter("ignore")
    lines = text.split("\n")
    first, last = longest_span(lines)
    span = "\n".join(lines[first:last + 1])
    module, _ = parse(span)
    if module is None:
        return span
    definitions = {}
    for node in module.body:
        defines, name = definition_name(node)
        if defines and name not in definitions:
            definitions[name] = node
    kept = [node for node in module.body if is_import(node)]
    names = set(definitions) if not entry_point else reachable(entry_point, definitions)
    kept += [node for name, node in definitions.items() if name in names]
    # Positions in the tree count UTF-8 bytes, in lines as Python ends them.
    source = span.replace("\r\n", "\n").replace("\r", "\n").encode("utf-8").split(b"\n")
    return "\n".join(source_of(node, source) for node in kept).strip() or span
