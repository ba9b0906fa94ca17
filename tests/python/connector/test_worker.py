# SPDX-License-Identifier: Apache-2.0
"""The worker half: its reports of vLLM's speed to the store, its delay of a lookup, and its parsing
of durations."""

import threading
import time
from array import array
from types import SimpleNamespace

import pytest

pytest.importorskip("vllm")

from tierce import _core as core  # noqa: E402
from tierce.vllm.device import HostMemory  # noqa: E402
from tierce.vllm.geometry import Numbering  # noqa: E402
from tierce.vllm.handover import Handover  # noqa: E402
from tierce.vllm.link import PREFETCH, VERIFY, Later, LinkError  # noqa: E402
from tierce.vllm.ranks import Ranks  # noqa: E402
from tierce.vllm.stats import NODE  # noqa: E402
from tierce.vllm.tracker import ChainPart, LoadSpec, ReqMeta, SaveSpec, Served, Taint  # noqa: E402
from tierce.vllm.worker import (  # noqa: E402
    LOOKUP_AGAIN, LOOKUP_NO_WAIT, PUT_OFF_MAX, TELLING_TOKENS, SessionChain, WorkerHalf,
    milliseconds)


class View:
    def __init__(self):
        self.told = []

    def computed(self, tokens, ns):
        self.told.append((tokens, ns))


def request(blocks, load=None):
    return ReqMeta("r", 1, None, b"", 4, 4 + blocks, load=load)


def step(*requests, ranks=Ranks()):
    """The report after a step of these requests that took 5 ms."""
    half = SimpleNamespace(ranks=ranks, requests=list(requests), namespace={"block_tokens": 16}, view=View(),
                           memory=HostMemory(), step_began=time.monotonic_ns() - 5_000_000)
    WorkerHalf.tell_speed(half)
    return half.view.told


