# SPDX-License-Identifier: Apache-2.0
"""A real vLLM with models of several KV cache groups: windows, chunked attention or recurrent states with full
attention, and windows alone. The answers equal those of a vLLM without a cache, also if the store fails or loses chunks."""

import time
from functools import cache

import msgspec
import pytest
import zmq

from conftest import HostError, answers, loaded, varied, why
from hybrid_models import DTYPES, make_hybrid
from test_faults import damage
from test_vllm import disk_store, held_and_loaded, memory_store, whole_blocks

KINDS = ("gemma3", "mistral", "qwen3_next", "gpt_oss", "llama4")
UNITS = {"qwen3_next": 96}  # vLLM makes the block as large as a state; 32 of the others
GROUPS = {"gemma3": 3, "qwen3_next": 4}
# vLLM computes recurrent states slowly on a CPU. In `make test` the model with them has hits, damage and little room; ways
# that do not depend on what a group is have the other one.
EITHER = [kind if kind == "gemma3" else pytest.param(kind, marks=pytest.mark.long) for kind in GROUPS]


def options(kind):
    more = {"qwen3_next": {"mamba_cache_mode": "align"}, "llama4": {"num_gpu_blocks_override": 400}}
    return {"dtype": DTYPES.get(kind, "float32"), **more.get(kind, {})}


def whole_units(prompts, kind):
    return whole_blocks(prompts, UNITS.get(kind, 32))


@pytest.fixture(scope="session")
def hybrid(tmp_path_factory):
    """hybrid(kind) -> the folder of a model."""
    return cache(lambda kind: make_hybrid(tmp_path_factory.mktemp("hybrid") / kind, kind))


@pytest.fixture(scope="session")
def plain(without_cache, hybrid, prompts):
    """plain(kind) -> the answers of a vLLM without a cache."""
    return without_cache(lambda kind: {"model": hybrid(kind), **options(kind)},
                         lambda host: varied(answers(host.generate(prompts=prompts))))


@pytest.fixture
def start(engine, hybrid):
    def begin(kind, store, **more):
        return engine(store, model=hybrid(kind), **{**options(kind), **more})

    return begin


@pytest.mark.parametrize("kind", KINDS)
def test_hits(start, prompts, plain, tmp_path, kind):
    """From memory, and after a kill from disk."""
    store = disk_store(tmp_path / "store", **{"timeout.lookup": "5s"})
    host = start(kind, store)
    moved = 0
    for tier in (None, "memory"):
        outputs = host.generate(prompts=prompts)
        moved += sum(loaded(outputs, "memory"))
        assert answers(outputs) == plain(kind)
        assert tier is None or held_and_loaded(outputs) == whole_units(prompts, kind)
        assert loaded(outputs, "failed") == [0] * 5
        said = why(host.process.pid, outputs[0])
        assert (said["reason"], said["limit"]) == ("never_stored" if tier is None else "none", "none")
        assert said["found_tokens"] == (0 if tier is None else whole_units(prompts, kind)[0])
        if tier is not None:
            blocks = host.group_blocks()
            assert len(blocks) == GROUPS.get(kind, len(blocks)) and all(blocks.values())
            full = [count for group, count in blocks.items() if group.endswith(" full")]
            assert [n * UNITS.get(kind, 32) for n in full] == [moved] * len(full)
        assert host.forget()
    assert host.flush()
    host.kill()
    host = start(kind, store)
    outputs = host.generate(prompts=prompts[:1])
    assert answers(outputs) == plain(kind)[:1]
    assert loaded(outputs, "disk") == whole_units(prompts[:1], kind)
    outputs = host.generate(prompts=prompts, together=True)
    assert answers(outputs) == plain(kind)
    assert loaded(outputs, "failed") == [0] * 5 and sum(loaded(outputs, "disk")) > 0
    assert "Tierce is off" not in host.text(host.mark)


@pytest.mark.parametrize("kind", EITHER)
def test_a_wrong_group_would_be_noticed(start, prompts, plain, kind):
    """Checks that the answers of these models change if the blocks of two groups are exchanged."""
    host = start(kind, memory_store())
    host.generate(prompts=prompts)
    assert host.forget()
    host.rotate_groups(places=[0, 1])
    outputs = host.generate(prompts=prompts)
    assert sum(loaded(outputs, "memory")) > 0
    # Seven tokens of this prompt are computed. After many tokens, the state hardly affects the answers.
    assert answers(outputs)[1] != plain(kind)[1]
    host.mend_call()
    assert host.forget()
    assert answers(host.generate(prompts=prompts)) == plain(kind)


