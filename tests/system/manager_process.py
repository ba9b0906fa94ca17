# SPDX-License-Identifier: Apache-2.0
"""A `tierce manager` in a process of its own, and its calls over either transport as dictionaries."""

import http.client
import importlib
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROTO = ROOT / "src" / "proto" / "kvcm"
START_SECONDS = 120


def executable():
    named = os.environ.get("TIERCE_EXECUTABLE")
    if named:
        return Path(named)
    for preset in ("rel", "dev"):
        path = ROOT / "build" / preset / "bin" / "tierce"
        if path.exists():
            return path
    raise FileNotFoundError("build/rel/bin/tierce: run `make build`")


def load_stubs():
    """The modules that Python's own protoc makes of the .proto files."""
    from grpc_tools import protoc
    files = sorted(str(p) for p in PROTO.glob("*.proto"))
    with tempfile.TemporaryDirectory(prefix="tierce-stubs-") as out:
        if protoc.main(["protoc", f"-I{PROTO}", f"--python_out={out}", f"--grpc_python_out={out}",
                        *files]) != 0:
            raise RuntimeError("protoc failed")
        sys.path.insert(0, out)
        modules = {name: (importlib.import_module(f"{name}_service_pb2"),
                          importlib.import_module(f"{name}_service_pb2_grpc"))
                   for name in ("meta", "admin", "debug", "kv_meta")}
        sys.path.remove(out)
    return modules


_stubs = None


def stubs():
    global _stubs
    if _stubs is None:
        _stubs = load_stubs()
    return _stubs


class Http:
    """JSON over HTTP; a call's name is the RPC's with a small first letter."""

    name = "http"

    def __init__(self, manager, headers=None):
        self.manager = manager
        self.headers = {"Content-Type": "application/json", **(headers or {})}

    def raw(self, port, path, body, method="POST"):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
        connection.request(method, path, body, self.headers)
        response = connection.getresponse()
        data = response.read()
        connection.close()
        return response.status, data

    def call(self, service, method, **fields):
        path = "/api/" + ("kv/" if service == "kv_meta" else "") + method[0].lower() + method[1:]
        port = self.manager.ports[{"meta": "http", "kv_meta": "http", "admin": "admin_http",
                                   "debug": "debug_http"}[service]]
        status, body = self.raw(port, path, json.dumps(fields))
        assert status == 200, (status, body)
        return json.loads(body)


class Grpc:
    """The same over gRPC, shown as the JSON that HTTP would give."""

    name = "grpc"

    def __init__(self, manager, metadata=()):
        import grpc
        self.manager = manager
        self.metadata = metadata
        self.channels = {
            "meta": grpc.insecure_channel(f"127.0.0.1:{manager.ports['grpc']}"),
            "admin": grpc.insecure_channel(f"127.0.0.1:{manager.ports['admin_grpc']}"),
        }

    def call(self, service, method, **fields):
        from google.protobuf import json_format
        messages, services = stubs()[service]
        channel = self.channels["meta" if service in ("meta", "kv_meta") else "admin"]
        stub = getattr(services, {"meta": "MetaServiceStub", "kv_meta": "MetaServiceStub",
                                  "admin": "AdminServiceStub", "debug": "DebugServiceStub"}[service])
        descriptor = messages.DESCRIPTOR.services_by_name[
            {"meta": "MetaService", "kv_meta": "MetaService", "admin": "AdminService",
             "debug": "DebugService"}[service]].methods_by_name[method]
        request = getattr(messages, descriptor.input_type.name)()
        json_format.ParseDict(fields, request)
        reply = getattr(stub(channel), method)(request, timeout=30, metadata=self.metadata)
        return json_format.MessageToDict(reply, preserving_proto_field_name=True,
                                         always_print_fields_with_no_presence=True)

    def close(self):
        for channel in self.channels.values():
            channel.close()


