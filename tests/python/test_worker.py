# SPDX-License-Identifier: Apache-2.0
"""What the worker half tells the store of vLLM's speed."""

import time
from types import SimpleNamespace

import pytest

pytest.importorskip("vllm")

from tierce.vllm.tracker import LoadSpec, ReqMeta  # noqa: E402
from tierce.vllm.worker import TELLING_TOKENS, WorkerHalf  # noqa: E402


class View:
    def __init__(self):
        self.told = []

    def computed(self, tokens, ns):
        self.told.append((tokens, ns))


def request(blocks, load=None):
    return ReqMeta("r", 1, None, b"", 4, 4 + blocks, load=load)


def step(*requests):
    """What is told after a step of these requests that took 5 ms."""
    half = SimpleNamespace(requests=list(requests), namespace={"block_tokens": 16}, view=View(),
                           step_began_ns=time.monotonic_ns() - 5_000_000)
    WorkerHalf.tell_speed(half)
    return half.view.told


def test_a_step_that_computes_a_prompt_tells_its_speed():
    told = step(request(TELLING_TOKENS // 32), request(TELLING_TOKENS // 32))
    assert [tokens for tokens, _ in told] == [TELLING_TOKENS]
    assert told[0][1] >= 5_000_000


def test_decoding_tells_nothing():
    assert step() == []
    assert step(request(1), request(0)) == []


def test_a_step_that_loads_tells_nothing():
    load = LoadSpec(0, 4, 0, asynchronous=False)
    assert step(request(TELLING_TOKENS), request(1, load)) == []
