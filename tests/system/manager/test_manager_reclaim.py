# SPDX-License-Identifier: Apache-2.0
"""Quotas, watermarks and times to live, as clients meet them: over both transports, in all stores."""

import time
from pathlib import Path

import pytest

from manager_process import wait_until
from test_manager import (  # noqa: F401 (fixtures)
    _names, api, code, finish, group, locate, manager, register, start, store)

pytest.importorskip("grpc_tools")


def test_quotas_are_hard_and_watermarks_soft(api):
    name = f"group-{next(_names)}"
    assert code(api.call("admin", "CreateInstanceGroup", instance_group=group(name))) == "OK"
    instance = register(api, instance_group=name)  # blocks of 2048 bytes, 10,000 in all
    started = start(api, instance, [1, 2, 3, 4, 5, 6])
    assert len(started["locations"]) == 4
    reply = api.call("meta", "StartWriteCache", instance_id=instance, block_keys=[7],
                     write_timeout_seconds=30)
    assert code(reply) == "INTERNAL_ERROR" and "quota" in reply["header"]["status"]["message"]
    finish(api, instance, started["write_session_id"], {"offset": 4})
    wait_until(lambda: len([f for f in locate(api, instance, [1, 2, 3, 4], "QT_BATCH_GET")
                            if f["type"] != "ST_UNSPECIFIED"]) == 2)  # 4096 of 5000
    time.sleep(0.5)  # for removals that must not come
    left = [f["type"] != "ST_UNSPECIFIED"
            for f in locate(api, instance, [1, 2, 3, 4], "QT_BATCH_GET")]
    assert sum(left) == 2  # and not less


def test_the_watermark_of_a_storage(api, tmp_path):
    """Two groups far below their quotas share a storage: its own watermark decides."""
    own, names = f"storage-{next(_names)}", [f"group-{next(_names)}" for _ in range(2)]
    spec = {"global_unique_name": own, "nfs": {"root_path": f"{tmp_path}/"}, "capacity_bytes": 20_480,
            "watermark_percent": 40}
    assert code(api.call("admin", "AddStorage", storage=spec)) == "OK"
    listed = {s["global_unique_name"]: s["watermark_percent"] for s in api.call("admin", "ListStorage")["storage"]}
    assert (listed[own], listed["nfs_01"]) == (40, 0)
    instances = []
    for name in names:
        wide = {**group(name, capacity=1_000_000), "storage_candidates": [own]}
        assert code(api.call("admin", "CreateInstanceGroup", instance_group=wide)) == "OK"
        instances.append(register(api, instance_group=name))

    def held():
        found = [f for i in instances for f in locate(api, i, [1, 2, 3, 4], "QT_BATCH_GET")]
        return sum(f["type"] != "ST_UNSPECIFIED" for f in found)

    for instance in instances:
        store(api, instance, [1, 2, 3, 4])  # of 2048 bytes: 8 in all, 4 lie below 40 %
    wait_until(lambda: held() == 4)
    reply = api.call("admin", "UpdateStorage", storage={**spec, "watermark_percent": 20})
    assert code(reply) == "OK", reply
    wait_until(lambda: held() == 2)
    reply = api.call("admin", "UpdateStorage", storage={**spec, "capacity_bytes": 0})
    assert code(reply) != "OK" and "set both or none" in reply["header"]["status"]["message"]


def written_files(started):
    files = []
    for location in started["locations"]:
        for spec in location["location_specs"]:
            path = Path("/" + spec["uri"].split("://", 1)[1].split("/", 1)[1].split("?")[0])
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(b"x")
            files.append(path)
    return files


def test_blocks_with_a_time_to_live_expire(api):
    instance = register(api)
    started = start(api, instance, [1, 2], ttl_seconds=1)
    assert code(finish(api, instance, started["write_session_id"], {"offset": 2})) == "OK"
    store(api, instance, [3])
    keyed = [f["type"] for f in locate(api, instance, [1, 2, 3], "QT_BATCH_GET")]
    assert keyed[2] == "ST_NFS"
    wait_until(lambda: [f["type"] for f in locate(api, instance, [1, 2, 3], "QT_BATCH_GET")]
               == ["ST_UNSPECIFIED", "ST_UNSPECIFIED", "ST_NFS"])
    wait_until(lambda: len(start(api, instance, [1, 2, 3])["locations"]) == 2)
    reply = api.call("meta", "StartWriteCache", instance_id=instance, block_keys=[9],
                     write_timeout_seconds=30, ttl_seconds=-5)
    assert code(reply) == "INVALID_ARGUMENT", reply
    assert "ttl_seconds is -5" in reply["header"]["status"]["message"]


def test_files_of_expired_blocks_are_deleted(api):
    instance = register(api)
    started = start(api, instance, [1, 2, 3], ttl_seconds=1)
    files = written_files(started)
    assert code(finish(api, instance, started["write_session_id"], {"offset": 3})) == "OK"
    wait_until(lambda: not any(file.exists() for file in files))


def test_the_time_to_live_of_a_group_outlives_updates(api):
    name = f"group-{next(_names)}"
    created = group(name)
    created["cache_config"]["reclaim_strategy"]["ttl_seconds"] = 600
    assert code(api.call("admin", "CreateInstanceGroup", instance_group=created)) == "OK"

    def ttl():
        shown = api.call("admin", "GetInstanceGroup", name=name)["instance_group"]
        return shown["cache_config"]["reclaim_strategy"]["ttl_seconds"]

    assert ttl() == "600"
    for version, given, expected in ((2, None, "600"), (3, 60, "60"), (4, -1, "0")):
        changed = group(name, version)
        if given is not None:
            changed["cache_config"]["reclaim_strategy"]["ttl_seconds"] = given
        reply = api.call("admin", "UpdateInstanceGroup", current_version=version - 1,
                         instance_group=changed)
        assert code(reply) == "OK", reply
        assert ttl() == expected


def test_watermarks_that_cannot_work_are_rejected(api):
    for share in (-0.5, 1.5, 80):
        wrong = group(f"group-{next(_names)}")
        wrong["cache_config"]["reclaim_strategy"]["trigger_strategy"]["used_percentage"] = share
        reply = api.call("admin", "CreateInstanceGroup", instance_group=wrong)
        assert code(reply) in ("INVALID_ARGUMENT", "INTERNAL_ERROR"), reply
        assert "used_percentage" in reply["header"]["status"]["message"]


@pytest.mark.parametrize("watermark", [None, 1])
def test_a_group_without_a_watermark_stays_writable(api, watermark):
    name = f"group-{next(_names)}"
    full = group(name)
    if watermark is None:
        del full["cache_config"]["reclaim_strategy"]["trigger_strategy"]
    else:
        full["cache_config"]["reclaim_strategy"]["trigger_strategy"]["used_percentage"] = watermark
    assert code(api.call("admin", "CreateInstanceGroup", instance_group=full)) == "OK"
    instance = register(api, instance_group=name)  # blocks of 2048 bytes, 10,000 in all
    for key in range(20):
        def write():
            reply = api.call("meta", "StartWriteCache", instance_id=instance, block_keys=[key],
                             write_timeout_seconds=30)
            if code(reply) != "OK":
                return False
            return code(finish(api, instance, reply["write_session_id"], {"offset": 1})) == "OK"
        wait_until(write)
