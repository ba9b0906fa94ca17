# SPDX-License-Identifier: Apache-2.0
"""LMCache 0.5.6 in a real vLLM, with a manager in the place of LMCache's controller: the manager knows of each chunk
that LMCache holds, and no other, when it stores, evicts and is cleared, and after the manager was replaced. Needs a
Python that has LMCache and vLLM (TIERCE_LMCACHE_PYTHON)."""

import json
import os
import subprocess
import tempfile
import urllib.error
import urllib.request

import pytest

from conftest import Host, answers
from manager_process import Manager, free_port, wait_until
from test_vllm import whole_chunks

PYTHON = os.environ.get("TIERCE_LMCACHE_PYTHON")
MEMORY, CHUNK = "LocalCPUBackend", 256

pytestmark = pytest.mark.skipif(not PYTHON or subprocess.run(
    [PYTHON, "-c", "import importlib.util as u; exit(not (u.find_spec('lmcache') and u.find_spec('vllm')))"],
    cwd="/").returncode != 0,
    reason="needs TIERCE_LMCACHE_PYTHON with LMCache and vLLM")

CONFIG = """chunk_size: 256
local_cpu: true
max_local_cpu_size: 1
pre_caching_hash_algorithm: sha256_cbor
enable_controller: true
lmcache_instance_id: engine-1
controller_pull_url: "127.0.0.1:{pull}"
controller_reply_url: "127.0.0.1:{reply}"
lmcache_worker_ports: [{worker}]
lmcache_worker_heartbeat_time: 1
"""


class Controller:
    def __init__(self, folder):
        self.folder, self.count = folder, 0
        self.ports = {name: free_port() for name in ("pull", "reply", "heartbeat", "http")}
        self.manager = None

    def start(self):
        self.count += 1
        self.manager = Manager(self.folder / str(self.count),
                               *(f"--lmcache.{name}_port={port}" for name, port in self.ports.items()),
                               "--lmcache.hash=sha256_cbor", "--lmcache.none_hash=vllm",
                               f"--lmcache.chunk_size={CHUNK}")

    def stop(self):
        assert self.manager.stop() == 0

    def call(self, path, body=None):
        request = urllib.request.Request(f"http://127.0.0.1:{self.ports['http']}{path}",
                                         None if body is None else json.dumps(body).encode())
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            return {"status": error.code, **json.load(error)}

    def keys(self):
        return self.call("/controller/key-stats")["total_key_count"]

    def found(self, tokens):
        return self.call("/lookup", {"tokens": tokens})["layout_info"].get("engine-1", [MEMORY, 0])


def test_the_manager_knows_what_lmcache_holds(tmp_path, models, prompts, expected):
    controller, worker = Controller(tmp_path), free_port()
    file = tmp_path / "lmcache.yaml"
    file.write_text(CONFIG.format(worker=worker, **controller.ports))
    controller.start()
    sockets = tempfile.TemporaryDirectory(prefix="tierce-")     # LMCache's names in it are long, and stay when it is killed
    engine = Host(tmp_path / "engine.log", python=PYTHON, env={
        "VLLM_RPC_BASE_PATH": sockets.name, "PROMETHEUS_MULTIPROC_DIR": sockets.name, "LMCACHE_TRACK_USAGE": "false", "LMCACHE_DISABLE_BANNER": "1", "LMCACHE_CONFIG_FILE": str(file)})
    whole = whole_chunks(prompts)
    chunks = 1 + sum(w // CHUNK - 1 for w in whole)     # they share the first one

    def is_equal():
        return controller.keys() == chunks and [controller.found(p) for p in prompts] == [[MEMORY, w] for w in whole]

    try:
        engine.start(model=models(), connector={"kv_connector_module_path": "lmcache_on_cpu",
                                                "kv_connector": "LMCacheOnCpu"})
        info = controller.call("/query_worker_info", {"instance_id": "engine-1", "worker_ids": []})["worker_infos"]
        assert [(i["worker_id"], i["port"]) for i in info] == [(0, worker)]
        assert controller.keys() == 0
        assert answers(engine.generate(prompts=prompts)) == expected()
        wait_until(is_equal)
        assert controller.found([1] * 600) == [MEMORY, 0]
        assert controller.call("/health", {"instance_id": "engine-1"})["error_codes"] == {"0": 0}
        # Another manager: LMCache's next heartbeat is answered with the order to send its contents.
        controller.stop()
        controller.start()
        wait_until(is_equal)
        # An order, whose evictions LMCache reports.
        cleared = controller.call("/clear", {"instance_id": "engine-1", "location": MEMORY})
        assert cleared.get("num_tokens") == chunks * CHUNK, cleared
        wait_until(lambda: controller.keys() == 0)
        assert controller.found(prompts[0]) == [MEMORY, 0]
    finally:
        engine.kill()
        controller.stop()
        sockets.cleanup()
