# SPDX-License-Identifier: Apache-2.0
"""Invalid numbers, groups, unmanaged storages, spans: over both transports."""

import copy
import json
import re
import subprocess
from pathlib import Path

import pytest

from manager_process import Grpc, Http, Manager, executable, wait_until
from test_manager import _names, code, group, locate, register, start, store

pytest.importorskip("grpc_tools")


@pytest.fixture(scope="module")
def manager(tmp_path_factory):
    folder = tmp_path_factory.mktemp("manager")
    manager = Manager(folder, startup=Manager.usual_startup(storage=folder / "nfs"))
    yield manager
    assert manager.stop() == 0


@pytest.fixture(params=[Http, Grpc], ids=["http", "grpc"])
def api(request, manager):
    return request.param(manager)


def changed(message, path, value):
    """The message with another value at a path of names and numbers."""
    message = copy.deepcopy(message)
    at = message
    for name in path[:-1]:
        at = at.setdefault(name, {}) if isinstance(name, str) else at[name]
    at[path[-1]] = value
    return message


def refused(reply, *words):
    assert code(reply) == "INVALID_ARGUMENT", reply
    text = reply["header"]["status"]["message"]
    for word in (*words, "accepted are"):
        assert word in text, text


def usual(name, version=1):
    return group(name, version, quota_config=[{"storage_type": "ST_NFS", "capacity": 5000}])


CACHE = ("cache_config",)
RECLAIM = (*CACHE, "reclaim_strategy")
INDEXER = (*CACHE, "meta_indexer_config")


@pytest.mark.parametrize("path,value", [
    ((*RECLAIM, "reclaim_policy"), 7), ((*RECLAIM, "reclaim_policy"), -1),
    ((*RECLAIM, "trigger_strategy", "used_size"), -1),
    ((*RECLAIM, "trigger_period_seconds"), -1), ((*RECLAIM, "reclaim_step_size"), -1),
    ((*RECLAIM, "reclaim_step_percentage"), 101), ((*RECLAIM, "delay_before_delete_ms"), -1),
    ((*INDEXER, "max_key_count"), -1), ((*INDEXER, "mutex_shard_num"), -1),
    ((*INDEXER, "batch_key_size"), -16),
    ((*INDEXER, "meta_cache_policy_config", "capacity"), -1),
    ((*INDEXER, "meta_cache_policy_config", "cache_shard_bits"), -1),
    (("max_instance_count",), -1), (("quota", "capacity"), -5),
    (("quota", "quota_config", 0, "capacity"), -5), (("quota", "quota_config", 0, "storage_type"), 9),
    ((*CACHE, "data_storage_strategy"), 99)])
def test_numbers_of_a_group(api, path, value):
    name = f"group-{next(_names)}"
    reply = api.call("admin", "CreateInstanceGroup", instance_group=changed(usual(name), path, value))
    refused(reply, path[-1], f"is {value}", name)
    assert code(api.call("admin", "CreateInstanceGroup", instance_group=usual(name))) == "OK"
    reply = api.call("admin", "UpdateInstanceGroup", current_version=1,
                     instance_group=changed(usual(name, 2), path, value))
    refused(reply, path[-1], f"is {value}", name)


@pytest.mark.parametrize("path,value", [
    (("capacity_bytes",), -1), (("nfs", "key_count_per_file"), -8),
    (("nfs", "key_count_per_file"), 65537), (("watermark_percent",), 96), (("watermark_percent",), -1)])
def test_numbers_of_a_storage(api, manager, path, value):
    name = f"storage-{next(_names)}"
    storage = {"global_unique_name": name, "nfs": {"root_path": f"{manager.folder}/{name}/"}}
    for call in ("AddStorage", "UpdateStorage"):
        reply = api.call("admin", call, storage=changed(storage, path, value))
        refused(reply, path[-1], f"is {value}", name)
        assert code(api.call("admin", "AddStorage", storage=storage)) in ("OK", "INTERNAL_ERROR")


def test_numbers_of_a_port_and_a_timeout(api):
    for spec, field, value in (
            ({"vcnsthreefs": {"mountpoint": "/mnt", "root_dir": "a", "remote_port": 70000}},
             "remote_port", 70000),
            ({"tair_mem_pool": {"domain": "d", "timeout": -1}}, "timeout", -1)):
        reply = api.call("admin", "AddStorage", storage={
            "global_unique_name": f"storage-{next(_names)}", **spec})
        refused(reply, field, f"is {value}")


