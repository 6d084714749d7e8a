#!/usr/bin/env python3
"""The study's result as a picture: bars of the first table of results/reference/study.md, as SVG on standard output.
Usage: tests/benchmarks/study_picture.py results/reference/study.md > results/reference/study_tpf.svg"""

import html
import pathlib
import re
import sys

FONT = 'font-family="sans-serif"'
LEFT, RIGHT, TOP, ROW, BAR = 262, 590, 74, 38, 22
ROW_OF_TABLE = re.compile(
    r"^\| (?P<model>[^|]+?) +\| (?P<accuracy>[\d.]+ %) +\| [\d.]+–[\d.]+ % +\| (?P<tpf>[\d.]+) +"
    r"\| (?P<low>[\d.]+)–(?P<high>[\d.]+) +\|$")
HEADER = re.compile(r"^\| model +\| accuracy +\| 95 % interval +\| TPF +\| 95 % interval +\|$")


def arms(page):
    """The rows of the page's table of all arms."""
    lines = page.splitlines()
    start = next((i for i, line in enumerate(lines) if HEADER.match(line)), None)
    if start is None:
        raise SystemExit("the page has no table of accuracy and TPF with their intervals")
    rows = []
    for line in lines[start + 2:]:
        if not line.startswith("|"):
            break
        row = ROW_OF_TABLE.match(line)
        if row is None:
            raise SystemExit(f"not a row of accuracy and TPF: {line}")
        rows.append(row.groupdict())
    return rows


def problems(page):
    found = re.search(r"([\d,]+) test problems.*?block size (\d+)", page)
    if found is None:
        raise SystemExit("the page does not say how many test problems and which block size")
    return f"{int(found[1].replace(',', '')):,} test problems, block size {found[2]}"


def text(x, y, words, anchor="start", size=13, more=""):
    return f'<text x="{x:g}" y="{y:g}" {FONT} font-size="{size}" text-anchor="{anchor}"{more}>{html.escape(words)}</text>'


def line(x1, y1, x2, y2, more):
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" {more}/>'


def bar(row, y, place):
    """One arm: its name, its bar with the interval, TPF and accuracy."""
    low, high, middle = place(float(row["low"])), place(float(row["high"])), y + BAR / 2
    black = 'stroke="#222222"'
    return [text(LEFT - 10, middle + 5, row["model"], "end", size=12),
            f'<rect x="{LEFT}" y="{y}" width="{place(float(row["tpf"])) - LEFT:.1f}" height="{BAR}" fill="#0072b2"/>',
            line(low, middle, high, middle, black),
            line(low, middle - 5, low, middle + 5, black), line(high, middle - 5, high, middle + 5, black),
            text(round(high, 1) + 10, middle + 5, row["tpf"], more=' font-weight="bold"'),
            text(720, middle + 5, row["accuracy"], "end")]


def picture(page):
    rows = arms(page)
    scale = (RIGHT - LEFT) / max(float(row["high"]) for row in rows)
    bottom = TOP + ROW * len(rows)

    def place(tpf):
        return LEFT + tpf * scale

    one = place(1)
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" width="740" height="{bottom + 34}" '
             f'viewBox="0 0 740 {bottom + 34}" role="img">',
             f"<title>Tokens per forward pass and accuracy, {html.escape(problems(page))}</title>",
             '<rect width="100%" height="100%" fill="white"/>',
             text(20, 28, "Tokens per forward pass with Jacobi decoding", size=16, more=' font-weight="bold"'),
             text(20, 48, f"{problems(page)}; with 95 % intervals", size=12),
             text(720, 48, "accuracy", "end", size=12)]
    for i, row in enumerate(rows):
        parts += bar(row, TOP + ROW * i, place)
    parts += [line(LEFT, TOP - 8, LEFT, bottom, 'stroke="#333333"'),
              line(one, TOP - 8, one, bottom, 'stroke="#333333" stroke-dasharray="4 3"'),
              text(round(one, 1), bottom + 18, "1: one token per forward pass, ordinary decoding", size=12), "</svg>"]
    return "\n".join(parts) + "\n"


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    print(picture(pathlib.Path(sys.argv[1]).read_text(encoding="utf-8")), end="")
