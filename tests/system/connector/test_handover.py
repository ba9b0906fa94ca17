# SPDX-License-Identifier: Apache-2.0
"""Prefill and decode on two real vLLMs: the answers are those of one vLLM, the decoder computes a single token of each
prompt, and computes whatever does not come."""

import pytest

from conftest import answers, loaded
from node_process import Node
from test_vllm import whole_blocks

PREFILL = {"do_remote_decode": True}


def store(**more):
    return {"memory.size": "128MiB", "disk.path": "", "cost.check": "false", **more}


@pytest.fixture(scope="module")
def pair(module_engine):
    """A prefiller and a decoder for all tests that leave them as they are."""
    both = {"handover.listen": "127.0.0.1", "handover.allow": "127.0.0.1"}
    return module_engine(store(**both)), module_engine(store(**both))


def proxied(prefiller, decoder, prompts, change=lambda offer: offer):
    """Acts as a proxy: one token of the prefiller, then the whole answer of the decoder with what the prefiller said."""
    out = []
    for prompt in prompts:
        (first,) = prefiller.generate(prompts=[prompt], tokens=1, wishes=PREFILL)
        assert first["report"]["do_remote_prefill"] is True and first["report"]["do_remote_decode"] is False
        wishes = {name: first["report"][name] for name in ("do_remote_prefill", "do_remote_decode")}
        out += decoder.generate(prompts=[prompt], wishes={**wishes, "tierce": change(first["report"]["tierce"])})
    return out


def test_the_decoder_computes_one_token_of_each_prompt(pair, prompts, expected):
    """Prompts that end in a block, with the block, with one token more, before a whole block, and in the last block of a
    chunk."""
    prefiller, decoder = pair
    asked = [prompts[0], prompts[1][:768], prompts[2][:769], [7, *prompts[3][:19]], prompts[4][:1000]]
    before = decoder.reasons(name="vllm:prompt_tokens_by_source", label="source")
    outputs = proxied(prefiller, decoder, asked)
    assert answers(outputs) == expected(asked)
    assert [o["cached"] for o in outputs] == [len(p) - 1 for p in asked]
    assert loaded(outputs, "failed") == [0] * 5
    after = decoder.reasons(name="vllm:prompt_tokens_by_source", label="source")
    assert after["local_compute"] - before.get("local_compute", 0) == len(asked)
    assert sum(loaded(outputs, "memory")) == after["external_kv_transfer"] - before.get("external_kv_transfer", 0)
    # Nothing is held any longer on either side.
    assert prefiller.stats()["sessions_now"] == decoder.stats()["sessions_now"] == 0


def tickets(decoder, count):
    """Asks a decoder for its address and tickets, as a proxy does."""
    (answer,) = decoder.generate(prompts=[[0]], tokens=1, wishes={"tierce": {"inbox": count}})
    inbox = answer["report"]["tierce"]["inbox"]
    assert len(inbox["tickets"]) == count and inbox["seconds"] > 0
    return [{"host": inbox["host"], "port": inbox["port"], "ticket": ticket} for ticket in inbox["tickets"]]


def pushed(prefiller, decoder, prompts):
    """Acts as a proxy with a ticket for each prompt."""
    out = []
    for prompt, to in zip(prompts, tickets(decoder, len(prompts))):
        (first,) = prefiller.generate(prompts=[prompt], tokens=1, wishes={**PREFILL, "tierce": {"push": to}})
        assert first["report"]["tierce"]["ticket"] == to["ticket"]
        out += decoder.generate(prompts=[prompt], wishes={
            name: first["report"][name] for name in ("do_remote_prefill", "do_remote_decode", "tierce")})
    return out


def test_chunks_are_pushed_while_they_are_computed(pair, prompts, expected):
    """A ticket, a used one, and one that the decoder never made: the answers are the same."""
    prefiller, decoder = pair
    (good,) = tickets(decoder, 1)
    asked = [[(token + 3) % 256 for token in prompt] for prompt in (prompts[0], prompts[1][:769], prompts[2])]
    read = decoder.metric(name="vllm:tierce_handover_bytes")
    outputs = []
    for prompt, to in zip(asked, [good, good, {**good, "ticket": "0" * 32}]):
        (first,) = prefiller.generate(prompts=[prompt], tokens=1, wishes={**PREFILL, "tierce": {"push": to}})
        # If the decoder has rejected the push by then, the answer has no ticket.
        assert first["report"]["tierce"].get("ticket") in ([to["ticket"]] if not outputs else [to["ticket"], None])
        wishes = {name: first["report"][name] for name in ("do_remote_prefill", "do_remote_decode", "tierce")}
        outputs += decoder.generate(prompts=[prompt], wishes=wishes)
        if to is good and len(outputs) == 1:
            assert decoder.metric(name="vllm:tierce_handover_bytes") == read  # nothing had to be read
    assert answers(outputs) == expected(asked)
    assert answers(outputs) == expected(asked)
    assert [o["cached"] for o in outputs] == [len(p) - 1 for p in asked]
    assert loaded(outputs, "failed") == [0] * 3
    assert prefiller.metric(name="vllm:tierce_pushes") == 3
    assert prefiller.metric(name="vllm:tierce_pushed_chunks") > 0
    assert decoder.metric(name="vllm:tierce_handover_bytes") > read  # the others were
    assert prefiller.stats()["sessions_now"] == decoder.stats()["sessions_now"] == 0


