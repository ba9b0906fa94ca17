# SPDX-License-Identifier: Apache-2.0
"""The Python API: `tierce.open` and what it returns, with numpy and torch."""

import asyncio
import os
import socket
import sys
import threading
import time
from concurrent.futures import CancelledError, wait
from pathlib import Path

import numpy
import pytest

import tierce
import tierce.store

sys.path.append(str(Path(__file__).resolve().parents[1] / "system"))

from node_process import Node  # noqa: E402

LAYERS, BLOCKS, TOKENS, HEADS, SIZE = 3, 64, 16, 2, 8
IDENTITY = {"model": "a model", "weights": "aa", "layout": "kv, token, head, dim", "block_tokens": TOKENS}
PROMPT = list(range(1000, 1000 + 20 * TOKENS))  # 20 blocks: a chunk of 16, and a tail of 4


def open_store(**values):
    return tierce.open({"memory.size": "16MiB", "disk.path": "", **{k.replace("_", ".", 1): v for k, v in values.items()}})


def arrays(dtype="float16"):
    return [numpy.random.default_rng(layer).standard_normal((BLOCKS, 2, TOKENS, HEADS, SIZE)).astype(dtype)
            for layer in range(LAYERS)]


@pytest.fixture
def store():
    with open_store() as store:
        yield store


@pytest.fixture
def disk(tmp_path):
    return {"disk.path": str(tmp_path / "disk"), "disk.size": "64MiB", "timeout.lookup": "30s"}


