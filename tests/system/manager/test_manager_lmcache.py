# SPDX-License-Identifier: Apache-2.0
"""LMCache's workers at a manager: their ZMQ messages, as msgspec writes them, and the HTTP API of their controller."""

import hashlib
import json
import threading
from typing import Optional, Union

import pytest

from manager_process import Http, Manager, free_port, wait_until

msgspec = pytest.importorskip("msgspec")
zmq = pytest.importorskip("zmq")

MEMORY = "LocalCPUBackend"
TOKENS = {"all": ("admin", "*"), "chat": ("read,write", "chat"), "code": ("admin", "code"), "boss": ("admin", "chat")}


class Message(msgspec.Struct, tag=True):
    """LMCache's messages: a map whose member "type" is the class."""


class RegisterMsg(Message):
    instance_id: str
    worker_id: int
    ip: str
    port: int
    peer_init_url: Optional[str]


class HeartbeatMsg(RegisterMsg, tag=True):
    pass


class DeRegisterMsg(Message):
    instance_id: str
    worker_id: int
    ip: str
    port: int


class KVOpEvent(msgspec.Struct):
    op_type: str
    key: int
    seq_num: int


class BatchedKVOperationMsg(Message):
    instance_id: str
    worker_id: int
    location: str
    operations: list[KVOpEvent]


class BatchedP2PLookupMsg(Message):
    hashes: list[int]
    instance_id: str
    worker_id: int


class FullSyncStartMsg(Message):
    instance_id: str
    worker_id: int
    location: str
    sync_id: str
    total_keys: int
    batch_count: int


class FullSyncBatchMsg(Message):
    instance_id: str
    worker_id: int
    location: str
    sync_id: str
    batch_id: int
    keys: list[int]


class FullSyncEndMsg(Message):
    instance_id: str
    worker_id: int
    location: str
    sync_id: str
    actual_total_keys: int


class FullSyncStatusMsg(Message):
    instance_id: str
    worker_id: int
    sync_id: str


class RegisterRetMsg(Message):
    extra_config: dict[str, str] = {}


class FullSyncCommand(msgspec.Struct, tag_field="command_type", tag="full_sync"):
    reason: Optional[str] = None
    args: Optional[dict] = None


class HeartbeatRetMsg(Message):
    commands: list[FullSyncCommand] = []


class BatchedP2PLookupRetMsg(Message):
    layout_info: list[tuple[str, str, int, str]]


class FullSyncStartRetMsg(Message):
    sync_id: str
    accepted: bool
    error_msg: Optional[str] = None


class FullSyncStatusRetMsg(Message):
    sync_id: str
    is_complete: bool
    global_progress: float
    can_exit_freeze: bool
    missing_batches: list[int] = []


class ErrorMsg(Message):
    error: str


class ClearWorkerMsg(Message):
    worker_event_id: str
    location: str


class PinWorkerMsg(Message):
    worker_event_id: str
    location: str
    tokens: list[int]


class CompressWorkerMsg(Message):
    worker_event_id: str
    method: str
    location: str
    tokens: Optional[list[int]] = None


class MoveWorkerMsg(Message):
    worker_event_id: str
    old_position: str
    new_position: tuple[str, str]
    tokens: Optional[list[int]] = None
    copy: Optional[bool] = True


class HealthWorkerMsg(Message):
    worker_event_id: str


class ClearWorkerRetMsg(Message):
    num_tokens: int


class PinWorkerRetMsg(Message):
    num_tokens: int


class CompressWorkerRetMsg(Message):
    num_tokens: int


class MoveWorkerRetMsg(Message):
    num_tokens: int


class HealthWorkerRetMsg(Message):
    error_code: int


ANSWERS = Union[RegisterRetMsg, HeartbeatRetMsg, BatchedP2PLookupRetMsg, FullSyncStartRetMsg, FullSyncStatusRetMsg,
                ErrorMsg]
ORDERS = Union[ClearWorkerMsg, PinWorkerMsg, CompressWorkerMsg, MoveWorkerMsg, HealthWorkerMsg]