@pytest.mark.parametrize("kind", EITHER)
def test_a_group_that_was_evicted(start, prompts, plain, kind):
    """Nothing is loaded unless all groups have it, and missing chunks are stored again."""
    host = start(kind, memory_store())
    for at in range(GROUPS[kind]):
        salts = dict(salts=[f"without group {at}"] * 2)
        host.forget_stores(at=at)
        assert answers(host.generate(prompts=prompts[:2], **salts)) == plain(kind)[:2]
        host.mend_call()
        assert host.forget()
        outputs = host.generate(prompts=prompts[:2], **salts)
        assert answers(outputs) == plain(kind)[:2]
        assert loaded(outputs, "memory")[0] == loaded(outputs, "failed")[0] == 0
        assert host.forget()
        outputs = host.generate(prompts=prompts[:2], **salts)
        assert answers(outputs) == plain(kind)[:2]
        assert held_and_loaded(outputs) == whole_units(prompts[:2], kind)


@pytest.mark.parametrize("kind", GROUPS)
def test_damaged_chunks(start, prompts, plain, tmp_path, kind):
    store = disk_store(tmp_path / "store", **{"timeout.lookup": "5s"})
    host = start(kind, store)
    host.generate(prompts=prompts)
    assert host.flush()
    host.stop()
    damage(tmp_path / "store", 32 << 10)
    host = start(kind, store)
    outputs = host.generate(prompts=prompts)
    assert answers(outputs) == plain(kind)
    assert {o["end"] for o in outputs} == {"length"} and sum(loaded(outputs, "failed")) > 0
    stats = host.stats()
    assert stats["checksum_failures"] + stats["identity_failures"] > 0
    # The newly computed chunks have replaced the damaged ones.
    for _ in range(2):
        assert host.forget()
        outputs = host.generate(prompts=prompts)
        assert answers(outputs) == plain(kind)
    assert loaded(outputs, "failed") == [0] * 5
    assert held_and_loaded(outputs) == whole_units(prompts, kind)


@pytest.mark.parametrize("kind", EITHER)
def test_a_process_that_is_killed_while_it_stores(start, prompts, plain, tmp_path, kind):
    store = disk_store(tmp_path / "store", **{"timeout.lookup": "5s"})
    host = start(kind, store)
    assert answers(host.generate(prompts=prompts[:1])) == plain(kind)[:1]
    host.die_in_store(at=1)
    with pytest.raises(HostError):
        host.generate(prompts=prompts[1:])
    host = start(kind, store)
    for _ in range(2):
        outputs = host.generate(prompts=prompts)
        assert answers(outputs) == plain(kind)
        assert loaded(outputs, "failed") == [0] * 5
        assert host.forget()
    assert held_and_loaded(outputs) == whole_units(prompts, kind)


@pytest.mark.parametrize("kind", EITHER)
def test_through_a_node(start, prompts, plain, node, kind):
    host = start(kind, node.store)
    for _ in range(2):
        outputs = host.generate(prompts=prompts)
        assert answers(outputs) == plain(kind)
        assert host.forget()
    assert held_and_loaded(outputs) == whole_units(prompts, kind)
    node.kill()
    outputs = host.generate(prompts=prompts)
    assert answers(outputs) == plain(kind) and {o["end"] for o in outputs} == {"length"}


@pytest.mark.parametrize("kind, tokens", [("gemma3", 200), ("qwen3_next", 224)])
def test_little_room(start, prompts, plain, kind, tokens):
    """Steps that end inside chunks, and less KV memory than the prompts need together."""
    host = start(kind, memory_store(), max_num_batched_tokens=tokens, max_model_len=1536,
                 num_gpu_blocks_override=110 if kind == "gemma3" else 60)
    for _ in range(2):
        outputs = host.generate(prompts=prompts, together=True)
        assert answers(outputs) == plain(kind)
        assert loaded(outputs, "failed") == [0] * 5
        assert host.forget()
    assert sum(loaded(outputs, "memory")) > 2000


