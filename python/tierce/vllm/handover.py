# SPDX-License-Identifier: Apache-2.0
"""Prefill and decode on two engines: what a prefiller's answer tells a decoder, and the reads of such offers.

vLLM's proxies send a request to a prefiller with `do_remote_decode`, and pass the `kv_transfer_params` of its answer to
a decoder. Ours have `do_remote_prefill` and `tierce`: the address of the prefiller, a token that no other offer has, and
the number of tokens. Everything in them is checked, because it arrives from a client."""

from __future__ import annotations

import difflib
import logging
import secrets
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from . import processors
from .heads import OTHERS_MAX, KVHeads, Other
from .identity import ConfigError, Unsupported

log = logging.getLogger(__name__)

FIELDS = ("host", "port", "token", "tokens")  # of an offer
PREFILL, DECODE, OURS = "do_remote_prefill", "do_remote_decode", "tierce"
HANDOVER_NAMES = ("handover.listen", "handover.hold_s", "handover.timeout_s", "handover.allow", "handover.inbox")
HOLD_S, HOLD_S_MAX = 60.0, 3600.0  # how long an offer is held
TIMEOUT_S = 10.0  # while nothing of one arrives
WAIT_S = 2.0  # for an offer that is not open yet
IDLE_WAIT_S = 0.01  # of a lookup for a read, if vLLM has nothing else to do
INBOX_PERCENT = 25.0  # of memory.size
READERS = 4  # offers that are read at a time
WARNINGS_MAX = 100
TOKEN_BYTES, TEXT_MAX = 16, 255
ONE_RANK = (1, 1)  # tensor and pipeline parallelism


def read_address(text: str) -> tuple[str, int]:
    """HOST[:PORT] or [V6][:PORT]; port 0 without one. Raises ValueError."""
    has_port = text.rpartition(":")[0].endswith("]") or text.count(":") == 1
    host, _, port = text.rpartition(":") if has_port else (text, "", "0")
    host = host.removeprefix("[").removesuffix("]")
    if not host or len(host) > TEXT_MAX or not all(c.isalnum() or c in ".-:_" for c in host):
        raise ValueError(f"{text!r} is not HOST or HOST:PORT")
    if not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise ValueError(f"{text!r} has an invalid port")
    return host, int(port)


def seconds(extra: dict, name: str, default: float, most: float) -> float:
    try:
        value = float(extra.get(name, default))
    except (TypeError, ValueError):
        value = -1.0
    if not 0 < value <= most:
        raise ConfigError(f"{name} cannot be {extra[name]!r}; it must be a number of seconds, above 0 and up to {most:g}")
    return value


def percent(extra: dict, name: str, default: float) -> float:
    try:
        value = float(str(extra.get(name, default)).removesuffix("%"))
    except ValueError:
        value = -1.0
    if not 0 < value <= 100:
        raise ConfigError(f"{name} cannot be {extra[name]!r}; it must be a percentage, above 0 and up to 100")
    return value


def read_hosts(text: str) -> tuple[str, ...]:
    """Of handover.allow. Raises ConfigError."""
    for host in text.split():
        try:
            port = read_address(host)[1]
        except ValueError:
            port = -1
        if port != 0:
            raise ConfigError(f"handover.allow: {host!r} is not a host; it must be hosts without ports, separated by spaces, "
                              "as they are in handover.listen of the other engines")
    return tuple(text.split())


def check_names(names) -> None:
    """The store knows none of these names, and would suggest one of its own."""
    for name in names:
        if name.startswith("handover.") and name not in HANDOVER_NAMES:
            nearest = difflib.get_close_matches(name, HANDOVER_NAMES, 1, 0)[0]
            raise ConfigError(f'there is no parameter "{name}"; the nearest name is "{nearest}"')


@dataclass(frozen=True)
class Handover:
    """The connector's own parameters of prefill and decode."""

    listen: tuple[str, int] | None = None
    hold_s: float = HOLD_S
    timeout_s: float = TIMEOUT_S
    allow: tuple[str, ...] = ()  # hosts of the other engines; empty: none
    inbox: float = INBOX_PERCENT  # of memory, for chunks that are being pushed here

    @classmethod
    def from_extra_config(cls, extra: dict) -> "Handover":
        check_names(extra)
        listen = extra.get("handover.listen")
        try:
            address = read_address(str(listen)) if listen else None
        except ValueError as error:
            raise ConfigError(f"handover.listen: {error}") from None
        if address and address[0] in ("0.0.0.0", "::"):
            raise ConfigError(f"handover.listen: {address[0]} is no address that a decoder can connect to; name the "
                              "address of one interface")
        return cls(address, seconds(extra, "handover.hold_s", HOLD_S, HOLD_S_MAX),
                   seconds(extra, "handover.timeout_s", TIMEOUT_S, HOLD_S_MAX),
                   read_hosts(str(extra.get("handover.allow", ""))), percent(extra, "handover.inbox", INBOX_PERCENT))


