#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares a node with redis-server, LMCache's server and a bare socket loop, with the same
client.

    tools/bench/node.py EXECUTABLE [--seconds 0.1] [--rounds 12] [--lmcache PYTHON]

For each size: PUT and GET of lm://, SET and GET of RESP, one connection, GB/s; the time of a GET of 4 KiB beside a round
trip of 200 bytes; and small commands from redis-benchmark, for each second of the server's
processor. The bare loop is a process that reads or sends the same number of bytes after a message
of lm://, without looking at them; "answered" also waits for an answer after each PUT, as RESP
does. Neither is a limit: a node wakes less often, and may be faster. This measures the processor
time that the client needs to send a value; "maximum GB per second of the client's processor time" is
its best round. --lmcache names a Python that has LMCache, whose server is measured too.

In each round all servers take turns, in a new order. The table shows the median, and the median of
the rounds' ratios, because a machine may be twice as fast in one second as in the next. The client
runs on the first processor and the servers on the others: if the scheduler put both on one, no
process would have to be woken, and all figures would double.
"""

import argparse
import csv
import io
import multiprocessing
import os
import re
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import time

REQUEST, REPLY = struct.Struct("<9i150s"), struct.Struct("<9i")
KEYS = 4
SMALL_COMMANDS = 200_000


def key_of(size, index):
    """A key that LMCache's server reads too."""
    return f"org/m@1@0@{size + index % KEYS:064x}@bfloat16"


def take_into(sock, view):
    at = 0
    while at < len(view):
        n = sock.recv_into(view[at:])
        if n == 0:
            raise ConnectionError("closed")
        at += n


def take_line(sock):
    out = b""
    while not out.endswith(b"\r\n"):
        out += sock.recv(1)
    return out


class Lm:
    def __init__(self, sock):
        self.sock = sock

    def ask(self, command, key, length=0):
        self.sock.sendall(REQUEST.pack(command, length, 1, 3, 0, 2, 4, 16, 16, key.encode().ljust(150)))

    def put(self, key, value):
        self.ask(1, key, len(value))
        self.sock.sendall(value)

    def settle(self):
        """A PUT has no answer. When this request is answered, the server has read all PUTs before
        it."""
        self.ask(3, key_of(0, 0))
        take_into(self.sock, memoryview(bytearray(REPLY.size)))

    def get(self, key, view):
        self.ask(2, key)
        head = bytearray(REPLY.size)
        take_into(self.sock, memoryview(head))
        code, length, *_ = REPLY.unpack(head)
        assert (code, length) == (200, len(view)), (code, length)
        take_into(self.sock, view)

    def bounce(self, view):
        self.ask(4, "")
        take_into(self.sock, view)


class LmAnswered(Lm):
    def put(self, key, value):
        super().put(key, value)
        super().settle()

    def settle(self):
        pass


class Resp:
    def __init__(self, sock):
        self.sock = sock

    def put(self, key, value):
        self.sock.sendall(b"*3\r\n$3\r\nSET\r\n$%d\r\n%s\r\n$%d\r\n" % (len(key), key.encode(), len(value)))
        self.sock.sendall(value)
        self.sock.sendall(b"\r\n")
        assert take_line(self.sock) == b"+OK\r\n"

    def settle(self):
        pass

    def get(self, key, view):
        self.sock.sendall(b"*2\r\n$3\r\nGET\r\n$%d\r\n%s\r\n" % (len(key), key.encode()))
        assert take_line(self.sock) == b"$%d\r\n" % len(view)
        take_into(self.sock, view)
        assert take_line(self.sock) == b"\r\n"


def serve_bare(listener):
    sock, _ = listener.accept()
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    memory = memoryview(bytearray(64 << 20))
    head = bytearray(REQUEST.size)
    length = 0
    while True:
        try:
            take_into(sock, memoryview(head))
        except ConnectionError:
            return
        command, asked, *_ = REQUEST.unpack(head)
        if command == 1:
            length = asked
            take_into(sock, memory[:length])
        elif command == 2:
            sock.sendmsg([REPLY.pack(200, length, 1, 3, 2, 4, 16, 16, 0), memory[:1 << 20]])
            sock.sendall(memory[1 << 20:length])
        elif command == 3:
            sock.sendall(REPLY.pack(400, 0, 1, 2, 0, 0, 0, 0, 0))
        else:
            sock.sendall(memory[:200])


