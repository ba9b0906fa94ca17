# SPDX-License-Identifier: Apache-2.0
"""A GPU for the tests of the vLLM connector: the driver of tests/support/cuda, and the parts of torch.cuda and of
CUDA tensors that the connector uses, on top of it. torch here has no CUDA. A process that has made a Gpu keeps it."""

import ctypes
import time
from contextlib import contextmanager
from pathlib import Path

import torch
from vllm.v1 import kv_cache_interface as kv

ROOT = Path(__file__).resolve().parents[3]
DRIVER = ROOT / "build" / "dev" / "tests" / "cuda" / "libcuda.so.1"


class Calls(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in ("all", "batches", "copies", "launches", "host_functions")]


class Gpu:
    """The driver, and vLLM's stream. Installs itself in torch.cuda."""

    def __init__(self):
        self.driver = ctypes.CDLL(str(DRIVER), mode=ctypes.RTLD_GLOBAL)  # found by its name from now on
        self.driver.cuda_fake_report.restype = ctypes.c_char_p
        self.driver.cuda_fake_calls.restype = Calls
        self.driver.cuda_fake_fail_nth.restype = ctypes.c_uint64
        self.driver.cuda_fake_calls_here.restype = ctypes.c_uint64
        self.capturing = False
        torch.cuda.Stream = lambda device=None: self.second  # the driver has few
        torch.cuda.Event = lambda enable_timing=False: Event(self)
        torch.cuda.current_stream = lambda device=None: self.stream
        torch.cuda.synchronize = lambda device=None: self.synchronize()
        torch.cuda.is_current_stream_capturing = lambda: self.capturing
        self.stream = self.second = None
        self.streams = []  # all of them

    def start(self):
        """Does the same as torch when a program first uses a GPU."""
        self.context = ctypes.c_void_p()
        self.call("cuInit", 0)
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(self.context), 0)
        self.enter()
        self.stream, self.second = Stream(self), Stream(self)

    def enter(self):
        """A thread that uses torch.cuda."""
        self.call("cuCtxPushCurrent_v2", self.context)

    def call(self, name, *arguments):
        code = getattr(self.driver, name)(*arguments)
        assert code == 0, (name, code)

    def calls(self):
        return self.driver.cuda_fake_calls().all

    def calls_here(self):
        """Calls of this thread: Tierce's memory may be pinned by another one meanwhile."""
        return self.driver.cuda_fake_calls_here()

    def report(self):
        return self.driver.cuda_fake_report().decode()

    @contextmanager
    def held(self):
        """No stream runs meanwhile."""
        self.driver.cuda_fake_hold(True)
        try:
            yield
        finally:
            self.driver.cuda_fake_hold(False)

    def release(self):
        self.driver.cuda_fake_hold(False)

    def synchronize(self):
        for stream in self.streams:
            self.call("cuStreamSynchronize", stream.handle)

    def allocate(self, count):
        """A tensor of `size` bytes that the processor cannot access."""
        address = ctypes.c_ulonglong()
        self.call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(count))
        return torch.frombuffer((ctypes.c_char * count).from_address(address.value), dtype=torch.int8)

    def free(self, tensors):
        """Reports memory that is in use."""
        self.call("cuStreamSynchronize", self.stream.handle)
        for tensor in tensors:
            self.call("cuMemFree_v2", ctypes.c_ulonglong(tensor.data_ptr()))

    def write(self, runs, data, what=b"the model computes"):
        at = 0
        for address, count in runs:
            self.driver.cuda_fake_kernel_write(self.stream.handle, ctypes.c_ulonglong(address), data[at:at + count],
                                               ctypes.c_size_t(count), what)
            at += count
        assert at == len(data)

    def read(self, runs):
        pieces = [(ctypes.create_string_buffer(count), address, count) for address, count in runs]
        for piece, address, count in pieces:
            self.driver.cuda_fake_kernel_read(self.stream.handle, piece, ctypes.c_ulonglong(address),
                                              ctypes.c_size_t(count), b"the model attends")
        self.call("cuStreamSynchronize", self.stream.handle)
        return b"".join(piece.raw for piece, _, _ in pieces)


