# SPDX-License-Identifier: Apache-2.0
"""HTTP/1.1 of src/net/server, by curl and by bare sockets."""

import json
import random
import select
import shutil
import socket
import ssl
import subprocess
import threading
import time

import pytest

from manager_process import wait_until
from serve_process import Server, make_certificates


@pytest.fixture(scope="module")
def server():
    running = Server("--message-max", 1 << 20, "--workers", 8)
    yield running
    running.end()


class Curled:
    def __init__(self, output):
        head, _, self.body = output.partition(b"\r\n\r\n")
        if head.startswith(b"HTTP/1.1 100"):
            head, _, self.body = self.body.partition(b"\r\n\r\n")
        lines = head.decode().split("\r\n")
        self.status = int(lines[0].split()[1])
        self.headers = {k.lower(): v for k, v in (line.split(": ", 1) for line in lines[1:])}


def curl(url, *arguments, data=None):
    given = ["curl", "-sS", "-i", "-m", "60", url, *map(str, arguments)]
    if data is not None:
        given += ["--data-binary", "@-"]
    done = subprocess.run(given, input=data, capture_output=True, timeout=100)
    assert done.returncode == 0, done.stderr.decode()
    return Curled(done.stdout)


def connect(server, text=b""):
    made = socket.create_connection(("127.0.0.1", server.http), 60)
    made.sendall(text)
    return made


def read_answer(stream):
    """One answer with a Content-Length from a file of a socket, or None at the end."""
    line = stream.readline()
    if not line:
        return None
    status, length = int(line.split()[1]), 0
    while (header := stream.readline().strip()):
        name, _, value = header.partition(b":")
        if name.lower() == b"content-length":
            length = int(value)
    return status, stream.read(length)


@pytest.mark.parametrize("size", [0, 1, 4095, 65536, 1 << 20])
@pytest.mark.parametrize("chunked", [False, True])
def test_comes_back_as_it_was_sent(server, size, chunked):
    body = random.Random(size).randbytes(size)
    extra = ["-H", "Transfer-Encoding: chunked"] if chunked else []
    answer = curl(server.url + "/Echo", *extra, data=body)
    assert answer.status == 200 and answer.body == body
    assert answer.headers["content-type"] == "application/octet-stream"


def test_workers_and_other_threads_answer(server):
    assert curl(server.url + "/Wait", data=b"from a worker").body == b"from a worker"
    assert curl(server.url + "/Late", data=b"from a thread").body == b"from a thread"


def test_what_the_handler_knows(server):
    told = curl(server.url + "/Info?a=1&b=%20x", "-H", "X-Test: Value").body.decode().split("|")
    assert told[:3] == ["GET", "/Info", "a=1&b=%20x"]
    assert told[3].startswith("127.0.0.1:") and told[4:] == ["-", "Value", "1"]
    assert curl(server.url + "/any/a%2Fb?").body.startswith(b"GET|/any/a%2Fb||")
    assert curl(server.url + "/any/", "-X", "DELETE").body.startswith(b"DELETE|/any/|")


def test_a_status_and_headers_of_the_handler(server):
    answer = curl(server.url + "/Fail", "-H", "x-status: 418")
    assert answer.status == 418 and answer.body == b"{}"
    assert answer.headers["x-more"] == "yes"
    assert answer.headers["content-type"] == "application/json"


def test_ipv6():
    server = Server("--host", "::")
    url = f"[::1]:{server.http}"
    assert curl(f"http://{url}/Info").body.split(b"|")[3].startswith(b"[::1]:")
    assert curl(server.url + "/Info").body.split(b"|")[3].startswith(b"127.0.0.1:")
    server.end()


def test_paths_and_methods_that_are_not_there(server):
    for data in None, b"x" * 5000:
        answer = curl(server.url + "/nothing", data=data)
        assert answer.status == 404 and json.loads(answer.body) == {"error": "not found"}
    answer = curl(server.url + "/Echo")
    assert answer.status == 405 and answer.headers["allow"] == "POST"
    assert "error" in json.loads(answer.body)
    assert curl(server.url + "/Info", data=b"x").status == 405


def test_head(server):
    answer = curl(server.url + "/Big", "-I", "-H", "x-bytes: 777")
    assert answer.status == 200 and answer.headers["content-length"] == "777"
    assert answer.body == b""


