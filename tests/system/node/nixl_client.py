# SPDX-License-Identifier: Apache-2.0
"""NIXL's own client with a back end of the folder NIXL_PLUGIN_DIR: a program, because a process loads NIXL once.

    nixl_client.py PLUGIN URL < steps > results

Each line is a list of steps, and is answered by a line with their results. A step is [operation, kind, ranges]: a range is [name, offset, length], and its bytes follow from all three. READ results in
whether the bytes are right, QUERY in which names exist. A failed step results in "ERR".
"""

import hashlib
import json
import os
import sys

ROOM = 4 << 20


def content(name, begin, length):
    """A value's bytes from its offset `begin` on."""
    out = hashlib.shake_256(name.encode()).digest(ROOM)
    return out[begin:begin + length]


class Client:
    def __init__(self, plugin, url):
        # Here, because the test, which skips itself without them, imports this file.
        import numpy
        from nixl_cu12._api import nixl_agent, nixl_agent_config

        self.plugin, self.devices = plugin, {}
        self.bytes_of = lambda data: numpy.frombuffer(data, dtype=numpy.uint8)
        self.agent = nixl_agent("client", nixl_agent_config(backends=[]))
        self.agent.create_backend(plugin, {"url": url} if url else {})
        self.memory = numpy.zeros(ROOM, dtype=numpy.uint8)
        self.agent.register_memory([(self.memory.ctypes.data, ROOM, 0, "")], "DRAM")

    def device(self, kind, name):
        """The number of a registered object, or the descriptor of a file."""
        if (kind, name) not in self.devices:
            number = 1000 + len(self.devices) if kind == "OBJ" else os.open(name, os.O_RDWR | os.O_CREAT, 0o600)
            self.agent.register_memory([(0, ROOM, number, name if kind == "OBJ" else "")], kind)
            self.devices[kind, name] = number
        return self.devices[kind, name]

    def transfer(self, operation, kind, ranges):
        base, places, at = self.memory.ctypes.data, [], 0
        for name, offset, length in ranges:
            if operation == "WRITE":
                self.memory[at:at + length] = self.bytes_of(content(name, offset, length))
            places.append((at, length))
            at += length
        if operation == "READ":
            self.memory[:at] = 0x5a
        handle = self.agent.initialize_xfer(
            operation, self.agent.get_xfer_descs([(base + a, length, 0) for a, length in places], "DRAM"),
            self.agent.get_xfer_descs([(offset, length, self.device(kind, name)) for name, offset, length in ranges], kind),
            "client")
        state = self.agent.transfer(handle)
        while state == "PROC":
            state = self.agent.check_xfer_state(handle)
        self.agent.release_xfer_handle(handle)
        if state != "DONE":
            return state
        return operation == "WRITE" or all(
            self.memory[a:a + length].tobytes() == content(name, offset, length)
            for (a, length), (name, offset, _) in zip(places, ranges))

    def step(self, operation, kind, ranges):
        try:
            if operation == "QUERY":
                found = self.agent.query_memory([(offset, 0, 0, name) for name, offset, _ in ranges], self.plugin, mem_type=kind)
                return [answer is not None for answer in found]
            return self.transfer(operation, kind, ranges)
        except Exception as error:  # pylint: disable=broad-except  # NIXL's
            return f"ERR {type(error).__name__}"


if __name__ == "__main__":
    CLIENT = Client(sys.argv[1], sys.argv[2])
    for LINE in sys.stdin:
        print(json.dumps([CLIENT.step(*step) for step in json.loads(LINE)]), flush=True)
