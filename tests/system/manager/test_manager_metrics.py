# SPDX-License-Identifier: Apache-2.0
"""What an operator of a manager sees at /metrics, /readyz and in the access log."""

import os
import re
import signal
import socket

import pytest

from manager_process import Grpc, Http, Manager, wait_until

pytest.importorskip("grpc_tools")

SPEC_BYTES = 1000


def samples(manager):
    """The page as {name: [(labels, value)]}."""
    status, page = manager.get("/metrics", "admin_http")
    assert status == 200
    found = {}
    for line in page.decode().splitlines():
        if not line.startswith("#"):
            name, labels, value = re.fullmatch(r"(\w+)(?:\{(.*)\})? (\S+)", line).groups()
            pairs = dict(re.findall(r'(\w+)="([^"]*)"', labels or ""))
            found.setdefault(name, []).append((pairs, float(value)))
    return found


def value(manager, name, **labels):
    found = [v for pairs, v in samples(manager)["tierce_" + name] if labels.items() <= pairs.items()]
    assert len(found) == 1, (name, labels, found)
    return found[0]


def code(reply):
    return reply["header"]["status"]["code"]


def register(api, instance="i", **fields):
    reply = api.call("meta", "RegisterInstance", **{
        "instance_group": "default", "instance_id": instance, "block_size": 4,
        "model_deployment": {"model_name": "m", "dtype": "bf16"},
        "location_spec_infos": [{"name": "tp0", "size": SPEC_BYTES}], **fields})
    assert code(reply) == "OK", reply


def start(api, keys, instance="i"):
    return api.call("meta", "StartWriteCache", instance_id=instance, block_keys=keys,
                    write_timeout_seconds=30)


def store(api, keys, instance="i"):
    started = start(api, keys, instance)
    assert code(started) == "OK", started
    reply = api.call("meta", "FinishWriteCache", instance_id=instance,
                     write_session_id=started["write_session_id"],
                     success_blocks={"offset": len(started["locations"])})
    assert code(reply) == "OK", reply


def startup(tmp_path, **group):
    return Manager.usual_startup(storage=tmp_path / "nfs", **group)


def quota(capacity, of_files):
    return {"capacity": capacity,
            "quota_config": [{"storage_type": "file", "capacity": of_files}]}


@pytest.fixture
def begin():
    """begin(folder, ...) -> a Manager, which ends with the test."""
    managers = []

    def one(*arguments, **more):
        managers.append(Manager(*arguments, debug=False, **more))
        return managers[-1]

    yield one
    for manager in managers:
        assert manager.stop() == 0


@pytest.fixture
def manager(begin, tmp_path):
    """Ten blocks of a group, eight of them in files; a limit that groups share."""
    given = startup(tmp_path, quota=quota(10 * SPEC_BYTES, 8 * SPEC_BYTES))
    return begin(tmp_path, "--quota.groups=default_quota_group=20000", startup=given)


def test_calls_have_histograms(manager):
    api = Http(manager)
    register(api)
    for _ in range(3):
        start(api, [1])
    of_start = {"api_name": "StartWriteCache", "service": "meta"}
    buckets = [(pairs["le"], v) for pairs, v in samples(manager)["tierce_service_query_seconds_bucket"]
               if pairs["api_name"] == "StartWriteCache"]
    bounds = [float(le) for le, _ in buckets]
    assert bounds == sorted(bounds) and bounds[-1] == float("inf") and bounds[0] < 0.001
    counts = [v for _, v in buckets]
    assert counts == sorted(counts) and counts[-1] == 3
    api_name = {"api_name": "StartWriteCache"}
    assert value(manager, "service_query_seconds_count", **api_name) == 3
    seconds = value(manager, "service_query_seconds_sum", **api_name)
    assert 0 < seconds < 3 * 30, of_start


