# SPDX-License-Identifier: Apache-2.0
"""The same commands to a redis-server and to a node: their replies are the same bytes, or of the same shape."""

import hashlib
import os
import re
import socket
import subprocess
import threading
from pathlib import Path

import pytest

from manager_process import Redis, wait_until
from node_process import SECONDS, Lm, Node, command

LONG = "x" * 20_000
NAMES = 1500

# Requests that both answer identically, byte by byte. In this order: later rows see the values of
# earlier ones.
SAME = [
    "PING", "PING x", "PING x y", "ECHO x", "ECHO", "SELECT 0", "SELECT x", "SELECT 99",
    "NOSUCH", "NOSUCH a b", f"NOSUCH {'a' * 200} b", "GET", "get a b", "MSET a", "MSET a 1 b", "SET a",
    # strings
    "GET a", "SET a 1", "GET a", "SET a 2 NX", "SET b 2 XX", "SET a 3 GET", "SET n 3 GET", "SET a 1 EX 0",
    "SET a 1 EX x", "SET a 1 PX -5", "SET a 1 EX 9223372036854775807", "SET a 1 NX XX", "SET a 1 EX", "SET a 1 FOO",
    "SET a 1 EX 10 KEEPTTL", "SETNX a 9", "SETNX nx 9", "GET nx", "GETSET a new", "GETSET absent 1", "GET absent",
    "GETDEL absent", "GETDEL absent", "GET absent", "GETEX a", "GETEX none", "GETEX a EX 100", "TTL a", "GETEX a PERSIST",
    "TTL a", "GETEX a EX 0", "GETEX a FOO", "GETEX a EX", "GETEX a PERSIST 1", "GETEX a PX 100000", "TTL a",
    "SETEX s 100 v", "TTL s", "SETEX s 0 v", "SETEX s x v", "PSETEX s 100000 v", "PSETEX s 0 v", "SETEX s 1",
    "MSET m1 1 m2 2", "MGET m1 m2 none", "STRLEN m1", "STRLEN none", "GETRANGE a 0 1", "GETRANGE a -2 -1",
    "GETRANGE a 5 1", "GETRANGE a x 1", "SUBSTR a 0 1", "GETRANGE none 0 -1",
    # existence and ends
    "EXISTS a none a", "TOUCH a none", "TYPE a", "TYPE none", "TTL none", "PTTL none", "EXPIRETIME none",
    "EXPIRETIME m1", "PEXPIRETIME m1", "EXPIREAT m1 33177117420", "EXPIRETIME m1", "PEXPIRETIME m1", "PERSIST m1",
    "PERSIST m1", "PERSIST none", "EXPIRE m1 100 NX", "EXPIRE m1 200 NX", "EXPIRE m1 50 GT", "EXPIRE m1 50 LT",
    "EXPIRE m1 50 NX XX", "EXPIRE m1 50 GT LT", "EXPIRE m1 50 FOO", "EXPIRE m1 x", "EXPIRE m1 9223372036854775807",
    "PEXPIRE m1 x", "PEXPIREAT m1 9223372036854775807 FOO", "EXPIRE none 10", "EXPIRE m1 010", "EXPIRE m1 -1",
    "GET m1", "DEL m1 m2 none", "UNLINK none",
    # numbers
    "INCR i", "INCR i", "DECR i", "INCRBY i 40", "DECRBY i 2", "GET i", "INCRBY i x", "INCRBY i 1.5", "INCRBY i",
    "INCRBY i 9223372036854775807", "DECRBY i -9223372036854775808", "INCRBY i -9223372036854775808", "GET i",
    "SET i 9223372036854775807", "INCR i", "SET i -9223372036854775808", "DECR i", "GET i",
    "SET w 01", "INCR w", "SET w 'x'", "INCR w", "SET w +1", "INCR w", "SET w -0", "INCR w", "SET w ' 1'", "INCR w",
    "SETEX t 100 5", "INCR t", "TTL t", "INCRBYFLOAT f 1.5", "INCRBYFLOAT f 0.1", "INCRBYFLOAT f -1.6", "GET f",
    "INCRBYFLOAT f 1e5", "INCRBYFLOAT f 3.0e-3", "INCRBYFLOAT f x", "INCRBYFLOAT f nan", "INCRBYFLOAT f inf",
    "INCRBYFLOAT w 1", "INCRBYFLOAT t 0.5", "TTL t", "INCRBYFLOAT g -0.0", "INCRBYFLOAT g 12345678901234567890",
    "INCRBYFLOAT h 1e400", "GET h", "INCR f",
    # names
    "FLUSHALL", "DBSIZE", "MSET k1 1 k2 2", "DBSIZE", "KEYS none*", "KEYS k1", "KEYS", "SCAN", "SCAN x", "SCAN 0 COUNT 0",
    "SCAN 0 COUNT x", "SCAN 0 FOO x", "SCAN 0 MATCH", "SCAN 0 MATCH k1 COUNT 1000", "SCAN 0 TYPE list COUNT 1000",
    "FLUSHDB ASYNC", "FLUSHALL FOO", "FLUSHDB a b", "DBSIZE",
    # long arguments
    f"GET {LONG}", f"EXISTS {LONG}", f"DEL {LONG} a", f"TTL {LONG}", f"MGET none {LONG}", f"GETDEL {LONG}",
    f"EXPIRE {LONG} 10", f"PERSIST {LONG}", f"TYPE {LONG}", f"STRLEN {LONG}", f"SETNX big {LONG}", f"SETNX big {LONG}",
    f"GETSET big {LONG}y", "GETDEL big", "GET big",
    # servers and connections
    "CLIENT GETNAME", "CLIENT SETNAME me", "CLIENT GETNAME", "CLIENT NO-EVICT ON", "CLIENT NO-EVICT x",
    "CLIENT", "CLIENT NOSUCH", "CLIENT ID x", "CLIENT LIST FOO", "CLIENT LIST TYPE foo", "CLIENT LIST ID x",
    "CLIENT LIST TYPE pubsub", "CLIENT LIST ID 999999", "TIME x", "ROLE", "ACL WHOAMI", "ACL NOSUCH", "MODULE LIST", "SLOWLOG LEN", "SLOWLOG GET",
    "SLOWLOG GET 5", "SLOWLOG RESET", "SLOWLOG NOSUCH", "LATENCY LATEST", "LATENCY HISTORY command", "LATENCY RESET",
    "CLUSTER INFO", "CONFIG GET save", "CONFIG GET nosuch", "CONFIG NOSUCH", "CONFIG GET",
    "COMMAND NOSUCH", "COMMAND COUNT x", "COMMAND INFO nosuch", "MEMORY USAGE none", "MEMORY USAGE", "MEMORY USAGE a FOO",
    "OBJECT ENCODING none", "OBJECT ENCODING", "INFO nosuch", "HELLO 4", "HELLO x", "HELLO 2 FOO", "AUTH x",
]

