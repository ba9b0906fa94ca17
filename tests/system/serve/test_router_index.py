# SPDX-License-Identifier: Apache-2.0
"""tierce router-index, as a process, with publishers of pyzmq: lost frames, restarts, tenants."""

import ctypes
import hashlib
import http.client
import json
import re
import signal
import subprocess
import time
from array import array

import msgspec
import pytest
import zmq

from engine_like import Engine as EngineLike
from engine_like import Proxy
from kv_publisher import Publisher
from manager_process import executable, free_port
from node_process import Node
from serve_process import make_certificates

SECONDS = 60
TOKENS = list(range(1, 41))


class Router:
    def __init__(self, folder, *arguments):
        self.log = folder / "router.log"
        with open(self.log, "wb") as out:
            self.process = subprocess.Popen(
                [str(executable()), "router-index", "--listen.port=0", "--interval.check=100ms",
                 "--interval.retry=50ms", *arguments], stdout=out, stderr=out)
        self.wait(lambda: "listening on" in self.log.read_text() or self.process.poll() is not None)
        self.port = int(re.search(r"listening on .*HTTP (\d+)", self.log.read_text()).group(1))

    @staticmethod
    def wait(is_true, about=lambda: ""):
        until = time.monotonic() + SECONDS
        while not is_true():
            assert time.monotonic() < until, about()
            time.sleep(0.01)

    token = None

    def ask(self, path, body=None, token=None):
        token = token or self.token
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=SECONDS)
        connection.request("GET" if body is None else "POST", path,
                           None if body is None else json.dumps(body),
                           {"Authorization": f"Bearer {token}"} if token else {})
        response = connection.getresponse()
        text = response.read().decode()
        connection.close()
        is_json = response.getheader("Content-Type", "").startswith("application/json")
        return response.status, json.loads(text) if is_json else text

    def register(self, instance, publisher, token=None, **more):
        body = {"instance_id": instance, "endpoint": publisher.endpoint, "model_name": "m",
                "block_size": 4, "dp_rank": 0, **more}
        if publisher.replay_endpoint:
            body["replay_endpoint"] = publisher.replay_endpoint
        if publisher.http is not None:
            body["snapshot_url"] = publisher.snapshot_url
        assert self.ask("/register", body, token) == (201, {"status": "ok"})

    def worker(self, instance):
        return next(w for w in self.ask("/workers")[1] if w["instance_id"] == str(instance))

    def blocks(self, instance):
        pages, start = [], 0
        while start is not None:
            page = self.ask(f"/dump?instance_id={instance}&from={start}")[1]
            pages += page["blocks"]
            start = page.get("next")
        return {b["hash"]: {m.upper() for m in b["media"]} for b in pages}

    def query(self, tokens=TOKENS):
        return self.ask("/query", {"model_name": "m", "token_ids": tokens})[1]["instances"]

    def equals(self, instance, publisher):
        def is_equal():
            if not publisher.has_replay:
                publisher.send()  # shows that the one before was lost
            return self.worker(instance)["exact"] and self.blocks(instance) == {
                h: media for h, (media, _, _) in publisher.held.items()}

        self.wait(is_equal)

    def end(self):
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(SECONDS) == 0, self.log.read_text()


@pytest.fixture
def router(tmp_path):
    out = Router(tmp_path)
    yield out
    out.end()