def test_a_step_that_computes_a_prompt_tells_its_speed():
    told = step(request(TELLING_TOKENS // 32), request(TELLING_TOKENS // 32))
    assert [tokens for tokens, _ in told] == [TELLING_TOKENS]
    assert told[0][1] >= 5_000_000


def test_one_of_several_workers_tells_for_all():
    blocks = TELLING_TOKENS // 16
    assert step(request(blocks), ranks=Ranks(1, 2)) == step(request(blocks), ranks=Ranks(0, 1, 1, 2)) == []
    ((_, took_ns),) = step(request(blocks), ranks=Ranks(0, 2, 0, 2))
    assert took_ns >= 10_000_000  # the second stage's layers too


def test_decoding_tells_nothing():
    assert step() == []
    assert step(request(1), request(0)) == []


def test_a_step_that_loads_tells_nothing():
    load = LoadSpec(0, 4, 0, asynchronous=False)
    assert step(request(TELLING_TOKENS), request(1, load)) == []


class Prefetch:
    def __init__(self):
        self.final = self.late = self.ended = False

    def poll(self):
        return self.final, 8, 8 if self.final else 0, self.late

    def end(self):
        self.ended = True


class PrefetchingView:
    """Has all on disk until a prefetch is through; notes what was asked of it."""

    def __init__(self, verifies=False):
        self.prefetch, self.verifies = None, verifies

    def lookup(self, chain, from_block, to_block, flags, session, tag):
        assert not flags & (PREFETCH | VERIFY) and tag == "t"  # the store knows no such flags
        there = self.prefetch is not None and self.prefetch.final and not self.prefetch.late
        return 8, 8 if there else 2, False

    def prefetch_begin(self, chain, from_block, to_block, session, timeout_ms, verify):
        assert (from_block, to_block, session, timeout_ms, verify) == (1, 8, 7, 0, self.verifies)
        self.prefetch = Prefetch()
        return self.prefetch

    def unpin(self, session):
        pass


@pytest.fixture
def half():
    half = WorkerHalf.__new__(WorkerHalf)
    half.init_handover(Handover())
    half.init_pushes(Handover())
    half.ranks = Ranks()
    half.lock, half.view = threading.Lock(), PrefetchingView()
    half.chains = {session: SessionChain(None, SimpleNamespace(blocks=8)) for session in (7, 8)}
    half.prefetches, half.busy, half.released = {}, {}, set()
    half.put_off, half.lookup_s = {}, 60.0
    return half


def test_a_note_that_fails_is_no_harm(half):
    class Engine:
        def note_request(self, *served):
            self.served = served
            raise RuntimeError("broken")

    half.off, half.engine = None, Engine()
    half.note(Served("r", 7))
    assert half.engine.served == tuple(Served("r", 7))
    half.off, half.engine = "the setup is not supported", None
    half.note(Served("r", 7))


def ask(half, flags=0):
    try:
        return half.lookup(7, ChainPart(None, 8, b"", True, tag="t"), 1, 8, 1 | flags)
    except Later:
        return None


def test_a_lookup_is_put_off_while_a_prefetch_runs(half):
    assert ask(half) == (8, 2)  # nobody asked for one
    assert ask(half, PREFETCH) is None
    assert ask(half) is None
    half.view.prefetch.final = True
    assert ask(half) == (8, 8)
    assert half.view.prefetch.ended and not half.prefetches


def test_a_lost_node_is_counted_until_it_is_back(half):
    class Engine:
        connected = 1

        def param(self, name):
            return {"node.socket": "/run/node.sock"}[name]

        def stats(self):
            return {"node_connected_now": self.connected}

    half.behind, half.counters, half.reported_connected, half.engine = None, {}, None, Engine()
    assert half.take_counters() == {NODE: 1} and half.take_counters() == {}
    half.counters = {"loads": 1}
    assert half.take_counters() == {"loads": 1, NODE: 1}
    half.engine.connected = 0  # in each step: other ranks may still be connected
    assert half.take_counters() == half.take_counters() == {NODE: 0}
    half.engine.connected = 1
    assert half.take_counters() == {NODE: 1} and half.take_counters() == {}
    half.engine.param = {"node.socket": ""}.get
    assert half.take_counters() == {}


def test_a_prefetch_verifies_if_loads_must_not_fail(half):
    half.view.verifies = True
    assert ask(half, PREFETCH | VERIFY) is None
    half.view.prefetch.final = True
    assert ask(half) == (8, 8)


def test_what_a_late_prefetch_did_not_bring_is_not_promised(half):
    """One hanging disk costs one deadline."""
    assert ask(half, PREFETCH) is None
    half.view.prefetch.final = half.view.prefetch.late = True
    assert ask(half) == (2, 2)


@pytest.mark.parametrize("keep_chain", [False, True])
def test_a_request_that_ends_takes_its_prefetch_along(half, keep_chain):
    assert ask(half, PREFETCH) is None
    half.release(7, keep_chain)
    assert half.view.prefetch.ended and not half.prefetches


class AskingView(PrefetchingView):
    """Two blocks are certain, and a remote store is being asked for the others."""

    def __init__(self):
        super().__init__()
        self.flags = []
        self.pending = True

    def lookup(self, chain, from_block, to_block, flags, session, tag):
        self.flags.append(flags)
        return (2, 2, True) if self.pending else (8, 2, False)


def test_a_lookup_is_put_off_while_a_remote_store_is_asked(half):
    half.view = AskingView()
    for _ in range(3):
        assert ask(half, PREFETCH) is None
    half.view.pending = False
    assert ask(half) == (8, 2)
    assert all(flags & LOOKUP_NO_WAIT and flags & LOOKUP_AGAIN for flags in half.view.flags)
    half.release(7, False)
    assert not half.put_off


@pytest.mark.parametrize("bound", ["time", "times"])
def test_a_lookup_is_not_put_off_for_ever(half, bound):
    half.view = AskingView()
    assert ask(half) is None
    if bound == "time":
        half.put_off[7].until = time.monotonic()
    else:
        half.put_off[7].times = PUT_OFF_MAX
    for _ in range(3):  # nor later: the limit applies to the request
        assert ask(half) == (2, 2)
        assert not half.view.flags[-1] & LOOKUP_AGAIN  # this answer counts
    half.release(7, True)
    assert ask(half) == (2, 2)


class WaitingView(PrefetchingView):
    """Whose lookup of session 8, load and store wait, as for a disk or for memory."""

    def __init__(self):
        super().__init__()
        self.waits, self.goes_on = threading.Event(), threading.Event()

    def wait(self):
        self.waits.set()
        assert self.goes_on.wait(60)

    def lookup(self, chain, from_block, to_block, flags, session, tag):
        if session == 8:
            self.wait()
        return super().lookup(chain, from_block, to_block, flags, session, tag)

    def load_begin(self, *_):
        self.wait()

    def store_begin(self, *_):
        self.wait()


@pytest.mark.parametrize("what", ["lookup", "load", "store"])
def test_who_waits_keeps_up_nobody_else(half, what):
    half.view = half.step_view = view = WaitingView()
    request = ReqMeta("r", 8, None, bytes(32), 0, 8, LoadSpec(0, 8, 0, False, True), SaveSpec(8, False))
    half.requests = [request]
    call = {"lookup": lambda: half.lookup(8, ChainPart(None, 8, b"", True, tag="t"), 1, 8, 1),
            "load": lambda: half.begin_load(request), "store": half.begin_stores}[what]
    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    assert view.waits.wait(60)
    other = threading.Thread(target=lambda: (ask(half), half.release(7, False)), daemon=True)
    other.start()
    other.join(60)
    assert not other.is_alive()
    view.goes_on.set()
    thread.join(60)
    assert not thread.is_alive()


def test_a_prefetch_that_began_before_a_reset_is_ended(half):
    old = half.view
    old.prefetch_begin = lambda *_: setattr(half, "view", PrefetchingView()) or setattr(
        old, "prefetch", Prefetch()) or old.prefetch
    assert ask(half, PREFETCH) is None
    assert old.prefetch.ended and not half.prefetches


def test_after_a_reset_that_fails_nothing_is_found_and_it_is_repeated(half):
    """Otherwise the view of the old weights would stay in use."""
    views = [OSError("no memory"), PrefetchingView()]

    def open_view():
        opened = views.pop(0)
        if isinstance(opened, OSError):
            raise opened
        half.view = opened

    half.off, half.era, half.weights, half.namespace = None, b"", "aa", {}
    half.resetting, half.open_view = threading.Lock(), open_view
    with pytest.raises(OSError):
        half.reset(b"new")
    half.chains = {7: SessionChain(None, SimpleNamespace(blocks=8))}
    with pytest.raises(LinkError):
        ask(half)
    assert half.reset(b"new") and not views
    half.chains = {7: SessionChain(None, SimpleNamespace(blocks=8))}
    assert ask(half) == (8, 2)


def test_loads_end_before_vllm_asks_for_failures(half):
    """With speculative decoding, it asks before the end of the step."""
    load = LoadSpec(0, 2, 0, False)
    load.to_block = 2
    of = ReqMeta("r", 1, None, array("i", [5, 6]).tobytes(), 2, 3, load=load)
    half.numbering = Numbering({}, 1)
    half.loads = [SimpleNamespace(request=of, failed=False, next_layer=1,
                                  handle=SimpleNamespace(end=lambda: b"\x01\x00"))]
    half.error_blocks, half.results, half.taint = set(), {}, Taint()
    half.end_loads()
    assert half.take_errors() == {6} and half.results["r"].failed == 1
    half.end_loads()
    assert half.take_errors() == set()


@pytest.mark.parametrize("origins, waits", [(b"", 1), (b"\0\0", 1), (b"\1\0", 1), (b"\0\2", 1), (b"\1\2", 0)])
def test_what_vllm_computes_instead_comes_behind_late_copies(half, origins, waits):
    """Of a load that is larger than memory, only the last chunks may be late."""
    load, ordered = LoadSpec(0, 2, 0, True), []
    of = ReqMeta("r", 1, None, array("i", [5, 6]).tobytes(), 2, 3, load=load)
    half.memory = SimpleNamespace(order_behind_loads=lambda: ordered.append(1))
    half.error_blocks, half.results, half.taint = set(), {}, Taint()
    half.finished = [(of, origins)]
    assert half.take_received() == {"r"} and len(ordered) == waits


@pytest.mark.parametrize("text, ms", [("30ms", 30), ("1500ms", 1500), ("5s", 5000), ("90s", 90_000),
                                      ("2min", 120_000), ("1h", 3_600_000)])
def test_durations_are_read_as_the_store_prints_them(text, ms):
    engine = core.Engine.open(None, {"memory.size": "1MiB", "disk.path": "", "timeout.lookup": text})
    assert milliseconds(engine.param("timeout.lookup")) == ms
    engine.close()


def test_a_step_that_stores_only_states_has_computed_their_prompts(half):
    """The time until the last chunk of a push has arrived counts from there."""
    told = []
    half.pushes = SimpleNamespace(computed=lambda sessions, ns: told.extend(sessions))
    half.tell_speed, half.taint = lambda: None, SimpleNamespace(settle=lambda requests: ())
    half.loads, half.stores = [], []
    half.requests = [ReqMeta(str(session), session, None, b"", 0, 1, states=states) for session, states in ((7, ("state",)), (8, ()))]
    half.end_step()
    assert told == [7]
