# SPDX-License-Identifier: Apache-2.0
"""The rules of prefill and decode: what is accepted from a client, and what becomes of reads."""

import json
import threading
import time
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace

import pytest

from tierce import _core
from tierce.vllm import handover, push
from tierce.vllm.geometry import Measures
from tierce.vllm.handover import Handover, Pulls
from tierce.vllm.heads import OTHERS_MAX, KVHeads
from tierce.vllm.identity import ConfigError
from tierce.vllm.link import OP_TICKETS, TICKETS, LinkError, LinkServer, pack_handover, unpack_handover
from tierce.vllm.ranks import Ranks
from tierce.vllm.tracker import ChainPart, ChainRoot

TOKEN = "0123456789abcdef" * 2
OFFER = {"host": "10.0.0.5", "port": 7000, "token": TOKEN, "tokens": 96}


@pytest.mark.parametrize("text, address", [
    ("10.0.0.5", ("10.0.0.5", 0)), ("10.0.0.5:7000", ("10.0.0.5", 7000)), ("a-host.example:1", ("a-host.example", 1)),
    ("[fd00::1]:7000", ("fd00::1", 7000)), ("[fd00::1]", ("fd00::1", 0)), ("fd00::1", ("fd00::1", 0))])
def test_addresses(text, address):
    assert handover.read_address(text) == address


@pytest.mark.parametrize("text", ["", ":7000", "a:70000", "a:x", "a/b", "a b", "a?token_file=/etc/passwd", "a" * 256])
def test_invalid_addresses(text):
    with pytest.raises(ValueError):
        handover.read_address(text)


def test_parameters():
    got = Handover.from_extra_config({"handover.listen": "10.0.0.5:7000", "handover.allow": "10.0.0.6 10.0.0.7",
                                      "handover.hold_s": 5, "memory.size": "1GiB"})
    assert got == Handover(("10.0.0.5", 7000), 5.0, handover.TIMEOUT_S, ("10.0.0.6", "10.0.0.7"))
    assert Handover.from_extra_config({}) == Handover()
    for name, value in (("handover.listen", "0.0.0.0"), ("handover.listen", "a:b"), ("handover.hold_s", 0),
                        ("handover.hold_s", "x"), ("handover.timeout_s", 1e9), ("handover.inbox", "101%"),
                        ("handover.allow", "10.0.0.6,10.0.0.7"), ("handover.allow", ["10.0.0.6"]),
                        ("handover.allow", "10.0.0.6 10.0.0.7:7000")):
        with pytest.raises(ConfigError, match=name):
            Handover.from_extra_config({name: value})
    assert Handover.from_extra_config({"handover.allow": "::1 host-b.example"}).allow == ("::1", "host-b.example")
    with pytest.raises(ConfigError, match="handover.hold_s cannot be '1h'"):
        Handover.from_extra_config({"handover.hold_s": "1h"})
    with pytest.raises(ConfigError, match='there is no parameter "handover.alow"; the nearest name is "handover.allow"'):
        Handover.from_extra_config({"handover.alow": "10.0.0.6"})


def params(**changes):
    return {"do_remote_prefill": True, "do_remote_decode": False, "tierce": {**OFFER, **changes}}


def test_an_answer_is_what_a_decoder_reads():
    offer = handover.new_offer("fd00::1:7000", 96)
    assert offer["host"] == "fd00::1" and offer["port"] == 7000 and offer["tokens"] == 96
    assert handover.new_offer("10.0.0.5:7000", 96)["token"] != offer["token"]
    assert handover.read_offer(handover.answer(offer)) == offer and "tls" not in offer
    offer = handover.new_offer("10.0.0.5:7000", 96, uses_tls=True)
    assert offer["tls"] is True and handover.read_offer(handover.answer(offer)) == offer
    assert "tls" not in handover.read_offer(handover.answer({**offer, "tls": "yes"}))
    assert handover.is_prefill({"do_remote_decode": True}) and not handover.is_prefill({"do_remote_decode": 1})


@pytest.mark.parametrize("options", [
    {}, {"do_remote_prefill": True}, {"do_remote_prefill": True, "tierce": "x"}, {**params(), "do_remote_prefill": 1},
    params(host=5), params(host="a?b"), params(host="a]:1/x#"), params(port=0), params(port=70000), params(port="7000"),
    params(token="short"), params(token=TOKEN[:-1] + "/"), params(token=None), params(tokens=None),
    params(tokens=True), params(tokens="96")])
