# SPDX-License-Identifier: Apache-2.0
"""KV events for vLLM's publisher: a reader of the events holds the blocks of the chunks that the store's tiers hold."""

import ctypes
import hashlib
import os
import random
import threading
import time
from array import array
from types import SimpleNamespace as Thing

import pytest

pytest.importorskip("vllm")
import msgspec  # noqa: E402
import zmq  # noqa: E402
from vllm.distributed.kv_events import AllBlocksCleared, BlockRemoved, KVEventBatch  # noqa: E402
from vllm.utils.hashing import sha256_cbor  # noqa: E402
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash  # noqa: E402
from vllm.v1.kv_cache_interface import get_kv_cache_spec_kind, get_kv_cache_spec_sliding_window  # noqa: E402

from tierce import _core as core  # noqa: E402
from tierce.vllm import kv_events  # noqa: E402
from tierce.vllm.connector import TierceConnector  # noqa: E402
from tierce.vllm.kv_events import CHANGE, EventPart, TierceKVEvents, TierEvents, blocks_of, open_events  # noqa: E402
from tierce.vllm.link import Facts  # noqa: E402
from tierce.vllm.scheduler import SchedulerHalf  # noqa: E402
from tierce.vllm.tracker import ChainRoot, RequestTracker, Rules  # noqa: E402

from test_connector import changed, config  # noqa: E402, F401
from test_groups import STORED, TOKENS, Engine, cache_of, output_of, specs  # noqa: E402
from test_groups import request_of as group_request  # noqa: E402

SIZE, CHUNK, BLOCKS, CELL = 4, 4, 64, 4096
NAMESPACE = {"weights": "aa", "model": "m", "kv_dtype": "f", "quantization": "", "layout": "l", "layer_count": 1,
             "cell_bytes": [CELL], "block_tokens": SIZE, "chunk_blocks": CHUNK, "algo": "sha256"}


def request_of(tokens):
    """A request as vLLM hashes it, with another hash than the store's."""
    hashes, last = [], b"root"
    for start in range(0, len(tokens) - SIZE + 1, SIZE):
        last = hashlib.sha256(last + repr(tokens[start:start + SIZE]).encode()).digest()
        hashes.append(last)
    return Thing(block_hashes=hashes, all_token_ids=tokens, lora_request=None, mm_features=[], cache_salt=None)


class Store:
    """An engine with memory for few chunks, a disk, and paged memory."""

    def __init__(self, path, **values):
        self.engine = core.Engine.open(None, {"memory.size": "1MiB", "disk.path": str(path), "disk.size": "8MiB",
                                              "chunk.tail": "true", **values})
        self.weights = "aa"
        self.open_view()
        self.reader = Reader()

    def open_view(self):
        self.view = self.engine.view({**NAMESPACE, "weights": self.weights})
        self.memory = ctypes.create_string_buffer(CELL * BLOCKS)
        self.view.set_paged([ctypes.addressof(self.memory)], [CELL], BLOCKS)

    def events(self, changes=None, **limits):
        return TierEvents(changes or self.engine.events(), lambda: self.view.namespace and [self.view.namespace],
                          [EventPart(0, CHUNK, SIZE, "full_attention")], **limits)

    def chain(self, request):
        chain = self.view.chain()
        chain.append(array("i", request.all_token_ids))
        return chain

    def store(self, events, tokens, offers=True):
        request = request_of(tokens)
        chain, end = self.chain(request), len(request.block_hashes)
        if offers:
            events.offer(lambda size: chain, tuple(filter(None, [blocks_of(request, 0, end, SIZE)])))
        handle = self.view.store_begin(chain, end, array("i", range(end)), True)
        if handle is not None:  # else nothing is missing
            handle.layer(0)
            handle.end()
        return request, chain

    def contents(self, events):
        """The store's hashes in memory and on disk."""
        out = {"CPU": set(), "DISK": set()}
        for _, _, is_disk, _, _, digest, key in CHANGE.iter_unpack(events.changes.snapshot()[1]):
            if digest == hashlib.sha256(self.view.namespace.encode()).digest():
                out["DISK" if is_disk else "CPU"].add(key)
        return out

    def close(self):
        self.engine.close()


