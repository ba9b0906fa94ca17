# SPDX-License-Identifier: Apache-2.0
"""A real LMCache 0.5.6 in a real vLLM, over a `tierce node` by LMCache's own protocols, and beside it a vLLM with
Tierce's connector at the same node. Needs a Python that has LMCache and vLLM (TIERCE_LMCACHE_PYTHON)."""

import json
import os
import pathlib
import subprocess
from contextlib import contextmanager

import pytest

from conftest import ANSWER_SECONDS, Host, answers, kill_group
from manager_process import free_port, wait_until
from node_process import Node
from test_vllm import held_and_loaded, whole_blocks, whole_chunks

PYTHON = os.environ.get("TIERCE_LMCACHE_PYTHON")

pytestmark = pytest.mark.skipif(not PYTHON or subprocess.run(
    [PYTHON, "-c", "import importlib.util as u; exit(not (u.find_spec('lmcache') and u.find_spec('vllm')))"],
    cwd="/").returncode != 0,
    reason="needs TIERCE_LMCACHE_PYTHON with LMCache and vLLM")

MODULES = pathlib.Path(__file__).parents[3] / "python"
ENVIRONMENT = {"LMCACHE_TRACK_USAGE": "false", "LMCACHE_DISABLE_BANNER": "1", "PYTHONHASHSEED": "0"}


@pytest.fixture(scope="module")
def node(tmp_path_factory):
    folder = tmp_path_factory.mktemp("node")
    node = Node(folder, f"--listen.native={folder}/native", "--memory.size=256MiB")
    yield node
    node.end()


@pytest.fixture(scope="module")
def ours(module_engine, node, prompts, expected):
    """A vLLM with Tierce's connector, which has computed the prompts."""
    host = module_engine({"node.socket": f"{node.folder}/native", "timeout.lookup": "5s"})
    assert answers(host.generate(prompts=prompts)) == expected()
    return host


@contextmanager
def in_process(folder, url):
    """LMCacheConnectorV1, which has its remote store in the engine's process and here nothing besides."""
    file = folder / "lmcache.yaml"
    file.write_text('chunk_size: 256\nlocal_cpu: false\nmax_local_cpu_size: 1\nremote_serde: "naive"\n'
                    f'remote_url: "{url}"\n')
    yield {"LMCACHE_CONFIG_FILE": str(file)}, {"kv_connector": "LMCacheOnCpu"}


@contextmanager
def in_server(folder, adapter):
    """LMCacheMPConnector, whose stores are those of an `lmcache server`: here a chunk leaves its memory when the node
    has it. Only transfers that the engine drives work on a CPU."""
    port, http = free_port(), free_port()
    log = folder / "server.log"
    with open(log, "wb") as out:
        process = subprocess.Popen(
            [PYTHON, "-m", "lmcache.cli.main", "server", "--host", "127.0.0.1", "--port", str(port),
             "--http-port", str(http), "--disable-observability", "--l1-size-gb", "1", "--l1-init-size-gb", "1",
             "--eviction-policy", "LRU", "--supported-transfer-mode", "engine_driven",
             "--shm-name", f"tierce-test-{port}", "--l2-store-policy", "skip_l1", "--l2-adapter", json.dumps(adapter)],
            env={**{name: value for name, value in os.environ.items() if name != "TIERCE_LMCACHE_PYTHON"}, **ENVIRONMENT,
                 "PYTHONPATH": str(MODULES)}, stdout=out, stderr=out, start_new_session=True)
    try:
        wait_until(lambda: "startup complete" in log.read_text(errors="replace"), ANSWER_SECONDS)
        yield {}, {"kv_connector": "LMCacheServerOnCpu", "kv_connector_extra_config": {
            "lmcache.mp.host": "tcp://127.0.0.1", "lmcache.mp.port": port}}
    finally:
        process.terminate()  # in an orderly way, so that it leaves no shared memory
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            kill_group(process)


def lmcache(by, node, folder):
    if by == "resp":
        return in_server(folder, {"type": "resp", "host": "127.0.0.1", "port": node.resp, "num_workers": 2})
    return in_process(folder, f"lm://127.0.0.1:{node.lm}" if by == "lm" else f"redis://127.0.0.1:{node.resp}")


@pytest.mark.parametrize("by", ["lm", "redis", "resp"])
def test_lmcache_and_tierce_at_one_node(ours, models, prompts, expected, node, tmp_path, by):
    whole = whole_chunks(prompts)
    chunks = 1 + sum(w // 256 - 1 for w in whole)  # they share the first one
    values = chunks * (2 if by == "redis" else 1)  # there a chunk is two
    with lmcache(by, node, tmp_path) as (env, connector):
        theirs = Host(tmp_path / "engine.log", python=PYTHON, env={**ENVIRONMENT, **env})
        try:
            sets = node.metric("node_sets_total")
            theirs.start(model=models(), connector={"kv_connector_module_path": "lmcache_on_cpu", **connector})
            outputs = theirs.generate(prompts=prompts)
            assert answers(outputs) == expected() and outputs[0]["cached"] == 0
            wait_until(lambda: node.metric("node_sets_total") - sets >= values)
            assert ours.forget()
            outputs = ours.generate(prompts=prompts)
            assert answers(outputs) == expected() and held_and_loaded(outputs) == whole_blocks(prompts)
            wait_until(lambda: theirs.step() or theirs.forget())
            found = node.metric("objects_found_total")
            outputs = theirs.generate(prompts=prompts)
            assert answers(outputs) == expected()
            assert all(o["cached"] >= w for o, w in zip(outputs, whole))
            assert node.metric("objects_found_total") - found >= values
        finally:
            theirs.kill()


def test_lmcache_s_server_with_our_native_plugin(models, prompts, expected, node, tmp_path):
    """Its objects in a node, through shared memory. A chunk leaves the server's memory when the node has it."""
    whole = whole_chunks(prompts)
    chunks = 1 + sum(w // 256 - 1 for w in whole)
    adapter = {"type": "native_plugin", "module_path": "tierce.lmcache", "class_name": "TierceClient",
               "adapter_params": {"identity": "a model", "node.socket": f"{node.folder}/native"}}
    stored = node.metric("chunks_stored_total")
    with in_server(tmp_path, adapter) as (env, connector):
        theirs = Host(tmp_path / "engine.log", python=PYTHON, env={**ENVIRONMENT, **env})
        try:
            theirs.start(model=models(), connector={"kv_connector_module_path": "lmcache_on_cpu", **connector})
            outputs = theirs.generate(prompts=prompts)
            assert answers(outputs) == expected() and outputs[0]["cached"] == 0
            wait_until(lambda: node.metric("chunks_stored_total") - stored >= chunks)
            wait_until(lambda: theirs.step() or theirs.forget())
            loaded = node.metric("chunks_loaded_memory_total")
            outputs = theirs.generate(prompts=prompts)
            assert answers(outputs) == expected()
            assert all(o["cached"] >= w for o, w in zip(outputs, whole))
            # The server's memory may still have some of the chunks.
            assert node.metric("chunks_loaded_memory_total") - loaded >= chunks // 2
        finally:
            theirs.kill()
