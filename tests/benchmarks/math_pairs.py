#!/usr/bin/env python3
"""Pairs of mathematical answers with a label, made by rule: "gold TAB answer TAB equal|unequal TAB class".

    math_pairs.py DATA > pairs.tsv

DATA holds math/test.jsonl.gz: its answers are rewritten into equal ones and spoilt into others; the rest of the pairs is
drawn from templates. The same pairs every time. math_rules_benchmark says what our rules make of them.
"""
import gzip
import json
import pathlib
import random
import re
import sys
from fractions import Fraction

pairs = set()
R, C = random.randint, random.choice


def equal(kind, gold, answer):
    if gold != answer:
        pairs.add((gold, answer, "equal", kind))


def unequal(kind, gold, answer):
    if gold != answer:
        pairs.add((gold, answer, "unequal", kind))


def last_box(solution):
    text = solution[solution.rfind("\\boxed"):]
    if not text.startswith("\\boxed{"):
        return text[7:].split("$")[0]
    depth = 0
    for i, c in enumerate(text):
        depth += (c == "{") - (c == "}")
        if c == "}" and depth == 0:
            return text[7:i]
    return ""


def fraction(f, command="\\frac"):
    sign = "-" if f < 0 else ""
    f = abs(f)
    whole = f.denominator == 1
    return sign + (str(f.numerator) if whole else f"{command}{{{f.numerator}}}{{{f.denominator}}}")


def polynomial(coefficients, v="x", falling=True):
    text = ""
    n = len(coefficients)
    for i in range(n - 1, -1, -1) if falling else range(n):
        c = coefficients[i]
        if c == 0:
            continue
        number = str(abs(c)) if abs(c) != 1 or i == 0 else ""
        power = "" if i == 0 else v if i == 1 else f"{v}^{{{i}}}" if i > 9 or random.random() < .3 else f"{v}^{i}"
        text += ("-" if c < 0 else "+" if text else "") + number + power
    return text or "0"


def other_digits(gold):
    """One digit outside \\text changed, at two places at most."""
    unit = r"\\(text|mbox|mathrm|textbf)\s*\{[^}]*\}(\^\{?\d\}?)?"
    plain = re.sub(unit, lambda m: " " * len(m.group()), gold)
    places = [i for i, c in enumerate(plain) if c.isdigit()]
    for i in random.sample(places, min(2, len(places))):
        yield gold[:i] + str((int(gold[i]) + R(1, 8)) % 10) + gold[i + 1:]


def terminates(denominator):
    for p in (2, 5):
        while denominator % p == 0:
            denominator //= p
    return denominator == 1


def spelling(g):
    equal("spelling", g, "$" + g + "$")
    equal("spelling", g, g.replace("\\frac", "\\dfrac").replace(",", ", "))
    sized = "\\left" in g or "\\right" in g or g.count("(") != g.count(")")
    equal("spelling", g, g.replace("\\left", "").replace("\\right", "") if sized else
          g.replace("(", "\\left(").replace(")", "\\right)"))
    equal("spelling", g, g.replace("+", " + ").replace("=", " = "))
    for other in other_digits(g):
        if re.sub(r"[\s{}]", "", other) != re.sub(r"[\s{}]", "", g) and not re.search(r"(?<![\d.])0\d", other):
            unequal("digit", g, other)


def whole_number(g):
    n = int(g)
    for kind, answer in (("integer", f"x = {g}"), ("integer", g + ".0"), ("integer", f"{g}\\text{{ units}}"),
                         ("integer", f"\\frac{{{2 * n}}}{{2}}"), ("expression", f"{n - 3} + 3")):
        equal(kind, g, answer)
    unequal("expression", g, f"{n - 3} - 3")
    unequal("sign", g, str(-n) if n else "1")
    unequal("shift", g, g + "0" if n else "10")
    if abs(n) >= 1000:
        for comma in (",", "{,}", "\\,"):
            equal("commas", g, f"{n:,}".replace(",", comma))


