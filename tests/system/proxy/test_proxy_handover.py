# SPDX-License-Identifier: Apache-2.0
"""Prefill and decode on two real vLLMs behind `tierce proxy`, by pull and by push: the answers are those of one vLLM, and the
decoder computes one token of each prompt."""

import json
import random
import re
from types import SimpleNamespace

import pytest

from conftest import kill_group, why
from engine_like import Proxy
from test_proxy_vllm import REQUEST, ask, start_vllm, streamed, tokens

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def pair(models, tmp_path_factory):
    """The URLs of a prefiller and of a decoder, and the decoder's control socket."""
    servers, control = [], tmp_path_factory.mktemp("c") / "control"
    both = {"handover.listen": "127.0.0.1", "handover.allow": "127.0.0.1", "memory.size": "128MiB", "disk.path": "",
            "cost.check": "false"}
    try:
        for name, part in {"prefiller": {}, "decoder": {"control.socket": str(control)}}.items():
            transfer = {"kv_connector": "TierceConnector", "kv_connector_module_path": "tierce.vllm", "kv_role": "kv_both",
                        "kv_load_failure_policy": "recompute", "kv_connector_extra_config": {**both, **part}}
            log = tmp_path_factory.mktemp(name) / "server.log"
            servers.append(start_vllm(log, models(), "--kv-transfer-config", json.dumps(transfer)))
        yield SimpleNamespace(prefiller=servers[0][0], decoder=servers[1][0], control=control)
    finally:
        for _, process in servers:
            kill_group(process)


def metric(url, name, **labels):
    """The sum of a counter's values."""
    found = re.findall(rf"^{name}(?:_total)?(\{{[^}}]*\}})? (\S+)$", ask(url + "/metrics"), re.M)
    return sum(float(value) for at, value in found if all(f'{k}="{v}"' in at for k, v in labels.items()))


def counters(decoder):
    names = ("handovers", "handovers_ended_early", "handover_bytes", "handover_pushed_bytes")
    return {"computed": metric(decoder, "vllm:prompt_tokens_by_source", source="local_compute"),
            **{name: metric(decoder, f"vllm:tierce_{name}") for name in names}}


@pytest.mark.parametrize("way", ["pull", "push"])
def test_answers_of_two_engines(pair, tmp_path, way):
    source = random.Random(f"20261129 {way}")
    prompts = [[source.randrange(1, 250) for _ in range(count)] for count in (20, 256, 300, 321, 700)]
    proxy = Proxy(tmp_path, f"--prefill.push={'true' if way == 'push' else 'false'}", decode=[pair.decoder], prefill=[pair.prefiller])
    url = f"http://127.0.0.1:{proxy.port}"
    before = counters(pair.decoder)
    answers = [(streamed if i % 2 else tokens)(url, prompt=prompt) for i, prompt in enumerate(prompts[:-1])]
    last = json.loads(ask(url + "/v1/completions", {**REQUEST, "prompt": prompts[-1]}))
    answers.append(last["choices"][0]["token_ids"])
    after = counters(pair.decoder)
    did = {name: after[name] - before[name] for name in after}
    own = proxy.metric("inbox_queries")  # of one token each
    assert did["computed"] == len(prompts) + own
    assert did["handovers"] == len(prompts) and did["handovers_ended_early"] == 0
    assert proxy.metric("prefills") == len(prompts) and proxy.metric("decodes_alone") == 0
    said = why(pair.control, last)
    assert said["handover_tokens"] == 700 and said["handover_why"] == ""
    if way == "push":
        assert own == 1 and proxy.metric("pushes") == len(prompts)
        assert did["handover_bytes"] == 0 and did["handover_pushed_bytes"] > 0
        assert said["handover_bytes"] == 0 and f"{said['handover_pushed_bytes']} bytes pushed, 0 bytes read" in said["text"]
    else:
        assert own == proxy.metric("pushes") == did["handover_pushed_bytes"] == said["handover_pushed_bytes"] == 0
        assert did["handover_bytes"] > said["handover_bytes"] > 0
    assert answers == [tokens(pair.prefiller, prompt=prompt) for prompt in prompts]
    proxy.end()
