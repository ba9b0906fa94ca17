# SPDX-License-Identifier: Apache-2.0
"""Real vLLMs that share a `tierce node` over its native socket: engines of several processes, with tensor and
pipeline parallelism, while processes are killed. The answers always equal those of a vLLM without a cache."""

import os
import re
import signal
import time
from contextlib import suppress
from pathlib import Path

import pytest

from conftest import SHARED_MEMORY, WORKERS, answers, loaded, why
from manager_process import executable
from node_process import SECONDS
from process_tree import descendants
from test_vllm import held_and_loaded, whole_blocks

def wait_until(condition):
    until = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.05)


def gave_back(node):
    """No memory of the node is held for a client."""
    return lambda: node.metric("node_native_held_bytes") == 0 and node.metric("node_native_loads_now") == 0


def test_hits_through_a_node(engine, node, prompts, expected):
    host = engine(node.store)
    outputs = host.generate(prompts=prompts)
    assert answers(outputs) == expected() and loaded(outputs, "memory") == [0] * 5
    said = why(f"{node.folder}/control", outputs[0])  # the node answers for its engines
    assert (said["reason"], said["tokens"], said["found_tokens"]) == ("never_stored", len(prompts[0]), 0)
    assert said["stored_tokens"] >= whole_blocks(prompts)[0]
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


@pytest.mark.parametrize("who", ["running", "started"])
def test_engines_share_a_node(engine, node, prompts, expected, who):
    store = node.store if who == "running" else {
        "memory.size": "256MiB", "node.start": "shared", "node.executable": str(executable()), "timeout.lookup": "20s"}
    first, second = engine(store), engine(store)
    assert "a node for" not in second.text(second.mark)
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
    if who == "started":
        shared = OwnNode(first)
        first.stop()
        assert second.forget() and loaded(second.generate(prompts=news), "memory") == whole_blocks(news)
        second.stop()
        wait_until(shared.has_gone)


@pytest.mark.parametrize("workers", WORKERS)
def test_several_workers(engine, node, prompts, plain, workers):
    wanted = plain(workers)
    host = engine(node.store, **WORKERS[workers])
    outputs = host.generate(prompts=prompts)
    assert answers(outputs) == wanted and loaded(outputs, "memory") == [0] * 5
    said = why(f"{node.folder}/control", outputs[0])  # a chunk that all workers store together counts once
    assert (said["reason"], said["stored_tokens"]) == ("never_stored", len(prompts[0]) // 32 * 32)
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
    assert "Tierce failed in" not in host.text(host.mark)
    host.stop()
    wait_until(gave_back(node))


def test_asynchronous_loads_of_several_workers(engine, node, prompts, plain):
    host = engine({**node.store, "load.async": "true"}, **WORKERS["tp"])
    for _ in range(2):
        outputs = host.generate(prompts=prompts, together=True)
        assert answers(outputs) == plain("tp")
        assert host.forget()
    assert sum(loaded(outputs, "memory")) > 0 and loaded(outputs, "failed") == [0] * 5



def test_without_an_executable_of_this_version(engine, prompts, plain):
    host = engine({"memory.size": "64MiB", "node.executable": "/bin/true"}, **WORKERS["tp"])
    outputs = host.generate(prompts=prompts)
    text = host.text(host.mark)
    assert answers(outputs) == plain("tp") and loaded(outputs, "memory") == [0] * 5
    assert re.search(r"Tierce is off: /bin/true is .*, and the Python module is tierce \d+\.\d+\.\d+; install", text)
    assert "Tierce failed in" not in text and "a node for" not in text


class OwnNode:
    """The node that the connector of this host's engine has started last."""

    def __init__(self, host):
        (*_, (pid, self.socket)) = re.findall(r"Tierce started a node for .*: process (\d+), .*, socket (\S+)",
                                              host.text(host.mark))
        self.pid = int(pid)

    def runs(self):
        try:
            return Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
        except FileNotFoundError:
            return False

    def files(self):
        """In the folder of its sockets."""
        mine = (Path(self.socket).stem, f"{self.pid}-")
        return [path for path in Path(self.socket).parent.iterdir() if path.name.startswith(mine)]

    def has_gone(self):
        return not self.runs() and self.files() == []


def test_a_node_of_the_engine_s_own(engine, prompts, plain, tmp_path):
    """It ends with the engine, also if the engine's processes and all descendants are killed, as vLLM does when it ends. It
    stores everything on disk before."""
    store = {"memory.size": "64MiB", "disk.path": str(tmp_path / "disk"), "disk.size": "512MiB", "cost.check": "false",
             "node.executable": str(executable()), "timeout.lookup": "20s"}
    small = {**WORKERS["tp"], "num_gpu_blocks_override": 70}  # vLLM's own cache does not hold all prompts
    wanted, shared_memory = plain("tp"), set(SHARED_MEMORY.iterdir())

    def generate(host):
        outputs = host.generate(prompts=prompts)
        assert answers(outputs) == wanted
        return outputs, [sum(tokens) for tokens in zip(*(loaded(outputs, w) for w in ("local", "memory", "disk")))]

    host = engine(store, **small)
    node = OwnNode(host)
    assert node.runs() and len(node.files()) == 3
    outputs, _ = generate(host)
    assert loaded(outputs, "memory") == [0] * 5
    outputs, held = generate(host)
    assert held == whole_blocks(prompts) and min(loaded(outputs, "memory")) > 0
    assert loaded(outputs, "failed") == [0] * 5
    for pid in descendants(host.process.pid):
        with suppress(ProcessLookupError):  # vLLM ends the others when one is gone
            os.kill(pid, signal.SIGKILL)
    host.kill()
    wait_until(node.has_gone)
    assert set(SHARED_MEMORY.iterdir()) <= shared_memory

    host = engine(store, **small)
    outputs, held = generate(host)
    assert held == whole_blocks(prompts) and loaded(outputs, "disk")[0] == whole_blocks(prompts)[0]
    # Until a worker has started the next node, there is no cache; until all have connected to it, loads may fail.
    first = OwnNode(host)
    os.kill(first.pid, signal.SIGKILL)
    generate(host)

    def found():
        assert host.forget()
        return generate(host)[1] == whole_blocks(prompts)

    wait_until(found)
    assert OwnNode(host).pid != first.pid and "Tierce failed in" not in host.text(host.mark)
    host.stop()
    assert OwnNode(host).has_gone()


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
        host.kill_workers_at_once()
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
    assert "Tierce failed in" not in host.text(host.mark)


def test_a_node_that_hangs(engine, node, prompts, expected):
    store = {**node.store, "timeout.lookup": "100ms", "timeout.load": "1s"}
    host = engine(store)
    assert answers(host.generate(prompts=prompts)) == expected()
    node.process.send_signal(signal.SIGSTOP)

    def is_silent():
        assert host.forget()
        assert answers(host.generate(prompts=prompts)) == expected()
        return "node_silent" in host.text(host.mark)

    wait_until(is_silent)
    assert f"pid={node.process.pid} " in host.text(host.mark)
    node.process.send_signal(signal.SIGCONT)

    def settled():
        """The node ends an operation, whose answer was not read, at the next request."""
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
    assert "node_in_service" in host.text(host.mark)
