# SPDX-License-Identifier: Apache-2.0
"""Stores that answer garbage, nothing, or other data than was written: the manager neither exits
nor serves missing data, and states why it does not lead."""

import random
import signal
import socket
import threading
import time

import pytest

from manager_process import Http, Manager, Redis, wait_until

SPECS = [{"name": "tp0", "size": 1000}]


def code(reply):
    return reply["header"]["status"]["code"]


def register(api, instance="i"):
    return code(api.call("meta", "RegisterInstance", instance_group="default", instance_id=instance,
                         block_size=4, model_deployment={"model_name": "m", "dtype": "bf16"},
                         location_spec_infos=SPECS))


def start(api, keys):
    return api.call("meta", "StartWriteCache", instance_id="i", block_keys=keys,
                    write_timeout_seconds=30)


def write(api, keys):
    started = start(api, keys)
    if code(started) != "OK":
        return code(started)
    return code(api.call("meta", "FinishWriteCache", instance_id="i",
                         write_session_id=started["write_session_id"],
                         success_blocks={"offset": len(started["locations"])}))


def locate(api, keys):
    return api.call("meta", "GetCacheLocation", instance_id="i", block_keys=keys,
                    query_type="QT_BATCH_GET")


def meta_of(kind, uri):
    return {"storage_type": kind, "storage_uri": uri}


def with_meta(storage, kind, uri):
    startup = Manager.usual_startup(storage=storage)
    startup["instance_group"]["cache_config"]["meta_indexer_config"][
        "meta_storage_backend_config"] = meta_of(kind, uri)
    return startup


def why_not(manager):
    status, body = manager.get("/readyz")
    return None if status == 200 else body.decode()


def read_answer(file):
    """The bytes of one answer of a Redis."""
    answer = file.readline()
    assert answer.endswith(b"\r\n"), answer
    kind, size = answer[:1], answer[1:-2]
    if kind == b"$" and int(size) >= 0:
        answer += file.read(int(size) + 2)
    elif kind == b"*":
        answer += b"".join(read_answer(file) for _ in range(int(size)))
    return answer


def redis_call(redis, *words):
    """One command to a Redis, and its answer."""
    request = b"*%d\r\n" % len(words)
    for word in words:
        word = word if isinstance(word, bytes) else str(word).encode()
        request += b"$%d\r\n%s\r\n" % (len(word), word)
    with socket.create_connection(("127.0.0.1", redis.port), 10) as s:
        s.sendall(request)
        with s.makefile("rb") as file:
            return read_answer(file)


def bulk_strings(answer):
    """The texts of a flat array."""
    parts, at = [], answer.index(b"\r\n") + 2
    while at < len(answer):
        end = answer.index(b"\r\n", at)
        size = int(answer[at + 1:end])
        parts.append(answer[end + 2:end + 2 + size])
        at = end + 4 + size
    return parts


class Impostor:
    """Listens in place of a store, and answers by a script."""

    def __init__(self, answer):
        self.answer = answer
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.kept = []
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            try:
                client = self.listener.accept()[0]
            except OSError:  # closed
                return
            self.kept.append(client)
            threading.Thread(target=self.talk, args=(client,), daemon=True).start()

    def talk(self, client):
        try:
            while client.recv(65536):
                self.answer(client)
        except OSError:
            pass

    def close(self):
        self.listener.close()
        for client in self.kept:
            client.close()


def rubbish(client):
    client.sendall(random.Random(1).randbytes(3000))


def silence(client):
    pass


def half(client):
    client.sendall(b"*1000000000\r\n$5\r\nab")


def ok(client):
    client.sendall(b"+OK\r\n" * 50)


def http_rubbish(client):
    client.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 14\r\n\r\n{\"succeeded\":5")


