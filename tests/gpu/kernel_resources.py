#!/usr/bin/env python3
"""kernel_resources.py PROGRAM LIMITS ARCHITECTURE…: reads kernels' resources from the machine code and PTX in PROGRAM.
Prints a table and a line for each breach of LIMITS (kernel_resources.md); exits 1 if there is any. Needs no toolkit and
no device."""

import argparse
import collections
import dataclasses
import fnmatch
import math
import pathlib
import re
import struct
import subprocess
import sys

FATBIN_MAGIC = 0xBA55ED50
PTX, MACHINE_CODE = 1, 2
# .nv.info: registers; bytes of a thread's stack frame, spills included.
REGISTER_COUNT, FRAME_SIZE = 0x2F, 0x11
# ptxas counts the system's part from sm_90 on.
SYSTEM_SHARED = {90: 1024}
# The low 12 bits of mma.sync's instruction.
HMMA = 0x23C
# Any architecture that a limit does not name.
ANY = 0
# Registers and warps of a multiprocessor, sm_80 and sm_90; WARP_REGISTERS is an allocation unit.
REGISTERS, WARP_REGISTERS, MOST_WARPS = 65536, 256, 64


@dataclasses.dataclass
class Kernel:
    registers: int = 0
    shared: int = 0  # static, bytes of a block
    local: int = 0  # a thread's stack frame, bytes: arrays that are not in registers, and spills
    tensor: int = 0  # HMMA instructions

    @property
    def warps(self):
        """Limited by registers; four schedulers share the warps evenly."""
        of_warp = math.ceil(max(1, self.registers) * 32 / WARP_REGISTERS) * WARP_REGISTERS
        return min(MOST_WARPS, REGISTERS // of_warp // 4 * 4)


def sections(elf):
    """Yields (name, section header, content) of a 64-bit little-endian ELF file; header[1] is sh_type, header[5]
    sh_size."""
    if elf[:6] != b"\x7fELF\x02\x01":
        raise ValueError("not a 64-bit ELF file")
    start, = struct.unpack_from("<Q", elf, 0x28)
    count, names = struct.unpack_from("<HH", elf, 0x3C)
    headers = [struct.unpack_from("<IIQQQQIIQQ", elf, start + 64 * i) for i in range(count)]
    for header in headers:
        name_at = headers[names][4] + header[0]
        name = elf[name_at:elf.index(b"\0", name_at)].decode()
        nobits = 8
        yield name, header, b"" if header[1] == nobits else elf[header[4]:header[4] + header[5]]


def images(program):
    """Yields (PTX or MACHINE_CODE, architecture, content)."""
    for name, _, content in sections(program):
        if name != ".nv_fatbin":
            continue
        at = 0
        while at + 16 <= len(content):
            magic, _, header_bytes, size = struct.unpack_from("<IHHQ", content, at)
            if magic != FATBIN_MAGIC:
                at += 8  # padding between two sources
                continue
            entry, end = at + header_bytes, at + header_bytes + size
            while entry < end:
                kind, = struct.unpack_from("<H", content, entry)
                entry_header, entry_size = struct.unpack_from("<IQ", content, entry + 4)
                architecture, = struct.unpack_from("<I", content, entry + 28)
                body = content[entry + entry_header:entry + entry_header + entry_size]
                if (kind == MACHINE_CODE and body[:4] != b"\x7fELF") or (kind == PTX and b".version" not in body):
                    raise ValueError("compressed: configure with JFORGE_TESTS, which keeps device code readable")
                yield kind, architecture, body
                entry += entry_header + entry_size
            at = end


def info_words(content):
    """Yields (attribute, two 32-bit words) of an .nv.info section."""
    at = 0
    with_size = 4
    while at + 4 <= len(content):
        form, attribute, size = struct.unpack_from("<BBH", content, at)
        at += 4
        if form == with_size:
            if size == 8:
                yield attribute, struct.unpack_from("<II", content, at)
            at += size


def machine_kernels(cubin, architecture):
    """Returns {mangled name: Kernel}."""
    found = {name: (header, content) for name, header, content in sections(cubin)}
    symbols, strings = found[".symtab"][1], found[".strtab"][1]

    def symbol(index):
        at, = struct.unpack_from("<I", symbols, 24 * index)
        return strings[at:strings.index(b"\0", at)].decode()

    kernels = collections.defaultdict(Kernel)
    entries = {name[len(".nv.info."):] for name in found if name.startswith(".nv.info.")}
    for attribute, (index, value) in info_words(found[".nv.info"][1]):
        name = symbol(index)
        if name in entries and attribute == REGISTER_COUNT:
            kernels[name].registers = value
        elif name in entries and attribute == FRAME_SIZE:
            kernels[name].local = value
    for name, kernel in kernels.items():
        code = found[".text." + name][1]
        kernel.tensor = sum(low | (high & 15) << 8 == HMMA for low, high in zip(code[0::16], code[1::16]))
        if ".nv.shared." + name in found:
            size = found[".nv.shared." + name][0][5]
            kernel.shared = max(0, size - SYSTEM_SHARED.get(architecture, 0))
    return dict(kernels)


def ptx_kernels(ptx):
    """Returns {mangled name: PTX of its body}."""
    text = ptx.rstrip(b"\0").decode()
    starts = list(re.finditer(r"^\s*(?:\.visible |\.weak )?\.(entry|func)\b[^(]*?(\w+)\s*\(", text, re.M))
    ends = [match.start() for match in starts[1:]] + [len(text)]
    return {match[2]: text[match.start():end] for match, end in zip(starts, ends) if match[1] == "entry"}


def short_names(mangled):
    """Returns {mangled: name without namespaces and arguments}; run_body<Body> is Body."""
    mangled = sorted(mangled)
    shown = subprocess.run(["c++filt"], input="\n".join(mangled), capture_output=True, text=True, check=True).stdout
    result = {}
    for name, text in zip(mangled, shown.splitlines()):
        text = text.replace("(anonymous namespace)::", "").replace("jforge::", "")
        text = re.sub(r"^void (?=\S)", "", re.sub(r"\(.*", "", text)).replace(" >", ">").strip()
        body = re.fullmatch(r"run_body<(.*)>", text)
        text = body[1] if body else text
        elements = re.fullmatch(r"ForElements<(.*)>", text)
        result[name] = elements[1] if elements else text
    return result


def kernels_of(program):
    """Returns ({architecture: {name: Kernel}}, {name: PTX}); the larger of equally named kernels counts."""
    code, texts = collections.defaultdict(dict), {}
    for kind, architecture, body in images(program):
        if kind == PTX:
            texts.update(ptx_kernels(body))
        else:
            code[architecture].update(machine_kernels(body, architecture))
    names = short_names(set(texts).union(*code.values()))
    shown = {}
    for architecture, kernels in sorted(code.items()):
        shown[architecture] = {}
        for mangled, kernel in kernels.items():
            at = shown[architecture].setdefault(names[mangled], Kernel(tensor=kernel.tensor))
            at.registers = max(at.registers, kernel.registers)
            at.shared = max(at.shared, kernel.shared)
            at.local = max(at.local, kernel.local)
            at.tensor = min(at.tensor, kernel.tensor)
    by_name = collections.defaultdict(list)
    for mangled, text in texts.items():
        by_name[names[mangled]].append(text)
    return shown, dict(by_name)


@dataclasses.dataclass
class Limit:
    pattern: str
    registers: dict  # by architecture; ANY for the others
    shared: int
    local: int
    instructions: list

    def most(self, what, architecture):
        return self.registers.get(architecture, self.registers[ANY]) if what == "registers" else getattr(self, what)


def read_limits(text):
    """Several register counts belong to the header's architectures."""
    limits, architectures = [], []
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if line.startswith("| kernels"):
            architectures = [int(name) for name in re.findall(r"sm_(\d+)", cells[1])]
        if line.startswith("| `") and len(cells) >= 5:
            numbers = [int(number) for number in cells[1].split("/")]
            registers = {ANY: max(numbers), **dict(zip(architectures, numbers))}
            instructions = re.findall(r"`([^`]+)`", cells[4])
            limits += [Limit(pattern, registers, int(cells[2]), int(cells[3]), instructions)
                       for pattern in re.findall(r"`([^`]+)`", cells[0])]
    return limits


def breaches(code, texts, limits, architectures):
    for architecture in architectures:
        if architecture not in code:
            yield f"no machine code for sm_{architecture}"
    used = set()
    for name in sorted(set(texts).union(*code.values())):
        limit = next((limit for limit in limits if fnmatch.fnmatchcase(name, limit.pattern)), None)
        if limit is None:
            yield f"{name}: no row of the table is for it"
            continue
        used.add(limit.pattern)
        for instruction in limit.instructions:
            if any(instruction not in text for text in texts.get(name, [""])):
                yield f"{name}: its PTX has no {instruction}"
        for architecture, kernels in code.items():
            if name not in kernels:
                yield f"{name}: no machine code for sm_{architecture}"
                continue
            kernel = kernels[name]
            for what in ("registers", "shared", "local"):
                if getattr(kernel, what) > limit.most(what, architecture):
                    yield (f"{name}, sm_{architecture}: {what} {getattr(kernel, what)}, at most "
                           f"{limit.most(what, architecture)} by row {limit.pattern}")
            if kernel.tensor == 0 and any(i.startswith("mma.sync") for i in limit.instructions):
                yield f"{name}, sm_{architecture}: no tensor-core instruction in its machine code"
    for limit in limits:
        if limit.pattern not in used:
            yield f"row {limit.pattern}: no kernel is called so"


def table(code):
    architectures = sorted(code)
    lines = ["| kernel | " + " | ".join(f"sm_{a}: registers | warps | shared | local | HMMA" for a in architectures) + " |",
             "| --- |" + " --- | --- | --- | --- | --- |" * len(architectures)]
    for name in sorted(set().union(*code.values())):
        cells = []
        for architecture in architectures:
            k = code[architecture].get(name, Kernel())
            cells.append(f"{k.registers} | {k.warps} | {k.shared} | {k.local} | {k.tensor}")
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main(arguments):
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("program", type=pathlib.Path)
    parser.add_argument("limits", type=pathlib.Path)
    parser.add_argument("architectures", nargs="+", help="as CMake names them: 80-real, 90a-real")
    chosen = parser.parse_args(arguments)
    code, texts = kernels_of(chosen.program.read_bytes())
    print(table(code))
    wanted = [int(re.match(r"\d+", name)[0]) for name in chosen.architectures]
    found = list(breaches(code, texts, read_limits(chosen.limits.read_text(encoding="utf-8")), wanted))
    for line in found:
        print(line)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
