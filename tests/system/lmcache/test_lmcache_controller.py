# SPDX-License-Identifier: Apache-2.0
"""LMCache 0.5.6's own worker at a manager in the place of LMCache's controller: it registers, loses changes, sends its
contents, and carries out orders. Needs a Python that has LMCache (TIERCE_LMCACHE_PYTHON)."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from manager_process import Manager, free_port

PYTHON = os.environ.get("TIERCE_LMCACHE_PYTHON")

pytestmark = pytest.mark.skipif(not PYTHON, reason="needs TIERCE_LMCACHE_PYTHON")


def test_a_worker_of_lmcache(tmp_path):
    ports = {name: free_port() for name in ("pull", "reply", "heartbeat", "http")}
    manager = Manager(tmp_path / "m", *(f"--lmcache.{name}_port={port}" for name, port in ports.items()))
    try:
        own = free_port()
        done = subprocess.run(
            [PYTHON, str(Path(__file__).with_name("controller_worker.py")),
             *(str(ports[name]) for name in ("pull", "reply", "http")), str(own)],
            env={**os.environ, "LMCACHE_TRACK_USAGE": "false", "LMCACHE_LOG_LEVEL": "ERROR"}, stdout=subprocess.PIPE,
            timeout=300, check=True)
        saw = json.loads(done.stdout.decode().strip().splitlines()[-1])
        assert saw["info"]["port"] == own and saw["info"]["peer_init_url"] == "127.0.0.1:7777"
        assert saw["found"] == [["real", "LocalCPUBackend", 300, "127.0.0.1:7777"]]
        assert saw["old"] == [["", "", 0, ""]]
        assert [saw["clear"][1]["num_tokens"], saw["pin"][1]["num_tokens"]] == [512, 3]
        status, body = saw["compress"]  # the engine of this test has none
        assert status == 502 and "worker 0 of real" in body["detail"] and "compress" in body["detail"]
        assert saw["health"][1]["error_codes"] == {"0": 0}
    finally:
        assert manager.stop() == 0
