# SPDX-License-Identifier: Apache-2.0
"""Real vLLMs that share a `tierce node` over its native socket: engines of several processes, with
tensor and pipeline parallelism, and whatever of it is killed. The answers are those of a vLLM without
a cache, every time."""

import os
import signal
import time

import pytest

from conftest import WORKERS, answers, loaded
from node_process import SECONDS
from test_vllm import held_and_loaded, whole_blocks

def wait_until(condition):
    until = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.05)


def gave_back(node):
    """Nothing of the node's memory is held for anybody."""
    return lambda: node.metric("node_native_held_bytes") == 0 and node.metric("node_native_loads_now") == 0


def test_hits_through_a_node(engine, node, prompts, expected):
    host = engine(node.store)
    outputs = host.generate(prompts=prompts)
    assert answers(outputs) == expected() and loaded(outputs, "memory") == [0] * 5
    for together in (False, True):
        assert host.forget()
        outputs = host.generate(prompts=prompts, together=together)
        assert answers(outputs) == expected()
        assert loaded(outputs, "failed") == [0] * 5 and sum(loaded(outputs, "memory")) > 0
        if not together:
            assert held_and_loaded(outputs) == whole_blocks(prompts)
    assert host.text(host.mark).count("Tierce is off") == 0
    host.stop()
    wait_until(gave_back(node))


def test_engines_share_a_node(engine, node, prompts, expected):
    first, second = engine(node.store), engine(node.store)
    assert answers(first.generate(prompts=prompts)) == expected()
    outputs = second.generate(prompts=prompts)
    assert answers(outputs) == expected()
    assert held_and_loaded(outputs) == whole_blocks(prompts)
    assert loaded(outputs, "failed") == [0] * 5
    # A prompt that is new to both, computed by the second.
    news = [prompts[1][::-1]]
    assert answers(second.generate(prompts=news)) == expected(news)
    outputs = first.generate(prompts=news)
    assert answers(outputs) == expected(news)
    assert loaded(outputs, "memory") == whole_blocks(news)


@pytest.mark.parametrize("workers", WORKERS)
def test_several_workers(engine, node, prompts, plain, workers):
    wanted = plain(workers)
    host = engine(node.store, **WORKERS[workers])
    outputs = host.generate(prompts=prompts)
    assert answers(outputs) == wanted and loaded(outputs, "memory") == [0] * 5
    for together in (False, True):
        assert host.forget()
        outputs = host.generate(prompts=prompts, together=together)
        assert answers(outputs) == wanted
        assert loaded(outputs, "failed") == [0] * 5 and sum(loaded(outputs, "memory")) > 0
        if not together:
            assert held_and_loaded(outputs) == whole_blocks(prompts)
    # A reset reaches all workers.
    assert host.reset_connector()
    outputs = host.generate(prompts=prompts[:1])
    assert answers(outputs) == wanted[:1] and loaded(outputs, "memory") == [0]
    assert host.forget()
    outputs = host.generate(prompts=prompts[:1])
    assert answers(outputs) == wanted[:1] and loaded(outputs, "memory") == whole_blocks(prompts[:1])
    assert "Tierce failed" not in host.text(host.mark)
    host.stop()
    wait_until(gave_back(node))


def test_asynchronous_loads_of_several_workers(engine, node, prompts, plain):
    host = engine({**node.store, "load.async": "true"}, **WORKERS["tp"])
    for _ in range(2):
        outputs = host.generate(prompts=prompts, together=True)
        assert answers(outputs) == plain("tp")
        assert host.forget()
    assert sum(loaded(outputs, "memory")) > 0 and loaded(outputs, "failed") == [0] * 5


def test_several_workers_need_a_node(engine, prompts, plain):
    host = engine({"memory.size": "64MiB", "disk.path": ""}, **WORKERS["tp"])
    outputs = host.generate(prompts=prompts)
    assert answers(outputs) == plain("tp") and loaded(outputs, "memory") == [0] * 5
    assert "Tierce is off: tensor or pipeline parallelism without node.socket" in (
        host.text(host.mark))


def descendants(pid):
    out = []
    for task in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{task}/children", encoding="ascii") as file:
            for child in map(int, file.read().split()):
                out += [child, *descendants(child)]
    return out


def workers_of(host):
    def name(pid):
        with open(f"/proc/{pid}/comm", encoding="ascii") as file:
            return file.read()

    return [pid for pid in descendants(host.process.pid) if "Worker" in name(pid)]


@pytest.mark.parametrize("who", ["worker", "scheduler"])
def test_what_a_killed_process_held_comes_back(engine, node, prompts, plain, who):
    host = engine(node.store, **WORKERS["tp"])
    assert answers(host.generate(prompts=prompts)) == plain("tp")
    if who == "worker":
        os.kill(workers_of(host)[-1], signal.SIGKILL)
        with pytest.raises(Exception):
            host.generate(prompts=prompts)
    host.kill()
    wait_until(lambda: node.metric("node_native_clients_now") == 0)
    assert gave_back(node)()
    # Published chunks stay.
    host = engine(node.store, **WORKERS["tp"])
    outputs = host.generate(prompts=prompts)
    assert answers(outputs) == plain("tp")
    assert held_and_loaded(outputs) == whole_blocks(prompts)


def test_a_node_that_is_killed_and_comes_back(engine, node, prompts, expected):
    host = engine(node.store)
    assert answers(host.generate(prompts=prompts)) == expected()
    node.kill()
    for _ in range(2):
        assert host.forget()
        outputs = host.generate(prompts=prompts)
        assert answers(outputs) == expected()
        assert loaded(outputs, "memory") == [0] * 5
    node.start()

    def found():
        """First, the KV that vLLM computes is stored; the next request finds it."""
        assert host.forget()
        outputs = host.generate(prompts=prompts)
        assert answers(outputs) == expected()
        return held_and_loaded(outputs) == whole_blocks(prompts)

    wait_until(found)
    assert "Tierce failed" not in host.text(host.mark)


def test_a_node_that_hangs(engine, node, prompts, expected):
    store = {**node.store, "timeout.lookup": "100ms", "timeout.load": "1s"}
    host = engine(store)
    assert answers(host.generate(prompts=prompts)) == expected()
    node.process.send_signal(signal.SIGSTOP)
    assert host.forget()
    assert answers(host.generate(prompts=prompts)) == expected()
    node.process.send_signal(signal.SIGCONT)

    def settled():
        """An operation that it began while no answer was read is ended at the next request."""
        assert host.forget()
        assert answers(host.generate(prompts=prompts[:1])) == expected(prompts[:1])
        return gave_back(node)()

    wait_until(settled)

    def found():
        assert host.forget()
        outputs = host.generate(prompts=prompts)
        assert answers(outputs) == expected()
        return held_and_loaded(outputs) == whole_blocks(prompts)

    wait_until(found)