class Manager:
    """A running manager on free ports of loopback, in a working directory of its own."""

    def __init__(self, folder, *arguments, debug=True, startup=None, ready=True, program=None):
        self.folder = Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.storage = self.folder / "nfs"
        if startup is None:
            self.storage.mkdir(exist_ok=True)
        self.arguments = list(arguments)
        self.debug = debug
        self.startup = startup or self.usual_startup(storage=self.storage)
        self.process = None
        self.ready = ready  # wait until it leads
        self.program = program or executable()
        self.start()

    @staticmethod
    def usual_startup(storage, **group):
        """One storage of files and one group, in KVCM's JSON."""
        usual = {
            "name": "default", "storage_candidates": ["nfs_01"],
            "global_quota_group_name": "default_quota_group", "max_instance_count": 100,
            "quota": {"capacity": 30_000_000_000,
                      "quota_config": [{"storage_type": "file", "capacity": 10_000_000_000}]},
            "cache_config": {
                "reclaim_strategy": {
                    "storage_unique_name": "nfs_01", "reclaim_policy": 1,
                    "trigger_strategy": {"used_size": 0, "used_percentage": 0.8},
                    "delay_before_delete_ms": 100},
                "cache_prefer_strategy": 2,
                "meta_indexer_config": {
                    "max_key_count": 1_000_000, "mutex_shard_num": 16, "batch_key_size": 16,
                    "meta_storage_backend_config": {"storage_type": "local", "storage_uri": ""},
                    "meta_cache_policy_config": {"type": "LRU", "capacity": 100}}},
            "user_data": "", "version": 1}
        usual.update(group)
        return {"storage_config": {
                    "type": "file", "is_available": True, "global_unique_name": "nfs_01",
                    "storage_spec": {"root_path": f"{storage}/", "key_count_per_file": 8}},
                "instance_group": usual}

    def start(self):
        startup = self.folder / "startup.json"
        startup.write_text(self.startup if isinstance(self.startup, str)
                           else json.dumps(self.startup))
        command = [str(self.program), "manager", "--listen.grpc_port=0", "--listen.http_port=0",
                   f"--listen.admin_grpc_port={free_port()}", "--listen.admin_http_port=0",
                   f"--startup.file={startup}", *self.arguments]
        if self.debug:
            command.append("--listen.debug=true")
        self.log = open(self.folder / "stderr.log", "ab")
        offset = self.log.tell()
        self.process = subprocess.Popen(command, cwd=self.folder, stdout=self.log,
                                        stderr=self.log, stdin=subprocess.DEVNULL)
        try:
            self.ports = self.read_ports(offset)
            if self.ready:
                self.wait_ready()
        except RuntimeError:
            self.stop(signal.SIGKILL)
            raise

    def read_ports(self, offset):
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            text = (self.folder / "stderr.log").read_bytes()[offset:].decode()
            for line in text.splitlines():
                if "listening on" in line:
                    words = line.replace(",", "").replace(":", "").split()
                    numbers = [int(w) for w in words if w.isdigit()]
                    names = ["grpc", "http", "admin_grpc", "admin_http", "debug_http"]
                    return dict(zip(names, numbers))
            if self.process.poll() is not None:
                break
            time.sleep(0.01)
        raise RuntimeError(f"the manager did not start: {text}")

    def wait_ready(self):
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            if self.get("/readyz")[0] == 200:
                return
            time.sleep(0.01)
        raise RuntimeError("the manager did not become ready")

    def get(self, path, port="http"):
        connection = http.client.HTTPConnection("127.0.0.1", self.ports[port], timeout=30)
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, response.read()

    def stop(self, sig=signal.SIGTERM):
        if self.process is None:
            return 0
        self.process.send_signal(sig)
        code = self.process.wait(timeout=120)
        self.process = None
        self.log.close()
        return code


claimed = []  # until this process ends


def free_port():
    """A port that is free, and that no other test is given (as tests/support/servers/server_process.h has it). Of those
    that the kernel does not give to others by itself, as to connections of tests beside this one."""
    while True:
        port = random.SystemRandom().randrange(20000, 32000)
        claim = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        with socket.socket() as s:
            try:
                s.bind(("127.0.0.1", port))
                claim.bind(f"\0tierce-test-port-{port}")
            except OSError:
                claim.close()
                continue
        claimed.append(claim)
        return port


def wait_until(condition, seconds=60):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


class Proxy:
    """Passes bytes on to a port; what those who are connected at some moment send later can be held
    back, and let go."""

    def __init__(self, port):
        self.port_behind = port
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.uri = f"redis://127.0.0.1:{self.port}"
        self.lock = threading.Condition()
        self.clients, self.held, self.held_bytes = [], set(), 0
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            try:
                client = self.listener.accept()[0]
            except OSError:  # closed
                return
            behind = socket.create_connection(("127.0.0.1", self.port_behind))
            for s in (client, behind):
                s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with self.lock:
                self.clients.append(client)
            threading.Thread(target=self.forward, args=(client, behind, True), daemon=True).start()
            threading.Thread(target=self.forward, args=(behind, client, False), daemon=True).start()

    def forward(self, source, to, may_wait):
        try:
            while data := source.recv(65536):
                with self.lock:
                    if may_wait and source in self.held:
                        self.held_bytes += len(data)
                        self.lock.wait_for(lambda: source not in self.held)
                to.sendall(data)
            to.shutdown(socket.SHUT_WR)
        except OSError:
            pass

    def hold(self):
        with self.lock:
            self.held, self.held_bytes = set(self.clients), 0

    def let_go(self):
        with self.lock:
            self.held = set()
            self.lock.notify_all()

    def close(self):
        self.let_go()
        self.listener.close()


