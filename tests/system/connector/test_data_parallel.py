# SPDX-License-Identifier: Apache-2.0
"""vLLM's HTTP server with two data-parallel engines, which start and share one node (`node.start: shared`)."""

import re

import pytest

from conftest import kill_group
from manager_process import executable
from test_native import OwnNode, wait_until
from test_server import Server
from test_vllm import BLOCK

STORE = {"memory.size": "256MiB", "node.start": "shared", "node.executable": str(executable()), "timeout.lookup": "20s"}


@pytest.fixture
def server(models, tmp_path):
    server = Server(models(), STORE, tmp_path / "server.log", "--data-parallel-size", "2")
    yield server
    kill_group(server.process)


def test_data_parallel_engines_share_a_node(server, prompts, expected):
    server.wait()
    node = OwnNode(server)
    for at, (prompt, answer) in enumerate(zip(prompts[:2], expected())):
        first, second = at % 2, 1 - at % 2
        tokens, report = server.complete(prompt, rank=first)
        assert tokens == answer
        before = report["tierce.memory_tokens"]
        tokens, report = server.complete(prompt, rank=second)
        assert tokens == answer and report["tierce.failed_tokens"] == 0
        # The other engine has computed it, and this one has not seen it.
        held = report["tierce.local_tokens"], report["tierce.memory_tokens"]
        assert sum(held) == (len(prompt) - 1) // BLOCK * BLOCK and held[1] > before
    text = server.text()
    assert len(re.findall("Tierce started a node", text)) == 1
    assert "Tierce failed in" not in text and "Tierce is off" not in text
    kill_group(server.process)
    wait_until(node.has_gone)
