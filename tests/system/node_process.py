# SPDX-License-Identifier: Apache-2.0
"""A `tierce node` in a process of its own, bare sockets to it, and LMCache's messages."""

import atexit
import http.client
import re
import signal
import socket
import struct
import subprocess
import time

from manager_process import executable

SECONDS = 60
REQUEST, REPLY = struct.Struct("<9i150s"), struct.Struct("<9i")
PUT, GET, EXIST, LIST, HEALTH = range(1, 6)
OK, FAIL = 200, 400


class Node:
    def __init__(self, folder, *arguments, env=None, wrapper=(), program=None):
        self.program = program or executable()
        self.folder, self.arguments, self.env, self.wrapper = folder, list(arguments), env, wrapper
        self.start()

    def start(self):
        self.log = self.folder / "node.log"
        out = open(self.log, "wb")
        self.process = subprocess.Popen(
            [*self.wrapper, str(self.program), "node", "--listen.resp_port=0", "--listen.lm_port=0",
             "--listen.http_port=0", "--memory.size=128MiB", "--control.socket=", *self.arguments],
            stdout=out, stderr=out, env=self.env)
        atexit.register(self.process.kill)  # of a test that failed before it ended its node
        out.close()
        until = time.monotonic() + SECONDS
        while (found := re.search(r"listening on .*\n", self.log.read_text())) is None:
            assert self.process.poll() is None and time.monotonic() < until, self.log.read_text()
            time.sleep(0.01)
        ports = dict(re.findall(r"(RESP|lm|HTTP)(?: 127\.0\.0\.1)? (\d+)", found.group()))
        self.resp, self.lm, self.http = (int(ports.get(n, 0)) for n in ("RESP", "lm", "HTTP"))

    def connect(self, port, receive=None):
        out = socket.socket()
        if receive is not None:
            out.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive)
        out.settimeout(SECONDS)
        out.connect(("127.0.0.1", port))
        out.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return out

    def ask(self, method, path, body=None, **headers):
        connection = http.client.HTTPConnection("127.0.0.1", self.http, timeout=SECONDS)
        connection.request(method, path, body, headers)
        response = connection.getresponse()
        text = response.read().decode()
        connection.close()
        return response.status, text

    def metric(self, *names):
        """Its value; several: a list of the values at one time."""
        text = self.ask("GET", "/metrics")[1]
        values = [float(re.search(rf"^tierce_{name} (\S+)$", text, re.M).group(1)) for name in names]
        return values if len(values) > 1 else values[0]

    def has_all_on_disk(self):
        queued, chunks, durable = self.metric(*(f'tier_{name}{{tier="disk"}}' for name in ("queued_bytes", "chunks", "durable_chunks")))
        return queued == 0 and chunks == durable

    def resident(self):
        status = open(f"/proc/{self.process.pid}/status", encoding="ascii").read()
        return int(re.search(r"VmRSS:\s+(\d+)", status).group(1)) << 10

    def kill(self):
        self.process.kill()
        self.process.wait()

    def end(self):
        """It ends by itself and well: sanitizers speak by the exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            code = self.process.wait(SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise
        assert code == 0, f"{code}: {self.log.read_text()}"


def take(sock, count):
    out = bytearray()
    while len(out) < count:
        part = sock.recv(min(count - len(out), 1 << 20))
        if not part:
            raise ConnectionError("closed")
        out += part
    return bytes(out)


class Lm:
    """A client of lm:// as LMCache's: a PUT has no answer."""

    def __init__(self, node, sock=None):
        self.socket = node.connect(node.lm) if sock is None else sock

    def send(self, command, key="", length=0, shape=(1, 3, 0, 2, 4, 16, 16)):
        self.socket.sendall(REQUEST.pack(command, length, *shape, key.encode().ljust(150)))

    def put(self, key, value):
        self.send(PUT, key, len(value))
        self.socket.sendall(value)

    def get(self, key):
        self.send(GET, key)
        code, length, *_ = REPLY.unpack(take(self.socket, REPLY.size))
        return take(self.socket, length) if code == OK else None

    def exist(self, key):
        self.send(EXIST, key)
        return REPLY.unpack(take(self.socket, REPLY.size))[0] == OK

    def close(self):
        self.socket.close()


def command(*arguments):
    parts = [a if isinstance(a, bytes) else str(a).encode() for a in arguments]
    return b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%s\r\n" % (len(p), p) for p in parts)
