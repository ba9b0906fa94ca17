# SPDX-License-Identifier: Apache-2.0
"""A real vLLM over a disk that is slow, or hangs, or is all that holds a prompt: the cache costs no
more than computing would."""

import os
import random
import shutil
import statistics
import time

import pytest

from conftest import ROOT, Host, answers, loaded
from test_vllm import CHUNK, disk_store, held_and_loaded, whole_blocks

CORE = ROOT / "build" / "dev" / "bin" / "faulty_core.abi3.so"
SLOW = 2.0  # seconds that a read takes longer: several times what computing a prompt takes


@pytest.fixture(scope="module")
def faulty(tmp_path_factory):
    """A host whose disk can be made slow."""
    if not CORE.exists() and not os.environ.get("CI"):
        pytest.skip("needs the target faulty_core of the dev build")
    host = Host(tmp_path_factory.mktemp("faulty") / "log", CORE)
    yield host
    host.kill()


@pytest.fixture(scope="module")
def filled(faulty, models, prompts, tmp_path_factory):
    """The folder of a store that holds the prompts."""
    folder = tmp_path_factory.mktemp("slow") / "store"
    faulty.start(model=models(), store=disk_store(folder))
    faulty.generate(prompts=prompts)
    assert faulty.flush()
    faulty.stop()
    return folder


@pytest.fixture
def start(faulty, models, filled, tmp_path):
    def begin(sets, **options):
        folder = shutil.copytree(filled, tmp_path / "store")
        faulty.start(model=models(), store=disk_store(folder, **sets), **options)
        return faulty

    yield begin
    if faulty.alive() and faulty.running:
        faulty.delay_reads(seconds=0)
        faulty.stop()


def unheard(count, seed, length=850):
    """Prompts that are nowhere."""
    source = random.Random(seed)
    return [[source.randrange(256) for _ in range(length)] for _ in range(count)]


def await_stat(host, name, value):
    until = time.monotonic() + 60
    while host.stats()[name] != value:
        assert time.monotonic() < until, host.stats()
        time.sleep(0.05)


def test_a_slow_disk_is_no_slower_than_no_cache(start, engine, prompts, expected):
    """In turns with a vLLM that has no cache, until what is known of the disk has been measured
    anew."""
    plain = engine()
    # Memory holds one of the prompts, so that it is always the disk that could be asked.
    host = start({"cost.check": "true", "memory.size": "4MiB"})
    host.delay_reads(seconds=SLOW)
    host.generate(prompts=unheard(4, 1), tokens=1)  # shows how fast it computes
    outputs = host.generate(prompts=prompts[:1])  # and this how slow the disk is
    assert answers(outputs) == expected(prompts[:1])
    before = host.stats()
    assert before["blocks_loaded_disk"] > 0 and before["blocks_not_worth"] == 0
    alone, cached, until = [], [], time.monotonic() + 12
    while len(cached) < 4 or time.monotonic() < until:
        prompt = prompts[1 + len(cached) % 4]
        for one, seconds in ((plain, alone), (host, cached)):
            assert one.forget()
            outputs = one.generate(prompts=[prompt])
            assert answers(outputs) == expected()[1 + len(cached) % 4:][:1] or one is plain
            seconds.append(outputs[0]["seconds"])
        assert loaded(outputs, "disk") == loaded(outputs, "failed") == [0]
    after = host.stats()
    assert after["blocks_loaded_disk"] == before["blocks_loaded_disk"]
    assert after["misses_not_worth_loading"] >= len(cached)
    assert statistics.median(cached) < statistics.median(alone) + SLOW / 2
    # No request waits for reads that only measure the disk.
    host.delay_reads(seconds=0)


def test_a_disk_that_hangs_costs_one_deadline(start, prompts, expected):
    host = start({"timeout.load": "1s", "breaker.retry": "2s"})
    host.delay_reads(seconds=None)
    outputs = host.generate(prompts=prompts)
    assert answers(outputs) == expected()
    # The first request waited for chunks that did not arrive; after that the disk was out of
    # service.
    assert loaded(outputs, "failed")[0] > 0
    assert loaded(outputs, "failed")[1:] == loaded(outputs, "disk")[1:] == [0] * 4
    stats = host.stats()
    assert stats["breaker_trips"] == 1
    # The disk is asked again when it is well.
    host.delay_reads(seconds=0)
    await_stat(host, "disk_in_service_now", 1)
    assert host.forget()
    outputs = host.generate(prompts=prompts)
    assert answers(outputs) == expected()
    assert held_and_loaded(outputs) == whole_blocks(prompts) or sum(loaded(outputs, "disk")) > 0


def test_prompts_longer_than_memory(start, expected):
    """They are stored step by step and come back through a memory that holds a part of them."""
    long = unheard(2, 3, 1900)  # 7 MiB each
    host = start({"memory.size": "3MiB", "disk.queue": "64MiB", "timeout.store": "30s"},
                 max_num_batched_tokens=256)
    for _ in range(3):
        outputs = host.generate(prompts=long)
        assert answers(outputs) == expected(long)
        assert loaded(outputs, "failed") == [0] * 2
        assert host.flush() and host.forget()
    assert [a + b for a, b in zip(loaded(outputs, "memory"), loaded(outputs, "disk"))] == (
        whole_blocks(long))
    assert min(loaded(outputs, "disk")) > CHUNK
    stats = host.stats()
    assert stats["memory_bytes_now"] <= stats["memory_cap_bytes"]
