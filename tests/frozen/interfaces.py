# SPDX-License-Identifier: Apache-2.0
"""The outward interfaces as a build has them now, each as lines of text.

    interfaces.py [NAME ...]    writes NAME.txt, for an interface that is changed on purpose
"""

import contextlib
import hashlib
import http.client
import json
import re
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
ROOT = FOLDER.parents[1]
sys.path.insert(0, str(FOLDER.parent / "system"))

from manager_process import Http, Manager, executable, wait_until  # noqa: E402
from node_process import GET, HEALTH, LIST, PUT, REQUEST, SECONDS, EXIST, Node, command  # noqa: E402


def run(*arguments):
    return subprocess.run([str(executable()), *arguments], check=True, capture_output=True, text=True,
                          timeout=SECONDS).stdout


# ---- the command line ----------------------------------------------------------------------------

def parameters():
    """`engine | memory.size | size | 1GiB | 1MiB .. 16TiB`: name, type, default, bounds or choices."""
    lines = []
    for process, page in (("engine", "config"), ("node", "node"), ("manager", "manager")):
        for row in re.findall(r"^\| (`[\w.]+` \| .*)\|$", run(page, "--markdown"), re.M):
            cells = [c.strip().replace("`", "") for c in row.split(" | ", 4)[:4]]
            lines.append(" | ".join([process, *cells]))
    return lines


KVCM = ["kvcm.registry_storage.uri=local://r", "kvcm.distributed_lock.uri=file://l", "kvcm.leader_elector.node_id=n",
        "kvcm.leader_elector.lease_ms=4000", "kvcm.leader_elector.loop_interval_ms=50", "kvcm.service.rpc_port=5001",
        "kvcm.service.http_port=5002", "kvcm.service.admin_rpc_port=5003", "kvcm.service.admin_http_port=5004",
        "kvcm.service.io_thread_num=2", "kvcm.service.enable_debug_service=true", "kvcm.logger.log_level=5",
        "kvcm.startup_config=s", "kvcm.schedule_plan_executor_thread_count=3", "kvcm.metrics.reporter_type=dummy",
        "kvcm.metrics.reporter_config=x", "kvcm.metrics.report_interval_ms=70", "kvcm.event.event_publishers_configs=y"]


def kvcm():
    """The values that a manager derives from KVCM's settings."""
    out = run("manager", "--print-config", *(word for setting in KVCM for word in ("-e", setting)))
    return [" ".join(line.split()) for line in out.splitlines() if "# -e kvcm." in line]


def commands():
    """`node: --config --parameter ...`: the flags and subcommands that the help of a command names."""
    lines = []
    for name in re.findall(r"^  (\w+) ", run("help"), re.M):
        text = run("help", name)
        words = re.findall(r"(?<![\w-])--?[a-z][\w.-]*", text)
        for choice in re.findall(r"\b[a-z]+(?:\|[a-z]+)+", text):
            words += choice.split("|")
        lines.append(f"{name}: {' '.join(sorted(set(words)))}")
    return lines


def symbols():
    """The symbols that libtierce.so exports."""
    library = Path(executable()).parents[1] / "lib" / "libtierce.so"
    out = subprocess.run(["nm", "-D", "--defined-only", str(library)], check=True, capture_output=True,
                         text=True).stdout
    return sorted(line.split()[2].replace("@@", "@") for line in out.splitlines())


# ---- metrics -------------------------------------------------------------------------------------

def read_metrics(process, page):
    """`engine tierce_tier_chunks gauge tier`: name, type and labels; a histogram's parts are one."""
    kinds, labels = dict(re.findall(r"^# TYPE (\w+) (\w+)$", page, re.M)), {}
    for name, text in re.findall(r"^(\w+)(\{.*\})? \S+$", page, re.M):
        whole = re.sub(r"_(bucket|sum|count)$", "", name)
        whole = whole if kinds.get(whole) == "histogram" else name
        labels.setdefault(whole, set()).update(re.findall(r'(\w+)="', text))
    return [" ".join([process, name, kinds.get(name, "untyped"), *sorted(found - {"le"})])
            for name, found in sorted(labels.items())]


class UnixConnection(http.client.HTTPConnection):
    def __init__(self, path):
        super().__init__("localhost", timeout=SECONDS)
        self.path = str(path)

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(SECONDS)
        self.sock.connect(self.path)


