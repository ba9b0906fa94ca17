# SPDX-License-Identifier: Apache-2.0
"""A node and its clients: redis-cli, redis-benchmark, redis-py, LMCache's messages, and hostile
clients."""

import concurrent.futures
import contextlib
import errno
import hashlib
import os
import random
import resource
import signal
import socket
import ssl
import subprocess
import time
import warnings

import pytest

from manager_process import Redis, executable, free_port, wait_until
from node_process import GET, PUT, REPLY, SECONDS, Lm, Node, command, take
from serve_process import make_certificates

TOKENS = {"reader": "read", "writer": "read,write", "boss": "read,write,admin"}


@pytest.fixture(name="node")
def run_node(tmp_path):
    node = Node(tmp_path)
    yield node
    node.end()


def cli(node, *arguments, stdin=None):
    return subprocess.run(["redis-cli", "-p", str(node.resp), *arguments], input=stdin, check=True,
                          capture_output=True, timeout=60).stdout


# ---- clients that everybody uses ----------------------------------------------------------------

def test_redis_cli(node):
    big = os.urandom(3 << 20)
    assert cli(node, "set", "k", "v") == b"OK\n"
    assert cli(node, "-x", "set", "big", stdin=big) == b"OK\n"
    assert cli(node, "get", "big") == big + b"\n"
    assert sorted(cli(node, "--scan").split()) == [b"big", b"k"]
    assert cli(node, "-3", "mget", "k", "none") == b"v\n\n"
    assert b"tierce_version" in cli(node, "info")
    stat = subprocess.Popen(["redis-cli", "-p", str(node.resp), "--stat", "-i", "0.01"], stdout=subprocess.PIPE)
    rows = [stat.stdout.readline().split() for _ in range(4)][2:]  # a title of two lines; what is not told is LLONG_MIN
    stat.kill()
    stat.communicate()
    assert [row[0] for row in rows] == [b"2", b"2"] and all(b"-92" not in word for row in rows for word in row), rows
    assert cli(node, "flushdb") == b"OK\n" and cli(node, "dbsize") == b"0\n"


def test_redis_benchmark(node):
    for extra in ([], ["-P", "16"], ["-d", "100000", "-n", "500"]):
        out = subprocess.run(["redis-benchmark", "-p", str(node.resp), "-n", "5000", "-c", "20", "--csv",
                              "-t", "ping_mbulk,set,get,mset", *extra],
                             check=True, capture_output=True, text=True, timeout=300)
        assert "Error" not in out.stdout + out.stderr
        assert [line.split('"')[1] for line in out.stdout.splitlines()[1:]] == ["PING_MBULK", "SET", "GET",
                                                                              "MSET (10 keys)"]


@pytest.mark.parametrize("protocol", [2, 3])
def test_redis_py(node, protocol):
    redis = pytest.importorskip("redis")
    client = redis.Redis(port=node.resp, protocol=protocol, client_name="test")
    big = os.urandom(20 << 20)
    assert client.ping() and client.set("k", "v", ex=100) and 98 <= client.ttl("k") <= 100
    assert client.expire("k", 50) and 48 <= client.ttl("k") <= 50 and client.persist("k") and client.ttl("k") == -1
    assert client.set("k", "w", nx=True) is None and client.get("k") == b"v"
    assert client.set("big", big) and client.get("big") == big
    assert client.getrange("big", 5, 9) == big[5:10] and client.strlen("big") == len(big)
    assert client.mset({"m1": b"1", "m2": b"2"}) and client.delete("m1", "m2") == 2
    assert client.mget("k", "none", "big") == [b"v", None, big]
    assert client.exists("k", "none") == 1 and client.client_getname() in ("test", b"test")
    assert sorted(client.scan_iter(match="*i*")) == [b"big"]
    pipeline = client.pipeline(transaction=False)
    for i in range(1000):
        pipeline.set(f"p{i}", i).get(f"p{i}")
    assert pipeline.execute()[1::2] == [str(i).encode() for i in range(1000)]
    assert client.delete("k", "big", "none") == 2 and client.info()["tcp_port"] == node.resp
    assert client.config_get("maxmemory") == {"maxmemory": str(128 << 20)}
    client.close()