def test_lost_frames_and_restarts(router):
    """A publisher with replay as vLLM, one with a snapshot only, and both: always the same set."""
    publishers = {1: Publisher(), 2: Publisher(replay=False, snapshot=True),
                  3: Publisher(snapshot=True, arrays=True)}
    for instance, p in publishers.items():
        p.send(p.clear())
        router.register(instance, p)
        router.wait(lambda: router.worker(instance)["status"] == "active")
    for life in range(2):
        for instance, p in publishers.items():
            p.send(p.store([10, 11, 12], None, TOKENS[:12]))
            p.send(p.store([13], 12, TOKENS[12:16]), lost=True)
            p.send(p.remove([12]), p.store([10, 11, 12], None, TOKENS[:12], "CPU"), lost=True)
            p.send(p.store([2**64 - 1], None, [99, 98, 97, 96], "DISK"))
        for instance, p in publishers.items():
            router.equals(instance, p)
            # What is lost at the end is noticed where there is a replay.
            p.send(p.store([77], None, [5, 5, 5, life]), lost=p.has_replay)
            router.equals(instance, p)
        found = router.query()
        assert set(found) == {"1", "2", "3"}
        for answer in found.values():
            assert answer["exact"] and answer["longest_matched"] == 16, answer
            assert (answer["gpu"], answer["cpu"], answer["disk"]) == (8, 16, 16)
            assert answer["alone"] == {"gpu": 8, "cpu": 12, "disk": 0}
        for p in publishers.values():
            p.kill()
            p.start()
            p.send(p.clear())
    for instance, p in publishers.items():
        router.equals(instance, p)
    assert router.query() == {}
    for p in publishers.values():
        p.close()


def test_no_recovery(router):
    """A publisher with neither replay nor snapshot is inexact after a gap, until it clears; one that
    is killed holds nothing."""
    p = Publisher(replay=False)
    router.register("engine", p, dp_rank=3)
    router.wait(lambda: router.worker("engine")["status"] == "active")
    blocks = lambda: router.ask("/dump?instance_id=engine&dp_rank=3")[1]["blocks"]
    p.send(p.clear())
    router.wait(lambda: router.worker("engine")["exact"])
    p.send(p.store([1], None, TOKENS[:4]))
    p.send(p.store([2], 1, TOKENS[4:8]), lost=True)
    p.send(p.store([3], 2, TOKENS[8:12]))
    router.wait(lambda: not router.worker("engine")["exact"] and len(blocks()) == 1)
    p.send(p.clear(), p.store([1], None, TOKENS[:4]))
    router.wait(lambda: router.worker("engine")["exact"])
    assert router.ask("/query_by_hash", {"model_name": "m", "block_hashes": [1]})[1]["scores"] == \
        {"engine": {"3": 4}}
    standard = blocks()[0]["standard"]
    answer = router.ask("/query_by_hash", {"model": "m", "seq_hashes": [standard]})[1]
    assert answer["default"]["engine"]["GPU"] == 4 and answer["default"]["engine"]["DP"] == {"3": 4}
    assert router.ask("/unregister", {"instance_id": "engine"}) == (200, {"status": "ok"})
    assert router.ask("/workers")[1] == []
    p.close()


@pytest.mark.parametrize("path, body, status, why", [
    ("/register", {"instance_id": 1, "endpoint": "http://a", "model_name": "m"}, 400, "tcp://"),
    ("/register", {"endpoint": "tcp://127.0.0.1:1", "model_name": "m"}, 400, "instance_id"),
    ("/register", {"instance_id": 1, "endpoint": "tcp://nowhere", "model_name": "m"}, 400, "tcp://"),
    ("/register", {"instance_id": 1, "endpoint": "tcp://127.0.0.1:1", "model_name": "m",
                   "snapshot_url": "file:///etc"}, 400, "snapshot_url"),
    ("/register", {"instance_id": 1, "endpoint": "tcp://127.0.0.1:1", "model_name": "m", "server_key": "a" * 39}, 400,
     "server_key must be a public key"),
    ("/register", {"instance_id": 1, "endpoint": "tcp://127.0.0.1:1", "model_name": "m", "server_key": "a" * 40}, 400,
     "curve.key_file has no key"),
    ("/query", {"model_name": "m", "token_ids": []}, 400, "token_ids"),
    ("/query", {"model_name": "m", "token_ids": [2**32]}, 400, "token_ids"),
    ("/query", {"model_name": "m", "token_ids": [1], "cache_salt": "a"}, 400, "cache_salt"),
    ("/query", {"token_ids": [1]}, 400, "model_name"),
    ("/query", {"model_name": "other", "token_ids": [1]}, 404, "model"),
    ("/query", [1], 400, "JSON object"),
    ("/unregister", {"instance_id": 9}, 404, "publisher")])