def gold_answer(g):
    spelling(g)
    if (m := re.fullmatch(r"(-?)\\d?frac\{(\d+)\}\{(\d+)\}", g)) and int(m[3]):
        s, a, b = m[1], int(m[2]), int(m[3])
        equal("fraction", g, f"{s}{a}/{b}")
        equal("fraction", g, f"\\frac{{{s}{3 * a}}}{{{3 * b}}}")
        if a != b:
            unequal("fraction", g, f"{s}\\frac{{{b}}}{{{a}}}")
            unequal("sign", g, f'{"" if s else "-"}\\frac{{{a}}}{{{b}}}')
        if terminates(b):
            equal("decimal", g, s + f"{a / b:.10f}".rstrip("0").rstrip("."))
        else:
            unequal("rounded", g, s + f"{a / b:.3f}")
    if re.fullmatch(r"-?\d+", g):
        whole_number(g)
    if re.fullmatch(r"\(-?\d+,\s*-?\d+\)", g):
        a, b = re.findall(r"-?\d+", g)
        if a != b:
            unequal("order", g, f"({b},{a})")
        unequal("brackets", g, f"[{a},{b}]")
        equal("tuple", g, f"\\left( {a}, {b} \\right)")
    if re.fullmatch(r"-?\d+(,\s*-?\d+)+", g) and not re.fullmatch(r"\d{1,3}(,\d{3})+", g):
        p = re.findall(r"-?\d+", g)
        equal("list", g, ", ".join(reversed(p)))
        equal("list", g, "\\{" + ",".join(p) + "\\}")
        equal("list", g, ", ".join(p[:-1]) + " \\text{ and } " + p[-1])
        if len(set(p)) == len(p):
            unequal("list", g, ", ".join(p[:-1]))
    if m := re.fullmatch(r"\\text\{([A-Za-z ]+)\}", g):
        equal("text", g, m[1].strip())
        equal("text", g, f"\\textbf{{{m[1].strip()}}}")
        unequal("text", g, f"\\text{{{m[1].strip()}s not}}")


def rational():
    f = Fraction(R(-60, 60), R(2, 40))
    if f.denominator == 1:
        return
    g, k, s = fraction(f), R(2, 6), "-" if f < 0 else ""
    equal("fraction", g, fraction(f, "\\tfrac"))
    equal("fraction", g, f"\\frac{{{f.numerator * k}}}{{{f.denominator * k}}}")
    if abs(f) > 1:
        w = int(abs(f))
        r = abs(f) - w
        equal("mixed", g, f"{s}{w}{fraction(r)}")
        equal("mixed", g, f"{s}{w} {r.numerator}/{r.denominator}")
        unequal("mixed", g, f"{s}{w + 1}{fraction(r)}")
    a = Fraction(R(1, 9), R(2, 9))
    equal("sum", g, f"{fraction(f - a)} + {fraction(a)}")
    unequal("sum", g, f"{fraction(f - a)} - {fraction(a)}")
    equal("over", g, f"{{{f.numerator} \\over {f.denominator}}}")
    unequal("fraction", g, fraction(Fraction(f.numerator + 1, f.denominator)))


def decimal():
    a, b = R(1, 9), R(10, 99)
    equal("repeating", fraction(Fraction(a, 9)), f"0.\\overline{{{a}}}")
    equal("repeating", fraction(Fraction(b, 99)), f"0.\\overline{{{b}}}")
    unequal("repeating", fraction(Fraction(b, 99)), f"0.{b}")
    unequal("repeating", fraction(Fraction(a, 9)), f"0.{a * 11}")
    m, e = R(11, 99), R(-6, 7)
    v = Fraction(m, 10) * Fraction(10)**e
    d = str(v) if v.denominator == 1 else f"{float(v):.10f}".rstrip("0")
    equal("scientific", d, f"{m / 10} \\times 10^{{{e}}}")
    unequal("scientific", d, f"{m / 10} \\times 10^{{{e + 1}}}")
    equal("scientific", d, f"{m / 10}\\cdot 10^{{{e}}}")


