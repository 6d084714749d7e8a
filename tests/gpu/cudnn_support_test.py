#!/usr/bin/env python3
"""cuDNN has attention for our shapes on an H100 and an A100: asked without either. A device's properties are given as text,
as cuDNN's ahead-of-time compilation takes them; graphs of scaled dot-product attention are built from them and go through
its heuristics and check_support on the host. That shows that cuDNN takes the shapes, types and masks, not that it computes.

Needs libcudnn.so.9, the toolkit's stub of libcuda.so (cuDNN asks that a driver's library is there; nothing of it is called)
and the Python package nvidia-cudnn-frontend (pip install --no-deps nvidia-cudnn-frontend); skipped, exit 77, without one."""

import ctypes
import importlib.util
import json
import os
import pathlib
import sys
import tempfile
import unittest

SKIPPED = 77
TOOLKIT = pathlib.Path(os.environ.get("JFORGE_CUDA_LIBRARY_DIR", "/usr/local/cuda/lib64"))

# What cudaGetDeviceProperties says of the SXM modules.
COMMON = {"cudaDeviceId": 0, "pciDeviceId": 0, "driverVer": 13000, "cudaRtVer": 13000, "isTccDriver": 0, "warpSize": 32,
          "maxBlockSize": [1024, 1024, 64], "maxGridSize": [2147483647, 65535, 65535], "maxCtasPerSM": 32,
          "maxRegistersPerSM": 65536, "regsPerBlock": 65536, "maxThreadsPerBlock": 1024, "maxThreadsPerSM": 2048,
          "maxSharedMemoryPerBlock": 49152, "reservedSharedMemoryPerBlock": 1024, "supportCoopLaunch": 1}
DEVICES = {
    "H100": {**COMMON, "deviceName": "NVIDIA H100 80GB HBM3", "deviceVer": 900, "multiProcessorCount": 132,
             "maxSharedMemoryPerBlockOptin": 232448, "l2CacheSize": 52428800, "totalGlobalMem": 85899345920,
             "smClockRateKHz": 1980000, "memClockRateKHz": 2619000},
    "A100": {**COMMON, "deviceName": "NVIDIA A100-SXM4-80GB", "deviceVer": 800, "multiProcessorCount": 108,
             "maxSharedMemoryPerBlockOptin": 166912, "l2CacheSize": 41943040, "totalGlobalMem": 85899345920,
             "smClockRateKHz": 1410000, "memClockRateKHz": 1593000},
}
DEVICES["V100"] = {**DEVICES["A100"], "deviceName": "Tesla V100-SXM2-32GB", "deviceVer": 700, "multiProcessorCount": 80,
                   "maxSharedMemoryPerBlockOptin": 98304}
# Query heads, key heads, head size: Qwen2.5-0.5B and 7B, Llama 3 8B.
HEADS = [(14, 2, 64), (28, 4, 128), (32, 8, 128)]


