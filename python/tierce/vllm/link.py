# SPDX-License-Identifier: Apache-2.0
"""How the scheduler half queries the worker half, which owns the store.

In one process, it calls the worker half. If vLLM runs the worker in a process of its own, it sends queries over a
Unix socket of the same user: frames of a 32-bit length and a body of fixed fields, no format that could execute code,
every length checked. A query without an answer by its deadline is a miss."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import socket
import stat
import struct
import tempfile
import threading
import time
from dataclasses import asdict, dataclass, field

from . import processors
from .tracker import ChainPart, ChainRoot, Served

log = logging.getLogger(__name__)

FRAME_MAX = 64 << 20
OP_FACTS, OP_LOOKUP, OP_RELEASE, OP_RESET, OP_NOTE, OP_OFFER, OP_PULL, OP_TICKETS = range(1, 9)
RESET_BYTES, RESET_NUMBER_BYTES = 16, 4  # of an era: its number, big-endian, and random bytes
# Flags of the link beside those of lookups: read the found blocks into memory, and verify them there.
PREFETCH, VERIFY = 1 << 16, 1 << 17
IDLE = 1 << 18  # vLLM has nothing to do but to repeat the lookup, so a moment may be spent waiting
(STATUS_OK, STATUS_FROM_START, STATUS_FAILED, STATUS_LATER, STATUS_PENDING,
 STATUS_NOT_READY) = range(6)
LOOKUP_HEAD = struct.Struct("<BQIIIIBI")
LENGTH = struct.Struct("<I")
ANSWER = struct.Struct("<iII")
RELEASE = struct.Struct("<BQ?")
EXTRA = struct.Struct("<II")
TICKETS = struct.Struct("<BI")
NOTE = struct.Struct("<B8QB")  # Served without its name, which follows


class FromStart(Exception):
    """The worker half lacks the beginning of this chain: send the whole chain."""


class Later(Exception):
    """A prefetch is reading the found blocks into memory: query again later."""


class Pending(Later):
    """A query to a remote store is in progress and may extend the hit: repeat the lookup."""


class LinkError(Exception):
    """The worker half did not answer, or its answer is invalid."""


class NotReady(Exception):
    """The worker half cannot move KV now; its log has the reason. The lookup is a miss."""


@dataclass
class Facts:
    """Facts of the worker half that the scheduler half requires."""

    off: str | None = None  # why the store is not used
    chunk_blocks: int = 1
    hashed: bool = False  # the engine's own block hashes are used
    save_decode: bool = False
    save_tail: bool = True
    load_async: bool = False
    load_min_tokens: int = 0
    load_prefetch: bool = False
    lookup_ms: int = 0  # how long a lookup may take
    longest_chunk: int = 0  # see Rules
    blocks_to_write: bool = False  # the worker half requires the blocks that each step may write
    ranks: list[int] = field(default_factory=lambda: [1, 1])  # tensor and pipeline parallelism
    kv_events: bool = False  # it requires the blocks of requests, see kv_events.py
    serves: str = ""  # HOST:PORT of its own offers; empty: it makes none
    uses_tls: bool = False  # there: peers.certificate
    accepts: bool = False  # and there, chunks that other engines push
    allows: list[str] = field(default_factory=list)  # hosts to which it pushes: handover.allow
    blend: dict = field(default_factory=dict)  # of blended prompts: the tokens of their separator; empty: none are
    unblended: bool = False  # although blend.enabled is set


# ---- frames ---------------------------------------------------------------------------------


def pack_lookup(session, part: ChainPart, from_block: int, to_block: int, flags: int) -> bytes:
    pieces = [LOOKUP_HEAD.pack(OP_LOOKUP, session, part.from_block, from_block, to_block, flags,
                               part.hashed | part.ended << 1, len(part.extras or ()))]
    for data in (part.root.lora, part.root.salt, part.root.other, part.data, part.tag.encode()):
        pieces += LENGTH.pack(len(data)), data
    for block, data in part.extras or ():
        pieces += EXTRA.pack(block, len(data)), data
    return b"".join(pieces)


def pack_handover(op: int, session, part: ChainPart, from_block: int, to_block: int, what: dict) -> bytes:
    """An offer or a pull: `what` as JSON, and the chain as in a lookup."""
    text = json.dumps(what).encode()
    return bytes([op]) + LENGTH.pack(len(text)) + text + pack_lookup(session, part, from_block, to_block, 0)


def unpack_handover(frame: memoryview):
    """Raises LinkError if a length is invalid."""
    if len(frame) < 1 + LENGTH.size:
        raise LinkError("a frame is too short")
    start = 1 + LENGTH.size
    (length,) = LENGTH.unpack_from(frame, 1)
    if length > len(frame) - start:
        raise LinkError("a frame is too short")
    session, part, from_block, to_block, _ = unpack_lookup(frame[start + length:])
    return session, part, from_block, to_block, json.loads(bytes(frame[start:start + length]))


def unpack_lookup(frame: memoryview):
    """Raises LinkError if a length is invalid."""

    def take(fmt):
        nonlocal at
        if len(frame) - at < fmt.size:
            raise LinkError("a frame is too short")
        at += fmt.size
        return fmt.unpack_from(frame, at - fmt.size)

    def take_bytes(count):
        nonlocal at
        if len(frame) - at < count:
            raise LinkError("a frame is too short")
        at += count
        return bytes(frame[at - count:at])

    at = 0
    _, session, part_from, from_block, to_block, flags, kind, extra_count = take(LOOKUP_HEAD)
    lora, salt, other, data, tag = (take_bytes(take(LENGTH)[0]) for _ in range(5))
    extras = []
    for _ in range(extra_count):
        block, length = take(EXTRA)
        extras.append((block, take_bytes(length)))
    if at != len(frame):
        raise LinkError("a frame is too long")
    part = ChainPart(ChainRoot(lora, salt, other), part_from, data, bool(kind & 1), extras or None,
                     tag.decode("ascii", "replace"), bool(kind & 2))
    return session, part, from_block, to_block, flags


def send_frame(sock, body: bytes) -> None:
    sock.sendall(LENGTH.pack(len(body)) + body)


def receive_exactly(sock, count: int) -> memoryview:
    buffer = memoryview(bytearray(count))
    have = 0
    while have < count:
        got = sock.recv_into(buffer[have:])
        if got == 0:
            raise LinkError("the connection was closed")
        have += got
    return buffer


def receive_frame(sock) -> memoryview:
    (length,) = LENGTH.unpack(receive_exactly(sock, LENGTH.size))
    if not 1 <= length <= FRAME_MAX:
        raise LinkError(f"frame of {length} bytes")
    return receive_exactly(sock, length)


# ---- where the socket is --------------------------------------------------------------------


def socket_folder() -> str:
    return private_folder(os.path.join(os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir(),
                                       f"tierce-{os.getuid()}"))


def private_folder(path: str) -> str:
    """A folder that only this user can enter, made if missing. Raises LinkError if it cannot be
    trusted."""
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        pass
    status = os.lstat(path)
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o077:
        raise LinkError(f"{path} is not a folder with access for this user only (mode 0700)")
    return path


def socket_path(engine_id: str) -> str:
    name = hashlib.sha256(engine_id.encode()).hexdigest()[:24]
    return os.path.join(socket_folder(), f"vllm-{name}.sock")


def same_user(sock) -> bool:
    size = struct.calcsize("3i")
    _, uid, _ = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))
    return uid == os.getuid()


# ---- the worker's end -----------------------------------------------------------------------


class LinkServer:
    """Answers the scheduler half's queries on a thread of the worker's process."""

    def __init__(self, worker, engine_id: str):
        self.worker = worker
        self.path = socket_path(engine_id)
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            os.unlink(self.path)
        except FileNotFoundError:
            pass
        self.socket.bind(self.path)
        os.chmod(self.path, 0o600)
        self.socket.listen(4)
        threading.Thread(target=self.accept, name="tierce-link", daemon=True).start()

    def accept(self):
        processors.leave_one()  # and so do the threads that serve
        while True:
            try:
                connection, _ = self.socket.accept()
            except OSError:
                return
            if same_user(connection):
                threading.Thread(target=self.serve, args=(connection,), name="tierce-link",
                                 daemon=True).start()
            else:
                connection.close()

    def serve(self, connection):
        with connection:
            try:
                while True:
                    answer = self.answer(receive_frame(connection))
                    if answer is not None:
                        send_frame(connection, answer)
            except LinkError as error:
                log.debug("the scheduler's connection ended: %s", error)
            except OSError as error:
                log.debug("the scheduler's connection failed: %s", error)
            except Exception:
                log.exception("a query of the scheduler could not be answered")

    def answer(self, frame: memoryview) -> bytes | None:
        if frame[0] == OP_FACTS:
            return json.dumps(asdict(self.worker.facts())).encode()
        if frame[0] == OP_LOOKUP:
            return ANSWER.pack(*self.lookup(*unpack_lookup(frame)))
        if frame[0] == OP_RELEASE and len(frame) == RELEASE.size:
            _, session, keep_chain = RELEASE.unpack(frame)
            self.worker.release(session, keep_chain)
            return None
        if frame[0] == OP_NOTE and len(frame) > NOTE.size:
            _, *numbers = NOTE.unpack_from(frame)
            self.worker.note(Served(bytes(frame[NOTE.size:]).decode("utf-8", "replace"), *numbers))
            return None
        if frame[0] == OP_OFFER:
            session, *what = unpack_handover(frame)
            return ANSWER.pack(STATUS_OK, self.worker.offer(session, *what), 0)
        if frame[0] == OP_PULL:
            self.worker.pull(*unpack_handover(frame))
            return None
        if frame[0] == OP_TICKETS and len(frame) >= TICKETS.size:
            holder = bytes(frame[TICKETS.size:]).decode("ascii")
            return json.dumps(self.worker.tickets(TICKETS.unpack_from(frame)[1], holder)).encode()
        if frame[0] == OP_RESET and len(frame) == 1 + RESET_BYTES:
            done = self.worker.reset(bytes(frame[1:]))
            return ANSWER.pack(STATUS_OK if done else STATUS_FAILED, 0, 0)
        raise LinkError(f"unknown question {frame[0]}")

    def lookup(self, *question):
        try:
            return STATUS_OK, *self.worker.lookup(*question)
        except FromStart:
            return STATUS_FROM_START, 0, 0
        except Pending:
            return STATUS_PENDING, 0, 0
        except Later:
            return STATUS_LATER, 0, 0
        except NotReady:
            return STATUS_NOT_READY, 0, 0
        except Exception:
            log.exception("a lookup failed")
            return STATUS_FAILED, 0, 0

    def close(self):
        self.socket.close()
        try:
            os.unlink(self.path)
        except OSError:
            pass


# ---- the scheduler's end --------------------------------------------------------------------


class RemoteWorker:
    """The worker half as the scheduler half sees it from another process. After a failure no
    queries are sent for a while, so that a dead worker costs one deadline and not one per request.
    timeout_s: for an answer; queries of the store have their own deadlines in addition."""

    def __init__(self, engine_id: str, timeout_s: float = 1.0, retry_s: float = 5.0):
        self.engine_id = engine_id
        self.timeout_s = timeout_s
        self.lookup_s = 0.0
        self.retry_s = retry_s
        self.retry_at = 0.0
        self.socket = None

    def connected(self):
        if self.socket is None:
            sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            sock.settimeout(self.timeout_s)
            try:
                sock.connect(socket_path(self.engine_id))
                if not same_user(sock):
                    raise LinkError("the worker's socket belongs to another user")
            except BaseException:
                sock.close()
                raise
            self.socket = sock
        return self.socket

    def ask(self, body: bytes, answers: bool = True, takes_s: float = 0.0):
        if time.monotonic() < self.retry_at:
            raise LinkError("the worker did not answer the previous query")
        try:
            sock = self.connected()
            sock.settimeout(self.timeout_s + takes_s)
            send_frame(sock, body)
            return receive_frame(sock) if answers else None
        except (OSError, LinkError) as error:
            self.retry_at = time.monotonic() + max(self.retry_s, self.timeout_s + takes_s)
            self.close()
            raise LinkError(f"the worker half does not answer: {error}") from error

    def facts(self) -> Facts:
        facts = Facts(**json.loads(bytes(self.ask(bytes([OP_FACTS])))))
        # The worker half may query a node three times: for the result of a prefetch, for a lookup, and for another
        # prefetch. No query waits for a remote store.
        self.lookup_s = 3 * facts.lookup_ms / 1000
        return facts

    def lookup(self, session, part, from_block, to_block, flags):
        answer = self.ask(pack_lookup(session, part, from_block, to_block, flags), takes_s=self.lookup_s)
        if len(answer) != ANSWER.size:
            raise LinkError("an answer of the wrong size")
        status, total, memory = ANSWER.unpack(answer)
        if status == STATUS_FROM_START:
            raise FromStart
        if status == STATUS_LATER:
            raise Later
        if status == STATUS_PENDING:
            raise Pending
        if status == STATUS_NOT_READY:
            raise NotReady
        if status != STATUS_OK or not memory <= total <= to_block:
            raise LinkError("the lookup failed in the worker's process")
        return total, memory

    def release(self, session, keep_chain: bool) -> None:
        self.ask(RELEASE.pack(OP_RELEASE, session, keep_chain), answers=False)

    def note(self, served: Served) -> None:
        self.ask(NOTE.pack(OP_NOTE, *served[1:]) + served.name.encode(), answers=False)

    def offer(self, *what) -> bool:
        """Returns when the offer is open, before the prefiller's answer names it: whether the session's prompt is pushed."""
        return ANSWER.unpack(self.ask(pack_handover(OP_OFFER, *what)))[1] != 0

    def pull(self, *what) -> None:
        self.ask(pack_handover(OP_PULL, *what), answers=False)

    def tickets(self, count: int, holder: str) -> list[str]:
        return json.loads(bytes(self.ask(TICKETS.pack(OP_TICKETS, count) + holder.encode())))

    def reset(self, era: bytes) -> bool:
        answer = self.ask(bytes([OP_RESET]) + era, takes_s=self.lookup_s)
        return ANSWER.unpack(answer)[0] == STATUS_OK

    def close(self):
        if self.socket is not None:
            self.socket.close()
            self.socket = None
