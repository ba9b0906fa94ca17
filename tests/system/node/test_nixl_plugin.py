# SPDX-License-Identifier: Apache-2.0
"""The plug-in for NIXL in the published library: objects and file ranges in a node, through NIXL's own client."""

import importlib.util
import json
import os
import select
import subprocess
import sys
from pathlib import Path

import pytest
import redis

from manager_process import executable, wait_until
from nixl_client import content
from node_process import SECONDS, Node

PLUGIN = executable().parent.parent / "lib" / "libplugin_TIERCE.so"
CLIENT = Path(__file__).with_name("nixl_client.py")
MIB = 1 << 20

pytestmark = [pytest.mark.skipif(importlib.util.find_spec("nixl_cu12") is None, reason="no NIXL: tools/setup python"),
              pytest.mark.skipif(not PLUGIN.exists(), reason="built without a C++ compiler")]


@pytest.fixture(name="node")
def run_node(tmp_path):
    node = Node(tmp_path)
    yield node
    node.end()


def plugins(folder, name):
    """A folder with NIXL's plug-ins and ours, as NAME."""
    own = Path(importlib.util.find_spec("nixl_cu12").origin).parent.parent / ".nixl_cu12.mesonpy.libs" / "plugins"
    out = folder / f"plugins-{name}"
    if out.exists():
        return out
    out.mkdir()
    for file in own.glob("libplugin_*.so"):
        (out / file.name).symlink_to(file)
    ours = out / f"libplugin_{name}.so"
    ours.unlink(missing_ok=True)
    ours.symlink_to(PLUGIN)
    return out


def environment(folder, name):
    return {**os.environ, "NIXL_PLUGIN_DIR": str(plugins(folder, name)), "NIXL_LOG_LEVEL": "FATAL"}


def run(folder, steps, url="", name="TIERCE", **env):
    """The results of the client's steps, and what it has written to standard error."""
    done = subprocess.run([sys.executable, str(CLIENT), name, url], input=json.dumps(steps), text=True, timeout=120,
                          capture_output=True, check=False, env={**environment(folder, name), **env})
    lines = done.stdout.splitlines()
    return json.loads(lines[-1]) if done.returncode == 0 else None, done.stderr


class Agent:
    """A client that stays: it outlives its node."""

    def __init__(self, folder, url):
        self.log = folder / "client.log"
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen([sys.executable, str(CLIENT), "TIERCE", url], stdin=subprocess.PIPE,
                                            stdout=subprocess.PIPE, stderr=log, text=True, env=environment(folder, "TIERCE"))

    def do(self, *steps):
        self.process.stdin.write(json.dumps(steps) + "\n")
        self.process.stdin.flush()
        is_ready = select.select([self.process.stdout], [], [], SECONDS)[0]
        line = self.process.stdout.readline() if is_ready else ""
        assert line, self.log.read_text()
        return json.loads(line)

    def find(self, *names):
        (found,) = self.do(["QUERY", "OBJ", [[name, 0, 0] for name in names]])
        return [name for name, is_there in zip(names, found, strict=True) if is_there]

    def read(self, *names):
        """Which objects can be read; the bytes of each must be right."""
        results = self.do(*(["READ", "OBJ", [[name, 0, MIB]]] for name in names))
        assert False not in results, (results, self.log.read_text())
        return [name for name, result in zip(names, results, strict=True) if result is True]

    def end(self):
        self.process.stdin.close()
        assert self.process.wait(SECONDS) == 0, self.log.read_text()


def url_of(node):
    return f"tierce://127.0.0.1:{node.resp}"


