# SPDX-License-Identifier: Apache-2.0
"""Several managers over one Redis: the election, and the cost of a change of leader."""

import signal
import threading
import time
from pathlib import Path

import pytest

from manager_process import Etcd, Http, Manager, Proxy, Redis, RedisCluster, wait_until

SPECS = [{"name": "tp0", "size": 1000}]


@pytest.fixture
def redis(tmp_path):
    redis = Redis(tmp_path / "redis")
    yield redis
    redis.stop()


@pytest.fixture(params=[Redis, RedisCluster], ids=["redis", "cluster"])
def place(request, tmp_path):
    place = request.param(tmp_path / "redis")
    yield place
    place.stop()


def code(reply):
    return reply["header"]["status"]["code"]


def fleet_member(folder, redis, storage, ready=True, lease_ms=3000, elector=None, timeout_ms=20000):
    """A manager whose state is all in Redis; its files are the fleet's."""
    startup = Manager.usual_startup(storage=storage)
    startup["instance_group"]["cache_config"]["meta_indexer_config"]["meta_storage_backend_config"] \
        = {"storage_type": "redis", "storage_uri": f"{redis.uri}?timeout_ms={timeout_ms}"}
    return Manager(folder, f"--registry.uri={redis.uri}?cluster_name={{c}}&timeout_ms={timeout_ms}",
                   f"--elector.uri={elector or redis.uri}",
                   f"--elector.lease={lease_ms}ms", "--elector.interval=50ms",
                   startup=startup, ready=ready)


def leads(manager):
    return manager.get("/readyz")[0] == 200


def register(api, instance="i"):
    reply = api.call("meta", "RegisterInstance", instance_group="default", instance_id=instance,
                     block_size=4, model_deployment={"model_name": "m", "dtype": "bf16"},
                     location_spec_infos=SPECS)
    assert code(reply) == "OK", reply


def start(api, keys, instance="i", timeout=30):
    return api.call("meta", "StartWriteCache", instance_id=instance, block_keys=keys,
                    write_timeout_seconds=timeout)


def finish(api, started, instance="i"):
    return api.call("meta", "FinishWriteCache", instance_id=instance,
                    write_session_id=started["write_session_id"],
                    success_blocks={"offset": len(started["locations"])})


def locate(api, keys, instance="i"):
    return api.call("meta", "GetCacheLocation", instance_id=instance, block_keys=keys,
                    query_type="QT_PREFIX_MATCH")


def group_values(manager):
    """The metrics of its one group."""
    prefix = "tierce_cache_manager_group_"
    text = manager.get("/metrics", "admin_http")[1].decode()
    return {l.split("{")[0].replace(prefix, ""): float(l.split()[-1])
            for l in text.splitlines() if l.startswith(prefix)}


@pytest.fixture
def pair(tmp_path, place):
    storage = tmp_path / "nfs"
    first = fleet_member(tmp_path / "first", place, storage)
    second = fleet_member(tmp_path / "second", place, storage, ready=False)
    yield first, second
    for manager in (first, second):
        if manager.process is not None:
            manager.process.kill()
            manager.process.wait()


def test_one_leads_and_the_other_names_it(pair):
    first, second = pair
    assert leads(first) and not leads(second)
    infos = []

    def is_known():
        infos[:] = [Http(m).call("admin", "GetManagerClusterInfo") for m in pair]
        return infos[1]["leader_node_id"] != ""

    wait_until(is_known)
    assert infos[0]["self_node_id"] == infos[0]["leader_node_id"] == infos[1]["leader_node_id"]
    assert infos[1]["self_node_id"] != infos[0]["self_node_id"]
    reply = Http(second).call("meta", "GetInstanceInfo", instance_id="i")
    assert code(reply) == "SERVER_NOT_LEADER"
    assert infos[0]["self_node_id"] in reply["header"]["status"]["message"]
    assert code(Http(second).call("admin", "ListStorage")) == "SERVER_NOT_LEADER"


def test_a_killed_leader_loses_nothing(pair):
    first, second = pair
    api = Http(first)
    register(api)
    started = start(api, list(range(1, 51)))
    assert code(finish(api, started)) == "OK"
    expected = locate(api, list(range(1, 51)))["locations"]
    assert len(expected) == 50
    opened = start(api, [1001, 1002])
    first.stop(signal.SIGKILL)
    wait_until(lambda: leads(second))
    api = Http(second)
    assert locate(api, list(range(1, 51)))["locations"] == expected
    assert start(api, [1001])["locations"] == []  # still being written
    assert code(finish(api, opened)) == "OK"
    assert len(locate(api, [1001, 1002])["locations"]) == 2
    values = group_values(second)
    assert values["serving_bytes"] == 52 * 1000
    assert values["writing_bytes"] == 0
    assert values["key_count"] == 52


