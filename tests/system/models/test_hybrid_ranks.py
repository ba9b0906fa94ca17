# SPDX-License-Identifier: Apache-2.0
"""A real vLLM with several ranks and a model of several KV cache groups, over a node. Tensor ranks hold shares of the
layers of each group; a pipeline stage holds some of the groups only. The answers are those of a vLLM without a cache,
also if one rank fails alone."""

from functools import cache

import pytest

from conftest import HostError, answers, loaded
from hybrid_models import DTYPES, make_hybrid
from node_process import Node
from test_faults import damage
from test_native import gave_back, wait_until
from test_vllm import held_and_loaded, whole_blocks

RANKS = {"tp": {"tensor_parallel_size": 2}, "pp": {"pipeline_parallel_size": 2}}
# The first of two stages of the Gemma-3-like model has no layer of full attention: vLLM makes groups of equal size,
# of layers 0 and 2, 1 and 3, and 4 and 5. Two tensor ranks have a key head of a recurrent layer each, and vLLM
# requires attention and experts in each stage.
CHANGES = {"gemma3": {"layer_types": ["sliding_attention"] * 4 + ["full_attention"] * 2},
           "qwen3_next": {"linear_num_key_heads": 2, "linear_num_value_heads": 4, "mlp_only_layers": [0, 2],
                          "layer_types": ["linear_attention", "full_attention"] * 2}}
# Less KV memory than the prompts need together.
OPTIONS = {"gemma3": {"num_gpu_blocks_override": 110}, "gpt_oss": {"num_gpu_blocks_override": 90},
           "qwen3_next": {"num_gpu_blocks_override": 60, "mamba_cache_mode": "align"}}
# Tokens of a block: vLLM makes it as large as a state, whose size depends on the heads of a rank.
UNITS = {("qwen3_next", "tp"): 160, ("qwen3_next", "pp"): 160}
CASES = [("gemma3", "pp"),
         *(pytest.param(case, marks=pytest.mark.long) for case in (
             ("gemma3", "tp"), ("qwen3_next", "tp"), ("gpt_oss", "tp"), ("gpt_oss", "pp"), ("qwen3_next", "pp")))]


def options(kind, ranks):
    return {"dtype": DTYPES.get(kind, "float32"), "max_model_len": 1100, "max_num_batched_tokens": 512,
            "worker_extension_cls": "faulty_workers.Extension", **OPTIONS[kind], **RANKS[ranks]}


@pytest.fixture(scope="module")
def hybrid(tmp_path_factory):
    """hybrid(kind) -> the folder of a model."""
    return cache(lambda kind: make_hybrid(tmp_path_factory.mktemp("hybrid") / kind, kind, **CHANGES.get(kind, {})))


class Case:
    """An engine with several ranks, its node, and the answers of an engine without a cache."""

    def __init__(self, engine, model, folder, kind, ranks, prompts):
        self.name, self.prompts, self.folder = (kind, ranks), prompts, folder
        self.begin = lambda store=None: engine(store, model=model, **options(kind, ranks))
        plain = self.begin()
        self.right = answers(plain.generate(prompts=prompts))
        plain.stop()
        assert len({tuple(a) for a in self.right}) == len(prompts) and all(len(set(a)) > 2 for a in self.right)
        self.node = Node(folder, f"--listen.native={folder}/native", "--memory.size=256MiB",
                         f"--disk.path={folder}/disk", "--disk.size=1GiB", "--cost.check=false", "--timeout.pin=1h")
        self.start()

    def start(self):
        self.host = self.begin({"node.socket": f"{self.folder}/native", "timeout.lookup": "20s"})

    @property
    def whole(self):
        """The length of each prompt's hit: a whole number of units, with at least one token left to compute."""
        return whole_blocks(self.prompts, UNITS.get(self.name, 32))

    def ask(self, salt, at=slice(None), **more):
        """Generates, and checks the answers."""
        prompts = self.prompts[at]
        outputs = self.host.generate(prompts=prompts, salts=[salt] * len(prompts), **more)
        assert answers(outputs) == self.right[at]
        assert {o["end"] for o in outputs} == {"length"}
        return outputs


@pytest.fixture(scope="module")
def case(module_engine, hybrid, tmp_path_factory, prompts, request):
    kind, ranks = request.param
    out = Case(module_engine, hybrid(kind), tmp_path_factory.mktemp("node"), kind, ranks, prompts)
    yield out
    out.host.stop()
    out.node.kill()