def ask(connection, method, path, body=None, headers=None):
    with contextlib.closing(connection):
        connection.request(method, path, body, headers or {})
        reply = connection.getresponse()
        return reply.status, reply.getheader("Content-Type"), reply.read().decode()


@contextlib.contextmanager
def an_engine(folder):
    """The control socket of an engine with every kind of tier."""
    from tierce import _core as core
    engine = core.Engine.open(None, {
        "memory.size": "16MiB", "disk.path": f"{folder}/store", "disk.size": "32MiB", "memory.policy": "hazard",
        "remote.urls": f"file://{folder}/remote", "control.socket": f"{folder}/s"})
    try:
        yield Path(folder) / "s"
    finally:
        engine.close()


@contextlib.contextmanager
def a_node(folder):
    """A node with every kind of tier and client, and a token that may do everything."""
    tokens = Path(folder) / "tokens"
    tokens.write_text(f"read,write,admin me {hashlib.sha256(b'secret').hexdigest()}\n")
    tokens.chmod(0o600)
    node = Node(Path(folder), f"--disk.path={folder}/store", "--disk.size=64MiB", f"--remote.urls=file://{folder}/remote",
                "--memory.policy=hazard", f"--listen.native={folder}/native", f"--auth.token_file={tokens}")
    try:
        yield node
    finally:
        node.end()


INSTANCE = {"instance_group": "default", "instance_id": "i", "block_size": 4,
            "model_deployment": {"model_name": "m", "dtype": "bf16"},
            "location_spec_infos": [{"name": "tp0", "size": 64}]}


@contextlib.contextmanager
def a_manager(folder, *arguments):
    manager = Manager(Path(folder) / "manager", "--quota.groups=default_quota_group=1GiB", *arguments)
    try:
        yield manager
    finally:
        manager.stop()


def metrics():
    """`engine tierce_tier_chunks gauge tier`: process, name, type and labels."""
    with tempfile.TemporaryDirectory() as folder, an_engine(folder) as path:
        lines = read_metrics("engine", ask(UnixConnection(path), "GET", "/metrics")[2])
    with tempfile.TemporaryDirectory() as folder, a_node(folder) as node:
        lines += read_metrics("node", node.ask("GET", "/metrics")[1])
    with tempfile.TemporaryDirectory() as folder, a_manager(folder) as manager:
        api = Http(manager)
        api.call("meta", "RegisterInstance", **INSTANCE)
        write = api.call("meta", "StartWriteCache", instance_id="i", block_keys=[1], write_timeout_seconds=30)
        api.call("meta", "FinishWriteCache", instance_id="i", write_session_id=write["write_session_id"],
                 success_blocks={"offset": 1})
        api.call("meta", "GetCacheLocation", instance_id="i", block_keys=[1], query_type="QT_PREFIX_MATCH")
        lines += read_metrics("manager", manager.get("/metrics", "admin_http")[1].decode())
    return lines


# ---- transcripts ---------------------------------------------------------------------------------

