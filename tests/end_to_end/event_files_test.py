#!/usr/bin/env python3
"""TensorBoard event files, read by a parser that shares nothing with the writer: framing, checksums, every step's
scalars as metrics.jsonl has them, the evaluation's figures."""

import json
import struct
import unittest

from harness import EndToEndTest


def crc32c(data):
    """CRC-32C bit by bit, as its definition has it."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def masked(data):
    crc = crc32c(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def records(data):
    """Payloads of the TFRecord framing; raises on a damaged checksum or a torn record."""
    while data:
        (length,) = struct.unpack_from("<Q", data)
        if struct.unpack_from("<I", data, 8) != (masked(data[:8]),):
            raise ValueError("the length's checksum does not hold")
        payload = data[12:12 + length]
        if struct.unpack_from("<I", data, 12 + length) != (masked(payload),):
            raise ValueError("the data's checksum does not hold")
        yield payload
        data = data[16 + length:]


def varint(data, at):
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at


def fields(message):
    """(field number, wire type, value) of a protocol buffer message."""
    at = 0
    while at < len(message):
        key, at = varint(message, at)
        wire = key & 7
        if wire == 0:
            value, at = varint(message, at)
        elif wire == 1:
            value, at = message[at:at + 8], at + 8
        elif wire == 2:
            length, at = varint(message, at)
            value, at = message[at:at + length], at + length
        elif wire == 5:
            value, at = message[at:at + 4], at + 4
        else:
            raise ValueError(f"wire type {wire}")
        yield key >> 3, wire, value


def event(message):
    """wall time, step, version text, {tag: value} of a tensorflow.Event."""
    wall, step, version, scalars = None, 0, None, {}
    for number, _, value in fields(message):
        if number == 1:
            (wall,) = struct.unpack("<d", value)
        elif number == 2:
            step = value
        elif number == 3:
            version = value.decode()
        elif number == 5:
            for inner, _, entry in fields(value):
                if inner != 1:
                    raise ValueError(f"summary field {inner}")
                parts = {part: content for part, _, content in fields(entry)}
                scalars[parts[1].decode()] = struct.unpack("<f", parts[2])[0]
    return wall, step, version, scalars


class EventFiles(EndToEndTest):
    evaluate = True

    def events(self, run):
        """All events of a run by file, attempt order; the version record of each file is checked and left out."""
        found = []
        for path in sorted(run.glob("events.out.tfevents.*"), key=lambda path: int(path.name.rsplit(".", 1)[1])):
            events = [event(payload) for payload in records(path.read_bytes())]
            self.assertEqual("brain.Event:2", events[0][2], path)
            found.append(events[1:])
        return found

    def test_every_step_and_evaluation_is_there(self):
        run = self.uninterrupted(2)
        (events,) = self.events(run)
        lines = [json.loads(line) for line in (run / "metrics.1.jsonl").read_text(encoding="utf-8").splitlines()]
        steps = {(tag, step): value for _, step, _, scalars in events for tag, value in scalars.items()}
        names = ("loss", "consistency", "autoregressive", "gradient_norm", "learning_rate", "tokens_per_second")
        for line in lines:
            for name in names:
                value = steps.pop((f"round-{line['round']}/{name}", line["step"]))
                self.assertAlmostEqual(line[name], value, delta=1e-6 * max(1.0, abs(line[name])))
        models = json.loads((run / "evaluation" / "summary.json").read_text(encoding="utf-8"))["models"]
        for model, step in (("base", 0), ("final", 2)):
            for method in ("ar", "jacobi"):
                for name in ("accuracy", "tpf"):
                    value = steps[f"evaluation/{model}/gsm8k/{method}/{name}", step]
                    self.assertAlmostEqual(models[model]["gsm8k"][method][name], value, places=5)
        times = [wall for wall, _, _, _ in events]
        self.assertEqual(times, sorted(times))

    def test_each_attempt_writes_a_file_of_its_own(self):
        config, run = self.config("attempts")
        self.jforge("run", config, "--inject", "interrupt@train:0:3", expect=75)
        (first,) = self.events(run)
        before = {path.name: path.read_bytes() for path in run.glob("events.out.tfevents.*")}
        self.jforge("run", config)
        for name, content in before.items():
            self.assertEqual(content, (run / name).read_bytes(), "a published file is never appended to")
        attempts = self.events(run)
        self.assertEqual(2, len(attempts))
        self.assertEqual([1, 2, 3], [step for _, step, _, scalars in first if "round-1/loss" in scalars])
        self.assertEqual([4, 5, 6], [step for _, step, _, scalars in attempts[1] if "round-1/loss" in scalars])


if __name__ == "__main__":
    unittest.main(verbosity=2)
