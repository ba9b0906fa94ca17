# SPDX-License-Identifier: Apache-2.0
"""Real vLLMs that share a pool governed by a manager: each loads the KV that the other computed, whatever storage the
manager chose, and the answers equal those of a vLLM without a cache, also if a manager or a storage is lost."""

import itertools
import signal
import threading
import time

import pytest

from conftest import answers, loaded
import fleet_run
from fleet_world import MORE_STORAGES, STORAGES, Fleet
from hybrid_models import DTYPES, make_hybrid
from manager_process import wait_until
from node_process import Node
from test_remote import load_all
from test_vllm import whole_blocks, whole_chunks

STALL_S = 10  # far above the time of all prompts without a store, also on a busy machine


def fleet_store(fleet, **more):
    """Chunks of one block, so that prompts have many whole chunks: a pool keeps no others."""
    return {"memory.size": "256MiB", "disk.path": "", "remote.urls": fleet.url, "cost.check": "false",
            "chunk.tokens": "32", "breaker.errors": "2", "breaker.retry": "1h", **more}


@pytest.fixture
def build(tmp_path):
    """build(kinds, ...) -> a fleet on a storage of each kind."""
    built = []

    def make(*kinds, **more):
        built.append(Fleet(tmp_path, [(STORAGES | MORE_STORAGES)[kind](tmp_path) for kind in kinds], **more))
        return built[-1]

    yield make
    for fleet in built:
        fleet.stop()


# In `make test` a storage that the engine writes itself, and one whose nodes do. test_fleet_connector has the others too, and
# test_two_ranks S3.
@pytest.mark.parametrize("kind", [kind if kind in ("file", "nodes") else pytest.param(kind, marks=pytest.mark.long)
                                  for kind in STORAGES])
def test_what_one_computed_another_loads(engine, build, prompts, expected, tmp_path, kind):
    fleet = build(kind)
    first = engine(fleet_store(fleet, **{"disk.path": str(tmp_path / "disk")}))
    assert answers(first.generate(prompts=prompts)) == expected()
    assert first.flush()
    assert fleet.storages[0].objects() > 0
    load_all(engine, fleet_store(fleet), prompts, expected)
    # Damaged objects are computed again, and the manager drops their places.
    assert fleet.storages[0].spoil() > 0
    third = engine(fleet_store(fleet))
    outputs = third.generate(prompts=prompts)
    assert answers(outputs) == expected()
    assert loaded(outputs, "remote") == [0] * len(prompts)
    assert third.flush()
    load_all(engine, fleet_store(fleet), prompts, expected)


def test_whole_chunks_of_the_default_size(engine, build, prompts, expected):
    fleet = build("file")
    config = {"memory.size": "256MiB", "disk.path": "", "remote.urls": fleet.url, "cost.check": "false"}
    first = engine(config)
    assert answers(first.generate(prompts=prompts)) == expected()
    assert first.flush()
    second = engine(config)
    outputs = second.generate(prompts=prompts)
    assert answers(outputs) == expected()
    came = [a + b + c for a, b, c in zip(*(loaded(outputs, what) for what in ("local", "memory", "remote")))]
    assert all(c >= w for c, w in zip(came, whole_chunks(prompts))) and max(whole_chunks(prompts)) > 0


@pytest.mark.parametrize("sig", [pytest.param(signal.SIGTERM, marks=pytest.mark.long, id="term"),
                                 pytest.param(signal.SIGKILL, id="kill")])
def test_another_manager_leads(engine, build, prompts, expected, sig):
    """The leader ends while an engine that knows both addresses answers prompts: no answer is wrong, and none waits for
    the next leader, under which everything is found again."""
    rounds = [f"round {i}" for i in range(6)]
    fleet = build("file", managers=2)
    first = engine(fleet_store(fleet))
    for salt in (*rounds, "last"):
        assert answers(first.generate(prompts=prompts, salts=[salt] * len(prompts))) == expected()
    assert first.flush()
    second = engine(fleet_store(fleet, **{"breaker.errors": "100"}))
    outputs = second.generate(prompts=prompts, salts=[rounds[0]] * len(prompts))
    assert answers(outputs) == expected() and loaded(outputs, "remote")[0] == whole_blocks(prompts)[0]
    over, seconds = threading.Thread(target=fleet.fail_over, args=(sig,)), []
    over.start()
    # No salt is asked twice, or stored here: its chunks would be in the engine's own memory, where no lookup asks a manager.
    for salt in itertools.chain(rounds[1:], (f"unknown {i}" for i in itertools.count())):
        began = time.monotonic()
        outputs = second.generate(prompts=prompts, salts=[salt] * len(prompts), wishes={"tierce.skip_save": True})
        seconds.append(time.monotonic() - began)
        assert answers(outputs) == expected()
        assert loaded(outputs, "failed") == [0] * len(prompts)
        if not over.is_alive():
            break
    over.join()
    # A prompt waits 100 ms at most for its lookup; the lease and the deadlines of calls are seconds.
    assert max(seconds) < STALL_S, seconds
    outputs = second.generate(prompts=prompts, salts=["last"] * len(prompts))
    assert answers(outputs) == expected()
    assert loaded(outputs, "remote")[0] == whole_blocks(prompts)[0]


