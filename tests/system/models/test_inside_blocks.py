# SPDX-License-Identifier: Apache-2.0
"""A real vLLM with models of recurrent states, whose hashes are finer than the blocks: hits end inside blocks, and prompts
shorter than a block have hits. The answers are those of a vLLM without a cache."""

from functools import cache
from itertools import count

import pytest

from conftest import WORKERS, HostError, answers, loaded, varied, why
from hybrid_models import DTYPES, make_hybrid, make_latent_hybrid
from node_process import Node
from test_faults import damage
from test_hybrid_ranks import CHANGES
from test_vllm import disk_store, held_and_loaded, memory_store

UNIT = 16  # tokens of a hash
BLOCKS = {"qwen3_next": 96, "latent": 128}
OPTIONS = {"qwen3_next": {}, "latent": {"patch": "latent_on_cpu"}}
# Two prompts end in their first block; the point of the third is the end of a block of 96 tokens.
LENGTHS = (17, 60, 97, 190, 700)
KINDS = ("qwen3_next", pytest.param("latent", marks=pytest.mark.long))


def options(kind):
    return {"dtype": "bfloat16", "mamba_cache_mode": "align", "prefix_match_unit": UNIT, **OPTIONS[kind]}


def points(asked, unit=UNIT):
    """Where vLLM keeps a state of each prompt: at its last hash, with at least one token left to compute."""
    return [(len(prompt) - 1) // unit * unit for prompt in asked]


def parted(asked):
    """Prompts that are equal up to these points only."""
    return [prompt[:at] + [255 - token for token in prompt[at:]] for prompt, at in zip(asked, points(asked))]


@pytest.fixture(scope="module")
def asked(prompts):
    return [prompt[300 - length // 4:][:length] for prompt, length in zip(prompts, LENGTHS)]


@pytest.fixture(scope="module")
def hybrid(tmp_path_factory):
    """hybrid(kind) -> the folder of a model."""
    @cache
    def model(kind):
        path = tmp_path_factory.mktemp("model") / kind
        return make_latent_hybrid(path) if kind == "latent" else make_hybrid(path, kind)

    return model


@pytest.fixture
def start(engine, hybrid):
    return lambda kind, store, **more: engine(store, model=hybrid(kind), **{**options(kind), **more})


@pytest.fixture(scope="module")
def plain(module_engine, hybrid):
    """plain(kind, prompts) -> the answers of a vLLM without a cache, which keeps running: prompts differ between tests."""
    host = cache(lambda kind: module_engine(model=hybrid(kind), **options(kind)))
    numbers = count()

    @cache
    def answer(kind, prompt):
        # A salt of its own: vLLM's own cache finds nothing either.
        return varied(answers(host(kind).generate(prompts=[prompt], salts=[f"prompt {next(numbers)}"])))[0]

    return lambda kind, asked: [answer(kind, tuple(prompt)) for prompt in asked]


class Asking:
    """Asks an engine, each prompt under a salt of its own, and checks the answers."""

    def __init__(self, host, kind, plain):
        self.host, self.kind, self.plain = host, kind, plain

    def __call__(self, asked, salt="salt", is_right=True, **more):
        salts = [f"{salt} {at}" for at in range(len(asked))]
        outputs = self.host.generate(prompts=asked, salts=salts, **more)
        assert (answers(outputs) == self.plain(self.kind, asked)) == is_right
        assert {o["end"] for o in outputs} == {"length"}
        return outputs

    def again(self, asked, *args, **more):
        """Without vLLM's own cache."""
        assert self.host.forget()
        return self(asked, *args, **more)


@pytest.mark.parametrize("kind", KINDS)
def test_hits(start, asked, plain, tmp_path, kind):
    """From memory, and after a kill from disk."""
    store = disk_store(tmp_path / "store", **{"timeout.lookup": "5s"})
    host = start(kind, store)
    ask = Asking(host, kind, plain)
    assert loaded(ask(asked), "memory") == [0] * 5
    groups, size = host.groups(), BLOCKS[kind]
    assert sorted(groups) == [["full", 0, size]] + [["state", 0, size]] * 3
    assert host.forget()
    host.count_loads()
    outputs = ask(asked)
    assert loaded(outputs, "memory") == points(asked) and loaded(outputs, "failed") == [0] * 5
    assert host.mend_call() == [[-(-at // size) if group == "full" else 1 for group, _, _ in groups] for at in points(asked)]
    for output, at in zip(outputs, points(asked)):
        said = why(host.process.pid, output)
        assert (said["found_tokens"], said["loaded_tokens"], said["unit_tokens"]) == (at, at, UNIT)
        assert (said["reason"], said["limit"]) == ("none", "none")
    assert host.flush()
    host.kill()
    host = start(kind, store)
    ask = Asking(host, kind, plain)
    assert loaded(ask(asked[:2]), "disk") == points(asked)[:2]
    outputs = ask.again(asked, together=True)
    assert loaded(outputs, "failed") == [0] * 5 and sum(loaded(outputs, "disk")) > 0
    assert "Tierce is off" not in host.text(host.mark) and "Tierce failed in" not in host.text(host.mark)


@pytest.mark.long
def test_hits_by_vllms_hashes(start, asked, plain):
    store = memory_store(**{"chunk.hash": "vllm-sha256-cbor"})
    ask = Asking(start("qwen3_next", store, prefix_caching_hash_algo="sha256_cbor"), "qwen3_next", plain)
    ask(asked)
    assert loaded(ask.again(parted(asked)), "memory") == points(asked)


def test_nothing_behind_the_end_of_a_hit_is_read(start, asked, plain):
    """The last block of a load has KV of another prompt behind the end of the hit, and here also noise. Noise before the
    end would be noticed."""
    host = start("qwen3_next", memory_store())
    ask = Asking(host, "qwen3_next", plain)
    ask(asked)
    inside = sum(at % BLOCKS["qwen3_next"] > 0 for at in points(asked))
    outputs = ask.again(parted(asked))
    assert loaded(outputs, "memory") == points(asked)
    for before in (0, UNIT):
        host.scribble(before=before)
        outputs = ask.again(parted(asked), is_right=before == 0)
        assert loaded(outputs, "memory") == points(asked)
        assert host.mend_call() == inside > 0
    assert loaded(ask.again(asked), "memory") == points(asked)


def test_a_wrong_state_would_be_noticed(start, asked, plain):
    """Checks that the answers change if the states of two groups are exchanged."""
    host = start("qwen3_next", memory_store())
    ask = Asking(host, "qwen3_next", plain)
    ask(asked)
    host.rotate_groups(places=[0, 1])
    outputs = ask.again(asked, is_right=False)
    assert loaded(outputs, "memory") == points(asked)
    differ = [given != right for given, right in zip(answers(outputs), plain("qwen3_next", asked))]
    assert any(differs and at % BLOCKS["qwen3_next"] for differs, at in zip(differ, points(asked)))
    host.mend_call()
    assert loaded(ask.again(asked), "memory") == points(asked)


def test_a_later_turn(start, asked, plain):
    """A prompt that continues another one: the hit ends inside the block in which the other one ended."""
    host = start("qwen3_next", memory_store())
    ask = Asking(host, "qwen3_next", plain)
    turns = [asked[4][:length] for length in (60, 230, 500, 700)]
    found = [0, *points(turns)]
    for turn, at in zip(turns, found):
        assert loaded(ask.again([turn]), "memory") == [at]
    # A prompt that parts from the last turn in its middle finds the turn before.
    other = turns[3][:560] + [255 - token for token in turns[3][560:]]
    assert loaded(ask.again([other]), "memory") == [points(turns)[2]]


@pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.long)])
def test_a_group_that_was_evicted(start, asked, plain, every):
    """Nothing is loaded unless all groups have it; what is missing is stored again. One of the three groups with a state, or
    every group."""
    host = start("qwen3_next", memory_store())
    ask = Asking(host, "qwen3_next", plain)
    kinds = [kind for kind, _, _ in host.groups()]
    for at in range(len(kinds)) if every else (kinds.index("state"), kinds.index("full")):
        salt = f"without group {at}"
        host.forget_stores(at=at)
        ask(asked, salt)
        host.mend_call()
        outputs = ask.again(asked, salt)
        assert loaded(outputs, "memory") == loaded(outputs, "failed") == [0] * 5
        assert loaded(ask.again(asked, salt), "memory") == points(asked)


@pytest.mark.long
def test_damage_and_kills(start, asked, plain, tmp_path):
    store = disk_store(tmp_path / "store", **{"timeout.lookup": "5s"})
    host = start("qwen3_next", store)
    ask = Asking(host, "qwen3_next", plain)
    ask(asked[:4])
    assert host.flush()
    host.die_in_store(at=1)
    with pytest.raises(HostError):
        host.generate(prompts=asked[4:], salts=["killed"])
    damage(tmp_path / "store", 32 << 10)
    host = start("qwen3_next", store)
    ask = Asking(host, "qwen3_next", plain)
    assert sum(loaded(ask(asked), "failed")) > 0
    for _ in range(2):
        outputs = ask.again(asked)
    assert held_and_loaded(outputs) == points(asked) and loaded(outputs, "failed") == [0] * 5


@pytest.mark.long
@pytest.mark.parametrize("policy", ["recompute", "fail"])
def test_prefetch(start, asked, plain, tmp_path, policy):
    """Blocks and states come from disk to memory before the load. With the policy `fail`, nothing else is loaded."""
    store = disk_store(tmp_path / "store", **{"load.prefetch": "true", "timeout.lookup": "5s"})
    host = start("qwen3_next", store)
    Asking(host, "qwen3_next", plain)(asked)
    assert host.flush()
    host.stop()
    host = start("qwen3_next", store, policy=policy)
    outputs = Asking(host, "qwen3_next", plain)(asked)
    assert loaded(outputs, "memory") == points(asked)
    stats = host.stats()
    assert stats["prefetches"] > 0 and stats["sessions_now"] == stats["prefetch_bytes_now"] == 0


@pytest.mark.long
def test_through_a_node(start, asked, plain, node):
    host = start("qwen3_next", node.store)
    ask = Asking(host, "qwen3_next", plain)
    ask(asked)
    assert loaded(ask.again(asked), "memory") == points(asked)
    node.kill()
    assert loaded(ask.again(asked), "memory") == [0] * 5


def test_chunked_prefill_and_preemption(start, asked, plain, prompts):
    """Steps that end inside blocks, and less KV memory than the requests need together. A resumed request of a model with
    bfloat16 states may answer otherwise, because vLLM computes its tokens in another order. The chunks that it stores are right."""
    host = start("qwen3_next", memory_store(), max_num_batched_tokens=112, max_model_len=512, num_gpu_blocks_override=24)
    ask = Asking(host, "qwen3_next", plain)
    many = [prompt[300:380 + 7 * at] for at, prompt in enumerate(prompts)]
    before = host.metric(name="vllm:num_preemptions")
    outputs = host.generate(prompts=many, salts=[f"salt {at}" for at in range(5)], tokens=150, together=True)
    assert {o["end"] for o in outputs} == {"length"} and loaded(outputs, "failed") == [0] * 5
    assert host.metric(name="vllm:num_preemptions") > before
    assert loaded(ask.again(many), "memory") == points(many)
    chunked = [prompt[300:700 + 9 * at] for at, prompt in enumerate(prompts[:2])]
    ask(chunked, "chunked")
    assert loaded(ask.again(chunked, "chunked"), "memory") == points(chunked)


@pytest.mark.long
@pytest.mark.parametrize("ranks", WORKERS)
def test_two_ranks(engine, asked, tmp_path, ranks):
    """Each tensor rank has a share of the states and of full attention, each pipeline stage some of the groups' layers."""
    model = make_hybrid(tmp_path / "model", "qwen3_next", **CHANGES["qwen3_next"])
    given = {"model": model, "dtype": DTYPES["qwen3_next"], "mamba_cache_mode": "align", "prefix_match_unit": 32,
             "max_model_len": 1100, "max_num_batched_tokens": 512, **WORKERS[ranks]}
    host = engine(**given)
    right = answers(host.generate(prompts=asked, salts=[f"salt {at}" for at in range(5)]))
    host.stop()
    node = Node(tmp_path, f"--listen.native={tmp_path}/native", "--memory.size=256MiB")
    host = engine({"node.socket": f"{tmp_path}/native", "timeout.lookup": "20s"}, **given)
    ask = Asking(host, ranks, lambda *_: right)
    ask(asked)
    for _ in range(2):
        assert loaded(ask.again(asked), "memory") == points(asked, 32)
    node.kill()
