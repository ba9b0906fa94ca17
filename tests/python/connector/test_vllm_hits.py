# SPDX-License-Identifier: Apache-2.0
"""Where a hit may end: vLLM's real scheduler, and answers of a connector that end inside a block;
docs/inside/design/011-groups-and-devices.md depends on what is tested here."""

import pytest

pytest.importorskip("vllm")
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash  # noqa: E402
from vllm.v1.core.sched.scheduler import Scheduler  # noqa: E402
from vllm.v1.outputs import EMPTY_MODEL_RUNNER_OUTPUT, KVConnectorOutput  # noqa: E402
from vllm.v1.request import RequestStatus  # noqa: E402
from vllm.v1.structured_output import StructuredOutputManager  # noqa: E402
from vllm.utils.hashing import sha256  # noqa: E402

from test_connector import changed, config, request_of  # noqa: E402, F401
from test_groups import cache_of, specs  # noqa: E402

TOKENS = 300
# Groups of vLLM -> their common multiple, tokens of a hash
GROUPS = {"full": (32, 32), "window": (32, 16), "state": (64, 16)}


def groups_of(kind):
    full, window, state, _ = specs()
    return cache_of({"full": [full], "window": [full, window], "state": [full, window, state]}[kind])


class Case:
    """A scheduler whose connector promises `tokens` tokens to each request."""

    def __init__(self, config, kind, tokens, asynchronous):  # noqa: F811
        self.block, self.hashed = GROUPS[kind]
        self.cache = groups_of(kind)
        self.cache.hash_block_size = self.hashed
        config = changed(config, "cache_config", block_size=self.block, mamba_cache_mode="align",
                         num_gpu_blocks=self.cache.num_blocks)
        self.scheduler = Scheduler(config, self.cache, StructuredOutputManager(config), self.block, self.hashed)
        connector = self.scheduler.connector
        connector.get_num_new_matched_tokens = lambda *_: (tokens, asynchronous)
        connector.build_connector_meta = connector.update_connector_output = lambda _: None
        init_none_hash(sha256)
        self.request = request_of(TOKENS, block_hasher=get_request_block_hasher(self.hashed, sha256))
        self.scheduler.add_request(self.request)

    def tables(self):
        """The request's blocks of each group; 0 is vLLM's null block."""
        return self.scheduler.kv_cache_manager.get_block_ids(self.request.request_id)

    def received(self):
        """Ends the load. Returns the next step."""
        output = EMPTY_MODEL_RUNNER_OUTPUT.with_kv_conn_output_only(
            KVConnectorOutput(finished_recving={self.request.request_id}))
        self.scheduler.update_from_output(self.scheduler.schedule(), output)
        return self.scheduler.schedule()


def resident(ids):
    return [at for at, block in enumerate(ids) if block]


# 208: a multiple of every hash, in the middle of the last block. 205: of nothing.
@pytest.mark.parametrize("tokens", [208, 205])
@pytest.mark.parametrize("kind", GROUPS)
def test_a_load_may_end_inside_a_block(config, kind, tokens):  # noqa: F811
    """vLLM does not round the hit down: it allocates the block in which the hit ends, and computes from there on."""
    case = Case(config, kind, tokens, True)
    assert tokens % case.block
    step = case.scheduler.schedule()
    assert step.num_scheduled_tokens == {}
    assert case.request.status == RequestStatus.WAITING_FOR_REMOTE_KVS
    assert case.request.num_computed_tokens == tokens
    for group, ids in zip(case.cache.kv_cache_groups, case.tables()):
        assert len(ids) == -(-tokens // group.kv_cache_spec.block_size)
    assert resident(case.tables()[0]) == [*range(len(case.tables()[0]))]
    if kind == "state":  # the state after the hit belongs into the block in which the hit ends
        assert resident(case.tables()[2]) == [tokens // 64]
    step = case.received()
    assert case.request.num_computed_tokens >= tokens
    (new,) = step.scheduled_new_reqs
    assert new.num_computed_tokens == tokens
    assert 0 < step.num_scheduled_tokens[case.request.request_id] <= TOKENS - tokens


def test_a_synchronous_load_may_end_inside_a_block(config):  # noqa: F811
    case = Case(config, "full", 205, False)
    step = case.scheduler.schedule()
    assert step.has_sync_kv_loads
    assert step.num_scheduled_tokens == {case.request.request_id: TOKENS - 205}
    assert step.scheduled_new_reqs[0].num_computed_tokens == 205