def test_quotas_and_what_is_used_of_them(manager):
    api = Http(manager)
    register(api)
    store(api, [1, 2])
    started = start(api, [3])
    assert code(started) == "OK"
    group = {"instance_group": "default"}
    for name, of_all, of_files in (("quota", 10_000, 8_000), ("watermark", 8_000, 6_400),
                                   ("used", 3_000, 3_000)):
        metric = f"cache_manager_group_{name}_bytes"
        assert value(manager, metric, type="all", **group) == of_all, name
        assert value(manager, metric, type="file", **group) == of_files, name
    shared = {"global_quota_group": "default_quota_group"}
    assert value(manager, "cache_manager_global_quota_quota_bytes", **shared) == 20_000
    assert value(manager, "cache_manager_global_quota_used_bytes", **shared) == 3_000
    assert value(manager, "data_storage_capacity_bytes", unique_name="nfs_01") == 0


def test_storages_that_nobody_manages(manager):
    api = Http(manager)
    moon = {"global_unique_name": "moon", "mooncake": {"local_hostname": "h"},
            "capacity_bytes": 1000, "watermark_percent": 70}
    assert code(api.call("admin", "AddStorage", storage=moon)) == "OK"
    assert value(manager, "data_storage_managed_status", unique_name="nfs_01") == 1
    assert value(manager, "data_storage_managed_status", unique_name="moon", type="mooncake") == 0
    assert value(manager, "data_storage_watermark_bytes", unique_name="nfs_01") == 0
    assert value(manager, "data_storage_watermark_bytes", unique_name="moon") == 700
    # The same by KVCM's names.
    metrics = api.call("admin", "GetMetrics")["metrics"]
    named = [m for m in metrics if m["metric_name"] == "data_storage.managed_status"]
    assert sorted(m["metric_value"]["float_value"] for m in named) == [0, 1], named


def test_rejected_writes_have_a_reason(manager):
    api = Http(manager)
    register(api)
    metric = "cache_manager_instance_rejected_key_count_total"
    assert value(manager, metric, instance_id="i", reason="type_quota") == 0
    reply = start(api, list(range(1, 13)))  # room for eight of twelve
    assert code(reply) == "OK" and len(reply["locations"]) == 8
    assert value(manager, metric, instance_id="i", reason="type_quota") == 4
    assert code(start(api, [100])) == "INTERNAL_ERROR"
    assert value(manager, metric, instance_id="i", reason="type_quota") == 5
    api.call("admin", "DisableStorage", storage_unique_name="nfs_01")
    assert code(start(api, [200, 201])) != "OK"
    assert value(manager, metric, instance_id="i", reason="no_storage") == 2
    assert value(manager, metric, instance_id="i", reason="index") == 0


def test_how_long_what_left_had_not_been_read(manager):
    api = Http(manager)
    register(api)
    own = {"instance_group": "default", "instance_id": "i"}
    store(api, [1, 2, 3, 4, 5, 6])
    assert value(manager, "cache_manager_instance_reclaimed_key_count_total", **own) == 0
    store(api, [7, 8])  # above the watermark of files, 6400
    wait_until(lambda: value(manager, "cache_manager_instance_reclaimed_key_count_total",
                             **own) == 2)
    assert 0 < value(manager, "cache_manager_instance_reclaim_age_seconds", **own) < 60
    assert value(manager, "cache_manager_instance_reclaimed_idle_seconds_total", **own) < 120
    assert value(manager, "cache_reclaimer_expired_block_count_total") == 0


def test_grpc_is_counted_alike(manager):
    api = Grpc(manager)
    register(api)
    api.close()
    assert value(manager, "service_query_seconds_count", api_name="RegisterInstance") == 1


def test_systemd_is_told(begin, tmp_path, monkeypatch):
    path = str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(path)
        listener.settimeout(60)
        monkeypatch.setitem(os.environ, "NOTIFY_SOCKET", path)
        manager = begin(tmp_path / "m")
        assert listener.recv(64) == b"READY=1"
        assert manager.stop() == 0
        assert listener.recv(64) == b"STOPPING=1"


def test_the_access_log_is_switched_off(begin, tmp_path):
    lines = {}
    for name, arguments in (("usual", []), ("off", ["--log.access=false"])):
        manager = begin(tmp_path / name, *arguments)
        register(Http(manager))
        assert manager.stop() == 0  # lines are written at the end
        log = tmp_path / name / "logs" / "access.log"
        lines[name] = log.read_text().splitlines() if log.exists() else None
    assert len(lines["usual"]) == 1 and '"api_name":"RegisterInstance"' in lines["usual"][0]
    assert lines["off"] is None