class Event:
    def __init__(self, gpu):
        self.gpu, self.handle, self.at = gpu, ctypes.c_void_p(), 0.0
        gpu.call("cuEventCreate", ctypes.byref(self.handle), 0)

    def record(self, stream):
        self.at = time.monotonic()
        self.gpu.call("cuEventRecord", self.handle, stream.handle)

    def query(self):
        return self.gpu.driver.cuEventQuery(self.handle) == 0

    def elapsed_time(self, end):
        """In ms, like torch's."""
        return (end.at - self.at) * 1e3


class Stream:
    def __init__(self, gpu):
        self.gpu, self.handle = gpu, ctypes.c_void_p()
        gpu.call("cuStreamCreate", ctypes.byref(self.handle), 1)
        gpu.streams.append(self)

    @property
    def cuda_stream(self):
        return self.handle.value

    def wait_stream(self, other):
        event = Event(self.gpu)
        event.record(other)
        self.gpu.call("cuStreamWaitEvent", self.handle, event.handle, 0)
        self.gpu.call("cuEventDestroy_v2", event.handle)


class CudaTensor:
    """A torch tensor over memory of the driver; only its device differs from torch's."""

    device = torch.device("cuda", 0)

    def __init__(self, tensor):
        self.tensor = tensor

    def __getattr__(self, name):
        return getattr(self.tensor, name)


class Pool:
    """vLLM's KV on the GPU, in one of its layouts. kernel_tokens: block size of the kernels; None: the block size of
    the tables."""

    def __init__(self, gpu, cache, layout=kv.KVCacheLayout.LBNHC, kernel_tokens=None):
        self.gpu, self.count, self.views, self.raw, self.first = gpu, cache.num_blocks, {}, [], {}
        for group in cache.kv_cache_groups:
            spec, names = group.kv_cache_spec, group.layer_names
            tokens = kernel_tokens if isinstance(spec, kv.AttentionSpec) else None
            strides = kv.compute_layout_strides(spec, self.count, len(names), layout, tokens)
            ratio = spec.block_size // (tokens or spec.block_size)
            tensor = kv.KVCacheTensor(size=spec.page_size_bytes * self.count * len(names), layers=names,
                                      layer_stride=strides[0], block_stride=strides[1] * ratio, offset=0)
            self.raw.append(gpu.allocate(tensor.size))
            self.views.update(zip(names, kv.create_kv_cache_views(self.raw[-1], spec, self.count, layout, tensor,
                                                                  tokens)))

    def free(self):
        self.gpu.free(self.raw)

    def tensors(self):
        return {name: CudaTensor(view) for name, view in self.views.items()}

    def runs(self, name, number):
        """Addresses and lengths of a block in vLLM's view. All blocks have the form of the first."""
        view = self.views[name]
        ratio = view.shape[0] // self.count
        if name not in self.first:
            self.first[name] = self.runs_of(view[:ratio])
        at = number * ratio * view.stride(0) * view.element_size()
        return [(address + at, count) for address, count in self.first[name]]

    @staticmethod
    def runs_of(block):
        size, out = block.element_size(), []
        assert block.stride(-1) == 1
        rows = [block.data_ptr() + size * sum(i * s for i, s in zip(at, block.stride()))
                for at in torch.cartesian_prod(*map(torch.arange, block.shape[:-1])).tolist()]
        for row in sorted(rows):
            if out and sum(out[-1]) == row:
                out[-1] = out[-1][0], out[-1][1] + block.shape[-1] * size
            else:
                out.append((row, block.shape[-1] * size))
        return out

    def write(self, name, number, data):
        self.gpu.write(self.runs(name, number), data)

    def read(self, name, number):
        return self.gpu.read(self.runs(name, number))

    def bytes_of(self, name):
        return sum(count for _, count in self.runs(name, 1))