# ---- LMCache's protocol -------------------------------------------------------------------------

def test_lm_values(node):
    """A key is any text: LMCache 0.5's, 0.3's, which begin with a format, of a layer, with tags, and the longest."""
    client, other = Lm(node), Lm(node)
    keys = [f"org/m@1@0@{1:064x}@bfloat16", "vllm@org/m@2@1@-5c7c4165af101b9a@half",
            "vllm@org/m@2@1@-5c7c4165af101b9a@half@7@user%u1", "k" * 150]
    values = {key: os.urandom(size) for key, size in zip(keys, [1, 4096, 1 << 20, 16 << 20])}
    for key, value in values.items():
        client.put(key, value)
        assert client.exist(key) and other.get(key) == value
    assert other.get("none") is None and not other.exist("none")
    client.close()
    other.close()


def test_header_and_value_come_together(node):
    """LMCache's client reads a header with one recv; and of a server that sends twice each small GET takes 40 ms."""
    client = Lm(node)
    client.put("k", b"x" * 4096)
    for _ in range(100):
        client.send(GET, "k")
        assert len(client.socket.recv(1 << 16)) == REPLY.size + 4096
    client.close()


# ---- hostile clients ----------------------------------------------------------------------------

def test_bytes_that_are_no_request(node):
    dice = random.Random(int(os.environ.get("TIERCE_TEST_SEED", "7")))
    good = [command("SET", "k", b"v" * 30000, "EX", 5), command("GET", "k"), command("MGET", "a", "b"),
            b"set k \"v\"\r\n", command("SCAN", 0, "MATCH", "*"), command("HELLO", 3)]
    for i in range(300):
        data = bytearray(dice.choice(good))
        for _ in range(dice.randrange(1, 6)):
            data[dice.randrange(min(len(data), 80))] = dice.randrange(256)
        port = node.resp if i % 3 else node.lm
        sock = node.connect(port)
        try:
            sock.sendall(data)
            if i % 2:
                sock.shutdown(socket.SHUT_WR)
                sock.recv(100)
        except OSError as error:  # closed by the node, but not silent
            assert error.errno in (errno.ENOTCONN, errno.ECONNRESET, errno.EPIPE), error
        sock.close()
    assert cli(node, "set", "k", "v") == b"OK\n" and cli(node, "get", "k") == b"v\n"


def test_a_thousand_connections(tmp_path):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 4096), hard))
    node = Node(tmp_path, "--limit.connections=1001")
    socks = [node.connect(node.resp) for _ in range(1000)]
    for i, sock in enumerate(socks):
        sock.sendall(command("SET", f"k{i}", i) + command("GET", f"k{i}"))
    for i, sock in enumerate(socks):
        wanted = b"+OK\r\n$%d\r\n%d\r\n" % (len(str(i)), i)
        assert take(sock, len(wanted)) == wanted
    last, beyond = node.connect(node.resp), node.connect(node.resp)
    assert beyond.recv(1) == b""
    for sock in [*socks, last, beyond]:
        sock.close()
    wait_until(lambda: node.metric("node_connections_now") == 0, SECONDS)
    node.end()
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_slow_readers_hold_a_lease_and_nothing_else(node):
    value = os.urandom(8 << 20)
    client = Lm(node)
    client.put("big", value)
    assert client.get("big") == value
    wait_until(lambda: node.resident() > 128 << 20, SECONDS)  # its memory is touched in idle time
    before = node.resident()
    slow = [node.connect(node.resp, receive=4096) for _ in range(50)]
    slow += [node.connect(node.lm, receive=4096) for _ in range(1)]
    for sock in slow[:-1]:
        sock.sendall(command("SET", "x", "y") * 3 + command("GET", "none") * 3)
    for sock in slow[:-1]:
        take(sock, 3 * 5 + 3 * 5)
    lm = Lm(node)
    for _ in range(20):
        lm.send(GET, "big")
    assert client.get("big") == value
    assert node.resident() - before < 32 << 20
    for sock in slow:
        sock.close()
    lm.close()
    client.close()


