# SPDX-License-Identifier: Apache-2.0
"""Prefill and decode on two real vLLMs with models of several KV cache groups, by pull and by push: the answers equal those of
a vLLM without a cache, and the decoder computes no token before the last point at which all groups can be restored."""

import pytest

from conftest import answers, loaded
from test_handover import PREFILL, proxied, store, tickets
from test_hybrid import hybrid, options, plain, start, whole_units  # noqa: F401


def pushed(prefiller, decoder, prompts):
    """The same prompts with a salt, so that neither engine has them; a ticket of the decoder for each."""
    out = []
    for prompt, to in zip(prompts, tickets(decoder, len(prompts))):
        (first,) = prefiller.generate(prompts=[prompt], tokens=1, salts=["pushed"], wishes={**PREFILL, "tierce": {"push": to}})
        assert first["report"]["tierce"]["ticket"] == to["ticket"]
        wishes = {name: first["report"][name] for name in ("do_remote_prefill", "do_remote_decode", "tierce")}
        out += decoder.generate(prompts=[prompt], salts=["pushed"], wishes=wishes)
    return out


@pytest.mark.long
@pytest.mark.parametrize("kind", ["gemma3", "qwen3_next", "llama4"])
def test_the_decoder_computes_the_end_of_each_prompt(start, prompts, plain, kind):  # noqa: F811
    both = store(**{"handover.listen": "127.0.0.1", "handover.allow": "127.0.0.1"})
    prefiller, decoder = start(kind, both), start(kind, both)
    for hand_over in proxied, pushed:
        outputs = hand_over(prefiller, decoder, prompts)
        read = decoder.metric(name="vllm:tierce_handover_bytes")
        assert answers(outputs) == plain(kind)
        assert [o["cached"] for o in outputs] == whole_units(prompts, kind)
        assert sum(loaded(outputs, "memory")) > 0 and loaded(outputs, "failed") == [0] * len(prompts)
        assert prefiller.stats()["sessions_now"] == decoder.stats()["sessions_now"] == 0
        if hand_over is proxied:
            pulled = read
            assert pulled > 0 and decoder.metric(name="vllm:tierce_handover_pushed_bytes") == 0
    # Nothing of a pushed prompt had to be read.
    assert read == pulled and decoder.metric(name="vllm:tierce_handover_pushed_bytes") > 0
    assert prefiller.metric(name="vllm:tierce_pushes") == len(prompts)
    assert prefiller.metric(name="vllm:tierce_push_left_out_chunks") == 0
    assert prefiller.metric(name="vllm:tierce_push_tail_bytes") > 0