def test_other_offers_are_ignored(options, caplog):
    assert handover.read_offer(options) is None
    is_ours = options.get("do_remote_prefill") is True and isinstance(options.get("tierce"), dict)
    assert ("a request has an invalid offer of a prefiller" in caplog.text) == is_ours


def test_frames():
    part = ChainPart(ChainRoot(b"l", b"", b"o"), 3, b"data", False, [(4, b"x")], "tag")
    frame = pack_handover(7, 5, part, 2, 9, OFFER)
    assert unpack_handover(memoryview(frame)) == (5, part, 2, 9, OFFER)
    for other in (replace(part, hashed=True), replace(part, ended=True), replace(part, hashed=True, ended=True)):
        assert unpack_handover(memoryview(pack_handover(7, 5, other, 2, 9, OFFER)))[1] == other
    for end in range(1, len(frame)):
        with pytest.raises((LinkError, ValueError)):
            unpack_handover(memoryview(frame[:end]))


class View:
    """Stands for the library's view: a read waits until it is let go."""

    def __init__(self, why=""):
        self.why, self.asked, self.unpinned, self.noted = why, [], [], []
        self.go, self.begun, self.given_up = threading.Event(), threading.Event(), threading.Event()
        self.brings = 1000

    def handover_source(self, *question):
        self.asked.append(question)
        return SimpleNamespace(end=self.end, give_up=self.given_up.set)

    def end(self):
        self.asked.append("ended")
        return 300, 0

    def handover_read(self, source, *question):
        self.asked.append(question)
        self.begun.set()
        assert self.go.wait(30)
        return 4, self.brings, self.why

    def handover_note(self, *outcome):
        self.noted.append(outcome)

    def unpin(self, session):
        self.unpinned.append(session)


def until(condition):
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end


def reads(**changes):
    return Pulls(Handover(allow=("10.0.0.5",), **changes))


def test_a_read_is_under_way_until_it_ends():
    view, pulls = View(), reads()
    pulls.begin(view, "chain", 0, 4, 9, OFFER)
    assert pulls.is_under_way(9) and not pulls.is_under_way(8)
    view.go.set()
    until(lambda: not pulls.is_under_way(9))
    assert view.asked[0][:4] == ("10.0.0.5", 7000, TOKEN, 9) and view.asked[1:] == [("chain", 0, 4), "ended"]
    assert view.noted == [(9, "10.0.0.5", 7000, "", 4, 1000, 300, 0)]
    counters = pulls.take_counters()
    assert counters.pop("handover_seconds") > 0
    assert (counters, view.unpinned) == ({"handovers": 1, "handover_bytes": 1000, "handover_pushed_bytes": 300}, []) and pulls.take_counters() == {}
    pulls.close()


def test_the_end_of_a_read_wakes_a_lookup():
    view, pulls = View(), reads()
    pulls.begin(view, "chain", 0, 4, 9, OFFER)
    assert pulls.is_under_way(9, wait_s=1e-4)
    threading.Thread(target=lambda: view.begun.wait(30) and view.go.set()).start()
    assert not pulls.is_under_way(9, wait_s=30) and not pulls.pulls
    pulls.close()


def test_a_request_that_ends_during_its_read_leaves_no_pin():
    view, pulls = View(), reads()
    pulls.begin(view, "chain", 0, 4, 9, OFFER)
    assert view.begun.wait(30)
    pulls.release(9)
    assert view.given_up.is_set()
    view.go.set()
    until(lambda: view.unpinned == [9])
    assert not pulls.is_under_way(9)
    pulls.close()


def test_a_host_that_is_not_allowed_is_never_connected_to(caplog):
    view, pulls = View(), Pulls(Handover())
    pulls.begin(view, "chain", 0, 4, 9, OFFER)
    assert not pulls.is_under_way(9) and view.asked == []
    assert "handover.allow does not name this host" in caplog.text
    assert view.noted == [(9, "10.0.0.5", 7000, "handover.allow does not name this host")]


