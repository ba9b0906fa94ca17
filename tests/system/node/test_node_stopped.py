# SPDX-License-Identifier: Apache-2.0
"""A node that is stopped costs a few of its client's calls their time limit, the later ones nothing, and the
other threads of the client nothing at all."""

import ctypes
import os
import re
import signal
import sys
import threading
import time
from array import array

import pytest
from conftest import why
from node_process import SECONDS, Node

from tierce import _core as core

NAMESPACE = {"weights": "aa", "model": "m", "kv_dtype": "f", "quantization": "", "layout": "l",
             "layer_count": 1, "cell_bytes": [512], "block_tokens": 4, "chunk_blocks": 4,
             "algo": "sha256"}


LOOKUP_S = 2


class Stopped:
    """A node, and a client of it that has looked for a chain."""

    def __init__(self, folder):
        self.path = f"{folder}/node.sock"
        self.control = f"{folder}/control"
        self.node = Node(folder, f"--listen.native={self.path}", f"--disk.path={folder}/disk",
                         f"--control.socket={self.control}")
        self.engine = core.Engine.open(None, {"node.socket": self.path, "timeout.lookup": f"{LOOKUP_S}s"})
        self.view = self.engine.view(NAMESPACE)
        self.chain = self.view.chain()
        self.chain.append(array("i", range(16)))
        assert self.view.lookup(self.chain, 0, 4, 0, 1)[0] == 0  # it is connected

    def stop(self):
        self.node.process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self.node.process.pid, os.WSTOPPED)

    def request(self):
        """The lookup of a request. It finds nothing."""
        assert self.view.lookup(self.chain, 0, 4, 0, 1)[0] == 0
        self.engine.note_request("a", 1, 16, 4, 0, 16, 0, 0, 0, 0)
        self.view.unpin(1)
        self.view.computed(100, 100)

    def request_until(self, connected):
        until = time.monotonic() + SECONDS
        while self.engine.stats()["node_connected_now"] != connected:
            assert time.monotonic() < until
            self.request()
            time.sleep(0.01)

    def close(self):
        del self.view, self.chain
        self.engine.close()


@pytest.fixture
def stopped(tmp_path):
    out = Stopped(tmp_path)
    yield out
    if out.node.process.poll() is None:
        out.node.process.send_signal(signal.SIGCONT)
        out.node.end()


def events(capfd, text=""):
    text += capfd.readouterr().err
    return text, re.findall(r"event=(node_\w+)", text)


def test_later_requests_do_not_wait(stopped, capfd):
    stopped.stop()
    begin = time.monotonic()
    stopped.request_until(0)
    assert time.monotonic() - begin > LOOKUP_S
    begin = time.monotonic()
    for _ in range(50):
        stopped.request()
    assert time.monotonic() - begin < LOOKUP_S  # less than one time limit for all of them
    text, names = events(capfd)
    assert names == ["node_silent"], text
    assert f'socket="{stopped.path}" pid={stopped.node.process.pid} ' in text
    stopped.node.process.send_signal(signal.SIGCONT)
    stopped.request_until(1)
    assert events(capfd, text)[1] == ["node_silent", "node_in_service"]
    assert stopped.engine.stats()["node_connects"] == 1
    stopped.close()


def test_a_stopped_node_that_is_killed_is_lost(stopped, capfd):
    stopped.stop()
    stopped.request_until(0)
    stopped.node.kill()
    stopped.request()
    text, names = events(capfd)
    assert names[:2] == ["node_silent", "node_lost"] and "node_in_service" not in names, text
    stopped.node.start()
    stopped.request_until(1)
    assert events(capfd, text)[1][-1] == "node_in_service"
    stopped.close()


def test_other_threads_go_on(stopped):
    view = stopped.view
    went_on, stop = [], threading.Event()

    def go_on():
        while not stop.wait(0.01):
            went_on.append(time.monotonic())

    thread = threading.Thread(target=go_on)
    thread.start()
    stopped.stop()
    try:
        for call in (lambda: view.unpin(1), lambda: view.computed(100, 100)):
            begin = time.monotonic()
            call()
            end = time.monotonic()
            assert end - begin > 1
            assert sum(begin + 0.2 < t < end - 0.2 for t in went_on) > 5
    finally:
        stop.set()
        thread.join()
        stopped.node.process.send_signal(signal.SIGCONT)
    del view
    stopped.close()


def test_calls_about_a_push_let_other_threads_run(stopped):
    """With this switch interval Python changes to another thread only when the running one releases its lock (GIL), so
    the first thread continues either while the call blocks or after it has returned."""
    engine, view, chain = stopped.engine, stopped.view, stopped.chain
    kv = ctypes.create_string_buffer(512 * 4)
    view.set_paged([ctypes.addressof(kv)], [512], 4)
    store = view.store_begin(chain, 4, array("i", range(4)))
    interval = sys.getswitchinterval()
    sys.setswitchinterval(SECONDS)

    def while_stopped(call, *arguments, meanwhile=lambda: None):
        returned = []
        thread = threading.Thread(target=lambda: returned.append(call(*arguments)))
        stopped.stop()
        thread.start()
        is_blocked = not returned
        meanwhile()
        stopped.node.process.send_signal(signal.SIGCONT)
        thread.join()
        assert is_blocked, call
        return returned[0]

    try:
        assert while_stopped(engine.handover_start, "127.0.0.1", 0) > 0
        while_stopped(view.handover_note, 1, "10.0.0.5", 7000, "it is gone", 2, 4096, 8192)
        to = "127.0.0.1", 1, 32 * "a", 1000, 1000
        push = while_stopped(view.push_begin, *to)
        while_stopped(push.watch, store)
        assert store.layer(0) is None and store.end() == 4
        assert while_stopped(push.held, chain, 4) == 1
        assert while_stopped(view.push_held, push, chain, 4) == 1
        while_stopped(push.end)
        while_stopped(view.push_begin(*to).close)
        assert while_stopped(push.poll, meanwhile=push.close)[4] == 3  # nobody serves at this address
        with pytest.raises(ValueError, match="closed"):
            push.poll()
    finally:
        sys.setswitchinterval(interval)
    del view, push, store
    engine.note_request("a", 1, 16, 4, 0, 16, 0, 0, 0, 0)
    said = why(stopped.control, {"id": "a"})
    assert {name: said[name] for name in said if name.startswith("handover_")} == {
        "handover_from": "10.0.0.5:7000", "handover_tokens": 8, "handover_bytes": 4096, "handover_pushed_bytes": 8192,
        "handover_why": "it is gone"}
    stopped.close()
