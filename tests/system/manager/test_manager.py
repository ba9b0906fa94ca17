# SPDX-License-Identifier: Apache-2.0
"""The manager over gRPC and HTTP, as clients of Tair KVCache Manager use it."""

import json
import os
import re
import subprocess
import threading
import time

import pytest

from manager_process import Grpc, Http, Manager, Redis, RedisCluster, executable, wait_until

pytest.importorskip("grpc_tools")

SPECS = [{"name": "tp0", "size": 1024}, {"name": "tp1", "size": 1024}]


@pytest.fixture(scope="module", params=["memory", "rocksdb", "redis", "cluster"])
def manager(request, tmp_path_factory):
    """The same for every kind of index."""
    folder = tmp_path_factory.mktemp("manager")
    kinds = {"redis": Redis, "cluster": RedisCluster}
    redis = kinds[request.param](folder / "redis") if request.param in kinds else None
    index = ("redis", redis.uri) if redis else {
        "memory": ("local", ""), "rocksdb": ("rocksdb", f"{folder}/meta")}[request.param]
    startup = Manager.usual_startup(storage=folder / "nfs")
    startup["instance_group"]["cache_config"]["meta_indexer_config"]["meta_storage_backend_config"] \
        = {"storage_type": index[0], "storage_uri": index[1]}
    manager = Manager(folder, startup=startup)
    yield manager
    assert manager.stop() == 0
    if redis:
        redis.stop()


@pytest.fixture(params=[Http, Grpc], ids=["http", "grpc"])
def api(request, manager):
    return request.param(manager)


_names = iter(range(1_000_000))


def code(reply):
    return reply["header"]["status"]["code"]


def register(api, **fields):
    instance = f"instance-{next(_names)}"
    reply = api.call("meta", "RegisterInstance", trace_id="r", **{
        "instance_group": "default", "instance_id": instance, "block_size": 4,
        "model_deployment": {"model_name": "m", "dtype": "bf16"},
        "location_spec_infos": SPECS, **fields})
    assert code(reply) == "OK", reply
    return instance


def start(api, instance, keys, **fields):
    reply = api.call("meta", "StartWriteCache", instance_id=instance, block_keys=keys,
                     **{"write_timeout_seconds": 30, **fields})
    assert code(reply) == "OK", reply
    return reply


def finish(api, instance, session, mask):
    return api.call("meta", "FinishWriteCache", instance_id=instance, write_session_id=session,
                    success_blocks=mask)


def store(api, instance, keys):
    started = start(api, instance, keys)
    reply = finish(api, instance, started["write_session_id"],
                   {"offset": len(started["locations"])})
    assert code(reply) == "OK", reply


def locate(api, instance, keys, query="QT_PREFIX_MATCH", **fields):
    reply = api.call("meta", "GetCacheLocation", instance_id=instance, block_keys=keys,
                     query_type=query, **fields)
    assert code(reply) == "OK", reply
    return reply["locations"]


def test_registering_twice_is_the_same_instance(api):
    instance = register(api)
    again = {"instance_group": "default", "instance_id": instance, "block_size": 4,
             "model_deployment": {"model_name": "m", "dtype": "bf16", "user_data": "other"},
             "location_spec_infos": SPECS}
    reply = api.call("meta", "RegisterInstance", **again)
    assert code(reply) == "OK"
    storages = json.loads(reply["storage_configs"])
    assert storages[0]["global_unique_name"] == "nfs_01"
    assert storages[0]["type"] == "file"
    reply = api.call("meta", "RegisterInstance", **{**again, "block_size": 8})
    assert code(reply) == "DUPLICATE_ENTITY"
    reply = api.call("meta", "GetInstanceInfo", instance_id=instance)
    assert reply["instance_group"] == "default"
    assert reply["instance_info"]["block_size"] == 4
    assert [s["name"] for s in reply["instance_info"]["location_spec_infos"]] == ["tp0", "tp1"]