# ---- kv_transfer_params -----------------------------------------------------------------------


def is_prefill(options: dict) -> bool:
    return options.get(DECODE) is True


def is_first(said: set[str], text: str) -> bool:
    """Whether a warning is to be logged: once, and at most 100 texts, because requests choose hosts and ports. The
    caller holds the lock of `said`."""
    first = text not in said and len(said) < WARNINGS_MAX
    if first:
        said.add(text)
    return first


def read_offer(options: dict) -> dict | None:
    """The offer in a decoder's request; None if there is none, or if it is not as ours are."""
    offer = options.get(OURS)
    if options.get(PREFILL) is not True or not isinstance(offer, dict):
        return None
    host, port, token, tokens = (offer.get(name) for name in FIELDS)
    valid = (isinstance(host, str) and isinstance(port, int) and 0 < port < 65536 and isinstance(token, str)
             and len(token) == 2 * TOKEN_BYTES and token.isascii() and token.isalnum() and type(tokens) is int)
    try:
        if valid:
            read_address(f"[{host}]:{port}")
            return ({"host": host, "port": port, "token": token, "tokens": tokens} | tls_word(offer.get("tls") is True)
                    | ranks_word(read_ranks(offer.get("ranks"))))
    except ValueError:
        pass
    log.warning("a request has an invalid offer of a prefiller in kv_transfer_params; it is computed")
    return None


def has_prompt(request) -> bool:
    """Whether the KV of the whole prompt was computed; not if the request was aborted before."""
    return request.num_computed_tokens >= request.num_prompt_tokens


def tls_word(uses_tls: bool) -> dict:
    """Of an address in kv_transfer_params: the engine there uses TLS (peers.certificate)."""
    return {"tls": True} if uses_tls else {}


def ranks_word(ranks) -> dict:
    """Of an offer: the tensor and pipeline parallelism of the prefiller, if it has several workers."""
    return {"ranks": list(ranks)} if tuple(ranks) != ONE_RANK else {}


def read_ranks(value) -> tuple[int, int]:
    """Other values than ours count as one rank: the chunks then have other names, and nothing is read."""
    is_ours = isinstance(value, list) and len(value) == 2 and all(type(n) is int and 0 < n < 65536 for n in value)
    return tuple(value) if is_ours else ONE_RANK


def ranks_differ(theirs: tuple[int, int], ours: tuple[int, int], reason) -> str:
    """The reason why chunks of an engine with these ranks cannot be used here."""
    return (f"the prefiller has tensor parallelism {theirs[0]} and pipeline parallelism {theirs[1]}, and this engine {ours[0]} and "
            f"{ours[1]}: {reason}")


def new_offer(serves: str, tokens: int, uses_tls: bool = False, ranks=ONE_RANK) -> dict:
    host, _, port = serves.rpartition(":")  # an IPv6 address has no brackets here
    return {"host": host, "port": int(port), "token": secrets.token_hex(TOKEN_BYTES), "tokens": tokens} | tls_word(
        uses_tls) | ranks_word(ranks)


def answer(offer: dict) -> dict:
    """For the decoder, in the prefiller's answer."""
    return {PREFILL: True, DECODE: False, OURS: offer}


# ---- reading offers ---------------------------------------------------------------------------


def read_chunks(view, chain, from_block: int, to_block: int, session: int, offer: dict, timeout_s: float,
                other=(), begun=lambda source: None) -> tuple[int, int, str]:
    """The bytes that were read from the prefiller, those that it has pushed, and why it ended early. other: see
    HandsOver.other_view. begun: is called with the source of the reads."""
    host, port = offer["host"], offer["port"]
    source = view.handover_source(host, port, offer["token"], session, int(WAIT_S * 1000), max(1, int(timeout_s * 1000)),
                                  offer.get("ticket"), "tls" in offer)
    try:
        begun(source)
        blocks, count, why = view.handover_read(source, chain, from_block, to_block, *other)
    finally:
        pushed, push_status = source.end()
    view.handover_note(session, host, port, why, blocks, count, pushed, push_status)
    return count, pushed, why


class Pull:
    """A read that has begun."""

    def __init__(self, view):
        self.view = view
        self.began = time.monotonic()
        self.over = False
        self.released = False
        self.source = None  # once it has one

    def use(self, source) -> None:
        self.source = source
        if self.released:  # before it had one
            source.give_up()