def test_halves_of_values_are_never_seen(node):
    for port, head in ((node.lm, None), (node.resp, b"*3\r\n$3\r\nSET\r\n$4\r\nhalf\r\n$5000000\r\n")):
        for cut in (0, 1, 100_000):
            sock = node.connect(port)
            if head is None:
                client = Lm(node)
                client.send(PUT, "half", 5_000_000)
                client.socket.sendall(b"x" * cut)
                client.close()
            else:
                sock.sendall(head + b"x" * cut)
            sock.close()
    client = Lm(node)
    assert not client.exist("half")
    client.close()
    assert cli(node, "exists", "half") == b"0\n"
    wait_until(lambda: node.metric("node_incoming_bytes") == 0, SECONDS)


def test_memory_stays_within_its_cap(node):
    client = Lm(node)
    for i in range(100):
        client.put(f"k{i}", os.urandom(4 << 20))
    assert client.get("k99") is not None and client.get("k0") is None
    assert node.metric("memory_bytes_now") <= 128 << 20
    assert node.resident() < (128 << 20) + (96 << 20)
    client.close()


# ---- restart ------------------------------------------------------------------------------------

def disk_arguments(folder):
    return (f"--disk.path={folder / 'store'}", "--disk.size=512MiB", "--disk.flush_interval=50ms")


def test_what_lies_on_disk_survives_kill_9(tmp_path):
    node = Node(tmp_path, *disk_arguments(tmp_path))
    values = {f"k{i}": os.urandom(1 << 20) for i in range(40)}
    client = Lm(node)
    for key, value in values.items():
        client.put(key, value)
        assert cli(node, "-x", "set", key, stdin=value) == b"OK\n"
    wait_until(lambda: node.metric('tier_durable_chunks{tier="disk"}') >= 80, SECONDS)
    client.put("late", b"x" * 100)
    node.kill()
    node.start()
    client = Lm(node)
    for key, value in values.items():
        assert client.exist(key) and client.get(key) == value
        assert cli(node, "get", key) == value + b"\n"
    late = client.get("late")
    assert late is None or late == b"x" * 100
    client.close()
    node.end()


def test_what_several_commands_left_on_disk(tmp_path):
    node = Node(tmp_path, *disk_arguments(tmp_path))
    assert cli(node, "mset", "a", "1", "b", "2", "c", "3") == b"OK\n" and cli(node, "expire", "a", "1000") == b"1\n"
    assert cli(node, "set", "b", "4", "ex", "1000") == b"OK\n" and cli(node, "persist", "b") == b"1\n"
    assert cli(node, "pexpireat", "c", "1") == b"1\n"
    node.end()
    node.start()
    assert cli(node, "mget", "a", "b", "c") == b"1\n4\n\n"
    assert 900 < int(cli(node, "ttl", "a")) <= 1000 and cli(node, "ttl", "b") == b"-1\n"
    node.end()


def test_killed_while_it_stores(tmp_path):
    node = Node(tmp_path, *disk_arguments(tmp_path))
    for round_ in range(3):
        client, stored = Lm(node), []
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            def store(client=client, stored=stored):
                for i in range(10_000):
                    body = hashlib.sha256(str(i % 50).encode()).digest() * 4096
                    client.put(f"k{i % 50}", body)
                    stored.append(i)
            storing = pool.submit(store)
            wait_until(lambda stored=stored: len(stored) > 100 or storing.done(), SECONDS)
            node.kill()
            with pytest.raises(OSError):
                storing.result()
        node.start()
        client = Lm(node)
        for i in range(50):
            got = client.get(f"k{i}")
            assert got is None or got == hashlib.sha256(str(i).encode()).digest() * 4096, round_
        client.close()
    node.end()


# ---- operation ----------------------------------------------------------------------------------

@pytest.fixture(name="guarded")
def run_guarded(tmp_path):
    tokens = tmp_path / "tokens"
    lines = [f"{scopes} {name} {hashlib.sha256(name.encode()).hexdigest()}" for name, scopes in TOKENS.items()]
    lines.append(f"read,write other {hashlib.sha256(b'other').hexdigest()} elsewhere")
    tokens.write_text("\n".join(lines))
    tokens.chmod(0o600)
    node = Node(tmp_path, f"--auth.token_file={tokens}")
    yield node
    node.end()


