# SPDX-License-Identifier: Apache-2.0
"""Two tensor ranks on a GPU, which share a node's memory: each pins its own mapping. Run by test_vllm_cuda.py."""

import sys
import threading
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace as Thing

import pytest
import torch
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole
from vllm.v1 import kv_cache_interface as kv

from tierce.vllm import connector as ours
from tierce.vllm.ranks import Ranks

from cuda_engine import Allocated, base_config, gpu, quiet, request_of, settings, step_of, until  # noqa: F401
from cuda_groups import FULL, STATE, TABLES, TOKENS as GROUP_TOKENS, WANTED, WINDOW, cache_of as groups_of
from fake_cuda import Pool
from test_connector import changed, config  # noqa: F401

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "system"))
from node_process import Node  # noqa: E402

BLOCK, SECONDS = 32, 60
SPEC = kv.FullAttentionSpec(block_size=BLOCK, num_kv_heads=1, head_size=16, dtype=torch.float32)
TOKENS, FIRST = 8 * BLOCK + 3, list(range(1, 10))


@dataclass(frozen=True)
class Together(Ranks):
    """Ranks in the threads of one process."""

    barrier: threading.Barrier = None
    values: list = None

    def gather(self, value):
        self.values[self.index] = value
        self.barrier.wait(SECONDS)
        out = list(self.values)
        self.barrier.wait(SECONDS)
        return out