def marked():
    n = R(1, 400)
    equal("percent", f"{n}\\%", f"{n}%")
    equal("percent", f"{n}\\%", str(n))
    unequal("percent", f"{n}\\%", f"{n + 1}\\%")
    equal("degree", f"{n}^\\circ", str(n))
    equal("degree", f"{n}^\\circ", f"{n}^{{\\circ}}")
    unequal("degree", f"{n}^\\circ", f"{n + 2}^\\circ")
    equal("money", f"\\${n}.50", f"{n}.5")
    equal("money", f"\\${n}", f"{n}\\text{{ dollars}}")
    unequal("money", f"\\${n}", f"{n}\\text{{ cents}}")
    one, other = C([("cm", "m"), ("feet", "inches"), ("hours", "minutes"), ("kg", "grams"), ("miles", "km")])
    equal("unit", f"{n}\\text{{ {one}}}", str(n))
    equal("unit", f"{n}\\text{{ {one}}}", f"{n} {one}")
    unequal("unit", f"{n}\\text{{ {one}}}", f"{n}\\text{{ {other}}}")
    square = f"{n}\\text{{ cm}}^2"
    equal("unit", square, f"{n}\\text{{ square cm}}")
    unequal("unit", square, f"{n}\\text{{ cm}}^3")
    equal("unit", square, f"{n}\\mathrm{{~cm}}^2")
    b = R(3, 9)
    digits = "".join(str(R(1, b - 1)) for _ in range(3))
    equal("base", f"{digits}_{b}", f"{digits}_{{{b}}}")
    unequal("base", f"{digits}_{b}", f"{digits}_{{{b + 1}}}")
    unequal("base", f"{digits}_{b}", f"{int(digits, b)}")
    equal("million", f"{n}000000", f"{n}\\text{{ million}}")
    unequal("million", str(n), f"{n}\\text{{ million}}")


def surd():
    k, n, a, b = R(2, 9), C([2, 3, 5, 6, 7, 10, 11, 13, 15]), R(1, 9), R(2, 9)
    s = f"{k}\\sqrt{{{n}}}"
    equal("surd", s, f"\\sqrt{{{k * k * n}}}")
    equal("surd", s, f"\\frac{{{k * n}}}{{\\sqrt{{{n}}}}}")
    for other in (f"\\sqrt{{{k * n}}}", f"{k + 1}\\sqrt{{{n}}}", f"{k}\\sqrt{{{n + 1}}}"):
        unequal("surd", s, other)
    unequal("sign", s, f"-{s}")
    if n < 10:
        equal("surd", s, f"{k}\\sqrt {n}")
    equal("surd", s, f"{n}^{{1/2}} \\cdot {k}")
    unequal("rounded", s, f"{k * n**.5:.4f}")
    t = f"{a}+{s}"
    equal("surd sum", t, f"{s}+{a}")
    unequal("conjugate", t, f"{a}-{s}")
    equal("surd sum", t, f"{a} + \\sqrt{{{k * k * n}}}")
    if d := a * a - k * k * n:
        rationalised = f"\\frac{{{a}-{s}}}{{{d}}}"
        equal("rationalised", rationalised, f"\\frac{{1}}{{{t}}}")
        unequal("rationalised", rationalised, f"\\frac{{1}}{{{a}-{s}}}")
    p, q = a * a + k * k * n, 2 * a * k
    equal("nested", t, f"\\sqrt{{{p}+{q}\\sqrt{{{n}}}}}")
    unequal("nested", t, f"\\sqrt{{{p}-{q}\\sqrt{{{n}}}}}")
    unequal("nested", t, f"\\sqrt{{{p + 1}+{q}\\sqrt{{{n}}}}}")
    equal("cube root", f"{k}\\sqrt[3]{{{n}}}", f"\\sqrt[3]{{{k**3 * n}}}")
    unequal("cube root", f"{k}\\sqrt[3]{{{n}}}", f"\\sqrt[3]{{{k**2 * n}}}")
    g = f"\\frac{{{a}\\pi}}{{{b}}}"
    equal("pi", g, f"\\frac{{{a}}}{{{b}}}\\pi")
    equal("pi", g, f"{a}\\pi/{b}")
    unequal("pi", g, f"\\frac{{{a}}}{{{b}\\pi}}")
    unequal("rounded", g, f"{a * 3.14159265 / b:.3f}")
    unequal("pi", g, f"\\frac{{{a}}}{{{b}}}")
    equal("pi", f"{a * b}-{k * b}\\pi", f"{b}({a}-{k}\\pi)")
    unequal("pi", f"{a * b}-{k * b}\\pi", f"{b}({a}+{k}\\pi)")
    z = f"{a}+{b}i"
    equal("complex", z, f"{b}i+{a}")
    unequal("complex", z, f"{a}-{b}i")
    equal("complex", f"{a * a - b * b}+{2 * a * b}i".replace("+-", "-"), f"({z})^2")
    if a != b:
        unequal("complex", z, f"{b}+{a}i")
    unequal("complex", z, str(a + b))


