# SPDX-License-Identifier: Apache-2.0
"""Whatever is wrong with the store, the answers of a real vLLM are right."""

import os
import random
import re
import shutil
import subprocess

import pytest

from conftest import HostError, answers, loaded
from test_vllm import disk_store, held_and_loaded, memory_store, whole_blocks


@pytest.fixture(scope="module")
def filled(module_engine, prompts, tmp_path_factory):
    """The folder of a store that holds the prompts."""
    folder = tmp_path_factory.mktemp("filled") / "store"
    host = module_engine(disk_store(folder))
    host.generate(prompts=prompts)
    assert host.flush()
    host.stop()
    return folder


def damage(folder, every):
    """Flips one bit in every `every` bytes of what was written."""
    draw = random.Random(5)
    with open(folder / "data", "r+b", buffering=0) as file:
        for start in range(0, os.fstat(file.fileno()).st_size - every, every):
            at = start + draw.randrange(every)
            byte = os.pread(file.fileno(), 1, at)[0]
            os.pwrite(file.fileno(), bytes([byte ^ 1 << draw.randrange(8)]), at)


@pytest.mark.parametrize("mode, every", [("sync", 64 << 10), ("async", 2 << 20)],
                         ids=["every-chunk", "some-chunks-async"])
def test_damaged_chunks(engine, prompts, expected, filled, tmp_path, mode, every):
    folder = shutil.copytree(filled, tmp_path / "store")
    damage(folder, every)
    host = engine(disk_store(folder, **{"load.async": str(mode == "async").lower()}))
    outputs = host.generate(prompts=prompts)
    assert answers(outputs) == expected()
    assert sum(loaded(outputs, "failed")) > 0
    stats = host.stats()
    assert stats["checksum_failures"] + stats["identity_failures"] > 0
    # The newly computed chunks have replaced the damaged ones.
    assert host.forget()
    outputs = host.generate(prompts=prompts)
    assert answers(outputs) == expected()
    assert loaded(outputs, "failed") == [0] * 5
    assert held_and_loaded(outputs) == whole_blocks(prompts)


def test_policy_fail_loads_what_is_verified_only(engine, prompts, expected, filled, tmp_path):
    """There a failed load would end the request, so chunks on disk are verified in memory before they are promised."""
    folder = shutil.copytree(filled, tmp_path / "store")
    damage(folder, 64 << 10)
    host = engine(disk_store(folder), policy="fail")
    outputs = host.generate(prompts=prompts)
    assert answers(outputs) == expected()
    assert {o["end"] for o in outputs} == {"length"}
    assert loaded(outputs, "failed") == [0] * 5
    assert host.stats()["checksum_failures"] > 0
    # The damaged chunks have been computed and stored again.
    assert host.forget()
    outputs = host.generate(prompts=prompts)
    assert answers(outputs) == expected()
    assert held_and_loaded(outputs) == whole_blocks(prompts)
    assert host.text(host.mark).count("kv_load_failure_policy is 'fail'") == 1


def test_policy_fail_uses_a_store_that_is_filled(engine, prompts, expected, filled, tmp_path):
    """vLLM's default policy: an engine that starts again has what the disk kept."""
    host = engine(disk_store(shutil.copytree(filled, tmp_path / "store")), policy="fail")
    outputs = host.generate(prompts=prompts)
    assert answers(outputs) == expected()
    assert held_and_loaded(outputs) == whole_blocks(prompts)
    assert sum(loaded(outputs, "memory")) > 0 and host.stats()["prefetch_blocks"] > 0


def test_policy_fail_keeps_in_memory_what_it_computed(engine, prompts, expected, filled, tmp_path):
    """If nothing may be prefetched, the prompt is computed once, and its chunks are stored in memory."""
    store = disk_store(shutil.copytree(filled, tmp_path / "store"), **{"prefetch.memory": "0"})
    host = engine(store, policy="fail")
    assert answers(host.generate(prompts=prompts)) == expected()
    assert host.forget()
    outputs = host.generate(prompts=prompts)
    assert answers(outputs) == expected()
    assert held_and_loaded(outputs) == whole_blocks(prompts)


