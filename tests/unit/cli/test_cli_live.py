# SPDX-License-Identifier: Apache-2.0
"""tierce optimize --live: follows a file, an HTTP response and a ZMQ publisher as they go on."""

import http.server
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import unittest

from cli_case import EXECUTABLE, CliCase, free_port

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
PATIENCE = 60  # seconds until a test gives up; none waits that long if all is well

# Publishes its input: a line is "NUMBER HEX" or "NUMBER HEX HEX HEX" for another count of frames.
PUBLISHER = """
import sys, zmq
socket = zmq.Context().socket(zmq.PUB)
socket.setsockopt(zmq.LINGER, 5000)
url = sys.argv[1]
if url.endswith(":0"):
    url = url[:-1] + str(socket.bind_to_random_port("tcp://127.0.0.1"))
else:
    socket.bind(url)
print(url, flush=True)
for line in sys.stdin:
    number, *frames = line.split()
    number = int(number).to_bytes(8, "big")
    socket.send_multipart([b"kv-events", number, *(bytes.fromhex(f) for f in frames)])
"""


def turn(number, ids):
    return json.dumps({"timestamp": number, "input_length": len(ids) * 512, "output_length": 1,
                       "hash_ids": ids}) + "\n"


def pack(value):
    """MessagePack of what events are made of."""
    if value is None:
        return b"\xc0"
    if isinstance(value, float):
        import struct
        return b"\xcb" + struct.pack(">d", value)
    if isinstance(value, int):
        return b"\xcf" + value.to_bytes(8, "big")
    if isinstance(value, str):
        return b"\xd9" + bytes([len(value)]) + value.encode()
    return b"\xdc" + len(value).to_bytes(2, "big") + b"".join(map(pack, value))


def batch(hashes, parent=None):
    return pack([1.5, [["BlockStored", hashes, parent, [], 16]], 0]).hex()


class Live(CliCase):
    """A follower that prints a line as soon as it has something new."""

    def follow(self, url, *args):
        clean = {k: v for k, v in os.environ.items() if not k.startswith("TIERCE_")}
        follower = subprocess.Popen(
            [EXECUTABLE, "optimize", "--live", url, "--every", "10ms", *args], text=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            cwd=self.folder, env=clean)
        guard = threading.Timer(PATIENCE, follower.kill)  # ends a reading that waits
        guard.start()
        self.addCleanup(guard.cancel)
        self.addCleanup(follower.wait)
        self.addCleanup(follower.kill)
        self.addCleanup(follower.stdout.close)
        self.addCleanup(follower.stderr.close)
        return follower

    def wait_for(self, follower, text):
        """Reads lines until one holds the text."""
        for line in follower.stdout:
            if text in line:
                return line
        return self.fail(f"ended without {text!r}: {follower.stderr.read()}")

    def end(self, follower, status=0):
        follower.send_signal(signal.SIGINT)
        out, err = follower.communicate(timeout=PATIENCE)
        self.assertEqual(follower.returncode, status, out + err)
        return out

    def append(self, path, text):
        with open(path, "a") as file:
            file.write(text)


