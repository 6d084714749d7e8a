#!/usr/bin/env python3
"""pipeline_on_device.py RunPipeline.TEST…: tests of run_pipeline_test.py, which fail if "auto" does not choose the
device."""

import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "end_to_end"))
import run_pipeline_test  # noqa: E402  (where it lies is known here only)


class RunPipeline(run_pipeline_test.RunPipeline):
    def finish(self, process, *timeout):
        result = super().finish(process, *timeout)
        if "run" in process.args:
            self.assertIn("computing on CUDA device", result.err)
        return result


if __name__ == "__main__":
    unittest.main()
