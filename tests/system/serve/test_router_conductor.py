# SPDX-License-Identifier: Apache-2.0
"""The router index as Mooncake's conductor: MessagePack. TIERCE_TEST_CONDUCTOR_PROXY names Mooncake's script
cache_aware_disagg_proxy.py, and TIERCE_TEST_CONDUCTOR_PYTHON a Python with fastapi, httpx, uvicorn and msgpack that runs it."""

import http.client
import http.server
import json
import os
import struct
import subprocess
import threading
import urllib.request

import msgspec
import pytest

from kv_publisher import Publisher
from manager_process import free_port
from test_router_index import SECONDS, TOKENS, Router

TYPE = "application/msgpack"
SCRIPT, PYTHON = os.environ.get("TIERCE_TEST_CONDUCTOR_PROXY"), os.environ.get("TIERCE_TEST_CONDUCTOR_PYTHON")
ABSENT = "TIERCE_TEST_CONDUCTOR_PROXY (Mooncake's cache_aware_disagg_proxy.py) and TIERCE_TEST_CONDUCTOR_PYTHON are not set"


@pytest.fixture
def router(tmp_path):
    out = Router(tmp_path)
    yield out
    out.end()


@pytest.fixture
def publisher():
    out = Publisher()
    yield out
    out.close()


def send(router, path, body, content_type=TYPE):
    """The answer's status, type and content."""
    connection = http.client.HTTPConnection("127.0.0.1", router.port, timeout=SECONDS)
    connection.request("POST", path, body if isinstance(body, bytes) else msgspec.msgpack.encode(body),
                       {"Content-Type": content_type})
    response = connection.getresponse()
    content = response.read()
    connection.close()
    return response.status, response.getheader("Content-Type"), content


def ask(router, path, body):
    status, content_type, content = send(router, path, body)
    assert content_type == TYPE
    return status, msgspec.msgpack.decode(content)


def registration(instance, publisher, **more):
    """The fields of Mooncake's proxy."""
    return {"endpoint": publisher.endpoint, "type": "vLLM", "modelname": "m", "instance_id": instance, "block_size": 4,
            "dp_rank": 0, "tenant_id": "default", "lora_name": "",
            "hash_profile": {"strategy": "vllm_v1", "algorithm": "sha256_cbor", "python_hash_seed": "0",
                             "index_projection": "low64_be"}, **more}


def query(tokens, **more):
    return {"model": "m", "block_size": 4, "token_ids": struct.pack(f"<{len(tokens)}i", *tokens), "tenant_id": "default",
            "lora_name": "", **more}


def await_exact(router, instance, publisher):
    """ZMQ drops messages to a subscriber that connects, so several are sent."""

    def is_exact():
        publisher.send(publisher.clear())
        return router.worker(instance)["exact"]

    router.wait(is_exact)


def test_requests_of_mooncakes_proxy(router, publisher):
    assert ask(router, "/register", registration("prefill-a", publisher, replay_endpoint=publisher.replay_endpoint)) == \
        (200, {"status": "registered successfully", "instance_id": "prefill-a"})
    await_exact(router, "prefill-a", publisher)
    publisher.send(publisher.store([1, 2], None, TOKENS[:8]), publisher.store([3], 2, TOKENS[8:12], "CPU"),
                   publisher.store([4], 3, TOKENS[12:16], "DISK"))
    router.equals("prefill-a", publisher)
    status, found = ask(router, "/query", query(TOKENS))
    assert (status, found) == (200, {"instances": {"prefill-a": {
        "longest_matched": 16, "gpu": 8, "cpu": 12, "disk": 16, "alone": {"gpu": 8, "cpu": 0, "disk": 0}, "dp": {"0": 8},
        "rank_matches": {"0": {"gpu": 8, "cpu": 12, "disk": 16}}, "exact": True}}})
    for same in (query(TOKENS, cache_salt=None), query(TOKENS, cache_salt=""), {**query([]), "token_ids": TOKENS}):
        assert ask(router, "/query", same) == (200, found)
    standard = next(b["standard"] for b in router.ask("/dump?instance_id=prefill-a")[1]["blocks"] if b["hash"] == 1)
    assert ask(router, "/query_by_hash", {"model": "m", "seq_hashes": [standard]})[1]["instances"]["prefill-a"]["gpu"] == 4
    assert ask(router, "/query", query([9] * 8)) == (200, {"instances": {}})
    assert router.query()["prefill-a"]["longest_matched"] == 16  # JSON as before
    assert ask(router, "/unregister", {"instance_id": "prefill-a", "tenant_id": "default", "dp_rank": 0}) == \
        (200, {"status": "unregistered successfully"})


