# SPDX-License-Identifier: Apache-2.0
"""KVCM's contract where it is easily missed: what a client of KVCM sees, call by call."""

import copy
import json
import re
import shutil
from pathlib import Path

import pytest

from manager_process import Grpc, Http, Manager, wait_until

INSTANCE = {"instance_group": "default", "block_size": 4,
            "model_deployment": {"model_name": "m", "dtype": "bf16"},
            "location_spec_infos": [{"name": "tp0", "size": 64}]}
PER_INSTANCE = ["GetCacheMeta", "GetCacheLocation", "StartWriteCache", "FinishWriteCache",
                "RemoveCache", "TrimCache"]


@pytest.fixture(scope="module")
def manager(tmp_path_factory):
    manager = Manager(tmp_path_factory.mktemp("contract") / "manager")
    yield manager
    manager.stop()


@pytest.fixture(scope="module", params=["http", "grpc"])
def api(request, manager):
    api = Http(manager) if request.param == "http" else Grpc(manager)
    yield api
    if request.param == "grpc":
        api.close()


def code(reply):
    return reply["header"]["status"]["code"]


def text(reply):
    return reply["header"]["status"]["message"]


def register(api, name, **fields):
    reply = api.call("meta", "RegisterInstance", instance_id=name, **{**INSTANCE, **fields})
    assert code(reply) == "OK", reply
    return reply


def store(api, name, keys):
    started = api.call("meta", "StartWriteCache", instance_id=name, block_keys=keys,
                       write_timeout_seconds=30)
    finished = api.call("meta", "FinishWriteCache", instance_id=name,
                        write_session_id=started["write_session_id"],
                        success_blocks={"offset": len(started["locations"])})
    assert code(finished) == "OK"


def test_a_name_that_is_cut_is_still_text(api):
    """gRPC's clients take no message that is not UTF-8."""
    reply = api.call("meta", "RegisterInstance", instance_id="i", **{**INSTANCE, "instance_group": "a" + "é" * 150})
    assert code(reply) != "OK" and "aéééé" in text(reply), reply


# ---- engines -------------------------------------------------------------------------------------

@pytest.mark.parametrize("method", PER_INSTANCE)
def test_the_instance_is_looked_for_before_the_arguments(api, method):
    for fields in ({}, {"instance_id": "nobody"}, {"instance_id": "nobody", "token_ids": [1]}):
        if method in ("FinishWriteCache", "TrimCache"):
            fields = {k: v for k, v in fields.items() if k == "instance_id"}
        reply = api.call("meta", method, **fields)
        assert code(reply) == "INSTANCE_NOT_EXIST"
        assert text(reply).startswith(f"get {method} metrics collector failed")
    mismatched = api.call("meta", "StartWriteCache", instance_id="nobody", block_keys=[1],
                          location_spec_group_names=["a", "b"])
    assert code(mismatched) == "INSTANCE_NOT_EXIST"
    mismatched = api.call("meta", "StartWriteCache", instance_id="nobody", block_keys=[1], block_sizes=[1, 2])
    assert code(mismatched) == "INSTANCE_NOT_EXIST"


def test_sizes_of_blocks(api):
    name = f"sizes-{api.name}"
    register(api, name)
    wrong = api.call("meta", "StartWriteCache", instance_id=name, block_keys=[1, 2], block_sizes=[1])
    assert code(wrong) == "INVALID_ARGUMENT" and "send a number for each key" in text(wrong)
    wrong = api.call("meta", "StartWriteCache", instance_id=name, block_keys=[1], block_sizes=[-1])
    assert code(wrong) == "INVALID_ARGUMENT" and "block_sizes" in text(wrong)
    started = api.call("meta", "StartWriteCache", instance_id=name, block_keys=[1, 2], block_sizes=[100, 0],
                       write_timeout_seconds=30)
    uris = [location["location_specs"][0]["uri"] for location in started["locations"]]
    assert "size=100" in uris[0] and "size=100" not in uris[1]


