# SPDX-License-Identifier: Apache-2.0
"""LMCache 0.5.6's own check of a remote store against a `tierce node`, by each of its clients, and
the node's answers beside those of LMCache's server. Needs a Python that has LMCache
(TIERCE_LMCACHE_PYTHON)."""

import contextlib
import os
import re
import socket
import subprocess

import pytest

from conftest import kill_group
from manager_process import free_port, wait_until
from node_process import EXIST, GET, HEALTH, LIST, PUT, REPLY, REQUEST, Node, take

PYTHON = os.environ.get("TIERCE_LMCACHE_PYTHON")
ENVIRONMENT = {**os.environ, "LMCACHE_TRACK_USAGE": "false", "LMCACHE_DISABLE_BANNER": "1"}
KEYS = 50
SECONDS = 120

pytestmark = pytest.mark.skipif(not PYTHON, reason="needs TIERCE_LMCACHE_PYTHON")


@pytest.fixture(name="node")
def run_node(tmp_path):
    node = Node(tmp_path, "--memory.size=256MiB")
    yield node
    node.end()


@contextlib.contextmanager
def run(log, *arguments, env=None):
    with open(log, "wb") as out:
        process = subprocess.Popen([PYTHON, *arguments], env={**ENVIRONMENT, **(env or {})}, stdout=out, stderr=out,
                                   start_new_session=True)
    try:
        yield process
    finally:
        kill_group(process)


# ---- its check ----------------------------------------------------------------------------------

ROW = re.compile(r"^\| (EXISTS \(non-exist\)|PUT|EXISTS \(exist\)|GET) .*\| +(\d+)/(\d+) +\|", re.M)


@pytest.mark.parametrize("client", ["lm", "redis", "resp"])
def test_its_own_check_of_a_remote_store(node, tmp_path, client):
    file, log = tmp_path / "lmcache.yaml", tmp_path / "check.log"
    port = node.lm if client == "lm" else node.resp
    file.write_text('chunk_size: 256\nlocal_cpu: false\nmax_local_cpu_size: 1\nremote_serde: "naive"\n'
                    f'remote_url: "{client}://127.0.0.1:{port}"\n'
                    + ("save_unfull_chunk: false\nextra_config: {save_chunk_meta: false}\n" if client == "resp" else ""))
    with run(log, "-m", "lmcache.v1.basic_check", "--mode", "test_remote", "--num-keys", str(KEYS),
             env={"LMCACHE_CONFIG_FILE": str(file)}) as check:
        # With redis and resp it does not end by itself after its last row.
        wait_until(lambda: "| GET " in log.read_text(errors="replace") or check.poll() is not None, SECONDS)
        text = log.read_text(errors="replace")
    assert [row[1:] for row in ROW.findall(text)] == [(str(KEYS), str(KEYS))] * 4, text
    assert f"Validation (content correct): {KEYS}/{KEYS} passed" in text
    assert node.metric("node_sets_total") == (2 if client == "redis" else 1) * KEYS


# ---- its server ---------------------------------------------------------------------------------

KEY = "org/model@2@1@5c7c4165af101b9a@bfloat16@user%u1"
LAYER_KEY = "org/model@2@1@-5c7c4165af101b9a@half@7"


def message(command, key=KEY, value=b"", shape=(1, 3, 0, 2, 4, 16, 16)):
    return REQUEST.pack(command, len(value), *shape, key.encode().ljust(150)) + value


VALUE, SHORT = bytes(range(256)) * 16, b"\x80\x00" * 48
CONVERSATION = [  # each with how many bytes of an answer come
    (message(EXIST), REPLY.size),
    (message(GET), REPLY.size),
    (message(HEALTH), REPLY.size),
    (message(LIST), 0),
    (message(PUT, value=VALUE), 0),
    (message(EXIST), REPLY.size),
    (message(GET), REPLY.size + len(VALUE)),
    (message(PUT, value=SHORT, shape=(2, 2, 0, 16, 2, 3, 0)), 0),  # another length, layout and type
    (message(GET, shape=(1, 6, 1, 0, 0, 0, 0)), REPLY.size + len(SHORT)),
    (message(EXIST, LAYER_KEY), REPLY.size),
    (message(PUT, LAYER_KEY, VALUE[:64], (2, 5, 1, 4, 2, 1, 0)), 0),
    (message(GET, LAYER_KEY), REPLY.size + 64),
    (message(GET), REPLY.size + len(SHORT)),
    *((message(PUT, f"m@1@0@{dtype}@half", b"x" * 8, (1, dtype, 0, 2, 1, 1, 1)) + message(GET, f"m@1@0@{dtype}@half"),
       REPLY.size + 8) for dtype in range(2, 9)),
]


def talk(port):
    """What is answered to each message, and whether an unknown command ends it."""
    with socket.create_connection(("127.0.0.1", port), timeout=SECONDS) as sock:
        answers = []
        for said, count in CONVERSATION:
            sock.sendall(said)
            answers.append(take(sock, count))
        sock.sendall(message(77))
        with contextlib.suppress(ConnectionResetError):
            answers.append(sock.recv(1))
    return answers


def listens(port):
    with socket.socket() as sock:
        return sock.connect_ex(("127.0.0.1", port)) == 0


def test_its_server_says_the_same_to_the_byte(node, tmp_path):
    port = free_port()
    with run(tmp_path / "server.log", "-m", "lmcache.v1.server", "127.0.0.1", str(port)):
        wait_until(lambda: listens(port), SECONDS)
        theirs = talk(port)
    assert talk(node.lm) == theirs
    assert theirs[6][REPLY.size:] == VALUE and theirs[-1] == b""