def test_reports_outlive_their_leader(pair):
    first, second = pair
    api = Http(first)
    register(api)
    started = start(api, [1, 2, 3])
    assert code(finish(api, started)) == "OK"
    uris = [location["location_specs"][0]["uri"] for location in started["locations"]]
    files = {Path("/" + uri.split("://", 1)[1].split("/", 1)[1].split("?")[0]) for uri in uris}
    for file in files:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(bytes(3000))
    reports = [{"block_key": key, "location_spec_name": "tp0", "reason": "RR_DAMAGED", "uri": uri}
               for key, uri in zip([1, 2, 3], uris)]
    follower = Http(second).call("meta", "ReportCache", instance_id="i", reports=reports)
    assert code(follower) == "SERVER_NOT_LEADER"
    assert len(locate(api, [1, 2, 3])["locations"]) == 3
    reply = api.call("meta", "ReportCache", instance_id="i", reports=reports)
    first.stop(signal.SIGKILL)
    assert (code(reply), reply["dropped_locations"], reply["absent_reports"]) == ("OK", "3", "0"), reply
    wait_until(lambda: leads(second))
    api = Http(second)
    assert locate(api, [1, 2, 3])["locations"] == []
    # By the first leader, or by the note that it left.
    wait_until(lambda: not any(file.exists() for file in files))
    reply = api.call("meta", "ReportCache", instance_id="i", reports=reports)
    assert (code(reply), reply["dropped_locations"], reply["absent_reports"]) == ("OK", "0", "3"), reply


def test_a_write_is_renewed_at_the_next_leader(pair):
    first, second = pair
    api = Http(first)
    register(api)
    started = start(api, [1, 2, 3], timeout=20)
    session = {"instance_id": "i", "write_session_id": started["write_session_id"]}
    assert code(api.call("meta", "RenewWriteCache", **session)) == "OK"
    assert code(Http(second).call("meta", "RenewWriteCache", **session)) == "SERVER_NOT_LEADER"
    first.stop(signal.SIGKILL)
    wait_until(lambda: leads(second))
    api = Http(second)
    reply = api.call("meta", "RenewWriteCache", **session)
    assert (code(reply), reply["expires_in_ms"]) == ("OK", "20000"), reply
    assert code(finish(api, started)) == "OK"
    assert len(locate(api, [1, 2, 3])["locations"]) == 3
    assert code(api.call("meta", "RenewWriteCache", **session)) == "WRITE_SESSION_FINISHED"


def test_demotion_with_a_delay(pair):
    first, second = pair
    api = Http(first)
    register(api)
    reply = api.call("admin", "UpdateLeaderElectorConfig", campaign_delay_time_ms=100000)
    assert code(reply) == "OK"
    assert api.call("admin", "GetLeaderElectorConfig")["campaign_delay_time_ms"] == "100000"
    assert code(api.call("admin", "LeaderDemote")) == "OK"
    wait_until(lambda: leads(second))
    assert not leads(first)
    assert code(locate(api, [1])) == "SERVER_NOT_LEADER"
    assert code(locate(Http(second), [1])) == "OK"
    time.sleep(1)  # for a campaign that must not come
    assert not leads(first)


def test_a_leader_that_slept_does_not_write(pair):
    first, second = pair
    api = Http(first)
    register(api)
    first.process.send_signal(signal.SIGSTOP)
    wait_until(lambda: leads(second))
    started = start(Http(second), [1, 2, 3])
    assert code(finish(Http(second), started)) == "OK"
    first.process.send_signal(signal.SIGCONT)
    for _ in range(20):
        reply = start(api, [4, 5])
        assert code(reply) in ("SERVER_NOT_LEADER", "SERVICE_NOT_READY"), reply
        time.sleep(0.02)  # no call may succeed, at once or later
    assert leads(second) and not leads(first)
    assert len(locate(Http(second), [1, 2, 3])["locations"]) == 3


@pytest.fixture
def elector(request, tmp_path, redis):
    (tmp_path / "lease").mkdir()
    if request.param != "etcd":
        yield {"file": f"file://{tmp_path}/lease", "redis": redis.uri}[request.param]
        return
    etcd = Etcd(tmp_path / "etcd")
    yield f"etcd://127.0.0.1:{etcd.port}"
    etcd.stop()


