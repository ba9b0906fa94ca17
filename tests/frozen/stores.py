# SPDX-License-Identifier: Apache-2.0
"""Writes data with the present build, which later builds must read: stores, remote objects, an access
log, a manager's state.

    stores.py [NAME ...]    makes NAME.tar.xz anew; only for a new version of a format

Their contents follow from the tables below. Times, and what is drawn at random (the epoch of a journal, names of
files), are those of the day when they were made.
"""

import ctypes
import json
import random
import socket
import subprocess
import sys
import tarfile
import tempfile
from array import array
from pathlib import Path

from interfaces import FOLDER, INSTANCE, ROOT, UnixConnection, ask, frozen
from manager_process import Http, Manager, Redis, executable, wait_until
from node_process import SECONDS, Lm, Node, command

# ---- chunks: an engine's store folder, remote objects and access log -----------------------------

LAYERS, BLOCKS, CELL, BLOCK_TOKENS = 2, 10, 512, 4
KV = {"weights": "aa", "model": "m", "kv_dtype": "f", "quantization": "", "layout": "l", "layer_count": LAYERS,
      "cell_bytes": [CELL] * LAYERS, "block_tokens": BLOCK_TOKENS, "chunk_blocks": 4, "algo": "sha256"}
# name: (what differs in the namespace, shard, root of the chain, whether it is cleared afterwards)
PROMPTS = {
    "plain": ({}, (0, 1, 0, 1), {}, False),
    "first-rank": ({}, (0, 2, 0, 1), {}, False),
    "second-rank": ({}, (1, 2, 1, 3), {}, False),
    "salted": ({}, (0, 1, 0, 1), {"salt": b"salt", "lora": b"lora"}, False),
    "xxh3": ({"algo": "xxh3-128", "model": "other"}, (0, 1, 0, 1), {}, False),
    "vllm": ({"algo": "vllm-sha256-cbor", "model": "third"}, (0, 1, 0, 1), {}, False),
    "cleared": ({"weights": "bb"}, (0, 1, 0, 1), {}, True),
}


class Prompt:
    """A chain of ten blocks, and memory for their KV."""

    def __init__(self, engine, name):
        changes, shard, root, self.is_cleared = PROMPTS[name]
        cells = {**KV, **changes}["cell_bytes"]
        self.view = engine.view({**KV, **changes}, shard)
        self.memory = [ctypes.create_string_buffer(cell * BLOCKS) for cell in cells]
        self.view.set_paged([ctypes.addressof(m) for m in self.memory], cells, BLOCKS)
        source = random.Random(name)
        self.chain = self.view.chain(**root)
        if changes.get("algo") == "vllm-sha256-cbor":
            self.chain.append_hashes(source.randbytes(32 * BLOCKS))
        else:
            self.chain.append(array("i", [source.randrange(50000) for _ in range(BLOCKS * BLOCK_TOKENS)]))
        self.kv = [source.randbytes(cell * BLOCKS) for cell in cells]
        self.ids = array("i", range(BLOCKS))

    def store(self):
        """Two whole chunks, and the two blocks behind them as a tail."""
        for memory, kv in zip(self.memory, self.kv):
            memory.raw = kv
        store = self.view.store_begin(self.chain, BLOCKS, self.ids, tail=True, tag="frozen")
        for layer in range(LAYERS):
            store.layer(layer)
        return store.end()

    def load(self, blocks=BLOCKS):
        """The bytes of all blocks, and where they came from."""
        for memory in self.memory:
            memory.raw = bytes(len(memory))
        load = self.view.load_begin(self.chain, 0, blocks, self.ids)
        for layer in range(LAYERS):
            load.layer(layer)
        origins = load.end()
        return [memory.raw for memory in self.memory], origins


def open_engine(**values):
    from tierce import _core as core
    return core.Engine.open(None, {"memory.size": "16MiB", "disk.path": "", "cost.check": "false", "timeout.lookup": "20s",
                                   **values})


def make_chunks(folder):
    engine = open_engine(**{"disk.path": f"{folder}/store", "disk.size": "8MiB", "remote.urls": f"file://{folder}/remote",
                            "access_log.path": f"{folder}/access", "control.socket": f"{folder}/s"})
    prompts = [Prompt(engine, name) for name in PROMPTS]
    for prompt in prompts:
        assert prompt.store() == BLOCKS
        prompt.view.lookup(prompt.chain, 0, BLOCKS, 0, 0, "frozen")
    assert engine.flush(SECONDS * 1000)
    digest = {n["text"]: n["digest"] for n in json.loads(ask(UnixConnection(f"{folder}/s"), "GET", "/status")[2])["namespaces"]}
    for prompt in prompts:
        if prompt.is_cleared:
            path = f"/clear?tier=disk&namespace={digest[prompt.view.namespace]}"
            assert ask(UnixConnection(f"{folder}/s"), "POST", path)[2] == "3\n"
    assert engine.flush(SECONDS * 1000)
    del prompts, prompt
    engine.close()


# ---- values: a node's store folder ---------------------------------------------------------------