@pytest.mark.parametrize("path,value", [
    (("block_size",), -4), (("model_deployment", "tp_size"), -1),
    (("model_deployment", "dp_size"), -1), (("model_deployment", "pp_size"), -1),
    (("location_spec_infos", 0, "size"), -1)])
def test_numbers_of_an_instance(api, path, value):
    request = {"instance_group": "default", "instance_id": f"instance-{next(_names)}",
               "block_size": 4, "model_deployment": {"model_name": "m", "dtype": "bf16"},
               "location_spec_infos": [{"name": "tp0", "size": 16}]}
    for service in ("meta", "admin"):
        reply = api.call(service, "RegisterInstance", **changed(request, path, value))
        refused(reply, path[-1], f"is {value}")


def test_numbers_of_queries(api):
    instance = register(api)
    reply = api.call("meta", "GetCacheLocation", instance_id=instance, block_keys=[1, 2],
                     query_type="QT_REVERSE_ROLL_SW_MATCH", sw_size=-1)
    assert code(reply) == "INVALID_ARGUMENT"
    assert "sw_size is -1" in reply["header"]["status"]["message"]
    reply = api.call("meta", "GetCacheLocation", instance_id=instance, block_keys=[1],
                     query_type=9)
    assert "query_type is 9; accepted are" in reply["header"]["status"]["message"]
    refused(api.call("meta", "StartWriteCache", instance_id=instance, block_keys=[1],
                     write_timeout_seconds=-1), "write_timeout_seconds is -1")
    refused(api.call("meta", "TrimCache", instance_id=instance, strategy=8), "strategy is 8")
    refused(api.call("meta", "TrimCache", instance_id=instance, strategy="TS_TIMESTAMP",
                     begin_timestamp=-1, end_timestamp=5), "begin_timestamp is -1")
    reply = api.call("admin", "UpdateLeaderElectorConfig", campaign_delay_time_ms=-1)
    assert code(reply) == "INVALID_ARGUMENT"


def test_another_quota_reaches_an_open_instance(api):
    name = f"group-{next(_names)}"
    large = group(name)
    large["quota"] = {"capacity": 1_000_000}
    assert code(api.call("admin", "CreateInstanceGroup", instance_group=large)) == "OK"
    instance = register(api, instance_group=name)  # blocks of 2048 bytes
    store(api, instance, list(range(1, 21)))
    small = changed(changed(large, ("version",), 2), ("quota", "capacity"), 20_480)
    assert code(api.call("admin", "UpdateInstanceGroup", current_version=1,
                         instance_group=small)) == "OK"
    wait_until(lambda: len(locate(api, instance, list(range(1, 21)))) <= 8)
    assert len(locate(api, instance, list(range(1, 21)))) >= 4


def run_command(manager, *arguments):
    """`tierce ...` beside the manager."""
    url = f"http://127.0.0.1:{manager.ports['admin_http']}"
    return subprocess.run([str(executable()), *arguments, "--url", url], check=True, timeout=30,
                          capture_output=True, text=True)


def test_all_groups_are_listed(api, manager):
    names = [f"listed-{next(_names)}" for _ in range(3)]
    for name in names:
        assert code(api.call("admin", "CreateInstanceGroup", instance_group=group(name))) == "OK"
    reply = api.call("admin", "ListInstanceGroup")
    assert code(reply) == "OK"
    listed = {g["name"]: g for g in reply["instance_group"]}
    assert {"default", *names} <= set(listed) and list(listed) == sorted(listed)
    assert listed[names[0]] == api.call("admin", "GetInstanceGroup",
                                        name=names[0])["instance_group"]
    printed = run_command(manager, "group", "list").stdout
    assert all(name in printed for name in names) and "quota" in printed
    parsed = json.loads(run_command(manager, "group", "list", "--json").stdout)
    assert {g["name"] for g in parsed["instance_group"]} >= set(names)


def spans_of(reply):
    """The names of all spans; times nest."""
    text = reply["header"]["tracer_result"]

    def walk(span):
        (name, children), = [(k, v) for k, v in span.items() if k != "span_time_us"]
        assert span["span_time_us"] >= sum(child["span_time_us"] for child in children) - len(children)
        return [name] + [n for child in children for n in walk(child)]
    return walk(json.loads(text)) if text else []