def test_tokens(guarded):
    def ask(token, *arguments):
        return cli(guarded, "--no-auth-warning", "-a", token, *arguments)
    assert b"NOAUTH" in cli(guarded, "get", "k")
    assert ask("writer", "set", "k", "v") == b"OK\n" and ask("reader", "get", "k") == b"v\n"
    assert b"NOPERM" in ask("reader", "set", "k", "w") and b"NOPERM" in ask("writer", "flushdb")
    assert ask("other", "get", "k") == b"\n" and ask("other", "set", "k", "mine") == b"OK\n"
    assert ask("reader", "get", "k") == b"v\n"
    assert ask("boss", "flushdb") == b"OK\n" and ask("other", "get", "k") == b"mine\n"


def test_the_pages_of_administrators(guarded):
    assert guarded.ask("GET", "/livez") == (200, "ok\n") and guarded.ask("GET", "/readyz") == (200, "ok\n")
    assert '"resp_commands":' in guarded.ask("GET", "/status")[1]
    assert "auth" in guarded.ask("GET", "/config")[1]
    assert guarded.ask("POST", "/mode", "freeze")[0] == 401
    assert guarded.ask("POST", "/mode", "freeze", Authorization="Bearer reader")[0] == 403
    assert guarded.ask("POST", "/mode", "freeze", Authorization="Bearer boss") == (200, "freeze\n")
    status, text = guarded.ask("GET", "/readyz")
    assert status == 503 and "probe" in text
    assert b"READONLY" in cli(guarded, "--no-auth-warning", "-a", "writer", "set", "k", "v")
    assert guarded.ask("POST", "/mode", "normal", Authorization="Bearer boss")[0] == 200
    assert guarded.ask("POST", "/clear?namespace=", Authorization="Bearer boss")[0] == 400
    assert guarded.ask("POST", "/clear", Authorization="Bearer boss")[0] == 200


def test_passwords_of_stores_are_not_shown(tmp_path):
    node = Node(tmp_path, "--remote.urls=redis://:xq'zw@127.0.0.1:1 redis://me:vq\"kj,yx@127.0.0.1:2/0 lm://127.0.0.1:3")
    status, text = node.ask("GET", "/config")
    assert status == 200 and all(f"//127.0.0.1:{port}" in text for port in (1, 2)) and "//127.0.0.1:3" in text
    assert not any(part in text for part in ("xq", "zw", "vq", "kj", "yx"))
    node.end()