class Controller:
    """A manager with LMCache's ports, and the sockets of a worker."""

    def __init__(self, folder, *arguments):
        self.ports = {name: free_port() for name in ("pull", "reply", "heartbeat", "http")}
        self.manager = Manager(folder, *(f"--lmcache.{name}_port={port}" for name, port in self.ports.items()),
                               "--lmcache.group=chat", "--lmcache.command_timeout=1500ms", *arguments)
        self.context = zmq.Context()
        self.push = self.connect(zmq.PUSH, "pull")
        self.dealer = self.connect(zmq.DEALER, "reply")
        self.beats = self.connect(zmq.DEALER, "heartbeat")
        self.workers = []

    def connect(self, kind, port):
        socket = self.context.socket(kind)
        socket.linger = 0
        socket.rcvtimeo = socket.sndtimeo = 30000
        socket.connect(f"tcp://127.0.0.1:{self.ports[port]}")
        return socket

    def send(self, *messages):
        self.push.send_multipart([m if isinstance(m, bytes) else msgspec.msgpack.encode(m) for m in messages])

    def ask(self, message, socket=None):
        socket = socket or self.dealer
        socket.send_multipart([b"", message if isinstance(message, bytes) else msgspec.msgpack.encode(message)])
        empty, answer = socket.recv_multipart()
        assert empty == b""
        return msgspec.msgpack.decode(answer, type=ANSWERS)

    def beat(self, instance, worker):
        return self.ask(HeartbeatMsg(instance, worker, "127.0.0.1", 1, None), self.beats).commands

    def http(self, path, body=None, token="all"):
        status, data = Http(self.manager, {"Authorization": f"Bearer {token}"}).raw(
            self.ports["http"], path, None if body is None else json.dumps(body), "GET" if body is None else "POST")
        return status, json.loads(data) if data[:1] in b"{[" else data

    def close(self):
        for worker in self.workers:
            worker.close()
        self.context.destroy(linger=0)
        assert self.manager.stop() == 0


class Worker:
    """A worker that registers, reports, and answers orders with `answer`, or not at all."""

    def __init__(self, controller, instance, worker, peer=None, answer=None):
        self.controller, self.instance, self.worker, self.orders = controller, instance, worker, []
        self.numbers, self.answer = {}, answer
        self.socket = controller.context.socket(zmq.REP)
        self.socket.linger = 0
        self.port = self.socket.bind_to_random_port("tcp://127.0.0.1")
        self.stop = controller.context.socket(zmq.PAIR)
        self.stop.bind(f"inproc://{id(self)}")
        self.thread = threading.Thread(target=self.serve)
        self.thread.start()
        controller.workers.append(self)
        got = controller.ask(RegisterMsg(instance, worker, "127.0.0.1", self.port, peer))
        assert got.extra_config == {"heartbeat_url": f"127.0.0.1:{controller.ports['heartbeat']}"}

    def serve(self):
        stop = self.controller.context.socket(zmq.PAIR)
        stop.connect(f"inproc://{id(self)}")
        poller = zmq.Poller()
        poller.register(stop, zmq.POLLIN)
        poller.register(self.socket, zmq.POLLIN)
        while stop not in (ready := dict(poller.poll())):
            if self.socket in ready:
                self.orders.append(msgspec.msgpack.decode(self.socket.recv(), type=ORDERS))
                if self.answer is None:
                    poller.unregister(self.socket)  # it says nothing more
                else:
                    self.socket.send(msgspec.msgpack.encode(self.answer))
        stop.close(linger=0)
        self.socket.close(linger=0)

    def close(self):
        self.stop.send(b"")
        self.thread.join()
        self.stop.close(linger=0)

    def change(self, kind, keys, location=MEMORY, gap=0):
        number = self.numbers.get(location, 0) + gap
        operations = [KVOpEvent(kind, key, number + i) for i, key in enumerate(keys)]
        self.numbers[location] = number + len(operations)
        self.controller.send(BatchedKVOperationMsg(self.instance, self.worker, location, operations))