def test_a_client_asks_how_long_steps_take(api):
    trace = 'a "trace"__kvcm_need_span_tracer'
    instance = register(api)
    started = start(api, instance, [1, 2], trace_id=trace)
    assert spans_of(started) == [f"{trace}:{trace}", "api:run", "locator:start_write",
                                 "locator:claim", "index:read", "locator:place", "index:note"]
    reply = api.call("meta", "FinishWriteCache", instance_id=instance, trace_id=trace,
                     write_session_id=started["write_session_id"], success_blocks={"offset": 2})
    assert spans_of(reply) == [f"{trace}:{trace}", "api:run", "locator:finish_write",
                               "index:change"]
    reply = api.call("meta", "GetCacheLocation", instance_id=instance, block_keys=[1, 2, 3],
                     query_type="QT_PREFIX_MATCH", trace_id=trace)
    assert spans_of(reply) == [f"{trace}:{trace}", "api:run", "locator:get", "index:read",
                               "index:use"]
    reply = api.call("meta", "GetCacheLocation", instance_id="nobody's", block_keys=[1],
                     query_type="QT_PREFIX_MATCH", trace_id=trace)
    assert code(reply) == "INSTANCE_NOT_EXIST" and spans_of(reply) == [f"{trace}:{trace}", "api:run"]
    for other in ("", "__kvcm_need_span_tracer at the beginning"):
        reply = api.call("meta", "RemoveCache", instance_id=instance, block_keys=[1],
                         trace_id=other)
        assert code(reply) == "OK" and spans_of(reply) == []


def warnings_of(manager):
    log = (manager.folder / "logs" / "kv_cache_manager.log").read_text()
    return [line for line in log.splitlines() if "quota_unmanaged" in line]


def test_storages_that_nobody_manages_say_so(api, manager):
    name = f"moon-{next(_names)}"
    storage = {"global_unique_name": name, "mooncake": {"local_hostname": "h"}}
    reply = api.call("admin", "AddStorage", storage=storage)
    assert reply["header"]["status"]["message"] == "Storage added successfully"

    def shown():
        storages = api.call("admin", "ListStorage")["storage"]
        return {s["global_unique_name"]: (s["status"], s["warning"]) for s in storages}

    assert shown()[name] == ("unmanaged", "") and shown()["nfs_01"] == ("well", "")
    assert "unmanaged" in run_command(manager, "storage", "list").stdout
    # A limit over it can be set, and does not do what it seems to.
    before = len(warnings_of(manager))
    reply = api.call("admin", "UpdateStorage", storage={**storage, "capacity_bytes": 1000})
    assert code(reply) == "OK"
    message = reply["header"]["status"]["message"]
    assert message.startswith("Storage updated successfully; warning: capacity_bytes of storage "
                              f"{name} (mooncake) limits an unmanaged storage"), message
    assert shown()[name] == ("unmanaged", message.split("warning: ")[1])
    wait_until(lambda: len(warnings_of(manager)) > before)  # a thread of its own writes the log
    assert len(warnings_of(manager)) == before + 1 and name in warnings_of(manager)[-1]
    assert code(api.call("admin", "DisableStorage", storage_unique_name=name)) == "OK"
    assert shown()[name][0] == "disabled"
    assert code(api.call("admin", "EnableStorage", storage_unique_name=name)) == "OK"


def test_a_check_that_cannot_be_made_is_warned_of(api, manager):
    name = f"moon-{next(_names)}"
    storage = {"global_unique_name": name, "mooncake": {"local_hostname": "h"},
               "check_storage_available_when_open": True}
    words = "check_storage_available_when_open has no effect, because an unmanaged storage cannot be probed"
    reply = api.call("admin", "AddStorage", storage=storage)
    assert reply["header"]["status"]["message"] == f"Storage added successfully; warning: {words}"
    reply = api.call("admin", "UpdateStorage", storage={**storage, "capacity_bytes": 1000})
    message = reply["header"]["status"]["message"]
    assert f"capacity_bytes of storage {name} (mooncake) limits" in message and message.endswith(f"; {words}")
    shown = {s["global_unique_name"]: s["warning"] for s in api.call("admin", "ListStorage")["storage"]}
    assert message.endswith(shown[name]) and words in shown[name]
    reply = api.call("admin", "UpdateStorage", storage={**storage, "check_storage_available_when_open": False})
    assert reply["header"]["status"]["message"] == "Storage updated successfully"


def test_an_update_that_moves_a_storage_is_checked(api, manager):
    name = f"storage-{next(_names)}"

    def update(root, check, **fields):
        return api.call("admin", "UpdateStorage", storage={
            "global_unique_name": name, "nfs": {"root_path": root},
            "check_storage_available_when_open": check, **fields})["header"]["status"]

    here, nowhere = f"{manager.folder}/{name}/", f"{manager.folder}/none/below/"
    reply = api.call("admin", "AddStorage", storage={"global_unique_name": name, "nfs": {"root_path": here}})
    assert code(reply) == "OK"
    status = update(nowhere, True)
    assert status["code"] == "INTERNAL_ERROR" and "No such file" in status["message"], status
    roots = {s["global_unique_name"]: s.get("nfs", {}).get("root_path") for s in api.call("admin", "ListStorage")["storage"]}
    assert roots[name] == here
    assert update(nowhere, False)["code"] == "OK"
    # Its place is the same: a limit can be set although the storage is not well.
    assert update(nowhere, True, capacity_bytes=1000)["code"] == "OK"
    assert update(f"{manager.folder}/{name}-2/", True)["code"] == "OK"