def test_keys_come_before_the_query_type(api):
    name = f"order-{api.name}"
    register(api, name)
    for method in ("GetCacheLocation", "GetCacheMeta", "StartWriteCache", "RemoveCache"):
        assert code(api.call("meta", method, instance_id=name)) == "INVALID_ARGUMENT"
    assert code(api.call("meta", "GetCacheLocation", instance_id=name,
                         block_keys=[1])) == "INTERNAL_ERROR"


def test_tokens_that_fill_no_block_are_no_error(api):
    name = f"short-{api.name}"
    register(api, name)
    for query in ("QT_PREFIX_MATCH", "QT_BATCH_GET"):
        got = api.call("meta", "GetCacheLocation", instance_id=name, token_ids=[1, 2, 3],
                       query_type=query)
        assert code(got) == "OK" and got["locations"] == []
    window = api.call("meta", "GetCacheLocation", instance_id=name, token_ids=[1, 2, 3],
                      query_type="QT_REVERSE_ROLL_SW_MATCH", sw_size=1)
    assert code(window) == "INVALID_ARGUMENT"
    meta = api.call("meta", "GetCacheMeta", instance_id=name, token_ids=[1, 2, 3])
    assert code(meta) == "OK" and meta["metas"] == []
    assert code(api.call("meta", "RemoveCache", instance_id=name, token_ids=[1, 2, 3])) == "OK"
    started = api.call("meta", "StartWriteCache", instance_id=name, token_ids=[1, 2, 3])
    assert code(started) == "OK"
    assert started["block_mask"] == {"offset": 0} and started["locations"] == []
    finished = api.call("meta", "FinishWriteCache", instance_id=name,
                        write_session_id=started["write_session_id"],
                        success_blocks={"offset": 0})
    assert code(finished) == "OK"


def test_a_negative_offset_masks_everything(api):
    name = f"negative-{api.name}"
    register(api, name)
    store(api, name, [1, 2])
    for offset, hits in ((0, 2), (1, 1), (9, 0), (-1, 0)):
        got = api.call("meta", "GetCacheLocation", instance_id=name, block_keys=[1, 2],
                       query_type="QT_PREFIX_MATCH", block_mask={"offset": offset})
        assert (code(got), len(got["locations"])) == ("OK", hits)
        looked = api.call("meta", "GetCacheMeta", instance_id=name, block_keys=[1, 2],
                          block_mask={"offset": offset})
        assert len(looked["metas"]) == hits


def test_registered_again_under_another_group_it_gets_its_own_storages(api):
    name = f"regroup-{api.name}"
    first = register(api, name)
    again = register(api, name, instance_group="another")
    assert again["storage_configs"] == first["storage_configs"] != ""


@pytest.mark.parametrize("shards", [0, 3, 2048])
def test_an_index_needs_a_number_of_locks(api, shards):
    group = copy.deepcopy(api.call("admin", "GetInstanceGroup", name="default")["instance_group"])
    group["name"] = name = f"shards-{shards}-{api.name}"
    group["cache_config"]["meta_indexer_config"].update(mutex_shard_num=shards, max_key_count=1024)
    assert code(api.call("admin", "CreateInstanceGroup", instance_group=group)) == "OK"
    reply = api.call("meta", "RegisterInstance", instance_id=name,
                     **{**INSTANCE, "instance_group": name})
    assert code(reply) == "INTERNAL_ERROR" and "mutex_shard_num" in text(reply)


# ---- renewals ------------------------------------------------------------------------------------

def start(api, name, keys, timeout):
    started = api.call("meta", "StartWriteCache", instance_id=name, block_keys=keys,
                       write_timeout_seconds=timeout)
    assert code(started) == "OK" and len(started["locations"]) == len(keys), started
    return started


