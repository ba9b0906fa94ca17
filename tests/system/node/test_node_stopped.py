# SPDX-License-Identifier: Apache-2.0
"""A node that is stopped costs its client's calls their time limit, and the other threads of the
client nothing."""

import os
import signal
import threading
import time
from array import array

from node_process import Node

from tierce import _core as core

NAMESPACE = {"weights": "aa", "model": "m", "kv_dtype": "f", "quantization": "", "layout": "l",
             "layer_count": 1, "cell_bytes": [512], "block_tokens": 4, "chunk_blocks": 4,
             "algo": "sha256"}


def test_other_threads_go_on(tmp_path):
    node = Node(tmp_path, f"--listen.native={tmp_path}/node.sock", f"--disk.path={tmp_path}/disk")
    engine = core.Engine.open(None, {"node.socket": f"{tmp_path}/node.sock", "timeout.lookup": "2s"})
    view = engine.view(NAMESPACE)
    chain = view.chain()
    chain.append(array("i", range(16)))
    assert view.lookup(chain, 0, 4, 0, 1)[0] == 0  # it is connected
    went_on, stop = [], threading.Event()

    def go_on():
        while not stop.wait(0.01):
            went_on.append(time.monotonic())

    thread = threading.Thread(target=go_on)
    thread.start()
    node.process.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, node.process.pid, os.WSTOPPED)
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
        node.process.send_signal(signal.SIGCONT)
    del view
    engine.close()
    node.end()