class Reader:
    """Applies events as a router does: nothing is stored twice, nothing is removed that it lacks."""

    def __init__(self):
        self.held = {"CPU": {}, "DISK": {}}  # hash -> (parent, tokens)

    def apply(self, events):
        batch = msgspec.msgpack.Encoder().encode(KVEventBatch(ts=0.0, events=list(events)))
        _, events, *_ = msgspec.msgpack.decode(batch)
        for event in events:
            held = self.held[event["medium"]]
            if event["type"] == "BlockRemoved":
                for h in event["block_hashes"]:
                    del held[h]
                continue
            parent, tokens, size = event["parent_block_hash"], event["token_ids"], event["block_size"]
            assert size == SIZE and len(tokens) == size * len(event["block_hashes"])
            assert event["kv_cache_spec_kind"] == "full_attention" and event["group_idx"] == 0
            for i, h in enumerate(event["block_hashes"]):
                assert h not in held
                held[h] = parent, tokens[i * size:(i + 1) * size]
                parent = h


def number(block_hash):
    return int.from_bytes(block_hash[-8:], "big")


class Model:
    """The blocks of all chunks that were ever stored."""

    def __init__(self):
        self.chunks = {}

    def add(self, request, chain):
        hashes = request.block_hashes
        for start in range(0, len(hashes), CHUNK):
            end = min(start + CHUNK, len(hashes))
            self.chunks[chain.hash(end - 1)] = {
                number(hashes[i]): (number(hashes[i - 1]) if i else None,
                                    request.all_token_ids[i * SIZE:(i + 1) * SIZE]) for i in range(start, end)}

    def held(self, contents):
        return {medium: {h: block for key in keys for h, block in self.chunks.get(key, {}).items()}
                for medium, keys in contents.items()}


@pytest.fixture
def store(tmp_path):
    store = Store(tmp_path)
    yield store
    store.close()


def wait_until(store, events, expected):
    """Changes of the tiers arrive a moment later."""
    until = time.monotonic() + 30
    while True:
        store.reader.apply(events.take())
        want = expected()
        if store.reader.held == want:
            return want
        assert time.monotonic() < until, (len(want["CPU"]), len(store.reader.held["CPU"]))


def prompts(rng):
    """Prompts that share beginnings, also inside chunks, of any length up to BLOCKS blocks."""
    base = [rng.randrange(1000) for _ in range(rng.randrange(2 * CHUNK * SIZE))]
    while True:
        if rng.random() < 0.3:
            base = base[:rng.randrange(len(base) + 1)] + [rng.randrange(1000) for _ in range(rng.randrange(64))]
        tokens = base + [rng.randrange(3) for _ in range(rng.randrange(40))]
        if SIZE <= len(tokens) <= SIZE * BLOCKS:
            yield tokens


@pytest.fixture
def rng():
    seed = int(os.environ.get("TIERCE_TEST_SEED", time.time_ns()))
    print("TIERCE_TEST_SEED", seed)
    return random.Random(seed)


def test_a_reader_holds_the_tiers(store, rng):
    """Across evictions, lost changes, and a reset of the store's namespace."""

    class Changes:
        def __init__(self, changes):
            self.changes, self.lose, self.lost = changes, False, 0

        def take(self):
            lost, found = self.changes.take()
            if self.lose and found:
                self.lost += 1
                self.lose = False
                return True, b""
            return lost, found

        def __getattr__(self, name):
            return getattr(self.changes, name)

    changes, model = Changes(store.engine.events()), Model()
    events = store.events(changes)
    tokens = prompts(rng)
    for step in range(150):
        model.add(*store.store(events, next(tokens)))
        changes.lose |= rng.random() < 0.1
        if step == 100:
            store.weights = "bb"
            store.open_view()
            model = Model()
        if rng.random() < 0.5:
            store.reader.apply(events.take())
    store.engine.flush(30000)
    changes.lose = False
    held = wait_until(store, events, lambda: model.held(store.contents(events)))
    assert held["CPU"] and changes.lost
    assert len(events.offered) <= kv_events.OFFERED_MAX
    store.view = Thing(namespace=None)  # a reset that failed
    store.reader.apply(events.take())
    assert store.reader.held == {"CPU": {}, "DISK": {}} and not events.chunks and not events.sharing
    events.close()


