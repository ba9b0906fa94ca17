# SPDX-License-Identifier: Apache-2.0
"""Prefill and decode by push: the prefiller writes a prompt's chunks to the decoder while it computes them.

`tierce proxy` asks a decoder for tickets with a small request of its own (`{"tierce": {"inbox": 64}}` in
kv_transfer_params), and passes one of them to the prefiller with each prompt. Everything in them is checked, because it
arrives with a request, and the prefiller connects to hosts that `handover.allow` names only. A push that fails costs
nothing but its time: the decoder reads the offer, or computes."""

from __future__ import annotations

import logging
import threading

from . import handover, processors

log = logging.getLogger(__name__)

INBOX, PUSH = "inbox", "push"
TICKETS_MAX = 64  # of one answer
HOLDER_MAX = 32  # characters
TICKET_S = 600.0  # how long a ticket may wait for its prompt
BUSY_MS = 1000  # for a decoder without room
PUSHES_MAX = 64  # at a time; other prompts are offered only
ENDED_MAX = 4096  # sessions whose end is remembered


def is_ticket(text) -> bool:
    return isinstance(text, str) and len(text) == 2 * handover.TOKEN_BYTES and text.isascii() and text.isalnum()


def asked_tickets(options: dict) -> tuple[int, str] | None:
    """How many tickets a request asks for, and the name that the proxy has chosen for itself; None for every other
    request."""
    ours = options.get(handover.OURS)
    if not isinstance(ours, dict):
        return None
    count, holder = ours.get(INBOX), ours.get("holder")
    is_name = isinstance(holder, str) and len(holder) <= HOLDER_MAX and holder.isascii() and holder.isalnum()
    return (min(count, TICKETS_MAX), holder if is_name else "") if type(count) is int and count > 0 else None


def read_push(options: dict) -> dict | None:
    """Where the prefiller shall push to; None: nowhere, or it is not as ours are."""
    ours = options.get(handover.OURS)
    to = ours.get(PUSH) if isinstance(ours, dict) else None
    if not handover.is_prefill(options) or to is None:
        return None
    host, port, ticket = (to.get(name) for name in ("host", "port", "ticket")) if isinstance(to, dict) else (None,) * 3
    try:
        if isinstance(host, str) and type(port) is int and 0 < port < 65536 and is_ticket(ticket):
            handover.read_address(f"[{host}]:{port}")
            return {"host": host, "port": port, "ticket": ticket} | handover.tls_word(to.get("tls") is True)
    except ValueError:
        pass
    log.warning("a request has an invalid inbox in kv_transfer_params; its prompt is not pushed")
    return None


def read_ticket(options: dict) -> str | None:
    """The ticket of a decoder's request: the prefiller has pushed with it."""
    ours = options.get(handover.OURS)
    ticket = ours.get("ticket") if isinstance(ours, dict) else None
    return ticket if is_ticket(ticket) else None


def tickets_answer(serves: str, tickets: list[str], uses_tls: bool = False) -> dict:
    """To a request that asks for tickets; without any if the engine has no inbox."""
    host, _, port = serves.rpartition(":")  # an IPv6 address has no brackets here
    inbox = {"host": host, "port": int(port), "tickets": tickets, "seconds": int(TICKET_S)} | handover.tls_word(uses_tls) if tickets else {}
    return {handover.OURS: {INBOX: inbox}}


