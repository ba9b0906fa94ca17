# SPDX-License-Identifier: Apache-2.0
"""The socket between the two halves: requests arrive, a hostile peer loses its connection, and a
dead peer costs one deadline."""

import os
import random
import socket
import stat
import struct
import tempfile
import threading
import time
from pathlib import Path

import pytest

from tierce.vllm import link
from tierce.vllm.link import (
    Facts, FromStart, Later, LinkError, LinkServer, NotReady, Pending, RemoteWorker)
from tierce.vllm.tracker import ChainPart, ChainRoot, Served

PART = ChainPart(ChainRoot(b"lora", b"salt", b""), 3, b"\x01\x02\x03\x04" * 64, False,
                 [(4, b"image"), (5, b"x")], "team a")


class Worker:
    """Notes what it was asked; stands for the half that owns a store."""

    def __init__(self):
        self.asked = []
        self.error = None

    def facts(self):
        return Facts(None, 8, False, False, False, False, 0)

    def lookup(self, *question):
        self.asked.append(question)
        if self.error is not None:
            raise self.error
        return 16, 8

    def release(self, session, keep_chain):
        self.asked.append(("release", session, keep_chain))

    def note(self, served):
        self.asked.append(served)

    def offer(self, *what):
        self.asked.append(what)
        return what[0] == 5

    def tickets(self, count, holder):
        return [f"{holder}{n}" for n in range(count)]

    def reset(self, era):
        self.asked.append(("reset", era))
        return True


@pytest.fixture
def folder(monkeypatch):
    """Not tmp_path, which may be too long for the address of a socket."""
    with tempfile.TemporaryDirectory() as folder:
        monkeypatch.setenv("XDG_RUNTIME_DIR", folder)
        yield Path(folder)


@pytest.fixture
def served(folder):
    worker = Worker()
    server = LinkServer(worker, "engine")
    yield worker, server
    server.close()


def test_questions_arrive_as_they_were_asked(served):
    worker, _ = served
    remote = RemoteWorker("engine")
    assert remote.facts() == worker.facts()
    assert remote.lookup(2**40 + 7, PART, 2, 20, 1) == (16, 8)
    session, part, from_block, to_block, flags = worker.asked[0]
    assert (session, from_block, to_block, flags) == (2**40 + 7, 2, 20, 1)
    assert part.root == PART.root and bytes(part.data) == PART.data
    assert [(b, bytes(x)) for b, x in part.extras] == PART.extras
    remote.release(9, True)
    note = Served("cmpl-\u00e9", 2**63, 1, 2, 3, 4, 5, 6, 7, 8)
    remote.note(note)
    assert remote.reset(bytes(range(16)))
    assert worker.asked[1:] == [("release", 9, True), note, ("reset", bytes(range(16)))]
    assert remote.tickets(2, "proxy") == ["proxy0", "proxy1"] and remote.tickets(1, "") == ["0"]
    assert remote.offer(6, PART, 0, 4, {"token": "t"}) is False
    assert remote.offer(5, PART, 0, 4, {"token": "t"}) is True  # its prompt is pushed
    assert worker.asked[-1] == (5, PART, 0, 4, {"token": "t"})  # the worker half has done it by now
    worker.error = FromStart()
    with pytest.raises(FromStart):
        remote.lookup(1, PART, 0, 20, 0)
    worker.error = Later()
    with pytest.raises(Later) as later:
        remote.lookup(1, PART, 0, 20, link.PREFETCH)
    assert not isinstance(later.value, Pending)
    worker.error = Pending()
    with pytest.raises(Pending):
        remote.lookup(1, PART, 0, 20, 0)
    worker.error = NotReady()
    with pytest.raises(NotReady):
        remote.lookup(1, PART, 0, 20, 0)
    worker.error = RuntimeError("broken")
    with pytest.raises(LinkError):
        remote.lookup(1, PART, 0, 20, 0)
    remote.close()


def test_only_this_user_can_reach_it(served, folder):
    _, server = served
    assert stat.S_IMODE(os.stat(server.path).st_mode) == 0o600
    assert stat.S_IMODE(os.stat(os.path.dirname(server.path)).st_mode) == 0o700


