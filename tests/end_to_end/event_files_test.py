#!/usr/bin/env python3
"""TensorBoard event files, read by an independent parser. TensorBoard's own reader, if installed, sees each step once
after an interruption."""

import json
import struct
import unittest

from harness import EndToEndTest

try:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
except ImportError:
    EventAccumulator = None


def crc32c(data):
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
    """Yields TFRecord payloads; raises on damage."""
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
    """Yields (field number, wire type, value) of a protocol buffer."""
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
    """Returns (wall time, step, version or "start", {tag: value}) of a tensorflow.Event."""
    wall, step, version, scalars = None, 0, None, {}
    for number, _, value in fields(message):
        if number == 1:
            (wall,) = struct.unpack("<d", value)
        elif number == 2:
            step = value
        elif number == 3:
            version = value.decode()
        elif number == 7:
            version = {b"\x08\x01": "start"}[value]
        elif number == 5:
            for inner, _, entry in fields(value):
                if inner != 1:
                    raise ValueError(f"summary field {inner}")
                parts = {part: content for part, _, content in fields(entry)}
                scalars[parts[1].decode()] = struct.unpack("<f", parts[2])[0]
    return wall, step, version, scalars


class EventFiles(EndToEndTest):
    evaluate = True

    def events(self, run, folder):
        """Returns events by file in attempt order, without the checked header records."""
        found = []
        for path in sorted((run / "tensorboard" / folder).iterdir(), key=lambda path: int(path.name.rsplit(".", 1)[1])):
            events = [event(payload) for payload in records(path.read_bytes())]
            self.assertEqual("brain.Event:2", events[0][2], path)
            self.assertEqual(("start", events[2][1]), (events[1][2], events[1][1]), path)
            found.append(events[2:])
        return found

    def test_every_step_and_evaluation_is_there(self):
        run = self.uninterrupted(2)
        lines = [json.loads(line) for line in (run / "metrics.1.jsonl").read_text(encoding="utf-8").splitlines()]
        names = ("loss", "consistency", "autoregressive", "gradient_norm", "learning_rate", "tokens_per_second")
        self.assertEqual({"evaluation", *(f"round-{line['round']}" for line in lines)},
                         {path.name for path in (run / "tensorboard").iterdir()})
        for line in lines:
            (events,) = self.events(run, f"round-{line['round']}")
            ((_, _, _, scalars),) = [found for found in events if found[1] == line["step"]]
            for name in names:
                self.assertAlmostEqual(line[name], scalars[name], delta=1e-6 * max(1.0, abs(line[name])))
            times = [wall for wall, _, _, _ in events]
            self.assertEqual(times, sorted(times))
        (events,) = self.events(run, "evaluation")
        figures = {(tag, step): value for _, step, _, scalars in events for tag, value in scalars.items()}
        models = json.loads((run / "evaluation" / "summary.json").read_text(encoding="utf-8"))["models"]
        for model, step in (("base", 0), ("final", 2)):
            for method in ("ar", "jacobi"):
                for name in ("accuracy", "tpf"):
                    value = figures[f"{model}/gsm8k/{method}/{name}", step]
                    self.assertAlmostEqual(models[model]["gsm8k"][method][name], value, places=5)

    def test_each_attempt_writes_a_file_of_its_own(self):
        """Steps after the last checkpoint repeat."""
        config, run = self.config("attempts")
        self.jforge_with_fault(config, run, "kill@train:0:4")
        (first,) = self.events(run, "round-1")
        before = {path: path.read_bytes() for path in run.glob("tensorboard/*/*")}
        self.jforge("run", config, ranks=2)
        for path, content in before.items():
            self.assertEqual(content, path.read_bytes(), "a published file is never appended to")
        _, second = self.events(run, "round-1")
        self.assertEqual(1, first[0][1])
        self.assertIn(second[0][1], [step for _, step, _, _ in first], "no step was made twice")
        steps = sorted({step for _, step, _, _ in first + second})
        if EventAccumulator is None:
            self.skipTest("Python has no package tensorboard")
        for folder in (run / "tensorboard").iterdir():
            read = EventAccumulator(str(folder))
            read.Reload()
            for tag in read.Tags()["scalars"]:
                found = [scalar.step for scalar in read.Scalars(tag)]
                self.assertEqual(sorted(set(found)), found, (folder, tag))
                if (folder.name, tag) == ("round-1", "loss"):
                    self.assertEqual(steps, found)


if __name__ == "__main__":
    unittest.main(verbosity=2)