# Here both answer with the same types in the same arrangement.
ALIKE = ["TIME", "CLIENT ID", "CLIENT INFO", "CLIENT LIST", "CLIENT LIST TYPE normal", "INFO", "INFO server clients", "INFO all",
         "HELLO", "HELLO 2", "COMMAND LIST", "COMMAND COUNT", "SET o v", "OBJECT ENCODING o", "MEMORY USAGE o", "CONFIG GET maxmemory*",
         "LATENCY HISTOGRAM nosuch"]


def words(line):
    """As redis-cli takes a line apart: '...' is one word."""
    return [quoted or plain for quoted, plain in re.findall(r"'([^']*)'|(\S+)", line)]


class Server:
    def __init__(self, port, protocol):
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=SECONDS)
        self.lines = self.socket.makefile("rb")
        if protocol == 3:
            self.reply("HELLO", 3)

    def reply(self, *arguments):
        """The bytes of one reply."""
        self.socket.sendall(command(*arguments))
        return self.read()

    def read(self):
        line = self.lines.readline()
        assert line.endswith(b"\r\n"), f"the connection was closed: {line}"
        kind, rest = line[:1], line[1:-2]
        if kind in b"$=" and rest != b"-1":
            return line + self.lines.read(int(rest) + 2)
        if kind in b"*%~>":
            count = max(int(rest), 0) * (2 if kind == b"%" else 1)
            return line + b"".join(self.read() for _ in range(count))
        assert kind in b"+-:$_,#(", line
        return line

    def close(self):
        self.lines.close()
        self.socket.close()


