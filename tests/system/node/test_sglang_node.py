# SPDX-License-Identifier: Apache-2.0
"""SGLang's storage over a node: ranks share it, and its end is a miss."""

import sys
import threading
import time
from array import array
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).resolve().parents[2] / "python"))

from node_process import SECONDS, Node  # noqa: E402
from test_sglang_storage import VALUES, Config, Pool, indices_of, keys_of  # noqa: E402
from tierce import page_view  # noqa: E402
from tierce.sglang import storage_calls  # noqa: E402
from tierce.sglang.pool_pages import name_of  # noqa: E402
from tierce.sglang.storage_calls import Calls  # noqa: E402


@pytest.fixture
def node(tmp_path):
    out = Node(tmp_path, f"--listen.native={tmp_path}/n.sock")
    yield out
    out.kill()


def connected(node, pool, rank, tp_size=2, **config):
    values = {k: v for k, v in VALUES.items() if k not in ("memory.size", "disk.path")}
    socket = {"node.socket": str(node.folder / "n.sock"), "node.engine": f"rank {rank}"}
    calls = Calls(Config(tp_rank=rank if tp_size > 1 else 0, tp_size=tp_size, **config, extra_config={**values, **socket}), None, "0.5")
    until = time.monotonic() + SECONDS
    while not calls.engine.stats()["node_connected_now"]:
        assert time.monotonic() < until
        calls.engine.flush(1000)
    calls.register_mem_pool_host(pool)
    return calls


def test_ranks_share_a_node(node):
    pool, keys = Pool(), keys_of(2)
    pool.head_num = None
    first, second = (connected(node, pool, rank, is_mla_model=True) for rank in (0, 1))
    content = pool.fill(0, 1)
    assert first.batch_set_v1(keys, indices_of(pool, 0, 0)) == [True, True]
    assert second.batch_exists(keys) == 2
    assert second.batch_get_v1(keys, indices_of(pool, 5, 6)) == [True, True]
    assert (pool.page(5) == content).all() and (pool.page(6) == content).all()
    node.kill()
    assert second.batch_exists(keys) == 0
    assert second.batch_get_v1(keys, indices_of(pool, 5, 6)) == [False, False]
    assert first.batch_set_v1(keys, indices_of(pool, 0, 0)) == [False, False]
    for calls in (first, second):
        calls.close()


def test_ranks_with_heads_are_apart(node):
    pool, key = Pool(), keys_of(1)
    first, second = (connected(node, pool, rank) for rank in (0, 1))
    assert first.batch_set_v1(key, indices_of(pool, 0)) == [True]
    assert first.batch_exists(key) == 1 and second.batch_exists(key) == 0
    for calls in (first, second):
        calls.close()


def test_a_clear_removes_the_pages_of_a_node(node, monkeypatch):
    monkeypatch.setattr(storage_calls, "ERAS", [])
    pool, keys = Pool(), keys_of(2)
    first, second = (connected(node, pool, rank, tp_size=1) for rank in (0, 1))
    assert first.batch_set_v1(keys, indices_of(pool, 0, 1)) == [True, True]
    assert second.batch_exists(keys) == 2
    assert first.clear()
    assert first.batch_exists(keys) == 0 and second.batch_exists(keys) == 0
    assert first.batch_set_v1(keys, indices_of(pool, 0, 1)) == [True, True]
    assert first.batch_exists(keys) == 2 and second.batch_exists(keys) == 0
    for calls in (first, second):
        calls.close()


def test_a_page_that_a_replica_is_storing_counts_as_stored(node, monkeypatch):
    monkeypatch.setattr(page_view, "OTHERS_S", SECONDS)
    pool, keys, has_asked, stored = Pool(), keys_of(2), threading.Event(), []
    first, second = (connected(node, pool, rank, tp_size=1) for rank in (0, 1))
    view, asking = first.pools["kv"].pages.view, second.pools["kv"].pages
    chain, lookup = view.chain(), asking.lookup
    chain.append_hashes(name_of(keys[0]))
    store = view.store_begin(chain, 1, array("i", [0]))

    def noted(*args):
        found = lookup(*args)
        has_asked.set()
        return found

    asking.lookup = noted
    thread = threading.Thread(target=lambda: stored.append(second.batch_set_v1(keys, indices_of(pool, 0, 1))))
    thread.start()
    assert has_asked.wait(SECONDS) and stored == []
    for place in range(2):
        store.layer(place)
    assert store.end() == 1
    thread.join()
    assert stored == [[True, True]]
    assert first.batch_exists(keys) == 2
    for calls in (first, second):
        calls.close()