def test_a_local_storage_is_rejected_with_the_reason(api):
    reply = api.call("admin", "AddStorage", storage={"global_unique_name": "here", "local": {}})
    assert code(reply) == "INVALID_ARGUMENT"
    assert reply["header"]["status"]["message"].startswith(
        "storage: {local} of storage here is not supported, because it names no place")


def test_the_manual_tells_every_field_of_a_storage():
    root = Path(__file__).resolve().parents[3]
    messages = dict(re.findall(r"^message (\w+) \{\n(.*?)^\}", (root / "src/proto/kvcm/admin_service.proto").read_text(), re.M | re.S))
    table = (root / "docs/using/manager.md").read_text().split("| storage | fields that the manager uses |")[1].split("\n\n")[0]
    rows = {row.split("|")[1].split("`")[1] if "`" in row.split("|")[1] else "all": set(re.findall(r"`(\w+)`", row))
            for row in table.splitlines()[2:]}
    fields = re.findall(r"^ +(?:repeated )?(\w+) (\w+) = \d+;", messages["StorageConfig"], re.M)
    assert len(fields) == 19
    for kind, name in fields:
        if not kind.endswith("StorageSpec"):
            assert name in rows["all"] | {"status", "reason", "warning", "scrub", "drain", "drain_reason"}, name
            continue
        of_spec = set(re.findall(r"^ +(?:repeated )?\w+ (\w+) = \d+;", messages[kind], re.M))
        assert rows[name] - {name} == of_spec, name


@pytest.mark.parametrize("change,words", [
    ({"quota": {"capacity": 10_000, "quota_config": [{"storage_type": 2, "capacity": 5000}]}},
     "limits unmanaged storages (mooncake)"),
    ({"storage_candidates": ["nfs_01", "moon"]}, "limits storage moon, which is unmanaged")])
def test_quotas_over_them_are_warned_of(api, manager, change, words):
    api.call("admin", "AddStorage", storage={
        "global_unique_name": "moon", "mooncake": {"local_hostname": "h"}})
    name = f"group-{next(_names)}"
    reply = api.call("admin", "CreateInstanceGroup", instance_group={**group(name), **change})
    assert code(reply) == "OK" and words in reply["header"]["status"]["message"]
    shown = api.call("admin", "GetInstanceGroup", name=name)["instance_group"]
    assert words in shown["warning"]
    wait_until(lambda: words in warnings_of(manager)[-1])
    status, body = Http(manager).raw(manager.ports["admin_http"], "/api/page", None, "GET")
    page = json.loads(body)
    assert status == 200
    assert [g["warning"] for g in page["groups"] if g["name"] == name] == [shown["warning"]]
    assert [g["warning"] for g in page["groups"] if g["name"] == "default"] == [""]
    assert {s["name"]: s["status"] for s in page["storages"]}["moon"] == "unmanaged"
    reply = api.call("admin", "UpdateInstanceGroup", current_version=1,
                     instance_group={**group(name, 2), **change})
    assert code(reply) == "OK" and words in reply["header"]["status"]["message"]
    reply = api.call("admin", "UpdateInstanceGroup", current_version=2,
                     instance_group=group(name, 3))
    assert reply["header"]["status"]["message"] == "Instance group updated successfully"


def test_a_manager_that_begins_to_lead_warns_again(tmp_path):
    """A quota of a type of which there is no storage, as the built-in group has them, warns of
    nothing."""
    startup = Manager.usual_startup(storage=tmp_path / "nfs")
    startup["instance_group"]["quota"]["quota_config"] = [
        {"storage_type": "mooncake", "capacity": 1000}]
    manager = Manager(tmp_path, f"--registry.uri=local://{tmp_path}/registry", startup=startup)
    assert warnings_of(manager) == []
    Http(manager).call("admin", "AddStorage", storage={
        "global_unique_name": "moon", "mooncake": {"local_hostname": "h"}})
    assert manager.stop() == 0
    manager.start()
    assert manager.stop() == 0
    warnings = warnings_of(manager)
    assert len(warnings) == 1 and "instance group default" in warnings[0]
