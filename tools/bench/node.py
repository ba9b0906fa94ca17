#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures a node beside redis-server and a bare socket loop, with the same client.

    tools/bench/node.py EXECUTABLE [--seconds 1] [--lmcache PYTHON]

For each size: PUT and GET of lm://, SET and GET of RESP, one connection, GB/s; the median of rounds in which all
take turns. The bare loop is a process that reads as many bytes, or sends them, without a look at them, behind a
message of lm://. --lmcache names a Python that has LMCache, whose server is measured too.
"""

import argparse
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
ROUNDS = 5
KEYS = 4


def key_of(size, index):
    """One that LMCache's server reads too."""
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
        """A PUT has no answer: when this has one, all before it were taken."""
        self.ask(3, key_of(0, 0))
        take_into(self.sock, memoryview(bytearray(REPLY.size)))

    def get(self, key, view):
        self.ask(2, key)
        head = bytearray(REPLY.size)
        take_into(self.sock, memoryview(head))
        code, length, *_ = REPLY.unpack(head)
        assert (code, length) == (200, len(view)), (code, length)
        take_into(self.sock, view)


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
        else:
            sock.sendall(REPLY.pack(400, 0, 1, 2, 0, 0, 0, 0, 0))


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


def rate(action, size, seconds):
    count, begun = 0, time.perf_counter()
    while (now := time.perf_counter()) - begun < seconds or count < 4:
        action(count)
        count += 1
    return count * size / (now - begun) / 1e9


def measure_put(client, value, seconds):
    begun = time.perf_counter()
    count = 0
    while time.perf_counter() - begun < seconds or count < 4:
        client.put(key_of(len(value), count), value)
        count += 1
    client.settle()
    return count * len(value) / (time.perf_counter() - begun) / 1e9


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("executable")
    parser.add_argument("--seconds", type=float, default=1)
    parser.add_argument("--lmcache", metavar="PYTHON")
    options = parser.parse_args()
    processes = []
    with tempfile.TemporaryDirectory() as folder:
        node = subprocess.Popen([options.executable, "node", "--listen.resp_port=0", "--listen.lm_port=0",
                                 "--listen.http_port=0", "--memory.size=1GiB", "--control.socket="],
                                stderr=subprocess.PIPE, text=True)
        processes.append(node)
        line = node.stderr.readline()
        ports = dict(re.findall(r"(RESP|lm) (\d+)", line))
        redis_port = free_port()
        processes.append(subprocess.Popen(["redis-server", "--port", str(redis_port), "--save", "", "--dir", folder],
                                          stdout=subprocess.DEVNULL))
        listener = socket.create_server(("127.0.0.1", 0))
        bare = multiprocessing.Process(target=serve_bare, args=(listener,), daemon=True)
        bare.start()
        clients = {"node lm": Lm(connect(int(ports["lm"]))), "bare": Lm(connect(listener.getsockname()[1])),
                   "node RESP": Resp(connect(int(ports["RESP"]))), "redis-server": Resp(connect(redis_port))}
        if options.lmcache:
            port = free_port()
            processes.append(subprocess.Popen([options.lmcache, "-m", "lmcache.v1.server", "127.0.0.1", str(port)],
                                              stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
            clients["LMCache's server"] = Lm(connect(port))
        print("| size | what | " + " | ".join(clients) + " |")
        print("|---|---|" + "---|" * len(clients))
        for size in (1 << 20, 4 << 20, 16 << 20):
            value, view = os.urandom(size), memoryview(bytearray(size))
            rows = {(what, name): [] for what in ("put", "get") for name in clients}
            for _ in range(ROUNDS):
                for name, client in clients.items():
                    rows["put", name].append(measure_put(client, value, options.seconds))
                    rows["get", name].append(
                        rate(lambda i, c=client: c.get(key_of(size, i), view), size, options.seconds))
                    assert name == "bare" or view == value
            for what in ("put", "get"):
                print(f"| {size >> 20} MiB | {what} GB/s | "
                      + " | ".join(f"{statistics.median(rows[what, n]):.2f}" for n in clients) + " |", flush=True)
        bare.terminate()
    for process in processes:
        process.terminate()
        process.wait()
    return 0


if __name__ == "__main__":
    sys.exit(main())
