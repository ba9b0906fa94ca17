# SPDX-License-Identifier: Apache-2.0
"""Programs of this version and of an older one in one fleet: engines, managers and nodes, upgraded and downgraded while engines
write and read.

TIERCE_OLDER names folders with older commits of this repository, separated by colons. Each has been built there:

    git worktree add --detach /tmp/older COMMIT
    cd /tmp/older && cmake --preset rel && cmake --build --preset rel --target tierce_executable tierce_extension
"""

import itertools
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from fleet_world import GROUP, code
from manager_process import ROOT, Http, Manager, Redis, free_port, wait_until
from node_process import Node

OLDER = [Path(p) for p in os.environ.get("TIERCE_OLDER", "").split(":") if p]
ENGINE = Path(__file__).with_name("older_engine.py")
LEASE_MS = 1000
SEEDS = itertools.count(1)

pytestmark = [pytest.mark.long, pytest.mark.skipif(not OLDER, reason="TIERCE_OLDER names no older tree that is built")]


class Tree:
    """A version of Tierce that is built."""

    def __init__(self, folder):
        self.folder, self.program = folder, folder / "build" / "rel" / "bin" / "tierce"

    def run(self, *words):
        done = subprocess.run([str(self.program), *words], capture_output=True, text=True, timeout=60, check=False)
        return done.stdout + done.stderr

    def has_node_pools(self):
        return "pool.manager" in self.run("node", "--markdown")

    def has_backup(self):
        return "restore.file" in self.run("manager", "--markdown")

    def has_generations(self):
        return "invalidate" in self.run("instance", "--help")


NOW = Tree(ROOT)


@pytest.fixture(params=OLDER, ids=lambda path: path.name)
def older(request):
    return Tree(request.param)


class Engine:
    def __init__(self, tree, url):
        env = {k: v for k, v in os.environ.items() if not k.startswith("TIERCE_")}
        self.process = subprocess.Popen(
            [sys.executable, str(ENGINE), url], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env={**env, "PYTHONPATH": str(tree.folder / "python"), "PYTHONDONTWRITEBYTECODE": "1"})
        self.blocks = self.answer()["blocks"]

    def answer(self):
        line = self.process.stdout.readline()
        assert line, f"the engine ended: {self.process.wait()}"
        return json.loads(line)

    def ask(self, verb, seed):
        self.process.stdin.write(json.dumps({verb: seed}) + "\n")
        self.process.stdin.flush()
        return self.answer()

    def has(self, seed):
        """Whether it finds a whole prompt. A wrong byte is an error."""
        loaded = self.ask("load", seed)
        assert loaded["right"], seed
        return loaded["found"] == self.blocks

    def end(self):
        self.process.stdin.close()
        self.process.wait(timeout=60)


class World:
    """Managers over one registry and one index, each of a version of its own, and one folder of blocks."""

    def __init__(self, folder, kind, count=1):
        self.folder, self.kind = folder, kind
        self.blocks = folder / "blocks"
        self.blocks.mkdir()
        self.redis = Redis(folder / "redis") if kind == "redis" else None
        self.ports = [free_port() for _ in range(count)]
        self.managers, self.engines, self.known = [None] * count, [], []
        (folder / "lease").mkdir()

    @property
    def url(self):
        return "fleet://" + ",".join(f"127.0.0.1:{port}" for port in self.ports) + f"/{GROUP}"

    def startup(self):
        startup = Manager.usual_startup(storage=self.blocks)
        uris = {"memory": ("local", ""), "rocksdb": ("rocksdb", str(self.folder / "index")),
                "redis": ("redis", self.redis and f"{self.redis.uri}?timeout_ms=20000")}
        kind, uri = uris[self.kind]
        startup["instance_group"]["cache_config"]["meta_indexer_config"]["meta_storage_backend_config"] = {
            "storage_type": kind, "storage_uri": uri}
        return startup

    def start(self, i, tree, ready=True):
        registry = f"{self.redis.uri}?cluster_name=c&timeout_ms=20000" if self.redis else f"local://{self.folder}/registry"
        lease = self.redis.uri if self.redis else f"file://{self.folder}/lease"
        self.managers[i] = Manager(
            self.folder / f"manager{i}", f"--registry.uri={registry}", f"--elector.uri={lease}",
            f"--elector.lease={LEASE_MS}ms", "--elector.interval=50ms", f"--listen.grpc_port={self.ports[i]}", debug=False,
            startup=self.startup(), ready=False, program=tree.program)
        if ready:
            wait_until(self.leader)

    def stop(self, i):
        assert self.managers[i].stop() == 0
        self.managers[i] = None

    def leader(self):
        leading = [i for i, m in enumerate(self.managers) if m is not None and m.get("/readyz")[0] == 200]
        return self.managers[leading[0]] if leading else None

    def replace(self, i, tree):
        """As docs/using/upgrading.md has it: a manager that leads and has a standby gives up its lease first."""
        if len(self.managers) > 1 and self.leader() is self.managers[i]:
            said = NOW.run("cluster", "demote", "--url", f"http://127.0.0.1:{self.managers[i].ports['admin_http']}")
            wait_until(lambda: self.leader() not in (None, self.managers[i]))
            assert "rror" not in said, said
        self.stop(i)
        self.start(i, tree)

    def engine(self, tree):
        self.engines.append(Engine(tree, self.url))
        return self.engines[-1]

    def pass_on(self, writer, reader):
        """A prompt passes from one engine to another, by the pool. After a change of the leader the first ones may be lost."""
        def is_passed():
            seed = next(SEEDS)
            writer.ask("store", seed)
            if not reader.has(seed):
                return False
            self.known.append(seed)
            return True

        wait_until(is_passed)

    def exchange(self, one, other):
        self.pass_on(one, other)
        self.pass_on(other, one)

    def check_known(self, *trees):
        """New engines find all that was passed on before. One that hears of a generation uses the pool a moment later."""
        for tree in trees:
            engine = self.engine(tree)
            wait_until(lambda e=engine: all(e.has(seed) for seed in self.known), 20)

    def end(self):
        for engine in self.engines:
            engine.end()
        for i, manager in enumerate(self.managers):
            if manager is not None:
                self.stop(i)
        if self.redis:
            self.redis.stop()