def test_a_large_answer(server):
    assert curl(server.url + "/Big", "-H", "x-bytes: 67108864").body == b"b" * (64 << 20)


@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize("size", [(1 << 20) + 1, 5 << 20])
def test_a_body_that_is_too_long(server, size, chunked):
    extra = ["-H", "Transfer-Encoding: chunked"] if chunked else []
    # A client that is still sending when the connection is closed may fail before it reads the
    # answer (55, 56).
    for _ in range(5):
        try:
            answer = curl(server.url + "/Echo", "-H", "Expect:", *extra, data=b"x" * size)
            break
        except AssertionError as error:
            assert "curl: (55)" in str(error) or "curl: (56)" in str(error)
    assert answer.status == 413 and "error" in json.loads(answer.body)


def test_a_body_that_never_ends(server):
    with connect(server, b"POST /Echo HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n") as s:
        chunk = b"%x\r\n" % (1 << 20) + bytes(1 << 20) + b"\r\n"
        with pytest.raises(ConnectionError):
            for _ in range(200):
                s.sendall(chunk)


def test_held_bytes_have_a_limit():
    server = Server("--held-max", 1 << 20)
    assert curl(server.url + "/Echo", data=b"x" * (3 << 20)).status == 503
    assert curl(server.url + "/Big", "-H", "x-bytes: 3000000").status == 503
    assert curl(server.url + "/Echo", data=b"x" * 1000).status == 200
    server.end()


def test_connections_are_kept_alive(server):
    with connect(server) as s, s.makefile("rb") as stream:
        for i in range(20):
            s.sendall(b"POST /%s HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\n%02d"
                      % (b"Wait" if i % 3 else b"nothing", i))
            assert read_answer(stream) == ((200, b"%02d" % i) if i % 3
                                           else (404, b'{"error":"not found"}'))
        # Several requests in one packet are answered in turn.
        s.sendall(b"".join(b"POST /Late HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\n\r\n%d" % i
                           for i in range(5)))
        assert [read_answer(stream) for _ in range(5)] == [(200, b"%d" % i) for i in range(5)]