def test_what_does_not_come_is_computed(pair, prompts, expected):
    prefiller, decoder = pair
    assert decoder.forget() and prefiller.forget()
    fresh = [[(token + 1) % 256 for token in prompt] for prompt in prompts[:2]]
    wrong = proxied(prefiller, decoder, fresh[:1], lambda offer: {**offer, "token": "0" * 32})
    other = proxied(prefiller, decoder, fresh[1:], lambda offer: {**offer, "host": "127.0.0.2"})
    assert answers(wrong + other) == expected(fresh)
    assert loaded(wrong + other, "memory") == [0, 0]
    assert "handover.allow does not name this host" in decoder.text()
    assert "the prefiller has no such offer" in decoder.text()
    metrics = {name: decoder.metric(name=f"vllm:tierce_{name}") for name in ("handovers", "handover_bytes", "handovers_ended_early")}
    assert metrics["handovers"] >= 1 and metrics["handover_bytes"] > 0 and metrics["handovers_ended_early"] == 2


@pytest.mark.long
def test_a_prefiller_that_is_killed_after_its_answer(pair, prompts, expected, engine):
    _, decoder = pair
    prefiller = engine(store(**{"handover.listen": "127.0.0.1"}))
    asked = [(token + 2) % 256 for token in prompts[0]]
    (first,) = prefiller.generate(prompts=[asked], tokens=1, wishes=PREFILL)
    prefiller.kill()
    outputs = decoder.generate(prompts=[asked], wishes=first["report"])
    assert answers(outputs) == expected([asked])
    assert loaded(outputs, "memory") == loaded(outputs, "failed") == [0]
    assert outputs[0]["seconds"] < 60  # handover.timeout_s bounds the wait
    assert decoder.stats()["sessions_now"] == 0


@pytest.mark.long
@pytest.mark.parametrize("ranks", [1, 2])
def test_engines_over_nodes(engine, prompts, tmp_path, ranks):
    """Each engine has a node of its own, which serves, reads, pushes and accepts the chunks of all its ranks."""
    nodes = []
    for name, size in (("p", "200MiB"), ("d", "160MiB")):
        (tmp_path / name).mkdir()
        nodes.append(Node(tmp_path / name, f"--listen.native={tmp_path / name}/native", f"--memory.size={size}",
                          "--disk.path=", "--cost.check=false"))
    more = {"tensor_parallel_size": ranks, "max_model_len": 1100}
    stores = [{"node.socket": f"{tmp_path / name}/native", "timeout.lookup": "20s"} for name in ("p", "d")]
    both = {"handover.listen": "127.0.0.1", "handover.allow": "127.0.0.1"}
    prefiller, decoder = engine({**stores[0], **both}, **more), engine({**stores[1], **both}, **more)
    asked = [prompts[0], prompts[1][:769], prompts[2][:768]]
    outputs = proxied(prefiller, decoder, asked)
    assert answers(outputs) == answers(prefiller.generate(prompts=asked))
    # Several ranks hand over whole blocks.
    assert [o["cached"] for o in outputs] == ([len(p) - 1 for p in asked] if ranks == 1 else whole_blocks(asked))
    assert sum(loaded(outputs, "memory")) > 0 and loaded(outputs, "failed") == [0] * 3
    other = proxied(prefiller, decoder, prompts[3:4], lambda offer: {**offer, "ranks": [ranks, 3]})
    assert answers(other) == answers(prefiller.generate(prompts=prompts[3:4])) and loaded(other, "memory") == [0]
    assert f"tensor parallelism {ranks} and pipeline parallelism 3, and this engine {ranks} and 1" in decoder.text()
    read = decoder.metric(name="vllm:tierce_handover_bytes")
    fresh = [[(token + 3) % 256 for token in prompt] for prompt in asked]
    outputs = pushed(prefiller, decoder, fresh)
    assert answers(outputs) == answers(prefiller.generate(prompts=fresh))
    assert [o["cached"] for o in outputs] == ([len(p) - 1 for p in asked] if ranks == 1 else whole_blocks(asked))
    assert decoder.metric(name="vllm:tierce_handover_bytes") == read  # nothing had to be read
    assert decoder.metric(name="vllm:tierce_handover_pushed_bytes") > 0
    assert prefiller.metric(name="vllm:tierce_pushes") == len(fresh)
    assert prefiller.metric(name="vllm:tierce_push_left_out_chunks") == 0
    for host in (decoder, prefiller):
        host.stop()
    for node in nodes:
        node.end()


@pytest.mark.long
@pytest.mark.parametrize("theirs, ours", [(2, 1), (1, 2)])
def test_engines_with_other_numbers_of_ranks(engine, prompts, tmp_path, theirs, ours):
    """The decoder puts the heads of the prefiller's ranks together for its own, and computes nothing of the blocks that
    it reads."""
    node = Node(tmp_path, f"--listen.native={tmp_path}/native", "--memory.size=200MiB", "--disk.path=", "--cost.check=false")
    several = {"node.socket": f"{tmp_path}/native", "timeout.lookup": "20s"}

    def start(ranks, **more):
        return engine({**(several if ranks > 1 else store()), **more}, tensor_parallel_size=ranks, max_model_len=1100)

    prefiller, decoder = start(theirs, **{"handover.listen": "127.0.0.1"}), start(ours, **{"handover.allow": "127.0.0.1"})
    asked = [prompts[0], prompts[1][:768], prompts[2][:769]]
    outputs = proxied(prefiller, decoder, asked)
    assert "cannot" not in decoder.text()
    assert min(o["cached"] for o in outputs) > 0 and loaded(outputs, "failed") == [0] * 3
    assert sum(loaded(outputs, "memory")) > 0 and decoder.metric(name="vllm:tierce_handover_bytes") > 0
    assert answers(outputs) == answers(prefiller.generate(prompts=asked))
    for host in (decoder, prefiller):
        host.stop()
    node.end()