def shape(reply):
    """The types, and of arrays of different lengths the type of what is in them."""
    kinds = re.findall(rb"(?:^|\r\n)([$=*%:+_-])", reply)
    return [kinds[0]] + sorted(set(kinds[1:]))


@pytest.fixture(name="redis", scope="module")
def run_redis(tmp_path_factory):
    redis = Redis(tmp_path_factory.mktemp("redis") / "server")
    yield redis.port
    redis.stop()


@pytest.fixture(name="node", params=["memory", "disk"])
def run_node(request, tmp_path):
    more = [f"--disk.path={tmp_path / 'store'}", "--disk.size=256MiB"] if request.param == "disk" else []
    node = Node(tmp_path, *more)
    yield node
    node.end()


@pytest.mark.parametrize("protocol", [2, 3])
def test_replies_are_those_of_redis(node, redis, protocol):
    theirs, ours = Server(redis, protocol), Server(node.resp, protocol)
    theirs.reply("FLUSHALL")
    wrong = []
    for line in SAME:
        wanted, got = theirs.reply(*words(line)), ours.reply(*words(line))
        if wanted != got:
            wrong.append((line[:60], wanted[:120], got[:120]))
    for line in ALIKE:
        wanted, got = theirs.reply(*words(line)), ours.reply(*words(line))
        if shape(wanted) != shape(got):
            wrong.append((line, wanted[:120], got[:120]))
    assert not wrong, "\n".join(map(str, wrong))
    theirs.close()
    ours.close()


# ---- tools --------------------------------------------------------------------------------------

def cli(node, *arguments):
    done = subprocess.run(["redis-cli", "-p", str(node.resp), *arguments], check=True, capture_output=True, text=True,
                          timeout=SECONDS)
    assert "ERR" not in done.stdout + done.stderr, done
    return done.stdout


def test_tools_start_and_work(node):
    server = Server(node.resp, 2)
    for i in range(50):
        server.reply("SET", f"k{i}", "v" * i)
    assert "Biggest string found '\"k49\"' has 49 bytes" in cli(node, "--bigkeys")
    assert "50 strings" in cli(node, "--memkeys")
    assert len(cli(node, "--scan").split()) == 50 and len(cli(node, "keys", "*").split()) == 50
    assert cli(node, "-3", "client", "list").startswith("id=")
    out = subprocess.run(["redis-benchmark", "-p", str(node.resp), "-n", "2000", "-c", "5", "--csv", "-t",
                          "ping_inline,ping_mbulk,set,get,incr,mset"], check=True, capture_output=True, text=True,
                         timeout=SECONDS)
    assert "rror" not in out.stdout + out.stderr, out
    server.close()