class Pushes:
    """The pushes of a worker half, by session. Each has a thread of the library."""

    def __init__(self, settings: handover.Handover):
        self.settings = settings
        self.lock = threading.Lock()
        self.begun: dict[int, object] = {}  # session -> its push, which takes more stores
        self.refused: set[int] = set()  # sessions that are not pushed
        self.ended: dict[int, None] = {}  # sessions that have ended, the newest last
        self.ending: list[tuple[object, dict, int]] = []
        self.computed_ns: dict[int, int] = {}  # session -> when its last step so far was computed; of those begun
        self.warned: set[str] = set()
        self.counters: dict[str, float] = {}  # see stats.py

    def watch(self, view, chain, session: int, to: dict, store, to_block: int) -> None:
        """A store of a prompt that is pushed has begun, or has nothing to store (None)."""
        with self.lock:
            known, is_refused = self.begun.get(session), session in self.refused or session in self.ended
            is_full = len(self.begun) + len(self.ending) >= PUSHES_MAX
        if is_refused:
            return
        if known is None:
            why = ("handover.allow does not name this host" if to["host"] not in self.settings.allow
                   else f"{PUSHES_MAX} prompts are being pushed" if is_full else "")
            if why:
                self.refuse(session, to, why)
                return
            try:
                with processors.away_from_one():
                    push = view.push_begin(to["host"], to["port"], to["ticket"], BUSY_MS, int(self.settings.timeout_s * 1000),
                                           "tls" in to)
            except Exception as error:  # no node, or one of an older version
                self.refuse(session, to, str(error))
                return
            known = push, to
            with self.lock:
                self.begun[session] = known
            self.count(pushes=1)
            known[0].held(chain, to_block)
        if store is not None:
            known[0].watch(store)

    def computed(self, sessions, ns: int) -> None:
        """A step that stores KV of these sessions has computed all layers by time.monotonic_ns `ns`."""
        with self.lock:
            self.computed_ns.update((session, ns) for session in sessions if session in self.begun)

    def watch_state(self, session: int, store) -> None:
        """A state of a prompt is about to be stored; it is pushed if the prompt is."""
        with self.lock:
            known = self.begun.get(session)
        if known is not None:
            known[0].watch_state(store)

    def is_under_way(self, session: int) -> bool:
        """Whether the decoder may wait for the push of a session. False: it was refused, or its connection has failed."""
        with self.lock:
            known = self.begun.get(session)
        return known is not None and not known[0].poll()[0]

    def end(self, session: int) -> None:
        """The request has ended: its stores have, too. An aborted one may end before the step that stores its last
        blocks, which pushes nothing then."""
        with self.lock:
            self.refused.discard(session)
            self.ended[session] = None
            while len(self.ended) > ENDED_MAX:
                del self.ended[next(iter(self.ended))]
            known, computed_ns = self.begun.pop(session, None), self.computed_ns.pop(session, 0)
        if known is not None:
            known[0].end()
            with self.lock:  # only now: reap closes a push that is over
                self.ending.append((*known, computed_ns))

    def reap(self) -> None:
        """Closes pushes that are over, and counts them."""
        with self.lock:
            ending, self.ending = self.ending, []
        for push, to, computed_ns in ending:
            over, chunks, sent, _, left_out, why, over_ns = push.poll()
            if not over:
                with self.lock:
                    self.ending.append((push, to, computed_ns))
                continue
            push.close()
            self.count(push_bytes=sent, pushed_chunks=chunks, push_left_out_chunks=left_out)
            if computed_ns:  # otherwise no step of it is known, so nothing was measured
                self.count(push_tail_seconds=max(over_ns - computed_ns, 0) / 1e9, push_tail_bytes=sent)
            if why:
                self.warn(to, why)

    def refuse(self, session: int, to: dict, why: str) -> None:
        with self.lock:
            self.refused.add(session)
        self.warn(to, why)

    def warn(self, to: dict, why: str) -> None:
        with self.lock:
            text = f"{to['host']}:{to['port']}: {why}"
            first = handover.is_first(self.warned, text)
        if first:
            log.warning("a push to the decoder %s; such chunks are read from here, or computed (logged once)", text)

    def count(self, **more) -> None:
        with self.lock:
            for name, by in more.items():
                self.counters[name] = self.counters.get(name, 0) + by

    def take_counters(self) -> dict[str, float]:
        self.reap()
        with self.lock:
            counters, self.counters = self.counters, {}
        return {name: value for name, value in counters.items() if value}

    def close(self) -> None:
        """All stores have ended."""
        with self.lock:
            pushes = [*self.begun.values(), *self.ending]
            self.begun, self.ending = {}, []
        for push, *_ in pushes:
            push.close()


class PushesChunks:
    """The part of the worker half that pushes chunks, and accepts those of others."""

    accepts = False  # see Facts

    def init_pushes(self, settings: handover.Handover) -> None:
        self.pushes = Pushes(settings)

    def open_inbox(self) -> None:
        """Engines on the hosts of handover.allow may push chunks to this one."""
        from tierce import _core

        allow = self.handover.allow
        if not allow:
            return
        try:
            self.engine.handover_accept(" ".join(allow), max(1, round(self.handover.inbox * 10)),
                                        int(self.handover.hold_s * 1000))
            self.accepts = True
        except _core.Error as error:
            log.warning("no chunks are pushed to this engine, because its inbox (handover.allow) could not be opened: %s", error)

    def tickets(self, count: int, holder: str) -> list[str]:
        """For prompts that will be pushed here. A failure costs the pushes only: the link to the scheduler lives on."""
        try:
            return self.engine.handover_tickets(count, int(TICKET_S * 1000), holder) if self.accepts else []
        except Exception as error:
            log.debug("no tickets for pushes to this engine: %r", error)
            return []

    def is_pushing(self, session: int) -> bool:
        return self.pushes.is_under_way(session)

    def push_store(self, view, chain, request, store) -> None:
        """A store of a request begins, or has nothing to store (None). The first worker pushes the chunks of all, out of
        the node's memory; the others report their layers to the node. A failure costs the push only."""
        try:
            if request.push is None:
                return
            if self.ranks.first:
                self.pushes.watch(view, chain, request.session, request.push, store, request.save.to_block)
            elif store is not None:
                store.tell_layers()
        except Exception as error:
            if self.ranks.first:
                log.warning("a prompt is not pushed to its decoder: %r", error)
            else:
                log.warning("layers of a pushed prompt are sent at the end of its step: %r", error)

    def push_state(self, session: int, store) -> None:
        """A failure costs the push of this state only."""
        try:
            self.pushes.watch_state(session, store)
        except Exception as error:
            log.warning("a state is not pushed to its decoder: %r", error)