def test_chunks_of_another_process_are_announced_when_they_are_used(tmp_path, rng):
    store, model = Store(tmp_path), Model()
    events = store.events()
    request, chain = store.store(events, [rng.randrange(1000) for _ in range(50)])
    model.add(request, chain)
    store.engine.flush(30000)
    events.close()
    store.close()
    store = Store(tmp_path)
    events = store.events()
    until = time.monotonic() + 30
    while not store.contents(events)["DISK"]:
        assert time.monotonic() < until
    while events.texts is None or events.catching is not None:
        assert events.take() == [] and time.monotonic() < until
    chain = store.chain(request)
    events.offer(lambda size: chain, (blocks_of(request, 0, len(request.block_hashes), SIZE),))
    held = wait_until(store, events, lambda: model.held(store.contents(events)))
    assert len(held["DISK"]) == 12
    events.close()
    store.close()


def test_what_is_remembered_is_bounded(store, rng):
    events, model = store.events(chunks_max=5, offered_max=3), Model()
    model.add(*store.store(events, [rng.randrange(1000) for _ in range(SIZE * CHUNK * 3)]))
    wait_until(store, events, lambda: model.held(store.contents(events)))
    assert store.reader.held["CPU"]
    for _ in range(30):
        model.add(*store.store(events, [rng.randrange(1000) for _ in range(SIZE * CHUNK * 3)]))
        store.reader.apply(events.take())
        assert len(events.chunks) <= 5 and len(events.offered) <= 3
    until = time.monotonic() + 30
    while True:  # fewer than the tiers hold, and nothing else
        store.reader.apply(events.take())
        held = model.held(store.contents(events))
        if events.was_full and all(store.reader.held[medium].items() <= held[medium].items() for medium in held):
            break
        assert time.monotonic() < until
    events.close()


def test_all_is_announced_again(store, rng):
    """After vLLM's AllBlocksCleared readers hold nothing."""
    events, model = store.events(), Model()
    tokens = prompts(rng)
    for _ in range(20):
        model.add(*store.store(events, next(tokens)))
    store.engine.flush(30000)
    held = wait_until(store, events, lambda: model.held(store.contents(events)))
    store.reader = Reader()
    model.add(*store.store(events, next(tokens)))
    events.announce_again()
    assert wait_until(store, events, lambda: model.held(store.contents(events))) and held["CPU"]
    events.close()


def test_a_cleared_cache_is_seen_once():
    connector = TierceConnector.__new__(TierceConnector)
    connector.off, connector.cleared, connector.block_pool = None, None, None
    assert not connector.cache_was_cleared()
    connector.block_pool = Thing(kv_event_queue=[BlockRemoved([1], "GPU")])
    assert not connector.cache_was_cleared()
    connector.block_pool.kv_event_queue.append(AllBlocksCleared())
    assert connector.cache_was_cleared() and not connector.cache_was_cleared()
    connector.block_pool.kv_event_queue.append(AllBlocksCleared())
    assert connector.cache_was_cleared()
    connector.block_pool.kv_event_queue = [AllBlocksCleared()]
    assert connector.cache_was_cleared() and not connector.cache_was_cleared()


