# SPDX-License-Identifier: Apache-2.0
"""Prefill and decode on real vLLMs behind `tierce proxy`, by pull and by push: the answers are those of one vLLM, and the
decoder computes one token of each prompt, also after another one was killed in the middle of a push."""

import http.client
import json
import os
import random
import re
import signal
import socket
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest

from conftest import kill_group, why
from engine_like import Proxy, wait_for
from test_proxy_vllm import REQUEST, ask, start_vllm, streamed, tokens

pytestmark = pytest.mark.long
STEP_TOKENS = 256  # of the prefiller: it computes a longer prompt in several steps


def start(name, models, tmp_path_factory, *options):
    """A vLLM that may be a prefiller and a decoder: its URL, its process and its control socket."""
    folder = tmp_path_factory.mktemp(name)
    store = {"handover.listen": "127.0.0.1", "handover.allow": "127.0.0.1", "memory.size": "128MiB", "disk.path": "",
             "cost.check": "false", "control.socket": str(folder / "control")}
    transfer = {"kv_connector": "TierceConnector", "kv_connector_module_path": "tierce.vllm", "kv_role": "kv_both",
                "kv_load_failure_policy": "recompute", "kv_connector_extra_config": store}
    url, process = start_vllm(folder / "server.log", models(), "--kv-transfer-config", json.dumps(transfer), *options)
    return SimpleNamespace(url=url, process=process, control=folder / "control")


@pytest.fixture(scope="module")
def pair(models, tmp_path_factory):
    """The URLs and the control sockets of a prefiller and of a decoder."""
    servers = []
    try:
        servers.append(start("prefiller", models, tmp_path_factory, "--max-num-batched-tokens", str(STEP_TOKENS)))
        servers.append(start("decoder", models, tmp_path_factory))
        yield SimpleNamespace(prefiller=servers[0].url, decoder=servers[1].url, control=servers[1].control, servers=servers)
    finally:
        for server in servers:
            kill_group(server.process)


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


def status(server):
    """An engine's state, from its control socket."""
    connection = http.client.HTTPConnection("localhost")
    with socket.socket(socket.AF_UNIX) as connection.sock:
        connection.sock.connect(str(server.control))
        connection.request("GET", "/status")
        return json.loads(connection.getresponse().read())


def held(server):
    """References on chunks of pins, loads, stores and pushes; and memory of chunks that are arriving."""
    said = status(server)
    return said["stats"]["leases_now"] + said["stats"]["sessions_now"] + said["inbox"]["incoming_now"]


def test_a_decoder_that_is_killed_during_a_push(pair, models, tmp_path, tmp_path_factory):
    """The other one answers, reads the prompt from the prefiller, and nobody holds anything for the one that is gone."""
    source, (prefiller, other) = random.Random(20261130), pair.servers
    killed = start("killed", models, tmp_path_factory)
    proxy = Proxy(tmp_path, decode=[killed.url, other.url], prefill=[prefiller.url])
    url = f"http://127.0.0.1:{proxy.port}"
    try:
        with ThreadPoolExecutor(1) as client:
            while True:
                prompt = [source.randrange(1, 250) for _ in range(7 * STEP_TOKENS)]
                arrived, prefills, before = status(killed)["inbox"]["chunks"], proxy.metric("prefills"), counters(other.url)
                answer = client.submit(tokens, url, prompt=prompt)
                wait_for(lambda: status(killed)["inbox"]["chunks"] > arrived or answer.done())
                os.killpg(prefiller.process.pid, signal.SIGSTOP)
                if not answer.done() and proxy.metric("prefills") == prefills:
                    break
                os.killpg(prefiller.process.pid, signal.SIGCONT)  # the other decoder had its turn, or it was too late
                answer.result()
            kill_group(killed.process)
            os.killpg(prefiller.process.pid, signal.SIGCONT)
            answered = answer.result()
    finally:
        kill_group(killed.process)
    after = counters(other.url)
    did = {name: after[name] - before[name] for name in after}
    assert proxy.metric("errors") == proxy.metric("decodes_alone") == 0
    assert did["handovers"] == 1 and did["handovers_ended_early"] == 0 and did["handover_bytes"] > 0 == did["handover_pushed_bytes"]
    wait_for(lambda: held(prefiller) == held(other) == 0, "chunks are held for a decoder that is gone")
    assert answered == tokens(prefiller.url, prompt=prompt)
    assert metric(prefiller.url, "vllm:tierce_push_left_out_chunks") > 0
    proxy.end()