def test_refused(refusing, path, body, status, why):
    answer = refusing.ask(path, body)
    assert answer[0] == status and why in answer[1]["error"], answer


@pytest.fixture(scope="module")
def refusing(tmp_path_factory):
    out = Router(tmp_path_factory.mktemp("refusing"))
    yield out
    out.end()


@pytest.mark.parametrize("name, path, most", [("token_ids", "/query", 16384), ("seq_hashes", "/query_by_hash", 4096),
                                              ("block_hashes", "/query_by_hash", 4096)])
def test_long_queries_go_to_a_worker(refusing, name, path, most):
    """Also those whose numbers are so short that the body is a usual one."""
    deferred = lambda: int(re.search(r"^tierce_router_deferred_queries_total (\d+)$", refusing.ask("/metrics")[1], re.M).group(1))
    for count, is_deferred in ((most, 0), (most + 1, 1)):
        before = deferred()
        assert refusing.ask(path, {"model_name": "m", name: [1] * count})[0] == 404
        assert deferred() == before + is_deferred
    assert refusing.ask(path, {"model_name": "m", name: [1] * most, "x": "a" * 65536})[0] == 404
    assert deferred() == before + 2


def test_tenants(tmp_path):
    """Tokens may read or register; a tenant sees its publishers only. SIGHUP reads new tokens."""
    file = tmp_path / "tokens"

    def write(**tokens):
        lines = [f"{role} {name} {hashlib.sha256(name.encode()).hexdigest()} {tenant}"
                 for name, (role, tenant) in tokens.items()]
        file.write_text("\n".join(lines) + "\n")
        file.chmod(0o600)

    write(a=("admin", "one"), b=("read", "two"), c=("admin", ""))
    router = Router(tmp_path, f"--auth.token_file={file}", "--limit.publishers=1")
    p = Publisher()
    p.send(p.store([1], None, TOKENS[:4]))
    query = {"model_name": "m", "token_ids": TOKENS}
    assert router.ask("/workers")[0] == 401
    assert router.ask("/register", {}, "b")[0] == 403
    assert router.ask("/query", {**query, "tenant_id": "two"}, "a")[0] == 403
    router.register(1, p, token="a")
    status, text = router.ask("/register", {"instance_id": 2, "endpoint": p.endpoint, "model_name": "m", "block_size": 4}, "c")
    assert status == 503 and "limit.publishers" in str(text)
    router.wait(lambda: router.ask("/query", query, "a")[1]["instances"] != {})
    assert router.ask("/query", query, "b")[0] == 404
    assert router.ask("/workers", token="b")[1] == []
    assert router.ask("/query", query, "c")[0] == 404
    assert router.ask("/query", {**query, "tenant_id": "one"}, "c")[1]["scores"] == {"1": {"0": 4}}
    assert router.ask("/dump?instance_id=1", token="b")[0] == 404
    write(d=("read", "one"))
    router.process.send_signal(signal.SIGHUP)
    router.wait(lambda: router.ask("/workers", token="d")[0] == 200)
    assert router.ask("/workers", token="a")[0] == 401
    assert router.ask("/health")[0] == 200
    assert "tierce_router_publishers 1\n" in router.ask("/metrics", token="d")[1]
    router.end()
    p.close()


def test_publishers_file(tmp_path):
    p = Publisher()
    p.send(p.store([1, 2], None, TOKENS[:8]))
    file = tmp_path / "publishers.json"
    file.write_text(json.dumps([{"instance_id": 5, "model_name": "m", "endpoint": p.endpoint,
                                 "replay_endpoint": p.replay_endpoint}]))
    router = Router(tmp_path, f"--publishers.file={file}")
    router.equals(5, p)
    assert router.query()["5"]["gpu"] == 8
    router.end()
    p.close()
    file.write_text('[{"instance_id": 5}]')
    out = subprocess.run([str(executable()), "router-index", f"--publishers.file={file}"],
                         capture_output=True, text=True, timeout=SECONDS, check=False)
    assert out.returncode == 2 and "publisher 0: model_name" in out.stderr, out