def test_objects_and_ranges_of_files(node, tmp_path):
    one, two, pool = ["chunk/one", 0, MIB], ["chunk two", 0, 3 * MIB], str(tmp_path / "pool.bin")
    other = str(tmp_path / "other.bin")
    steps = [
        (["QUERY", "OBJ", [one, two]], [False, False]),
        (["WRITE", "OBJ", [one, two]], True),  # one transfer
        (["QUERY", "OBJ", [one, ["nothing", 0, 0], two]], [True, False, True]),
        (["READ", "OBJ", [two, one]], True),
        (["READ", "OBJ", [["chunk/one", 4097, 8191]]], True),
        (["READ", "OBJ", [["nothing", 0, 100]]], "ERR"),
        (["READ", "OBJ", [one, ["nothing", 0, 100]]], "ERR"),  # a part that is missing is not half of a success
        (["READ", "OBJ", [["chunk/one", MIB - 1, 2]]], "ERR"),  # beyond the end
        (["WRITE", "OBJ", [["chunk/one", 512, 100]]], "ERR"),  # a part of an object cannot be written
        (["WRITE", "OBJ", [["n" * 600, 0, 100]]], "ERR"),
        (["READ", "OBJ", [one]], True),
        (["WRITE", "FILE", [[pool, 0, 5000], [pool, 65536, 5000]]], True),
        (["READ", "FILE", [[pool, 65536, 5000], [pool, 0, 4000]]], True),
        (["READ", "FILE", [[pool, 4096, 100]]], "ERR"),  # nothing was written from there on
        (["QUERY", "FILE", [[pool, 65536, 0], [pool, 4096, 0]]], [True, False]),
        (["WRITE", "FILE", [[pool, 100, 50]]], "ERR"),  # a second copy of bytes that are in another range
        (["WRITE", "OBJ", [[pool + "@0", 0, 5000]]], True),  # is no range of the file
        (["READ", "FILE", [[pool, 0, 5000]]], True),
        (["WRITE", "FILE", [[other, 0, 5000]]], True),
    ]
    results, log = run(tmp_path, [step for step, _ in steps], url_of(node))
    assert results is not None, log
    for (step, wanted), result in zip(steps, results, strict=True):
        assert result == wanted or wanted == "ERR" and str(result).startswith("ERR"), (step, result, log)
    with redis.Redis(port=node.resp) as client:
        assert client.get("nixl:chunk/one") == content("chunk/one", 0, MIB)
        assert client.get("nixl:chunk two") == content("chunk two", 0, 3 * MIB)
    assert os.path.getsize(pool) == 0  # the bytes are in the node
    os.rename(pool, tmp_path / "before.bin")  # a file of the same name is another file
    results, log = run(tmp_path, [["READ", "FILE", [[other, 0, 5000]]], ["READ", "FILE", [[pool, 0, 5000]]]], url_of(node))
    assert results is not None and results[0] is True and str(results[1]).startswith("ERR"), (results, log)


def test_under_the_name_of_another_back_end(node, tmp_path):
    """Programs that know OBJ only, and give it parameters of S3."""
    results, log = run(tmp_path, [["WRITE", "OBJ", [["a", 0, 100]]], ["READ", "OBJ", [["a", 0, 100]]]], name="OBJ",
                       TIERCE_NIXL_URL=url_of(node) + "?prefix=kv:")
    assert results == [True, True], log
    with redis.Redis(port=node.resp) as client:
        assert client.get("kv:a") == content("a", 0, 100)


def test_without_a_node(node, tmp_path):
    url = url_of(node)
    node.kill()
    results, log = run(tmp_path, [["WRITE", "OBJ", [["a", 0, 100]]], ["QUERY", "OBJ", [["a", 0, 0]]]], url)
    assert results is not None and all(str(result).startswith("ERR") for result in results), (results, log)
    assert "nixl_call_failed" in log and "cannot connect" in log
    node.start()


def flip_a_bit(folder, value):
    """In the file that has these bytes."""
    for file in folder.rglob("*"):
        at = file.read_bytes().find(value) if file.is_file() else -1
        if at >= 0:
            with open(file, "r+b") as out:
                out.seek(at)
                out.write(bytes([value[0] ^ 1]))
            return
    raise AssertionError("the value is not on disk")


def test_full_and_damaged_and_killed(tmp_path):
    """The bytes are those of a capped and verified node that survives kill -9."""
    disk, cap = tmp_path / "store", 16 * MIB
    node = Node(tmp_path, f"--disk.path={disk}", f"--disk.size={cap}", "--memory.size=8MiB", "--disk.flush_interval=20ms")
    node.arguments.append(f"--listen.resp_port={node.resp}")  # also after the restart
    agent, names = Agent(tmp_path, url_of(node)), [f"object {i}" for i in range(24)]
    for name in names:
        assert agent.do(["WRITE", "OBJ", [[name, 0, MIB]]]) == [True]
        wait_until(lambda: node.metric('tier_queued_bytes{tier="disk"}') == 0)
    wait_until(node.has_all_on_disk)
    assert node.metric('tier_used_bytes{tier="disk"}') <= cap and node.metric("memory_bytes_now") <= 8 * MIB
    # The first ones were evicted, which is a miss and not an error of the node.
    assert agent.find(names[0], names[-1]) == [names[-1]]
    assert agent.read(names[0], names[-1]) == [names[-1]]
    # The agent finds what the killed node had on disk, but not a damaged object, which can be written again.
    node.kill()
    damaged = names[-1]
    flip_a_bit(disk, content(damaged, MIB // 2, 64))
    node.start()
    found = agent.find(*names[:-1])
    assert names[0] not in found and names[-2] in found and len(found) <= cap // MIB
    assert agent.read(*found, damaged) == found and agent.find(damaged) == []
    assert "nixl_call_failed" not in agent.log.read_text()
    assert node.metric("checksum_failures_total") == 1
    assert 'chunk_out_of_service tier=disk reason="the checksum does not match the bytes"' in node.log.read_text()
    assert agent.do(["WRITE", "OBJ", [[damaged, 0, MIB]]]) == [True] and agent.read(damaged) == [damaged]
    agent.end()
    node.end()


def test_without_a_url(tmp_path):
    results, log = run(tmp_path, [])
    assert results is None and "set the parameter url, or TIERCE_NIXL_URL" in log, log
