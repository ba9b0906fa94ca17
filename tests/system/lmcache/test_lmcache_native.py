# SPDX-License-Identifier: Apache-2.0
"""LMCache 0.5.6's adapter for native clients with tierce.lmcache.TierceClient: LMCache's benchmark of such adapters stores objects,
looks them up and compares those that it loads. Needs a Python that has LMCache (TIERCE_LMCACHE_PYTHON)."""

import json
import os
import pathlib
import subprocess

import pytest

from node_process import Node

PYTHON = os.environ.get("TIERCE_LMCACHE_PYTHON")
MODULES = pathlib.Path(__file__).parents[3] / "python"
ENVIRONMENT = {**{name: value for name, value in os.environ.items() if not name.startswith("TIERCE_")},
               "LMCACHE_TRACK_USAGE": "false", "LMCACHE_DISABLE_BANNER": "1", "PYTHONPATH": str(MODULES)}
KEYS, ROUNDS = 16, 2
SECONDS = 120

pytestmark = pytest.mark.skipif(not PYTHON, reason="needs TIERCE_LMCACHE_PYTHON")


def bench(parameters):
    """The adapter's counts of objects stored, found and loaded, and the log."""
    adapter = {"type": "native_plugin", "module_path": "tierce.lmcache", "class_name": "TierceClient",
               "adapter_params": {"identity": "a model", **parameters}}
    done = subprocess.run(
        [PYTHON, "-m", "lmcache.cli.main", "bench", "l2", "--no-skip-verify", "--format", "json", "--num-keys", str(KEYS),
         "--rounds", str(ROUNDS), "--data-size-kb", "300", "--lookup-max-hit-rate", "0.5", "--l2-adapter", json.dumps(adapter)],
        env=ENVIRONMENT, timeout=SECONDS, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    counts = [json.loads(f"{{{line.strip().rstrip(',')}}}")["total_success"] for line in done.stdout.splitlines()
              if '"total_success"' in line]
    assert done.returncode == 0 and "[Verify]" in done.stdout, done.stdout
    return counts, done.stdout


def test_its_benchmark_of_an_adapter_with_a_store_of_its_own(tmp_path):
    counts, log = bench({"memory.size": "64MiB", "disk.path": str(tmp_path / "store"), "disk.size": "128MiB"})
    assert counts == [KEYS * ROUNDS, KEYS * ROUNDS // 2, KEYS * ROUNDS], log


def test_its_benchmark_of_an_adapter_over_a_node(tmp_path):
    node = Node(tmp_path, f"--listen.native={tmp_path}/node.sock")
    try:
        counts, log = bench({"node.socket": f"{tmp_path}/node.sock"})
        assert counts == [KEYS * ROUNDS, KEYS * ROUNDS // 2, KEYS * ROUNDS], log
    finally:
        node.end()
