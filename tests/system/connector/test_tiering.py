# SPDX-License-Identifier: Apache-2.0
"""A real vLLM whose own offloading has Tierce as its secondary tier: the answers equal those of a vLLM without
offloading, whatever the origin of the KV. The test supplies only the copies between paged KV and host region (tiering_on_cpu.py)."""

import os
import random

import pytest

from conftest import SHARED_MEMORY, WORKERS, answers, varied
from hybrid_models import make_hybrid
from test_vllm import whole_blocks

CALL_SECONDS = 0.005


def tier_on(folder, **more):
    return {"memory.size": "64MiB", "disk.path": str(folder), "disk.size": "512MiB", "disk.lock_wait": "0",
            "cost.check": "false", **more}


def cached(outputs):
    return [o["cached"] for o in outputs]


def check_calls(host, *made):
    """No call on vLLM's main thread waits for the store, though a call may be delayed by the scheduler of the
    host."""
    took = host.tier_calls()
    assert {"lookup", "get_finished_jobs", *made} <= set(took)
    assert max(took.values()) < CALL_SECONDS, took


def forget_all(host):
    """Clears vLLM's cache and its host region."""
    assert host.reset_connector()


def damage(folder):
    """Flips a bit in the chunks of the store: in one page of each half megabyte of its files."""
    source, flipped = random.Random(1), 0
    for file in sorted(folder.rglob("*")):
        if not file.is_file() or file.stat().st_size < 1 << 20:
            continue
        with open(file, "r+b") as data:
            for begin in range(0, os.fstat(data.fileno()).st_size, 1 << 19):
                at = begin + source.randrange(1 << 18)
                data.seek(at)
                old = data.read(1)
                if old not in (b"", b"\0"):
                    data.seek(at)
                    data.write(bytes([old[0] ^ 4]))
                    flipped += 1
    assert flipped > 0
    return flipped


def test_hits_after_a_restart_and_a_reset(engine, prompts, expected, tmp_path):
    before = set(SHARED_MEMORY.iterdir())
    folder = tmp_path / "store"
    host = engine(tier=tier_on(folder, keep_after_reset=True))
    outputs = host.generate(prompts=prompts)
    assert answers(outputs) == expected()
    check_calls(host, "submit_store")
    assert host.stats()["chunks_stored"] > 0
    # vLLM's memory is empty, and the tier has everything.
    forget_all(host)
    outputs = host.generate(prompts=prompts)
    assert answers(outputs) == expected() and cached(outputs) == whole_blocks(prompts)
    assert host.stats()["blocks_failed"] == 0
    check_calls(host, "submit_load")
    assert host.flush()
    host.stop()

    host = engine(tier=tier_on(folder))
    outputs = host.generate(prompts=prompts)
    assert answers(outputs) == expected() and cached(outputs) == whole_blocks(prompts)
    stats = host.stats()
    assert stats["blocks_loaded_disk"] > 0 and stats["blocks_failed"] == 0
    check_calls(host, "submit_load")
    # After a reset the weights may be different.
    forget_all(host)
    outputs = host.generate(prompts=prompts[:1])
    assert answers(outputs) == expected(prompts[:1]) and cached(outputs) == [0]
    host.stop()
    assert set(SHARED_MEMORY.iterdir()) <= before


def check_hits(host, prompts, right):
    """The prompts are stored, and come from the tier when vLLM's own memory is empty."""
    outputs = host.generate(prompts=prompts)
    assert answers(outputs) == right
    check_calls(host, "submit_store")
    forget_all(host)
    for together in (False, True):
        outputs = host.generate(prompts=prompts, together=together)
        assert answers(outputs) == right and sum(cached(outputs)) > 0
        if not together:
            assert cached(outputs) == whole_blocks(prompts)
        check_calls(host, "submit_load")
        forget_all(host)
    assert host.stats()["blocks_failed"] == 0


@pytest.mark.parametrize("workers", WORKERS)
def test_two_ranks(engine, prompts, plain, tmp_path, workers):
    """A row of the host region has a part of each rank."""
    before, right = set(SHARED_MEMORY.iterdir()), plain(workers)
    folder = tmp_path / "store"
    host = engine(tier=tier_on(folder, keep_after_reset=True), **WORKERS[workers])
    check_hits(host, prompts, right)
    assert host.flush()
    host.stop()
    # One rank alone has other rows, and finds nothing of theirs.
    host = engine(tier=tier_on(folder))
    assert cached(host.generate(prompts=prompts[:1])) == [0]
    host.stop()
    assert set(SHARED_MEMORY.iterdir()) <= before


def test_several_groups(engine, prompts, without_cache, tmp_path, tmp_path_factory):
    """Each group has a namespace of its own, and a window needs only its last blocks."""
    model = make_hybrid(tmp_path_factory.mktemp("hybrid") / "gemma3", "gemma3")
    right = without_cache(lambda _: {"model": model}, lambda host: varied(answers(host.generate(prompts=prompts))))
    host = engine(tier=tier_on(tmp_path / "store", keep_after_reset=True), model=model,
                  disable_hybrid_kv_cache_manager=False)
    assert "3 groups" in host.text(host.mark)
    check_hits(host, prompts, right("gemma3"))


def test_damaged_chunks_are_computed(engine, prompts, expected, tmp_path):
    folder = tmp_path / "store"
    host = engine(tier=tier_on(folder))
    host.generate(prompts=prompts)
    host.tier_calls()
    assert host.flush()
    host.stop()
    damage(folder)
    # On a busy machine, answers later than the default would be misses: then no damaged chunk is read.
    host = engine(tier=tier_on(folder, keep_after_reset=True, **{"timeout.lookup": "5s"}))
    outputs = host.generate(prompts=prompts, together=True)
    assert answers(outputs) == expected()
    assert host.stats()["blocks_failed"] > 0
    assert 0 < sum(cached(outputs)) < sum(whole_blocks(prompts))
    # They were computed, and stored again. After the first failed chunk of a prompt, later chunks may not have been
    # read.
    for _ in prompts:
        host.tier_calls()
        forget_all(host)
        outputs = host.generate(prompts=prompts)
        assert answers(outputs) == expected()
        if cached(outputs) == whole_blocks(prompts):
            return
    assert cached(outputs) == whole_blocks(prompts)


def test_a_node_that_is_killed_is_a_miss(engine, node, prompts, expected):
    host = engine(tier={**node.store, "timeout.lookup": "500ms", "timeout.load": "2s", "keep_after_reset": True})
    assert answers(host.generate(prompts=prompts)) == expected()
    check_calls(host, "submit_store")
    forget_all(host)
    outputs = host.generate(prompts=prompts)
    assert answers(outputs) == expected() and cached(outputs) == whole_blocks(prompts)
    node.kill()
    forget_all(host)
    outputs = host.generate(prompts=prompts)
    assert answers(outputs) == expected() and cached(outputs)[0] == 0
    check_calls(host, "submit_store")
    assert "Tierce's tier failed" not in host.text(host.mark)