def test_a_folder_that_others_can_enter_is_refused(folder):
    path = folder / f"tierce-{os.getuid()}"
    path.mkdir(mode=0o755)
    os.chmod(path, 0o755)
    with pytest.raises(LinkError, match="this user only"):
        LinkServer(Worker(), "engine")


def still_answers():
    remote = RemoteWorker("engine")
    assert remote.lookup(1, PART, 0, 20, 0) == (16, 8)
    remote.close()


def send_raw(path, data):
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        sock.settimeout(2)
        sock.connect(path)
        try:
            sock.sendall(data)
            sock.shutdown(socket.SHUT_WR)
            while sock.recv(65536):
                pass
        except OSError:
            pass


def test_hostile_frames_end_their_connection_only(served):
    _, server = served
    good = link.pack_lookup(1, PART, 0, 20, 0)
    frames = [b"", b"\0", struct.pack("<I", 0), struct.pack("<I", 0xffffffff),
              struct.pack("<I", link.FRAME_MAX + 1), struct.pack("<I", 1000) + b"short",
              struct.pack("<I", 1) + b"\xff"]
    frames += [struct.pack("<I", n) + good[:n] for n in range(1, len(good))]
    # Every length inside the frame, as large as it can be.
    for at in range(1, 60):
        changed = bytearray(good)
        changed[at:at + 4] = b"\xff" * 4
        frames.append(struct.pack("<I", len(changed)) + changed)
    for frame in frames:
        send_raw(server.path, frame)
    still_answers()


def test_random_frames_end_their_connection_only(served):
    _, server = served
    seed = int(os.environ.get("TIERCE_TEST_SEED", time.time()))
    print("seed", seed)
    source = random.Random(seed)
    good = link.pack_lookup(1, PART, 0, 20, 0)
    for _ in range(300):
        frame = bytearray(good)
        for _ in range(source.randrange(1, 9)):
            frame[source.randrange(len(frame))] = source.randrange(256)
        send_raw(server.path, struct.pack("<I", len(frame)) + frame)
    still_answers()


def test_a_dead_worker_costs_one_deadline(folder):
    path = link.socket_path("engine")
    silent = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    silent.bind(path)
    silent.listen(4)
    remote = RemoteWorker("engine", timeout_s=0.3, retry_s=60)
    start = time.monotonic()
    with pytest.raises(LinkError):
        remote.lookup(1, PART, 0, 20, 0)
    first = time.monotonic() - start
    assert 0.2 < first < 5
    start = time.monotonic()
    for _ in range(100):
        with pytest.raises(LinkError):
            remote.lookup(1, PART, 0, 20, 0)
    assert time.monotonic() - start < 10  # not one deadline each
    silent.close()


def test_a_lookup_may_take_what_the_configuration_gives_it(served):
    worker, _ = served
    worker.facts = lambda: Facts(None, 8, lookup_ms=2000)
    worker.lookup = lambda *question: time.sleep(4) or (16, 8)
    remote = RemoteWorker("engine")
    remote.facts()
    assert remote.lookup(1, PART, 0, 20, 0) == (16, 8)
    remote.close()


def test_answers_that_cannot_be_are_refused(folder):
    path = link.socket_path("engine")
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(path)
    listener.listen(4)
    answers = [struct.pack("<iII", 0, 21, 0), struct.pack("<iII", 0, 8, 9),
               struct.pack("<iII", 7, 8, 8), b"short", b""]

    def lie():
        for answer in answers:
            connection, _ = listener.accept()
            with connection:
                link.receive_frame(connection)
                connection.sendall(struct.pack("<I", len(answer)) + answer)
                connection.settimeout(2)

    liar = threading.Thread(target=lie, daemon=True)
    liar.start()
    for _ in answers:
        remote = RemoteWorker("engine", timeout_s=2)
        with pytest.raises(LinkError):
            remote.lookup(1, PART, 0, 20, 0)
        remote.close()
    listener.close()