def connect(port):
    until = time.monotonic() + 30
    while True:
        try:
            sock = socket.create_connection(("127.0.0.1", port))
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return sock
        except ConnectionError:
            if time.monotonic() > until:
                raise
            time.sleep(0.05)


def free_port():
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


# ---- what is measured ----

def make_values(size):
    """Two values, put in turn, because putting a value that already exists has another cost than
    putting a new one."""
    return os.urandom(size), os.urandom(size)


def put_for(client, values, seconds):
    """Returns the number of PUTs: the same number of each value, so that the next call begins with
    a changed value."""
    begun, count, size = time.perf_counter(), 0, len(values[0])
    while count == 0 or count % (2 * KEYS) or time.perf_counter() - begun < seconds:
        client.put(key_of(size, count), values[count // KEYS % 2])
        count += 1
    return count


def measure_put(client, values, seconds):
    begun = time.perf_counter()
    count = put_for(client, values, seconds)
    client.settle()
    return count * len(values[0]) / (time.perf_counter() - begun) / 1e9


def measure_sending(client, values, seconds):
    worked = time.process_time()
    count = put_for(client, values, seconds)
    return count * len(values[0]) / (time.process_time() - worked) / 1e9


def measure_get(client, view, seconds):
    count, begun = 0, time.perf_counter()
    while (now := time.perf_counter()) - begun < seconds or count < 4:
        client.get(key_of(len(view), count), view)
        count += 1
    return count * len(view) / (now - begun) / 1e9


def measure_time(action, seconds):
    """The median, in microseconds."""
    times, begun = [], time.perf_counter()
    while (now := time.perf_counter()) - begun < seconds:
        action()
        times.append(time.perf_counter() - now)
    return statistics.median(times) * 1e6


def take_turns(rounds, measures):
    """measures: name -> function without arguments. Returns name -> the result of each round."""
    names, out = list(measures), {name: [] for name in measures}
    for i in range(rounds):
        first = i % len(names)
        for name in names[first:] + names[:first]:
            out[name].append(measures[name]())
    return out


def ratio(had, name, base):
    return statistics.median(a / b for a, b in zip(had[name], had[base]))


RATIOS = (("node lm", "bare"), ("node lm", "LMCache's server"), ("node RESP", "answered"), ("node RESP", "redis-server"))


def measure_values(clients, options):
    ratios = [r for r in RATIOS if all(name in clients for name in r)]
    columns = list(clients) + [f"{a} : {b}" for a, b in ratios]
    print("| size | what, GB/s | " + " | ".join(columns) + " |")
    print("|---|---|" + "---|" * len(columns))
    for size in (1 << 20, 4 << 20, 16 << 20):
        values, view = make_values(size), memoryview(bytearray(size))
        for what in ("put", "get"):
            had = take_turns(options.rounds, {
                name: (lambda c=client: measure_put(c, values, options.seconds)) if what == "put" else
                      (lambda c=client: measure_get(c, view, options.seconds))
                for name, client in clients.items()})
            print(f"| {size >> 20} MiB | {what} | "
                  + " | ".join([f"{statistics.median(had[name]):.2f}" for name in clients]
                               + [f"{ratio(had, a, b):.2f}" for a, b in ratios]) + " |", flush=True)
        for name in ("node lm", "node RESP"):
            clients[name].get(key_of(size, 0), view)
            assert view == values[1]


def measure_client(clients, options):
    names = ("node lm", "node RESP")
    print("\n| PUT, maximum GB per second of the client's processor time | " + " | ".join(names) + " |")
    print("|---|" + "---|" * len(names))
    for size in (1 << 20, 4 << 20, 16 << 20):
        values = make_values(size)
        had = take_turns(options.rounds, {name: (lambda c=clients[name]: measure_sending(c, values, options.seconds))
                                          for name in names})
        print(f"| {size >> 20} MiB | " + " | ".join(f"{max(rates):.2f}" for rates in had.values()) + " |", flush=True)
        clients["node lm"].settle()


def measure_latency(clients, options):
    view, bounced = memoryview(bytearray(4096)), memoryview(bytearray(200))
    measures = {"200 bytes, bare": lambda: measure_time(lambda: clients["bare"].bounce(bounced), options.seconds)}
    for name in ("node lm", "LMCache's server", "node RESP", "redis-server"):
        if name in clients:
            clients[name].put(key_of(4096, 0), bytes(4096))
            clients[name].settle()
            measures[name] = lambda c=clients[name]: measure_time(lambda: c.get(key_of(4096, 0), view), options.seconds)
    had = take_turns(options.rounds, measures)
    print("\n| GET of 4 KiB, p50, µs | " + " | ".join(had) + " | node lm : bare |")
    print("|---|" + "---|" * (len(had) + 1))
    print("| | " + " | ".join(f"{statistics.median(times):.1f}" for times in had.values())
          + f" | {ratio(had, 'node lm', '200 bytes, bare'):.2f} |", flush=True)


def processor_seconds(pid):
    fields = open(f"/proc/{pid}/stat", encoding="ascii").read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


# What redis-benchmark is told; its own SET puts the same value again under each name, which a node notices.
SMALL = {"set, the same": ["-t", "set"], "get": ["-t", "get"],
         "set, another": ["set", "key:__rand_int__", "x" * 52 + "__rand_int__"]}


def run_small(port, pid, what):
    begun = processor_seconds(pid)
    out = subprocess.run(["redis-benchmark", "-p", str(port), "-n", str(SMALL_COMMANDS), "-c", "50", "-P", "16",
                          "-d", "64", "-r", "1000", "--csv", *SMALL[what]], check=True, capture_output=True, text=True).stdout
    assert len(list(csv.reader(io.StringIO(out)))) == 2, out
    return SMALL_COMMANDS / (processor_seconds(pid) - begun) / 1e3


def measure_small(servers):
    print("\n| 64 bytes, 50 connections, 16 commands at a time, 1,000 per second of processor time | "
          + " | ".join(servers) + " | ratio |")
    print("|---|" + "---|" * (len(servers) + 1))
    for what in SMALL:
        had = take_turns(5, {name: (lambda s=server: run_small(*s, what)) for name, server in servers.items()})
        print(f"| {what} | " + " | ".join(f"{statistics.median(numbers):.0f}" for numbers in had.values())
              + f" | {ratio(had, 'node RESP', 'redis-server'):.2f} |", flush=True)


# ---- who is measured ----

class Servers:
    def __init__(self, processors):
        self.processors, self.children = processors, []

    def pin(self):
        os.sched_setaffinity(0, self.processors)

    def start(self, command, **kwargs):
        child = subprocess.Popen(command, preexec_fn=self.pin, **kwargs)
        self.children.append(child)
        return child

    def start_bare(self):
        listener = socket.create_server(("127.0.0.1", 0))

        def serve():
            self.pin()
            serve_bare(listener)

        multiprocessing.Process(target=serve, daemon=True).start() # ends with its connection
        return listener.getsockname()[1]

    def end(self):
        for child in self.children:
            child.terminate()
            child.wait()


def measure(servers, folder, options):
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    node = servers.start([options.executable, "node", "--listen.resp_port=0", "--listen.lm_port=0", "--listen.http_port=0",
                          "--memory.size=1GiB", "--serve.loops=1", "--control.socket="], stderr=subprocess.PIPE, text=True)
    line = next(line for line in node.stderr if "listening" in line)
    ports = {name: int(port) for name, port in re.findall(r"(RESP|lm) (\d+)", line)}
    redis_port = free_port()
    redis = servers.start(["redis-server", "--port", str(redis_port), "--save", "", "--dir", folder], **quiet)
    clients = {"node lm": Lm(connect(ports["lm"])), "bare": Lm(connect(servers.start_bare())),
               "node RESP": Resp(connect(ports["RESP"])), "answered": LmAnswered(connect(servers.start_bare())),
               "redis-server": Resp(connect(redis_port))}
    if options.lmcache:
        port = free_port()
        servers.start([options.lmcache, "-m", "lmcache.v1.server", "127.0.0.1", str(port)], **quiet)
        clients["LMCache's server"] = Lm(connect(port))
    measure_values(clients, options)
    measure_client(clients, options)
    measure_latency(clients, options)
    measure_small({"node RESP": (ports["RESP"], node.pid), "redis-server": (redis_port, redis.pid)})


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("executable")
    parser.add_argument("--seconds", type=float, default=0.1, help="of each in a round")
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--lmcache", metavar="PYTHON")
    options = parser.parse_args()
    processors = sorted(os.sched_getaffinity(0))
    servers = Servers(set(processors[1:] or processors))
    os.sched_setaffinity(0, {processors[0]})
    with tempfile.TemporaryDirectory() as folder:
        try:
            measure(servers, folder, options)
        finally:
            servers.end()
    return 0


if __name__ == "__main__":
    sys.exit(main())
