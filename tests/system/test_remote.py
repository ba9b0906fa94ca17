# SPDX-License-Identifier: Apache-2.0
"""Two real vLLMs share a remote store: what one has computed the other loads, and the answers are
those of a vLLM without a store, also where the store has gone."""

import pytest

from conftest import answers, loaded
from shared_stores import STORES

CHUNK = 256


def remote_store(url, **more):
    return {"memory.size": "256MiB", "disk.path": "", "remote.urls": url, "cost.check": "false", "timeout.lookup": "5s",
            "breaker.errors": "2", "breaker.retry": "1h", **more}


@pytest.fixture(params=STORES)
def place(request, tmp_path):
    place = STORES[request.param](tmp_path / "store")
    yield place
    place.stop()


def test_what_one_computed_another_loads(engine, place, prompts, expected):
    whole = [len(p) // CHUNK * CHUNK for p in prompts]
    first = engine(remote_store(place.uri))
    assert answers(first.generate(prompts=prompts)) == expected()
    assert first.flush()
    second = engine(remote_store(place.uri))
    outputs = second.generate(prompts=prompts)
    assert answers(outputs) == expected()
    assert loaded(outputs, "failed") == [0] * len(prompts)
    came = [a + b + c for a, b, c in zip(*(loaded(outputs, what) for what in ("local", "memory", "remote")))]
    assert came == whole
    assert loaded(outputs, "remote")[0] == whole[0]
    place.stop()
    third = engine(remote_store(place.uri))
    outputs = third.generate(prompts=prompts[:2])
    assert answers(outputs) == expected(prompts[:2])
    assert loaded(outputs, "remote") == [0] * 2