def renew(api, name, started):
    return api.call("meta", "RenewWriteCache", instance_id=name,
                    write_session_id=started["write_session_id"])


def is_written(api, name, key):
    metas = api.call("meta", "GetCacheMeta", instance_id=name, block_keys=[key])["metas"]
    return json.loads(metas[0])["status"] == "CLS_WRITING"


def test_a_renewed_write_outlives_its_timeout(api):
    """Two writes with the same timeout: one is renewed until the other has timed out."""
    name = f"renewed-{api.name}"
    register(api, name)
    kept, left = start(api, name, [1, 2], timeout=4), start(api, name, [3], timeout=4)
    while is_written(api, name, 3):
        reply = renew(api, name, kept)
        assert (code(reply), reply["expires_in_ms"]) == ("OK", "4000"), reply
    assert is_written(api, name, 1)
    reply = renew(api, name, left)
    assert code(reply) == "WRITE_SESSION_EXPIRED" and "timed out" in text(reply), reply
    finished = api.call("meta", "FinishWriteCache", instance_id=name, success_blocks={"offset": 2},
                        write_session_id=kept["write_session_id"])
    assert code(finished) == "OK", finished
    got = api.call("meta", "GetCacheLocation", instance_id=name, block_keys=[1, 2, 3],
                   query_type="QT_PREFIX_MATCH")
    assert got["locations"] == kept["locations"]
    reply = renew(api, name, kept)
    assert (code(reply), reply["expires_in_ms"]) == ("WRITE_SESSION_FINISHED", "0"), reply


HINTS = [{"session": "closed"}, {"session": "open"}, {"ttl_s": 300}, {"returns_in_s": 5}, {"returns_in_s": 61}, {}]
WRONG_HINTS = [({"session": "shut"}, "hint.session is shut; accepted are open, closed"),
               ({"ttl_s": -1}, "hint.ttl_s is -1; accepted are 1 to "),
               ({"session": "closed", "ttl_s": 1 << 40}, f"hint.ttl_s is {1 << 40}; accepted are 1 to "),
               ({"returns_in_s": -60}, "hint.returns_in_s is -60; accepted are 1 to ")]


def test_hints(api):
    """A hint of each kind with each call that takes one. A wrong one is named, and nothing has happened."""
    name = f"hints-{api.name}"
    register(api, name)
    for key, hint in enumerate(HINTS):
        one = {"instance_id": name, "block_keys": [key]}
        started = api.call("meta", "StartWriteCache", **one, write_timeout_seconds=30, hint=hint)
        end = {"instance_id": name, "write_session_id": started["write_session_id"], "success_blocks": {"offset": 1}}
        for wrong, why in WRONG_HINTS:
            for reply in (api.call("meta", "FinishWriteCache", **end, hint=wrong),
                          api.call("meta", "StartWriteCache", **one, write_timeout_seconds=30, hint=wrong)):
                assert code(reply) == "INVALID_ARGUMENT" and why in text(reply), reply
        assert code(api.call("meta", "FinishWriteCache", **end, hint=hint)) == "OK"
        got = api.call("meta", "GetCacheLocation", **one, query_type="QT_PREFIX_MATCH", hint=hint)
        assert code(got) == "OK" and len(got["locations"]) == 1, got
        hinted = api.call("meta", "HintCache", **one, hint=hint)
        assert code(hinted) == ("OK" if hint else "INVALID_ARGUMENT"), hinted
        for wrong, why in WRONG_HINTS:
            for reply in (api.call("meta", "GetCacheLocation", **one, query_type="QT_PREFIX_MATCH", hint=wrong),
                          api.call("meta", "HintCache", **one, hint=wrong)):
                assert code(reply) == "INVALID_ARGUMENT" and why in text(reply), reply
    assert code(api.call("meta", "HintCache", instance_id="nobody", block_keys=[1], hint=HINTS[0])) == "INSTANCE_NOT_EXIST"
    assert code(api.call("meta", "HintCache", instance_id=name, block_keys=[1])) == "INVALID_ARGUMENT"
    assert code(api.call("meta", "HintCache", instance_id=name, token_ids=[1, 2, 3, 4, 5], hint=HINTS[0])) == "OK"