@pytest.mark.parametrize("protocol", [2, 3])
def test_redis_py_uses_what_is_served(node, protocol):
    redis = pytest.importorskip("redis")
    client = redis.Redis(port=node.resp, protocol=protocol, client_name="me", decode_responses=True)
    assert client.incr("i") == 1 and client.incrby("i", 5) == 6 and client.decr("i", 2) == 4
    assert client.incrbyfloat("f", 1.5) == 1.5 and client.getdel("i") == "4" and client.get("i") is None
    assert client.setnx("n", 1) and not client.setnx("n", 2) and client.getset("n", 3) == "1"
    assert client.getex("n", ex=100) == "3" and 98 <= client.ttl("n") <= 100 and client.type("n") == "string"
    assert sorted(client.keys("*")) == ["f", "n"] and len(client.time()) == 2
    mine = [row for row in client.client_list() if row["name"] == "me"]
    assert len(mine) == 1 and mine[0]["cmd"] == "client" and int(mine[0]["resp"]) == protocol
    assert str(client.client_info()["id"]) == mine[0]["id"] and client.acl_whoami() == "default"
    assert client.info("keyspace") == {"db0": {"keys": 2, "expires": 0, "avg_ttl": 0}}
    assert "server" not in client.info("clients") and client.info()["role"] == "master"
    assert client.slowlog_get() == [] and client.slowlog_len() == 0 and client.latency_latest() == []
    assert client.memory_usage("n") > 0 and client.object("encoding", "n") in ("embstr", "raw")
    assert client.command_count() == len(client.command_list()) > 50
    pipe = client.pipeline(transaction=False)
    pipe.execute_command("TIERCE.HINT", "SESSION", "CLOSED")
    pipe.set("n", 4)
    pipe.execute_command("TIERCE.HINT", "NONE")
    assert pipe.execute() == ["OK", True, "OK"]
    client.close()


# ---- concurrent use -----------------------------------------------------------------------------