class File(Live):
    def test_a_file_that_grows_is_replaced_and_cut(self):
        path = self.write("trace.jsonl", turn(0, [1, 2, 3]) + turn(1, [1, 2, 4]))
        follower = self.follow(path, "--capacity", "100")
        line = self.wait_for(follower, "requests=2 ")
        self.assertRegex(line, r"^\d\d:\d\d:\d\d requests=2 blocks=6 different=4 lost=0 "
                               r"lru\[100\]=33.33%$")
        self.append(path, turn(2, [1, 2, 4])[:20])
        self.append(path, turn(2, [1, 2, 4])[20:])
        self.wait_for(follower, "requests=3 blocks=9 different=4 lost=0 lru[100]=55.56%")
        os.rename(path, path + ".1")
        self.append(path + ".1", turn(3, [1, 2, 4]))
        self.append(path, turn(4, [1, 2, 4]) + "\n" * 500)
        self.wait_for(follower, "requests=5 ")
        with open(path, "w") as file:  # shorter than what was read, and of a time gone by
            file.write(turn(1, [1, 2, 4]))
        self.wait_for(follower, "requests=6 ")
        table = self.end(follower)
        self.assertIn("6 requests over", table)
        self.assertIn("18 blocks, 4 of them different", table)
        self.assertRegex(table, r"(?m)^lru +77\.78%$")
        self.assertIn("the source restarted 2 times", table)

    def test_it_is_the_curve_of_the_whole_trace(self):
        lines = [turn(i, [i % 5, 10 + i % 11, 100 + i % 30, 1000 + i]) for i in range(600)]
        path = self.write("trace.jsonl", "".join(lines[:300]))
        capacities = ("--capacity", "3,10,40,100,300", "--match", "prefix,any")
        follower = self.follow(path, *capacities)
        self.wait_for(follower, "requests=300 ")
        self.append(path, "".join(lines[300:]))
        self.wait_for(follower, "requests=600 ")
        rows = [line for line in self.end(follower).splitlines() if line.startswith("lru")]
        whole = self.check(0, "optimize", path, "--policy", "lru", *capacities).stdout
        self.assertEqual(rows, [line for line in whole.splitlines() if line.startswith("lru")])
        self.assertEqual(len(rows), 2)

    def test_all_policies(self):
        lines = [turn(i, [i % 5, 10 + i % 11, 100 + i % 30]) for i in range(400)]
        path = self.write("trace.jsonl", "".join(lines))
        args = ("--capacity", "3,10,40", "--policy", "lru,lfu,sieve,arc,leaf-lru,belady,kvcm-lru",
                "--order", "rev,fwd")
        follower = self.follow(path, *args)
        self.assertIn(" sieve/fwd[40]=", self.wait_for(follower, "requests=400 "))

        def rows(text):
            return [line for line in text.splitlines() if re.match(r"[a-z-]+(/\w+)? +\d", line)]

        table = rows(self.end(follower).split("hits by prefix against")[0])
        whole = rows(self.check(0, "optimize", path, *args).stdout.split("hits by prefix against")[0])
        self.assertEqual([r for r in table if "requests" not in r],
                         [r for r in whole if "requests" not in r])
        self.assertEqual(len(table), 4 * 2 + 3)

    def test_old_uses_fade(self):
        """Ten blocks that come once, a long time after which one comes again and again."""
        path = self.write("trace.jsonl", "".join(turn(0, [i]) for i in range(10)))
        follower = self.follow(path, "--capacity", "10", "--fade", "10min")
        self.wait_for(follower, "requests=10 blocks=10 different=10 lost=0 lru[10]=0.00%")
        hour = 3600 * 1000
        self.append(path, "".join(turn(hour, [99]) for _ in range(4)))
        self.assertGreater(float(re.search(r"lru\[10\]=([\d.]+)%",
                                           self.wait_for(follower, "requests=14 ")).group(1)), 70)
        self.assertIn("a lookup of 10.0 min ago counts half", self.end(follower))

    def test_several_sources(self):
        """Each has blocks of its own, in a cache that they share; one that fails ends no other."""
        one = self.write("one.jsonl", turn(0, [1, 2, 3]) * 2)
        other = self.write("other.jsonl", turn(0, [1, 2]))
        wrong = self.write("wrong.txt", "of no format\n")
        follower = self.follow(one, "--live", other, "--live", wrong, "--capacity", "100")
        self.wait_for(follower, "requests=3 blocks=8 different=5 lost=0 lru[100]=37.50%")
        self.assertRegex(follower.stderr.readline(), "wrong.txt: has an unknown format.*; the other "
                                                     "sources are still followed")
        self.append(other, turn(1, [1, 2]))
        self.wait_for(follower, "requests=4 blocks=10 different=5 lost=0 lru[100]=50.00%")
        self.assertIn("4 requests over", self.end(follower, status=1))

    def test_bad_lines_end_nothing(self):
        path = self.write("trace.jsonl", turn(0, [1, 2]))
        follower = self.follow(path)
        self.append(path, "nonsense\n" * 50 + turn(1, [1, 2]))
        self.wait_for(follower, "requests=2 ")
        self.assertIn("50 bad lines were ignored; the first, line 2: ", self.end(follower))

    def test_an_access_log_of_lookups_and_stores(self):
        line = '{"tierce_access":1,"time_us":%d,"op":"%s","blocks":"' + "00" * 7 + '01"}\n'
        path = self.write("access.jsonl", line % (5, "lookup") + line % (6, "store"))
        follower = self.follow(path, "--capacity", "10")
        self.wait_for(follower, "requests=2 blocks=2 different=1 lost=0 lru[10]=0.00%")
        self.append(path, line % (4, "lookup"))
        self.wait_for(follower, "requests=3 blocks=3 different=1 lost=0 lru[10]=50.00%")
        self.assertIn("lookups are assumed to store their blocks afterwards", self.end(follower))

    def test_a_terminal_sees_pages(self):
        path = self.write("trace.jsonl", turn(0, [1, 2]) + turn(1, [1, 2]))
        master, slave = os.openpty()
        follower = subprocess.Popen([EXECUTABLE, "optimize", "--live", path, "--every", "10ms"],
                                    stdin=subprocess.DEVNULL, stdout=slave, stderr=slave)
        os.close(slave)
        seen, give_up = b"", time.monotonic() + PATIENCE
        while seen.count(b"\x1b[H\x1b[J") < 3 or b"2 requests" not in seen:
            self.assertLess(time.monotonic(), give_up)
            seen += os.read(master, 4096)
        follower.terminate()
        try:
            while os.read(master, 4096):
                pass
        except OSError:
            pass  # Linux says so that the other side has closed
        os.close(master)
        self.assertEqual(follower.wait(timeout=PATIENCE), 0)
        self.assertIn(b"lru", seen)

    def test_what_is_wrong_is_said(self):
        self.check(1, "optimize", "--live", "missing", err=["missing: cannot be opened: "])
        self.check(1, "optimize", "--live", self.folder, err=["cannot be opened: "])
        self.check(1, "optimize", "--live", "ftp://x/y", err=["is not a source; sources are tcp://"])
        self.check(1, "optimize", "--live", "127.0.0.1:5557",
                   err=["cannot be opened: No such file or directory; other sources begin with tcp:// (vLLM's KV events) or http://"])
        self.check(1, "optimize", "--live", "tcp://nonsense",
                   err=["cannot be reached: Invalid argument; an address is tcp://HOST:PORT or ipc://"])
        self.check(2, "optimize", "--live", "a", "b", err=["omit TRACE"])
        self.check(2, "optimize", "--live", "a", "--html", "b", err=["--live shows hit rates"])
        self.check(2, "optimize", "--live", "a", "--engine-cache", "5", err=["--live shows hit rates"])
        self.check(2, "optimize", "--live", "a", "--fade", "x", err=["--fade requires a time"])
        self.check(2, "optimize", "--live", "a", "--fade", "1s", "--match", "stream",
                   err=["--fade cannot be used with --match stream"])
        self.check(2, "optimize", "a", "--fade", "1s", err=["--fade requires --live"])
        self.check(2, "optimize", "--live", "a", "--every", "x", err=["--every requires a time"])
        self.check(2, "optimize", "a", "--every", "1s", err=["--every requires --live"])
        path = self.write("empty", "")
        self.end(self.started(self.follow(path)), 1)

    def test_silence_is_told(self):
        for url in "tcp://127.0.0.1:1", "tcp://no-such-host.invalid:5557":
            with self.subTest(url):
                follower = subprocess.Popen(
                    [EXECUTABLE, "optimize", "--live", url], stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
                self.assertIn(f"{url}: no data for 3 s", follower.stderr.readline())
                self.assertIsNone(follower.poll())
                follower.terminate()
                self.assertIn("no request was received", follower.stderr.read())
                follower.stderr.close()
                self.assertEqual(follower.wait(timeout=PATIENCE), 1)

    def started(self, follower):
        """Its signals are caught once it has opened the file."""
        give_up = time.monotonic() + PATIENCE
        folder = f"/proc/{follower.pid}/fd"
        while time.monotonic() < give_up:
            links = [os.path.join(folder, name) for name in os.listdir(folder)]
            if any(os.path.realpath(link).endswith("/empty") for link in links):
                return follower
            time.sleep(0.01)
        return self.fail("it has not opened the file")


class Http(Live):
    def serve(self, handle):
        """Serves GET with handle(request, count of requests before)."""
        counts = iter(range(100))

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self):
                handle(self, next(counts))

            def log_message(self, *args):
                pass

            def begin(self):
                self.send_response(200)
                self.send_header("Transfer-Encoding", "chunked")
                self.end_headers()

            def chunk(self, text):
                self.wfile.write(b"%x\r\n%s\r\n" % (len(text), text.encode()))
                self.wfile.flush()

        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        self.addCleanup(server.server_close)
        self.addCleanup(thread.join)
        self.addCleanup(server.shutdown)
        return f"http://127.0.0.1:{server.server_address[1]}/events"

    def test_a_response_that_goes_on_breaks_and_ends(self):
        go_on = threading.Event()

        def handle(request, before):
            request.begin()
            if before == 0:
                request.chunk(turn(0, [1, 2, 3]))
                go_on.wait(PATIENCE)
                request.chunk(turn(1, [1, 2, 3]) + turn(2, [1, 2])[:9])
                request.connection.shutdown(socket.SHUT_RDWR)  # in the middle of a line
            else:
                request.chunk(turn(3, [1, 2, 3]))
                request.chunk("")

        follower = self.follow(self.serve(handle), "--capacity", "10")
        self.wait_for(follower, "requests=1 ")
        go_on.set()
        self.wait_for(follower, "requests=2 blocks=6 different=3 lost=0 lru[10]=50.00%")
        out, err = follower.communicate(timeout=PATIENCE)
        self.assertEqual(follower.returncode, 0, err)
        self.assertIn("3 requests", out)
        self.assertIn("the source restarted 1 times", out)
        self.assertIn("1 bad lines were ignored", out)

    def test_more_than_its_buffer(self):
        lines = [turn(i, list(range(i, i + 200))) for i in range(4000)]

        def handle(request, _):
            request.begin()
            for i in range(0, len(lines), 100):
                request.chunk("".join(lines[i:i + 100]))
            request.chunk("")

        out, err = self.follow(self.serve(handle)).communicate(timeout=PATIENCE)
        self.assertIn("4000 requests", out, err)

    def test_a_server_that_refuses_and_none(self):
        url = self.serve(lambda request, _: request.send_error(404))
        self.check(1, "optimize", "--live", url, err=["404"])
        self.check(1, "optimize", "--live", f"http://127.0.0.1:{free_port()}/", err=["onnect"])

    def test_a_redirect_is_not_followed(self):
        def handle(request, _):
            request.send_response(302)
            request.send_header("Location", "file:///etc/passwd")
            request.send_header("Content-Length", "6")
            request.end_headers()
            request.wfile.write(b"moved\n")

        self.check(1, "optimize", "--live", self.serve(handle), err=["redirects", "not followed"])