def test_what_cannot_be_renewed(api):
    name = f"not-renewed-{api.name}"
    register(api, name)
    session = {"write_session_id": "0" * 32}
    assert code(renew(api, name, session)) == "WRITE_SESSION_UNKNOWN"
    assert code(renew(api, "nobody", session)) == "INSTANCE_NOT_EXIST"
    for fields in ({"instance_id": name}, session):
        assert code(api.call("meta", "RenewWriteCache", **fields)) == "INVALID_ARGUMENT"
    # The codes are of no other call.
    finished = api.call("meta", "FinishWriteCache", instance_id=name, success_blocks={"offset": 0},
                        **session)
    assert code(finished) == "INTERNAL_ERROR"


def test_a_write_of_entries_is_renewed(api):
    name = f"renewed-entries-{api.name}"
    started = begin_entries(api, name, ["a"])
    assert code(renew(api, name, started)) == "OK"
    finished = api.call("kv_meta", "PutFinish", instance_id=name,
                        write_session_id=started["write_session_id"])
    assert code(finished) == "OK", finished
    assert code(renew(api, name, started)) == "WRITE_SESSION_FINISHED"


# ---- bad locations -------------------------------------------------------------------------------

def report(api, name, **fields):
    one = {"block_key": 1, "location_spec_name": "tp0", "uri": "file://x/y", "reason": "RR_DAMAGED", **fields}
    return api.call("meta", "ReportCache", instance_id=name, reports=[one])


def test_a_reported_place_is_dropped(api):
    name = f"reported-{api.name}"
    register(api, name)
    started = start(api, name, [1, 2], timeout=30)
    assert code(api.call("meta", "FinishWriteCache", instance_id=name, success_blocks={"offset": 2},
                         write_session_id=started["write_session_id"])) == "OK"
    first, second = (location["location_specs"][0]["uri"] for location in started["locations"])
    for fields in ({"uri": second}, {"uri": first, "location_spec_name": "tp1"}, {"uri": first, "block_key": 3}):
        reply = report(api, name, **fields)
        assert (code(reply), reply["dropped_locations"], reply["absent_reports"]) == ("OK", "0", "1"), reply
    other = f"other-{api.name}"
    register(api, other)
    assert report(api, other, uri=first)["absent_reports"] == "1"  # another instance's
    reply = report(api, name, uri=second, block_key=2)
    assert (code(reply), reply["dropped_locations"], reply["absent_reports"]) == ("OK", "1", "0"), reply
    reply = report(api, name, uri=second, block_key=2)  # it has left
    assert (code(reply), reply["dropped_locations"], reply["absent_reports"]) == ("OK", "0", "1"), reply
    got = api.call("meta", "GetCacheLocation", instance_id=name, block_keys=[1, 2], query_type="QT_PREFIX_MATCH")
    assert got["locations"] == started["locations"][:1]


def test_what_cannot_be_reported(api):
    name = f"not-reported-{api.name}"
    register(api, name)
    for fields in ({"uri": ""}, {"location_spec_name": ""}, {"reason": "RR_UNSPECIFIED"}):
        assert code(report(api, name, **fields)) == "INVALID_ARGUMENT", fields
    assert code(api.call("meta", "ReportCache", instance_id=name)) == "INVALID_ARGUMENT"
    assert code(report(api, "nobody")) == "INSTANCE_NOT_EXIST"


# ---- administrators ------------------------------------------------------------------------------

