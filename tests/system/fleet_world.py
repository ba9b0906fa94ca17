# SPDX-License-Identifier: Apache-2.0
"""A fleet of a test's own: one or two managers, and a storage of each kind that engines write to."""

import collections
import ctypes
import importlib.util
import os
import re
import subprocess
import sys
import urllib.request
from array import array

import pytest

import shared_stores
from manager_process import Http, Manager, Redis, RedisCluster, free_port, wait_until
from node_process import Node
from shared_stores import S3, Folder

GROUP = "default"
CHUNKS, CHUNK_BYTES, CHUNK_TOKENS = 6, 1 << 16, 64  # of Engine


def code(reply):
    return reply["header"]["status"]["code"]


class Files:
    """A folder in which several blocks share a file."""

    name = "nfs_01"

    def __init__(self, folder):
        self.kept = Folder(folder / "files")
        self.kept.folder.mkdir(parents=True)

    def spec(self):
        return {"global_unique_name": self.name,
                "nfs": {"root_path": f"{self.kept.folder}/", "key_count_per_file": 4}}

    def objects(self):
        return len(self.kept.objects())

    def spoil(self):
        """A byte in each page: several blocks share a file."""
        found = self.kept.objects()
        for path in found:
            content = bytearray(path.read_bytes())
            content[2048::4096] = bytes(b ^ 1 for b in content[2048::4096])
            path.write_bytes(content)
        return len(found)

    def stop(self):
        self.kept.stop()


class RedisStorage:
    name = "redis_01"

    def __init__(self, folder):
                self.server = shared_stores.Redis(folder / "values")

    def spec(self):
        return {"global_unique_name": self.name, "redis": {"uri": self.server.uri, "key_prefix": "pool:"}}

    def objects(self):
        import redis
        with redis.Redis(port=self.server.port) as client:
            return len(client.keys("pool:*"))

    def spoil(self):
        return self.server.spoil()

    def stop(self):
        self.server.stop()


class S3Storage:
    name = "s3_01"

    def __init__(self, folder):
        self.server = S3(folder / "s3")
        self.credentials = folder / "credentials"
        self.credentials.write_text("[default]\naws_access_key_id = someone\naws_secret_access_key = something\n")

    def spec(self):
        endpoint = self.server.uri.split("endpoint=")[1]
        return {"global_unique_name": self.name,
                "s3": {"endpoint": endpoint, "bucket": "kv-cache", "prefix": "tierce",
                       "credentials_file": str(self.credentials), "is_path_style": True}}

    def objects(self):
        return len(self.server.kept.objects())

    def spoil(self):
        return self.server.spoil()

    def stop(self):
        self.server.stop()


class ClusterStorage:
    """A Redis Cluster of three servers."""

    name = "cluster_01"

    def __init__(self, folder):
        self.cluster = RedisCluster(folder / "cluster")

    def spec(self):
        return {"global_unique_name": self.name, "redis": {"uri": self.cluster.uri, "key_prefix": "pool:"}}

    def objects(self):
        return sum(int(self.cluster.call(i, "DBSIZE")[1:] or 0) for i in range(self.cluster.masters))

    def stop(self):
        for i in range(self.cluster.masters):
            self.cluster.kill(i)


MOONCAKE_OWNER = """
import os, sys, time
from mooncake.store import MooncakeDistributedStore
store = MooncakeDistributedStore()
assert store.setup('127.0.0.1', 'P2PHANDSHAKE', 64 << 20, 16 << 20, 'tcp', '', sys.argv[1]) == 0
os.write(1, b'r')
time.sleep(100000)
"""