def test_a_read_whose_time_is_over_is_not_begun(caplog):
    view, pulls = View(why="the prefiller is gone"), reads(timeout_s=1e-9)
    pulls.begin(view, "chain", 0, 4, 9, OFFER)
    until(lambda: not pulls.is_under_way(9))
    assert view.asked == [] and pulls.take_counters() == {"handovers_ended_early": 1}
    assert view.noted == [(9, "10.0.0.5", 7000, "its time was over before it began")]
    pulls.close()


def test_reads_wait_for_a_thread_while_others_bring_something():
    """More reads than threads: those that wait have their time from the end of a read that brought something."""
    view, pulls = View(), reads(timeout_s=0.2)
    first = [View() for _ in range(handover.READERS)]
    for number, busy in enumerate(first):
        pulls.begin(busy, "chain", 0, 4, 10 + number, OFFER)
    assert all(busy.begun.wait(30) for busy in first)
    pulls.begin(view, "chain", 0, 4, 9, OFFER)
    pulls.pulls[9].began -= 1  # it has waited for longer than its time
    first[0].go.set()
    view.go.set()
    until(lambda: not pulls.is_under_way(9))
    assert view.asked[-1] == "ended" and view.noted[0][3] == ""
    for busy in first:
        busy.go.set()
    pulls.close()


def test_only_a_prompt_that_was_computed_is_offered():
    assert handover.has_prompt(SimpleNamespace(num_computed_tokens=8, num_prompt_tokens=8))
    assert not handover.has_prompt(SimpleNamespace(num_computed_tokens=7, num_prompt_tokens=8))


class Half(handover.HandsOver):
    """A worker half that only hands over. `stored`: set when its stores behind a step have ended; None: there are none."""

    def __init__(self, view, stored=None):
        self.view, self.late, self.engine, self.namespace = view, [], view, {"block_tokens": 16}
        self.behind = stored and SimpleNamespace(wait_for_all=lambda: stored.wait(30) or self.late.append("late"))
        self.init_handover(Handover())

    @contextmanager
    def using_chain(self, session, part):
        yield self.view, "chain"

    def is_pushing(self, session):
        return session == 8


class OfferingView:
    """Stands for the library's view and engine."""

    def __init__(self, broken=None):
        self.offered, self.broken = [], broken

    def handover_expect(self, *offer):
        self.offered.append(("expect", *offer))

    def handover_pin(self, *offer):
        if self.broken:
            raise self.broken
        self.offered.append(("pin", *offer))
        return offer[1] - 1

    def handover_open(self, *offer):
        self.offered.append(("open", *offer))

    def handover_withdraw(self, *offer):
        self.offered.append(("withdraw", *offer))


EXPECTED, OPENED = ("expect", TOKEN, 60000), [("pin", "chain", 4, TOKEN), ("open", TOKEN, 48)]


def test_an_offer_is_open_before_the_answer():
    half = Half(OfferingView())
    assert half.offer(9, "part", 0, 4, OFFER) is False
    assert half.view.offered == [EXPECTED, *OPENED]
    assert half.offer(8, "part", 0, 4, OFFER) is True  # its prompt is pushed: the scheduler half may be in this process
    half.close_handover()


def test_an_offer_that_cannot_be_opened_is_withdrawn(caplog):
    """Its reader would wait for it."""
    half = Half(OfferingView(ValueError("x")))
    half.offer(9, "part", 0, 4, OFFER)
    assert half.view.offered == [EXPECTED, ("withdraw", TOKEN)]
    assert "a prompt could not be offered to a decoder: ValueError('x')" in caplog.text
    half.close_handover()


def test_an_offer_that_cannot_be_read_is_logged(caplog):
    """A failure costs the prompt's KV only, so that nothing else shows it."""
    half = Half(OfferingView())
    half.pulls.begin = lambda *what: 1 / 0
    half.pull(9, "part", 0, 4, OFFER)
    assert "the offer of a prefiller could not be read: ZeroDivisionError" in caplog.text
    half.close_handover()


def test_an_offer_whose_stores_have_not_ended_delays_nobody():
    stored = threading.Event()
    half = Half(OfferingView(), stored)
    half.offer(9, "part", 0, 4, OFFER)  # returns
    assert half.view.offered == [EXPECTED]  # a reader that comes now waits
    stored.set()
    until(lambda: len(half.view.offered) == 3)
    half.close_handover()
    assert half.view.offered == [EXPECTED, *OPENED] and half.late == []