@pytest.fixture
def mute():
    """The URL of a server that takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        held = []

        def take():
            while True:
                try:
                    held.append(listener.accept()[0])
                except OSError:
                    return

        thread = threading.Thread(target=take)
        thread.start()
        yield f"redis://127.0.0.1:{listener.getsockname()[1]}"
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()
        for connection in held:
            connection.close()


def equal(layers, left, right):
    return all((layer[left] == layer[right]).all() for layer in layers)


def test_what_was_stored_is_loaded(store):
    layers = arrays()
    cache = store.cache(layers, **IDENTITY)
    assert cache.lookup(PROMPT) == tierce.Found(0, 0)
    assert cache.load(PROMPT, range(20)) == tierce.Loaded(0, ())
    assert cache.store(PROMPT + [7] * 5, range(20)) == 20 * TOKENS  # five tokens are no block
    assert cache.store(PROMPT, range(20)) == 0
    assert cache.lookup(PROMPT) == tierce.Found(20 * TOKENS, 20 * TOKENS)
    loaded = cache.load(PROMPT, range(30, 50))
    assert loaded == tierce.Loaded(20 * TOKENS, ("memory",) * 20)
    assert equal(layers, slice(30, 50), slice(0, 20))
    assert cache.lookup(PROMPT[:16 * TOKENS] + [1] * 100).tokens == 16 * TOKENS
    assert store.stats()["pinned_bytes_now"] == 0
    assert store.tiers() == ["memory"]
    assert not store.durable()


def test_blocks_before_the_first_stay_as_they_are(store):
    layers = arrays()
    cache = store.cache(layers, **IDENTITY)
    cache.store(PROMPT, range(20))
    before = [layer[40:45].copy() for layer in layers]
    assert cache.load(PROMPT, range(40, 60), first=5) == tierce.Loaded(20 * TOKENS, ("memory",) * 15)
    assert all((layer[40:45] == old).all() for layer, old in zip(layers, before))
    assert equal(layers, slice(45, 60), slice(5, 20))
    assert cache.load(PROMPT[:5 * TOKENS], range(40, 45), first=5) == tierce.Loaded(5 * TOKENS, ())


def test_tokens_and_blocks_of_any_kind(store):
    torch = pytest.importorskip("torch")
    layers = [torch.rand(BLOCKS, 2, TOKENS, HEADS, SIZE).to(torch.bfloat16) for _ in range(LAYERS)]
    cache = store.cache(layers, **IDENTITY)
    assert cache.store(torch.tensor(PROMPT), torch.arange(20)) == 20 * TOKENS
    assert cache.load(numpy.array(PROMPT, "int64"), numpy.arange(30, 50)).tokens == 20 * TOKENS
    assert all(torch.equal(layer[30:50], layer[:20]) for layer in layers)
    with pytest.raises(OverflowError):
        cache.lookup([1 << 31] * TOKENS)
    with pytest.raises(TypeError):
        cache.lookup(["a"] * TOKENS)


@pytest.mark.parametrize("change", [
    {"model": "another"}, {"weights": "ab"}, {"layout": "kv, head, token, dim"}, {"salt": b"tenant"}, {"lora": b"lora"},
    {"quantization": "q"}, {"dtype": "bfloat16"}, {"block_tokens": 32}, {"chunk_tokens": 128}])
def test_another_identity_finds_nothing(store, change):
    store.cache(arrays(), **IDENTITY).store(PROMPT, range(20))
    assert store.cache(arrays(), **IDENTITY).lookup(PROMPT).tokens == 20 * TOKENS
    assert store.cache(arrays(), **{**IDENTITY, **change}).lookup(PROMPT).tokens == 0


def test_elements_of_layers_are_told_apart(store):
    both = arrays("float16")[0], arrays("int16")[1]
    store.cache(both, **IDENTITY).store(PROMPT, range(20))
    assert store.cache(both, **IDENTITY).lookup(PROMPT).tokens == 20 * TOKENS
    assert store.cache(both[::-1], **IDENTITY).lookup(PROMPT).tokens == 0


def test_another_shape_of_the_same_size_finds_nothing(store):
    store.cache(arrays(), **IDENTITY).store(PROMPT, range(20))
    turned = [layer.reshape(BLOCKS, 2, HEADS, TOKENS, SIZE) for layer in arrays()]
    assert store.cache(turned, **IDENTITY).lookup(PROMPT).tokens == 0
    assert store.cache(arrays("int16"), **IDENTITY).lookup(PROMPT).tokens == 0


def test_durable_kv_is_there_in_the_next_process(disk):
    layers = arrays()
    with open_store(**disk) as store:
        assert store.tiers() == ["memory", "disk"]
        store.cache(layers, **IDENTITY).store(PROMPT, range(20))
        assert store.durable()
    with open_store(**disk) as store:  # memory is empty, as in another process
        cache = store.cache(layers, **IDENTITY)
        assert cache.lookup(PROMPT) == tierce.Found(20 * TOKENS, 0)
        assert cache.load(PROMPT, range(30, 50)) == tierce.Loaded(20 * TOKENS, ("disk",) * 20)
        assert equal(layers, slice(30, 50), slice(0, 20))


def reopened(disk):
    layers = arrays()
    with open_store(**disk) as store:
        store.cache(layers, **IDENTITY).store(PROMPT, range(20))
        assert store.durable()
    store = open_store(**disk)
    return store, store.cache(layers, **IDENTITY), layers


def test_a_prefetch_brings_kv_to_memory(disk):
    store, cache, layers = reopened(disk)
    with store:
        prefetch = cache.prefetch(PROMPT)
        assert prefetch.result(30) == tierce.Found(20 * TOKENS, 20 * TOKENS)
        assert store.stats()["pinned_bytes_now"] > 0
        assert cache.load(PROMPT, range(30, 50), prefetch=prefetch) == tierce.Loaded(20 * TOKENS, ("memory",) * 20)
        assert store.stats()["pinned_bytes_now"] == 0
        assert equal(layers, slice(30, 50), slice(0, 20))


def test_callbacks_and_await(disk):
    store, cache, _ = reopened(disk)
    with store:
        called = threading.Event()
        cache.prefetch(PROMPT).add_done_callback(lambda done: done.result().tokens == 20 * TOKENS and called.set())
        assert called.wait(30)

        async def several():
            return await asyncio.gather(*(cache.prefetch(PROMPT) for _ in range(8)), cache.prefetch([1] * 400))

        assert asyncio.run(several()) == [tierce.Found(20 * TOKENS, 20 * TOKENS)] * 8 + [tierce.Found(0, 0)]
        closing = cache.prefetch(PROMPT)
        closing.result(30)
        closing.close()


@pytest.mark.parametrize("codec", ["none", "lossless"])
def test_a_store_in_python(tmp_path, codec):
    """The example: what one engine has stored there, another one loads."""
    example = Path(__file__).resolve().parents[2] / "examples/plugin_python/folder_store.py"
    file = tmp_path / "folder_store.py"
    file.write_bytes(example.read_bytes())
    values = {"remote_urls": f"python://{file}:FolderStore?folder={tmp_path}/kv&python={sys.executable}", "remote_codec": codec,
              "timeout_lookup": "30s", "timeout_load": "30s"}
    layers = arrays()
    with open_store(**values) as store:
        assert store.cache(layers, **IDENTITY).store(PROMPT, range(20)) == 20 * TOKENS
        assert store.durable()
    assert list((tmp_path / "kv").iterdir())
    with open_store(**values) as store:
        loaded = store.cache(layers, **IDENTITY).load(PROMPT, range(30, 50))
        assert loaded == tierce.Loaded(20 * TOKENS, ("remote",) * 20)
    assert equal(layers, slice(30, 50), slice(0, 20))


def test_a_prefetch_is_cancelled(mute):
    with open_store(remote_urls=mute, timeout_lookup="60s", timeout_prefetch="60s") as store:
        cache = store.cache(arrays(), **IDENTITY)
        one, other = cache.prefetch(PROMPT), cache.prefetch(PROMPT[:TOKENS])
        assert not one.done()
        assert one.cancel() and one.cancelled() and one.done()
        with pytest.raises(CancelledError):
            one.result(0)
        assert not other.done()
    assert wait([one, other], 0).not_done == set()
    assert other.cancelled()


def test_a_load_ends_its_prefetch(mute):
    with open_store(remote_urls=mute, timeout_lookup="1ms", timeout_prefetch="60s") as store:
        cache = store.cache(arrays(), **IDENTITY)
        cache.store(PROMPT, range(20))
        prefetch = cache.prefetch(PROMPT + [1] * 400)
        with pytest.raises(ValueError, match="another cache"):
            store.cache(arrays(), **IDENTITY).load(PROMPT, range(20), prefetch=prefetch)
        assert cache.load(PROMPT, range(20), prefetch=prefetch).tokens == 20 * TOKENS
        assert prefetch.cancelled()
        assert store.stats()["pinned_bytes_now"] == 0


def test_a_prefetch_that_is_kept_holds_nothing(disk):
    store, cache, _ = reopened(disk)
    prefetch = cache.prefetch(PROMPT)
    assert prefetch.result(30).tokens == 20 * TOKENS
    store.close()
    with open_store(**{**disk, "memory.size": "8MiB"}) as later:  # the folder belongs to nobody
        assert later.tiers() == ["memory", "disk"]
    prefetch.close()


def test_a_prefetch_of_a_node(tmp_path):
    path = str(tmp_path / "socket")
    node = Node(tmp_path, f"--listen.native={path}")
    try:
        with tierce.open({"node.socket": path}) as store:
            assert store.tiers() == [f"node {path}"]
            layers = arrays()
            cache = store.cache(layers, **IDENTITY)
            assert cache.store(PROMPT, range(20)) == 20 * TOKENS
            prefetches = [cache.prefetch(PROMPT) for _ in range(3)]
            assert [prefetch.result(30).tokens for prefetch in prefetches] == [20 * TOKENS] * 3
            assert cache.load(PROMPT, range(30, 50), prefetch=prefetches[0]).tokens == 20 * TOKENS
            assert equal(layers, slice(30, 50), slice(0, 20))
            stats = store.stats()
            assert (stats["chunks_stored"], stats["bytes_stored"]) == (2, LAYERS * 20 * 2 * TOKENS * HEADS * SIZE * 2)
            assert stats["blocks_loaded_memory"] == 20 and stats["node_connected_now"] == 1
            assert not {"memory_chunks_now", "misses_never_stored", "stores_skipped"} & stats.keys()  # the node has them
    finally:
        node.end()


def test_close_waits_for_calls(mute):
    with open_store(remote_urls=mute, timeout_lookup="1s") as store:
        cache, ends = store.cache(arrays(), **IDENTITY), []
        thread = threading.Thread(target=lambda: ends.append(cache.lookup(PROMPT)))
        thread.start()
        while cache._calls == 0 and thread.is_alive():
            time.sleep(0.001)
        cache.close()
        assert cache._calls == 0
        thread.join()
        assert ends[0].tokens == 0
        for call in (lambda: cache.lookup(PROMPT), lambda: cache.clear(), lambda: cache.computed(1, 1), cache._call().__enter__):
            with pytest.raises(ValueError, match="closed"):
                call()


def test_a_child_has_sessions_of_its_own():
    read, write = os.pipe()
    if (child := os.fork()) == 0:
        os.write(write, str(next(tierce.store.sessions)).encode())
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert abs(int(os.read(read, 100)) - next(tierce.store.sessions)) > 1000
    os.close(read)
    os.close(write)


def test_a_prefetch_ends_in_time(mute):
    with open_store(remote_urls=mute, timeout_prefetch="60s") as store:
        cache = store.cache(arrays(), **IDENTITY)
        assert cache.prefetch(PROMPT, timeout=0.01).result(30) == tierce.Found(0, 0)


def test_a_store_is_closed_in_a_callback(disk):
    store, cache, _ = reopened(disk)
    closed = threading.Event()
    cache.prefetch(PROMPT).add_done_callback(lambda _: (store.close(), closed.set()))
    assert closed.wait(30)
    with pytest.raises(ValueError, match="closed"):
        cache.prefetch(PROMPT)
    store.close()


def test_damaged_kv_is_not_loaded(disk, tmp_path):
    layers = arrays()
    with open_store(**disk) as store:
        store.cache(layers, **IDENTITY).store(PROMPT, range(20))
        assert store.durable()
    cell = layers[1][3].tobytes()  # in the chunk of 16 blocks
    found = [file for file in (tmp_path / "disk").rglob("*") if file.is_file() and cell in file.read_bytes()]
    assert len(found) == 1
    content = bytearray(found[0].read_bytes())
    content[content.find(cell)] ^= 1
    found[0].write_bytes(content)
    with open_store(**disk) as store:
        cache = store.cache(layers, **IDENTITY)
        loaded = cache.load(PROMPT, range(30, 50))
        assert loaded.tokens < 16 * TOKENS and "failed" in loaded.origins
        assert equal(layers, slice(30, 30 + loaded.tokens // TOKENS), slice(0, loaded.tokens // TOKENS))
        assert cache.lookup(PROMPT).tokens == 0
        assert store.stats()["checksum_failures"] == 1


@pytest.mark.parametrize("layers, text", [
    ([], "empty"),
    ([numpy.zeros((4, 8)), numpy.zeros((5, 8))], "blocks"),
    ([numpy.zeros(8)], "first dimension"),
    ([numpy.zeros((0, 8))], "first dimension"),
    ([numpy.zeros((8, 4)).T], "not contiguous"),
    ([numpy.zeros((4, 8, 2))[:, ::2]], "not contiguous"),
    ([numpy.broadcast_to(numpy.zeros(8), (4, 8))], "read-only"),
    ([numpy.zeros((4, 8), ">f2")], "byte order"),
    ([numpy.zeros((4, 8), object)], "plain numbers"),
    ([numpy.zeros((4, 8), [("a", "f4"), ("b", "i4")])], "plain numbers")])
def test_arrays_that_cannot_be_used(store, layers, text):
    with pytest.raises(ValueError, match=text):
        store.cache(layers, **IDENTITY)


def test_arguments_that_cannot_be_used(store):
    with pytest.raises(TypeError, match="neither"):
        store.cache([b"bytes"], **IDENTITY)
    with pytest.raises(TypeError, match="salt"):
        store.cache(arrays(), **IDENTITY, salt="tenant")
    with pytest.raises(ValueError, match="disk.path is None"):
        tierce.open({"disk.path": None})
    for change, text in (({"block_tokens": 0}, "positive"), ({"chunk_tokens": 100}, "no multiple"), ({"layout": " "}, "layout is empty"),
                         ({"weights": "not hex"}, "weights")):
        with pytest.raises((ValueError, tierce.Error), match=text):
            store.cache(arrays(), **{**IDENTITY, **change})
    cache = store.cache(arrays(), **IDENTITY)
    with pytest.raises(TypeError, match="bytes"):
        cache.lookup(b"a prompt of bytes")
    with pytest.raises(ValueError, match="19 blocks are given"):
        cache.load(PROMPT, range(19))
    cache.store(PROMPT, range(20))
    with pytest.raises(tierce.Error):
        cache.load(PROMPT, [0] * 20)
    assert store.stats()["pinned_bytes_now"] == 0
    cache.close()
    with pytest.raises(ValueError, match="closed"):
        cache.lookup(PROMPT)


def test_values_of_a_configuration():
    with pytest.raises(tierce.Error, match="memory.siz.*memory.size"):
        tierce.open({"memory.siz": "1GiB"})
    with tierce.open({"memory.size": 1 << 24, "disk.path": "", "cost.check": False}) as store:
        assert store.parameter("cost.check") == "false"
        assert store.parameter("memory.size") == "16MiB"
        with pytest.raises(KeyError):
            store.parameter("memory.siz")


def test_settings_without_effect_are_logged(caplog, tmp_path):
    with open_store(codec_lossy="int8", codec_quality=str(tmp_path / "q"), blend_enabled="true"):
        lines = [r.getMessage() for r in caplog.records if r.getMessage().startswith("setting_without_effect ")]
    assert [line.split()[1] for line in lines] == ["setting=codec.lossy", "setting=blend.enabled"]
    caplog.clear()
    with open_store():
        assert not caplog.records


def test_chunks_are_as_configured():
    for values, stored in (({}, 20), ({"chunk_tail": "false"}, 16), ({"chunk_tokens": "128", "chunk_tail": "false"}, 16),
                           ({"chunk_tokens": "64", "chunk_tail": "false"}, 20)):
        with open_store(**values, memory_coded_size="8MiB") as store:
            assert store.tiers() == ["memory", "compressed memory"] and not store.durable()
            assert store.cache(arrays(), **IDENTITY).store(PROMPT, range(20)) == stored * TOKENS


def test_arrays_of_a_view_share_memory(store):
    """Blocks of one array for K, V and all layers: a stride between blocks that is longer than a cell."""
    whole = numpy.random.default_rng(5).standard_normal((BLOCKS, LAYERS, TOKENS, 2 * HEADS * SIZE)).astype("float32")
    cache = store.cache((whole[:, layer] for layer in range(LAYERS)), **IDENTITY)
    assert cache.store(PROMPT, range(20)) == 20 * TOKENS
    assert cache.load(PROMPT, range(40, 60)).tokens == 20 * TOKENS
    assert (whole[40:60] == whole[:20]).all()
    with pytest.raises(ValueError, match="KV of others"):
        store.cache([whole[:, layer] for layer in range(LAYERS)], **IDENTITY, salt=b"a").clear()
    assert cache.clear() == 2
    assert cache.lookup(PROMPT).tokens == 0