class Etcd:
    """An etcd of this test's own."""

    def __init__(self, folder):
        if shutil.which("etcd") is None:
            if os.environ.get("CI"):
                raise RuntimeError("etcd is missing: see tools/packages.txt")
            pytest.skip("needs etcd")
        self.port, peers = free_port(), free_port()
        client, peer = (f"http://127.0.0.1:{p}" for p in (self.port, peers))
        self.process = subprocess.Popen(
            ["etcd", "--unsafe-no-fsync", "--data-dir", str(folder), "--listen-client-urls", client,
             "--advertise-client-urls", client, "--listen-peer-urls", peer,
             "--initial-advertise-peer-urls", peer, "--initial-cluster", f"default={peer}"],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        wait_until(self.answers)

    def answers(self):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=1)
        try:
            connection.request("GET", "/health")
            return b"true" in connection.getresponse().read()
        except OSError:
            return False

    def stop(self):
        self.process.kill()
        self.process.wait()


class Redis:
    """A redis-server of this test's own."""

    def __init__(self, folder):
        if shutil.which("redis-server") is None:
            if os.environ.get("CI"):
                raise RuntimeError("redis-server is missing: see tools/packages.txt")
            pytest.skip("needs redis-server")
        self.folder = Path(folder)
        self.folder.mkdir()
        self.port = free_port()
        self.uri = f"redis://127.0.0.1:{self.port}"
        self.start()

    def start(self):
        self.process = subprocess.Popen(
            ["redis-server", "--port", str(self.port), "--bind", "127.0.0.1", "--save", "",
             "--appendonly", "yes", "--appendfsync", "no", "--dir", str(self.folder)],
            stdout=subprocess.DEVNULL)
        wait_until(self.answers)

    def answers(self):
        try:
            with socket.create_connection(("127.0.0.1", self.port), 1) as s:
                s.sendall(b"PING\r\n")
                return s.recv(64).startswith(b"+PONG")
        except OSError:
            return False

    def stop(self):
        self.process.kill()
        self.process.wait()


class RedisCluster:
    """A cluster of redis-servers of this test's own: masters with the slots evenly among them, and
    behind them as many replicas, each of one master."""

    def __init__(self, folder, masters=3, replicas=0, timeout_ms=2000):
        if shutil.which("redis-server") is None:
            if os.environ.get("CI"):
                raise RuntimeError("redis-server is missing: see tools/packages.txt")
            pytest.skip("needs redis-server")
        self.folder, self.masters, self.timeout_ms = Path(folder), masters, timeout_ms
        self.nodes = [(free_port(), free_port()) for _ in range(masters + replicas)]
        self.processes = [None] * len(self.nodes)
        for i in range(len(self.nodes)):
            (self.folder / str(i)).mkdir(parents=True)
            self.start(i)
            if i < masters:
                self.call(i, "CLUSTER", "ADDSLOTSRANGE", 16384 * i // masters,
                          16384 * (i + 1) // masters - 1)
            self.call(i, "CLUSTER", "SET-CONFIG-EPOCH", i + 1)
        for port, bus in self.nodes[1:]:
            self.call(0, "CLUSTER", "MEET", "127.0.0.1", port, bus)
        for i in range(masters, len(self.nodes)):
            master = self.call(i - masters, "CLUSTER", "MYID")[5:45].decode()
            wait_until(lambda i=i, m=master: self.call(i, "CLUSTER", "REPLICATE", m)[:1] == b"+")
        wait_until(self.is_well, 60)

    @property
    def uri(self):
        return "redis-cluster://" + ",".join(f"127.0.0.1:{port}" for port, _ in self.nodes)

    def start(self, i):
        port, bus = self.nodes[i]
        self.processes[i] = subprocess.Popen(
            ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--save", "",
             "--appendonly", "yes", "--appendfsync", "no", "--dir", str(self.folder / str(i)),
             "--cluster-enabled", "yes", "--cluster-port", str(bus),
             "--cluster-node-timeout", str(self.timeout_ms), "--repl-diskless-sync-delay", "0",
             "--cluster-require-full-coverage", "no"], stdout=subprocess.DEVNULL)
        wait_until(lambda: self.call(i, "PING")[:1] == b"+")

    def call(self, i, *words):
        """One command to a node, and the first bytes of its answer; none where it is away."""
        command = f"*{len(words)}\r\n" + "".join(f"${len(str(w))}\r\n{w}\r\n" for w in words)
        try:
            with socket.create_connection(("127.0.0.1", self.nodes[i][0]), 10) as s:
                s.sendall(command.encode())
                return s.recv(65536)
        except OSError:
            return b""

    def is_well(self):
        """All know all slots, and every replica has what its master has."""
        for i, process in enumerate(self.processes):
            info = self.call(i, "CLUSTER", "INFO")
            if process.poll() is None and not (b"cluster_slots_ok:16384" in info
                                               and b"cluster_state:ok" in info):
                return False
            info = self.call(i, "INFO", "replication")
            if b"role:slave" in info and b"master_link_status:up" not in info:
                return False
        return True

    def kill(self, i):
        self.processes[i].kill()
        self.processes[i].wait()

    def slot(self, key):
        return int(self.call(0, "CLUSTER", "KEYSLOT", key)[1:])

    def master_of(self, key):
        """The node, of those that were masters at the beginning, that has a key."""
        return self.slot(key) * self.masters // 16384

    def stop(self):
        for i in range(len(self.nodes)):
            self.kill(i)
