# SPDX-License-Identifier: Apache-2.0
"""The present build reads the data of an earlier one (tests/frozen/stores.py wrote it)."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "frozen"))

import stores  # noqa: E402
from interfaces import frozen, run  # noqa: E402
from manager_process import Http, Redis, executable  # noqa: E402
from node_process import Lm  # noqa: E402

DISK, REMOTE = 2, 3  # enum tierce_origin


def verify(folder):
    """What `tierce inspect --verify` finds; it fails where something is damaged."""
    report = json.loads(run("inspect", str(folder), "--verify", "--json"))
    assert report["journal_damage"] == 0 and report["verify"]["damaged"] == 0
    return {"namespaces": len(report["namespaces"]), "chunks": report["chunks"], "verified": report["verify"]["chunks"]}


def check_prompts(engine, origin, cleared):
    for name in stores.PROMPTS:
        prompt = stores.Prompt(engine, name)
        found = prompt.view.lookup(prompt.chain, 0, stores.BLOCKS, 0, 0)[0]
        if prompt.is_cleared and cleared:
            assert found == 0, name
            continue
        assert found == stores.BLOCKS, name
        kv, origins = prompt.load()
        assert origins == bytes([origin]) * stores.BLOCKS and kv == prompt.kv, name


@pytest.fixture(name="chunks")
def unpack_chunks(tmp_path):
    stores.unpack("chunks", tmp_path)
    return tmp_path


def test_a_store_folder_of_an_engine(chunks):
    assert verify(chunks / "store") == {"namespaces": 3, "chunks": 18, "verified": 18}
    for _ in range(2):  # the second time after it was written by this build
        engine = stores.open_engine(**{"disk.path": f"{chunks}/store", "disk.size": "8MiB"})
        stats = engine.stats()
        assert stats["disk_open_status"] == 0 and stats["disk_durable_chunks_now"] == 18
        check_prompts(engine, DISK, cleared=True)
        engine.close()
    assert verify(chunks / "store") == {"namespaces": 3, "chunks": 18, "verified": 18}


def test_chunk_objects_in_a_shared_folder(chunks):
    objects = [p for p in (chunks / "remote").rglob("tierce1*")]
    assert len(objects) == 3 * len(stores.PROMPTS)
    for path in objects:
        assert path.read_bytes()[:12] == b"TIERCECK\1\0\0\0"
    engine = stores.open_engine(**{"remote.urls": f"file://{chunks}/remote"})
    check_prompts(engine, REMOTE, cleared=False)
    engine.close()


def test_an_access_log(chunks):
    text = run("trace", "stat", str(chunks / "access"))
    numbers = dict(re.findall(r"^ *([a-z][a-z ]*?)  +(\S+)$", text, re.M))
    assert {name: numbers[name] for name in ("format", "requests", "reads", "writes", "blocks read", "blocks written",
                                             "distinct blocks", "instances", "input tokens", "bad lines", "skipped lines")} == {
        "format": "access", "requests": "14", "reads": "7", "writes": "7", "blocks read": "70", "blocks written": "70",
        "distinct blocks": "70", "instances": "4", "input tokens": "280", "bad lines": "0", "skipped lines": "0"}
    assert run("trace", "convert", str(chunks / "access"), "--to", "access").count('"tierce_access":1') == 14


def test_a_store_folder_of_a_node(tmp_path):
    stores.unpack("values", tmp_path)
    count = len(stores.VALUES) + len(stores.EXPIRING) + 1
    assert verify(tmp_path / "store") == {"namespaces": 2, "chunks": count, "verified": count}
    node = stores.node_on(tmp_path)
    with node.connect(node.resp) as link:
        for name, data in {**stores.VALUES, **stores.EXPIRING}.items():
            assert stores.resp(link, "GET", name) == data, name
        for name in stores.REMOVED:
            assert stores.resp(link, "GET", name) is None, name
        assert stores.resp(link, "EXPIRETIME", "ends") == b":%d\r\n" % stores.FOREVER
        assert stores.resp(link, "TTL", "small") == b":-1\r\n"
        assert stores.resp(link, "DBSIZE") == b":%d\r\n" % (count - 1)
        assert stores.resp(link, "INCR", "number") == b":43\r\n"
    lm = Lm(node)
    assert lm.get(stores.LM_KEY) == stores.LM_VALUE
    lm.close()
    node.end()


# ---- managers ------------------------------------------------------------------------------------

@pytest.fixture(name="manager", params=["rocksdb", "redis"], scope="module")
def run_manager(request, tmp_path_factory):
    tmp_path, redis = tmp_path_factory.mktemp("manager"), None
    if request.param == "rocksdb":
        stores.unpack("rocksdb", tmp_path)
        place = ("rocksdb", "meta", f"local://{tmp_path}/registry")
    else:
        redis = Redis(tmp_path / "redis")
        stores.fill_redis(redis, "redis")
        place = ("redis", redis.uri, f"{redis.uri}?cluster_name=c")
    manager = stores.manager_on(tmp_path, *place)
    manager.uris = frozen(f"{request.param}-uris")
    yield manager
    assert manager.stop() == 0
    if redis:
        redis.stop()


def test_the_blocks_of_a_manager(manager):
    api = Http(manager)
    assert len(manager.uris) == 2 * len(stores.KEYS)
    assert stores.uris(api, stores.KEYS) == manager.uris
    # Blocks that were removed, and those whose write had not ended.
    assert set(stores.uris(api, stores.REMOVED_KEYS + stores.UNFINISHED_KEYS)) == {""}
    metas = stores.must(api.call("meta", "GetCacheMeta", instance_id="i", block_keys=stores.KEYS, detail_level=1))["metas"]
    assert [json.loads(m)["status"] for m in metas] == ["CLS_SERVING"] * len(stores.KEYS)


def test_the_catalog_of_a_manager(manager):
    api = Http(manager)
    instances = stores.must(api.call("admin", "ListInstanceInfo", instance_group_name="default"))["instance_info"]
    assert [i["instance_id"] for i in instances] == ["i"]
    assert [(s["name"], int(s["size"])) for s in instances[0]["location_spec_infos"]] == [("tp0", 64), ("tp1", 128)]
    storages = stores.must(api.call("admin", "ListStorage"))["storage"]
    assert sorted(s["global_unique_name"] for s in storages) == ["fleet", "nfs_01"]
    group = stores.must(api.call("admin", "GetInstanceGroup", name="default"))["instance_group"]
    assert group["quota"]["capacity"] == "30000000000"
    accounts = stores.must(api.call("admin", "ListAccount"))["accounts"]
    assert [(a["user_name"], a["role"]) for a in accounts] == [("user", "ROLE_ADMIN")]


def check_fleet(manager, name):
    api = Http(manager)
    assert stores.uris(api, stores.KEYS) == frozen(f"{name}-uris")
    assert ("" in stores.uris(api, stores.STALE_KEYS)) == (name == "generations")
    found = stores.must(api.call("admin", "ListInstanceInfo", instance_group_name="default"))["instance_info"]
    assert {i["instance_id"]: i["attention_kind"] for i in found} == {"i": "full", "window": "window"}
    invalidated = stores.must(api.call("meta", "InvalidateNamespace", instance_id="i"))["instances"]
    generation = int(invalidated[0]["generation"])
    assert set(stores.uris(api, stores.KEYS)) == {""}
    assert manager.stop() == 0
    return generation


@pytest.mark.parametrize("name", ["fleet", "generations"])
def test_a_fleet_and_its_backup(name, tmp_path):
    """Written by managers without and with InvalidateNamespace: `fleet` by the commit 4f81c3a5."""
    stores.unpack(name, tmp_path)
    place = ("rocksdb", "meta", f"local://{tmp_path}/registry")
    assert check_fleet(stores.manager_on(tmp_path, *place), name) == (2 if name == "fleet" else 3)
    (tmp_path / "registry").unlink()
    shutil.rmtree(tmp_path / "log" / "meta")
    subprocess.run([str(executable()), "manager", "restore", str(tmp_path / "backup"), f"--registry.uri={place[2]}",
                    "--restore.same_registry=true", "--restore.keep_slots=true"], cwd=tmp_path / "log", check=True, timeout=60)
    assert check_fleet(stores.manager_on(tmp_path, *place), name) > 65536


def test_a_manager_goes_on(manager):
    """New blocks get other places, and the counters of keys continue."""
    api = Http(manager)
    stores.write(api, "i", [100, 101])
    new = stores.uris(api, [100, 101])
    assert "" not in new and len({*new, *manager.uris}) == 4 + len(manager.uris)
    text = manager.get("/metrics", "admin_http")[1].decode()
    count = re.search(r'^tierce_cache_manager_instance_key_count\{[^}]*instance_id="i"[^}]*\} (\S+)$', text, re.M)
    assert float(count[1]) == len(stores.KEYS) + 2