def test_a_token_is_not_sent_to_any_url(tmp_path):
    """Without auth.token_file every program of the host may register a URL: it receives no token of a publisher, also in its place."""
    sent, file = tmp_path / "sent", tmp_path / "publishers.json"
    sent.write_text("secret\n")
    sent.chmod(0o600)
    out = subprocess.run([str(executable()), "router-index", "--listen.port=0", f"--snapshot.token_file={sent}"],
                         capture_output=True, text=True, timeout=SECONDS, check=False)
    assert out.returncode == 2 and "snapshot.token_file requires auth.token_file or publishers.file" in out.stderr, out
    ours, theirs = Publisher(replay=False, snapshot=True), Publisher(replay=False, snapshot=True)
    file.write_text(json.dumps([{"instance_id": 1, "model_name": "m", "endpoint": ours.endpoint, "snapshot_url": ours.snapshot_url}]))
    router = Router(tmp_path, f"--snapshot.token_file={sent}", f"--publishers.file={file}")
    router.register(2, theirs)
    for p in ours, theirs:
        p.send(p.store([1], None, TOKENS[:4]))
    router.equals(1, ours)
    router.equals(2, theirs)
    router.register(1, theirs)
    router.equals(1, theirs)
    assert set(ours.shown) == {"Bearer secret"} and set(theirs.shown) == {None}
    router.end()
    for p in ours, theirs:
        p.close()


# ---- a store of Tierce as publisher

CHUNKS, CHUNK_TOKENS, CELL = 16, 16, 64 << 10


class Store:
    def __init__(self, folder, scheme="http", **parameters):
        from tierce import _core as core

        self.parameters, self.reader = parameters, None  # a reader's keys and the store's public one

        self.core, self.disk = core, folder / "disk"
        self.ports = [free_port() for _ in range(3)]
        self.endpoint, self.replay_endpoint = (f"tcp://127.0.0.1:{port}" for port in self.ports[:2])
        self.http, self.snapshot_url = True, f"{scheme}://127.0.0.1:{self.ports[2]}/kv_events/snapshot"
        self.memory, self.blocks = ctypes.create_string_buffer(CHUNKS * CELL), array("i", range(CHUNKS))

    def open(self):
        self.open_engine({"memory.size": "4MiB", "disk.path": str(self.disk), "disk.size": "64MiB", "kv_events.endpoint": self.endpoint,
                          "kv_events.replay_endpoint": self.replay_endpoint, "kv_events.snapshot_port": str(self.ports[2]),
                          **self.parameters})

    def open_client(self):
        """Of a node, which publishes."""
        self.open_engine(self.parameters)

    def open_engine(self, parameters):
        self.engine = self.core.Engine.open(None, parameters)
        self.view = self.engine.view({
            "weights": "aa", "model": "m", "kv_dtype": "float32", "quantization": "", "layout": "l", "layer_count": 1,
            "cell_bytes": [CELL], "block_tokens": CHUNK_TOKENS, "chunk_blocks": 1, "algo": "sha256"})
        self.view.set_paged([ctypes.addressof(self.memory)], [CELL], CHUNKS)

    def chain(self, token, chunks):
        chain = self.view.chain()
        chain.append(array("i", [token]) * (chunks * CHUNK_TOKENS))
        return chain

    def store(self, token, chunks=CHUNKS):
        store = self.view.store_begin(self.chain(token, chunks), chunks, self.blocks)
        store.layer(0)
        assert store.end() == chunks and self.engine.flush(60_000)

    def load(self, token, chunks=CHUNKS):
        """The origin of each block; 0: it was not loaded."""
        load = self.view.load_begin(self.chain(token, chunks), 0, chunks, self.blocks)
        load.layer(0)
        return load.end()

    def close(self):
        del self.view
        self.engine.close()

    def held(self):
        """By all batches of this publisher, which is younger than its replay buffer is long: {hash: media}."""
        with zmq.Context() as context, context.socket(zmq.DEALER) as dealer:
            dealer.rcvtimeo = SECONDS * 1000
            if self.reader is not None:
                dealer.curve_secretkey, dealer.curve_publickey, dealer.curve_serverkey = self.reader
            dealer.connect(self.replay_endpoint)
            dealer.send_multipart([b"", bytes(8)])
            held = {}
            while (answer := dealer.recv_multipart())[2] != b"\xff" * 8:
                for event in msgspec.msgpack.decode(answer[3])[1]:
                    for h in event.get("block_hashes", ()):
                        if event["type"] == "BlockStored":
                            held.setdefault(h, set()).add(event["medium"])
                        else:
                            held[h].discard(event["medium"])
                    if event["type"] == "AllBlocksCleared":
                        held = {}
        return {h: media for h, media in held.items() if media}