def test_administrators_get_internal_errors(api):
    name = f"admin-{api.name}"
    register(api, name)
    other = api.call("admin", "RegisterInstance", instance_id=name, **{**INSTANCE, "block_size": 9})
    assert code(other) == "INTERNAL_ERROR"
    same = api.call("admin", "RegisterInstance", instance_id=name, **INSTANCE)
    assert (code(same), text(same)) == ("OK", "Instance registered successfully")
    missing = api.call("admin", "GetCacheMeta", instance_id="nobody", block_keys=[1])
    assert code(missing) == "INTERNAL_ERROR"
    nothing = api.call("admin", "RemoveCache", instance_id="nobody", block_keys=[1])
    assert (code(nothing), text(nothing)) == ("OK", "Cache removed successfully")
    assert code(api.call("admin", "RemoveCache", block_keys=[1])) == "INVALID_ARGUMENT"


def test_an_instance_is_not_removed_in_the_name_of_another_group(api):
    name = f"kept-{api.name}"
    register(api, name)
    refused = api.call("admin", "RemoveInstance", instance_group="another", instance_id=name)
    assert code(refused) == "INTERNAL_ERROR" and "default" in text(refused)
    assert code(api.call("meta", "GetInstanceInfo", instance_id=name)) == "OK"
    removed = api.call("admin", "RemoveInstance", instance_group="default", instance_id=name)
    assert code(removed) == "OK"


# ---- beside the calls ----------------------------------------------------------------------------

def test_each_port_describes_its_own_calls(manager):
    for port, own in (("http", "/api/getCacheLocation"), ("admin_http", "/api/listStorage"),
                      ("debug_http", "/api/injectFault")):
        paths = json.loads(manager.get("/openapi.json", port)[1])["paths"]
        others = {"/api/getCacheLocation", "/api/listStorage", "/api/injectFault"} - {own}
        assert own in paths and not others & set(paths)


# ---- entries by name -----------------------------------------------------------------------------

def begin_entries(api, name, keys, **group):
    registered = api.call("kv_meta", "RegisterInstance", instance_id=name,
                          **{"instance_group": "default", **group})
    assert code(registered) == "OK", registered
    started = api.call("kv_meta", "PutStart", instance_id=name, keys=keys,
                       write_timeout_seconds=30)
    assert code(started) == "OK", started
    return started


def get_uris(api, name, keys):
    got = api.call("kv_meta", "Get", instance_id=name, query_type="QT_BATCH_GET", keys=keys)
    assert code(got) == "OK", got
    return [location["location_specs"][0]["uri"] for location in got["locations"]]


def own_uris(started):
    return [location["location_specs"][0]["uri"] for location in started["locations"]]


def bytes_of(manager, name):
    metrics = manager.get("/metrics", "admin_http")[1].decode()
    line = next(line for line in metrics.splitlines()
                if line.startswith("tierce_cache_manager_instance_byte_size")
                and f'instance_id="{name}"' in line)
    return float(line.split()[-1])


def path_of(uri):
    return Path("/" + uri.split("://")[1].split("/", 1)[1].split("?")[0])


def test_entries_of_unknown_size_do_not_share_a_file(api):
    uris = own_uris(begin_entries(api, f"apart-{api.name}", ["a", "b", "c"]))
    assert len({path_of(uri) for uri in uris}) == 3
    assert not any("?" in uri for uri in uris)


def test_an_entry_is_as_long_as_its_writer_says(api, manager):
    name = f"said-{api.name}"
    started = begin_entries(api, name, ["a", "b", "c"])
    uris = own_uris(started)
    finish = {"instance_id": name, "write_session_id": started["write_session_id"]}

    def written(*uris):
        return [{"type": "ST_NFS", "spec_size": 1,
                 "location_specs": [{"name": "value", "uri": uri}]} for uri in uris]

    for wrong in (uris[0] + "0", "file://nfs_01/elsewhere", uris[0] + "?size=-1",
                  uris[0] + "?size=1x", uris[0] + "?size=99999999999999999999"):
        refused = api.call("kv_meta", "PutFinish", **finish, locations=written(wrong))
        assert code(refused) == "INVALID_ARGUMENT", wrong
    finished = api.call("kv_meta", "PutFinish", **finish,
                        locations=written(uris[0] + "?size=1000", uris[2] + "?x=1&size=24"))
    assert code(finished) == "OK", finished
    assert get_uris(api, name, ["a", "b", "c"]) == [uris[0] + "?size=1000", "",
                                                    uris[2] + "?size=24"]
    assert bytes_of(manager, name) == 1024