def test_workers_register_at_once(api):
    """All ranks of an engine register the same instance at the same moment."""
    instance = f"instance-{next(_names)}"
    replies = []

    def one():
        replies.append(type(api)(api.manager).call(
            "meta", "RegisterInstance", instance_group="default", instance_id=instance,
            block_size=4, model_deployment={"model_name": "m", "dtype": "bf16"},
            location_spec_infos=SPECS))

    threads = [threading.Thread(target=one) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [code(r) for r in replies] == ["OK"] * 16
    store(api, instance, [1, 2])
    reply = api.call("admin", "RemoveInstance", instance_group="default", instance_id=instance)
    assert code(reply) == "OK"
    reply = api.call("meta", "GetCacheLocation", instance_id=instance, block_keys=[1],
                     query_type="QT_PREFIX_MATCH")
    assert code(reply) == "INSTANCE_NOT_EXIST"


def test_spec_groups_are_compared_without_order(api):
    groups = [{"name": "full", "spec_names": ["tp1", "tp0"]}, {"name": "a", "spec_names": ["tp0"]}]
    instance = register(api, location_spec_groups=groups)
    reply = api.call("meta", "RegisterInstance", instance_group="default", instance_id=instance,
                     block_size=4, model_deployment={"model_name": "m", "dtype": "bf16"},
                     location_spec_infos=SPECS, location_spec_groups=groups)
    assert code(reply) == "OK"


@pytest.mark.parametrize("missing", ["instance_group", "instance_id", "model_deployment",
                                     "location_spec_infos"])
def test_a_registration_needs_its_fields(api, missing):
    fields = {"instance_group": "default", "instance_id": "x", "block_size": 4,
              "model_deployment": {"model_name": "m", "dtype": "bf16"},
              "location_spec_infos": SPECS}
    del fields[missing]
    reply = api.call("meta", "RegisterInstance", **fields)
    assert code(reply) == "INVALID_ARGUMENT"
    assert reply["storage_configs"] == ""


def test_an_unknown_group_and_an_unknown_instance(api):
    reply = api.call("meta", "RegisterInstance", instance_group="none", instance_id="y",
                     block_size=4, model_deployment={"model_name": "m", "dtype": "bf16"},
                     location_spec_infos=SPECS)
    assert code(reply) == "INTERNAL_ERROR"
    for method, fields in [("GetInstanceInfo", {}), ("GetCacheLocation", {"block_keys": [1]}),
                           ("StartWriteCache", {"block_keys": [1]}),
                           ("RemoveCache", {"block_keys": [1]}),
                           ("GetCacheMeta", {"block_keys": [1]}),
                           ("TrimCache", {"strategy": "TS_REMOVE_ALL_CACHE"})]:
        reply = api.call("meta", method, instance_id="nobody", **fields)
        assert code(reply) == "INSTANCE_NOT_EXIST", method


def test_a_block_is_served_after_it_was_finished(api):
    instance = register(api)
    started = start(api, instance, [1, 2, 3])
    assert len(started["write_session_id"]) == 32
    assert started["block_mask"] == {"offset": 0}
    assert len(started["locations"]) == 3
    assert locate(api, instance, [1, 2, 3]) == []
    assert code(finish(api, instance, started["write_session_id"], {"offset": 3})) == "OK"
    found = locate(api, instance, [1, 2, 3, 4])
    assert found == started["locations"]
    spec = found[0]["location_specs"][0]
    assert spec["name"] == "tp0"
    assert spec["uri"].startswith("file://nfs_01/") and "size=1024" in spec["uri"]
    assert found[0]["type"] == "ST_NFS" and found[0]["spec_size"] == 2


def test_sums_of_the_writer_are_in_the_answers(api):
    """The manager keeps them; texts without a sum say nothing, as to the original."""
    instance = register(api)
    started = start(api, instance, [1, 2])
    session, given, digits = started["write_session_id"], started["locations"], "0123456789abcdef" * 2
    name, uri = (given[1]["location_specs"][0][field] for field in ("name", "uri"))

    def end(*locations):
        return api.call("meta", "FinishWriteCache", instance_id=instance, write_session_id=session,
                        success_blocks={"offset": 2}, locations=list(locations))

    def summed(text, spec=name):
        return {"location_specs": [{"name": spec, "uri": f"{uri}&sum={text}"}]}

    for wrong in ((given[0], summed(digits[1:])), (given[0], summed("0" * 32)), (given[0], summed("x" * 32)),
                  (given[0], summed(digits, "other")), (given[0], given[1], summed(digits))):
        assert code(end(*wrong)) == "INVALID_ARGUMENT", wrong
    assert code(end(given[0], summed(digits))) == "OK"
    found = locate(api, instance, [1, 2])
    assert found[0] == given[0] and found[1]["location_specs"][0]["uri"] == f"{uri}&sum={digits}"
    reports = [{"block_key": 2, "location_spec_name": name, "uri": uri, "reason": "RR_DAMAGED"}]
    assert api.call("meta", "ReportCache", instance_id=instance, reports=reports)["dropped_locations"] == "1"


def test_tokens_make_the_keys_of_the_original(api):
    instance = register(api)
    store(api, instance, [455111481605203084, 6902853672176602142])
    reply = api.call("meta", "GetCacheLocation", instance_id=instance,
                     query_type="QT_PREFIX_MATCH", token_ids=list(range(1, 11)))
    assert len(reply["locations"]) == 2


def test_the_match_modes(api):
    instance = register(api)
    store(api, instance, [1, 2, 4, 5, 7])
    keys = [1, 2, 3, 4, 5, 6, 7]
    assert len(locate(api, instance, keys)) == 2
    assert len(locate(api, instance, keys, block_mask={"offset": 3})) == 2
    assert locate(api, instance, keys, block_mask={"offset": 7}) == []
    mask = {"bool_masks": {"values": [True, False, True]}}
    assert len(locate(api, instance, keys, block_mask=mask)) == 3
    found = locate(api, instance, keys, "QT_BATCH_GET")
    assert [f["type"] != "ST_UNSPECIFIED" for f in found] == [True, True, False, True, True, False,
                                                             True]
    miss = found[2]
    assert miss["spec_size"] == 2
    assert [s["name"] for s in miss["location_specs"]] == ["tp0", "tp1"]
    assert all(s["uri"] == "" for s in miss["location_specs"])
    found = locate(api, instance, keys, "QT_REVERSE_ROLL_SW_MATCH", sw_size=2)
    assert [f["type"] != "ST_UNSPECIFIED" for f in found] == [False] * 3 + [True] * 2 + [False] * 2
    for size in (0, -1, 8):
        reply = api.call("meta", "GetCacheLocation", instance_id=instance, block_keys=keys,
                         query_type="QT_REVERSE_ROLL_SW_MATCH", sw_size=size)
        assert code(reply) == "INVALID_ARGUMENT", size
    reply = api.call("meta", "GetCacheLocation", instance_id=instance, block_keys=keys)
    assert code(reply) == "INTERNAL_ERROR"  # no query type, as in the original
    reply = api.call("meta", "GetCacheLocation", instance_id=instance, query_type="QT_BATCH_GET")
    assert code(reply) == "INVALID_ARGUMENT"


def test_only_the_specs_that_are_asked_for(api):
    instance = register(api)
    store(api, instance, [1])
    found = locate(api, instance, [1], location_spec_names=["tp1"])
    assert [s["name"] for s in found[0]["location_specs"]] == ["tp1"]
    assert found[0]["spec_size"] == 2
    reply = api.call("meta", "GetCacheLocation", instance_id=instance, block_keys=[1],
                     query_type="QT_PREFIX_MATCH", location_spec_names=["tp1", "unknown"])
    assert code(reply) == "INVALID_ARGUMENT"
    assert "location_spec_names has unknown" in reply["header"]["status"]["message"]


def test_masks_of_a_write(api):
    instance = register(api)
    store(api, instance, [1, 2])
    started = start(api, instance, [1, 2, 3])
    assert started["block_mask"] == {"offset": 2}
    assert len(started["locations"]) == 1
    started = start(api, instance, [1, 2])
    assert started["block_mask"] == {"offset": 2} and started["locations"] == []
    reply = finish(api, instance, started["write_session_id"], {"bool_masks": {}})
    assert code(reply) == "OK"
    started = start(api, instance, [9, 1, 8])
    assert started["block_mask"] == {"bool_masks": {"values": [False, True, False]}}


def test_a_bad_mask_consumes_nothing(api):
    instance = register(api)
    started = start(api, instance, [1, 2, 3])
    session = started["write_session_id"]
    for mask in ({"offset": 4}, {"bool_masks": {"values": [True]}}, {"offset": -1}):
        assert code(finish(api, instance, session, mask)) == "INVALID_ARGUMENT", mask
    reply = finish(api, instance, session, {"bool_masks": {"values": [True, False, True]}})
    assert code(reply) == "OK"
    assert code(finish(api, instance, session, {"offset": 3})) == "INTERNAL_ERROR"
    assert len(locate(api, instance, [1, 2, 3])) == 1
    found = locate(api, instance, [1, 2, 3], "QT_BATCH_GET")
    assert [f["type"] != "ST_UNSPECIFIED" for f in found] == [True, False, True]
    reply = api.call("meta", "FinishWriteCache", instance_id=instance)
    assert code(reply) == "INVALID_ARGUMENT"


def test_a_write_times_out_to_the_second(api):
    instance = register(api)
    began = time.monotonic()
    started = start(api, instance, [1, 2], write_timeout_seconds=1)
    while True:
        again = start(api, instance, [1, 2])
        if again["locations"]:
            break
        assert time.monotonic() - began < 30
        time.sleep(0.05)
    assert time.monotonic() - began > 0.9
    reply = finish(api, instance, started["write_session_id"], {"offset": 2})
    assert code(reply) == "INTERNAL_ERROR"


def test_spec_groups_of_hybrid_models(api):
    groups = [{"name": "full", "spec_names": ["tp0"]}, {"name": "both", "spec_names": ["tp0", "tp1"]}]
    instance = register(api, location_spec_groups=groups)
    started = start(api, instance, [1, 2], location_spec_group_names=["full", "both"])
    assert [len(l["location_specs"]) for l in started["locations"]] == [1, 2]
    for names in (["full"], ["full", "none"]):
        reply = api.call("meta", "StartWriteCache", instance_id=instance, block_keys=[5, 6],
                         location_spec_group_names=names, write_timeout_seconds=30)
        assert code(reply) in ("INTERNAL_ERROR", "INVALID_ARGUMENT")


def states(api, instance, keys, **fields):
    reply = api.call("meta", "GetCacheMeta", instance_id=instance, block_keys=keys, **fields)
    assert code(reply) == "OK", reply
    return [json.loads(m) for m in reply["metas"]]


def file_part(uri):
    """The file of a URI and where its bytes begin."""
    path, _, parameters = uri.removeprefix("file://nfs_01").partition("?")
    values = dict(p.split("=") for p in parameters.split("&"))
    return path, int(values.get("blkid", 0)) * int(values["size"])


def test_ranks_write_one_block_at_once(api):
    """Two ranks begin to write the same blocks at the same moment; each writes its own bytes."""
    groups = [{"name": rank, "spec_names": [rank]} for rank in ("tp0", "tp1")]
    instance, keys = register(api, location_spec_groups=groups), list(range(1, 33))
    barrier, failures = threading.Barrier(2), []

    def write(rank):
        own = type(api)(api.manager)
        barrier.wait()
        started = start(own, instance, keys, location_spec_group_names=[rank] * len(keys))
        barrier.wait()  # neither ends before both have begun
        given = [[s["name"] for s in l["location_specs"]] for l in started["locations"]]
        if given != [[rank]] * len(keys):
            failures.append((rank, started))
        for key, location in zip(keys, started["locations"]):
            path, offset = file_part(location["location_specs"][0]["uri"])
            os.makedirs(os.path.dirname(path), exist_ok=True)
            file = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
            os.pwrite(file, f"{rank} {key}".encode().ljust(1024), offset)
            os.close(file)
        reply = finish(own, instance, started["write_session_id"], {"offset": len(given)})
        if code(reply) != "OK":
            failures.append((rank, reply))

    threads = [threading.Thread(target=write, args=(rank,)) for rank in ("tp0", "tp1")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    for rank in ("tp0", "tp1"):
        found = locate(api, instance, keys, location_spec_names=[rank])
        assert [l["spec_size"] for l in found] == [2] * len(keys)
        for key, location in zip(keys, found):
            path, offset = file_part(location["location_specs"][0]["uri"])
            with open(path, "rb") as file:
                file.seek(offset)
                assert file.read(1024).rstrip() == f"{rank} {key}".encode()


def test_states_as_clients_see_them(api):
    instance = register(api)
    store(api, instance, [1])
    start(api, instance, [2])
    metas = states(api, instance, [1, 2, 3])
    assert [m["status"] for m in metas] == ["CLS_SERVING", "CLS_WRITING", "CLS_NOT_FOUND"]
    assert len(metas[0]["id"]) == 8 and metas[2]["id"] == ""
    assert len(states(api, instance, [1, 2, 3], block_mask={"offset": 2})) == 1


def write_files(manager, locations):
    paths = set()
    for location in locations:
        for spec in location["location_specs"]:
            path = spec["uri"].split("://nfs_01", 1)[1].split("?")[0]
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "ab") as file:
                file.truncate(8 * 1024)
            paths.add(path)
    return paths


def test_what_is_removed_is_really_deleted(api, manager):
    instance = register(api)
    started = start(api, instance, [1, 2, 3])
    paths = write_files(manager, started["locations"])
    finish(api, instance, started["write_session_id"], {"offset": 3})
    reply = api.call("meta", "RemoveCache", instance_id=instance, block_keys=[1, 2, 3],
                     block_mask={"offset": 1})
    assert code(reply) == "OK"
    assert len(locate(api, instance, [1, 2, 3])) == 1
    assert all(os.path.exists(p) for p in paths)  # the first block is still in them
    api.call("meta", "RemoveCache", instance_id=instance, block_keys=[1, 77])
    wait_until(lambda: not any(os.path.exists(p) for p in paths))


def test_trimming(api):
    instance = register(api)
    store(api, instance, [1, 2, 3])
    reply = api.call("meta", "TrimCache", instance_id=instance)
    assert code(reply) == "INVALID_ARGUMENT"
    now = int(time.time())
    reply = api.call("meta", "TrimCache", instance_id=instance, strategy="TS_TIMESTAMP",
                     begin_timestamp=now - 3600, end_timestamp=now - 1800)
    assert code(reply) == "OK" and len(locate(api, instance, [1, 2, 3])) == 3
    reply = api.call("meta", "TrimCache", instance_id=instance, strategy="TS_TIMESTAMP",
                     begin_timestamp=now - 60, end_timestamp=now + 60)
    assert code(reply) == "OK" and locate(api, instance, [1, 2, 3]) == []
    store(api, instance, [1])
    reply = api.call("meta", "TrimCache", instance_id=instance, strategy="TS_REMOVE_ALL_CACHE")
    assert code(reply) == "OK" and locate(api, instance, [1]) == []


def test_entries_by_name(api):
    instance = f"kv-{next(_names)}"
    reply = api.call("kv_meta", "RegisterInstance", instance_group="default", instance_id=instance)
    assert code(reply) == "OK", reply
    reply = api.call("kv_meta", "PutStart", instance_id=instance, keys=["image:1", "image:2"],
                     write_timeout_seconds=30)
    assert code(reply) == "OK", reply
    assert reply["key_mask"]["values"] == [False, False] and len(reply["locations"]) == 2
    reply = api.call("kv_meta", "PutFinish", instance_id=instance,
                     write_session_id=reply["write_session_id"])
    assert code(reply) == "OK", reply
    reply = api.call("kv_meta", "Get", instance_id=instance, query_type="QT_BATCH_GET",
                     keys=["image:2", "image:3"])
    assert [l["type"] for l in reply["locations"]] == ["ST_NFS", "ST_UNSPECIFIED"]
    reply = api.call("kv_meta", "Remove", instance_id=instance, keys=["image:2"])
    assert code(reply) == "OK"
    reply = api.call("kv_meta", "Get", instance_id=instance, query_type="QT_BATCH_GET",
                     keys=["image:1", "image:2"])
    assert [l["type"] for l in reply["locations"]] == ["ST_NFS", "ST_UNSPECIFIED"]
    reply = api.call("kv_meta", "Trim", instance_id=instance, strategy="TS_REMOVE_ALL_CACHE")
    assert code(reply) == "OK"


# ---- administration -------------------------------------------------------------------------------

def storage(name, root="/tmp/nfs/"):
    return {"global_unique_name": name, "nfs": {"root_path": root, "key_count_per_file": 4}}


def test_storages_come_and_go(api, tmp_path):
    name = f"storage-{next(_names)}"
    reply = api.call("admin", "AddStorage", storage=storage(name, f"{tmp_path}/"))
    assert code(reply) == "OK" and reply["header"]["status"]["message"] == "Storage added successfully"
    assert code(api.call("admin", "AddStorage", storage=storage(name, "/elsewhere/"))) == "INTERNAL_ERROR"
    listed = {s["global_unique_name"]: s for s in api.call("admin", "ListStorage")["storage"]}
    assert listed[name]["nfs"]["root_path"] == f"{tmp_path}/"  # a failed add changes nothing
    for method in ("DisableStorage", "EnableStorage"):
        assert code(api.call("admin", method, storage_unique_name=name)) == "OK"
    reply = api.call("admin", "UpdateStorage", storage=storage(name, f"{tmp_path}/other/"))
    assert code(reply) == "OK", reply
    assert code(api.call("admin", "RemoveStorage", storage_unique_name=name)) == "OK"
    assert code(api.call("admin", "RemoveStorage", storage_unique_name=name)) == "INTERNAL_ERROR"
    assert code(api.call("admin", "AddStorage")) == "INVALID_ARGUMENT"
    reply = api.call("admin", "RemoveStorage", storage_unique_name="nfs_01")
    assert code(reply) == "INTERNAL_ERROR"
    assert any(why in reply["header"]["status"]["message"] for why in ("default", "nfs_01 still holds"))


@pytest.mark.parametrize("spec", [
    {"threefs": {"cluster_name": "c", "mountpoint": "/mnt/3fs", "root_dir": "kv/",
                 "key_count_per_file": 4, "touch_file_when_create": True}},
    {"mooncake": {"local_hostname": "h", "metadata_connstring": "m", "protocol": "tcp",
                  "rdma_device": "", "master_service_entry": "h:1"}},
    {"tair_mem_pool": {"domain": "d", "timeout": 5, "enable_vipserver": True}},
    {"vcnsthreefs": {"cluster_name": "c", "mountpoint": "/mnt/3fs", "root_dir": "kv/",
                     "key_count_per_file": 4, "touch_file_when_create": False,
                     "remote_host": "h", "remote_port": 7, "meta_storage_uri": "u"}},
    {"redis": {"uri": "redis://h:6379/1", "key_prefix": "a&b=", "credentials_file": "/etc/x",
               "is_cluster": True}},
    {"s3": {"endpoint": "https://s3:9000", "region": "r", "bucket": "b", "prefix": "p/q",
            "credentials_file": "", "is_path_style": True}},
])
def test_every_kind_of_storage_is_kept(api, spec):
    name = f"storage-{next(_names)}"
    reply = api.call("admin", "AddStorage", storage={"global_unique_name": name, **spec})
    assert code(reply) == "OK", reply
    listed = {s["global_unique_name"]: s for s in api.call("admin", "ListStorage")["storage"]}
    kind = next(iter(spec))
    assert {k: listed[name][kind][k] for k in spec[kind]} == spec[kind]
    assert code(api.call("admin", "RemoveStorage", storage_unique_name=name)) == "OK"


def group(name, version=1, **quota):
    return {"name": name, "storage_candidates": ["nfs_01"], "global_quota_group_name": "q",
            "max_instance_count": 2, "quota": {"capacity": 10_000, **quota}, "version": version,
            "cache_config": {
                "reclaim_strategy": {"storage_unique_name": "nfs_01", "reclaim_policy": "POLICY_LRU",
                                     "trigger_strategy": {"used_percentage": 0.5},
                                     "delay_before_delete_ms": 50},
                "data_storage_strategy": "CPS_PREFER_3FS",
                "meta_indexer_config": {
                    "max_key_count": 1000, "mutex_shard_num": 16, "batch_key_size": 16,
                    "meta_storage_backend_config": {"storage_type": "local"},
                    "meta_cache_policy_config": {"type": "LRU"}}}}



def test_groups_come_and_go(api):
    name = f"group-{next(_names)}"
    assert code(api.call("admin", "CreateInstanceGroup", instance_group=group(name))) == "OK"
    assert code(api.call("admin", "CreateInstanceGroup", instance_group=group(name))) == "INTERNAL_ERROR"
    shown = api.call("admin", "GetInstanceGroup", name=name)["instance_group"]
    assert shown["quota"]["capacity"] == "10000" and shown["version"] == "1"
    assert shown["cache_config"]["data_storage_strategy"] == "CPS_PREFER_3FS"
    for current, version, expected in ((2, 3, "INTERNAL_ERROR"), (1, 1, "INTERNAL_ERROR"),
                                       (1, 2, "OK")):
        reply = api.call("admin", "UpdateInstanceGroup", current_version=current,
                         instance_group=group(name, version))
        assert code(reply) == expected, (current, version, reply)
    instances = [register(api, instance_group=name) for _ in range(2)]
    reply = api.call("meta", "RegisterInstance", instance_group=name, instance_id="one too many",
                     block_size=4, model_deployment={"model_name": "m", "dtype": "bf16"},
                     location_spec_infos=SPECS)
    assert code(reply) == "REACH_MAX_ENTITY_CAPACITY", reply
    listed = api.call("admin", "ListInstanceInfo", instance_group_name=name)["instance_info"]
    assert sorted(i["instance_id"] for i in listed) == sorted(instances)
    reply = api.call("admin", "RemoveInstanceGroup", name=name)
    assert code(reply) == "INTERNAL_ERROR"
    assert any(i in reply["header"]["status"]["message"] for i in instances)
    for instance in instances:
        reply = api.call("admin", "RemoveInstance", instance_group=name, instance_id=instance)
        assert code(reply) == "OK", reply
    assert code(api.call("admin", "RemoveInstanceGroup", name=name)) == "OK"
    assert code(api.call("admin", "GetInstanceGroup", name=name)) == "INTERNAL_ERROR"
    assert code(api.call("admin", "ListInstanceInfo")) == "INVALID_ARGUMENT"


def test_a_storage_has_a_capacity_of_its_own(api, tmp_path):
    name, own = f"group-{next(_names)}", f"storage-{next(_names)}"
    reply = api.call("admin", "AddStorage", storage={**storage(own, f"{tmp_path}/"),
                                                     "capacity_bytes": 5000})
    assert code(reply) == "OK", reply
    listed = {s["global_unique_name"]: s for s in api.call("admin", "ListStorage")["storage"]}
    assert listed[own]["capacity_bytes"] == "5000"
    wide = {**group(name, capacity=1_000_000), "storage_candidates": [own]}
    wide["cache_config"]["reclaim_strategy"]["trigger_strategy"]["used_percentage"] = 1
    assert code(api.call("admin", "CreateInstanceGroup", instance_group=wide)) == "OK"
    instance = register(api, instance_group=name)
    started = start(api, instance, [1, 2, 3, 4])
    assert len(started["locations"]) == 2
    finish(api, instance, started["write_session_id"], {"offset": 2})
    # Its blocks would be looked for where they are not. The write that found no room for two more
    # may have made some by now.
    moved = {**storage(own, f"{tmp_path}/elsewhere/"), "capacity_bytes": 5000}
    reply = api.call("admin", "UpdateStorage", storage=moved)
    assert code(reply) == "INTERNAL_ERROR" and re.search(
        r" holds (4096|2048) bytes of blocks", reply["header"]["status"]["message"]), reply
    reply = api.call("admin", "UpdateStorage", storage={**storage(own, f"{tmp_path}/"),
                                                        "capacity_bytes": 6000})
    assert code(reply) == "OK", reply


def test_accounts(api):
    name = f"user-{next(_names)}"
    assert code(api.call("admin", "AddAccount", user_name=name, password="p", role="ROLE_ADMIN")) == "OK"
    assert code(api.call("admin", "AddAccount", user_name=name, password="p")) == "INTERNAL_ERROR"
    reply = api.call("admin", "ListAccount")
    assert {"user_name": name, "role": "ROLE_ADMIN"} in reply["accounts"]
    assert code(api.call("admin", "DeleteAccount", user_name=name)) == "OK"
    assert code(api.call("admin", "DeleteAccount", user_name=name)) == "INTERNAL_ERROR"


def test_snapshots(api):
    reply = api.call("admin", "GenConfigSnapshot")
    assert code(reply) == "OK"
    assert "nfs_01" in reply["config_snapshot"]
    again = api.call("admin", "LoadConfigSnapshot", config_snapshot=reply["config_snapshot"])
    assert code(again) == "OK", again
    assert code(api.call("admin", "LoadConfigSnapshot", config_snapshot="{")) != "OK"


def test_cluster_and_metrics(api):
    reply = api.call("admin", "CheckHealth")
    assert code(reply) == "OK" and reply["is_leader"] and reply["is_health"]
    reply = api.call("admin", "GetManagerClusterInfo")
    assert reply["self_node_id"] == reply["leader_node_id"] != ""
    api.call("admin", "ListStorage")
    metrics = api.call("admin", "GetMetrics")["metrics"]
    counter = [m for m in metrics if m["metric_name"] == "service.query_counter"
               and {"tag_key": "api_name", "tag_value": "ListStorage"} in m["metric_tags"]]
    assert int(counter[0]["metric_value"]["int_value"]) >= 1
    for level in ("debug", "info"):
        assert code(api.call("admin", "UpdateLogger", log_level=level)) == "OK"
    assert code(api.call("admin", "UpdateLogger", log_level="loud")) == "INVALID_ARGUMENT"


# ---- faults ---------------------------------------------------------------------------------------

def test_faults_on_purpose(api):
    instance = register(api)
    store(api, instance, [1])
    api.call("debug", "InjectFault", api_name="GetCacheLocation", fault_trigger_strategy="ONCE",
             trigger_at_call=7)
    for trace, expected in (("a_6", "OK"), ("a_7", "INTERNAL_ERROR"), ("a", "OK")):
        reply = api.call("meta", "GetCacheLocation", trace_id=trace, instance_id=instance,
                         block_keys=[1], query_type="QT_PREFIX_MATCH")
        assert code(reply) == expected, trace
    assert code(api.call("debug", "RemoveFault", api_name="GetCacheLocation")) == "OK"
    assert code(api.call("debug", "RemoveFault", api_name="GetCacheLocation")) == "INVALID_ARGUMENT"
    api.call("debug", "InjectFault", api_name="GetCacheLocation", fault_type="FT_DELAY",
             delay_ms=300)
    began = time.monotonic()
    assert len(locate(api, instance, [1])) == 1
    assert time.monotonic() - began > 0.29
    api.call("debug", "InjectFault", api_name="GetCacheLocation", fault_type="FT_ERROR_CODE",
             error_code=20)
    reply = api.call("meta", "GetCacheLocation", instance_id=instance, block_keys=[1],
                     query_type="QT_PREFIX_MATCH")
    assert code(reply) == "IO_ERROR"
    assert code(api.call("debug", "ClearFaults")) == "OK"
    assert len(locate(api, instance, [1])) == 1


# ---- HTTP itself ----------------------------------------------------------------------------------

def test_json_that_is_none(manager):
    http = Http(manager)
    for body in ("", "{", "[]", "nonsense"):
        status, reply = http.raw(manager.ports["http"], "/api/getCacheLocation", body)
        assert (status, reply) == (400, b"{}"), body
    status, _ = http.raw(manager.ports["http"], "/api/unknown", "{}")
    assert status == 404
    status, reply = http.raw(manager.ports["debug_http"], "/api/injectFault",
                             '{"api_name": "GetCacheLocation", "fault_type": "NO_SUCH", "x": 1}')
    assert status == 200
    http.call("debug", "ClearFaults")


def test_pages_for_operators(manager):
    assert manager.get("/livez") == (200, b"ok\n")
    assert manager.get("/readyz")[0] == 200
    status, text = manager.get("/metrics", "admin_http")
    assert status == 200 and b"tierce_manager_is_leader 1" in text
    assert manager.get("/metrics", "http")[0] == 404
    status, text = manager.get("/openapi.json", "admin_http")
    document = json.loads(text)
    assert len(document["paths"]) == 33


# ---- the command line ------------------------------------------------------------------------------

def test_the_command_line(manager, tmp_path):
    def tierce(*arguments, status=0, stdin=None):
        done = subprocess.run(
            [str(executable()), *arguments, "--url", f"http://127.0.0.1:{manager.ports['admin_http']}",
             "--meta-url", f"http://127.0.0.1:{manager.ports['http']}"],
            capture_output=True, text=True, input=stdin,
            # Only the named recipient receives a call.
            env={**os.environ, "http_proxy": "http://127.0.0.1:1", "all_proxy": "http://127.0.0.1:1"})
        assert done.returncode == status, done
        return done.stdout if status == 0 else done.stderr

    assert "nfs_01" in tierce("storage", "list")
    tierce("storage", "add", json.dumps(storage("cli_storage", f"{tmp_path}/")))
    assert "cli_storage" in tierce("storage", "list", "--json")
    tierce("storage", "disable", "cli_storage")
    tierce("storage", "remove", "cli_storage")
    why = tierce("storage", "remove", "nfs_01", status=1)  # blocks of earlier tests are the first reason
    assert "nfs_01 is a candidate" in why or "nfs_01 still holds" in why
    (tmp_path / "group.json").write_text(json.dumps(group("cli_group")))
    tierce("group", "create", str(tmp_path / "group.json"))
    tierce("group", "update", "-", stdin=json.dumps(group("cli_group", 2)))
    assert '"version":"2"' in tierce("group", "show", "cli_group").replace(" ", "")
    api = Http(manager)
    instance = register(api, instance_group="cli_group")
    store(api, instance, [1, -2])
    assert instance in tierce("instance", "list", "cli_group")
    assert "cli_group" in tierce("instance", "show", instance)
    assert tierce("cache", "locate", instance, "1", "-2").count("file://nfs_01") == 4
    assert "CLS_SERVING" in tierce("cache", "look", instance, "1")
    tierce("cache", "remove", instance, "1")
    tierce("cache", "trim", instance, "all")
    tierce("instance", "remove", instance)
    tierce("group", "remove", "cli_group")
    (tmp_path / "password").write_text("secret\n")
    tierce("account", "add", "cli", "user", str(tmp_path / "password"))
    assert "cli" in tierce("account", "list")
    tierce("account", "remove", "cli")
    assert "self_node_id" in tierce("cluster", "info")
    assert "is_leader: true" in tierce("cluster", "health")
    assert "service.query_counter" in tierce("cluster", "metrics")
    tierce("cluster", "log", "info")
    assert "is not a key" in tierce("cache", "look", instance, "x", status=2)
    assert 'no "storage frob"' in tierce("storage", "frob", status=2)
    assert "nearest is" in tierce("storage", "list", "--jsn", status=2)