def test_a_disk_slower_than_computing_is_left(engine, prompts, expected, filled, tmp_path):
    folder = shutil.copytree(filled, tmp_path / "store")
    host = engine(disk_store(folder, **{"cost.check": "true", "cost.read": "1KB",
                                        "cost.prefill": "1000"}))
    outputs = host.generate(prompts=prompts)
    assert answers(outputs) == expected()
    assert loaded(outputs, "disk") == [0] * 5
    assert host.stats()["blocks_not_worth"] > 0
    # What was computed is stored in memory beside it, and that is worth loading.
    assert host.forget()
    outputs = host.generate(prompts=prompts)
    assert answers(outputs) == expected()
    assert sum(loaded(outputs, "failed")) == 0


# Nothing at all fits into 16 KiB; test_disk_full.c has a file system without any room.
@pytest.mark.parametrize("size", ["3m", pytest.param("16k", marks=pytest.mark.long)])
def test_a_full_disk_is_no_harm(engine, prompts, expected, small_disk, size):
    host = engine(disk_store(small_disk(size) / "store"))
    for _ in range(2):
        outputs = host.generate(prompts=prompts)
        assert answers(outputs) == expected()
        assert host.forget()
    assert held_and_loaded(outputs) == whole_blocks(prompts)


def test_a_folder_that_is_held_means_memory_only(engine, prompts, expected, tmp_path):
    from tierce import _core

    store = disk_store(tmp_path / "store")
    holder = _core.Engine.open(None, store)
    try:
        host = engine(store)
        for _ in range(2):
            outputs = host.generate(prompts=prompts)
            assert answers(outputs) == expected()
            assert host.forget()
    finally:
        holder.close()
    assert held_and_loaded(outputs) == whole_blocks(prompts)
    assert host.text(host.mark).count("event=store_folder_refused") == 1


def test_a_folder_that_vanishes(engine, prompts, expected, tmp_path):
    host = engine(disk_store(tmp_path / "store", **{"memory.size": "2MiB"}))
    host.generate(prompts=prompts[:1])
    shutil.rmtree(tmp_path / "store")
    for _ in range(2):
        assert answers(host.generate(prompts=prompts)) == expected()
        assert host.forget()


@pytest.mark.parametrize("disk", [False, True], ids=["memory", "disk"])
def test_memory_smaller_than_a_prompt(engine, prompts, expected, tmp_path, disk):
    store = disk_store(tmp_path / "store") if disk else memory_store()
    host = engine({**store, "memory.size": "2MiB"})
    for _ in range(2):
        outputs = host.generate(prompts=prompts)
        assert answers(outputs) == expected()
        assert host.forget()
    if disk:
        assert sum(loaded(outputs, "disk")) > 0


@pytest.mark.parametrize("changes, reason", [
    ({"memory.sise": "1GiB"}, "the nearest name is"),
    ({"memory.size": "much"}, "memory.size"),
    ({"config": "/nowhere/tierce.yaml"}, "/nowhere/tierce.yaml"),
    ({"chunk.tokens": 48}, "set 64, for example"),
    ({"memory.size": "1MiB", "chunk.tokens": 8192}, "bytes of memory; raise memory.size or lower chunk.tokens"),
    ({"strict": True, "disk.path": "/nowhere/store"}, "disk.path: /nowhere/store cannot be used: No such file"),
    ({"chunk.hash": "vllm-sha256-cbor"}, "chunk.hash vllm-sha256-cbor requires vLLM's prefix cache"),
])
def test_vllm_does_not_start_with_an_invalid_configuration(hosts, models, changes, reason):
    host = hosts()
    mark = len(host.text())
    with pytest.raises(HostError) as failure:
        host.start(model=models(), store={**memory_store(), **changes})
    assert "ConfigError: Tierce: " in str(failure.value) and reason in str(failure.value)
    assert not host.alive()
    text = host.text(mark)
    said = [line for line in text.splitlines() if "vLLM does not start, because of Tierce: " in line]
    assert len(said) == 1 and reason in said[0], text[-4000:]
    assert "Tierce is off" not in text and "Tierce could not" not in text