@pytest.fixture(scope="module")
def controller(tmp_path_factory):
    folder = tmp_path_factory.mktemp("lmcache")
    tokens = folder / "tokens"
    tokens.write_text("".join(f"{roles} {name} {hashlib.sha256(name.encode()).hexdigest()} {scope}\n"
                              for name, (roles, scope) in TOKENS.items()))
    tokens.chmod(0o600)
    controller = Controller(folder / "m", "--auth.required=true", f"--auth.token_file={tokens}")
    yield controller
    controller.close()


def prefix(controller, hashes, asker=("asker", 0)):
    """[instance, location, chunks, peer]."""
    return controller.ask(BatchedP2PLookupMsg(hashes, *asker)).layout_info


NOBODY = [("", "", 0, "")]


def test_reports_and_lookups(controller):
    a = Worker(controller, "a", 0, "peer-a:1")
    b = Worker(controller, "b", 0, "peer-b:1")
    keys = [-7, 2**64 - 1, 3, 4, 5]
    assert prefix(controller, keys) == NOBODY
    a.change("admit", keys[:2])
    b.change("admit", keys)
    b.change("evict", [5])
    wait_until(lambda: prefix(controller, keys) == [("b", MEMORY, 4, "peer-b:1")])
    assert prefix(controller, keys, ("b", 0)) == [("a", MEMORY, 2, "peer-a:1")]
    # Several messages in one send, one of them JSON.
    controller.send(json.dumps({"type": "BatchedKVOperationMsg", "instance_id": "a", "worker_id": 0,
                                "location": "LocalDiskBackend",
                                "operations": [{"op_type": "admit", "key": 100, "seq_num": 0}]}).encode(),
                    DeRegisterMsg("b", 0, "127.0.0.1", 1))
    wait_until(lambda: prefix(controller, keys) == [("a", MEMORY, 2, "peer-a:1")])
    assert prefix(controller, [100]) == [("a", "LocalDiskBackend", 1, "peer-a:1")]
    status, workers = controller.http("/controller/workers")
    assert status == 200 and workers["total_count"] == 1
    assert workers["workers"][0]["key_count"] == 3 and workers["workers"][0]["port"] == a.port
    controller.send(DeRegisterMsg("a", 0, "127.0.0.1", 1))
    wait_until(lambda: controller.http("/controller/key-stats")[1]["total_worker_count"] == 0)


def test_contents_after_a_gap(controller):
    worker = Worker(controller, "gap", 0, "peer:1")
    worker.change("admit", [1, 2])
    worker.change("admit", [3], gap=1)
    wait_until(lambda: [c.reason for c in controller.beat("gap", 0)] == ["sequence_gap"])
    name = ("gap", 0)
    assert controller.ask(FullSyncStartMsg(*name, MEMORY, "s", 3, 2)).accepted
    controller.send(FullSyncBatchMsg(*name, MEMORY, "s", 1, [13]), FullSyncEndMsg(*name, MEMORY, "s", 3))

    def status():
        return controller.ask(FullSyncStatusMsg(*name, "s"))
    wait_until(lambda: status().missing_batches == [0])
    assert not status().is_complete and not status().can_exit_freeze
    assert prefix(controller, [1, 2, 3])[0][2] == 3  # the earlier contents, until the new ones are complete
    controller.send(FullSyncBatchMsg(*name, MEMORY, "s", 0, [11, 12]), FullSyncEndMsg(*name, MEMORY, "s", 3))
    wait_until(lambda: status().is_complete)
    assert status().can_exit_freeze and controller.beat("gap", 0) == []
    assert prefix(controller, [1, 2, 3]) == NOBODY and prefix(controller, [11, 12, 13])[0][2] == 3
    controller.send(DeRegisterMsg(*name, "127.0.0.1", 1))
    wait_until(lambda: prefix(controller, [11]) == NOBODY)
    assert [c.reason for c in controller.beat(*name)] == ["worker_re_registered"]
    controller.send(DeRegisterMsg(*name, "127.0.0.1", 1))


