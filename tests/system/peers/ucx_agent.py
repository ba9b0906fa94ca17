# SPDX-License-Identifier: Apache-2.0
"""An agent of NIXL with its plug-in UCX, by NIXL's C library: a program, because a process loads NIXL once.

    ucx_agent.py hold             prints a JSON object; then, for each line of standard input, its memory that is not registered
    ucx_agent.py read METADATA    the other side; a line of standard input is a call of Reader, and is answered by a line
"""

import ctypes
import importlib.util
import json
import mmap
import os
import sys
import time
from pathlib import Path

REGISTERED, OTHER = b"registered " * 200000, b"not registered"
DRAM, READ, WRITE, IN_WORK = 0, 0, 1, 1
POLLS, SECONDS = 1000, 20


class Config(ctypes.Structure):
    _fields_ = [("progress_thread", ctypes.c_bool), ("listen_thread", ctypes.c_bool), ("listen_port", ctypes.c_int),
                ("thread_sync", ctypes.c_int), ("workers", ctypes.c_uint), ("progress_delay_us", ctypes.c_uint64),
                ("listen_delay_us", ctypes.c_uint64), ("telemetry", ctypes.c_bool)]


def memory_of(size):
    memory = mmap.mmap(-1, size)
    return memory, ctypes.addressof(ctypes.c_char.from_buffer(memory))


class Agent:
    def __init__(self, name, base, size, progress_thread):
        wheel = Path(importlib.util.find_spec("nixl_cu12").origin).parent.parent
        self.library = ctypes.CDLL(str(wheel / ".nixl_cu12.mesonpy.libs" / "libnixl_capi.so"))
        self.agent = self.make("create_configured_agent", name.encode(), ctypes.byref(Config(progress_thread=progress_thread)))
        backend = self.make("create_backend", self.agent, b"UCX", self.make("create_params"))
        self.options = self.make("create_opt_args")
        self.call("opt_args_add_backend", self.options, backend)
        area = self.make("create_reg_dlist", DRAM)
        self.call("reg_dlist_add_desc", area, ctypes.c_size_t(base), ctypes.c_size_t(size), ctypes.c_uint64(0), b"",
                  ctypes.c_size_t(0))
        self.call("register_mem", self.agent, area, self.options)

    def call(self, function, *arguments):
        status = getattr(self.library, "nixl_capi_" + function)(*arguments)
        if status != 0:
            raise RuntimeError(f"{function}: {status}")

    def make(self, function, *arguments):
        handle = ctypes.c_void_p()
        self.call(function, *arguments, ctypes.byref(handle))
        return handle

    def metadata(self):
        data, size = ctypes.c_void_p(), ctypes.c_size_t()
        self.call("get_local_md", self.agent, ctypes.byref(data), ctypes.byref(size))
        return ctypes.string_at(data, size.value)

    def load(self, metadata):
        name = ctypes.c_char_p()
        self.call("load_remote_md", self.agent, metadata, ctypes.c_size_t(len(metadata)), ctypes.byref(name))
        return name.value

    def request(self, operation, local, remote, size, peer):
        places = [self.make("create_xfer_dlist", DRAM) for _ in range(2)]
        for place, address in zip(places, (local, remote)):
            self.call("xfer_dlist_add_desc", place, ctypes.c_size_t(address), ctypes.c_size_t(size), ctypes.c_uint64(0))
        request = ctypes.c_void_p()
        self.call("create_xfer_req", self.agent, operation, *places, peer, ctypes.byref(request), self.options)
        return request

    def post(self, request):
        return self.library.nixl_capi_post_xfer_req(self.agent, request, None)

    def status(self, request):
        return self.library.nixl_capi_get_xfer_status(self.agent, request)

    def release(self, request):
        return self.library.nixl_capi_release_xfer_req(self.agent, request)


class Reader:
    def __init__(self, metadata):
        self.memory, self.base = memory_of(2 * len(REGISTERED))
        self.agent = Agent("reader", self.base, len(self.memory), False)
        self.peer = self.agent.load(metadata)
        self.abandoned = self.base + len(REGISTERED)

    def run(self, operation, remote, size):
        try:
            request = self.agent.request(operation, self.base, remote, size, self.peer)
        except RuntimeError as error:
            return str(error)
        end = time.monotonic() + SECONDS
        status = self.agent.post(request)
        while status == IN_WORK and time.monotonic() < end:
            status = self.agent.status(request)
        return status

    def read(self, remote, size):
        return self.run(READ, remote, size), self.memory[:size].decode()

    def write(self, remote, text):
        self.memory[:len(text)] = text.encode()
        return self.run(WRITE, remote, len(text))

    def abandon(self, remote, size):
        """A read that is released while it is in work."""
        request = self.agent.request(READ, self.abandoned, remote, size, self.peer)
        status = self.agent.post(request)
        for _ in range(POLLS):
            status = self.agent.status(request) if status == IN_WORK else status
        return status, self.agent.release(request)

    def look(self, size):
        """The memory of the abandoned read."""
        return self.memory[len(REGISTERED):len(REGISTERED) + size].decode()


def hold():
    memory, base = memory_of(len(REGISTERED))
    other, at = memory_of(mmap.PAGESIZE)
    memory[:], other[:len(OTHER)] = REGISTERED, OTHER
    agent = Agent("holder", base, len(REGISTERED), True)
    print(json.dumps({"metadata": agent.metadata().hex(), "base": base, "other": at}), flush=True)
    for _ in sys.stdin:
        print(other[:len(OTHER)].decode(), flush=True)


def serve(reader):
    for line in sys.stdin:
        function, *arguments = json.loads(line)
        print(json.dumps(getattr(reader, function)(*arguments)), flush=True)


if __name__ == "__main__":
    if sys.argv[1] == "hold":
        hold()
    else:
        serve(Reader(bytes.fromhex(sys.argv[2])))
    os._exit(0)  # NIXL's libraries may not end with the interpreter