class CudnnSupport(unittest.TestCase):
    def support(self, device, heads, rows, keys, mask, backward=False, dtype="BFLOAT16", packed=False):
        """None where cuDNN has plans, else why not. Rows lie as ours do, [T, H, D]: of each sequence, or `packed`, of several
        of any length up to `rows` and `keys` that begin anywhere in one tensor; their log-sum-exp is then [T, H] as ours."""
        import cudnn
        h, hk, d = heads
        properties = DEVICES[device]
        graph = cudnn.pygraph(io_data_type=cudnn.data_type[dtype], intermediate_data_type=cudnn.data_type.FLOAT,
                              compute_data_type=cudnn.data_type.FLOAT,
                              device_property=cudnn.create_device_properties(json.dumps(properties)),
                              sm_version=properties["deviceVer"], sm_count=properties["multiProcessorCount"])
        batch = 4

        def shape(count, length):
            return {"dim": [batch, count, length, d], "stride": [length * count * d, d, count * d, 1]}

        def numbers(name, count, data_type):
            return graph.tensor(name=name, dim=[count, 1, 1, 1], stride=[1, 1, 1, 1], data_type=cudnn.data_type[data_type])

        # Where sequences begin, in elements of a tensor with so many to a row.
        begins = {width: numbers(f"begins {width}", batch + 1, "INT64") for width in {h * d, hk * d, h}}

        def placed(one, width):
            if packed:
                one.set_ragged_offset(begins[width])
            return one

        def tensor(name, count, length):
            return placed(graph.tensor(name=name, data_type=cudnn.data_type[dtype], **shape(count, length)), count * d)

        def written(one, count, length):
            one.set_output(True).set_data_type(cudnn.data_type[dtype])
            one.set_dim(shape(count, length)["dim"]).set_stride(shape(count, length)["stride"])
            placed(one, count * d)

        q, k, v = tensor("q", h, rows), tensor("k", hk, keys), tensor("v", hk, keys)
        settings = {"attn_scale": d ** -0.5, "use_causal_mask": mask == "causal",
                    "use_causal_mask_bottom_right": mask == "last rows"}
        if packed:
            settings |= {"use_padding_mask": True, "seq_len_q": numbers("rows", batch, "INT32"),
                         "seq_len_kv": numbers("keys", batch, "INT32")}
        sums_shape = {"dim": [batch, h, rows, 1], "stride": [h * rows, 1, h, 1] if packed else [h * rows, rows, 1, 1]}
        try:
            if backward:
                sums = placed(graph.tensor(name="log_sum_exp", data_type=cudnn.data_type.FLOAT, **sums_shape), h)
                gradients = graph.sdpa_backward(name="backward", q=q, k=k, v=v, o=tensor("o", h, rows),
                                                dO=tensor("dO", h, rows), stats=sums, **settings)
                for one, count, length in zip(gradients, (h, hk, hk), (rows, keys, keys)):
                    written(one, count, length)
            else:
                output, sums = graph.sdpa(name="forward", q=q, k=k, v=v, generate_stats=True, **settings)
                written(output, h, rows)
                sums.set_output(True).set_data_type(cudnn.data_type.FLOAT)
                sums.set_dim(sums_shape["dim"]).set_stride(sums_shape["stride"])
                placed(sums, h)
            graph.validate()
            graph.build_operation_graph()
            graph.create_execution_plans([cudnn.heur_mode.A])
            graph.check_support()
        except Exception as refusal:  # its types differ between versions
            return str(refusal) or type(refusal).__name__
        return None

    def test_training_and_prefill_are_accepted(self):
        for device in ("H100", "A100"):
            for heads in HEADS:
                for rows, keys, mask, backward in [
                        (2048, 2048, "causal", False),  # clean rows of packed samples …
                        (2048, 2048, "causal", True),   # … and their gradients
                        (512, 2048, "none", False),     # a prefix, merged with the rest by log-sum-exp
                        (512, 2048, "none", True),
                        (512, 2048, "last rows", False)]:  # a prompt in pieces
                    with self.subTest(device=device, heads=heads, rows=rows, keys=keys, mask=mask, backward=backward):
                        self.assertIsNone(self.support(device, heads, rows, keys, mask, backward))

    def test_sequences_of_one_packed_tensor_are_accepted(self):
        for device in ("H100", "A100"):
            for heads in HEADS:
                for backward in (False, True):
                    with self.subTest(device=device, heads=heads, backward=backward):
                        self.assertIsNone(self.support(device, heads, 2048, 2048, "causal", backward, packed=True))
                # Noisy rows' prefix.
                with self.subTest(device=device, heads=heads, prefix=True):
                    self.assertIsNone(self.support(device, heads, 512, 2048, "none", packed=True))

    def test_what_it_does_not_have_is_refused(self):
        for heads, why in [((14, 4, 64), "14 heads do not share 4"), ((14, 2, 65), "rows of 130 bytes")]:
            self.assertIsNotNone(self.support("H100", heads, 512, 512, "causal"), why)
        # What the device has counts: one without bfloat16.
        self.assertIsNotNone(self.support("V100", HEADS[0], 512, 512, "causal"))


def prepared():
    """Nothing where cuDNN can be asked; else why not."""
    if importlib.util.find_spec("cudnn") is None:
        return "no Python package cudnn (pip install --no-deps nvidia-cudnn-frontend)"
    for name in ("libcudnn.so.9", "libcudart.so.13", "libnvrtc.so.13"):
        try:
            ctypes.CDLL(str(TOOLKIT / name), ctypes.RTLD_GLOBAL)
        except OSError as error:
            return str(error)
    return None


def main():
    stub = TOOLKIT / "stubs" / "libcuda.so"
    if "JFORGE_CUDNN_ASKED" not in os.environ:
        # The linker reads its path when a program starts.
        with tempfile.TemporaryDirectory() as folder:
            os.symlink(stub, pathlib.Path(folder) / "libcuda.so.1")
            path = [folder, str(TOOLKIT), os.environ.get("LD_LIBRARY_PATH", "")]
            status = os.spawnve(os.P_WAIT, sys.executable, [sys.executable, "-B", *sys.argv],
                                {**os.environ, "JFORGE_CUDNN_ASKED": "1", "LD_LIBRARY_PATH": ":".join(filter(None, path))})
            return status
    reason = prepared() if stub.exists() else f"no {stub}"
    if reason is not None:
        print(f"skipped: {reason}")
        return SKIPPED
    return 0 if unittest.main(exit=False).result.wasSuccessful() else 1


if __name__ == "__main__":
    sys.exit(main())