def test_strict_requires_a_node(hosts, models, tmp_path):
    host = hosts()
    with pytest.raises(HostError) as failure:
        host.start(model=models(), store={"node.socket": f"{tmp_path}/none", "strict": True})
    assert f"node.socket: no node answers on {tmp_path}/none" in str(failure.value)


def test_strict_requires_an_engine_that_is_served(hosts, models):
    host = hosts()
    with pytest.raises(HostError) as failure:
        host.start(model=models(), store={**memory_store(), "strict": True}, load_format="dummy")
    assert "Tierce: strict: weights of load format 'dummy'" in str(failure.value)


def test_what_is_in_use_is_logged_once_at_the_start(engine, prompts, tmp_path):
    store = disk_store(tmp_path / "store", **{"disk.codec": "lossless"})
    host = engine(store)
    mark = host.mark
    host.generate(prompts=prompts[:1])
    assert host.flush()
    host.stop()
    text = engine(store).text(mark)
    said = [line for line in text.splitlines() if ", chunks of 256 tokens, namespace " in line]
    assert len(said) == 2 and "with 0 chunks" in said[0] and "with 3 chunks (new chunks: lossless)" in said[1], said
    assert re.search(r"Tierce \d+\.\d+\.\d+, memory 256MiB, disk ", said[0]), said[0]
    assert f"{tmp_path}/store 512MiB" in said[0] and "INFO" in said[0]


def test_an_engine_that_is_not_served_is_left_alone(engine, prompts):
    results = []
    for store in (None, memory_store()):
        host = engine(store, load_format="dummy")
        results.append(answers(host.generate(prompts=prompts)))
        text = host.text(host.mark)
        host.stop()
    assert results[0] == results[1]
    assert text.count("Tierce is off: weights of load format 'dummy'") == 1
    assert text.count("Tierce is off") == 1


# ---- every call fails once

STORE = ["lookup", "unpin", "load_begin", "load.layer", "load.end", "store_begin", "store.layer",
         "store.end"]
SCHEDULER = ["ready", "matched_tokens", "allocated", "load_sources", "step", "stepped", "finished",
             "take_counters"]
WORKER = ["lookup", "release", "begin_step", "start_loads", "wait_layer", "save_layer", "end_step",
          "take_results", "take_counters"]
ASYNC = ["submit_load", "begin_load", "count_load"]
CALLS = [(part, name) for part, names in
         (("store", STORE), ("scheduler", SCHEDULER), ("worker", WORKER)) for name in names]


@pytest.fixture(scope="module", params=["sync", "async"])
def faulty(request, module_engine):
    host = module_engine(memory_store(**{"load.async": str(request.param == "async").lower()}))
    host.asynchronous = request.param == "async"
    yield host
    if host.alive():
        host.stop()


def test_no_fault_leaves_the_connector(faulty, prompts, expected):
    calls = CALLS + [("worker", name) for name in ASYNC if faulty.asynchronous]
    right = expected(prompts[:2])
    for part, name in calls:
        where, salts = f"{part}.{name}", [f"{part}.{name}"] * 2
        assert answers(faulty.generate(prompts=prompts[:1], salts=salts)) == right[:1], where
        assert faulty.forget()
        faulty.break_call(part=part, name=name)
        outputs = faulty.generate(prompts=prompts[:2], salts=salts)
        assert faulty.mend_call() > 0, where
        assert answers(outputs) == right, where
        assert {o["end"] for o in outputs} == {"length"}, where
        # Nor was anything wrong stored.
        for _ in range(2):
            assert faulty.forget()
            outputs = faulty.generate(prompts=prompts[:2], salts=salts)
            assert answers(outputs) == right, where
        assert loaded(outputs, "failed") == [0, 0], where
        assert held_and_loaded(outputs) == whole_blocks(prompts[:2]), where
