# SPDX-License-Identifier: Apache-2.0
"""Prefill and decode of a model with full attention, a window, states and chunked attention: two connectors in this process,
with stores of their own and TCP between them, without a running vLLM."""

import time

import pytest

pytest.importorskip("vllm")
import torch  # noqa: E402

from test_connector import changed, config, request_of  # noqa: E402, F401
from test_groups import STORED, TOKENS, WANTED, Allocated, Engine, cache_of, output_of, specs  # noqa: E402

BOTH = {"handover.listen": "127.0.0.1", "handover.allow": "127.0.0.1"}
STATES = [(2, 30, 192), (2, 31, 200), (9, 1, 192)]


def with_store(config, engine_id, size, **more):  # noqa: F811
    return changed(config, "kv_transfer_config", engine_id=engine_id, kv_connector_extra_config={
        "memory.size": size, "disk.path": "", "cost.check": "false", **more})


@pytest.fixture
def pair(config):  # noqa: F811
    prefiller = Engine(with_store(config, "p", "4MiB", **BOTH), cache_of(specs()))
    decoder = Engine(with_store(config, "d", "5MiB", **BOTH), cache_of(specs()), seed=2)
    yield prefiller, decoder
    prefiller.close()
    decoder.close()


def prefill(engine, states=tuple(STATES), name="p", to=None):
    """The answer's kv_transfer_params. to: with a push to there."""
    request = request_of(TOKENS, name)
    request.kv_transfer_params = {"do_remote_decode": True, **({"tierce": to} if to else {})}
    assert engine.scheduler.get_num_new_matched_tokens(request, 0) == (0, False)
    engine.scheduler.update_state_after_alloc(request, Allocated(STORED), 0)
    engine.step(output_of(request, STORED, 0, TOKENS, states))
    request.num_computed_tokens = TOKENS
    return engine.scheduler.request_finished_all_groups(request, STORED)[1]


def matched(engine, options, name="d"):
    """A request with these kv_transfer_params, and the answer to vLLM when the offer has been read."""
    request = request_of(TOKENS, name)
    request.kv_transfer_params = options
    give_up = time.monotonic() + 30
    while (answer := engine.scheduler.get_num_new_matched_tokens(request, 0)) == (None, False):
        assert time.monotonic() < give_up
    return request, answer


def test_the_decoder_loads_what_each_group_requires(pair):
    prefiller, decoder = pair
    options = prefill(prefiller)
    assert options["tierce"]["tokens"] == 192
    request, answer = matched(decoder, options)
    assert answer == (192, True)
    # Nothing is pinned there any longer, and the decoder has the end of the window and one state only.
    assert prefiller.worker.half.engine.stats()["sessions_now"] == 0
    decoder.scheduler.update_state_after_alloc(request, Allocated(WANTED), 192)
    before = {name: tensor.clone() for name, tensor in decoder.pool.tensors.items()}
    results = decoder.received(request)
    assert results.finished_recving == {"d"} and results.failed_recving == set()
    for group, sources, targets in zip(decoder.cache.kv_cache_groups, STORED, WANTED):
        for name in group.layer_names:
            for source, target in zip(sources, targets):
                if target:
                    assert decoder.pool.block(decoder.cache, name, target) == prefiller.pool.block(
                        prefiller.cache, name, source), (name, source, target)
            assert torch.equal(before[name][:1], decoder.pool.tensors[name][:1])
    decoder.scheduler.request_finished_all_groups(request, WANTED)
    assert decoder.worker.half.engine.stats()["sessions_now"] == 0
    held = [each.worker.half.engine.stats()["memory_chunks_now"] for each in pair]
    assert 0 < held[1] < held[0]


def test_an_offer_ends_where_the_prefiller_has_a_state(pair, caplog):
    """The last state is one unit before the end of the prompt."""
    prefiller, decoder = pair
    _, answer = matched(decoder, prefill(prefiller, [(2, 29, 128)]))
    assert answer == (128, True)
    assert "the prefiller can restore 128 of 192 tokens: a group's chunk or state is not in its memory" in caplog.text
    assert decoder.worker.half.pulls.take_counters()["handovers_ended_early"] == 1


def test_without_a_state_there_is_nothing_to_read(pair, caplog):
    prefiller, decoder = pair
    _, answer = matched(decoder, prefill(prefiller, []))
    assert answer == (0, False)
    assert "the prefiller can restore 0 of 192 tokens: a group's chunk or state is not in its memory" in caplog.text
    assert decoder.worker.half.pulls.take_counters()["handovers_ended_early"] == 1
    assert decoder.worker.half.engine.stats()["memory_chunks_now"] == 0
    assert [each.worker.half.engine.stats()["sessions_now"] for each in pair] == [0, 0]


def test_a_group_that_does_not_come_is_a_miss_of_all(pair, caplog):
    """The offer promises a state that the prefiller does not have, as if it were evicted: full attention and the window come."""
    prefiller, decoder = pair
    options = prefill(prefiller, [(2, 29, 128)])
    prefiller.worker.half.engine.handover_open(options["tierce"]["token"], 192)
    _, answer = matched(decoder, options)
    assert answer == (0, False)
    assert "group state: the prefiller does not have the chunk" in caplog.text
    assert [each.worker.half.engine.stats()["sessions_now"] for each in pair] == [0, 0]


def test_groups_are_pushed_while_they_are_computed(pair):
    """The decoder gives a ticket. Full attention, windows and states are pushed; nothing is read, and nothing is pinned for
    the ticket afterwards."""
    prefiller, decoder = pair
    ask = request_of(1, "t")
    ask.kv_transfer_params = {"tierce": {"inbox": 1, "holder": "proxy"}}
    decoder.scheduler.get_num_new_matched_tokens(ask, 0)
    inbox = decoder.scheduler.request_finished_all_groups(ask, STORED)[1]["tierce"]["inbox"]
    (ticket,) = inbox["tickets"]
    options = prefill(prefiller, to={"push": {"host": inbox["host"], "port": inbox["port"], "ticket": ticket}})
    assert options["tierce"]["ticket"] == ticket
    _, answer = matched(decoder, options)
    assert answer == (192, True)
    stats = decoder.worker.half.engine.inbox_stats()
    assert stats["chunks"] > 0 and stats["refused_chunk"] == stats["wrong"] == stats["tickets_now"] == 0
    counters = decoder.worker.half.pulls.take_counters()
    assert counters["handover_pushed_bytes"] == stats["bytes"] > 0
    assert counters.get("handover_bytes", 0) == 0 and "handovers_ended_early" not in counters
    decoder.worker.half.view.unpin(decoder.scheduler.half.live["d"][1].session)
    assert [each.worker.half.engine.stats()["sessions_now"] for each in pair] == [0, 0]
