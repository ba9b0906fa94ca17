# SPDX-License-Identifier: Apache-2.0
"""Prefill and decode on two real vLLMs with models of several KV cache groups: the answers equal those of a vLLM without a
cache, and the decoder computes no token before the last point at which all groups can be restored."""

import pytest

from conftest import answers, loaded
from test_handover import proxied, store
from test_hybrid import hybrid, options, plain, start, whole_units  # noqa: F401


@pytest.mark.long
@pytest.mark.parametrize("kind", ["gemma3", "qwen3_next", "llama4"])
def test_the_decoder_computes_the_end_of_each_prompt(start, prompts, plain, kind):  # noqa: F811
    prefiller = start(kind, store(**{"handover.listen": "127.0.0.1"}))
    decoder = start(kind, store(**{"handover.allow": "127.0.0.1"}))
    outputs = proxied(prefiller, decoder, prompts)
    assert answers(outputs) == plain(kind)
    assert [o["cached"] for o in outputs] == whole_units(prompts, kind)
    assert sum(loaded(outputs, "memory")) > 0 and loaded(outputs, "failed") == [0] * len(prompts)
    assert prefiller.stats()["sessions_now"] == decoder.stats()["sessions_now"] == 0