def test_a_store_of_tierce(router, tmp_path):
    """Chunks in memory and on disk, evictions, and an engine that starts again with its disk."""
    store = Store(tmp_path)
    store.open()
    router.register(1, store, block_size=CHUNK_TOKENS)

    def is_equal():
        held, stats = store.held(), store.engine.stats()
        tiers = [sum(medium in media for media in held.values()) for medium in ("CPU", "DISK")]
        return (tiers == [stats["memory_chunks_now"], stats["disk_chunks_now"]] and
                router.worker(1)["exact"] and router.blocks(1) == held)

    for token in range(1, 9):  # memory has room for three
        store.store(token)
    router.wait(is_equal)
    assert {len(media) for media in store.held().values()} == {1, 2}
    store.close()
    store.open()
    router.wait(is_equal)
    assert set(map(frozenset, store.held().values())) == {frozenset({"DISK"})}
    store.store(99)
    router.wait(is_equal)
    store.close()


def prompt(token, chunks=CHUNKS):
    """The tokens that Store.store stores."""
    return [token] * (chunks * CHUNK_TOKENS)


def longest(router, tokens):
    answer = router.ask("/query", {"model_name": "m", "token_ids": tokens})[1]
    return {instance: found["longest_matched"] for instance, found in answer.get("instances", {}).items()}