def test_bad_bytes(controller):
    for frame in (b"", b"\xc1", b"{", b"\x81\xa4type\xa1x", msgspec.msgpack.encode({"type": "RegisterMsg"}),
                  msgspec.msgpack.encode(RegisterMsg("x" * 200, 0, "h", 1, None)),
                  msgspec.msgpack.encode(RegisterMsg("x", 0, "tcp://h", 1, None)),
                  msgspec.msgpack.encode(DeRegisterMsg("x", 0, "h", 1)), bytes(range(256)) * 64):
        assert isinstance(controller.ask(frame), ErrorMsg)
        controller.send(frame)
    controller.dealer.send_multipart([b"one frame"])
    controller.dealer.send_multipart([b"", b"\xc1", b"more", b"frames"])
    assert "accepted" in msgspec.msgpack.decode(controller.dealer.recv_multipart()[1], type=ErrorMsg).error
    assert controller.beat("still", 0)  # it lives
    controller.send(DeRegisterMsg("still", 0, "h", 1))
    metrics = Http(controller.manager, {"Authorization": "Bearer all"}).raw(
        controller.manager.ports["admin_http"], "/metrics", None, "GET")[1].decode()
    assert any(line.split()[-1] != "0" for line in metrics.splitlines()
               if line.startswith("tierce_lmcache_invalid_count_total"))


def test_tokens_and_scopes(controller):
    assert controller.http("/controller/workers", token="nobody")[0] == 401
    assert controller.http("/controller/workers", token="code")[0] == 403
    assert controller.http("/controller/workers", token="chat")[0] == 200
    order = {"instance_id": "none", "location": MEMORY}
    assert controller.http("/clear", order, token="chat")[0] == 403
    status, body = controller.http("/clear", order, token="boss")
    assert status == 404 and "none" in body["detail"]


def test_lookup_by_tokens(controller):
    """The hashes of chunks are Python's, as LMCache computes them: hash((prefix, tokens, ()))."""
    worker = Worker(controller, "tokens", 0)
    tokens, hashes, before = list(range(1000, 1700)), [], 0
    for i in range(0, 512, 256):
        before = hash((before, tuple(tokens[i:i + 256]), ()))
        hashes.append(before)
    worker.change("admit", hashes)
    wait_until(lambda: controller.http("/lookup", {"tokens": tokens})[1]["layout_info"] == {"tokens": [MEMORY, 512]})
    assert controller.http("/lookup", {"tokens": tokens[:511]})[1]["layout_info"] == {"tokens": [MEMORY, 256]}
    assert controller.http("/lookup", {"tokens": [1] * 30000})[1]["layout_info"] == {}
    for wrong in ({}, {"tokens": 1}, {"tokens": [-1]}, {"tokens": ["a"]}, []):
        assert controller.http("/lookup", wrong)[0] == 422
    assert controller.http("/check_finish", {"event_id": "e"})[0] == 501
    got = controller.http("/query_instance", {"event_id": "e", "ip": "127.0.0.1"})
    assert got[0] == 200 and got[1]["res"] == "tokens"
    assert controller.http("/query_instance", {"event_id": "e", "ip": "1.2.3.4"})[0] == 404
    info = controller.http("/query_worker_info", {"instance_id": "all", "worker_ids": [0, 5]})[1]["worker_infos"]
    assert [(i["instance_id"], i["worker_id"], i["port"], i["peer_init_url"]) for i in info] == \
        [("tokens", 0, worker.port, None)]
    for numbers in ([1], [2**70, -1, 1.5, "0"], [7] * 100000):    # the last body is read on another thread
        assert controller.http("/query_worker_info",
                               {"instance_id": "tokens", "worker_ids": numbers})[1]["worker_infos"] == []
    Worker(controller, "another", 3)
    stats = controller.http("/controller/key-stats")[1]
    assert stats["instances"] == [{"instance_id": "another", "key_count": 0, "worker_count": 1},
                                  {"instance_id": "tokens", "key_count": 2, "worker_count": 1}]
    assert [stats[f"total_{name}_count"] for name in ("key", "instance", "worker")] == [2, 2, 2]
    controller.send(DeRegisterMsg("another", 3, "127.0.0.1", 1))
    status, one = controller.http("/controller/workers?instance_id=tokens&worker_id=0")
    assert status == 200 and one["key_count"] == 2
    assert controller.http("/controller/workers?instance_id=tokens&worker_id=1")[0] == 404
    controller.send(DeRegisterMsg("tokens", 0, "127.0.0.1", 1))