def with_variables():
    v, r, s, m = C("xyntk"), R(-9, 9), R(-9, 9), R(1, 5)
    if r == 0 or s == 0:
        return
    front = str(m) if m > 1 else ""
    cs = [m * r * s, -m * (r + s), m]
    factors = f"{front}({v}{-r:+d})({v}{-s:+d})"
    g = polynomial(cs, v)
    equal("factored", g, factors)
    equal("reordered", g, polynomial(cs, v, False))
    w = list(cs)
    i = R(0, 2)
    w[i] += C([-2, -1, 1, 2])
    if w[2]:
        unequal("coefficient", g, polynomial(w, v))
        unequal("coefficient", factors, polynomial(w, v))
    unequal("variable", g, polynomial(cs, C([c for c in "xyntk" if c != v])))
    if r + s:
        unequal("sign", factors, f"{front}({v}{r:+d})({v}{s:+d})")
    equal("equation", f"{g}=0", f"0={g}")
    equal("equation", f"{g}=0", f"{polynomial([2 * c for c in cs], v)}=0")
    if w[2]:
        unequal("equation", f"{g}=0", f"{polynomial(w, v)}=0")
    equal("definition", g, f"f({v}) = {g}")
    equal("definition", f"y = {g}", g)
    p = R(1, 9)
    over = f"\\frac{{{v}+{p}}}{{{p + 1}}}"
    equal("rational", over, f"\\frac{{{v}}}{{{p + 1}}}+\\frac{{{p}}}{{{p + 1}}}")
    unequal("rational", over, f"{v}+\\frac{{{p}}}{{{p + 1}}}")
    under = f"\\frac{{1}}{{{v}-{p}}}"
    equal("rational", under, f"-\\frac{{1}}{{{p}-{v}}}")
    unequal("rational", under, f"\\frac{{1}}{{{p}-{v}}}")
    equal("cancelled", f"{v}+{p}", f"\\frac{{{v}^2-{p * p}}}{{{v}-{p}}}")
    equal("power", f"{p + 1}^{{{v}+1}}", f"{p + 1}\\cdot {p + 1}^{{{v}}}")
    unequal("power", f"{p + 1}^{{{v}+1}}", f"{p + 1}^{{{v}}}+1")
    equal("two names", f"{p + 1}a+{m}b", f"{front}b+{p + 1}a")
    if p != m:
        unequal("two names", f"{p + 1}a+{m + 1}b", f"{m + 1}a+{p + 1}b")
    equal("letter e", f"{p + 1}p+{m + 1}e", f"{m + 1}e+{p + 1}p")
    unequal("letter e", f"{p + 1}p+{m + 1}e", f"{m + 1}e-{p + 1}p")
    line = f"y={m + 1}x+{p}"
    equal("line", line, f"{m + 1}x-y+{p}=0")
    unequal("line", line, f"{m + 1}x+y+{p}=0")
    equal("line", line, f"y-{p}={m + 1}x")


def matrix(kind, cells):
    return f"\\begin{{{kind}}} {cells[0]} & {cells[1]} \\\\ {cells[2]} & {cells[3]} \\end{{{kind}}}"