@pytest.mark.parametrize("path, body, status, why", [
    ("/register", {"instance_id": "a", "modelname": "m"}, 400, "tcp://"),
    ("/register", {"instance_id": {}, "modelname": "m", "endpoint": "tcp://127.0.0.1:1"}, 400, "instance_id"),
    ("/register", {"instance_id": "a", "modelname": "m", "endpoint": "tcp://127.0.0.1:1", "additionalsalt": "x"}, 400, "salt"),
    ("/query", query([1] * 4), 404, "model"),
    ("/query", query([]), 400, "token_ids"),
    ("/query", {**query([]), "token_ids": b"123"}, 400, "token_ids"),
    ("/query", {**query([]), "token_ids": [-1]}, 400, "token_ids"),
    ("/query", query([1] * 4, cache_salt="a"), 400, "cache_salt"),
    ("/query", query([1] * 4, block_size=4.0), 400, "block_size"),
    ("/query", [1], 400, "a map is expected"),
    ("/query", b"\x81\xa5mod", 400, "MessagePack"),
    ("/query", b'{"model": "m"}', 400, "MessagePack"),
    ("/unregister", {"instance_id": "a"}, 404, "publisher")])
def test_refused(refusing, path, body, status, why):
    answer = ask(refusing, path, body)
    assert answer[0] == status and why in answer[1]["error"], answer


@pytest.fixture(scope="module")
def refusing(tmp_path_factory):
    out = Router(tmp_path_factory.mktemp("refusing"))
    yield out
    out.end()


def test_the_type_decides(refusing):
    body = json.dumps({"model_name": "m", "token_ids": [1]}).encode()
    for content_type, status, answer_type in (("application/json", 404, "application/json"),
                                              ("application/msgpack; version=1", 400, TYPE)):
        found = send(refusing, "/query", body, content_type)
        assert found[0] == status and found[1].startswith(answer_type), found


class EngineLike:
    """A prefiller or decoder, as far as the proxy asks: it counts prompts and answers with its name."""

    def __init__(self, name):
        engine, self.prompts = self, []

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                if self.path == "/tokenize":
                    answer = {"tokens": body["prompt"]}
                else:
                    engine.prompts.append(body)
                    answer = {"name": name, "kv_transfer_params": {"do_remote_prefill": True, "of": name}}
                text = json.dumps(answer).encode()
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            def log_message(self, *args):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self.server.server_port
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def close(self):
        self.server.shutdown()
        self.server.server_close()


@pytest.mark.skipif(SCRIPT is None or PYTHON is None, reason=ABSENT)
def test_mooncakes_own_proxy(router, tmp_path):
    """It starts, because each registration is accepted, and sends each prompt to the prefiller that holds it."""
    publishers = {"prefill-a": Publisher(replay=False), "prefill-b": Publisher(replay=False)}
    prefillers, decoder = {name: EngineLike(name) for name in publishers}, EngineLike("decode")
    port, log = free_port(), tmp_path / "proxy.log"
    command = [PYTHON, SCRIPT, "--port", str(port), "--conductor-address", f"http://127.0.0.1:{router.port}", "--model", "m",
               "--block-size", "4", "--python-hash-seed", "0", "--prefiller-hosts", *["127.0.0.1"] * 2, "--prefiller-ports",
               *[str(e.port) for e in prefillers.values()], "--prefiller-instance-ids", *prefillers, "--decoder-hosts",
               "127.0.0.1", "--decoder-ports", str(decoder.port), "--query-timeout-seconds", "30"]
    for name, p in publishers.items():
        command += ["--prefiller-registration", name, "0", p.endpoint]
    with open(log, "wb") as out:
        proxy = subprocess.Popen(command, stdout=out, stderr=out)
    try:
        router.wait(lambda: "Uvicorn running" in log.read_text() or proxy.poll() is not None, log.read_text)
        assert proxy.poll() is None, log.read_text()
        prompts = {"prefill-a": list(range(1000, 1016)), "prefill-b": list(range(5000, 5016))}
        for name, p in publishers.items():
            await_exact(router, name, p)
            p.send(p.store([1, 2, 3, 4], None, prompts[name]))
            router.equals(name, p)
        for name in ("prefill-b", "prefill-b", "prefill-a", "prefill-a", "prefill-b"):
            before = len(prefillers[name].prompts)
            body = json.dumps({"model": "m", "prompt": prompts[name], "max_tokens": 4}).encode()
            request = urllib.request.Request(f"http://127.0.0.1:{port}/v1/completions", body, {"Content-Type": "application/json"})
            with urllib.request.urlopen(request, timeout=SECONDS) as answer:
                assert json.load(answer)["name"] == "decode"
            assert len(prefillers[name].prompts) == before + 1, log.read_text()
            assert decoder.prompts[-1]["kv_transfer_params"]["of"] == name
        assert "cache_aware_fallback" not in log.read_text()
    finally:
        proxy.terminate()
        proxy.wait()
        for each in (*publishers.values(), *prefillers.values(), decoder):
            each.close()
