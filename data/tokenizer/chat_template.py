"""Renders chat templates as transformers' apply_chat_template does. Reads JSON lines: {"template", "day" or null}, whose
answer is the template's number, or {"number", "variables"}, a rendering. Answers each with a JSON line: {"text"}, or
{"reason", "line", "raised"} if the template failed (raised: by raise_exception). Exits with 4 and one line on standard
error if jinja2 is missing."""

import sys

sys.path[:] = filter(None, sys.path)  # Import nothing from the working directory.

import datetime
import json
import os
import resource
import signal
import traceback

DEBIANS = "/usr/bin/python3"
SECONDS = 3  # Of processor time, for one rendering.
BYTES = 2 << 30

try:
    import jinja2.ext
    import jinja2.sandbox
    from jinja2 import nodes
except ImportError:
    if sys.executable != DEBIANS and os.access(DEBIANS, os.X_OK):
        os.execv(DEBIANS, [DEBIANS] + sys.orig_argv[1:])
    print("its chat template is rendered by Python's jinja2, which neither python3 nor", DEBIANS, "has; install it with: "
          "apt-get install python3-jinja2, or python3 -m pip install jinja2", file=sys.stderr)
    sys.exit(4)


class Refusal(Exception):
    """By raise_exception."""


class Generation(jinja2.ext.Extension):
    """{% generation %} marks answers; prints its body."""
    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return nodes.CallBlock(self.call_method("print_body"), [], [], body).set_lineno(line)

    def print_body(self, caller):
        return caller()


def raise_exception(message):
    raise Refusal(message)


def tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def overtime(*_):
    raise TimeoutError(f"takes more than {SECONDS} s")


def parsed(template, day):
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols])
    environment.filters["tojson"] = tojson
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = datetime.datetime.fromisoformat(day).strftime if day else jinja2.Undefined(
        "it prints the present day (strftime_now), on which no prompt may depend; give it a day, such as "
        'strftime_now = "2026-01-31" in template_arguments')
    return environment.from_string(template)


def answer(work):
    """Writes what work() returns or why it failed."""
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    try:
        result = {"text": work()}
        result["text"].encode()  # Refuse half a character.
    except Exception as error:  # pylint: disable=broad-except
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == "<template>"]
        result = {"reason": " ".join((str(error) or type(error).__name__).split()), "raised": isinstance(error, Refusal),
                  "line": getattr(error, "lineno", None) or (lines[-1] if lines else 1)}
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    sys.stdout.buffer.write(json.dumps(result).encode() + b"\n")
    sys.stdout.buffer.flush()


def main():
    signal.signal(signal.SIGPROF, overtime)
    most = [limit for limit in resource.getrlimit(resource.RLIMIT_AS) if limit != resource.RLIM_INFINITY]
    resource.setrlimit(resource.RLIMIT_AS, (min(most + [BYTES]),) * 2)
    templates = []

    def work():
        if "template" in request:
            templates.append(parsed(**request))
            return str(len(templates) - 1)
        return templates[request["number"]].render(request["variables"])

    for request in map(json.loads, sys.stdin.buffer):
        answer(work)


main()
