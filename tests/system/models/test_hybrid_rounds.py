# SPDX-License-Identifier: Apache-2.0
"""Random rounds with a real vLLM and models of several KV cache groups: prompts that share beginnings, a store that is too
small for them, groups that are not stored, damage and kills. The answers are those of a vLLM without a cache.
TIERCE_TEST_SCALE multiplies the rounds, TIERCE_TEST_SEED repeats a run."""

import os
import random
import time

import pytest

from conftest import answers, loaded
from hybrid_models import make_hybrid
from test_faults import damage
from test_hybrid import GROUPS, options
from test_vllm import disk_store

ROUNDS = 10 * int(os.environ.get("TIERCE_TEST_SCALE", "1"))  # of each model: 1,000 in `make test-long`
OPTIONS = {"max_model_len": 1024, "max_num_batched_tokens": 448}
BLOCKS = {"gemma3": 100, "qwen3_next": 60}  # less than the prompts of a round need
# The last: with hits that end inside blocks.
CASES = [*((kind, {}) for kind in GROUPS), ("qwen3_next", {"prefix_match_unit": 16})]


class Prompts:
    """Prompts that begin like an earlier one up to a random place."""

    def __init__(self, dice):
        self.dice, self.made = dice, []

    def new(self):
        base = self.dice.choice(self.made) if self.made and self.dice.random() < 0.8 else []
        kept = base[:self.dice.randrange(len(base) + 1)] if base else []
        count = self.dice.randrange(100, 900)
        prompt = kept[:count] + [self.dice.randrange(256) for _ in range(max(1, count - len(kept)))]
        self.made.append(prompt)
        return prompt

    def some(self):
        """One to three, of which about half were seen before."""
        return [self.dice.choice(self.made) if self.made and self.dice.random() < 0.5 else self.new()
                for _ in range(self.dice.randrange(1, 4))]


@pytest.mark.long
@pytest.mark.parametrize("kind, more", CASES)
def test_random_rounds(engine, tmp_path, tmp_path_factory, kind, more):
    seed = int(os.environ.get("TIERCE_TEST_SEED", time.time_ns()))
    print(f"TIERCE_TEST_SEED={seed}")
    dice = random.Random(seed)
    model = make_hybrid(tmp_path_factory.mktemp("hybrid") / kind, kind)
    given = {**options(kind), **OPTIONS, **more, "num_gpu_blocks_override": BLOCKS[kind]}
    store = disk_store(tmp_path / "store", **{"memory.size": "8MiB", "disk.size": "32MiB", "timeout.lookup": "5s"})
    plain, right, prompts, totals = engine(model=model, **given), {}, Prompts(dice), {}
    host = engine(store, model=model, **given)
    for round_number in range(ROUNDS):
        action = dice.choices(["", "forget", "without a group", "kill", "damage"], [8, 8, 4, 1, 1])[0]
        where = f"TIERCE_TEST_SEED={seed}, round {round_number}, {action}"
        if action == "forget":
            assert host.forget(), where
        elif action == "without a group":
            host.forget_stores(at=dice.randrange(GROUPS[kind]))
        elif action == "kill":
            host.kill()
            host = engine(store, model=model, **given)
        elif action == "damage":
            assert host.flush(), where
            host.stop()
            damage(tmp_path / "store", 1 << dice.randrange(15, 21))
            host = engine(store, model=model, **given)
        asked = prompts.some()
        for prompt in asked:
            if tuple(prompt) not in right:
                right[tuple(prompt)] = answers(plain.generate(prompts=[prompt]))[0]
        outputs = host.generate(prompts=asked, together=dice.random() < 0.5)
        assert answers(outputs) == [right[tuple(p)] for p in asked], where
        assert {o["end"] for o in outputs} == {"length"}, where
        for origin in ("memory", "disk", "failed"):
            totals[origin] = totals.get(origin, 0) + sum(loaded(outputs, origin))
        if action == "without a group":
            host.mend_call()
    print(totals)
    assert totals["memory"] + totals["disk"] > 0
    assert "Tierce failed in" not in host.text()