class Pulls:
    """The reads of a worker half, on separate threads. Each ends when nothing has arrived for handover.timeout_s, and
    those that wait for a thread, when no read has brought anything in that time."""

    def __init__(self, handover: Handover | None = None):
        self.handover = handover or Handover()
        self.lock = threading.Lock()
        self.ended = threading.Condition(self.lock)  # a read
        self.pulls: dict[int, Pull] = {}  # session -> its read
        self.threads: ThreadPoolExecutor | None = None
        self.moved = 0.0  # when a read that had brought something ended
        self.warned: set[str] = set()
        self.counters: dict[str, float] = {}  # see stats.py

    def begin(self, view, chain, from_block: int, to_block: int, session: int, offer: dict, find_other=tuple) -> None:
        """find_other: gives the `other` of read_chunks, or raises Unsupported."""
        if offer["host"] not in self.handover.allow:
            self.refuse(view, session, offer, "handover.allow does not name this host")
            return
        try:
            other = find_other()
        except Unsupported as reason:
            self.refuse(view, session, offer, str(reason))
            return
        pull = Pull(view)
        with self.lock:
            if self.threads is None:
                self.threads = ThreadPoolExecutor(READERS, thread_name_prefix="tierce-pull", initializer=processors.leave_one)
            self.pulls[session] = pull
            self.threads.submit(self.run, pull, chain, from_block, to_block, session, offer, other)

    def run(self, pull: Pull, chain, from_block: int, to_block: int, session: int, offer: dict, other=()) -> None:
        try:
            began = time.monotonic()
            late = began > max(pull.began, self.moved) + self.handover.timeout_s
            if not late and not pull.released:
                count, pushed, why = read_chunks(pull.view, chain, from_block, to_block, session, offer,
                                                 self.handover.timeout_s, other, pull.use)
                if count or pushed:
                    self.moved = time.monotonic()
                self.count(handovers=1, handover_bytes=count, handover_pushed_bytes=pushed,
                           handover_seconds=time.monotonic() - began)
                if why and not pull.released:
                    self.warn(offer, why)
            else:
                self.refuse(pull.view, session, offer, "its time was over before it began")
        except Exception as error:
            self.warn(offer, repr(error))
        finally:
            with self.lock:
                pull.over = True
                self.ended.notify_all()
                if pull.released:
                    self.pulls.pop(session, None)
            if pull.released:
                pull.view.unpin(session)

    def count(self, **more) -> None:
        with self.lock:
            for name, by in more.items():
                self.counters[name] = self.counters.get(name, 0) + by

    def take_counters(self) -> dict[str, float]:
        with self.lock:
            counters, self.counters = self.counters, {}
        return counters

    def refuse(self, view, session: int, offer: dict, why: str) -> None:
        """The offer is not read."""
        view.handover_note(session, offer["host"], offer["port"], why)
        self.warn(offer, why)

    def warn(self, offer: dict, why: str) -> None:
        self.count(handovers_ended_early=1)
        with self.lock:
            text = f"{offer['host']}:{offer['port']}: {why}"
            first = is_first(self.warned, text)
        if first:
            log.warning("the offer of the prefiller %s; the rest of such prompts is computed (logged once)", text)

    def is_under_way(self, session: int, wait_s: float = 0) -> bool:
        """Waits for its end for so long."""
        with self.lock:
            pull = self.pulls.get(session)
            if pull is None:
                return False
            if not (pull.over or wait_s > 0 and self.ended.wait_for(lambda: pull.over, wait_s)):
                return True
            self.pulls.pop(session, None)
        return False

    def release(self, session: int) -> None:
        """The request has ended: its read is given up, and gives its pins back itself."""
        with self.lock:
            pull = self.pulls.get(session)
            if pull is None:
                return
            pull.released = True
            if pull.source is not None:
                pull.source.give_up()
            if pull.over:
                del self.pulls[session]

    def close(self) -> None:
        threads, self.threads = self.threads, None
        with self.lock:
            for pull in self.pulls.values():
                pull.released = True
                if pull.source is not None:
                    pull.source.give_up()
        if threads is not None:
            threads.shutdown(wait=True)


# ---- the worker half --------------------------------------------------------------------------