def test_tokens_of_a_node_and_an_engine(router, tmp_path):
    """Their events have tokens, so /query finds their chunks and `tierce proxy` routes by them: also what a client of the node
    stores. After a restart, the disk's chunks have tokens again once a request loads them."""
    lone, shared = Store(tmp_path), Store(tmp_path)
    events = {"kv_events.endpoint": shared.endpoint, "kv_events.replay_endpoint": shared.replay_endpoint,
              "kv_events.snapshot_port": shared.ports[2]}
    (tmp_path / "node").mkdir()

    def start_node():
        return Node(tmp_path / "node", f"--listen.native={tmp_path}/node.sock", "--listen.resp=false", "--listen.lm=false",
                    f"--disk.path={tmp_path}/node/disk", "--disk.size=64MiB", *(f"--{name}={value}" for name, value in events.items()))

    node = start_node()
    shared.parameters = {"node.socket": f"{tmp_path}/node.sock", "timeout.lookup": "10s"}  # a late node would be a miss
    for instance, store in ((1, lone), (2, shared)):
        store.open() if store is lone else store.open_client()
        router.register(instance, store, block_size=CHUNK_TOKENS)
    lone.store(1)
    shared.store(2)
    lone.store(3, CHUNKS // 4)
    shared.store(3, CHUNKS // 2)
    whole, part = CHUNKS * CHUNK_TOKENS, CHUNKS * CHUNK_TOKENS // 2
    router.wait(lambda: longest(router, prompt(1)) == {"1": whole} and longest(router, prompt(2)) == {"2": whole} and
                longest(router, prompt(3)) == {"1": part // 2, "2": part})
    engines = [EngineLike("one"), EngineLike("two")]
    proxy = Proxy(tmp_path, f"--router.url=http://127.0.0.1:{router.port}",
                  decode=[f"{engine.url}#{number}" for number, engine in enumerate(engines, 1)])
    for token, name in ((1, b"one"), (2, b"two"), (3, b"two")) * 3:
        status, data = proxy.complete(prompt=prompt(token))
        assert status == 200 and name in data
    assert proxy.metric("router_choices") == 9 and proxy.metric("router_failures") == 0
    proxy.end()
    node.end()
    node = start_node()
    router.wait(lambda: router.worker(2)["restarts"] > 0 and router.worker(2)["exact"] and router.worker(2)["blocks"] == CHUNKS * 3 // 2,
                lambda: router.worker(2))
    assert longest(router, prompt(2)) == {}
    router.wait(lambda: all(shared.load(2)))
    router.wait(lambda: longest(router, prompt(2)) == {"2": whole})
    for store in lone, shared:
        store.close()
    node.end()


def test_a_protected_snapshot(tmp_path):
    """A store whose stream is encrypted, and whose snapshots require a token and have a certificate of a private authority:
    each log line names the parameter that is missing, and keys, tokens and authorities are read again."""
    make_certificates(tmp_path)
    tokens, sent, trusted = tmp_path / "tokens", tmp_path / "sent", tmp_path / "trusted.pem"

    def write(path, text):
        path.write_text(text)
        path.chmod(0o600)

    def keygen(name):
        return subprocess.run([executable(), "keygen", tmp_path / name], check=True, capture_output=True, text=True).stdout

    public, index = keygen("store.key").strip(), keygen("index.key")
    readers = tmp_path / "readers"
    write(readers, f"read another {public}\n")
    write(tokens, f"read index {hashlib.sha256(b'secret').hexdigest()}\n")
    write(sent, "secret other-tenant\n")
    access = tmp_path / "access"
    write(access, f"admin a {hashlib.sha256(b'a').hexdigest()}\n")
    trusted.write_bytes((tmp_path / "other.pem").read_bytes())
    store = Store(tmp_path, "https", **{
        "kv_events.token_file": str(tokens), "kv_events.certificate": str(tmp_path / "server.pem"),
        "kv_events.key": str(tmp_path / "server.key"),
        "kv_events.curve_key_file": str(tmp_path / "store.key"), "kv_events.curve_readers_file": str(readers)})
    store.reader = [text.strip().encode() for text in ((tmp_path / "index.key").read_text(), index, public)]
    store.open()
    store.store(1)
    replay, store.replay_endpoint = store.replay_endpoint, None  # so that only a snapshot can help
    router = Router(tmp_path, f"--snapshot.token_file={sent}", f"--snapshot.ca_file={trusted}",
                    f"--curve.key_file={tmp_path / 'index.key'}", f"--auth.token_file={access}")
    router.token = "a"

    def has_failed(*words):
        lines = [line for line in router.log.read_text().splitlines() if "event=snapshot_failed" in line]
        return any(all(word in line for word in words) for line in lines)

    router.register(1, store, block_size=CHUNK_TOKENS, server_key=public)
    router.wait(lambda: "event=publisher_refused" in router.log.read_text())
    assert not router.worker(1)["exact"] and router.worker(1)["server_key"] == public
    write(readers, f"read index {index}")
    router.wait(lambda: has_failed("set snapshot.ca_file"))
    trusted.write_bytes((tmp_path / "ca.pem").read_bytes())
    router.wait(lambda: has_failed("status=401", "set snapshot.token_file"))
    assert not router.worker(1)["exact"] and "secret" not in router.log.read_text()
    write(sent, "secret\nsecret\n")
    router.process.send_signal(signal.SIGHUP)
    router.wait(lambda: "line 2 is the second one" in router.log.read_text())
    write(sent, "secret\n")
    router.process.send_signal(signal.SIGHUP)
    store.replay_endpoint = replay
    router.wait(lambda: router.worker(1)["exact"] and router.blocks(1) == store.held())
    assert len(store.held()) == CHUNKS
    router.end()
    store.close()