def test_an_entry_is_as_long_as_its_file(api, manager):
    name = f"measured-{api.name}"
    started = begin_entries(api, name, ["a", "b"])
    uris = own_uris(started)
    path = path_of(uris[0])
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"x" * 4321)
    finished = api.call("kv_meta", "PutFinish", instance_id=name,
                        write_session_id=started["write_session_id"])
    assert code(finished) == "OK", finished
    assert get_uris(api, name, ["a", "b"]) == [uris[0] + "?size=4321", uris[1]]
    assert bytes_of(manager, name) == 4321
    assert code(api.call("kv_meta", "Remove", instance_id=name, keys=["a"])) == "OK"
    wait_until(lambda: not path.exists())
    assert bytes_of(manager, name) == 0


def test_entries_keep_within_quotas(api, manager):
    group = copy.deepcopy(api.call("admin", "GetInstanceGroup", name="default")["instance_group"])
    name = group["name"] = f"small-{api.name}"
    group["quota"] = {"capacity": "1000", "quota_config": []}
    group["cache_config"]["reclaim_strategy"]["trigger_strategy"]["used_percentage"] = 1.0
    assert code(api.call("admin", "CreateInstanceGroup", instance_group=group)) == "OK"
    started = begin_entries(api, name, ["a", "b", "c"], instance_group=name)
    uris = [uri + "?size=400" for uri in own_uris(started)]
    locations = [{"location_specs": [{"name": "value", "uri": uri}]} for uri in uris]
    finished = api.call("kv_meta", "PutFinish", instance_id=name, locations=locations,
                        write_session_id=started["write_session_id"])
    assert code(finished) == "INTERNAL_ERROR" and "quota" in text(finished)
    assert get_uris(api, name, ["a", "b", "c"]) == [*uris[:2], ""]
    # The reclaimer may have made room for the entry that did not fit already.
    assert bytes_of(manager, name) in (400, 800)


def test_blocks_are_not_finished_as_entries(api):
    """A key of an ordinary instance may have no part or several, an entry has one."""
    name = f"blocks-{api.name}"
    register(api, name, location_spec_groups=[{"name": "none", "spec_names": []}])
    started = api.call("meta", "StartWriteCache", instance_id=name, block_keys=[1, 2],
                       write_timeout_seconds=30, location_spec_group_names=["none", "none"])
    assert code(started) == "OK", started
    session = {"instance_id": name, "write_session_id": started["write_session_id"]}
    refused = api.call("kv_meta", "PutFinish", **session)
    assert code(refused) == "INVALID_ARGUMENT", refused
    assert "FinishWriteCache" in text(refused)
    assert code(api.call("meta", "FinishWriteCache", **session,
                         success_blocks={"offset": 2})) == "OK"


# ---- files ---------------------------------------------------------------------------------------

def test_what_is_reclaimed_is_named(tmp_path):
    group = {"quota": {"capacity": 6400, "quota_config": []}}
    manager = Manager(tmp_path / "m",
                      startup=Manager.usual_startup(storage=tmp_path / "nfs", **group))
    try:
        api = Http(manager)
        register(api, "i")
        store(api, "i", list(range(100)))
        looked = api.call("meta", "GetCacheMeta", instance_id="i", block_keys=list(range(100)))
        ids = {key: json.loads(meta)["id"] for key, meta in enumerate(looked["metas"])}
        log = manager.folder / "logs" / "event_publisher.log"
        wait_until(lambda: re.search(r".*CacheReclaimSubmit.*\n", log.read_text()))
        event = json.loads(re.search(r".*CacheReclaimSubmit.*\n", log.read_text()).group())
        assert event["component"] == "cache_reclaimer" and event["delay_us"] == 100_000
        assert event["block_keys"]
        for key, location in zip(event["block_keys"], event["location_ids"], strict=True):
            assert ids[key] in (location, "")  # "": it had left when it was looked at
    finally:
        manager.stop()