def test_blocks_of_a_request():
    request = request_of(list(range(4 * SIZE + 1)))
    blocks = blocks_of(request, 0, 4, SIZE)
    assert blocks.parent is None and blocks.extra_keys is None and array("i", blocks.tokens).tolist() == list(range(16))
    part = blocks_of(request, 1, 4, SIZE).part(2, 4)
    assert part == blocks.part(2, 4) and part.parent == request.block_hashes[1]
    assert blocks_of(request, 0, 5, SIZE) is None  # vLLM hashes whole blocks
    assert blocks_of(request, 4, 4, SIZE) is None
    request.cache_salt = "salt"
    request.prompt_embeds = None
    assert blocks_of(request, 0, 2, SIZE).extra_keys == [("salt",), None]


def test_the_scheduler_half_sends_each_block_once():
    half = SchedulerHalf.__new__(SchedulerHalf)
    half.block_tokens, half.rules = SIZE, Rules(SIZE, CHUNK)
    request = request_of(list(range(100)))
    tracker = RequestTracker("r", 1, ChainRoot(), 100)
    half.facts = Facts()
    tracker.sent_blocks = 6
    assert half.event_blocks(request, tracker) == ()  # vLLM publishes no events
    half.facts = Facts(kv_events=True)
    sent = []
    for end in (6, 6, 9, 25):
        tracker.sent_blocks = end
        sent.append([(b.start, b.start + len(b.hashes)) for b in half.event_blocks(request, tracker)])
    assert sent == [[(0, 6)], [], [(4, 9)], [(8, 25)]]  # from the beginning of a chunk on


@pytest.mark.parametrize("changes, reason", [
    ({"wanted": False}, None), ({"prefix": False}, "prefix caching"),
    ({"ranks": 2}, "node"), ({"node": "/s"}, "node")])
def test_setups_without_events(caplog, changes, reason):
    def param(name):
        assert name == "node.socket"
        return changes.get("node", "")

    half = Thing(
        vllm_config=Thing(kv_events_config=Thing(enable_kv_cache_events=changes.get("wanted", True)),
                          cache_config=Thing(enable_prefix_caching=changes.get("prefix", True))),
        ranks=Thing(count=changes.get("ranks", 1)), engine=Thing(param=param))
    with caplog.at_level("WARNING", "tierce"):
        assert open_events(half, None) is None
    assert (reason in caplog.text) if reason else not caplog.text


def test_events_of_a_step_keep_their_order():
    events = TierceKVEvents([1, 2])
    events.add_events([1])
    assert events.aggregate().get_all_events() == [1, 2, 1] and events.get_number_of_workers() == 1
    events.clear_events()
    assert events.get_all_events() == []


class Slow:
    """Changes whose contents are read when the test permits it."""

    def __init__(self, digest):
        self.digest, self.count, self.present = digest, 0, {}
        self.new, self.lost, self.threads = [], False, []
        self.may_read, self.lock = threading.Event(), threading.Lock()

    def change(self, key, stored):
        with self.lock:
            self.count += 1
            self.present[key] = stored
            self.new.append(CHANGE.pack(self.count, stored, 0, 0, 1, self.digest, key))

    def take(self):
        answer, self.new, self.lost = (self.lost, b"".join(self.new)), [], False
        return answer

    def snapshot(self):
        with self.lock:
            covered = self.count
            found = [CHANGE.pack(0, 1, 0, 0, 1, self.digest, key) for key, held in self.present.items() if held]
            self.threads.append(threading.get_ident())
        assert self.may_read.wait(30)
        return covered, b"".join(found)

    def end(self):
        pass