def test_orders(controller):
    workers = [Worker(controller, "orders", i, f"peer:{i}", ClearWorkerRetMsg(256 * (2 - i))) for i in range(2)]
    status, body = controller.http("/clear", {"instance_id": "orders", "location": MEMORY})
    assert status == 200 and body["num_tokens"] == 256 and body["event_id"].startswith("Clear")
    assert all(w.orders[-1].location == MEMORY for w in workers)
    for worker in workers:
        worker.answer = PinWorkerRetMsg(7)
    status, body = controller.http("/pin", {"instance_id": "orders", "location": MEMORY, "tokens": [1, 2**31]})
    assert (status, body["num_tokens"]) == (200, 7) and workers[1].orders[-1].tokens == [1, 2**31]
    many = list(range(50000))
    assert controller.http("/pin", {"instance_id": "orders", "location": MEMORY, "tokens": many})[0] == 200
    assert workers[0].orders[-1].tokens == many
    order = {"instance_id": "orders", "location": MEMORY, "method": "cachegen", "tokens": None}
    for worker in workers:
        worker.answer = CompressWorkerRetMsg(9)
    assert controller.http("/compress", order)[1]["num_tokens"] == 9
    assert workers[0].orders[-1].method == "cachegen" and workers[0].orders[-1].tokens is None
    Http(controller.manager, {"Authorization": "Bearer chat"}).call("meta", "JoinDirectory", worker="host:7:ab")
    status, body = controller.http("/compress", {**order, "instance_id": "host:7:ab"})
    assert status == 404 and "use tierce directory" in body["detail"]
    target = Worker(controller, "target", 0, "peer-t:0")
    move = {"old_position": ["orders", MEMORY], "new_position": ["target", MEMORY], "tokens": [5], "should_copy": True}
    status, body = controller.http("/move", move)
    assert status == 404 and "worker 1 of target" in body["detail"]
    controller.send(DeRegisterMsg("orders", 1, "127.0.0.1", 1))
    wait_until(lambda: controller.http("/controller/workers?instance_id=orders")[1]["total_count"] == 1)
    workers[0].answer = MoveWorkerRetMsg(11)
    assert controller.http("/move", move)[1]["num_tokens"] == 11
    got = workers[0].orders[-1]
    assert (got.old_position, got.new_position, got.tokens, got.copy) == (MEMORY, ("peer-t:0", MEMORY), [5], True)
    workers[0].answer = HealthWorkerRetMsg(-3)
    assert controller.http("/health", {"instance_id": "orders"})[1]["error_codes"] == {"0": -3}
    workers[0].answer = ErrorMsg("it broke")
    assert controller.http("/health", {"instance_id": "orders"})[1]["error_codes"] == {"0": -1001}
    status, body = controller.http("/clear", {"instance_id": "orders", "location": MEMORY})
    assert status == 502 and "it broke" in body["detail"] and "worker 0 of orders" in body["detail"]
    status, body = controller.http("/clear", {"instance_id": "target", "location": MEMORY})  # says nothing
    assert status == 504 and f"worker 0 of target at 127.0.0.1:{target.port}" in body["detail"]
    for wrong in ({}, {"instance_id": "orders"}, {"instance_id": "orders", "location": MEMORY, "tokens": "x"}):
        assert controller.http("/pin", wrong)[0] == 422
    for name in ("orders", "target"):
        controller.send(DeRegisterMsg(name, 0, "127.0.0.1", 1))