def collections():
    a = R(-9, 5)
    b = a + R(1, 9)
    c = b + R(1, 9)
    half = f"({a},{b}]"
    for answer in (f"{a} < x \\le {b}", f"x \\in ({a}, {b}]"):
        equal("interval", half, answer)
    for answer in (f"({a},{b})", f"[{a},{b}]", f"({a},{b + 1}]"):
        unequal("interval", half, answer)
    ray = f"({a},\\infty)"
    equal("interval", ray, f"x > {a}")
    unequal("interval", ray, f"x \\ge {a}")
    unequal("interval", ray, f"(-\\infty,{a})")
    equal("interval", ray, f"({a},+\\infty)")
    rays = f"(-\\infty,{a})\\cup({b},\\infty)"
    equal("union", rays, f"({b},\\infty)\\cup(-\\infty,{a})")
    unequal("union", rays, f"(-\\infty,{a}]\\cup({b},\\infty)")
    unequal("union", rays, f"(-\\infty,{a})")
    equal("union", rays, f"x<{a} \\text{{ or }} x>{b}")
    three = f"\\{{{a},{b},{c}\\}}"
    equal("set", three, f"\\{{{c},{a},{b}\\}}")
    unequal("set", three, f"\\{{{a},{b}\\}}")
    unequal("set", three, f"({a},{b},{c})")
    equal("set", f"\\{{{a},{b}\\}}", f"x={a} \\text{{ or }} x={b}")
    root = f"\\sqrt{{{abs(a) + 2}}}"
    equal("pm", f"{b}\\pm{root}", f"{b}+{root}, {b}-{root}")
    unequal("pm", f"{b}\\pm{root}", f"{b}+{root}")
    cells = [R(-9, 9) for _ in range(4)]
    equal("matrix", matrix("pmatrix", cells), matrix("bmatrix", cells))
    spoilt = list(cells)
    spoilt[R(0, 3)] += 1
    unequal("matrix", matrix("pmatrix", cells), matrix("pmatrix", spoilt))
    if cells[1] != cells[2]:
        turned = [cells[0], cells[2], cells[1], cells[3]]
        unequal("matrix", matrix("pmatrix", cells), matrix("pmatrix", turned))
    equal("vector", f"\\begin{{pmatrix}} {a} \\\\ {b} \\\\ {c} \\end{{pmatrix}}", f"({a},{b},{c})")
    unequal("vector", f"\\begin{{pmatrix}} {a} \\\\ {b} \\end{{pmatrix}}", f"({b},{a})")
    n, k = R(2, 8), R(2, 5)
    equal("log", str(k), f"\\log_{{{n}}} {n**k}")
    unequal("log", str(k), f"\\log_{{{n}}} {n**(k + 1)}")
    equal("exponent", str(n**k), f"{n}^{{{k}}}")
    equal("binomial", str(n * (n + 1) // 2), f"\\binom{{{n + 1}}}{{2}}")
    unequal("binomial", str(n * (n + 1) // 2 + 1), f"\\binom{{{n + 1}}}{{2}}")
    equal("trig", "\\frac{1}{2}", C(["\\sin 30^\\circ", "\\cos 60^{\\circ}", "\\sin\\frac{\\pi}{6}"]))
    unequal("trig", "\\frac{1}{2}", C(["\\sin 60^\\circ", "\\cos 30^\\circ"]))
    equal("trig", f"{k}\\cos x", f"\\cos x \\cdot {k}")
    unequal("trig", f"{k}\\cos x", f"{k}\\sin x")
    equal("ratio", f"{n}:{k}", f"{n} : {k}")
    if n != k:
        unequal("ratio", f"{n}:{k}", f"{k}:{n}")


def main():
    path = pathlib.Path(sys.argv[1] if len(sys.argv) == 2 else "") / "math/test.jsonl.gz"
    if not path.is_file():
        sys.exit(f"math_pairs.py: no {path}; usage: math_pairs.py DATA > pairs.tsv")
    random.seed(20261122)
    with gzip.open(path, "rt") as lines:
        golds = [last_box(json.loads(line)["solution"]).replace("\n", " ") for line in lines]
    for g in random.sample([g for g in golds if g], 1700):
        gold_answer(g)
    for templates, count in (((rational,), 250), ((decimal, marked), 80), ((surd,), 160), ((with_variables,), 220),
                             ((collections,), 120)):
        for _ in range(count):
            for template in templates:
                template()
    for here, there in zip("ABCDE", "BCDEA"):
        equal("choice", f"\\text{{({here})}}", here)
        equal("choice", f"\\text{{({here})}}", f"\\textbf{{({here})}}")
        unequal("choice", f"\\text{{({here})}}", there)
    for pair in sorted(pairs):
        if pair[0].strip() and pair[1].strip() and "\t" not in pair[0] + pair[1]:
            print(*pair, sep="\t")


main()
