# SPDX-License-Identifier: Apache-2.0
"""vLLM's HTTP server with the connector configured from the command line: scheduler and worker in
processes of their own, loads beside the steps."""

import json
import re
import time
import urllib.error
import urllib.request

import pytest

from conftest import ANSWER_SECONDS, forker, kill_group
from manager_process import free_port
from test_vllm import BLOCK, disk_store


class Server:
    mark = 0  # where its part of the log begins

    def __init__(self, model, store, log, *more):
        self.url = f"http://127.0.0.1:{free_port()}"
        transfer = {"kv_connector": "TierceConnector", "kv_connector_module_path": "tierce.vllm",
                    "kv_role": "kv_both", "kv_load_failure_policy": "recompute",
                    "kv_connector_extra_config": store}
        self.log = log
        self.process = forker.fork(
            "serve_http", str(log), {"VLLM_SERVER_DEV_MODE": "1", "VLLM_ENABLE_V1_MULTIPROCESSING": "1",
                                     # vLLM sets "spawn" in a process that has used it: pytest's, perhaps.
                                     "VLLM_WORKER_MULTIPROC_METHOD": "fork"},
            ["--model", model, "--served-model-name", "small", "--host", "127.0.0.1",
             "--port", self.url.rpartition(":")[2], "--dtype", "float32", "--seed", "0",
             "--enforce-eager", "--block-size", "32", "--max-model-len", "2048",
             "--max-num-seqs", "4", "--num-gpu-blocks-override", "200",
             "--kv-transfer-config", json.dumps(transfer), *more])

    def exit_code(self):
        self.process.wait(ANSWER_SECONDS)
        return int(self.process.stdout.readline())

    def text(self, start=0):
        return self.log.read_text(errors="replace")[start:]

    def call(self, path, body=None, headers=None):
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data,
                                         {"Content-Type": "application/json", **(headers or {})})
        with urllib.request.urlopen(request, timeout=ANSWER_SECONDS) as answer:
            return answer.read().decode()

    def wait(self):
        deadline = time.monotonic() + ANSWER_SECONDS
        while time.monotonic() < deadline and self.process.poll() is None:
            try:
                return self.call("/health")
            except (urllib.error.URLError, ConnectionError):
                time.sleep(0.2)
        raise AssertionError("the server did not come up:\n" + self.text()[-4000:])

    def complete(self, prompt, rank=None):
        """`rank`: of a data-parallel engine."""
        answer = json.loads(self.call("/v1/completions", {
            "model": "small", "prompt": prompt, "max_tokens": 8, "temperature": 0,
            "ignore_eos": True, "return_token_ids": True,
            "kv_transfer_params": {"tierce.report": True}}, {} if rank is None else {"X-data-parallel-rank": str(rank)}))
        return answer["choices"][0]["token_ids"], answer["kv_transfer_params"]

    def counters(self):
        found = re.findall(r"^vllm:tierce_(\w+)_total\{[^}]*\} (\S+)$", self.call("/metrics"), re.M)
        return {name: int(float(value)) for name, value in found}


@pytest.fixture
def server(models, tmp_path):
    server = Server(models(), disk_store(tmp_path / "store", **{"load.async": "true"}),
                    tmp_path / "server.log")
    yield server
    kill_group(server.process)


def test_second_requests_over_http_hit(server, prompts, expected):
    server.wait()
    for prompt, answer in zip(prompts, expected()):
        tokens, report = server.complete(prompt)
        assert tokens == answer
        assert report["tierce.memory_tokens"] == 0
    server.call("/reset_prefix_cache", {})
    loaded = 0
    for prompt, answer in zip(prompts, expected()):
        tokens, report = server.complete(prompt)
        assert tokens == answer
        here = report["tierce.local_tokens"], report["tierce.memory_tokens"]
        assert sum(here) == (len(prompt) - 1) // BLOCK * BLOCK
        loaded += here[1]
    assert loaded > 0
    counters = server.counters()
    assert counters["loaded_memory_tokens"] == counters["hit_tokens"] == loaded
    assert counters["saved_tokens"] > 0 and counters["loads"] == 5
    assert counters["load_failed_tokens"] == counters["connector_errors"] == 0
    assert "Tierce failed in" not in server.text() and "Tierce is off" not in server.text()


def test_a_server_with_an_invalid_configuration_does_not_start(models, tmp_path):
    server = Server(models(), {"memory.sise": "1GiB"}, tmp_path / "server.log")
    try:
        assert server.exit_code() != 0
    finally:
        kill_group(server.process)
    lines = [line for line in server.text().splitlines() if "vLLM does not start, because of Tierce: " in line]
    assert len(lines) == 1 and "memory.sise" in lines[0] and "the nearest name is \"memory.size\"" in lines[0], lines
    assert "Tierce is off" not in server.text()
