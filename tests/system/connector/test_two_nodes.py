# SPDX-License-Identifier: Apache-2.0
"""Two real vLLMs of two tensor ranks, each with a `tierce node` of its own, as on two hosts, and a store between the
nodes: what one engine has computed the other loads, and the answers are those of a vLLM without a cache."""

from types import SimpleNamespace

import pytest

from conftest import WORKERS, answers, loaded
from node_process import Node
from shared_stores import STORES
from test_native import wait_until
from test_vllm import held_and_loaded, whole_blocks


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    made = {}
    try:
        for name, store in STORES.items():
            made[name] = store(tmp_path_factory.mktemp("places") / name)
        yield made
    finally:
        for place in made.values():
            place.stop()


class Host:
    """An engine, and the nodes that it has had at its socket, one after the other."""

    def __init__(self, folder, module_engine):
        self.folder, self.nodes = folder, []
        # The engine waits for its node as long as it must, whose processes share this machine with two engines of
        # two ranks; the nodes ask the stores with the default timeouts.
        self.engine = module_engine({"node.socket": f"{folder}/socket", "timeout.lookup": "5s"}, **WORKERS["tp"])

    def new_node(self, urls):
        """A node with nothing in memory and on disk, which the engine has found."""
        self.end()
        folder = self.folder / str(len(self.nodes))
        folder.mkdir()
        self.nodes.append(Node(folder, f"--listen.native={self.folder}/socket", "--memory.size=256MiB",
                               f"--disk.path={folder}/disk", "--disk.size=1GiB", f"--remote.urls={urls}",
                               "--cost.check=false"))
        wait_until(self.is_found)
        return self.nodes[-1]

    def is_found(self):
        """A process of the engine looks for the node when it has something for it: all have found it if a prompt
        that no test uses comes from there."""
        return loaded(self.ask([[7] * 600]), "memory")[0] > 0

    def ask(self, prompts):
        assert self.engine.forget()
        return self.engine.generate(prompts=prompts)

    def end(self):
        if self.nodes:
            self.nodes[-1].kill()


@pytest.fixture(scope="module")
def pair(module_engine, places, prompts, plain, tmp_path_factory):
    """Two hosts; the first has computed the prompts and sent them to all places."""
    one, other = (Host(tmp_path_factory.mktemp(name), module_engine) for name in ("one", "other"))
    try:
        node = one.new_node(" ".join(place.uri for place in places.values()))
        outputs = one.ask(prompts)
        assert answers(outputs) == plain("tp") and loaded(outputs, "memory") == [0] * 5
        assert one.engine.flush()
        assert node.metric("remote_dropped_puts_total") == node.metric("remote_errors_total") == 0
        yield SimpleNamespace(one=one, other=other)
    finally:
        one.end()
        other.end()


# The way through two nodes is the same for every store; test_remote.py has an engine with each of them.
@pytest.mark.parametrize("name", [name if name == "file" else pytest.param(name, marks=pytest.mark.long) for name in STORES])
def test_what_one_host_computed_another_loads(pair, places, prompts, plain, name):
    host, place = pair.other, places[name]

    def asked_of_a_new_node():
        node = host.new_node(place.uri)
        outputs = host.ask(prompts)
        assert answers(outputs) == plain("tp")
        failed = node.metric("checksum_failures_total")
        return node, outputs, failed

    def all_came_from_there():
        node, outputs, failed = asked_of_a_new_node()
        assert loaded(outputs, "failed") == [0] * 5 and failed == 0
        came = [a + b for a, b in zip(held_and_loaded(outputs), loaded(outputs, "remote"))]
        assert came == whole_blocks(prompts)
        assert loaded(outputs, "remote")[0] == whole_blocks(prompts)[0]
        return node

    all_came_from_there()
    assert place.spoil() >= sum(whole_blocks(prompts[:1])) // 256
    node, outputs, failed = asked_of_a_new_node()
    assert failed > 0 and sum(loaded(outputs, "failed")) > 0
    # The newly computed chunk has replaced it, in that node and in the store.
    assert host.engine.flush()
    lost = {name: node.metric(name) for name in ("remote_dropped_puts_total", "remote_errors_total")}
    assert not any(lost.values()), lost
    all_came_from_there()