def test_those_that_left_hold_no_place(node):
    """Of the 64 of administrators: half a request and the end, which come together."""
    for i in range(300):
        half = (b"GET /live", b"GET /livez HTTP/1.1\r\nHost: localhost\r\n",
                b"POST /mode HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\nab")[i % 3]
        with node.connect(node.http) as sock:
            sock.sendall(half)
    with node.connect(node.http) as sock:
        sock.settimeout(20)  # they would stay for 30 s
        sock.sendall(b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert sock.recv(100).split()[1] == b"200"


@pytest.mark.parametrize("start", [b"", b"GET /live", b"GET /livez HTTP/1.1\r\nHost: localhost\r\n",
                                   b"POST /mode HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\nab"])
def test_those_that_stay_keep_nobody_out(node, start):
    """All 64 connections of administrators, held by clients with incomplete requests: the oldest is
    closed."""
    holders = [node.connect(node.http) for _ in range(64)]
    for holder in holders:
        holder.sendall(start)
    asked = node.connect(node.http)
    asked.settimeout(20)  # they would stay for 30 or 60 s
    for more in range(3):
        asked.sendall(b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert asked.recv(1000).split()[1] == b"200"
        for _ in range(8):
            holders.append(node.connect(node.http))
            holders[-1].sendall(start)
    first, last = holders[0], holders[-1]
    first.settimeout(20)
    with contextlib.suppress(ConnectionResetError):
        first.sendall(b"x")
        assert first.recv(1000)[:15] in (b"", b"HTTP/1.1 503 Se", b"HTTP/1.1 400 Ba")
    last.settimeout(0.1)
    with pytest.raises(TimeoutError):
        last.recv(1)
    for sock in (*holders, asked):
        sock.close()
    assert node.ask("GET", "/livez") == (200, "ok\n")


def listens(node):
    with contextlib.suppress(OSError):
        node.connect(node.resp).close()
        return True
    return False


def test_sigterm_lets_requests_end(node):
    client = node.connect(node.resp)
    value = os.urandom(2 << 20)
    client.sendall(b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$%d\r\n" % len(value) + value[:1 << 20])
    wait_until(lambda: node.metric("node_incoming_bytes") > 0, SECONDS)
    node.process.terminate()
    wait_until(lambda: not listens(node), SECONDS)
    client.sendall(value[1 << 20:] + b"\r\n")
    assert take(client, 5) == b"+OK\r\n"
    assert client.recv(1) == b""
    node.end()


@pytest.mark.parametrize("limits, enough", [("64:1024", True), ("64:300", False)])
def test_the_limit_on_open_files_is_raised(tmp_path, limits, enough):
    node = Node(tmp_path, "--limit.connections=400", wrapper=["prlimit", f"--nofile={limits}"])
    clients = [node.connect(node.resp) for _ in range(200)]
    for client in clients:
        client.sendall(b"PING\r\n")
    for client in clients:
        assert take(client, 7) == b"+PONG\r\n"
        client.close()
    warning = "only 300 files can be open, too few for 400 connections (limit.connections)"
    assert (warning in node.log.read_text()) is not enough
    node.end()


def test_systemd_is_told(tmp_path):
    path = str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(path)
        listener.settimeout(30)
        node = Node(tmp_path, env={**os.environ, "NOTIFY_SOCKET": path, "WATCHDOG_USEC": "200000"})
        assert listener.recv(100) == b"READY=1" and listener.recv(100) == b"WATCHDOG=1"
        node.end()
        told = {listener.recv(100)}
        while b"STOPPING=1" not in told:
            told.add(listener.recv(100))


def test_a_lost_store_is_no_reason_to_restart(tmp_path):
    """Without a disk new values are rejected while a remote store is gone; a restart would lose memory too."""
    path = str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(path)
        listener.settimeout(30)
        node = Node(tmp_path, f"--remote.urls=redis://127.0.0.1:{free_port()}",
                    env={**os.environ, "NOTIFY_SOCKET": path, "WATCHDOG_USEC": "200000"})
        assert listener.recv(100) == b"READY=1"
        wait_until(lambda: node.ask("GET", "/readyz")[0] == 503)
        for _ in range(20):  # more than can have been sent before
            assert listener.recv(100) == b"WATCHDOG=1"
        node.end()


def test_tls(tmp_path):
    redis = pytest.importorskip("redis")
    make_certificates(tmp_path)
    node = Node(tmp_path, f"--tls.certificate={tmp_path}/server.pem", f"--tls.key={tmp_path}/server.key",
                "--timeout.request=2s")
    client = redis.Redis(port=node.resp, ssl=True, ssl_ca_certs=str(tmp_path / "ca.pem"), protocol=3)
    for size in (0, 5, 16383, 16384, 300_000, 9 << 20):
        value = os.urandom(size)
        assert client.set("k", value) and client.get("k") == value
    big = os.urandom(5 << 20)
    client.set("big", big)
    client.set("k", "small")
    pipeline = client.pipeline(transaction=False)
    for i in range(500):
        pipeline.set(f"p{i}", i).get(f"p{i}").get("big" if i % 50 == 0 else "k")
    assert pipeline.execute()[150:152] == [True, b"50"]
    plain = node.connect(node.resp)  # a client without TLS is closed, at once or at its deadline
    plain.sendall(b"*1\r\n$4\r\nPING\r\n")
    assert b"PONG" not in plain.recv(100)
    silent = node.connect(node.resp)
    assert silent.recv(1) == b""
    client.close()
    node.end()


def test_tokens_and_certificates_are_read_again(tmp_path):
    """By SIGHUP: all of them, or none if one is invalid; clients that are still allowed keep their
    connections."""
    files = [tmp_path / name for name in ("server.pem", "server.key", "tokens")]
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        make_certificates(tmp_path / name)

    def put(token, certificate, key):
        files[2].write_text(f"read,write all {hashlib.sha256(token).hexdigest()}\n")
        files[2].chmod(0o600)
        files[0].write_bytes((tmp_path / certificate / "server.pem").read_bytes())
        files[1].write_bytes((tmp_path / key / "server.key").read_bytes())

    def connect(authority):
        context = ssl.create_default_context(cafile=tmp_path / authority / "ca.pem")
        return context.wrap_socket(node.connect(node.resp), server_hostname="localhost")

    def says(client, *words):
        client.sendall(command(*words))
        return client.recv(100)

    put(b"old", "first", "first")
    node = Node(tmp_path, f"--tls.certificate={files[0]}", f"--tls.key={files[1]}", f"--auth.token_file={files[2]}")
    client = connect("first")
    assert says(client, "AUTH", "old") == b"+OK\r\n" and says(client, "SET", "k", "v") == b"+OK\r\n"
    put(b"new", "second", "first")
    node.process.send_signal(signal.SIGHUP)
    wait_until(lambda: "stay in use" in node.log.read_text(), SECONDS)
    assert says(client, "GET", "k") == b"$1\r\nv\r\n"
    assert says(connect("first"), "AUTH", "new").startswith(b"-WRONGPASS")
    put(b"new", "second", "second")
    node.process.send_signal(signal.SIGHUP)
    said = []
    wait_until(lambda: said.append(says(client, "GET", "k")) or said[-1] != b"$1\r\nv\r\n", SECONDS)
    assert said[-1].startswith(b"-NOAUTH")
    assert says(client, "AUTH", "new") == b"+OK\r\n"
    assert says(client, "GET", "k") == b"$1\r\nv\r\n"
    assert says(connect("second"), "AUTH", "old").startswith(b"-WRONGPASS")
    with pytest.raises(ssl.SSLCertVerificationError):
        connect("first")
    client.close()
    node.end()


def test_clients_show_a_certificate(tmp_path):
    """Over TLS 1.3 a client learns with its first answer that it is rejected."""
    make_certificates(tmp_path)
    node = Node(tmp_path, f"--tls.certificate={tmp_path}/server.pem", f"--tls.key={tmp_path}/server.key",
                f"--tls.client_ca={tmp_path}/ca.pem")

    def connect(port, name):
        context = ssl.create_default_context(cafile=tmp_path / "ca.pem")
        if name is not None:
            context.load_cert_chain(tmp_path / f"{name}.pem", tmp_path / f"{name}.key")
        return context.wrap_socket(node.connect(port), server_hostname="localhost")

    with connect(node.resp, "alice") as client:
        client.sendall(command("SET", "k", "v"))
        assert take(client, 5) == b"+OK\r\n"
    with connect(node.lm, "alice") as sock:
        client = Lm(node, sock)
        client.put("k", b"x" * 100_000)
        assert client.get("k") == b"x" * 100_000
    for port in (node.resp, node.lm):
        for name in ("mallory", None):
            try:
                with connect(port, name) as client:
                    client.sendall(command("PING"))
                    assert client.recv(1) == b""
            except OSError as error:  # of TLS, or cut
                assert not isinstance(error, TimeoutError)
    node.end()


def test_who_is_refused_is_told_why(tmp_path):
    """By TLS: an alert, not an end without a word."""
    make_certificates(tmp_path)
    node = Node(tmp_path, f"--tls.certificate={tmp_path}/server.pem", f"--tls.key={tmp_path}/server.key",
                f"--tls.client_ca={tmp_path}/ca.pem")

    def refused(port, version, name):
        context = ssl.create_default_context(cafile=tmp_path / "ca.pem")
        context.set_ciphers("DEFAULT@SECLEVEL=0")  # with which a client may still say TLS 1.1
        context.minimum_version = context.maximum_version = version
        if name is not None:
            context.load_cert_chain(tmp_path / f"{name}.pem", tmp_path / f"{name}.key")
        with pytest.raises(ssl.SSLError) as caught:
            with context.wrap_socket(node.connect(port), server_hostname="localhost") as client:
                client.sendall(command("PING") * 1000)
                client.recv(1)
        return caught.value.reason

    old, new = ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        for port in (node.resp, node.lm):
            assert refused(port, new, None) == "TLSV13_ALERT_CERTIFICATE_REQUIRED"
            assert refused(port, new, "mallory") == refused(port, old, "mallory") == "TLSV1_ALERT_UNKNOWN_CA"
            assert refused(port, old, None) == "SSLV3_ALERT_HANDSHAKE_FAILURE"
            assert refused(port, ssl.TLSVersion.TLSv1_1, "alice") == "TLSV1_ALERT_PROTOCOL_VERSION"
    node.end()


def test_addresses_that_others_reach_are_refused(tmp_path):
    with pytest.raises(AssertionError, match="listen.insecure"):
        Node(tmp_path, "--listen.host=0.0.0.0")


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT"])
def test_a_signal_that_ends_the_node_is_logged(tmp_path, name):
    node = Node(tmp_path)
    node.process.send_signal(signal.Signals[name])
    assert node.process.wait(SECONDS) == 0
    assert node.log.read_text().endswith(f"Z tierce node: ends on {name}\n"), node.log.read_text()


# ---- a disk that cannot be used -----------------------------------------------------------------

def test_a_folder_that_cannot_be_used_stops_the_start(tmp_path):
    """With disk.optional it starts on memory only, which is logged and reported."""
    path = tmp_path / "file"
    path.write_text("not a folder")
    done = subprocess.run([str(executable()), "node", "--listen.resp_port=0", "--listen.lm_port=0", "--listen.http_port=0",
                           "--control.socket=", f"--disk.path={path}"], capture_output=True, text=True, timeout=SECONDS)
    assert done.returncode != 0 and "listening" not in done.stderr
    assert f"disk.path {path} cannot be used: " in done.stderr and "disk.optional" in done.stderr, done.stderr
    assert 'consequence="the node does not start"' in done.stderr and "kept in memory" not in done.stderr, done.stderr
    node = Node(tmp_path, f"--disk.path={path}", "--disk.optional=true")
    status, text = node.ask("GET", "/readyz")
    assert status == 200 and text.startswith(f"memory only: disk.path {path} cannot be used: "), text
    assert cli(node, "set", "k", "v") == b"OK\n" and cli(node, "get", "k") == b"v\n"
    assert "event=node_memory_only" in node.log.read_text()
    node.end()
    assert path.read_text() == "not a folder"


def test_a_part_of_a_pool_that_cannot_be_read_is_named(tmp_path):
    node = Node(tmp_path, "--pool.manager=fleet://127.0.0.1:1/p", "--pool.name=n", f"--pool.disk={tmp_path}/pool",
                "--pool.disk_size=64MiB", "--pool.port=0", "--pool.disk_buffer=1MiB")
    wait_until(lambda: node.ask("GET", "/readyz") == (200, "ok\n"))
    assert "event=node_part_is_new" in node.log.read_text()
    node.end()
    mark = tmp_path / "pool" / "objects" / "~store"
    text = mark.read_bytes()
    mark.write_bytes(b"damaged")
    node.arguments.append("--pool.disk_new=false")
    node.start()
    wait_until(lambda: node.ask("GET", "/readyz")[0] == 503)
    assert "pool.disk is not served: " in (why := node.ask("GET", "/readyz")[1]) and "~store" in why, why
    mark.write_bytes(text)
    wait_until(lambda: node.ask("GET", "/readyz") == (200, "ok\n"))
    assert "event=node_part_is_new" not in node.log.read_text()
    node.end()


def test_a_remote_store_that_is_down_is_named(tmp_path):
    """SET is rejected then, and /readyz fails: the operator reads why."""
    node = Node(tmp_path, "--remote.urls=redis://127.0.0.1:1", "--breaker.errors=1", "--breaker.retry=1h")
    node.ask("GET", "/readyz")
    status, text = node.ask("GET", "/readyz")
    assert status == 503 and "; remote stores out of service: 1 of 1 (event tier_out_of_service" in text, text
    assert b"out of service" in cli(node, "set", "k", "v")
    assert "event=tier_out_of_service tier=redis" in node.log.read_text()
    node.end()


def test_values_are_replaced_while_a_remote_store_is_away(tmp_path):
    """The store comes back with the old values. They are not seen, not even by a node that has lost its memory."""
    redis = Redis(tmp_path / "redis")
    arguments = [f"--remote.urls={redis.uri}", f"--disk.path={tmp_path / 'disk'}", "--breaker.errors=1", "--breaker.retry=100ms"]
    node = Node(tmp_path, *arguments)
    values = {f"k{i}": "v" * (100 if i % 2 else 100000) for i in range(8)}

    def keys():
        with socket.create_connection(("127.0.0.1", redis.port), SECONDS) as s:
            s.sendall(b"DBSIZE\r\n")
            return int(s.recv(64).decode().strip().lstrip(":"))

    for key, value in values.items():
        assert cli(node, "set", key, value + "old") == b"OK\n"
    wait_until(lambda: keys() == len(values))
    redis.stop()
    for key, value in values.items():
        assert cli(node, "set", key, value + "new") == b"OK\n", node.log.read_text()
    assert cli(node, "del", "k0") == b"1\n"
    assert node.ask("GET", "/readyz")[0] == 200
    assert node.metric("tombstones_now") >= len(values)
    node.process.kill()
    node.process.wait()
    node.start()
    for key, value in values.items():
        expected = value + "new\n" if key != "k0" else "\n"
        assert cli(node, "get", key).decode() in (expected, "\n"), key  # the last values may not have reached the disk
    redis.start()  # with the old values, which it had before it was stopped
    wait_until(lambda: node.metric("tombstones_now") == 0)
    assert keys() == 0
    for key, value in values.items():
        assert not cli(node, "get", key).decode().endswith("old\n")
    assert cli(node, "set", "k0", "again") == b"OK\n"
    wait_until(lambda: keys() == 1)
    node.end()
    redis.stop()


# 24 MiB beside a foreign file, in a mount namespace of the node's own: it ends with the node.
SMALL_DISK = ["unshare", "--mount", "--propagation", "private", "sh", "-c",
              'mount -t tmpfs -o size=96m none "$0" && head -c 72M /dev/zero >"$0/filler" && exec "$@"']


def test_a_full_disk_is_reported(tmp_path):
    """By /readyz, a metric and `tierce top`, until there is room again; the node serves all the time."""
    disk, sockets = tmp_path / "disk", tmp_path / "sockets"
    disk.mkdir()
    sockets.mkdir()
    if subprocess.run([*SMALL_DISK, disk, "true"], capture_output=True, check=False).returncode != 0:
        pytest.skip("cannot mount a file system here")
    environment = {**os.environ, "XDG_RUNTIME_DIR": str(sockets), "HOME": str(sockets)}
    node = Node(tmp_path, f"--disk.path={disk}/store", "--disk.size=1GiB", "--control.socket=auto",
                wrapper=[*SMALL_DISK, str(disk)], env=environment)
    inside = f"/proc/{node.process.pid}/root{disk}/filler"
    number = iter(range(1 << 20))

    def store_until(answer):
        until = time.monotonic() + SECONDS
        while node.ask("GET", "/readyz") != (200, answer):
            assert time.monotonic() < until, node.ask("GET", "/readyz")
            assert cli(node, "-x", "set", f"k{next(number)}", stdin=os.urandom(1 << 20)) == b"OK\n"

    def top():
        return subprocess.run([str(executable()), "top"], env=environment, capture_output=True, text=True,
                              check=True, timeout=SECONDS).stdout

    assert node.ask("GET", "/readyz") == (200, "ok\n")
    assert "STATE" not in top()
    store_until("disk full\n")
    assert node.metric("disk_full_now") == 1 and node.metric("memory_only_now") == 0
    assert "STATE disk full" in top()
    assert cli(node, "set", "small", "v") == b"OK\n" and cli(node, "get", "small") == b"v\n"
    os.unlink(inside)
    store_until("ok\n")
    assert node.metric("disk_full_now") == 0 and "STATE" not in top()
    assert node.log.read_text().count("event=disk_full ") == 1
    assert node.log.read_text().count("event=disk_room_again ") == 1
    node.end()