class Mooncake:
    """A real Mooncake: a master, and a process that gives it memory."""

    name = "moon"
    flags = (f"--mooncake.python={sys.executable}",)  # of managers
    query = f"?mooncake_python={sys.executable}"  # of engines

    def __init__(self, _folder):
        if importlib.util.find_spec("mooncake") is None:
            if os.environ.get("CI"):
                raise RuntimeError("mooncake is missing: see tools/requirements-test.txt")
            pytest.skip("needs mooncake")
        folder = os.path.dirname(importlib.util.find_spec("mooncake").origin)
        self.port, self.metrics_port = free_port(), free_port()
        self.master = subprocess.Popen(
            [os.path.join(folder, "mooncake_master"), "-rpc_port", str(self.port), "-metrics_port", str(self.metrics_port),
             "-client_ttl", "30"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        wait_until(lambda: self.objects() == 0)
        self.owner = subprocess.Popen([sys.executable, "-c", MOONCAKE_OWNER, f"127.0.0.1:{self.port}"],
                                      stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        assert self.owner.stdout.read(1) == b"r"

    def spec(self):
        return {"global_unique_name": self.name, "mooncake": {
            "metadata_connstring": "P2PHANDSHAKE", "protocol": "tcp", "master_service_entry": f"127.0.0.1:{self.port}"}}

    def objects(self):
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.metrics_port}/metrics", timeout=10) as answer:
                return int(re.search(r"^master_key_count (\d+)$", answer.read().decode(), re.M)[1])
        except OSError:
            return None

    def kill_master(self):
        self.master.kill()
        self.master.wait()

    def stop(self):
        self.owner.kill()
        self.owner.wait()
        self.owner.stdout.close()
        self.kill_master()


class NodePool:
    """The memory of two or more nodes, which register themselves. `fixed`: a node that starts again listens on the same
    port, so that it takes the place of its dead process at once."""

    name, lends, suffix = "mem", ("--pool.memory=128MiB",), ""  # of the storages' names

    def __init__(self, folder, names=("n1", "n2"), fixed=False):
        self.folder, self.names, self.fixed, self.nodes = folder, names, fixed, []

    def spec(self):
        return None

    def join(self, fleet):
        self.fleet = fleet
        for name in self.names:
            folder = self.folder / name
            folder.mkdir()
            port = free_port() if self.fixed else 0
            self.nodes.append(Node(folder, f"--pool.manager={fleet.managers_url}/{self.name}", f"--pool.name={name}",
                                   f"--pool.port={port}", "--memory.size=16MiB",
                                   *(words.format(folder=folder) for words in self.lends)))
        self.wait("well")

    def wait(self, state, names=None):
        """Until these nodes, otherwise all of them, have the state."""
        wait_until(lambda: all(self.fleet.state_of(f"{self.name}.{node}{self.suffix}") == state for node in names or self.names))

    def copied(self):
        """Whether both nodes have as many blocks."""
        counts = {int(node.metric("node_pool_objects")) for node in self.nodes}
        return len(counts) == 1 and counts != {0}

    def objects(self):
        return sum(int(node.metric("node_pool_objects")) for node in self.nodes if node.process.poll() is None)

    def spoil(self):
        """Each node is killed and starts again with nothing."""
        found = self.objects()
        for node in self.nodes:
            node.kill()
        self.wait("unwell")
        for node in self.nodes:
            node.start()
        self.wait("well")
        return found

    def stop(self):
        for node in self.nodes:
            node.kill()


class NodeDisks(NodePool):
    """The disks of two nodes."""

    name, lends, suffix = "disks", ("--pool.disk={folder}/pool", "--pool.disk_size=128MiB"), ".disk"

    def spoil(self):
        found = [path for node in self.names for path in (self.folder / node / "pool" / "objects").rglob("*") if path.is_file()]
        for path in found:
            content = bytearray(path.read_bytes())
            content[len(content) // 2] ^= 1
            path.write_bytes(content)
        return len(found)


STORAGES = {"file": Files, "redis": RedisStorage, "s3": S3Storage, "nodes": NodePool, "disks": NodeDisks}
MORE_STORAGES = {"cluster": ClusterStorage, "mooncake": Mooncake}


class Fleet:
    """Managers over one Redis (or one manager with its state in memory), and the group "default" on some storages."""

    def __init__(self, folder, storages, managers=1, debug=False, lease_ms=2000, fixed=False, flags=()):
        self.storages = storages
        self.redis = Redis(folder / "registry") if managers > 1 else None
        self.managers = []
        for i in range(managers):
            more = [*flags, *(flag for s in storages for flag in getattr(s, "flags", ()))]
            if self.redis is not None:
                more += [f"--registry.uri={self.redis.uri}?cluster_name={{f}}&timeout_ms=20000",
                        f"--elector.uri={self.redis.uri}", f"--elector.lease={lease_ms}ms",
                        "--elector.interval=50ms"]
            if fixed:  # a manager that starts again listens on the same port, which the engines know
                more.append(f"--listen.grpc_port={free_port()}")
            self.managers.append(Manager(folder / f"manager{i}", *more, debug=debug, startup=self.startup(folder),
                                         ready=i == 0))
        self.api = Http(self.managers[0])
        for storage in storages:
            if storage.spec() is None:
                storage.join(self)
                continue
            added = self.api.call("admin", "AddStorage", storage=storage.spec())
            assert code(added) == "OK", added
        self.candidates([s.name for s in storages])
        # A new S3 storage of a registry that is stored is used when it has its mark.
        wait_until(lambda: all(self.state_of(s.name) != "unwell" for s in storages))

    def startup(self, folder):
        place = folder / "unused"
        place.mkdir(exist_ok=True)
        startup = Manager.usual_startup(storage=place)
        startup["storage_config"]["global_unique_name"] = "unused"
        startup["instance_group"]["storage_candidates"] = ["unused"]
        startup["instance_group"]["cache_config"]["cache_prefer_strategy"] = 2  # hf3fs, or else the first with room
        startup["instance_group"]["cache_config"]["reclaim_strategy"]["storage_unique_name"] = "unused"
        startup["instance_group"]["quota"]["quota_config"] = []
        if self.redis is not None:
            startup["instance_group"]["cache_config"]["meta_indexer_config"]["meta_storage_backend_config"] = {
                "storage_type": "redis", "storage_uri": f"{self.redis.uri}?timeout_ms=20000"}
        return startup

    def change(self, change):
        """Changes the group by a function of its message."""
        group = self.api.call("admin", "GetInstanceGroup", name=GROUP)["instance_group"]
        version = int(group["version"])
        change(group)
        group["version"] = version + 1
        changed = self.api.call("admin", "UpdateInstanceGroup", instance_group=group, current_version=version)
        assert code(changed) == "OK", changed

    def candidates(self, names):
        def set_names(group):
            group["storage_candidates"] = names
            group["cache_config"]["reclaim_strategy"]["storage_unique_name"] = names[0]

        self.change(set_names)

    def reclaims(self, **settings):
        """Sets rules that move blocks."""
        self.change(lambda group: group["cache_config"]["reclaim_strategy"].update(settings))

    def copies(self, storage_type, count):
        entry = {"storage_type": storage_type, "capacity": 10_000_000_000, "replicas": count}
        self.change(lambda group: group["quota"].setdefault("quota_config", []).append(entry))

    def drain(self, name):
        drained = self.api.call("admin", "DrainStorage", storage_unique_name=name, action="DRAIN_START")
        assert code(drained) == "OK", drained

    def drained(self, name):
        """Whether no block is left there."""
        shown = self.api.call("admin", "DrainStorage", storage_unique_name=name)
        assert code(shown) == "OK", shown
        return shown["state"] in ("deleting", "drained")

    def squeeze(self, storage):
        """Takes so much room from a storage that its blocks lie between its watermark and its limit."""
        used = self.numbers("data_storage_byte_size", "unique_name")[storage.name]
        changed = self.api.call("admin", "UpdateStorage", storage={
            **storage.spec(), "capacity_bytes": used * 5 // 3, "watermark_percent": 40})
        assert code(changed) == "OK", changed

    def numbers(self, metric, label):
        """The values of a metric of the manager that leads, by a label."""
        text = self.leader().get("/metrics", "admin_http")[1].decode()
        found = re.findall(rf'^tierce_{metric}\{{(?:.*,)?{label}="([^"]*)".*\}} (\S+)$', text, re.M)
        return collections.Counter({name: int(float(value)) for name, value in found})

    def moved(self):
        """Blocks that have moved under the manager that leads, by reason."""
        return self.numbers("moves_moved_count_total", "reason")

    def state_of(self, name):
        listed = self.api.call("admin", "ListStorage")
        assert code(listed) == "OK", listed
        return {s["global_unique_name"]: s["status"] for s in listed["storage"]}.get(name)

    def located(self):
        """Places that readers were given by the manager that leads, by storage or pool."""
        counts = collections.Counter()
        for name, value in self.numbers("data_storage_located_count_total", "unique_name").items():
            counts[name.split(".")[0]] += value
        return counts

    @property
    def managers_url(self):
        return "fleet://" + ",".join(f"127.0.0.1:{m.ports['grpc']}" for m in self.managers)

    @property
    def url(self):
        return f"{self.managers_url}/{GROUP}" + "".join(getattr(s, "query", "") for s in self.storages)

    def leader(self):
        for manager in self.managers:
            if manager.process is not None and manager.get("/readyz")[0] == 200:
                return manager
        return None

    def fail_over(self, sig):
        """The leader ends; returns when another one leads."""
        self.leader().stop(sig)
        wait_until(self.leader)
        self.api = Http(self.leader())

    def stop(self):
        for manager in self.managers:
            manager.stop()
        if self.redis is not None:
            self.redis.stop()
        for storage in self.storages:
            storage.stop()


class Engine:
    """Chunks of a prompt of equal tokens, over a pool behind managers."""

    def __init__(self, url):
        from tierce import _core as core

        self.engine = core.Engine.open(None, {"memory.size": "16MiB", "disk.path": "", "remote.urls": url,
                                              "timeout.lookup": "30s", "timeout.load": "30s"})
        self.view = self.engine.view({
            "weights": "aa", "model": "m", "kv_dtype": "float32", "quantization": "", "layout": "l", "layer_count": 1,
            "cell_bytes": [CHUNK_BYTES], "block_tokens": CHUNK_TOKENS, "chunk_blocks": 1, "algo": "sha256"})
        self.chain = self.view.chain()
        self.chain.append(array("i", [5]) * (CHUNKS * CHUNK_TOKENS))
        self.memory = ctypes.create_string_buffer(CHUNKS * CHUNK_BYTES)
        self.view.set_paged([ctypes.addressof(self.memory)], [CHUNK_BYTES], CHUNKS)
        self.blocks = array("i", range(CHUNKS))

    def store(self, content, session=0):
        self.memory.raw = content
        store = self.view.store_begin(self.chain, CHUNKS, self.blocks, session=session)
        store.layer(0)
        assert store.end() == CHUNKS and self.engine.flush(60_000)

    def found(self):
        found, in_memory, _ = self.view.lookup(self.chain, 0, CHUNKS, 0, 0)
        assert in_memory == 0
        return found

    def load(self, session=0):
        ctypes.memset(self.memory, 0, CHUNKS * CHUNK_BYTES)
        load = self.view.load_begin(self.chain, 0, CHUNKS, self.blocks, session=session)
        load.layer(0)
        assert all(load.end())
        return self.memory.raw

    def close(self):
        del self.chain, self.view  # else the next engine has its memory
        self.engine.close()