class HandsOver:
    """The part of the worker half that offers chunks, and reads offers."""

    kv_heads: KVHeads | str = "this engine has several KV cache groups"  # a text: why its chunks fit no other TP size

    def init_handover(self, handover: Handover) -> None:
        self.handover = handover
        self.pulls = Pulls(handover)
        self.serves, self.serves_tls = "", False  # see Facts
        self.others: dict[tuple[int, int], tuple] = {}  # ranks of prefillers -> see other_view; the least recently used first
        self.opening: ThreadPoolExecutor | None = None  # opens offers whose stores end behind their step

    def serve_offers(self) -> None:
        """The first worker offers the chunks of all."""
        from tierce import _core

        if self.handover.listen is None or not self.ranks.first:
            return
        host, port = self.handover.listen
        try:
            self.serves = f"{host}:{self.engine.handover_start(host, port)}"
            self.serves_tls = self.engine.handover_uses_tls()
        except _core.Error as error:
            raise ConfigError(f"handover.listen {host}:{port}: {error}") from None
        log.info("Tierce hands over chunks of finished prompts at %s", self.serves)
        self.open_inbox()

    def offer(self, session: int, part, from_block: int, to_block: int, what: dict) -> bool:
        """Offers the first `to_block` blocks of a request that ends. The offer is open when this returns, or, if its
        stores end behind their step, when they have ended: a decoder that comes before waits for it. A failure is logged,
        and the decoder computes. Returns whether the prompt is being pushed."""
        try:
            with self.using_chain(session, part) as (view, chain):
                self.engine.handover_expect(what["token"], int(self.handover.hold_s * 1000))
                if self.behind is None:
                    self.open_offer(view, chain, to_block, what)
            if self.behind is not None:
                self.opening = self.opening or ThreadPoolExecutor(1, thread_name_prefix="tierce-offer",
                                                                   initializer=processors.leave_one)
                self.opening.submit(self.open_offer, view, chain, to_block, what)  # the chain of a request that has ended
        except Exception as error:
            log.warning("a prompt could not be offered to a decoder: %r", error)
        return self.is_pushing(session)

    def open_offer(self, view, chain, to_block: int, what: dict) -> None:
        try:
            if self.behind is not None:
                self.behind.wait_for_all()
            pinned = view.handover_pin(chain, to_block, what["token"])
            if pinned < to_block:
                log.debug("%d of %d blocks of an offer are in memory", pinned, to_block)
            self.engine.handover_open(what["token"], pinned * self.namespace["block_tokens"])
        except Exception as error:
            log.warning("a prompt could not be offered to a decoder: %r", error)
            self.engine.handover_withdraw(what["token"])  # or its reader would wait

    def close_handover(self) -> None:
        self.pulls.close()
        opening, self.opening = self.opening, None
        if opening is not None:
            opening.shutdown(wait=True)

    def pull(self, session: int, part, from_block: int, to_block: int, what: dict) -> None:
        """Begins to read an offer into memory; lookups of the session raise Later until it has ended."""
        try:
            with self.using_chain(session, part) as (view, chain):
                self.pulls.begin(view, chain, from_block, to_block, session, what,
                                 lambda: self.other_of(view, read_ranks(what.get("ranks"))))
        except Exception as error:
            log.warning("the offer of a prefiller could not be read: %r", error)

    def other_of(self, view, theirs: tuple[int, int]) -> tuple:
        """See other_view; () for a prefiller with the ranks of this engine."""
        ours = self.ranks.tp_size, self.ranks.pp_size
        try:
            return () if theirs == ours else self.other_view(view, theirs)
        except Unsupported as reason:
            raise Unsupported(ranks_differ(theirs, ours, reason)) from None

    def other_view(self, view, theirs: tuple[int, int]) -> tuple:
        """A view of the namespace of a prefiller with these ranks, and how its chunks become those of `view`. Raises
        Unsupported."""
        if isinstance(self.kv_heads, str):
            raise Unsupported(self.kv_heads)
        with self.lock:
            known = self.others.get(theirs)
        if known is None:
            known = self.open_other(theirs)
        with self.lock:
            if view is not self.view:  # `known` may be of the weights after the reset, or of those before
                raise Unsupported("the weights of this engine were reset meanwhile")
            self.others.pop(theirs, None)
            self.others[theirs] = known  # the last one in the order of use
            oldest = next(iter(self.others)) if len(self.others) > OTHERS_MAX else None
            evicted = self.others.pop(oldest, None)
        del evicted  # not under the lock; a read keeps the view that it uses
        return known

    def open_other(self, theirs: tuple[int, int]) -> tuple:
        from tierce import _core

        stages = [len(m.cell_bytes) for m in self.measures[::self.ranks.tp_size]]
        layout = Other.of(self.measures[self.ranks.index], self.ranks, stages, self.kv_heads, theirs)
        namespace = layout.namespace(self.namespace, self.engine_version)
        count = namespace["layer_count"]
        try:
            return self.engine.view(namespace, (0, 1, 0, 1), (0, count, 0, 1)), layout.heads
        except _core.Error as error:
            raise Unsupported(f"a view of the prefiller's chunks cannot be opened: {error}") from None