def half_of(**changes):
    half = Half(None)
    half.ranks, half.engine = Ranks(), SimpleNamespace(param=lambda name: "")
    for name, value in changes.items():
        setattr(half, name, value)
    return half


class Server:
    """Stands for the library's engine, behind a node."""

    def __init__(self):
        self.started = []

    def handover_start(self, host, port):
        self.started.append((host, port))
        return 7000

    def handover_uses_tls(self):
        return True


def test_the_first_worker_serves_the_offers_of_all_and_has_their_inbox():
    for rank in range(2):
        opened = []
        half = half_of(ranks=Ranks(rank, 2), engine=Server(), handover=Handover(listen=("10.0.0.5", 0)),
                       open_inbox=lambda: opened.append(True))
        half.serve_offers()
        assert len(opened) == 1 - rank
        assert (half.serves, half.serves_tls, len(half.engine.started)) == (
            ("", False, 0) if rank else ("10.0.0.5:7000", True, 1))
    half = half_of(handover=Handover(allow=("10.0.0.5",)))
    half.serve_offers()
    assert half.serves == ""


@pytest.mark.parametrize("ranks", [None, [1, 1], "x", [2], [0, 1], [2, True], [2, 70000], {"tp": 2}])
def test_ranks_of_an_offer(ranks):
    assert "ranks" not in handover.read_offer(params(ranks=ranks))
    two = handover.new_offer("10.0.0.5:7000", 96, ranks=[2, 1])
    assert two["ranks"] == [2, 1] and handover.read_offer(handover.answer(two)) == two


def test_an_engine_of_other_ranks_is_not_read(caplog):
    view = View()
    half = half_of(view=view, handover=Handover(allow=("10.0.0.5",)))
    half.pulls = Pulls(half.handover)
    half.pull(9, "part", 0, 4, {**OFFER, "ranks": [2, 1]})
    why = "the prefiller has tensor parallelism 2 and pipeline parallelism 1, and this engine 1 and 1: this engine has several KV cache groups"
    assert view.asked == [] and view.noted == [(9, "10.0.0.5", 7000, why)] and why in caplog.text
    half.ranks = Ranks(0, 2)
    half.pull(9, "part", 0, 4, {**OFFER, "ranks": [2, 1]})
    view.go.set()
    until(lambda: not half.pulls.is_under_way(9))
    assert ("chain", 0, 4) in view.asked
    half.close_handover()


class Opener:
    """Stands for the library's engine: opens views of namespaces, or raises; `meanwhile` runs first."""

    def __init__(self, meanwhile=lambda: None):
        self.opened, self.meanwhile = [], meanwhile

    def view(self, namespace, shard, part):
        self.opened.append((namespace, shard, part))
        self.meanwhile()
        return f"theirs {len(self.opened)}"


def decoder_of(view, heads=8, **changes):
    """A worker half of one rank that reads offers of prefillers with other tensor ranks."""
    half = half_of(view=view, handover=Handover(allow=("10.0.0.5",)), kv_heads=KVHeads(heads), engine=Opener(),
                   engine_version="0.32.0", namespace={"block_tokens": 16, "weights": "00"}, lock=threading.Lock(),
                   measures=[Measures([512 * heads] * 3, "CPU_ATTN", (heads, 16, 8), (128, 8, 1), "torch.float32")], **changes)
    half.pulls = Pulls(half.handover)
    view.go.set()
    return half


def pull_of(half, session, ranks, **changes):
    half.pull(session, "part", 0, 4, {**OFFER, **changes, "ranks": ranks})
    until(lambda: not half.pulls.is_under_way(session))


def test_an_engine_of_another_tensor_parallelism_is_read_as_such():
    view = View()
    half = decoder_of(view)
    for session in (9, 10):  # the second one knows the view
        pull_of(half, session, [2, 1])
    assert view.asked.count(("chain", 0, 4, "theirs 1", "heads=8 pieces=1 from=2x3 to=1x3")) == 2
    ((namespace, shard, part),) = half.engine.opened
    assert shard == (0, 1, 0, 1) and part == (0, 6, 0, 1)
    assert namespace["cell_bytes"] == [2048] * 6 and namespace["weights"] == "00"
    layout = json.loads(namespace["layout"])
    assert layout["block_shape"] == [4, 16, 8] and layout["ranks"]["tp"] == 2
    pull_of(half, 11, [3, 1])
    assert view.noted[-1][-1].endswith("and this engine 1 and 1: 8 KV heads cannot be divided among 3 ranks")
    half.close_handover()


