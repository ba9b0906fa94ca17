# SPDX-License-Identifier: Apache-2.0
"""A real vLLM with a model whose heads share a latent (MLA): all tensor ranks have the same KV, which is
stored once. The answers are those of a vLLM without a cache, also if only one rank fails."""

import pytest

from conftest import answers, loaded
from manager_process import executable
from test_faults import damage
from test_native import OwnNode, gave_back, wait_until
from test_vllm import disk_store, memory_store, whole_blocks

TWO = {"tensor_parallel_size": 2, "worker_extension_cls": "faulty_workers.Extension"}
BLOCK = 16  # vLLM's block size for this kind of cache, regardless of --block-size
TOKEN_BYTES = 4 * 4 * (512 + 64)  # layers, float32, latent and rope


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    from make_model import make_model

    return make_model(str(tmp_path_factory.mktemp("mla") / "model"), "mla", 7)


@pytest.fixture(scope="module")
def asked(prompts):
    """Two prompts, each with two different continuations."""
    return [*prompts[:2], *(prompts[i % 2] + prompts[i][300:] for i in (2, 3, 4))]


@pytest.fixture(scope="module")
def plain(without_cache, model, asked):
    """plain(workers) -> the answers of a vLLM with this number of workers and without a cache."""
    def ask(host):
        right = answers(host.generate(prompts=asked))
        assert len({tuple(a) for a in right}) > 1, "all answers are equal"
        return right

    return without_cache(lambda workers: {"model": model, "tensor_parallel_size": workers}, ask)


@pytest.mark.parametrize("where", ["memory", "disk", "node"])
def test_hits(engine, model, asked, plain, node, tmp_path, where):
    # A busy disk may take longer than the default to read the header that shows a hit inside a chunk.
    on_disk = disk_store(tmp_path / "store", **{"timeout.lookup": "5s"})
    store = {"memory": memory_store(), "disk": on_disk, "node": node.store}[where]
    host = engine(store, model=model)
    outputs = host.generate(prompts=asked)
    assert answers(outputs) == plain(1)
    assert loaded(outputs, "memory")[0] == 0 < loaded(outputs, "memory")[1]  # they have the same beginning
    tier = "memory"
    if where == "disk":
        assert host.flush()
        host.stop()
        host, tier = engine(store, model=model), "disk"
    else:
        assert host.forget()
    outputs = host.generate(prompts=asked[:1])
    assert answers(outputs) == plain(1)[:1]
    assert loaded(outputs, tier)[0] >= whole_blocks(asked)[0]
    outputs = host.generate(prompts=asked, together=True)
    assert answers(outputs) == plain(1) and loaded(outputs, "failed") == [0] * 5
    assert "Tierce is off" not in host.text(host.mark)


def test_damaged_chunks(engine, model, asked, plain, tmp_path):
    store = disk_store(tmp_path / "store")
    host = engine(store, model=model)
    host.generate(prompts=asked)
    assert host.flush()
    host.stop()
    damage(tmp_path / "store", 64 << 10)
    host = engine(store, model=model)
    outputs = host.generate(prompts=asked)
    assert answers(outputs) == plain(1) and sum(loaded(outputs, "failed")) > 0


@pytest.mark.parametrize("mode", ["sync", pytest.param("async", marks=pytest.mark.long)])
def test_one_rank_fails_to_load(engine, model, asked, plain, node, mode):
    """The other rank has no failure, but computed its KV from the first rank's wrong results."""
    host = engine({**node.store, "load.async": str(mode == "async").lower()}, model=model, **TWO)
    outputs = host.generate(prompts=asked[:2])
    assert answers(outputs) == plain(2)[:2]
    # One copy for both ranks: 2 + 3 chunks, of which one is shared, and the headers.
    stored, bytes_now = 4 * 256 * TOKEN_BYTES, node.metric("memory_bytes_now")
    assert stored < bytes_now < 1.2 * stored
    for rank, at in ((0, 2), (1, 3), (1, 4)):
        host.tell_workers(method="fail_loads", arguments=[rank])
        outputs = host.generate(prompts=asked[at:at + 1])
        assert sum(host.tell_workers(method="mend_loads", arguments=[rank])) > 0
        assert answers(outputs) == plain(2)[at:at + 1]
        assert loaded(outputs, "failed")[0] > 0
        # The chunks found now differ from those that the other engine computed then.
        assert host.forget()
        outputs = host.generate(prompts=asked[at:at + 1])
        assert answers(outputs) == plain(2)[at:at + 1]
        assert loaded(outputs, "memory") == whole_blocks(asked[at:at + 1], BLOCK)
        assert loaded(outputs, "failed") == [0]
    assert "Tierce failed in" not in host.text(host.mark)
    host.stop()
    wait_until(gave_back(node))


@pytest.mark.parametrize("rank", [pytest.param(0, marks=pytest.mark.long), 1])
def test_one_rank_is_killed_while_it_stores(engine, model, asked, plain, node, rank):
    host = engine(node.store, model=model, **TWO)
    assert answers(host.generate(prompts=asked[:1])) == plain(2)[:1]
    host.kill_workers_at_once()
    host.tell_workers(method="die_in_store", arguments=[rank])
    with pytest.raises(Exception):
        host.generate(prompts=asked[2:3])
    host.kill()
    wait_until(lambda: node.metric("node_native_clients_now") == 0)
    assert gave_back(node)()
    host = engine(node.store, model=model, **TWO)
    outputs = host.generate(prompts=asked[2:3])
    assert answers(outputs) == plain(2)[2:3]
    assert loaded(outputs, "memory") == whole_blocks(asked[:1], BLOCK)  # no more than was there before
    assert host.forget()
    outputs = host.generate(prompts=asked[2:3])
    assert answers(outputs) == plain(2)[2:3] and loaded(outputs, "memory") == whole_blocks(asked[2:3], BLOCK)


def test_several_ranks_over_a_node_of_their_own(engine, model, asked, plain):
    store = memory_store(**{"node.executable": str(executable()), "timeout.lookup": "20s"})
    host = engine(store, model=model, **TWO)
    assert answers(host.generate(prompts=asked[:1])) == plain(2)[:1]
    assert host.forget()
    outputs = host.generate(prompts=asked[:1])
    assert answers(outputs) == plain(2)[:1] and loaded(outputs, "memory") == whole_blocks(asked[:1], BLOCK)
    node = OwnNode(host)
    host.stop()
    assert node.has_gone()
