# SPDX-License-Identifier: Apache-2.0
"""tierce._core with KV in the memory of a GPU, on the driver of tests/support/cuda: in a process of its own, because
that driver replaces a real one."""

import ctypes
import os
import subprocess
import sys
import time
from array import array
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
FAKE = ROOT / "build" / "dev" / "tests" / "cuda" / "libcuda.so.1"
BLOCKS, CELL = 16, 512


def run(work):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "python"), *sys.path])}
    done = subprocess.run([sys.executable, __file__, work.__name__], env=environment, capture_output=True, text=True,
                          timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr


class Device:
    """An engine's stream and two layers on the device, and a view on them."""

    def __init__(self):
        from tierce import _core as core
        self.fake = ctypes.CDLL(str(FAKE), mode=ctypes.RTLD_GLOBAL)  # found by its name from now on
        self.fake.cuda_fake_report.restype = ctypes.c_char_p
        context, self.stream = ctypes.c_void_p(), ctypes.c_void_p()
        self.call("cuInit", 0)
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
        self.call("cuCtxPushCurrent_v2", context)
        self.call("cuStreamCreate", ctypes.byref(self.stream), 1)
        self.layers = [self.allocate() for _ in range(2)]
        self.core = core
        self.engine = core.Engine.open(None, {"memory.size": "16MiB", "disk.path": ""})
        self.view = self.engine.view({
            "weights": "aa", "model": "m", "kv_dtype": "f", "quantization": "", "layout": "l", "layer_count": 2,
            "cell_bytes": [CELL, CELL], "block_tokens": 4, "chunk_blocks": 4, "algo": "sha256"})
        self.view.set_paged(self.layers, [CELL, CELL], BLOCKS, device="cuda")

    def call(self, name, *arguments):
        code = getattr(self.fake, name)(*arguments)
        assert code == 0, (name, code)

    def allocate(self):
        address = ctypes.c_ulonglong()
        self.call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(BLOCKS * CELL))
        return address.value

    def write(self, layer, data):
        self.fake.cuda_fake_kernel_write(self.stream, ctypes.c_ulonglong(self.layers[layer]), data,
                                         ctypes.c_size_t(len(data)), b"the engine computes")

    def read(self, layer):
        data = ctypes.create_string_buffer(BLOCKS * CELL)
        self.fake.cuda_fake_kernel_read(self.stream, data, ctypes.c_ulonglong(self.layers[layer]),
                                        ctypes.c_size_t(BLOCKS * CELL), b"the engine attends")
        self.call("cuStreamSynchronize", self.stream)
        return data.raw


def stores_and_loads():
    device = Device()
    until = time.monotonic() + 60
    while not device.view.prepare():
        assert time.monotonic() < until
    ids = array("i", range(BLOCKS))
    chain = device.view.chain()
    chain.append(array("i", range(4 * BLOCKS)))
    data = [os.urandom(BLOCKS * CELL) for _ in range(2)]
    store = device.view.store_begin(chain, BLOCKS, ids, stream=device.stream.value)
    for layer in range(2):
        device.write(layer, data[layer])
        store.layer(layer)
    assert store.end() == BLOCKS
    for layer in range(2):
        device.write(layer, bytes(BLOCKS * CELL))
    load = device.view.load_begin(chain, 0, BLOCKS, ids, stream=device.stream.value)
    for layer in range(2):
        load.layer(layer)
        assert device.read(layer) == data[layer]
    assert load.end() == bytes([1]) * BLOCKS
    assert device.fake.cuda_fake_report() == b""


def compares_keys(device, load, dtype, size):
    """The two halves of the first layer; the distances are written over the beginning of the second layer."""
    elements, count = 16, BLOCKS * CELL // 2 // (16 * size)
    keys, (first, second) = device.read(0), device.layers
    load.key_distances(second, first, first + BLOCKS * CELL // 2, count, dtype, elements)
    half = len(keys) // 2
    most = device.core.differing_keys(keys[:half], keys[half:], dtype, elements, 0.3)
    assert device.core.greatest_distances(device.read(1)[:4 * count], 0.3) == most
    assert len(most) == -(-count * 3 // 10)
    host = ctypes.create_string_buffer(CELL)
    for args in ((ctypes.addressof(host), first, first), (second, ctypes.addressof(host), first),
                 (second, first, ctypes.addressof(host))):
        with pytest.raises(device.core.Error):
            load.key_distances(*args, 1, dtype, elements)


def rotates_keys():
    """A rotation follows the copy of a layer, and the engine's later work follows it. Its bytes are the host's."""
    device = Device()
    until = time.monotonic() + 60
    while not device.view.prepare():
        assert time.monotonic() < until
    ids = array("i", range(BLOCKS))
    chain = device.view.chain()
    chain.append(array("i", range(4 * BLOCKS)))
    data = [bytearray(os.urandom(BLOCKS * CELL)) for _ in range(2)]
    store = device.view.store_begin(chain, BLOCKS, ids, stream=device.stream.value)
    for layer in range(2):
        device.write(layer, bytes(data[layer]))
        store.layer(layer)
    assert store.end() == BLOCKS
    rope = '{"rope_type": "default", "rope_theta": 10000.0}'
    host = ctypes.create_string_buffer(CELL)
    for dtype, is_neox in (("float32", True), ("bfloat16", True), ("float16", False)):
        size = 4 if dtype == "float32" else 2
        load = device.view.load_begin(chain, 0, BLOCKS, ids, stream=device.stream.value)
        for layer in range(2):
            load.layer(layer)
            load.rotate_keys(device.layers[layer], BLOCKS * CELL // (32 * size), dtype, 32, rope, is_neox, 1234)
            rotated = bytearray(data[layer])
            device.core.rotate_keys(rotated, dtype, 32, rope, is_neox, 1234)
            assert device.read(layer) == rotated != data[layer]
        with pytest.raises(device.core.Error):
            load.rotate_keys(ctypes.addressof(host), 1, dtype, 32, rope, is_neox, 1)
        compares_keys(device, load, dtype, size)
        assert load.end() == bytes([1]) * BLOCKS
    assert device.fake.cuda_fake_report() == b""


def rejects_other_memory():
    device = Device()
    host = ctypes.create_string_buffer(BLOCKS * CELL)
    device.view.set_paged([ctypes.addressof(host)] * 2, [CELL, CELL], BLOCKS, device="cuda")
    with pytest.raises(device.core.Error):
        device.view.prepare()
    device.view.set_paged([ctypes.addressof(host)] * 2, [CELL, CELL], BLOCKS, "host")
    assert device.view.prepare()
    with pytest.raises(ValueError, match="'rocm': \"host\" or \"cuda\""):
        device.view.set_paged(device.layers, [CELL, CELL], BLOCKS, device="rocm")
    with pytest.raises(TypeError):
        device.view.set_paged(device.layers, [CELL, CELL], BLOCKS, device=1)


@pytest.mark.parametrize("work", [stores_and_loads, rotates_keys, rejects_other_memory])
def test_memory_of_a_gpu(work):
    if not FAKE.exists():
        pytest.skip(f"{FAKE} is not built: make build")
    run(work)


if __name__ == "__main__":
    globals()[sys.argv[1]]()