@pytest.mark.parametrize("change, said", [
    ({"max_instance_count": "many"}, "max_instance_count"),
    ({"name": ""}, "name"),
    (None, "startup.json"),
])
def test_a_startup_file_that_is_wrong_is_said_at_once(tmp_path, change, said):
    startup = Manager.usual_startup(storage=tmp_path / "nfs", **(change or {}))
    with pytest.raises(RuntimeError, match=said):
        Manager(tmp_path / "m", startup="{ broken" if change is None else startup)


def test_names_of_metrics(api):
    name = f"metrics-{api.name}"
    register(api, name)
    store(api, name, [1, 2])
    api.call("admin", "ListStorage")
    metrics = api.call("admin", "GetMetrics")["metrics"]

    def find(metric, **wanted):
        for entry in metrics:
            tags = {tag["tag_key"]: tag["tag_value"] for tag in entry["metric_tags"]}
            if entry["metric_name"] == metric and wanted.items() <= tags.items():
                return entry["metric_value"]
        raise AssertionError(f"no {metric} {wanted}")

    assert int(find("service.query_counter", api_name="ListStorage")["int_value"]) >= 1
    assert find("service.query_rt_us", api_name="ListStorage")["float_value"] > 1
    own = {"instance_group": "default", "instance_id": name}
    assert find("cache_manager_instance.key_count", **own)["float_value"] == 2
    assert find("cache_manager_instance.byte_size", **own)["float_value"] == 128
    assert find("meta_indexer.total_key_count", **own)["float_value"] == 2
    for counter in ("search_cache_hit_count", "search_cache_miss_count"):
        assert int(find(f"meta_indexer.{counter}", **own)["int_value"]) >= 0
    for gauge in ("search_cache_hit_ratio", "total_cache_usage"):
        assert find(f"meta_indexer.{gauge}", **own)["float_value"] >= 0
    find("cache_manager_group.usage_ratio", instance_group="default")
    find("data_storage.healthy_status", type="file", unique_name="nfs_01")
    find("cache_manager.write_location_expire_size", instance_group="default")
    for metric in ("cache_reclaimer.block_submit_count", "cache_reclaimer.location_submit_count",
                   "cache_reclaimer.location_del_count",
                   "schedule_plan_executor.waiting_task_count",
                   "schedule_plan_executor.executing_task_count"):
        find(metric)


    for queue in ("workers", "passwords"):
        assert find("service.request_queue_size", queue=queue)["float_value"] == 0


NAMES = [("admin", "AddAccount", {"user_name": "eve", "password": "p", "role": "ADMIN_ROLE"},
          "role: \"ADMIN_ROLE\" is none of ROLE_USER, ROLE_ADMIN"),
         ("admin", "CreateInstanceGroup", {"instance_group": {"name": "eves", "cache_config": {
             "data_storage_strategy": "CPS_NFS"}}}, "CPS_UNSPECIFIED, CPS_ALWAYS_3FS"),
         ("meta", "GetCacheLocation", {"query_type": "PREFIX" + "\u00fc" * 99}, "QT_PREFIX_MATCH"),
         ("kv_meta", "Trim", {"strategy": "ts_timestamp"}, "TS_TIMESTAMP")]