def python_with_zmq():
    venv = os.environ.get("TIERCE_VENV", os.path.join(ROOT, ".venv"))
    for python in (sys.executable, os.path.join(venv, "bin", "python")):
        if os.path.exists(python) and subprocess.run(
                [python, "-c", "import zmq"], stderr=subprocess.DEVNULL, check=False).returncode == 0:
            return python
    return None


class Zmq(Live):
    def publish(self, url):
        python = python_with_zmq()
        if python is None:
            self.skipTest("no Python has pyzmq")
        publisher = subprocess.Popen([python, "-c", PUBLISHER, url], text=True,
                                     stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.addCleanup(publisher.wait)
        self.addCleanup(publisher.kill)
        self.addCleanup(publisher.stdout.close)
        self.addCleanup(publisher.stdin.close)
        return publisher, publisher.stdout.readline().strip()

    def send(self, publisher, number, *frames):
        print(number, *frames, file=publisher.stdin, flush=True)

    def first_one(self, publisher, follower):
        """A subscriber comes late: the same message until it has one. Returns the next number."""
        lines = []
        reader = threading.Thread(target=lambda: lines.append(follower.stdout.readline()))
        reader.start()
        number = 0
        while reader.is_alive():
            self.send(publisher, number, batch([1, 2, 3]))
            number += 1
            reader.join(0.05)
        self.assertIn("different=3", lines[0])
        return number

    def run_events(self, url):
        publisher, url = self.publish(url)
        follower = self.follow(url, "--capacity", "100")
        n = self.first_one(publisher, follower)
        self.send(publisher, n, batch([4], parent=3))
        self.wait_for(follower, " different=4 lost=0 ")
        self.send(publisher, n + 1, "ffff")  # no batch
        self.send(publisher, n + 2, "00", "00")  # too many frames
        self.send(publisher, n + 2, pack(7).hex())  # a batch it is not, but MessagePack
        self.send(publisher, n + 5, batch([5], parent=4))  # two are missing
        self.wait_for(follower, " different=5 lost=2 ")
        self.send(publisher, 0, batch([6], parent=5))  # began anew
        self.wait_for(follower, " different=6 lost=2 ")
        out = self.end(follower)
        self.assertRegex(out, r"\d+ messages, 2 lost\n")
        self.assertIn("2 messages are not events and were ignored", out)
        self.assertIn("the source restarted 1 times", out)
        self.assertIn("1 bad lines were ignored", out)
        return publisher

    def test_events_over_tcp(self):
        self.run_events("tcp://127.0.0.1:0")

    def test_events_over_a_local_socket(self):
        self.run_events("ipc://" + os.path.join(self.folder, "events"))


if __name__ == "__main__":
    unittest.main()
