# SPDX-License-Identifier: Apache-2.0
"""What NIXL's plug-in UCX does between two processes. Tierce does not use it, because of these facts
(docs/inside/design/018-nixl.md). If a test fails with another version of NIXL, that decision is due again."""

import importlib.util
import json
import os
import signal
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from ucx_agent import IN_WORK, OTHER, REGISTERED

PROGRAM = Path(__file__).with_name("ucx_agent.py")
TEXT = REGISTERED.decode()

pytestmark = pytest.mark.skipif(importlib.util.find_spec("nixl_cu12") is None, reason="no NIXL: tools/setup python")


class Agent:
    """A process of ucx_agent.py."""

    def __init__(self, transports, *arguments):
        env = {**os.environ, "UCX_TLS": transports, "UCX_NET_DEVICES": "lo", "UCX_LOG_LEVEL": "fatal", "NIXL_LOG_LEVEL": "FATAL"}
        self.process = subprocess.Popen([sys.executable, str(PROGRAM), *arguments], stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, text=True, env=env)

    def line(self):
        return self.process.stdout.readline().rstrip("\n")

    def ask(self, *call):
        print(json.dumps(call), file=self.process.stdin, flush=True)
        return self.line()

    def call(self, *call):
        return json.loads(self.ask(*call))

    def end(self):
        self.process.kill()
        self.process.communicate()


class Holder(Agent):
    def __init__(self, transports):
        super().__init__(transports, "hold")
        self.transports, self.place = transports, json.loads(self.line())
        self.base, self.other = self.place["base"], self.place["other"]

    def reader(self, area=None):
        """Another process, for which the registered memory is this area."""
        metadata, own = self.place["metadata"], struct.pack("<QQ", self.base, len(TEXT)).hex()
        assert metadata.count(own) == 1
        return Agent(self.transports, "read", metadata.replace(own, struct.pack("<QQ", *area).hex()) if area else metadata)


@pytest.fixture(name="holder", params=["tcp", "shm,tcp"], scope="module")
def run_holder(request):
    holder = Holder(request.param)
    yield holder
    holder.end()


@pytest.fixture(name="reader", scope="module")
def run_reader(holder):
    reader = holder.reader()
    yield reader
    reader.end()


def test_registered_memory_is_read(holder, reader):
    assert reader.call("read", holder.base, len(TEXT)) == [0, TEXT]
    assert reader.call("read", holder.other, len(OTHER))[0].startswith("create_xfer_req")  # the reader's own library refuses


def test_a_reader_that_does_not_refuse_reads_and_writes_all_memory(holder):
    reader = holder.reader(area=(4096, 1 << 47))
    assert reader.call("read", holder.other, len(OTHER)) == [0, OTHER.decode()]
    assert reader.call("write", holder.other, "overwritten by") == 0
    assert holder.ask() == "overwritten by"
    reader.end()


@pytest.mark.parametrize("holder", ["tcp"], indirect=True)  # in shared memory, the reader's kernel copies within the call
def test_a_read_that_was_released_arrives_later(holder, reader):
    assert reader.call("read", holder.base, 10)[0] == 0
    holder.process.send_signal(signal.SIGSTOP)
    os.waitpid(holder.process.pid, os.WUNTRACED)
    assert reader.call("abandon", holder.base, 10000) == [IN_WORK, 0]
    assert reader.call("look", 10000) == "\0" * 10000
    holder.process.send_signal(signal.SIGCONT)
    assert reader.call("read", holder.base, 10)[0] == 0
    assert reader.call("look", 10000) == TEXT[:10000]