STORE = ["lookup", "load_begin", "store_begin", "store_state"]
TRANSFER = ["unpin", "load.layer", "load.end", "store.layer", "store.end"]
SCHEDULER = ["ready", "matched_tokens", "allocated", "load_sources", "step", "add_saves", "stepped", "finished"]
WORKER = ["lookup", "release", "begin_step", "start_loads", "end_step", "submit_load", "begin_load", "count_load",
          "take_results"]
# The calls of the other parts do not depend on groups: in `make test`, test_faults.py has them with one group.
CALLS = [("store", STORE), *(pytest.param(*more, marks=pytest.mark.long) for more in
                             (("store", TRANSFER), ("scheduler", SCHEDULER), ("worker", WORKER)))]


@pytest.mark.parametrize(("part", "names"), CALLS)
def test_no_fault_leaves_the_connector(start, prompts, plain, part, names):
    kind = "qwen3_next"
    host, right = start(kind, memory_store()), plain(kind)[:1]
    for name in names:
        where, asked = f"{part}.{name}", dict(prompts=prompts[:1], salts=[f"{part}.{name}"])
        assert answers(host.generate(**asked)) == right, where
        assert host.forget()
        host.break_call(part=part, name=name)
        outputs = host.generate(**asked)
        # A second salt, because loaded chunks are not stored again.
        other = host.generate(prompts=prompts[:1], salts=[f"other {where}"])
        assert host.mend_call() > 0, where
        assert answers(outputs) == answers(other) == right, where
        assert {o["end"] for o in outputs + other} == {"length"}, where
        for _ in range(2):
            assert host.forget()
            outputs = host.generate(**asked)
            assert answers(outputs) == right, where
        assert loaded(outputs, "failed") == [0], where
        assert held_and_loaded(outputs) == whole_units(prompts[:1], kind), where


@pytest.mark.long
@pytest.mark.parametrize("kind", GROUPS)
def test_events_of_each_group(start, prompts, kind):
    """vLLM's publisher sends the blocks of each group in memory, with the names of its own blocks of full attention."""
    sub, size = zmq.Context.instance().socket(zmq.SUB), UNITS.get(kind, 32)
    sub.setsockopt(zmq.LINGER, 0)
    sub.subscribe(b"")
    sub.bind("tcp://127.0.0.1:*")  # vLLM connects to an address without a wildcard
    host = start(kind, memory_store(), events={
        "enable_kv_cache_events": True, "publisher": "zmq", "endpoint": sub.getsockopt_string(zmq.LAST_ENDPOINT)})
    until, known, held = time.monotonic() + 120, {}, {}

    def follow():
        """A step, after which vLLM sends events."""
        assert time.monotonic() < until, (len(known), {group: len(blocks) for group, blocks in held.items()})
        host.generate(prompts=[[1, 2, 3]], tokens=1)
        while sub.poll(50):
            for event in msgspec.msgpack.decode(sub.recv_multipart()[2])[1]:
                if event["type"] == "AllBlocksCleared":
                    held.clear()
                elif event["type"] == "BlockRemoved":
                    for name in event["block_hashes"] if event["medium"] == "CPU" else ():
                        del held[event["group_idx"]][name]
                elif event["medium"] == "CPU" or event["kv_cache_spec_kind"] == "full_attention":
                    blocks = held.setdefault(event["group_idx"], {}) if event["medium"] == "CPU" else known
                    assert event["block_size"] == size and event.get("kv_cache_spec_kind")
                    for i, name in enumerate(event["block_hashes"]):
                        assert event["medium"] == "GPU" or name not in blocks
                        blocks[name] = event["token_ids"][i * size:(i + 1) * size]

    salt = 0
    while not known:  # ZMQ drops what is sent before it is connected
        salt += 1
        host.generate(prompts=prompts[:1], salts=[f"salt {salt}"], tokens=1, wishes={"tierce.skip_save": True})
        follow()
    host.generate(prompts=prompts, tokens=1)
    while len(held) < GROUPS[kind] or not all(held.values()):
        follow()
    for blocks in held.values():
        assert all(known[name] == tokens for name, tokens in blocks.items())
    before = {group: dict(blocks) for group, blocks in held.items()}
    assert host.forget()  # vLLM clears its own cache
    while held != before:
        follow()
    sub.close()