@pytest.fixture
def late(tmp_path, redis, elector):
    """Two managers that reach Redis through a proxy; the first leads. They elect elsewhere.
    Held-back requests cost the new leader a timeout, so the timeout is short."""
    proxy = Proxy(redis.port)
    managers = [fleet_member(tmp_path / name, proxy, tmp_path / "nfs", ready=name == "first",
                             elector=elector, timeout_ms=1000) for name in ("first", "second")]
    yield (*managers, proxy)
    proxy.close()
    for manager in managers:
        if manager.process is not None:
            manager.process.kill()
            manager.process.wait()


def written_by_the_second(second, started):
    """What happens meanwhile: of a session the first key is written, the others are not."""
    api = Http(second)
    reply = api.call("meta", "FinishWriteCache", instance_id="i",
                     write_session_id=started["write_session_id"],
                     success_blocks={"bool_masks": {"values": [True, False, False]}})
    assert code(reply) == "OK", reply
    mine = start(api, [21, 22])
    assert len(mine["locations"]) == 2
    assert code(finish(api, mine)) == "OK"


LATE_CALLS = {
    "start": lambda api, started: start(api, [21, 22, 23]),
    "finish": lambda api, started: finish(api, started),
    "remove": lambda api, started: api.call("meta", "RemoveCache", instance_id="i",
                                            block_keys=[1, 2]),
    "trim": lambda api, started: api.call("meta", "TrimCache", instance_id="i",
                                          strategy="TS_REMOVE_ALL_CACHE"),
    "register": lambda api, started: api.call(
        "meta", "RegisterInstance", instance_group="default", instance_id="j", block_size=4,
        model_deployment={"model_name": "m", "dtype": "bf16"}, location_spec_infos=SPECS),
}


# With every elector, a late write is rejected with the number of its term. Each elector ends a term differently.
@pytest.mark.parametrize("elector, call", [
    pytest.param(elector, call, marks=[] if elector == "file" or call == "finish" else pytest.mark.long)
    for elector in ("file", "redis", "etcd") for call in LATE_CALLS], indirect=["elector"])
def test_what_a_stopped_leader_sent_is_refused(late, call):
    """A leader is stopped while its write is on the way; the write arrives when another leads."""
    first, second, proxy = late
    register(Http(first))
    assert code(finish(Http(first), start(Http(first), [1, 2]))) == "OK"
    started = start(Http(first), [11, 12, 13])
    proxy.hold()
    answers = []
    thread = threading.Thread(
        target=lambda: answers.append(LATE_CALLS[call](Http(first), started)))
    thread.start()
    wait_until(lambda: proxy.held_bytes > 0)
    first.process.send_signal(signal.SIGSTOP)
    wait_until(lambda: leads(second))
    written_by_the_second(second, started)
    proxy.let_go()
    first.process.send_signal(signal.SIGCONT)
    thread.join()
    assert code(answers[0]) != "OK", answers
    assert leads(second) and not leads(first)
    second.stop(signal.SIGKILL)  # so that what counts is what is in Redis
    wait_until(lambda: leads(first))
    api = Http(first)
    for keys, there in (([1, 2], 2), ([11, 12, 13], 1), ([21, 22, 23], 2)):
        assert len(locate(api, keys)["locations"]) == there, keys
    infos = api.call("admin", "ListInstanceInfo", instance_group_name="default")["instance_info"]
    assert [i["instance_id"] for i in infos] == ["i"]
    values = group_values(first)
    assert values["key_count"] == 5 and values["writing_bytes"] == 0
    assert values["serving_bytes"] == 5 * 1000


def test_redis_away_and_back(tmp_path, redis):
    manager = fleet_member(tmp_path / "one", redis, tmp_path / "nfs", timeout_ms=5000)
    api = Http(manager)
    register(api)
    assert code(finish(api, start(api, [1, 2, 3]))) == "OK"
    redis.stop()
    began = time.monotonic()
    reply = locate(api, [1, 2, 3])
    assert code(reply) != "OK" and time.monotonic() - began < 25
    redis.start()
    wait_until(lambda: leads(manager))
    wait_until(lambda: code(locate(api, [1, 2, 3])) == "OK")
    assert len(locate(api, [1, 2, 3])["locations"]) == 3
    manager.stop()