def test_a_view_of_the_weights_before_a_reset_is_not_kept():
    """A slow node opens the prefiller's view while the weights change: chunks read under it would be wrong."""
    view, later = View(), View()
    half = decoder_of(view)
    later.go.set()

    def reset():
        with half.lock:
            half.view = later
            half.others.clear()

    half.engine = Opener(reset)
    pull_of(half, 9, [2, 1])
    assert half.others == {} and view.asked == later.asked == []
    assert view.noted[-1][-1].endswith("the weights of this engine were reset meanwhile")
    half.engine.meanwhile = lambda: None
    pull_of(half, 10, [2, 1])
    assert ("chain", 0, 4, "theirs 2", "heads=8 pieces=1 from=2x3 to=1x3") in later.asked
    half.close_handover()


def test_a_host_that_is_not_allowed_makes_no_work():
    view = View()
    half = decoder_of(view)
    pull_of(half, 9, [2, 1], host="10.0.0.7")
    assert half.engine.opened == [] and half.others == {}
    assert view.noted == [(9, "10.0.0.7", 7000, "handover.allow does not name this host")]
    half.close_handover()


def test_sizes_that_requests_invent_keep_no_engine_out(caplog):
    """The view that was not used for the longest time makes way."""
    view = View()
    half = decoder_of(view, heads=2)
    pull_of(half, 1, [2, 1])
    for session in range(2, 12):
        pull_of(half, session, [2 * session, 1])
        pull_of(half, 100 + session, [2, 1])
    assert len(half.engine.opened) == 11 and len(half.others) == OTHERS_MAX
    assert list(half.others)[-2:] == [(22, 1), (2, 1)] and half.others[2, 1][0] == "theirs 1"
    assert view.noted[-1][3] == ""
    half.close_handover()


def test_more_layers_than_a_namespace_has(caplog):
    """65,528 ranks of 3 layers: neither a list of them nor a view is made, and the request has a note."""
    view = View()
    half = decoder_of(view)
    for session in (9, 10):
        pull_of(half, session, [65528, 1])
    pull_of(half, 11, [2048, 1])
    assert half.engine.opened == [] and len(view.noted) == 3
    assert view.noted[0][-1].endswith("a chunk has at most 4096 layers, those of all ranks together")
    pull_of(half, 12, [1360, 1])  # 4,080
    assert len(half.engine.opened) == 1
    assert len([line for line in caplog.records if "65528" in line.getMessage()]) == 1
    half.close_handover()


def test_a_view_that_cannot_be_opened_is_noted():
    view = View()
    half = decoder_of(view)

    def fails():
        raise _core.Error("no node answers (node.socket)")

    half.engine = Opener(fails)
    pull_of(half, 9, [2, 1])
    assert view.noted[-1][-1].endswith("a view of the prefiller's chunks cannot be opened: no node answers (node.socket)")
    assert half.others == {}
    half.close_handover()


# ---- push --------------------------------------------------------------------------------------

TO = {"host": "10.0.0.6", "port": 7001, "ticket": TOKEN}


def pushed(**changes):
    return {"do_remote_decode": True, "tierce": {"push": {**TO, **changes}}}


def test_where_a_prompt_is_pushed_is_checked():
    assert push.read_push(pushed()) == TO and push.read_push(pushed(tls=1)) == TO
    assert push.read_push(pushed(tls=True)) == {**TO, "tls": True}
    assert push.read_push({**pushed(), "do_remote_decode": 1}) is None
    for bad in (pushed(host=5), pushed(host="a?b"), pushed(port=0), pushed(port="7"), pushed(port=True), pushed(ticket="x"),
                pushed(ticket=None), {"do_remote_decode": True, "tierce": {"push": "x"}}, {"do_remote_decode": True},
                {"do_remote_decode": True, "tierce": 3}):
        assert push.read_push(bad) is None