def shape(value):
    """The names and types in JSON; a list as its first element."""
    if isinstance(value, dict):
        return {name: shape(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [shape(inner) for inner in value[:1]]
    return type(value).__name__


def paths(value, name=""):
    """`.tiers[].name str`: the path of each value in a shape."""
    if isinstance(value, dict):
        return [line for key, inner in value.items() for line in paths(inner, f"{name}.{key}")]
    if isinstance(value, list):
        return [line for inner in value for line in paths(inner, f"{name}[]")]
    return [f"{name} {value}"]


CONTROL = ["POST /mode", "POST /mode?set=freeze", "POST /mode", "POST /mode?set=bypass", "POST /mode?set=normal",
           "POST /mode?set=x", "POST /mode?x=1", "POST /clear", "POST /clear?tier=memory", "POST /clear?tier=disk",
           "POST /clear?tier=x", "POST /clear?namespace=00", "POST /clear?x=1", "POST /backfill?do=stop", "POST /backfill?do=x",
           "POST /backfill?rate=1", "POST /backfill?do=start&rate=x", "POST /why", "POST /why?request=x",
           "GET /nothing", "GET /mode", "POST /metrics"]
NODE_HTTP = [("GET", "/livez", None), ("GET", "/readyz", None), ("GET", "/nothing", None), ("POST", "/mode", "freeze"),
             ("POST", "/mode", "normal"), ("POST", "/mode", "x"), ("POST", "/clear", None), ("POST", "/clear?x=1", None)]


def control():
    """The pages of an engine's control socket and of a node's HTTP port: answers, and the shape of JSON."""
    lines = []
    with tempfile.TemporaryDirectory() as folder, an_engine(folder) as path:
        for line in CONTROL:
            status, kind, body = ask(UnixConnection(path), *line.split(" ", 1))
            if kind == "application/json":
                lines += [f"engine {line} {status} {name}" for name in paths(shape(json.loads(body)))]
            else:
                lines.append(f"engine {line} {status} {kind} {re.sub('^[0-9]+', 'N', body)!r}")
        status, kind, body = ask(UnixConnection(path), "GET", "/status")
        lines += [f"engine GET /status {status} {kind}"]
        lines += [f"engine GET /status {line}" for line in paths(shape(json.loads(body)))]
    with tempfile.TemporaryDirectory() as folder, a_node(folder) as node:
        for token in (None, "wrong", "secret"):
            for method, path, body in NODE_HTTP:
                headers = {"Authorization": f"Bearer {token}"} if token else {}
                status, kind, text = ask(http.client.HTTPConnection("127.0.0.1", node.http, timeout=SECONDS), method, path, body,
                                         headers)
                text = re.sub(r"(?<=:)\d+", "N", text)
                lines.append(f"node token={token} {method} {path} {body} {status} {kind} {text!r}")
        status = json.loads(node.ask("GET", "/status")[1])
        lines += [f"node GET /status {line}" for line in paths(shape(status))]
    return lines


RESP = ["PING", "SET k value", "GET k", "GET none", "AUTH secret", "AUTH me wrong", "AUTH me secret", "PING", "PING x",
        "SET k value", "GET k", "GET none", "SET k other NX", "SET k other XX GET", "STRLEN k", "GETRANGE k 1 3", "MSET a 1 b 2",
        "MGET a b none", "EXISTS a b none", "DEL a none", "INCR b", "INCRBY b 40", "INCRBYFLOAT b 0.5", "SET k v EX 100",
        "TTL none", "TTL b", "PERSIST k", "PERSIST k", "TYPE k", "TYPE none", "DBSIZE", "SCAN 0 MATCH none*", "KEYS k", "GETDEL k",
        "GET k", "SELECT 0", "SELECT 1", "ECHO x", "CLIENT GETNAME", "CLIENT SETNAME me", "CLIENT GETNAME", "ACL WHOAMI",
        "CONFIG GET save", "MODULE LIST", "ROLE", "SLOWLOG GET", "NOSUCH a", "GET", "HELLO 4", "HELLO 3 AUTH me wrong",
        "GET none", "LPUSH l 1", "MULTI", "FLUSHALL", "DBSIZE", "TIERCE.HINT SESSION open", "TIERCE.HINT SESSION ajar",
        "RESET", "QUIT"]


def read_answer(lines):
    line = lines.readline()
    if line[:1] == b"$" and line != b"$-1\r\n":
        return line + lines.read(int(line[1:]) + 2)
    if line[:1] in b"*%~":
        return line + b"".join(read_answer(lines) for _ in range(max(int(line[1:]), 0) * (1 + (line[:1] == b"%"))))
    return line


def resp():
    """A session of Redis' protocol with a node that has tokens: request, and answer byte by byte."""
    lines = []
    with tempfile.TemporaryDirectory() as folder, a_node(folder) as node, node.connect(node.resp) as link:
        answers = link.makefile("rb")
        for request in RESP:
            link.sendall(command(*request.split()))
            lines.append(f"{request} -> {read_answer(answers)!r}")
        lines.append(f"after QUIT: {answers.read()!r}")
    return lines


def lm():
    """A session of lm:// with a node: request and value, and answer byte by byte."""
    shape_of_it, key = (1, 3, 0, 2, 4, 16, 16), b"model@1@0@00ff@bfloat16"
    requests = [(HEALTH, b"", b"", 36), (EXIST, key, b"", 36), (GET, key, b"", 36), (PUT, key, b"value", 0), (EXIST, key, b"", 36),
                (GET, key, b"", 41), (PUT, key, b"", 0), (GET, key, b"", 36), (LIST, b"", b"", 0), (HEALTH, b"", b"", 36)]
    lines = []
    with tempfile.TemporaryDirectory() as folder, a_node(folder) as node, node.connect(node.lm) as link:
        answers = link.makefile("rb")
        for number, name, value, count in requests:
            link.sendall(REQUEST.pack(number, len(value), *shape_of_it, name.ljust(150)) + value)
            lines.append(f"{number} {name.decode()} {value!r} -> {answers.read(count).hex()}")
    return lines


def manager_http():
    """Calls to a manager over HTTP: paths, requests, and answers without what is made anew each time."""
    lines = []

    def say(port, path, body):
        status, text = Http(manager).raw(manager.ports[port], path, json.dumps(body))
        text = text.decode().replace(str(manager.storage), "STORAGE")
        text = re.sub(r'("(?:request_id|write_session_id|manager_version)":)"[^"]+"', r'\1"ID"', text)
        text = re.sub(r'(\\"id\\":)\\"[^"\\]+', r'\1\\"ID', text)
        text = re.sub(r'("registry":)"[^"]+"', r'\1"ID"', text)
        text = re.sub(r'STORAGE/[^"?\\]+', "STORAGE/FILE", text)
        lines.append(f"{port} {path} {json.dumps(body)} -> {status} {text}")
        return text

    with tempfile.TemporaryDirectory() as folder, a_manager(folder) as manager:
        one = {"instance_id": "i", "block_keys": [1, 2]}
        say("http", "/api/registerInstance", INSTANCE)
        say("http", "/api/getCacheLocation", {**one, "query_type": "QT_PREFIX_MATCH"})
        session = Http(manager).call("meta", "StartWriteCache", **one, write_timeout_seconds=30)["write_session_id"]
        Http(manager).call("meta", "FinishWriteCache", instance_id="i", write_session_id=session, success_blocks={"offset": 2})
        say("http", "/api/startWriteCache", {"instance_id": "i", "block_keys": [1, 2, 3], "write_timeout_seconds": 30})
        say("http", "/api/finishWriteCache", {"instance_id": "i", "write_session_id": "none", "success_blocks": {"offset": 1}})
        say("http", "/api/renewWriteCache", {"instance_id": "i", "write_session_id": "none"})
        say("http", "/api/hintCache", {**one, "hint": {"session": "closed"}})
        say("http", "/api/hintCache", {**one, "hint": {"session": "over"}})
        say("http", "/api/reportCache", {"instance_id": "i", "reports": [
            {"block_key": 1, "location_spec_name": "tp0", "uri": "file://nfs_01/none", "reason": "RR_DAMAGED"}]})
        for query in ("QT_PREFIX_MATCH", "QT_BATCH_GET"):
            say("http", "/api/getCacheLocation", {**one, "query_type": query})
        say("http", "/api/getCacheMeta", {**one, "detail_level": 1})
        say("http", "/api/getInstanceInfo", {"instance_id": "i"})
        say("http", "/api/removeCache", one)
        say("http", "/api/trimCache", {"instance_id": "i", "strategy": "TS_REMOVE_ALL_CACHE"})
        say("http", "/api/getInstanceInfo", {"instance_id": "none"})
        say("http", "/api/nothing", {})
        say("admin_http", "/api/listInstanceInfo", {"instance_group_name": "default"})
        say("admin_http", "/api/addAccount", {"user_name": "u", "password": "p", "role": "ROLE_ADMIN"})
        say("admin_http", "/api/listAccount", {})
        say("admin_http", "/api/listStorage", {})
        say("admin_http", "/api/getInstanceGroup", {"name": "default"})
        say("admin_http", "/api/removeInstance", {"instance_group": "default", "instance_id": "i"})
    return lines


ALL = {f.__name__: f for f in (parameters, kvcm, commands, symbols, metrics, control, resp, lm, manager_http)}


def frozen(name):
    return [line for line in (FOLDER / f"{name}.txt").read_text().splitlines() if line and line[0] != "#"]


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT / "python"))
    for wanted in sys.argv[1:] or ALL:
        heading = " ".join(ALL[wanted].__doc__.split()) if ALL[wanted].__doc__ else wanted
        (FOLDER / f"{wanted}.txt").write_text("\n".join([f"# {heading}", *ALL[wanted]()]) + "\n")