class TwoRanks:
    def __init__(self, gpu, config, cache):
        if gpu.stream is None:
            gpu.start()
        self.gpu, self.cache = gpu, cache
        self.names = [name for group in cache.kv_cache_groups for name in group.layer_names]
        self.pools = [Pool(gpu, cache) for _ in range(2)]
        self.workers = [ours.TierceConnector(config, KVConnectorRole.WORKER, cache) for _ in range(2)]
        barrier, values = threading.Barrier(2), [None, None]
        threads = []
        for rank, worker in enumerate(self.workers):
            worker.ranks = lambda rank=rank: Together(rank, 2, barrier=barrier, values=values)
            threads.append(threading.Thread(target=self.register, args=(rank,), daemon=True))
            threads[-1].start()
        for thread in threads:
            thread.join(SECONDS)
        for worker in self.workers:
            assert worker.off is None, worker.off
            until(worker.half.can_transfer)
        self.scheduler = ours.TierceConnector(config, KVConnectorRole.SCHEDULER, cache)
        self.scheduler.half.find_link = lambda: self.workers[0].half

    def register(self, rank):
        self.gpu.enter()
        self.workers[rank].register_kv_caches(self.pools[rank].tensors())

    def step(self, output, blocks=()):
        """Both ranks, one after the other; blocks: what the model writes, for all layers, or by the name of a layer.
        Returns the requests whose load has ended in each rank."""
        meta, received, told = self.scheduler.build_connector_meta(output), [], []
        self.failed = [set(), set()]
        for rank, worker in enumerate(self.workers):
            worker.handle_preemptions(meta)
            worker.bind_connector_metadata(meta)
            for name in self.names:
                for block in blocks.get(name, ()) if isinstance(blocks, dict) else blocks:
                    self.pools[rank].write(name, block, self.bytes_of(rank, name, block))
            for name in self.attention():
                worker.save_kv_layer(name, None, None)
            worker.start_load_kv(None)
            worker.wait_for_save()
            results = worker.get_transfer_results(set())
            received.append(results.finished_recving)
            self.failed[rank] |= results.failed_recving
            assert worker.get_block_ids_with_load_errors() == set()
            told.append(worker.build_connector_worker_meta())
            worker.clear_connector_metadata()
        metas = [meta for meta in told if meta is not None]
        if metas:
            self.scheduler.update_connector_output(Thing(kv_connector_worker_meta=(
                metas[0] if len(metas) == 1 else metas[0].aggregate(metas[1]))))
        return received

    def attention(self):
        """The layers that vLLM calls the connector for."""
        return [name for group in self.cache.kv_cache_groups for name in group.layer_names
                if not isinstance(group.kv_cache_spec, kv.MambaSpec)]

    def bytes_of(self, rank, name, block):
        """No two layers, blocks or ranks have equal bytes."""
        place = bytes([100 * rank + block, self.names.index(name)])
        return place * (self.pools[rank].bytes_of(name) // 2)

    def stored(self):
        for worker in self.workers:
            if worker.half.behind is not None:
                worker.half.behind.wait_for_all()

    def received(self, name):
        """Steps without work until the load has ended in both ranks. Returns the ranks in which it has failed."""
        ended, failed = [set(), set()], set()

        def both():
            for rank, received in enumerate(self.step(step_of())):
                ended[rank] |= received
                failed.update({rank} if self.failed[rank] else ())
            return ended == [{name}, {name}]

        until(both)
        return failed

    def close(self):
        for worker in self.workers:
            worker.shutdown()
            assert not worker.failed_methods
        for pool in self.pools:
            pool.free()
        assert not self.scheduler.failed_methods


def plain_cache():
    names = [f"model.layers.{i}.attn" for i in range(2)]
    return kv.KVCacheConfig(num_blocks=64, kv_cache_tensors=[], kv_cache_groups=[kv.KVCacheGroupSpec(names, SPEC)],
                            hash_block_size=BLOCK)


@contextmanager
def two_ranks(gpu, config, cache, tmp_path):  # noqa: F811
    node = Node(tmp_path, f"--listen.native={tmp_path / 'socket'}", "--memory.size=16MiB")
    several = changed(settings(config, **{"node.socket": str(tmp_path / "socket")}), "parallel_config",
                      world_size=2, tensor_parallel_size=2, distributed_executor_backend="mp")
    several.kv_transfer_config.kv_connector_extra_config.pop("memory.size")
    several.kv_transfer_config.kv_connector_extra_config.pop("disk.path")
    out = TwoRanks(gpu, several, cache)
    yield out
    gpu.release()
    out.close()
    node.process.terminate()
    node.process.wait(SECONDS)


@pytest.fixture
def ranks(gpu, config, tmp_path):  # noqa: F811
    with two_ranks(gpu, config, plain_cache(), tmp_path) as out:
        yield out


def test_each_rank_stores_and_loads_its_part(gpu, ranks):
    request = request_of(TOKENS, "a")
    assert ranks.scheduler.get_num_new_matched_tokens(request, 0) == (0, False)
    ranks.scheduler.update_state_after_alloc(request, Allocated((FIRST,)), 0)
    with gpu.held():
        ranks.step(step_of((request, (FIRST,), 0, TOKENS)), FIRST)
        assert all(worker.half.behind.readers for worker in ranks.workers)
    ranks.stored()
    again = request_of(TOKENS, "b")
    until(lambda: ranks.scheduler.get_num_new_matched_tokens(again, 0) == (8 * BLOCK, True))
    ranks.scheduler.update_state_after_alloc(again, Allocated(([*range(20, 29)],)), 8 * BLOCK)
    assert ranks.received("b") == set()
    for rank, pool in enumerate(ranks.pools):
        for name in ranks.names:
            for source, target in zip(FIRST[:8], range(20, 28)):
                assert pool.read(name, target) == ranks.bytes_of(rank, name, source)


# ---- several groups

SPECS = (FULL, WINDOW, STATE)


@pytest.fixture
def grouped(gpu, config, tmp_path):  # noqa: F811
    with two_ranks(gpu, config, groups_of(*SPECS), tmp_path) as out:
        yield out


def prefill(ranks, offers):
    """offers: (group, block, tokens) of the states that vLLM keeps"""
    request, tables = request_of(GROUP_TOKENS, "a"), tuple(TABLES[spec] for spec in SPECS)
    assert ranks.scheduler.get_num_new_matched_tokens(request, 0) == (0, False)
    ranks.scheduler.update_state_after_alloc(request, Allocated(tables), 0)
    written = {name: [block for block in TABLES[group.kv_cache_spec] if block]
               for group in ranks.cache.kv_cache_groups for name in group.layer_names}
    ranks.step(step_of((request, tables, 0, GROUP_TOKENS), offers=[(request, offers)]), written)
    ranks.stored()


def begin_load(ranks, name="b"):
    """Of 192 tokens."""
    request = request_of(GROUP_TOKENS, name)
    until(lambda: ranks.scheduler.get_num_new_matched_tokens(request, 0) == (192, True))
    ranks.scheduler.update_state_after_alloc(request, Allocated(tuple(WANTED[spec] for spec in SPECS)), 192)


def assert_groups_loaded(ranks):
    for rank, pool in enumerate(ranks.pools):
        for group in ranks.cache.kv_cache_groups:
            spec = group.kv_cache_spec
            for name in group.layer_names:
                for source, target in zip(TABLES[spec], WANTED[spec]):
                    if target:
                        assert pool.read(name, target) == ranks.bytes_of(rank, name, source), (rank, name, target)


def test_each_rank_stores_and_loads_its_part_of_each_group(gpu, grouped):
    prefill(grouped, [(2, 30, 192)])
    begin_load(grouped)
    assert grouped.received("b") == set()
    assert_groups_loaded(grouped)


def test_a_hit_ends_at_a_state_that_both_ranks_have_stored(gpu, grouped):
    """The state at the end of the prompt is not at the end of a block, and that after 192 tokens is not kept."""
    prefill(grouped, [(2, 31, 200), (2, 29, 128)])
    again = request_of(GROUP_TOKENS, "b")
    until(lambda: grouped.scheduler.get_num_new_matched_tokens(again, 0) == (128, True))


def test_a_load_that_fails_in_one_rank_fails_there_only(gpu, grouped):
    """vLLM computes the request if any rank reports a failure. Nothing is damaged: the next load succeeds."""
    prefill(grouped, [(2, 30, 192)])
    begin_load(grouped)
    half = grouped.workers[1].half
    original = half.load_handle

    def broken(*arguments):
        handle = original(*arguments)
        handle.layer(0)
        raise RuntimeError("broken")

    half.load_handle = broken
    assert grouped.received("b") == {1}
    half.load_handle = original
    begin_load(grouped, "c")
    assert grouped.received("c") == set()
    assert_groups_loaded(grouped)
