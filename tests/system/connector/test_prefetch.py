# SPDX-License-Identifier: Apache-2.0
"""Requests of a real vLLM that wait for their prefetch: the answers are those of a vLLM without a
store, and what lay on disk is loaded from memory."""

import random
import shutil

import pytest

from conftest import answers, loaded
from test_faults import damage
from test_vllm import disk_store, held_and_loaded, whole_blocks


@pytest.fixture(scope="module")
def filled(module_engine, prompts, tmp_path_factory):
    """The folder of a store that holds the prompts."""
    folder = tmp_path_factory.mktemp("prefetched") / "store"
    host = module_engine(disk_store(folder))
    host.generate(prompts=prompts)
    assert host.flush()
    host.stop()
    return folder


@pytest.mark.parametrize("load", ["sync", "async"])
def test_what_lies_on_disk_is_in_memory_when_it_is_loaded(engine, prompts, expected, filled, load):
    host = engine(disk_store(filled, **{"load.prefetch": "true",
                                        "load.async": str(load == "async").lower()}))
    outputs = host.generate(prompts=prompts)
    assert answers(outputs) == expected()
    assert held_and_loaded(outputs) == whole_blocks(prompts)
    assert loaded(outputs, "disk") == loaded(outputs, "failed") == [0] * 5
    stats = host.stats()
    assert stats["prefetches"] > 0 and stats["prefetch_blocks"] > 0
    assert stats["sessions_now"] == stats["prefetch_bytes_now"] == 0
    # All of them at once, when memory has everything: nothing waits.
    assert host.forget()
    outputs = host.generate(prompts=prompts, together=True)
    assert answers(outputs) == expected()
    assert host.stats()["prefetches"] == stats["prefetches"]


def test_prompts_that_memory_cannot_hold_flow_through_the_disk(engine, expected, tmp_path):
    source = random.Random(6)
    long = [[source.randrange(256) for _ in range(1900)] for _ in range(4)]  # 7 MiB each
    host = engine(disk_store(tmp_path / "store", **{"memory.size": "12MiB", "disk.queue": "64MiB",
                                                    "timeout.store": "30s",  # for the disk to write the prompt before
                                                    "load.prefetch": "true"}))
    for _ in range(3):
        outputs = host.generate(prompts=long)
        assert answers(outputs) == expected(long)
        assert loaded(outputs, "failed") == [0] * 4
        assert host.flush() and host.forget()
    assert [a + b for a, b in zip(held_and_loaded(outputs), loaded(outputs, "disk"))] == (
        whole_blocks(long))
    stats = host.stats()
    assert stats["memory_evictions"] > 0 and stats["prefetch_blocks"] > 0
    # All at once: what finds no memory is computed.
    assert answers(host.generate(prompts=long, together=True)) == expected(long)
    stats = host.stats()
    assert stats["memory_bytes_now"] <= stats["memory_cap_bytes"]
    assert stats["sessions_now"] == stats["prefetch_bytes_now"] == 0


def test_damaged_chunks_are_computed(engine, prompts, expected, filled, tmp_path):
    folder = shutil.copytree(filled, tmp_path / "store")
    damage(folder, 2 << 20)
    host = engine(disk_store(folder, **{"load.prefetch": "true"}))
    outputs = host.generate(prompts=prompts)
    assert answers(outputs) == expected()
    stats = host.stats()
    assert stats["checksum_failures"] + stats["identity_failures"] > 0
