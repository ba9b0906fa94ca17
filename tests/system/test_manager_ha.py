# SPDX-License-Identifier: Apache-2.0
"""Several managers over one Redis: who leads, and what a change of leader costs."""

import signal
import threading
import time

import pytest

from manager_process import Http, Manager, Redis, wait_until

SPECS = [{"name": "tp0", "size": 1000}]


@pytest.fixture
def redis(tmp_path):
    redis = Redis(tmp_path / "redis")
    yield redis
    redis.stop()


def code(reply):
    return reply["header"]["status"]["code"]


def fleet_member(folder, redis, storage, ready=True, lease_ms=1500):
    """A manager whose state is all in Redis; its files are the fleet's."""
    startup = Manager.usual_startup(storage=storage)
    startup["instance_group"]["cache_config"]["meta_indexer_config"]["meta_storage_backend_config"] \
        = {"storage_type": "redis", "storage_uri": f"redis://127.0.0.1:{redis.port}"}
    return Manager(folder, f"--registry.uri=redis://127.0.0.1:{redis.port}?cluster_name=c",
                   f"--elector.uri=redis://127.0.0.1:{redis.port}",
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


@pytest.fixture
def pair(tmp_path, redis):
    storage = tmp_path / "nfs"
    first = fleet_member(tmp_path / "first", redis, storage)
    second = fleet_member(tmp_path / "second", redis, storage, ready=False)
    yield first, second
    for manager in (first, second):
        if manager.process is not None:
            manager.process.kill()
            manager.process.wait()


def test_one_leads_and_the_other_names_it(pair):
    first, second = pair
    assert leads(first) and not leads(second)
    infos = [Http(m).call("admin", "GetManagerClusterInfo") for m in pair]
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
    metrics = second.get("/metrics", "admin_http")[1].decode()
    values = {l.split("{")[0]: float(l.split()[-1]) for l in metrics.splitlines()
              if l.startswith("tierce_cache_manager_group_")}
    assert values["tierce_cache_manager_group_serving_bytes"] == 52 * 1000
    assert values["tierce_cache_manager_group_writing_bytes"] == 0
    assert values["tierce_cache_manager_group_key_count"] == 52


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
    time.sleep(1)
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
        time.sleep(0.02)
    assert leads(second) and not leads(first)
    assert len(locate(Http(second), [1, 2, 3])["locations"]) == 3


def test_redis_away_and_back(tmp_path, redis):
    manager = fleet_member(tmp_path / "one", redis, tmp_path / "nfs")
    api = Http(manager)
    register(api)
    assert code(finish(api, start(api, [1, 2, 3]))) == "OK"
    redis.stop()
    began = time.monotonic()
    reply = locate(api, [1, 2, 3])
    assert code(reply) != "OK" and time.monotonic() - began < 10
    redis.start()
    wait_until(lambda: leads(manager))
    wait_until(lambda: code(locate(api, [1, 2, 3])) == "OK")
    assert len(locate(api, [1, 2, 3])["locations"]) == 3
    manager.stop()


@pytest.mark.parametrize("kind", ["rocksdb", "redis"])
def test_kill_9_under_load(tmp_path, redis, kind):
    """What a client was told to be written is there afterwards, and sums are exact."""
    storage = tmp_path / "nfs"
    if kind == "redis":
        manager = fleet_member(tmp_path / "one", redis, storage)
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
    time.sleep(1)
    manager.stop(signal.SIGKILL)
    stop.set()
    for thread in threads:
        thread.join()
    manager.start()
    api = Http(manager)
    assert len(written) > 20
    for key, uri in written.items():
        found = locate(api, [key])["locations"]
        assert [l["location_specs"][0]["uri"] for l in found] == [uri], key

    def values():
        text = manager.get("/metrics", "admin_http")[1].decode()
        return {l.split("{")[0].replace("tierce_cache_manager_group_", ""): float(l.split()[-1])
                for l in text.splitlines() if l.startswith("tierce_cache_manager_group_")}

    wait_until(lambda: values()["writing_bytes"] == 0)  # sessions that nobody ends
    now = values()
    assert now["serving_bytes"] == now["key_count"] * 1000
    # A batch may have been written whose answer was lost: no more than one a thread.
    assert len(written) <= now["key_count"] <= len(written) + 30
    reply = api.call("meta", "TrimCache", instance_id="i", strategy="TS_REMOVE_ALL_CACHE")
    assert code(reply) == "OK"
    wait_until(lambda: values()["serving_bytes"] == values()["deleting_bytes"] == 0)
    assert values()["key_count"] == 0
    assert not [f for f in storage.rglob("*") if f.is_file()]
    manager.stop()