def test_contents_are_read_beside_the_steps():
    """A step looks at a bounded number of chunks; changes that came meanwhile follow in their order."""
    changes = Slow(hashlib.sha256(b"n").digest())
    events = TierEvents(changes, lambda: ["n"], [EventPart(0, 1, SIZE, "full_attention")], offered_max=1 << 20)
    many = kv_events.WORK_MAX + 1000
    keys = [hashlib.sha256(b"%d" % i).digest() for i in range(many + 2)]
    for key in keys:
        blocks = kv_events.Blocks(0, SIZE, None, (key,), array("i", range(SIZE)).tobytes(), None, None, None)
        events.offer_chunk(b"\0\0" + key, blocks, 0, 1)
    for key in keys[:many]:
        changes.change(key, True)
    changes.take()
    reader, until = Reader(), time.monotonic() + 30

    def wait(is_true):
        while not is_true():
            assert time.monotonic() < until
            out = events.take()
            assert len(out) <= kv_events.WORK_MAX + kv_events.SLICE
            reader.apply(out)

    assert events.take() == []
    wait(lambda: changes.threads)
    changes.change(keys[0], False)  # after what the reading covers
    changes.change(keys[many], True)
    assert events.take() == [] and events.take() == []  # steps do not wait for it
    changes.lost = True  # so it has to be read again
    changes.change(keys[1], False)
    assert events.take() == []
    changes.may_read.set()
    wait(lambda: len(changes.threads) == 2)
    changes.change(keys[2], False)
    changes.change(keys[2], True)
    changes.change(keys[many + 1], True)
    changes.change(keys[many + 1], False)
    wait(lambda: events.catching is None and not events.backlog)
    assert set(reader.held["CPU"]) == {number(key) for key, held in changes.present.items() if held}
    assert len(reader.held["CPU"]) == many - 1 and threading.get_ident() not in changes.threads
    events.announce_again()
    reader = Reader()
    wait(lambda: events.telling is None)
    assert len(reader.held["CPU"]) == many - 1
    events.close()


class GroupReader(Reader):
    """The blocks of each KV cache group, as vLLM's block pool names them."""

    def __init__(self, cache):
        self.specs = [group.kv_cache_spec for group in cache.kv_cache_groups]
        self.held = {}  # group, medium -> hash -> (parent, tokens)

    def apply(self, events):
        batch = msgspec.msgpack.Encoder().encode(KVEventBatch(ts=0.0, events=list(events)))
        for event in msgspec.msgpack.Decoder(KVEventBatch).decode(batch).events:
            held = self.held.setdefault((event.group_idx, event.medium), {})
            if isinstance(event, BlockRemoved):
                for h in event.block_hashes:
                    del held[h]
                continue
            spec, size = self.specs[event.group_idx], event.block_size
            assert size == spec.block_size and len(event.token_ids) == size * len(event.block_hashes)
            assert event.kv_cache_spec_kind == get_kv_cache_spec_kind(spec).value
            assert event.kv_cache_spec_sliding_window == get_kv_cache_spec_sliding_window(spec)
            parent = event.parent_block_hash
            for i, h in enumerate(event.block_hashes):
                assert h not in held
                held[h] = parent, event.token_ids[i * size:(i + 1) * size]
                parent = h


def test_each_group_has_its_events(config):  # noqa: F811
    """Blocks of 32, 16, 64 and 32 tokens: what was stored of each group, and nothing after a reset."""
    wanted = changed(config, "kv_events_config")
    wanted.kv_events_config = Thing(enable_kv_cache_events=True)
    cache = cache_of(specs())
    engine, reader = Engine(wanted, cache), GroupReader(cache)
    init_none_hash(sha256_cbor)
    request = group_request(TOKENS, "a", block_hasher=get_request_block_hasher(16, sha256_cbor))
    hashes = [number(h) for h in request.block_hashes]

    def held_until(is_true):
        until = time.monotonic() + 30
        while not is_true():
            assert time.monotonic() < until, reader.held
            events = engine.worker.get_kv_connector_kv_cache_events()
            reader.apply(events.get_all_events() if events is not None else [])

    def blocks(size, numbers):
        step, tokens = size // 16, list(range(TOKENS))
        return {hashes[(k + 1) * step - 1]: (hashes[k * step - 1] if k else None, tokens[k * size:(k + 1) * size])
                for k in numbers}

    assert engine.scheduler.get_num_new_matched_tokens(request, 0) == (0, False)
    engine.scheduler.update_state_after_alloc(request, output_blocks(STORED), 0)
    engine.step(output_of(request, STORED, 0, TOKENS, [(2, 30, 192)]))
    expected = {(0, "CPU"): blocks(32, range(6)), (1, "CPU"): blocks(16, range(12)), (2, "CPU"): blocks(64, [2]),
                (3, "CPU"): blocks(32, range(6))}
    held_until(lambda: reader.held == expected)
    half = engine.worker.half
    half.view, view = None, half.view  # as a reset that failed leaves it
    held_until(lambda: not any(reader.held.values()))
    half.view = view
    engine.close()