every_case = pytest.mark.parametrize("case", CASES, indirect=True, ids=lambda case: "-".join(case))


@every_case
def test_hits(case):
    assert loaded(case.ask("hits"), "memory")[0] == 0
    for together in (False, True):
        assert case.host.forget()
        outputs = case.ask("hits", together=together)
        assert loaded(outputs, "failed") == [0] * 5
        # vLLM's own cache has lost the beginning of the prompts, so everything is loaded.
        assert sum(loaded(outputs, "memory")) > sum(case.whole) // 2
        if not together:
            assert held_and_loaded(outputs) == case.whole
    assert "Tierce is off" not in case.host.text(case.host.mark)


@every_case
@pytest.mark.parametrize("rank", [0, 1])
def test_one_rank_fails_to_load(case, rank):
    """The load counts in no rank, and the request is computed."""
    salt = f"rank {rank} fails"
    case.ask(salt, slice(1))
    assert case.host.forget()
    case.host.tell_workers(method="fail_loads", arguments=[rank])
    outputs = case.ask(salt, slice(1))
    assert sum(case.host.tell_workers(method="mend_loads", arguments=[rank])) == 1
    assert loaded(outputs, "memory") == [0] and loaded(outputs, "failed") == case.whole[:1]
    assert case.host.forget()
    outputs = case.ask(salt, slice(1))
    assert loaded(outputs, "failed") == [0] and loaded(outputs, "memory") == case.whole[:1]


@pytest.mark.long
@every_case
def test_damaged_chunks(case):
    """A damaged cell is found by the rank that loads it."""
    case.ask("damage")
    case.node.end()
    damage(case.folder / "disk", 32 << 10)
    case.node.start()
    assert case.host.forget()
    wait_until(lambda: sum(loaded(case.ask("damage"), "failed")) > 0)

    def mended():
        """The newly computed chunks have replaced the damaged ones. Until all ranks have connected to the node, loads
        may fail."""
        assert case.host.forget()
        outputs = case.ask("damage")
        return loaded(outputs, "failed") == [0] * 5 and held_and_loaded(outputs) == case.whole

    wait_until(mended)


@every_case
def test_a_node_that_is_killed_and_comes_back(case):
    case.ask("killed", slice(2))
    case.node.kill()
    assert case.host.forget()
    assert loaded(case.ask("killed", slice(2)), "memory") == [0] * 2
    case.node.start()

    def found():
        """First, the KV that vLLM computes is stored; the next request finds it."""
        assert case.host.forget()
        return held_and_loaded(case.ask("killed", slice(2))) == case.whole[:2]

    wait_until(found)
    assert "Tierce failed in" not in case.host.text(case.host.mark)
    wait_until(gave_back(case.node))


@pytest.mark.long
@every_case
@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_is_killed_while_it_stores(case, rank):
    """The store publishes nothing. An engine that starts later finds the chunks from before."""
    salt = f"rank {rank} dies"
    case.ask(salt, slice(1))
    case.host.kill_workers_at_once()
    case.host.tell_workers(method="die_in_store", arguments=[rank])
    with pytest.raises(HostError):
        case.host.generate(prompts=case.prompts[1:2], salts=[salt])
    case.host.kill()
    wait_until(lambda: case.node.metric("node_native_clients_now") == 0)
    assert gave_back(case.node)()
    case.start()
    assert loaded(case.ask(salt, slice(1)), "memory") == case.whole[:1]
    outputs = case.ask(salt, slice(1, 2))
    assert loaded(outputs, "memory")[0] <= 300 and loaded(outputs, "failed") == [0]

    def stored():
        """The parts of the other rank do not keep these chunks from being stored until timeout.pin."""
        assert case.host.forget()
        return loaded(case.ask(salt, slice(1, 2)), "memory") == case.whole[1:2]

    wait_until(stored)


@every_case
def test_a_reset_reaches_all_ranks(case):
    """The last test: an engine that starts after it does not find what this one stores."""
    case.ask("reset", slice(1))
    assert case.host.reset_connector()
    assert loaded(case.ask("reset", slice(1)), "memory") == [0]
    assert case.host.forget()
    assert loaded(case.ask("reset", slice(1)), "memory") == case.whole[:1]