def test_the_first_storage_lies_below_the_state_folder(begin, tmp_path, monkeypatch):
    monkeypatch.setitem(os.environ, "XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.delenv("STATE_DIRECTORY", raising=False)
    manager = begin(tmp_path / "m", "--startup.file=")
    api = Http(manager)
    register(api)
    reply = start(api, [1])
    uri = reply["locations"][0]["location_specs"][0]["uri"]
    folder = tmp_path / "state" / "tierce" / "manager"
    assert uri.startswith(f"file://nfs_01{folder}/nfs_01/i/tp0/"), uri
    assert folder.stat().st_mode & 0o777 == 0o700  # a probe makes the last one


def test_no_state_folder_is_made_for_other_storages(begin, tmp_path, monkeypatch):
    monkeypatch.setitem(os.environ, "STATE_DIRECTORY", str(tmp_path / "state"))
    begin(tmp_path / "m")
    assert not (tmp_path / "state").exists()


def test_no_state_folder_and_no_startup_file(begin, tmp_path, monkeypatch):
    for name in ("STATE_DIRECTORY", "XDG_STATE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    manager = begin(tmp_path / "m", "--startup.file=", ready=False)
    wait_until(lambda: b"startup.file" in manager.get("/readyz")[1])
    status, text = manager.get("/readyz")
    assert status == 503 and b"XDG_STATE_HOME" in text, text


def fill(folder):
    """Takes all room, as files of somebody else do."""
    with open(folder / "filler", "wb", buffering=0) as file:
        while True:
            try:
                file.write(b"f" * 4096)
            except OSError:
                return


def test_a_first_start_on_a_full_disk_names_the_remedy(begin, tmp_path, small_disk):
    disk = small_disk("1m")
    fill(disk)
    manager = begin(tmp_path, f"--registry.uri=local://{disk}/registry", "--elector.lease=1s", ready=False)
    wait_until(lambda: b"free space there" in manager.get("/readyz")[1])
    status, text = manager.get("/readyz")
    assert status == 503 and f"{disk}/registry".encode() in text and b"No space left" in text, text
    (disk / "filler").unlink()
    wait_until(lambda: manager.get("/readyz") == (200, b"ok\n"))


def test_a_start_on_a_full_disk_serves_reads(begin, tmp_path, small_disk):
    """It rejects writes with a reason, and goes on by itself when there is room again."""
    disk = small_disk("32m")
    given = startup(tmp_path)
    given["instance_group"]["cache_config"]["meta_indexer_config"]["meta_storage_backend_config"] \
        = {"storage_type": "rocksdb", "storage_uri": f"{disk}/index"}
    manager = begin(tmp_path, f"--registry.uri=local://{disk}/registry", startup=given)
    api = Http(manager)
    register(api)
    store(api, [1, 2, 3])
    manager.stop(signal.SIGKILL)
    fill(disk)
    manager.start()
    assert manager.get("/readyz") == (
        200, b"ok\nwrites are rejected: the index of group default: No space left on device\n")
    own = {"instance_group": "default", "instance_id": "i"}
    assert value(manager, "meta_indexer_writes_rejected", **own) == 1
    reply = api.call("meta", "GetCacheLocation", instance_id="i", block_keys=[1, 2, 3, 4],
                     query_type="QT_PREFIX_MATCH")
    assert code(reply) == "OK" and len(reply["locations"]) == 3
    reply = start(api, [4, 5])
    assert code(reply) != "OK" and "No space left" in reply["header"]["status"]["message"], reply
    assert value(manager, "cache_manager_instance_rejected_key_count_total", reason="index",
                 **own) == 2
    (disk / "filler").unlink()
    wait_until(lambda: manager.get("/readyz") == (200, b"ok\n"))  # nobody writes
    assert value(manager, "meta_indexer_writes_rejected", **own) == 0
    store(api, [4, 5])
