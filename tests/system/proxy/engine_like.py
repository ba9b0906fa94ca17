# SPDX-License-Identifier: Apache-2.0
"""HTTP servers that answer as vLLM does, and fail on request; and `tierce proxy` as a process."""

import asyncio
import atexit
import http.client
import json
import re
import signal
import socket
import subprocess
import threading
import time

from manager_process import executable

SECONDS = 20  # for whatever should come at once


class Engine:
    """An engine on a port of its own. A test changes its fields while it runs."""

    loop = None

    def __init__(self, text="abc"):
        self.text = text            # the words of an answer: one event for each letter
        self.status = 200           # of answers to /v1/...; 0: the connection is closed instead
        self.health = 200
        self.cut_after = None       # events, after which the connection is reset
        self.hold_after = None      # events, after which `released` is awaited
        self.params = None          # kv_transfer_params of answers
        self.is_chunked = True      # a stream has a mark of its end
        self.cut_bytes = None       # of an event, before the connection is reset; of a whole answer, before it is closed
        self.padding = 0            # bytes in each event
        self.matched = {}           # answers of /query, by instance
        self.tokens = [1, 2, 3]     # of /tokenize
        self.inbox = None           # the answer to those that ask for tickets
        self.asked = 0              # how often they did; they are not among the requests
        self.requests = []          # (path, headers, body)
        self.disconnects = self.checks = 0
        self.sent = 0               # bytes of streams
        self.writers = set()        # open connections
        self.is_stopped = False
        self.released = self.run(self.make_event())
        self.server = self.run(asyncio.start_server(self.serve, "127.0.0.1", 0))
        self.port = self.server.sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"

    @classmethod
    def run(cls, coroutine):
        if cls.loop is None:
            cls.loop = asyncio.new_event_loop()
            threading.Thread(target=cls.loop.run_forever, daemon=True).start()
        return asyncio.run_coroutine_threadsafe(coroutine, cls.loop).result(SECONDS)

    async def make_event(self):
        return asyncio.Event()

    def release(self):
        self.loop.call_soon_threadsafe(self.released.set)

    def stop(self):
        """As when its process is killed."""
        async def close():
            self.is_stopped = True
            self.server.close()
            for writer in self.writers:
                writer.transport.abort()
        self.run(close())

    def bodies(self, path="/v1/completions"):
        return [body for where, _, body in self.requests if where == path]

    async def serve(self, reader, writer):
        self.writers.add(writer)
        if self.is_stopped:  # it was accepted just before
            writer.transport.abort()
        try:
            while await self.serve_one(reader, writer):
                pass
        except (ConnectionError, asyncio.IncompleteReadError):
            self.disconnects += 1
        finally:
            self.writers.discard(writer)
            writer.close()

    async def serve_one(self, reader, writer):
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        method, path, _ = head.split("\r\n")[0].split()
        headers = {k.lower(): v.strip() for k, v in (line.split(":", 1) for line in head.split("\r\n")[1:] if line)}
        data = await reader.readexactly(int(headers.get("content-length", 0)))
        if path == "/health":
            self.checks += 1
            return await self.reply(writer, self.health, b"")
        try:
            body = json.loads(data) if data else None
        except ValueError:
            body = data
        ours = (body.get("kv_transfer_params") or {}).get("tierce") if isinstance(body, dict) else None
        if isinstance(ours, dict) and "inbox" in ours:
            self.asked += 1
            given = {} if self.inbox is None else {"kv_transfer_params": {"tierce": {"inbox": self.inbox}}}
            return await self.reply(writer, self.status or 500, json.dumps({"choices": [{"text": "x"}], **given}).encode())
        self.requests.append((path, headers, body))
        if self.status == 0:
            writer.transport.abort()
            return False
        if self.status != 200:
            return await self.reply(writer, self.status, b'{"error": {"message": "of the engine"}}')
        if isinstance(body, dict) and body.get("stream"):
            return await self.stream(reader, writer)
        return await self.answer(reader, writer, path, body)

    async def answer(self, reader, writer, path, body):
        if self.hold_after is not None:
            await self.hold(reader)
        out = {"/v1/models": {"object": "list", "data": [{"id": "m"}]},
               "/tokenize": {"count": len(self.tokens), "tokens": self.tokens},
               "/query": {"instances": {i: {"longest_matched": n} for i, n in self.matched.items()}}}.get(path)
        if out is None:
            out = {"choices": [{"text": self.text}], "kv_transfer_params": self.params}
        if not self.is_chunked:
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\n\r\n" +
                         json.dumps(out).encode()[:self.cut_bytes])
            await writer.drain()
            return False
        return await self.reply(writer, 200, json.dumps(out).encode())

    async def reply(self, writer, status, data):
        writer.write(b"HTTP/1.1 %d X\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % (status, len(data)) + data)
        await writer.drain()
        return True

    async def hold(self, reader):
        """Waits for release, or the end of the client."""
        gone = asyncio.ensure_future(reader.read(1))
        release = asyncio.ensure_future(self.released.wait())
        done, pending = await asyncio.wait({gone, release}, return_when=asyncio.FIRST_COMPLETED)
        for task in pending:
            task.cancel()
        if gone in done:
            raise ConnectionError

    async def stream(self, reader, writer):
        mark = b"Transfer-Encoding: chunked\r\n" if self.is_chunked else b"Connection: close\r\n"
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\n" + mark + b"\r\n")
        await writer.drain()
        for number, letter in enumerate(self.text):
            if number == self.hold_after:
                await self.hold(reader)
            if number == self.cut_after:
                if self.cut_bytes is not None:
                    await self.event(writer, event(letter)[:self.cut_bytes])
                writer.transport.abort()
                return False
            await self.event(writer, event(letter + " " * self.padding))
        await self.event(writer, b"data: [DONE]\n\n")
        if self.is_chunked:
            writer.write(b"0\r\n\r\n")
            await writer.drain()
        return self.is_chunked

    async def event(self, writer, data):
        writer.write(b"%x\r\n%s\r\n" % (len(data), data) if self.is_chunked else data)
        await writer.drain()
        self.sent += len(data)


def event(text):
    return b"data: " + json.dumps({"choices": [{"text": text}]}).encode() + b"\n\n"


def wait_for(condition, what=""):
    until = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < until, what or "it never came true"
        time.sleep(0.005)


class Proxy:
    def __init__(self, folder, *arguments, decode=(), prefill=(), ready=True):
        self.log = folder / f"proxy-{time.monotonic_ns()}.log"
        self.headers = {}  # of requests for its metrics
        urls = ["--decode.urls=" + ",".join(e if isinstance(e, str) else e.url for e in decode)]
        if prefill:
            urls.append("--prefill.urls=" + ",".join(e if isinstance(e, str) else e.url for e in prefill))
        with open(self.log, "wb") as out:
            self.process = subprocess.Popen(
                [str(executable()), "proxy", "--listen.port=0", "--health.interval=50ms", "--serve.loops=2", "--serve.drain=10s", *urls, *arguments],
                stdout=out, stderr=out)
        atexit.register(self.process.kill)  # of a test that failed before it ended its proxy
        until = time.monotonic() + SECONDS
        while (found := re.search(r"listening on .*HTTP (\d+)\n", self.log.read_text())) is None:
            assert self.process.poll() is None and time.monotonic() < until, self.log.read_text()
            time.sleep(0.005)
        self.port = int(found.group(1))
        if ready:
            wait_for(lambda: self.ask("GET", "/readyz")[0] == 200, "never ready")

    def open(self, path="/v1/completions", body=None, receive=None, **headers):
        """Sends a request; its answer is still to be read."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=SECONDS)
        if receive is not None:
            connection.sock = socket.socket()
            connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive)
            connection.sock.settimeout(SECONDS)
            connection.sock.connect(("127.0.0.1", self.port))
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        connection.request("POST", path, data, headers)
        return connection

    def ask(self, method, path, body=None, **headers):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=SECONDS)
        connection.request(method, path, body if body is None or isinstance(body, bytes) else json.dumps(body).encode(), headers)
        response = connection.getresponse()
        data = response.read()
        connection.close()
        return response.status, data

    def complete(self, **more):
        return self.ask("POST", "/v1/completions", {"model": "m", "prompt": "hello", **more})

    def metric(self, name, total=True):
        text = self.ask("GET", "/metrics", **self.headers)[1].decode()
        return int(float(re.search(rf"^tierce_proxy_{name}{'_total' if total else ''} (\S+)$", text, re.M).group(1)))

    def end(self):
        """It ends by itself, with exit code 0: sanitizers report by it."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            code = self.process.wait(SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise
        assert code == 0, f"{code}: {self.log.read_text()}"