def test_tickets():
    assert [push.asked_tickets({"tierce": {"inbox": n}}) for n in (3, 1000)] == [(3, ""), (64, "")]
    assert [push.asked_tickets({"tierce": {"inbox": n}}) for n in (0, -1, True, "3", None)] == [None] * 5
    assert push.asked_tickets({}) is push.asked_tickets({"tierce": "x"}) is None
    holders = [push.asked_tickets({"tierce": {"inbox": 1, "holder": h}})[1] for h in (TOKEN, "a b", "\u0661", "x" * 33, 7, None)]
    assert holders == [TOKEN, "", "", "", "", ""]
    inbox = push.tickets_answer("fd00::1:7000", [TOKEN])["tierce"]["inbox"]
    assert inbox == {"host": "fd00::1", "port": 7000, "tickets": [TOKEN], "seconds": 600}
    assert push.tickets_answer("fd00::1:7000", [TOKEN], True)["tierce"]["inbox"] == {**inbox, "tls": True}
    assert push.tickets_answer("", []) == {"tierce": {"inbox": {}}}
    assert push.read_ticket({"tierce": {"ticket": TOKEN}}) == TOKEN
    assert push.read_ticket({"tierce": {"ticket": TOKEN + "0"}}) is None and push.read_ticket({}) is None


class Chunks:
    """Stands for a push of the library; it is over when the test sets `over`."""

    def __init__(self):
        self.calls, self.over, self.over_ns = [], False, 0

    def __getattr__(self, name):
        return lambda *what: self.calls.append((name, *what))

    def poll(self):
        return self.over, 2, 8192, 1, 1, "the decoder had no room for the chunk", self.over_ns


def test_a_push_lasts_for_all_stores_of_its_request():
    library = Chunks()
    view = SimpleNamespace(push_begin=lambda *to: library.calls.append(to) or library)
    pushes = push.Pushes(Handover(allow=("10.0.0.6",)))
    for store in ("one", "two", None):
        pushes.watch(view, "chain", 7, TO, store, 16)
    pushes.computed([7, 8], 1_000_000)
    library.over_ns = 6_000_000
    pushes.watch_state(7, "state")
    pushes.watch_state(8, "of a prompt that is not pushed")
    pushes.end(7)
    assert library.calls == [("10.0.0.6", 7001, TOKEN, push.BUSY_MS, 10000, False), ("held", "chain", 16), ("watch", "one"),
                             ("watch", "two"), ("watch_state", "state"), ("end",)]
    assert pushes.take_counters() == {"pushes": 1}
    library.over = True
    assert pushes.take_counters() == {"pushed_chunks": 2, "push_bytes": 8192, "push_left_out_chunks": 1, "push_tail_seconds": 0.005,
                                      "push_tail_bytes": 8192}
    assert library.calls[-1] == ("close",) and not pushes.ending and not pushes.computed_ns


def test_a_push_without_a_computed_step_has_no_tail():
    """Neither its time nor its bytes are counted there."""
    library = Chunks()
    view = SimpleNamespace(push_begin=lambda *to: library)
    pushes = push.Pushes(Handover(allow=("10.0.0.6",)))
    pushes.watch(view, "chain", 7, TO, "store", 16)
    pushes.end(7)
    library.over, library.over_ns = True, 6_000_000
    assert pushes.take_counters() == {"pushes": 1, "pushed_chunks": 2, "push_bytes": 8192, "push_left_out_chunks": 1}


def test_a_request_that_has_ended_is_not_pushed():
    """Its abort came before the step that stores its last blocks."""
    library = Chunks()
    view = SimpleNamespace(push_begin=lambda *to: library.calls.append(to) or library)
    pushes = push.Pushes(Handover(allow=("10.0.0.6",)))
    pushes.end(7)
    pushes.watch(view, "chain", 7, TO, "store", 16)
    assert library.calls == [] and not pushes.begun and pushes.take_counters() == {}
    for session in range(8, 8 + 2 * push.ENDED_MAX):
        pushes.end(session)
    assert len(pushes.ended) == push.ENDED_MAX and 7 not in pushes.ended


