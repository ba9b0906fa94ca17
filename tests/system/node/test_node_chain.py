# SPDX-License-Identifier: Apache-2.0
"""A node in front of a node, by tierce://: the second keeps values that the first has evicted."""

import hashlib
import os
import subprocess
import time

import pytest

from manager_process import executable
from node_process import Node, command, take
from serve_process import make_certificates

TOKEN = "s3cret token"
ENCODED = "s3cret%20token"
SECONDS = 60


def say(node, *words):
    """One command; a bulk string as its bytes, all else as its line."""
    with node.connect(node.resp) as sock:
        sock.sendall(command(*words))
        line = b""
        while not line.endswith(b"\r\n"):
            line += take(sock, 1)
        if line[:1] != b"$" or line == b"$-1\r\n":
            return line[:-2]
        return take(sock, int(line[1:]) + 2)[:-2]


def wait_until(is_so, what):
    until = time.monotonic() + SECONDS
    while not is_so():
        assert time.monotonic() < until, what
        time.sleep(0.02)


class Pair:
    """One with tokens, TLS and a disk, and others in front of it."""

    def __init__(self, folder):
        self.folder = folder
        make_certificates(folder)
        tokens = folder / "tokens"
        tokens.write_text("".join(
            f"{scopes} {name} {hashlib.sha256(token.encode()).hexdigest()} tenant\n"
            for scopes, name, token in (("read,write", "front", TOKEN), ("read", "reader", "reader"))))
        tokens.chmod(0o600)
        self.nodes = []
        self.back = self.start(
            "back", f"--tls.certificate={folder}/server.pem", f"--tls.key={folder}/server.key",
            f"--auth.token_file={tokens}", f"--disk.path={folder}/disk", "--disk.size=1GiB")
        self.back.arguments.append(f"--listen.resp_port={self.back.resp}")

    def start(self, name, *arguments):
        (self.folder / name).mkdir(exist_ok=True)
        node = Node(self.folder / name, *arguments)
        self.nodes.append(node)
        return node

    def url(self, user=ENCODED, authority="ca", more=""):
        return f"tierce://{user}@localhost:{self.back.resp}?ca_file={self.folder}/{authority}.pem{more}"

    def front(self, name="front", **url):
        return self.start(name, f"--remote.urls={self.url(**url)}", "--breaker.errors=2",
                          "--breaker.retry=200ms")

    def kept(self):
        return self.back.metric("node_sets_total")

    def end(self):
        for node in self.nodes:
            if node.process.returncode is None:
                node.end()


@pytest.fixture
def pair(tmp_path):
    pair = Pair(tmp_path)
    yield pair
    pair.end()


def test_what_one_forgets_the_other_has(pair):
    values = {f"k{i}": os.urandom(size) for i, size in enumerate((1, 5000, 300_000, 3 << 20))}
    first = pair.front()
    for name, value in values.items():
        assert say(first, "SET", name, value) == b"+OK"
    wait_until(lambda: pair.kept() >= len(values), "it is not stored behind")
    first.end()
    second = pair.front("second")
    for name, value in values.items():  # a node that is late in connecting, or in answering, is a miss
        wait_until(lambda name=name, value=value: say(second, "GET", name) == value, f"{name} is not found")
    assert say(second, "DEL", "k1") == b":1" and say(second, "GET", "k1") == b"$-1"
    third = pair.front("third", user="reader", more="&read_only=true")
    wait_until(lambda: say(third, "GET", "k2") == values["k2"], "k2 is not found")
    assert say(third, "GET", "k1") == b"$-1"


def test_the_one_behind_is_killed(pair):
    front = pair.front()
    assert say(front, "SET", "before", b"x" * 200_000) == b"+OK"
    wait_until(lambda: pair.kept() == 1, "it is not stored behind")
    pair.back.kill()
    for i in range(20):  # a SET cannot know that there is no older value behind, and may be rejected
        is_kept = say(front, "SET", f"mean{i}", b"y" * 100_000) == b"+OK"
        assert say(front, "GET", f"mean{i}") == (b"y" * 100_000 if is_kept else b"$-1")
        assert say(front, "GET", f"none{i}") == b"$-1"
    pair.back.start()
    numbers = iter(range(1 << 30))

    def is_back():
        say(front, "SET", f"after{next(numbers)}", b"z" * 1000)
        return pair.kept() >= 3

    wait_until(is_back, "it is not found again")
    front.end()
    second = pair.front("second")  # its first questions may miss, while it connects
    last = next(numbers)
    wait_until(lambda: any(say(second, "GET", f"after{i}") == b"z" * 1000 for i in range(last)), "nothing was stored behind")


@pytest.mark.parametrize("url, words", [
    ({"user": "wr0ng"}, "WRONGPASS"),
    ({"authority": "other"}, "self-signed certificate in certificate chain|unable to get local issuer"),
])
def test_who_is_not_let_in_says_why(pair, url, words):
    front = pair.front(**url)
    numbers = iter(range(1 << 30))

    def is_told():  # after several attempts to connect, which have a pause between them
        name = f"k{next(numbers)}"
        is_kept = say(front, "SET", name, b"v" * 1000) == b"+OK"
        assert say(front, "GET", name) == (b"v" * 1000 if is_kept else b"$-1")
        return any(w in front.log.read_text() for w in words.split("|"))

    wait_until(is_told, front.log)
    assert pair.kept() == 0
    assert "wr0ng" not in front.log.read_text() + pair.back.log.read_text()


def test_nobody_is_shown_the_token(pair):
    front = pair.front()
    assert say(front, "SET", "k", "v") == b"+OK"
    wait_until(lambda: pair.kept() == 1, "it is not stored behind")
    pair.back.kill()
    say(front, "SET", "l", "v")
    assert say(front, "GET", "m") == b"$-1"
    pages = [front.ask("GET", page)[1] for page in ("/config", "/status", "/metrics")]
    assert f"tierce://localhost:{pair.back.resp}?ca_file=" in pages[0]
    env = {name: value for name, value in os.environ.items() if not name.startswith("TIERCE_")}
    printed = [subprocess.run([executable(), *words, f"--remote.urls={pair.url()}"], env=env,
                              capture_output=True, text=True) for words in (["config"], ["node", "--print-config"])]
    assert all(p.returncode == 0 for p in printed), printed
    for text in [*pages, *(p.stdout for p in printed), front.log.read_text()]:
        assert "s3cret" not in text
