# SPDX-License-Identifier: Apache-2.0
"""Two tensor ranks on a GPU, which share a node's memory: each pins its own mapping. Run by test_vllm_cuda.py."""

import sys
import threading
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
from fake_cuda import Pool
from test_connector import changed, config  # noqa: F401

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "system"))
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
    def __init__(self, gpu, config):
        if gpu.stream is None:
            gpu.start()
        names = [f"model.layers.{i}.attn" for i in range(2)]
        cache = kv.KVCacheConfig(num_blocks=64, kv_cache_tensors=[],
                                 kv_cache_groups=[kv.KVCacheGroupSpec(names, SPEC)], hash_block_size=BLOCK)
        self.gpu, self.names = gpu, names
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
        """Both ranks, one after the other. Returns the requests whose load has ended in each rank."""
        meta, received, told = self.scheduler.build_connector_meta(output), [], []
        for rank, worker in enumerate(self.workers):
            worker.handle_preemptions(meta)
            worker.bind_connector_metadata(meta)
            for name in self.names:
                for block in blocks:
                    self.pools[rank].write(name, block, bytes([100 * rank + block]) * self.pools[rank].bytes_of(name))
                worker.save_kv_layer(name, None, None)
            worker.start_load_kv(None)
            worker.wait_for_save()
            received.append(worker.get_transfer_results(set()).finished_recving)
            assert worker.get_block_ids_with_load_errors() == set()
            told.append(worker.build_connector_worker_meta())
            worker.clear_connector_metadata()
        metas = [meta for meta in told if meta is not None]
        if metas:
            self.scheduler.update_connector_output(Thing(kv_connector_worker_meta=(
                metas[0] if len(metas) == 1 else metas[0].aggregate(metas[1]))))
        return received

    def close(self):
        for worker in self.workers:
            worker.shutdown()
            assert not worker.failed_methods
        for pool in self.pools:
            pool.free()
        assert not self.scheduler.failed_methods


@pytest.fixture
def ranks(gpu, config, tmp_path):  # noqa: F811
    node = Node(tmp_path, f"--listen.native={tmp_path / 'socket'}", "--memory.size=16MiB")
    several = changed(settings(config, **{"node.socket": str(tmp_path / "socket")}), "parallel_config",
                      world_size=2, tensor_parallel_size=2, distributed_executor_backend="mp")
    several.kv_transfer_config.kv_connector_extra_config.pop("memory.size")
    several.kv_transfer_config.kv_connector_extra_config.pop("disk.path")
    out = TwoRanks(gpu, several)
    yield out
    gpu.release()
    out.close()
    node.process.terminate()
    node.process.wait(SECONDS)


def test_each_rank_stores_and_loads_its_part(gpu, ranks):
    request = request_of(TOKENS, "a")
    assert ranks.scheduler.get_num_new_matched_tokens(request, 0) == (0, False)
    ranks.scheduler.update_state_after_alloc(request, Allocated((FIRST,)), 0)
    with gpu.held():
        ranks.step(step_of((request, (FIRST,), 0, TOKENS)), FIRST)
        assert all(worker.half.behind.readers for worker in ranks.workers)
    for worker in ranks.workers:
        worker.half.behind.wait_for_all()
    again = request_of(TOKENS, "b")
    until(lambda: ranks.scheduler.get_num_new_matched_tokens(again, 0) == (8 * BLOCK, True))
    ranks.scheduler.update_state_after_alloc(again, Allocated(([*range(20, 29)],)), 8 * BLOCK)
    ended = [set(), set()]

    def both():
        for rank, received in enumerate(ranks.step(step_of())):
            ended[rank] |= received
        return ended == [{"b"}, {"b"}]

    until(both)
    for rank, pool in enumerate(ranks.pools):
        for name in ranks.names:
            for source, target in zip(FIRST[:8], range(20, 28)):
                assert pool.read(name, target) == bytes([100 * rank + source]) * pool.bytes_of(name)
