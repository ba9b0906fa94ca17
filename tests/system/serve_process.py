# SPDX-License-Identifier: Apache-2.0
"""The echo server of tests/support/servers/serve_echo.c as a process, and a bare HTTP/2 client to break rules with."""

import os
import select
import signal
import socket
import struct
import subprocess
import time
from pathlib import Path

import h2.config
import h2.connection
import h2.events

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = Path(os.environ.get("TIERCE_TEST_PROGRAMS", ROOT / "build" / "dev" / "bin"))
SECONDS = 60  # for whatever should come at once


class Server:
    def __init__(self, *arguments):
        self.process = subprocess.Popen([str(PROGRAMS / "serve_echo"), *map(str, arguments)],
                                        stdout=subprocess.PIPE, text=True)
        words = self.process.stdout.readline().split()
        assert words[:1] == ["grpc"], "the server did not start"
        self.grpc, self.http = int(words[1]), int(words[3])

    @property
    def target(self):
        return f"127.0.0.1:{self.grpc}"

    @property
    def url(self):
        return f"http://127.0.0.1:{self.http}"

    def read_again(self):
        """What it says when it is to read its certificates again."""
        self.process.send_signal(signal.SIGHUP)
        return self.process.stdout.readline().strip()

    def ask_to_end(self):
        self.process.send_signal(signal.SIGTERM)

    def end(self):
        """Must end by itself and be well: sanitizers speak by the exit code."""
        if self.process.poll() is None:
            self.ask_to_end()
        try:
            code = self.process.wait(SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise
        self.process.stdout.close()
        assert code == 0, f"the server ended with {code}"


def frame(message, compressed=0):
    return struct.pack(">BI", compressed, len(message)) + message


class Answer:
    def __init__(self):
        self.headers, self.data, self.ended, self.reset = {}, b"", False, None

    @property
    def status(self):
        return int(self.headers["grpc-status"])


class Raw:
    """One HTTP/2 connection that has no timers and no manners of its own."""

    def __init__(self, port, window=None):
        self.socket = socket.create_connection(("127.0.0.1", port), SECONDS)
        self.h2 = h2.connection.H2Connection(h2.config.H2Configuration(
            client_side=True, header_encoding="utf-8", validate_outbound_headers=False))
        self.h2.initiate_connection()
        if window is not None:
            self.h2.update_settings({h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: window})
        self.answers, self.pongs, self.closed, self.goaway = {}, 0, False, None
        self.send()

    def send(self):
        self.socket.sendall(self.h2.data_to_send())

    def begin(self, path, headers=(), end=False, method="POST", type="application/grpc"):
        stream = self.h2.get_next_available_stream_id()
        self.answers[stream] = Answer()
        given = [(":method", method), (":scheme", "http"), (":path", path), (":authority", "test"),
                 ("te", "trailers")]
        given += [("content-type", type)] if type else []
        self.h2.send_headers(stream, given + list(headers), end_stream=end)
        return stream

    def call(self, path, message=b"", headers=(), body=None, **options):
        stream = self.begin(path, headers, **options)
        self.h2.send_data(stream, frame(message) if body is None else body, end_stream=True)
        return self.wait(stream)

    def take(self, seconds=SECONDS, acknowledge=True):
        """What came until now, or what comes first. False: nothing in time."""
        if not select.select([self.socket], [], [], seconds)[0]:
            return False
        try:
            data = self.socket.recv(1 << 16)
        except ConnectionError:
            data = b""
        if not data:
            self.closed = True
            return False
        for event in self.h2.receive_data(data):
            answer = self.answers.get(getattr(event, "stream_id", None))
            if isinstance(event, (h2.events.ResponseReceived, h2.events.TrailersReceived)):
                answer.headers.update(event.headers)
            elif isinstance(event, h2.events.DataReceived):
                answer.data += event.data
                if acknowledge and event.flow_controlled_length:
                    self.h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
            elif isinstance(event, h2.events.StreamEnded):
                answer.ended = True
            elif isinstance(event, h2.events.StreamReset):
                answer.reset = event.error_code
            elif isinstance(event, h2.events.PingAckReceived):
                self.pongs += 1
            elif isinstance(event, h2.events.ConnectionTerminated):
                self.goaway = event
        self.send()
        return True

    def wait(self, stream, seconds=SECONDS):
        answer, until = self.answers[stream], time.monotonic() + seconds
        self.send()
        while not answer.ended and answer.reset is None and time.monotonic() < until:
            if not self.take(max(0, until - time.monotonic())) and self.closed:
                break
        return answer

    def close(self):
        self.socket.close()


def make_certificates(folder):
    """An authority, a server, a client named alice, and a client of another authority."""
    def openssl(*arguments):
        subprocess.run(["openssl", *arguments], check=True, cwd=folder, capture_output=True)

    def authority(name):
        openssl("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes",
                "-keyout", f"{name}.key", "-out", f"{name}.pem", "-days", "2", "-subj",
                f"/CN=authority {name}")

    def signed(name, by, subject):
        openssl("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout",
                f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={subject}")
        (folder / f"{name}.ext").write_text("subjectAltName=DNS:localhost,IP:127.0.0.1\n")
        openssl("x509", "-req", "-in", f"{name}.csr", "-CA", f"{by}.pem", "-CAkey", f"{by}.key",
                "-CAcreateserial", "-days", "2", "-extfile", f"{name}.ext", "-out", f"{name}.pem")

    authority("ca")
    authority("other")
    signed("server", "ca", "localhost")
    signed("alice", "ca", "alice")
    signed("mallory", "other", "alice")
    return folder
