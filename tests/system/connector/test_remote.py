# SPDX-License-Identifier: Apache-2.0
"""Two real vLLMs share a remote store: each loads the KV that the other computed, and the answers
equal those of a vLLM without a store, also when the store has gone."""

import re

import pytest

from conftest import answers, loaded
from delay_process import ROUND_TRIPS_US, Delay
from shared_stores import STORES
from test_vllm import whole_blocks

ATTEMPTS = 3


def remote_store(url, **more):
    return {"memory.size": "256MiB", "disk.path": "", "remote.urls": url, "cost.check": "false",
            "breaker.errors": "2", "breaker.retry": "1h", **more}


def load_all(engine, config, prompts, expected):
    """An engine that starts afresh loads all that another one has stored. Another one tries where a
    busy machine let a lookup's default time run out, which the store then counts."""
    whole = whole_blocks(prompts)
    for _ in range(ATTEMPTS):
        host = engine(config)
        outputs = host.generate(prompts=prompts)
        assert answers(outputs) == expected()
        assert loaded(outputs, "failed") == [0] * len(prompts)
        came = [a + b + c for a, b, c in zip(*(loaded(outputs, what) for what in ("local", "memory", "remote")))]
        if came == whole:
            assert loaded(outputs, "remote")[0] == whole[0]
            return
        assert host.stats()["misses_deadline"] > 0, f"{came} of {whole} tokens came: {host.stats()}"
    pytest.fail(f"a lookup's time ran out {ATTEMPTS} times")


@pytest.mark.parametrize("round_trip_us", ROUND_TRIPS_US)
def test_a_store_at_a_distance(engine, tmp_path, prompts, expected, round_trip_us):
    """At the default timeouts: lookups, stores and loads of a store that answers after a while."""
    place = STORES["redis"](tmp_path / "store")
    host, port, rest = re.fullmatch(r"(.*:)(\d+)(.*)", place.uri).groups()
    with Delay(int(port), round_trip_us) as delay:
        config = {"memory.size": "256MiB", "disk.path": "", "cost.check": "false",
                  "remote.urls": f"{host}{delay.port}{rest}"}
        first = engine(config)
        assert answers(first.generate(prompts=prompts)) == expected()
        assert first.flush()
        load_all(engine, config, prompts, expected)
    place.stop()


@pytest.fixture(params=STORES)
def place(request, tmp_path):
    place = STORES[request.param](tmp_path / "store")
    yield place
    place.stop()


def test_what_one_computed_another_loads(engine, place, prompts, expected):
    first = engine(remote_store(place.uri))
    assert answers(first.generate(prompts=prompts)) == expected()
    assert first.flush()
    load_all(engine, remote_store(place.uri), prompts, expected)
    place.stop()
    third = engine(remote_store(place.uri))
    outputs = third.generate(prompts=prompts[:2])
    assert answers(outputs) == expected(prompts[:2])
    assert loaded(outputs, "remote") == [0] * 2