@pytest.mark.parametrize("kind", ["rocksdb", "redis", "cluster"])
def test_kill_9_under_load(tmp_path, kind):
    """Acknowledged writes are found afterwards, and sums are exact."""
    storage = tmp_path / "nfs"
    kinds = {"redis": Redis, "cluster": RedisCluster}
    place = kinds[kind](tmp_path / "redis") if kind in kinds else None
    if place:
        manager = fleet_member(tmp_path / "one", place, storage)
    else:
        startup = Manager.usual_startup(storage=storage)
        startup["instance_group"]["cache_config"]["meta_indexer_config"][
            "meta_storage_backend_config"] = {"storage_type": kind,
                                              "storage_uri": f"{tmp_path}/meta"}
        manager = Manager(tmp_path / "one", f"--registry.uri=local://{tmp_path}/registry",
                          startup=startup)
    register(Http(manager))
    written, stop = {}, threading.Event()

    def write(worker):
        api = Http(manager)
        for i in range(1000):
            keys = [worker * 1_000_000 + i * 10 + k for k in range(10)]
            try:
                started = start(api, keys, timeout=2)
                if code(started) != "OK" or stop.is_set():
                    return
                if i % 5 != 4 and code(finish(api, started)) == "OK":
                    written.update(zip(keys, (l["location_specs"][0]["uri"]
                                              for l in started["locations"])))
            except Exception:  # it was killed
                return

    threads = [threading.Thread(target=write, args=(w,)) for w in range(1, 4)]
    for thread in threads:
        thread.start()
    wait_until(lambda: len(written) > 500)
    manager.stop(signal.SIGKILL)
    stop.set()
    for thread in threads:
        thread.join()
    manager.start()
    api = Http(manager)
    assert len(written) > 500
    for key, uri in written.items():
        found = locate(api, [key])["locations"]
        assert [l["location_specs"][0]["uri"] for l in found] == [uri], key

    wait_until(lambda: group_values(manager)["writing_bytes"] == 0)  # sessions that nobody ends
    now = group_values(manager)
    assert now["serving_bytes"] == now["key_count"] * 1000
    # A batch may have been written whose answer was lost: no more than one a thread.
    assert len(written) <= now["key_count"] <= len(written) + 30
    reply = api.call("meta", "TrimCache", instance_id="i", strategy="TS_REMOVE_ALL_CACHE")
    assert code(reply) == "OK"
    wait_until(lambda: group_values(manager)["serving_bytes"] == 0)
    wait_until(lambda: group_values(manager)["deleting_bytes"] == 0)
    assert group_values(manager)["key_count"] == 0
    # A kill may leave the file that was to become the mark.
    assert [f.name for f in storage.rglob("*") if f.is_file() and not f.name.startswith(".tierce-mark-")] == ["~tierce-pool"]
    manager.stop()
    if place:
        place.stop()


def test_a_fault_that_is_met_while_the_manager_ends(tmp_path, redis):
    """Deferred calls are answered at once, although their worker has ended."""
    proxy = Proxy(redis.port)
    manager = Manager(tmp_path / "m",
                      f"--registry.uri=redis://127.0.0.1:{proxy.port}?cluster_name=c&timeout_ms=15000",
                      "--serve.workers=1", "--serve.drain=20s")
    api = Http(manager)
    for method in ("DeleteAccount", "ListAccount"):
        assert code(api.call("debug", "InjectFault", api_name=method, fault_type="FT_DELAY",
                             delay_ms=50)) == "OK"
    proxy.hold()
    answers = []

    def call(method, **fields):
        answers.append(code(Http(manager).call("admin", method, **fields)))

    threads = [threading.Thread(target=call, args=(method,), kwargs={
        "user_name": "nobody", "password": "p"}) for method in ("AddAccount", *["DeleteAccount"] * 8)]
    for thread in threads:
        thread.start()
        wait_until(lambda: proxy.held_bytes > 0)
    waiting = 'tierce_service_request_queue_size{queue="workers"} 8'
    wait_until(lambda: waiting in manager.get("/metrics", "admin_http")[1].decode())
    manager.process.send_signal(signal.SIGTERM)
    with pytest.raises(OSError):  # it listens no more
        wait_until(lambda: manager.get("/livez") is None)
    time.sleep(0.2)  # for mistakes that it may make next: no sign from outside tells how far it is
    proxy.let_go()
    for thread in threads:
        thread.join()
    assert len(answers) == 9
    assert manager.stop(0) == 0
    proxy.close()
