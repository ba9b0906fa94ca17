# SPDX-License-Identifier: Apache-2.0
"""An index in a Redis Cluster whose nodes die."""

import random
import threading
import time

import pytest

from manager_process import Http, Manager, RedisCluster, wait_until
from test_manager_ha import code, finish, group_values, locate, register, start

METADATA = "kvcache:instance_i:metadata"
RECORDS = "kvcache:instance_i:cache_*"


@pytest.fixture
def cluster(tmp_path):
    cluster = RedisCluster(tmp_path / "redis", replicas=3, timeout_ms=1000)
    yield cluster
    cluster.stop()


def manager_over(folder, cluster, storage):
    startup = Manager.usual_startup(storage=storage)
    startup["instance_group"]["cache_config"]["meta_indexer_config"]["meta_storage_backend_config"] \
        = {"storage_type": "redis", "storage_uri": f"{cluster.uri}?wait_replicas=1"}
    return Manager(folder, f"--registry.uri=local://{folder}-registry", startup=startup)


def records_in(cluster):
    """How many there are, in all masters."""
    count = 0
    for i in range(len(cluster.nodes)):
        if b"role:master" in cluster.call(i, "INFO", "replication"):
            answer = cluster.call(i, "EVAL", "return #redis.call('KEYS', ARGV[1])", 0, RECORDS)
            count += int(answer[1:])
    return count


def uris(reply):
    return [l["location_specs"][0]["uri"] for l in reply["locations"]]


class Load:
    """Clients that write and read. Acknowledged writes must be found unchanged; failed writes are
    not retried."""

    def __init__(self, manager, writers=3):
        self.manager, self.stop = manager, threading.Event()
        self.written, self.doubtful, self.errors, self.wrong = {}, set(), 0, []
        self.threads = [threading.Thread(target=self.write, args=(w,)) for w in range(1, writers + 1)]
        self.threads.append(threading.Thread(target=self.read))
        for thread in self.threads:
            thread.start()

    def write(self, worker):
        api = Http(self.manager)
        for i in range(1_000_000):
            if self.stop.is_set():
                return
            keys = [worker * 100_000_000 + i * 10 + k for k in range(10)]
            started = start(api, keys, timeout=2)
            if code(started) != "OK":
                self.errors += 1
                continue
            if i % 5 == 4:  # nobody ends it
                continue
            if code(finish(api, started)) == "OK":
                self.written.update(zip(keys, uris(started)))
            else:
                self.doubtful.update(keys)
                self.errors += 1

    def read(self):
        api = Http(self.manager)
        while not self.stop.is_set():
            known = list(self.written.items())
            if not known:
                continue
            key, uri = random.choice(known)
            reply = locate(api, [key])
            if code(reply) == "OK" and uris(reply) != [uri]:
                self.wrong.append((key, uri, uris(reply)))

    def end(self):
        self.stop.set()
        for thread in self.threads:
            thread.join()


@pytest.mark.parametrize("victim", ["home", "records"])
def test_a_master_is_killed_under_load(tmp_path, cluster, victim):
    """Its replica takes over: what was acknowledged is there, and sums are exact."""
    storage = tmp_path / "nfs"
    manager = manager_over(tmp_path / "one", cluster, storage)
    register(Http(manager))
    load = Load(manager)
    wait_until(lambda: len(load.written) > 200)
    home = cluster.master_of(METADATA)
    killed = home if victim == "home" else (home + 1) % 3
    cluster.kill(killed)
    try:
        wait_until(lambda: load.errors > 0)  # some keys are nobody's now
        wait_until(lambda: b"role:master" in cluster.call(killed + 3, "INFO", "replication"))
        cluster.start(killed)  # so that writes find a replica again
        before = len(load.written)
        wait_until(lambda: len(load.written) > before + 500, 60)
    finally:
        load.end()
    assert not load.wrong
    api = Http(manager)
    for key, uri in load.written.items():
        assert uris(locate(api, [key])) == [uri], key
    wait_until(lambda: group_values(manager)["writing_bytes"] == 0)  # sessions that nobody ends
    now = group_values(manager)
    assert len(load.written) <= now["key_count"] <= len(load.written) + len(load.doubtful)
    assert now["serving_bytes"] == now["key_count"] * 1000
    assert records_in(cluster) == now["key_count"]
    # The same in another process, which reads what the cluster has.
    manager.stop()
    manager.start()
    again = group_values(manager)
    assert (again["key_count"], again["serving_bytes"]) == (now["key_count"], now["serving_bytes"])
    reply = Http(manager).call("meta", "TrimCache", instance_id="i", strategy="TS_REMOVE_ALL_CACHE")
    assert code(reply) == "OK"
    wait_until(lambda: group_values(manager)["serving_bytes"] == 0)
    wait_until(lambda: group_values(manager)["deleting_bytes"] == 0)
    assert group_values(manager)["key_count"] == 0 and records_in(cluster) == 0
    assert [f.name for f in storage.rglob("*") if f.is_file()] == ["~tierce-pool"]
    manager.stop()
