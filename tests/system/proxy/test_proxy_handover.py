# SPDX-License-Identifier: Apache-2.0
"""Prefill and decode on two real vLLMs behind `tierce proxy`: the answers are those of one vLLM, and the decoder computes one token of
each prompt."""

import json
import random
import re

import pytest

from conftest import forker, kill_group
from engine_like import Proxy
from manager_process import free_port
from test_proxy_vllm import ask, start_vllm, streamed, tokens

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def pair(models, tmp_path_factory):
    """The URLs of a prefiller and of a decoder."""
    parts = {"prefiller": {"handover.listen": "127.0.0.1"}, "decoder": {"handover.allow": "127.0.0.1"}}
    servers = []
    try:
        for name, part in parts.items():
            transfer = {"kv_connector": "TierceConnector", "kv_connector_module_path": "tierce.vllm", "kv_role": "kv_both",
                        "kv_load_failure_policy": "recompute",
                        "kv_connector_extra_config": {"memory.size": "128MiB", "disk.path": "", "cost.check": "false", **part}}
            log = tmp_path_factory.mktemp(name) / "server.log"
            servers.append(start_vllm(log, models(), "--kv-transfer-config", json.dumps(transfer)))
        yield [url for url, _ in servers]
    finally:
        for _, process in servers:
            kill_group(process)


def metric(url, name, **labels):
    """The sum of a counter's values."""
    found = re.findall(rf"^{name}(?:_total)?(\{{[^}}]*\}})? (\S+)$", ask(url + "/metrics"), re.M)
    return sum(float(value) for at, value in found if all(f'{k}="{v}"' in at for k, v in labels.items()))


def test_answers_of_two_engines(pair, tmp_path):
    prefiller, decoder = pair
    source = random.Random(20261129)
    prompts = [[source.randrange(1, 250) for _ in range(count)] for count in (20, 256, 300, 321, 700)]
    proxy = Proxy(tmp_path, decode=[decoder], prefill=[prefiller])
    url = f"http://127.0.0.1:{proxy.port}"
    before = metric(decoder, "vllm:prompt_tokens_by_source", source="local_compute")
    answers = [(streamed if i % 2 else tokens)(url, prompt=prompt) for i, prompt in enumerate(prompts)]
    own = proxy.metric("inbox_queries")  # of one token each; this decoder accepts no pushes
    assert metric(decoder, "vllm:prompt_tokens_by_source", source="local_compute") - before == len(prompts) + own
    assert own >= 1 and proxy.metric("pushes") == 0
    assert metric(decoder, "vllm:tierce_handovers") == len(prompts)
    assert metric(decoder, "vllm:tierce_handovers_ended_early") == 0
    assert proxy.metric("prefills") == len(prompts) and proxy.metric("decodes_alone") == 0
    assert answers == [tokens(prefiller, prompt=prompt) for prompt in prompts]
    proxy.end()