@pytest.mark.parametrize("service, method, fields, said", NAMES, ids=[n[1] for n in NAMES])
def test_names_that_an_enum_has_not(manager, service, method, fields, said):
    """The original reads them as if nothing was said, and makes a user of an ADMIN_ROLE."""
    reply = Http(manager).call(service, method, **fields)
    assert code(reply) == "INVALID_ARGUMENT" and said in text(reply), reply
    accounts = Http(manager).call("admin", "ListAccount")["accounts"]
    assert "eve" not in [a["user_name"] for a in accounts]


def test_unknown_faults_are_the_originals(manager):
    """Its own test of the debug service sends such a name and is answered as if it had not."""
    api = Http(manager)
    fault = {"api_name": "TrimCache", "fault_type": "NO_SUCH", "trigger_at_call": 99}
    assert code(api.call("debug", "InjectFault", **fault)) == "OK"
    assert code(api.call("debug", "RemoveFault", api_name="TrimCache")) == "OK"


def test_two_managers_do_not_write_one_registry(tmp_path):
    uri = f"--registry.uri=local://{tmp_path}/registry.json"
    often = "--elector.lease=1s"  # how long it waits before it tries again
    first = Manager(tmp_path / "first", uri, often)
    second = Manager(tmp_path / "second", uri, often, ready=False)
    try:
        said = second.folder / "stderr.log"
        wait_until(lambda: "require elector.uri" in said.read_text())
        status, why = second.get("/readyz")
        assert status == 503 and b"another manager leads" not in why
        assert code(Http(second).call("admin", "ListStorage")) in ("SERVER_NOT_LEADER",
                                                                   "SERVICE_NOT_READY")
        added = Http(first).call("admin", "AddStorage", storage={
            "global_unique_name": "a", "nfs": {"root_path": f"{tmp_path}/a/"}})
        assert code(added) == "OK"
        first.stop()
        second.wait_ready()  # it takes over what the first has written
        listed = Http(second).call("admin", "ListStorage")["storage"]
        assert "a" in [storage["global_unique_name"] for storage in listed]
    finally:
        first.stop()
        second.stop()


def test_a_lease_that_cannot_be_had_is_said(tmp_path):
    folder = tmp_path / "lease"
    folder.mkdir()
    manager = Manager(tmp_path / "m", f"--elector.uri=file://{folder}", "--elector.lease=1s")
    try:
        shutil.rmtree(folder)
        said = manager.folder / "stderr.log"
        wait_until(lambda: "lease_unreachable" in said.read_text())
        assert "No such file or directory" in said.read_text()
        assert "leads when the store of elector.uri answers" in said.read_text()
        wait_until(lambda: manager.get("/readyz")[0] == 503)
        assert "the lease of elector.uri cannot be acquired: No" in str(manager.get("/readyz")[1])
    finally:
        manager.stop()


def test_engines_get_no_credentials_of_storages(api):
    uri = "redis+sentinel://u:hidden@127.0.0.1:1/m?sentinel_password=hidden&db=0"
    spec = {"uri": uri, "key_prefix": "kv:"}
    reply = api.call("admin", "AddStorage", storage={"global_unique_name": "secret", "redis": spec})
    assert code(reply) == "OK", reply
    default = api.call("admin", "GetInstanceGroup", name="default")["instance_group"]
    group = {**default, "name": "secret", "storage_candidates": ["secret"], "version": 1}
    assert code(api.call("admin", "CreateInstanceGroup", instance_group=group)) == "OK"
    reply = register(api, "secret", instance_group="secret")
    storage = json.loads(reply["storage_configs"])[0]
    assert storage["storage_spec"]["uri"] == "redis+sentinel://127.0.0.1:1/m?db=0&key_prefix=kv:"
    assert "hidden" not in reply["storage_configs"]
    for call, field in (("RemoveInstance", {"instance_group": "secret", "instance_id": "secret"}),
                        ("RemoveInstanceGroup", {"name": "secret"}),
                        ("RemoveStorage", {"storage_unique_name": "secret"})):
        assert code(api.call("admin", call, **field)) == "OK", call