def http_endless(client):
    client.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n" + b"[" * 100000)


@pytest.mark.parametrize("where", ["registry", "elector", "meta"])
@pytest.mark.parametrize("answer", [rubbish, silence, half, ok])
def test_a_redis_that_is_none(tmp_path, where, answer):
    impostor = Impostor(answer)
    uri = f"redis://127.0.0.1:{impostor.port}"
    # One call for the lease may take a quarter of it, and promotions fail while one is in progress.
    arguments = {"registry": [f"--registry.uri={uri}?cluster_name=c", "--elector.lease=1s"],
                 "elector": [f"--elector.uri={uri}", "--elector.lease=1s"], "meta": []}[where]
    (tmp_path / "nfs").mkdir()
    startup = with_meta(tmp_path / "nfs", "redis", uri) if where == "meta" else None
    manager = Manager(tmp_path / "m", *arguments, startup=startup, ready=False)
    api = Http(manager)
    if where == "meta":
        wait_until(lambda: why_not(manager) is None)
        assert register(api) != "OK"
    else:
        wait_until(lambda: "cannot lead: " in (why_not(manager) or ""), 30)
        assert code(locate(api, [1])) in ("SERVER_NOT_LEADER", "SERVICE_NOT_READY")  # it tries again
    assert manager.get("/livez")[0] == 200
    assert manager.stop() == 0
    impostor.close()


@pytest.mark.parametrize("answer", [rubbish, silence, http_rubbish, http_endless])
def test_an_etcd_that_is_none(tmp_path, answer):
    impostor = Impostor(answer)
    manager = Manager(tmp_path, f"--elector.uri=etcd://127.0.0.1:{impostor.port}", ready=False)
    wait_until(lambda: "cannot lead: " in (why_not(manager) or ""), 30)
    assert manager.get("/livez")[0] == 200
    assert manager.stop() == 0
    impostor.close()


@pytest.fixture
def redis(tmp_path):
    redis = Redis(tmp_path / "redis")
    yield redis
    redis.stop()


def on_redis(folder, redis, storage, *more, ready=True, secret=""):
    at = f"redis://{secret}127.0.0.1:{redis.port}"
    storage.mkdir(exist_ok=True)
    return Manager(folder, f"--registry.uri={at}?cluster_name=c&timeout_ms=20000", *more, ready=ready,
                   startup=with_meta(storage, "redis", f"{at}?timeout_ms=20000"))


def test_a_redis_that_wants_a_password(tmp_path, redis):
    redis_call(redis, "CONFIG", "SET", "requirepass", "right")
    for secret in ("", ":wr0ng-one@"):
        manager = on_redis(tmp_path / f"m{len(secret)}", redis, tmp_path / "nfs", ready=False,
                           secret=secret)
        wait_until(lambda: "cannot lead: " in (why_not(manager) or ""), 30)
        said = why_not(manager) + (manager.folder / "stderr.log").read_text()
        assert "AUTH" in said or "WRONGPASS" in said or "assword" in said, said
        assert "wr0ng" not in said
        assert manager.stop() == 0


def test_of_two_managers_without_an_elector_the_first_stops(tmp_path, redis):
    """Both would lead, and the scrub of each would delete the blocks of the other."""
    arguments = (f"--registry.uri={redis.uri}?cluster_name=c", "--elector.lease=1s")
    first = Manager(tmp_path / "first", *arguments)
    second = Manager(tmp_path / "second", *arguments)
    try:
        said = first.folder / "stderr.log"
        wait_until(lambda: "require elector.uri" in said.read_text())
        status, why = first.get("/readyz")
        assert status == 503 and b"require elector.uri" in why, why
        assert code(Http(first).call("admin", "ScrubStorage", storage_unique_name="nfs_01",
                                     action="SCRUB_START")) == "SERVER_NOT_LEADER"
        assert code(Http(second).call("admin", "AddAccount", user_name="a", password="p")) == "OK"
        first.stop()
        first.start()  # the second one stops now
        assert [a["user_name"] for a in Http(first).call("admin", "ListAccount")["accounts"]] == ["a"]
        wait_until(lambda: second.get("/readyz")[0] == 503)
    finally:
        first.stop()
        second.stop()


def test_a_redis_without_memory(tmp_path, redis):
    manager = on_redis(tmp_path / "m", redis, tmp_path / "nfs")
    api = Http(manager)
    assert register(api) == "OK"
    assert write(api, [1, 2]) == "OK"
    redis_call(redis, "CONFIG", "SET", "maxmemory", "1")
    assert write(api, [3, 4]) != "OK"
    assert code(api.call("meta", "RemoveCache", instance_id="i", block_keys=[1])) != "INVALID_ARGUMENT"
    redis_call(redis, "CONFIG", "SET", "maxmemory", "0")
    wait_until(lambda: write(api, [3, 4]) == "OK")
    got = locate(api, [2, 3, 4])
    assert all(l["location_specs"] for l in got["locations"]), got
    assert manager.stop() == 0


def test_a_redis_that_is_emptied(tmp_path, redis):
    """Its content is lost; from then on answers match its new content."""
    manager = on_redis(tmp_path / "m", redis, tmp_path / "nfs",
                       f"--elector.uri=redis://127.0.0.1:{redis.port}", "--elector.lease=5s",
                       "--elector.interval=50ms")
    api = Http(manager)
    assert register(api) == "OK"
    assert write(api, [1, 2]) == "OK"
    redis_call(redis, "FLUSHALL")
    wait_until(lambda: why_not(manager) is None and register(api) == "OK")

    def is_there():  # or the lease, which has gone too, is found to have gone just now
        got = locate(api, [5, 6]) if write(api, [5, 6]) == "OK" else {}
        return got and code(got) == "OK" and all(l["location_specs"] for l in got["locations"])

    wait_until(is_there)
    assert manager.stop() == 0
    again = on_redis(tmp_path / "m", redis, tmp_path / "nfs", ready=False)
    wait_until(lambda: "cannot lead: " in (why_not(again) or "cannot lead: "), 30)
    assert again.stop() == 0


def use_all(api, keys):
    """Calls that read and change all there is; they may fail, but answer."""
    assert code(locate(api, keys))
    assert code(api.call("meta", "GetCacheMeta", instance_id="i", block_keys=keys))
    assert write(api, [k + 1000 for k in keys])
    assert code(api.call("meta", "RemoveCache", instance_id="i", block_keys=keys[:3]))


def check_places(api, keys):
    """Reported blocks are in a storage. (Where in it, a text of KVCM's has no sum to tell.)"""
    got = locate(api, keys)
    for location in got.get("locations", []):
        for spec in location["location_specs"]:
            assert not spec["uri"] or spec["uri"].startswith("file://nfs_01/"), spec
            assert "/../" not in spec["uri"]


def damage(value, dice):
    how = dice.randrange(4)
    if how == 0 or not value:
        return value[:len(value) // 2]
    if how == 1:
        return dice.randbytes(len(value))
    at = dice.randrange(len(value))
    if how == 2:
        return value[:at] + bytes([value[at] ^ 1 << dice.randrange(8)]) + value[at + 1:]
    return value + value[:at]


@pytest.mark.parametrize("seed", range(6))
def test_damaged_records_in_redis(tmp_path, redis, seed):
    dice, keys = random.Random(seed), list(range(1, 21))
    manager = on_redis(tmp_path / "m", redis, tmp_path / "nfs")
    api = Http(manager)
    assert register(api) == "OK"
    assert write(api, keys) == "OK"
    start(api, [501, 502])  # a session whose note is damaged too
    manager.stop(signal.SIGKILL)
    for name in bulk_strings(redis_call(redis, "KEYS", "*")):
        if b"registry" in name or dice.randrange(3) == 0:
            continue
        if redis_call(redis, "TYPE", name) != b"+hash\r\n":
            continue
        parts = bulk_strings(redis_call(redis, "HGETALL", name))
        field = dice.randrange(len(parts) // 2) * 2
        redis_call(redis, "HSET", name, parts[field], damage(parts[field + 1], dice))
    manager = on_redis(tmp_path / "m", redis, tmp_path / "nfs", ready=False)
    wait_until(lambda: why_not(manager) is None or "cannot lead: " in (why_not(manager) or ""), 30)
    if why_not(manager) is None:
        api = Http(manager)
        check_places(api, keys)
        use_all(api, keys)
    assert manager.stop() == 0


@pytest.mark.parametrize("seed", range(8))
def test_damaged_files_of_rocksdb(tmp_path, seed):
    dice, keys = random.Random(seed), list(range(1, 21))
    storage, folder = tmp_path / "nfs", tmp_path / "rocks"
    storage.mkdir()
    arguments = [f"--registry.uri=local://{tmp_path}/registry"]
    startup = with_meta(storage, "rocksdb", str(folder))
    manager = Manager(tmp_path / "m", *arguments, startup=startup)
    api = Http(manager)
    assert register(api) == "OK"
    assert write(api, keys) == "OK"
    start(api, [501, 502])
    manager.stop(signal.SIGKILL if seed % 2 else signal.SIGTERM)
    files = [p for p in sorted(folder.rglob("*")) if p.is_file() and p.stat().st_size > 0
             and p.suffix != ".old" and "LOG" not in p.name]
    assert files
    victim = files[seed % len(files)]
    victim.write_bytes(damage(victim.read_bytes(), dice))
    manager = Manager(tmp_path / "m", *arguments, startup=startup, ready=False)
    wait_until(lambda: why_not(manager) is None or "cannot lead: " in (why_not(manager) or ""), 30)
    if why_not(manager) is None:
        api = Http(manager)
        check_places(api, keys)
        use_all(api, keys)
    assert manager.stop() == 0


def test_two_managers_on_one_rocksdb(tmp_path):
    storage = tmp_path / "nfs"
    storage.mkdir()
    startup = with_meta(storage, "rocksdb", str(tmp_path / "rocks"))
    first = Manager(tmp_path / "a", startup=startup)
    api = Http(first)
    assert register(api) == "OK"
    assert write(api, [1]) == "OK"
    second = Manager(tmp_path / "b", startup=startup, ready=False)
    wait_until(lambda: "cannot lead: " in (why_not(second) or "cannot lead: "))  # or it is ready
    if why_not(second) is None:
        assert register(Http(second)) != "OK"
    assert code(locate(api, [1])) == "OK"
    assert second.stop() == 0
    assert first.stop() == 0


def test_a_thousand_connections(tmp_path):
    manager = Manager(tmp_path)
    idle = []
    for i in range(1000):
        port = manager.ports[("grpc", "http")[i % 2]]
        idle.append(socket.create_connection(("127.0.0.1", port), 10))
    api = Http(manager)
    assert register(api) == "OK"
    assert write(api, [1, 2]) == "OK"
    for s in idle[:500]:
        s.close()
    assert code(locate(api, [1])) == "OK"
    assert manager.stop() == 0
    for s in idle[500:]:
        s.close()