@pytest.fixture
def world(tmp_path):
    made = []

    def make(*arguments):
        made.append(World(tmp_path, *arguments))
        return made[-1]

    yield make
    for one in made:
        one.end()


def log_of(manager):
    return (manager.folder / "stderr.log").read_text()


@pytest.mark.parametrize("manager_is_older", [False, True], ids=["this-manager", "older-manager"])
def test_engines_of_both_versions(world, older, manager_is_older):
    w = world("memory")
    w.start(0, older if manager_is_older else NOW)
    w.exchange(w.engine(older), w.engine(NOW))
    w.check_known(older, NOW)


@pytest.mark.parametrize("kind", ["memory", "rocksdb", "redis"])
def test_one_manager_is_replaced(world, older, kind):
    """Up and down again, while an engine of each version goes on."""
    w = world(kind)
    w.start(0, older)
    engines = w.engine(older), w.engine(NOW)
    w.exchange(*engines)
    for tree in (NOW, older):
        w.replace(0, tree)
        if kind == "memory":
            w.known.clear()
        w.check_known(older, NOW)
        w.exchange(*engines)
    w.check_known(older, NOW)


@pytest.mark.parametrize("kind", ["rocksdb", "redis"])
def test_a_rolling_upgrade_and_back(world, older, kind):
    w = world(kind, 2)
    w.start(0, older)
    w.start(1, older)
    engines = w.engine(older), w.engine(NOW)
    w.exchange(*engines)
    for i, tree in ((1, NOW), (0, NOW), (0, older), (1, older)):
        w.replace(i, tree)
        w.exchange(*engines)
    w.check_known(older, NOW)


def test_after_an_invalidation_there_is_no_way_back(world, older):
    """An older manager would find blocks of before the weight update: it says so, and does not lead."""
    if older.has_generations():
        pytest.skip("the older version has generations")
    w = world("rocksdb")
    w.start(0, older)
    writer = w.engine(NOW)
    w.pass_on(writer, w.engine(older))
    w.replace(0, NOW)
    reply = Http(w.managers[0]).call("meta", "InvalidateNamespace", trace_id="t", instance_group=GROUP)
    assert code(reply) == "OK", reply
    assert not any(w.engine(tree).has(seed) for tree in (older, NOW) for seed in w.known)
    w.known.clear()
    w.stop(0)
    w.start(0, older, ready=False)
    wait_until(lambda: "format 2" in log_of(w.managers[0]))
    assert w.leader() is None
    w.replace(0, NOW)
    w.exchange(writer, w.engine(NOW))
    w.check_known(NOW, older)


def test_a_backup(world, older, tmp_path):
    """The first step of an upgrade: by the version before, if it has that, and else it says so."""
    w = world("rocksdb")
    w.start(0, older)
    w.exchange(w.engine(older), w.engine(NOW))
    file, url = str(tmp_path / "backup"), f"http://127.0.0.1:{w.managers[0].ports['admin_http']}"
    said = NOW.run("manager", "backup", file, "--url", url)
    if not older.has_backup():
        assert "upgrade the manager, if its version does not have this call" in said, said
        return
    assert " blocks" in said, said
    w.stop(0)
    for left in ("registry", "index"):
        (tmp_path / left).rename(tmp_path / f"{left}.lost")
    said = NOW.run("manager", "restore", file, f"--registry.uri=local://{tmp_path}/registry", f"--elector.uri=file://{tmp_path}/lease",
                   f"--elector.lease={LEASE_MS}ms", "--restore.same_registry=true")
    assert "1 storages, 1 instance groups, 1 instances" in said, said
    w.start(0, NOW)
    w.check_known(older, NOW)
    w.exchange(w.engine(older), w.engine(NOW))


@pytest.mark.parametrize("node_is_older", [True, False], ids=["older-node", "older-manager"])
def test_nodes_of_a_pool(world, older, tmp_path, node_is_older):
    if not older.has_node_pools():
        pytest.skip("the older version has no pools of nodes")
    w = world("memory")
    w.start(0, NOW if node_is_older else older)
    folder = tmp_path / "node"
    folder.mkdir()
    node = Node(folder, f"--pool.manager=fleet://127.0.0.1:{w.ports[0]}/mem", "--pool.name=n1", "--pool.memory=64MiB",
                "--pool.port=0", "--memory.size=16MiB", program=older.program if node_is_older else NOW.program)
    api = Http(w.managers[0])
    try:
        wait_until(lambda: any(s["global_unique_name"] == "mem.n1" and s.get("status", "well") == "well"
                               for s in api.call("admin", "ListStorage")["storage"]))
        group = api.call("admin", "GetInstanceGroup", name=GROUP)["instance_group"]
        version = int(group["version"])
        group.update(storage_candidates=["mem"], version=version + 1)
        group["cache_config"]["reclaim_strategy"]["storage_unique_name"] = "mem"
        group["quota"]["quota_config"] = []
        reply = api.call("admin", "UpdateInstanceGroup", instance_group=group, current_version=version)
        assert code(reply) == "OK", reply
        w.exchange(w.engine(older), w.engine(NOW))
        assert node.metric("node_pool_objects") > 0
        w.check_known(older, NOW)
    finally:
        node.end()