def test_numbers_of_many_clients_add_up(node):
    """Each INCR is seen once by one: the answers are the numbers up to the sum."""
    answers = [[] for _ in range(8)]

    def count(mine):
        server = Server(node.resp, 2)
        for _ in range(500):
            mine.append(int(server.reply("INCR", "sum")[1:-2]))
        server.close()

    threads = [threading.Thread(target=count, args=(mine,)) for mine in answers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(sum(answers, [])) == list(range(1, 4001))


def test_one_of_many_takes_a_value(node):
    """GETDEL and SETNX: for each value there is one who gets it."""
    got = []

    def take_all():
        server = Server(node.resp, 2)
        for i in range(200):
            server.reply("SETNX", f"v{i}", "x" * 20_000)
            if server.reply("GETDEL", f"v{i}") != b"$-1\r\n":
                got.append(i)
        server.close()

    first = Server(node.resp, 2)
    for i in range(200):
        first.reply("SET", f"v{i}", "x" * 20_000)
    made = [first.reply("SETNX", f"v{i}", "y") for i in range(200)]
    threads = [threading.Thread(target=take_all) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert made == [b":0\r\n"] * 200 and 200 <= len(got) <= 1000
    assert first.reply("DBSIZE") == b":0\r\n"
    first.close()


# ---- which names there are ----------------------------------------------------------------------

def scan(server, count, visit=lambda name: None):
    names, cursor = [], b"0"
    while True:
        server.socket.sendall(command("SCAN", cursor, "COUNT", count))
        assert server.lines.readline() == b"*2\r\n"
        cursor = server.read().split(b"\r\n")[1]
        page = int(server.lines.readline()[1:])
        found = [server.read().split(b"\r\n")[1] for _ in range(page)]
        for name in found:
            visit(name)
        names += found
        if cursor == b"0":
            return names
        assert int(cursor) < 1 << 53


@pytest.fixture(name="crowded")
def run_crowded_node(tmp_path):
    """More values than memory has room for: some lie on disk, and the last ones in both."""
    node = Node(tmp_path, f"--disk.path={tmp_path / 'store'}", "--disk.size=256MiB", "--memory.size=32MiB",
                "--disk.flush_interval=20ms")
    server, value = Server(node.resp, 2), os.urandom(40_000)
    for i in range(NAMES):
        assert server.reply("SET", f"k{i}", value[i % 100:]) == b"+OK\r\n"
        if i % 100 == 99:
            wait_until(lambda: node.metric('tier_durable_chunks{tier="disk"}') > i, SECONDS)
    assert 0 < node.metric('tier_chunks{tier="memory"}') < NAMES
    yield node
    server.close()
    node.end()


def test_each_name_is_told_once(crowded):
    server = Server(crowded.resp, 2)
    for count in (1, 10, 1000):
        names = scan(server, count)
        assert len(names) == len(set(names)) == NAMES
    assert len(server.reply("KEYS", "*").split(b"\r\n$")) == NAMES + 1
    server.close()


def test_no_name_is_missed_while_values_move(crowded):
    """Reads each name that SCAN returns, which brings it to memory and evicts others. Names that are replaced meanwhile
    are not checked."""
    server, other, value = Server(crowded.resp, 2), Server(crowded.resp, 2), os.urandom(40_000)

    def use(name):
        other.reply("GET", name)
        assert other.reply("SET", f"k{int(name[1:]) // 7 * 7}", value[1:]) == b"+OK\r\n"

    for _ in range(2):
        told = set(scan(server, 100, use))
        stayed = {b"k%d" % i for i in range(NAMES) if i % 7 != 0}
        assert stayed <= told, stayed - told
    for one in (server, other):
        one.close()


# ---- all of them --------------------------------------------------------------------------------

def test_flushall_is_for_both_protocols(node):
    server, lm = Server(node.resp, 2), Lm(node)
    server.reply("SET", "k", "v")
    lm.put("k", b"x" * 100_000)
    assert lm.exist("k") and server.reply("FLUSHDB") == b"+OK\r\n"
    assert lm.get("k") == b"x" * 100_000 and server.reply("GET", "k") == b"$-1\r\n"
    assert server.reply("FLUSHALL") == b"+OK\r\n" and not lm.exist("k")
    lm.close()
    server.close()


def test_a_tenant_sees_and_clears_its_own(tmp_path):
    tokens = tmp_path / "tokens"
    tokens.write_text("".join(f"read,write,admin {name} {hashlib.sha256(name.encode()).hexdigest()} {tenant}\n"
                              for name, tenant in (("nobody", ""), ("alice", "a"), ("bob", "b"))))
    tokens.chmod(0o600)
    node = Node(tmp_path, f"--auth.token_file={tokens}")
    servers, lm = {name: Server(node.resp, 2) for name in ("nobody", "alice", "bob")}, Lm(node)
    lm.put("k", b"x" * 1000)
    for name, server in servers.items():
        assert server.reply("AUTH", name, name) == b"+OK\r\n" and server.reply("ACL", "WHOAMI").endswith(b"%s\r\n" % name.encode())
        server.reply("SET", "k", name)
    listed = servers["alice"].reply("CLIENT", "LIST")
    assert listed.count(b"id=") == 1 and b"user=alice" in listed
    assert servers["alice"].reply("FLUSHALL") == b"+OK\r\n" and servers["alice"].reply("DBSIZE") == b":0\r\n"
    assert lm.exist("k") and servers["nobody"].reply("DBSIZE") == servers["bob"].reply("DBSIZE") == b":1\r\n"
    assert servers["nobody"].reply("FLUSHALL") == b"+OK\r\n" and not lm.exist("k")
    assert servers["bob"].reply("GET", "k") == b"$3\r\nbob\r\n" and servers["bob"].reply("KEYS", "*") == b"*1\r\n$1\r\nk\r\n"
    for one in (*servers.values(), lm):
        one.close()
    node.end()


def test_the_documentation_names_each_command(node):
    text = (Path(__file__).parents[3] / "docs" / "using" / "node.md").read_text()
    server = Server(node.resp, 2)
    names = server.reply("COMMAND", "LIST").split(b"\r\n")[2::2]
    assert len(names) > 50 and [name for name in names if f"`{name.decode().upper()}" not in text] == []
    for line in re.findall(r"(?ms)Not served.*?(?=^Limits)", text)[0].splitlines():
        for word in re.findall(r"`([A-Z]+)`", line):
            if "CLIENT" not in line and word != "WHOAMI":
                assert server.reply(word).startswith(b"-ERR unknown command"), word
    server.close()