def output_blocks(tables):
    return Thing(blocks=[[Thing(is_null=i == 0, block_hash=None, block_id=i) for i in ids] for ids in tables],
                 get_block_ids=lambda: tables)


# ---- the engine's own publisher (kv_events.endpoint), read with the types of others


class OldStored(msgspec.Struct, array_like=True, tag="BlockStored"):
    """Positional arrays, as vLLM sent them before 0.32 and as llm-d reads them."""

    block_hashes: list[int]
    parent_block_hash: int | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: str | None
    lora_name: str | None


class OldRemoved(msgspec.Struct, array_like=True, tag="BlockRemoved"):
    block_hashes: list[int]
    medium: str | None


class OldCleared(msgspec.Struct, array_like=True, tag="AllBlocksCleared"):
    pass


class OldBatch(msgspec.Struct, array_like=True):
    ts: float
    events: list[OldStored | OldRemoved | OldCleared]
    data_parallel_rank: int | None = None


@pytest.mark.parametrize("form, batch_type", [("maps", KVEventBatch), ("arrays", OldBatch)])
def test_the_stream_has_the_types_of_its_readers(tmp_path, rng, request, form, batch_type):
    """vLLM's own classes decode maps; a reader of llm-d's topics and arrays decodes the others."""
    context = zmq.Context()
    request.addfinalizer(lambda: context.destroy(linger=0))  # a failed test must not wait for its sockets
    sub = context.socket(zmq.SUB)
    sub.setsockopt(zmq.LINGER, 0)
    sub.subscribe(b"kv@pod@model")
    sub.connect(f"ipc://{tmp_path}/pub")
    store = Store(tmp_path, **{"kv_events.endpoint": f"ipc://{tmp_path}/pub", "kv_events.topic": "kv@pod@model",
                               "kv_events.form": form, "kv_events.dp_rank": "3"})
    decode = msgspec.msgpack.Decoder(type=batch_type).decode
    held, last, kinds = {"CPU": set(), "DISK": set()}, None, set()
    both = {"Stored", "Removed"}
    events, until = store.events(), time.monotonic() + 30
    tokens = prompts(rng)
    while True:
        for _ in range(0 if kinds >= both else 10):  # until chunks were stored and evicted
            store.store(events, next(tokens), offers=False)
        while sub.poll(20):
            topic, sequence, payload = sub.recv_multipart()
            assert topic == b"kv@pod@model" and (last is None or int.from_bytes(sequence, "big") == last + 1)
            last, batch = int.from_bytes(sequence, "big"), decode(payload)
            assert batch.data_parallel_rank == 3
            for event in batch.events:
                kind = type(event).__name__.removeprefix("Old").removeprefix("Block")
                kinds.add(kind)
                if kind == "Stored":
                    assert event.block_size % SIZE == 0
                    assert len(event.token_ids) == event.block_size * len(event.block_hashes)
                    held[event.medium].update(event.block_hashes)
                elif kind == "Removed":
                    held[event.medium].difference_update(event.block_hashes)
        want = {medium: {number(key) for key in keys} for medium, keys in store.contents(events).items()}
        if kinds >= both and held["CPU"] and all(held[medium] <= want[medium] for medium in held):
            break  # what was sent before the subscription is missing
        assert time.monotonic() < until, kinds
    events.close()
    store.close()