def test_many_clients_at_once(server):
    def ask(i, told):
        told[i] = curl(server.url + "/Late", "-H", "x-wait-ms: 200", data=b"%d" % i).body

    told = {}
    threads = [threading.Thread(target=ask, args=(i, told)) for i in range(60)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert told == {i: b"%d" % i for i in range(60)}


def test_a_full_queue_refuses():
    server = Server("--workers", 1, "--queue-max", 2)
    sockets = [connect(server, b"POST /Wait HTTP/1.1\r\nHost: localhost\r\nx-wait-ms: 500\r\n"
                               b"Content-Length: 0\r\n\r\n") for _ in range(20)]
    answers = [read_answer(s.makefile("rb"))[0] for s in sockets]
    assert answers.count(200) >= 2 and set(answers) == {200, 503}
    for s in sockets:
        s.close()
    server.end()


@pytest.mark.parametrize("headers,status", [
    ({"Origin": "http://127.0.0.1:{port}"}, 200),
    ({"Origin": "http://localhost:{port}", "Host": "LOCALHOST:{port}"}, 200),
    ({"Host": "[::1]:{port}"}, 200),
    ({"Host": "10.0.0.1"}, 200),
    ({"Origin": "http://evil.example"}, 403),
    ({"Origin": "http://127.0.0.1:{port}.evil.example"}, 403),
    ({"Origin": "http://127.0.0.1:1"}, 403),
    ({"Origin": "null"}, 403),
    ({"Origin": ""}, 403),
    ({"Host": "evil.example:{port}"}, 403),
    ({"Host": "evil.example:{port}", "Origin": "http://evil.example:{port}"}, 403),
    ({"Host": "localhost.evil.example"}, 403),
    ({"Host": "127.0.0.1.evil.example"}, 403),
    ({"Host": "[::1.evil.example"}, 403),
    ({"Host": ""}, 403),
])
def test_a_browser_asks_for_its_own_page_only(server, headers, status):
    """Neither another origin's page nor one whose name was made to mean this machine."""
    lines = {"Host": "127.0.0.1:{port}", **headers}
    head = "".join(f"{k}: {v}\r\n" for k, v in lines.items()).format(port=server.http)
    with connect(server, f"POST /Echo HTTP/1.1\r\n{head}Content-Length: 2\r\n\r\nhi".encode()) as s:
        assert read_answer(s.makefile("rb"))[0] == status


def test_a_deadline_ends_a_call():
    server = Server("--transfer", 300)
    begun = time.monotonic()
    answer = curl(server.url + "/Wait", "-H", "x-wait-ms: 30000", data=b"")
    assert answer.status == 504 and 0.3 <= time.monotonic() - begun < 15
    # Also where the handler, which answers at once, saw it first.
    assert {curl(server.url + "/Wait", "-H", "x-wait-ms: 30000", data=b"").status for _ in range(10)} == {504}
    # The handler learns of it; its own answer is dropped.
    wait_until(lambda: curl(server.url + "/Over").body != b"0")
    assert curl(server.url + "/Late", "-H", "x-wait-ms: 600", data=b"").status == 504
    wait_until(lambda: curl(server.url + "/Answered").body == b"1")
    # A body that does not come, or comes too slowly, ends with the connection.
    with connect(server, b"POST /Echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n") as s:
        assert s.recv(1000) == b""
    with connect(server, b"POST /Echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5000\r\n\r\n") as s:
        with pytest.raises(ConnectionError):
            for _ in range(1200):
                s.sendall(b"x")
                time.sleep(0.05)  # a slow client
    assert curl(server.url + "/Echo", data=b"well").body == b"well"
    server.end()


def trickle(connection, text, pause=0.05):
    """Sends a letter now and then, until the server has had enough."""
    with pytest.raises(ConnectionError):
        for i in range(len(text)):
            connection.sendall(text[i:i + 1])
            if select.select([connection], [], [], pause)[0] and not connection.recv(1000):
                raise ConnectionError


def test_a_request_that_trickles_in_is_cut_off():
    server = Server("--transfer", 500)
    for begun in (b"", b"POST /Echo HTTP/1.1\r\nHost: localhost\r\n",
                  b"GET /Info HTTP/1.1\r\nHost: localhost\r\n\r\n"):  # behind an answered one too
        with connect(server, begun) as s:
            if begun.startswith(b"GET"):
                assert read_answer(s.makefile("rb"))[0] == 200
            trickle(s, b"A" * 400)
    with connect(server) as silent:
        assert silent.recv(1) == b""
    assert curl(server.url + "/Echo", data=b"well").body == b"well"
    server.end()


def read_events(stream):
    got = stream.recv(1 << 16)
    assert got, "the stream of events ended"
    return got


def test_an_answer_that_is_read_slowly_is_cut_off():
    """All share the memory for answers: a client that reads slowly would keep it."""
    server = Server("--transfer", 2000, "--held-max", 96 << 20)
    with connect(server, b"GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n") as events, socket.socket() as s:
        lines = read_events(events)
        assert lines.startswith(b"HTTP/1.1 200 ")
        s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
        s.connect(("127.0.0.1", server.http))
        s.sendall(b"GET /Big HTTP/1.1\r\nHost: localhost\r\nx-bytes: 67108864\r\n\r\n")
        deadline = time.monotonic() + 40
        while curl(server.url + "/Big", "-H", f"x-bytes: {90 << 20}", "-o", "/dev/null",
                   "-w", "HTTP/1.1 %{http_code}\r\n\r\n").status != 200:
            assert time.monotonic() < deadline
            try:
                s.recv(1 << 16)
            except ConnectionError:
                pass
            lines += read_events(events)
        seen = lines.count(b"data: ")
        while lines.count(b"data: ") < seen + 20:  # a stream has no end
            lines += read_events(events)
    server.end()


def test_connections_of_one_address_have_a_limit():
    server = Server("--connections-per-address", 3)
    ask = b"GET /Info HTTP/1.1\r\nHost: localhost\r\n\r\n"

    def answer(source):
        """A connection that was let in, or None."""
        made = socket.create_connection(("127.0.0.1", server.http), 60, (source, 0))
        try:
            made.sendall(ask)
            if made.recv(1 << 16):
                return made
        except ConnectionError:
            pass
        made.close()

    held = [answer("127.0.0.1") for _ in range(3)]
    assert all(held) and answer("127.0.0.1") is None
    others = [answer("127.0.0.2") for _ in range(3)]
    assert all(others) and answer("127.0.0.2") is None
    held.pop().close()
    deadline = time.monotonic() + 60
    while (again := answer("127.0.0.1")) is None:
        assert time.monotonic() < deadline
    for made in (*held, *others, again):
        made.close()
    server.end()


def test_clients_that_go_away(server):
    begun, before = (int(curl(f"{server.url}/{what}").body) for what in ("Begun", "Over"))
    with connect(server, b"POST /Wait HTTP/1.1\r\nHost: localhost\r\nx-wait-ms: 30000\r\n"
                         b"Content-Length: 0\r\n\r\n"):
        wait_until(lambda: int(curl(server.url + "/Begun").body) != begun)
    wait_until(lambda: int(curl(server.url + "/Over").body) != before)


def test_half_requests_and_random_bytes(server):
    source = random.Random(9)
    whole = (b"POST /Echo HTTP/1.1\r\nHost: localhost\r\nX-Test: 1\r\nContent-Length: 10\r\n\r\n0123456789")
    for cut in range(len(whole)):
        connect(server, whole[:cut]).close()
    for i in range(300):
        with connect(server) as s:
            try:
                s.sendall((b"POST /Echo HTTP/1.1\r\n" if i % 2 else b"") +
                          source.randbytes(source.randrange(1, 3000)))
            except ConnectionError:
                pass
    many = b"".join(b"X-%d: %s\r\n" % (i, b"v" * 1000) for i in range(25))
    answer = connect(server, b"GET /Info HTTP/1.1\r\nHost: localhost\r\n" + many + b"\r\n").recv(100)
    assert answer.split()[1] == b"431"
    assert curl(server.url + "/Echo", data=b"well").body == b"well"


def test_clients_that_left_do_not_delay_the_end():
    server = Server("--drain", 20000)
    for cut in range(20, 60):
        connect(server, b"POST /Echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\n01"[:cut]).close()
    begun = time.monotonic()
    server.end()
    assert time.monotonic() - begun < 10


def test_events(server):
    before = int(curl(server.url + "/Over").body)
    with connect(server, b"GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n") as s:
        got = b""
        while b"data: 20\n" not in got:
            got += s.recv(4096)
    assert b"text/event-stream" in got and b"chunked" in got and b"data: 0\n" in got
    # The writer learns that it is alone.
    wait_until(lambda: int(curl(server.url + "/Over").body) != before)
    answer = curl(server.url + "/few")
    assert answer.body == b"data: x\n\n" * 3


def test_sigterm_lets_calls_end():
    server = Server("--drain", 30000)
    with connect(server, b"POST /Wait HTTP/1.1\r\nHost: localhost\r\nx-wait-ms: 4000\r\n"
                         b"Content-Length: 2\r\n\r\nin") as s, \
            connect(server, b"GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n") as events, connect(server):
        assert events.recv(1)
        wait_until(lambda: curl(server.url + "/Begun").body == b"1")
        server.ask_to_end()
        with pytest.raises(ConnectionError):
            while True:  # for a moment, as long as the signal is on its way
                connect(server).close()
        assert not select.select([s], [], [], 0)[0]
        assert read_answer(s.makefile("rb")) == (200, b"in")
        while events.recv(4096):
            pass
        server.end()


def test_sigterm_does_not_wait_for_ever():
    server = Server("--drain", 300)
    with connect(server, b"POST /Wait HTTP/1.1\r\nHost: localhost\r\nx-wait-ms: 30000\r\n"
                         b"Content-Length: 0\r\n\r\n") as s, \
            connect(server, b"POST /Wait HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n\r\n"), \
            connect(server, b"GET /Big HTTP/1.1\r\nHost: localhost\r\nx-bytes: 99999999\r\n\r\n") as big:
        assert big.recv(1)
        wait_until(lambda: curl(server.url + "/Begun").body == b"1")
        begun = time.monotonic()
        server.ask_to_end()
        assert read_answer(s.makefile("rb"))[0] == 503
        server.end()
        assert time.monotonic() - begun < 20


@pytest.fixture(scope="module")
def certificates(tmp_path_factory):
    return make_certificates(tmp_path_factory.mktemp("certificates"))


def test_tls(certificates):
    server = Server("--cert", certificates / "server.pem", "--key", certificates / "server.key")
    url = f"https://localhost:{server.http}"
    ca = ["--cacert", certificates / "ca.pem"]
    assert curl(url + "/Echo", *ca, data=b"x" * 3000000).body == b"x" * 3000000
    assert curl(url + "/Wait", *ca, data=b"w").body == b"w"
    assert curl(url + "/Info", *ca).body.split(b"|")[4] == b"-"
    for _ in range(20):
        connect(server, random.Random(1).randbytes(300)).close()
    assert curl(url + "/few", *ca).body == b"data: x\n\n" * 3
    server.end()


def test_mutual_tls(certificates):
    server = Server("--cert", certificates / "server.pem", "--key", certificates / "server.key",
                    "--ca", certificates / "ca.pem")
    url = f"https://localhost:{server.http}/Info"

    def own(name):
        return ["--cacert", certificates / "ca.pem", "--cert", certificates / f"{name}.pem", "--key",
                certificates / f"{name}.key"]

    assert curl(url, *own("alice")).body.split(b"|")[4] == b"alice"
    assert curl(url, "--cacert", certificates / "ca.pem").status == 403
    assert curl(url, *own("mallory")).status == 403
    server.end()


def test_certificates_are_read_again(tmp_path):
    """A connection keeps its initial certificates; invalid files change nothing."""
    first, second = tmp_path / "first", tmp_path / "second"
    for folder in (first, second):
        folder.mkdir()
        make_certificates(folder)
    used = tmp_path / "used"
    shutil.copytree(first, used)
    server = Server("--cert", used / "server.pem", "--key", used / "server.key", "--ca",
                    used / "ca.pem")

    def let_in(server_of, client_of, name="alice"):
        own = ssl.create_default_context(cafile=server_of / "ca.pem")
        own.load_cert_chain(client_of / f"{name}.pem", client_of / f"{name}.key")
        try:
            with socket.create_connection(("127.0.0.1", server.http), 60) as plain, \
                    own.wrap_socket(plain, server_hostname="localhost") as s:
                s.sendall(b"GET /Info HTTP/1.1\r\nHost: localhost\r\n\r\n")
                status, body = read_answer(s.makefile("rb"))
                return status == 200 and body.split(b"|")[4] == b"alice"
        except ssl.SSLError:
            return False

    kept = ssl.create_default_context(cafile=first / "ca.pem")
    kept.load_cert_chain(first / "alice.pem", first / "alice.key")
    kept = kept.wrap_socket(socket.create_connection(("127.0.0.1", server.http), 60),
                            server_hostname="localhost")
    assert let_in(first, first) and not let_in(second, second)
    for broken in ("server.pem", "server.key", "ca.pem"):
        (used / broken).write_text("no PEM")
        assert str(used) in server.read_again() and let_in(first, first)
        shutil.copy(first / broken, used)
    shutil.copy(second / "server.key", used)  # which is not the certificate's
    assert server.read_again() != "read" and let_in(first, first)
    for file in ("server.pem", "ca.pem"):
        shutil.copy(second / file, used)
    assert server.read_again() == "read"
    assert let_in(second, second) and not let_in(first, first) and not let_in(second, first)
    kept.sendall(b"GET /Info HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert read_answer(kept.makefile("rb"))[0] == 200
    kept.close()
    server.end()


def test_files_that_are_no_certificates(certificates):
    from serve_process import PROGRAMS
    for given in (["--cert", certificates / "nothing", "--key", certificates / "server.key"],
                  ["--cert", certificates / "server.pem", "--key", certificates / "alice.key"],
                  ["--cert", certificates / "server.pem", "--key", certificates / "server.pem"],
                  ["--cert", certificates / "server.pem"],
                  ["--cert", certificates / "server.pem", "--key", certificates / "server.key",
                   "--ca", certificates / "server.key"]):
        done = subprocess.run([PROGRAMS / "serve_echo", *given], capture_output=True, timeout=60)
        assert done.returncode == 1 and done.stderr.strip()