def test_a_decoder_waits_for_no_push_that_was_refused_or_has_failed():
    library = Chunks()
    view = SimpleNamespace(push_begin=lambda *to: library)
    pushes = push.Pushes(Handover(allow=("10.0.0.6",)))
    pushes.watch(view, "chain", 7, TO, "store", 16)
    pushes.watch(view, "chain", 8, {**TO, "host": "10.0.0.9"}, "store", 16)
    assert [pushes.is_under_way(session) for session in (7, 8, 9)] == [True, False, False]
    library.over = True  # although more stores could follow: its connection has failed
    assert not pushes.is_under_way(7)
    for session in range(10, 10 + push.PUSHES_MAX):
        pushes.watch(view, "chain", session, TO, "store", 16)
    assert not pushes.is_under_way(9 + push.PUSHES_MAX) and len(pushes.begun) == push.PUSHES_MAX


class Accepts(push.PushesChunks):
    def __init__(self, error=None, inbox=25.0):
        self.handover = Handover(allow=("10.0.0.6", "10.0.0.7"), inbox=inbox)
        self.engine = SimpleNamespace(handover_accept=self.accept)
        self.error, self.asked = error, []

    def accept(self, *what):
        self.asked.append(what)
        if self.error is not None:
            raise self.error


def test_why_an_inbox_is_not_open(caplog):
    half = Accepts(_core.Error("the node is of an older version"))
    half.open_inbox()
    assert "(handover.allow) could not be opened: the node is of an older version" in caplog.text and not half.accepts
    for inbox, share in ((25.0, 250), (0.01, 1), (100, 1000)):  # thousandths of the memory, which may be a node's
        half = Accepts(inbox=inbox)
        half.open_inbox()
        assert half.accepts and half.asked == [("10.0.0.6 10.0.0.7", share, 60000)]


def test_a_node_without_tickets_leaves_the_link_alone():
    """An exception would end the scheduler's connection, and lookups with it."""
    def fail(*what):
        raise _core.Error("no node answers")

    half = Accepts()
    half.open_inbox()
    for tickets, got in ((fail, []), (lambda *what: [TOKEN], [TOKEN])):
        half.engine.handover_tickets = tickets
        server = SimpleNamespace(worker=half)
        assert json.loads(LinkServer.answer(server, memoryview(TICKETS.pack(OP_TICKETS, 3) + b"proxy"))) == got


def test_the_first_worker_pushes_the_chunks_of_all():
    request = SimpleNamespace(push=TO, session=7, save=SimpleNamespace(to_block=16))
    for ranks, is_first in ((Ranks(), True), (Ranks(0, 2), True), (Ranks(1, 2), False)):
        half, watched, told = push.PushesChunks(), [], []
        half.ranks, half.pushes = ranks, SimpleNamespace(watch=lambda *what: watched.append(what))
        store = SimpleNamespace(tell_layers=lambda: told.append(1))
        half.push_store("view", "chain", request, store)
        assert watched == [("view", "chain", 7, TO, store, 16)] * is_first
        half.push_store("view", "chain", request, None)  # it stores nothing
        half.push_store("view", "chain", SimpleNamespace(push=None), store)  # it is not pushed
        assert len(watched) == 2 * is_first and len(told) == (not is_first)


def test_a_push_that_cannot_begin(caplog):
    """Nothing waits for it, and one line of the log has the reason."""
    def push_begin(*to):
        raise _core.Error("the node is of an older version")

    pushes = push.Pushes(Handover(allow=("10.0.0.6",)))
    for session in (7, 7, 8):
        pushes.watch(SimpleNamespace(push_begin=push_begin), "chain", session, TO, "store", 16)
        assert not pushes.is_under_way(session)
    assert caplog.text.count("the node is of an older version") == 1 and pushes.take_counters() == {}


def test_warnings_of_many_places_are_bounded(caplog):
    pushes, pulls = push.Pushes(Handover()), Pulls(Handover())
    for port in range(1, 300):
        pushes.watch(None, "chain", port, {**TO, "port": port}, "store", 16)
        pulls.begin(View(), "chain", 0, 4, port, {**OFFER, "port": port})
    assert len(pushes.warned) == len(pulls.warned) == 100
    assert caplog.text.count("handover.allow does not name this host") == 200
    pulls.close()


def test_only_named_hosts_get_chunks(caplog):
    pushes = push.Pushes(Handover(allow=("10.0.0.7",)))
    pushes.watch(None, "chain", 7, TO, "store", 16)
    pushes.watch(None, "chain", 7, TO, "store", 32)
    pushes.end(7)
    assert not pushes.begun and not pushes.refused
    assert caplog.text.count("handover.allow does not name this host") == 1