def test_a_storage_is_lost(engine, build, prompts, expected):
    """Blocks in two storages, one of which goes: no wrong answer; what is computed again goes to the other."""
    fleet = build("redis", "file")
    first = engine(fleet_store(fleet))
    assert answers(first.generate(prompts=prompts)) == expected()
    assert first.flush()
    assert fleet.storages[0].objects() > 0
    fleet.storages[0].stop()
    second = engine(fleet_store(fleet))
    assert answers(second.generate(prompts=prompts)) == expected()
    wait_until(lambda: fleet.state_of("redis_01") == "unwell")
    third = engine(fleet_store(fleet))  # one storage that fails does not put the pool out of service
    assert answers(third.generate(prompts=prompts)) == expected()
    assert third.flush()
    load_all(engine, fleet_store(fleet), prompts, expected)
    assert fleet.storages[1].objects() > 0


@pytest.mark.long
@pytest.mark.parametrize("kind", MORE_STORAGES)
def test_a_storage_of_several_processes_is_lost_in_the_middle(engine, build, prompts, expected, kind):
    """All its processes are killed while an engine answers prompts whose blocks are there: no answer is wrong or late, and
    what is computed again goes to the other storage."""
    rounds = [f"round {i}" for i in range(3)]  # Mooncake evicts at the end of its 64 MiB
    fleet = build(kind, "file")
    wait_until(lambda: fleet.state_of(fleet.storages[0].name) == "well")
    first = engine(fleet_store(fleet))
    assert answers(first.generate(prompts=prompts)) == expected()
    for salt in rounds:
        assert answers(first.generate(prompts=prompts, salts=[salt] * len(prompts))) == expected()
    assert first.flush()
    before = fleet.storages[1].objects()  # a write that the other one does not take goes there
    assert fleet.storages[0].objects() > before
    load_all(engine, fleet_store(fleet), prompts, expected)
    second = engine(fleet_store(fleet))
    over, seconds = threading.Thread(target=fleet.storages[0].stop), []
    over.start()
    for salt in 3 * rounds:
        began = time.monotonic()
        outputs = second.generate(prompts=prompts, salts=[salt] * len(prompts))
        seconds.append(time.monotonic() - began)
        assert answers(outputs) == expected()
    over.join()
    assert max(seconds) < STALL_S, seconds
    wait_until(lambda: fleet.state_of(fleet.storages[0].name) == "unwell")
    third = engine(fleet_store(fleet))
    assert answers(third.generate(prompts=prompts)) == expected()
    assert third.flush()
    assert fleet.storages[1].objects() > before
    load_all(engine, fleet_store(fleet), prompts, expected)


def test_two_ranks(engine, build, prompts, plain, tmp_path):
    """Two workers, through a node: their layers are in one chunk, and in one block of the manager."""
    fleet = build("s3")
    expected = plain("tp")
    for name, remote in (("first", 0), ("second", whole_blocks(prompts)[0])):
        (tmp_path / name).mkdir()
        node = Node(tmp_path / name, f"--listen.native={tmp_path}/{name}/native", "--memory.size=256MiB",
                    f"--remote.urls={fleet.url}", "--cost.check=false", "--chunk.tokens=32")
        host = engine({"node.socket": f"{tmp_path}/{name}/native", "timeout.lookup": "20s", "chunk.tokens": "32"},
                      tensor_parallel_size=2)
        outputs = host.generate(prompts=prompts)
        assert answers(outputs) == expected
        assert loaded(outputs, "remote")[0] == remote
        assert host.flush()
        host.stop()
        node.end()


@pytest.mark.parametrize("kind", ["gemma3", pytest.param("qwen3_next", marks=pytest.mark.long)])
def test_groups_of_layers(engine, build, prompts, tmp_path, kind):
    """A model of several KV cache groups, each of which is an instance of the manager."""
    options = {"dtype": DTYPES.get(kind, "float32"),
               **({"mamba_cache_mode": "align"} if kind == "qwen3_next" else {})}
    model = make_hybrid(tmp_path / "model", kind)
    fleet = build({"gemma3": "nodes", "qwen3_next": "redis"}[kind])
    expected = answers(engine(model=model, **options).generate(prompts=prompts))
    unit = {"gemma3": 32, "qwen3_next": 96}[kind]  # tokens of a block
    store = fleet_store(fleet, **{"chunk.tokens": str(unit), "timeout.lookup": "2s"})
    first = engine(store, model=model, **options)
    assert answers(first.generate(prompts=prompts)) == expected
    assert first.flush()
    second = engine(store, model=model, **options)
    outputs = second.generate(prompts=prompts)
    assert answers(outputs) == expected
    assert loaded(outputs, "remote")[0] == whole_blocks(prompts, unit)[0]
    instances = fleet.api.call("admin", "ListInstanceInfo", instance_group_name="default")["instance_info"]
    sparse = {"gemma3": "window", "qwen3_next": "linear"}[kind]
    kinds = {(i["attention_kind"], i["attention_family"]) for i in instances}
    family = {f for k, f in kinds if k == "full"}
    assert len(family) == 1 and (sparse, *family) in kinds  # they are reclaimed together


def test_make_fleet(tmp_path):
    """`make fleet` with its smallest workload."""
    failed, rows = fleet_run.run(tmp_path, sessions=4, tokens=192, quiet=True)
    assert failed == []
    assert {row.member for row in rows} == {"A", "B"}
