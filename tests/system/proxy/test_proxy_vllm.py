# SPDX-License-Identifier: Apache-2.0
"""`tierce proxy` before a real vLLM: the same answers as without it, streams, and clients that leave."""

import json
import re
import time
import urllib.error
import urllib.request

import pytest

from conftest import ANSWER_SECONDS, forker, kill_group
from engine_like import Proxy, wait_for
from manager_process import free_port

pytestmark = pytest.mark.long
REQUEST = {"model": "small", "prompt": list(range(1, 200)), "max_tokens": 16, "temperature": 0, "ignore_eos": True,
           "return_token_ids": True}


def start_vllm(log, model, *more):
    """The URL and the process of a server that answers."""
    url = f"http://127.0.0.1:{free_port()}"
    process = forker.fork("serve_http", str(log), {"VLLM_ENABLE_V1_MULTIPROCESSING": "1", "VLLM_WORKER_MULTIPROC_METHOD": "fork"},
                          ["--model", model, "--served-model-name", "small", "--host", "127.0.0.1",
                           "--port", url.rpartition(":")[2], "--dtype", "float32", "--seed", "0", "--enforce-eager",
                           "--block-size", "32", "--max-model-len", "2048", "--max-num-seqs", "4",
                           "--num-gpu-blocks-override", "200", *more])
    until = time.monotonic() + ANSWER_SECONDS
    while True:
        try:
            ask(url + "/health")
            break
        except (urllib.error.URLError, ConnectionError):
            assert process.poll() is None and time.monotonic() < until, log.read_text()[-4000:]
            time.sleep(0.2)
    return url, process


@pytest.fixture(scope="module")
def vllm(models, tmp_path_factory):
    url, process = start_vllm(tmp_path_factory.mktemp("vllm") / "server.log", models())
    yield url
    kill_group(process)


def ask(url, body=None):
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=ANSWER_SECONDS) as answer:
        return answer.read().decode()


def tokens(url, **more):
    return json.loads(ask(url + "/v1/completions", {**REQUEST, **more}))["choices"][0]["token_ids"]


def streamed(url, **more):
    text = ask(url + "/v1/completions", {**REQUEST, "stream": True, **more})
    events = [event.removeprefix("data: ") for event in text.split("\n\n") if event]
    assert events[-1] == "[DONE]"
    return [token for event in events[:-1] for choice in json.loads(event)["choices"] for token in choice["token_ids"]]


def running(url):
    return sum(float(n) for n in re.findall(r"^vllm:num_requests_(?:running|waiting)\{[^}]*\} (\S+)$", ask(url + "/metrics"), re.M))


def test_answers_of_a_real_engine(vllm, tmp_path):
    """Plain, and with the same engine as prefiller: without a connector it returns no kv_transfer_params."""
    expected = tokens(vllm)
    for prefill in ((), (vllm,)):
        proxy = Proxy(tmp_path, decode=[vllm], prefill=prefill)
        url = f"http://127.0.0.1:{proxy.port}"
        assert tokens(url) == streamed(url) == expected
        assert json.loads(ask(url + "/v1/models"))["data"][0]["id"] == "small"
        assert proxy.ask("POST", "/v1/completions", {"model": "small"})[0] == 400, "vLLM's own error"
        assert proxy.ask("POST", "/v1/completions", {**REQUEST, "model": "other"})[0] == 404
        if prefill:
            assert proxy.metric("prefills") == proxy.metric("prefills_empty") == 2
        response = proxy.open(body={**REQUEST, "stream": True, "max_tokens": 1800}).getresponse()
        assert response.read(6) == b"data: "
        response.close()
        wait_for(lambda: running(vllm) == 0, "vLLM generates for a client that left")
        assert proxy.metric("clients_gone") == 1
        proxy.end()


def test_text_prompts_and_the_router_index(vllm, tmp_path):
    """vLLM's /tokenize answers; nobody serves the index, so the load decides."""
    proxy = Proxy(tmp_path, f"--router.url=http://127.0.0.1:{free_port()}", decode=[vllm + "#0"])
    assert proxy.ask("POST", "/v1/completions", {**REQUEST, "prompt": "a few words"})[0] == 200
    assert proxy.metric("router_queries") == proxy.metric("router_failures") == 1
    proxy.end()
