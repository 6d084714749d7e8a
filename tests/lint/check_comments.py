#!/usr/bin/env python3
"""Holds C++ comments to CONTRIBUTING.md "Style", as far as a program can: no sentence is a fragment that begins with "Of"
or "Who", and words that stand for a name or an "if" stay rare. Prints one line per breach and exits 1 if there is any."""

import pathlib
import re
import subprocess
import sys

FRAGMENT = re.compile(r"^(?:Of|Who|Whose|Nobody)\b")
# Most in 1,000 words of a room's comments; leveldb's have 0.1 and 0.0.
RARE = {"what": 4.0, "where": 2.0}
COMMENT = re.compile(r"(?:^|\s)//[/<]*\s?(.*)")
WHOLE_LINE = re.compile(r"^\s*//")
SOURCES = {".cpp", ".h", ".cu", ".cuh"}


def main(root):
    listed = subprocess.run(["git", "-C", root, "ls-files", "-z"], capture_output=True, check=False)
    if listed.returncode != 0:
        print("no git history here: nothing is read")
        return 77
    breaches = []
    words = {}
    for name in listed.stdout.decode().split("\0"):
        path = root / name
        if path.suffix not in SOURCES or not path.is_file():
            continue
        room = words.setdefault(name.split("/", 1)[0], [])
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            comment = COMMENT.search(line)
            if comment is None:
                continue
            if WHOLE_LINE.match(line) and FRAGMENT.search(comment.group(1)):
                breaches.append(f"{name}:{number}: no fragment as a sentence: {comment.group(1)}")
            room += re.findall(r"[a-z']+", comment.group(1).lower())
    for room, said in sorted(words.items()):
        for word, most in RARE.items():
            rate = 1000 * said.count(word) / max(1, len(said))
            if rate > most:
                breaches.append(f"{room}: \"{word}\" {rate:.1f} times in 1,000 words of comments, {most} at most")
    print(*breaches, sep="\n")
    return 1 if breaches else 0


if __name__ == "__main__":
    sys.exit(main(pathlib.Path(sys.argv[1])))