def value(seed, count):
    """Bytes that compress well, and are other ones in each place of a page."""
    return bytes((seed + i + i // 251) % 256 for i in range(count))


FOREVER = 33177117420  # seconds since 1970
VALUES = {"empty": b"", "small": b"value", "page": value(1, 4096), "large": value(2, 70_000), "huge": value(3, 600_000),
          "replaced": b"new", "number": b"42"}
EXPIRING = {"ends": b"in the year 3021"}
REMOVED = ["removed", "removed-large"]
LM_KEY, LM_VALUE = "model@1@0@00ff@bfloat16", value(4, 20_000)
LM_SHAPE = (1, 3, 0, 2, 4, 16, 16)


def resp(link, *words):
    """One command and its answer."""
    link.sendall(command(*words))
    with link.makefile("rb") as lines:
        line = lines.readline()
        assert line[:1] in b"+:$", line
        return line if line[:1] != b"$" else None if line == b"$-1\r\n" else lines.read(int(line[1:]) + 2)[:-2]


def node_on(folder):
    (folder / "log").mkdir(exist_ok=True)
    return Node(folder / "log", f"--disk.path={folder}/store", "--disk.size=64MiB", "--disk.flush_interval=20ms")


def make_values(folder):
    node = node_on(folder)
    with node.connect(node.resp) as link:
        for name in REMOVED:
            assert resp(link, "SET", name, value(5, 5000 * len(name))) == b"+OK\r\n"
        assert resp(link, "SET", "replaced", value(6, 9000)) == b"+OK\r\n"
    node.end()
    node.start()
    with node.connect(node.resp) as link:
        for name, data in VALUES.items():
            assert resp(link, "SET", name, data) == b"+OK\r\n"
        for name, data in EXPIRING.items():
            assert resp(link, "SET", name, data, "EXAT", FOREVER) == b"+OK\r\n"
        assert resp(link, "DEL", *REMOVED) == b":2\r\n"
    lm = Lm(node)
    lm.put(LM_KEY, LM_VALUE)
    assert lm.get(LM_KEY) == LM_VALUE
    lm.close()
    node.end()


# ---- Redis ---------------------------------------------------------------------------------------

def redis_call(link, *words):
    link.sendall(command(*words))
    with link.makefile("rb") as lines:
        return read_redis(lines)


def read_redis(lines):
    line = lines.readline()
    if line[:1] == b"*":
        return [read_redis(lines) for _ in range(int(line[1:]))]
    return lines.read(int(line[1:]) + 2)[:-2] if line[:1] == b"$" else line[1:-2]


READERS = {b"string": ("SET", lambda r, k: [r("GET", k)]),
           b"hash": ("HSET", lambda r, k: r("HGETALL", k)),
           b"set": ("SADD", lambda r, k: r("SMEMBERS", k)),
           b"list": ("RPUSH", lambda r, k: r("LRANGE", k, 0, -1)),
           b"zset": ("ZADD", lambda r, k: [w for name, score in zip(*[iter(r("ZRANGE", k, 0, -1, "WITHSCORES"))] * 2)
                                           for w in (score, name)])}


def dump_redis(redis, name):
    """NAME.txt gets all keys as the commands that make them; PORT: of the Redis."""
    lines = []
    with socket.create_connection(("127.0.0.1", redis.port), SECONDS) as link:
        for key in sorted(redis_call(link, "KEYS", "*")):
            word, read = READERS[redis_call(link, "TYPE", key)]
            words = [word, key, *read(lambda *words: redis_call(link, *words), key)]
            words = [w if isinstance(w, str) else w.decode("latin-1") for w in words]
            lines.append(json.dumps([w.replace(f":{redis.port}", ":PORT") for w in words]))
    (FOLDER / f"{name}.txt").write_text("# The keys of a Redis\n" + "\n".join(lines) + "\n")


def fill_redis(redis, name):
    with socket.create_connection(("127.0.0.1", redis.port), SECONDS) as link:
        for line in frozen(name):
            words = [w.replace(":PORT", f":{redis.port}").encode("latin-1") for w in json.loads(line)]
            redis_call(link, *words)


# ---- managers ------------------------------------------------------------------------------------

KEYS, REMOVED_KEYS, UNFINISHED_KEYS = [1, 2, 3, -4, 2**62], [5, 6], [7]
SPECS = [{"name": "tp0", "size": 64}, {"name": "tp1", "size": 128}]
ACCOUNT = {"user_name": "user", "password": "password", "role": "ROLE_ADMIN"}


def manager_on(folder, kind, uri, registry):
    """A manager with its index in a RocksDB or a Redis, and its catalog in a file or a Redis."""
    # By the folder that the process works in, so that the state can be moved.
    startup = Manager.usual_startup(storage="/proc/self/cwd/nfs")
    startup["instance_group"]["cache_config"]["meta_indexer_config"]["meta_storage_backend_config"] = {
        "storage_type": kind, "storage_uri": uri}
    (folder / "log" / "nfs").mkdir(parents=True, exist_ok=True)
    return Manager(folder / "log", f"--registry.uri={registry}", startup=startup)


def must(reply):
    assert reply["header"]["status"]["code"] == "OK", reply
    return reply


def write(api, instance, keys, finish=True):
    one = must(api.call("meta", "StartWriteCache", instance_id=instance, block_keys=keys, write_timeout_seconds=5))
    if finish:
        must(api.call("meta", "FinishWriteCache", instance_id=instance, write_session_id=one["write_session_id"],
                      success_blocks={"offset": len(keys)}))


def uris(api, keys):
    """The URIs of blocks, one after the other; "" for those that are not found."""
    found = must(api.call("meta", "GetCacheLocation", instance_id="i", block_keys=keys, query_type="QT_BATCH_GET"))
    return [spec["uri"] for location in found["locations"] for spec in location["location_specs"]]


def fill_manager(manager, kind):
    """KIND-uris.txt gets the URIs of the blocks."""
    api = Http(manager)
    for instance in ("i", "gone"):
        must(api.call("meta", "RegisterInstance", **{**INSTANCE, "instance_id": instance, "location_spec_infos": SPECS}))
        write(api, instance, KEYS)
    write(api, "i", REMOVED_KEYS)
    must(api.call("meta", "RemoveCache", instance_id="i", block_keys=REMOVED_KEYS))
    write(api, "i", UNFINISHED_KEYS, finish=False)
    must(api.call("admin", "RemoveInstance", instance_group="default", instance_id="gone"))
    must(api.call("admin", "AddAccount", **ACCOUNT))
    must(api.call("admin", "AddStorage", storage={"global_unique_name": "fleet", "mooncake": {
        "local_hostname": "h", "metadata_connstring": "m", "protocol": "tcp", "rdma_device": "", "master_service_entry": "e"}}))
    (FOLDER / f"{kind}-uris.txt").write_text("\n".join(uris(api, KEYS)) + "\n")


def make_rocksdb(folder):
    manager = manager_on(folder, "rocksdb", "meta", f"local://{folder}/registry")
    fill_manager(manager, "rocksdb")
    assert manager.stop() == 0


def make_redis(folder):
    redis = Redis(folder / "redis")
    manager = manager_on(folder, "redis", redis.uri, f"{redis.uri}?cluster_name=c")
    fill_manager(manager, "redis")
    assert manager.stop() == 0
    dump_redis(redis, "redis")
    redis.stop()


# ---- fleets: what managers have had since they have engines ---------------------------------------

WINDOW = {"attention_kind": "window", "window_tokens": 8, "attention_family": "family", "attention_layers": "1"}
FULL = {"attention_kind": "full", "attention_family": "family", "attention_layers": "0"}
STALE_KEYS = [11, 12]


def fill_fleet(manager, folder, name):
    """Instances of a family, and a backup. If the manager has generations, "i" is of the second: NAME-uris.txt gets its
    blocks."""
    api = Http(manager)
    for instance, attention in (("i", FULL), ("window", WINDOW)):
        must(api.call("meta", "RegisterInstance", **{**INSTANCE, **attention, "instance_id": instance,
                                                     "location_spec_infos": SPECS}))
    write(api, "i", STALE_KEYS)
    if name == "generations":
        must(api.call("meta", "InvalidateNamespace", instance_id="i"))
    for instance in ("i", "window"):
        write(api, instance, KEYS)
    wait_until((folder / "log" / "nfs" / "~tierce-pool").exists)
    subprocess.run([str(executable()), "manager", "backup", str(folder / "backup"), "--url",
                    f"http://127.0.0.1:{manager.ports['admin_http']}"], check=True, stdout=subprocess.DEVNULL)
    (FOLDER / f"{name}-uris.txt").write_text("\n".join(uris(api, KEYS)) + "\n")


def make_fleet(folder, name="fleet"):
    manager = manager_on(folder, "rocksdb", "meta", f"local://{folder}/registry")
    fill_fleet(manager, folder, name)
    assert manager.stop() == 0


def make_generations(folder):
    make_fleet(folder, "generations")


# ---- archives ------------------------------------------------------------------------------------

FLEET = ["log/meta", "log/nfs/~tierce-pool", "registry", "backup"]
# name: what makes it, and which of its files are kept
MAKERS = {"chunks": (make_chunks, ["store", "remote", "access"]), "values": (make_values, ["store"]),
          "rocksdb": (make_rocksdb, ["log/meta", "registry"]), "redis": (make_redis, []),
          "fleet": (make_fleet, FLEET), "generations": (make_generations, FLEET)}


def pack(name):
    make, kept = MAKERS[name]
    with tempfile.TemporaryDirectory(prefix="tierce-frozen-") as folder:
        make(Path(folder))
        if not kept:
            return
        with tarfile.open(FOLDER / f"{name}.tar.xz", "w:xz", preset=9) as tar:
            for part in kept:
                tar.add(Path(folder) / part, part, filter=anonymous)


def anonymous(info):
    info.uid = info.gid = info.mtime = 0
    info.uname = info.gname = ""
    return info


def unpack(name, folder):
    with tarfile.open(FOLDER / f"{name}.tar.xz") as tar:
        tar.extractall(folder)


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT / "python"))
    for wanted in sys.argv[1:] or MAKERS:
        pack(wanted)
