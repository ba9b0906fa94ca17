# SPDX-License-Identifier: Apache-2.0
"""vLLM's TieringOffloadingSpec on a CPU, for test_tiering.py: supplies the copy between the paged KV and the host
region, which vLLM implements only for GPUs. Also Tierce's tier, with a timer for each call."""

import statistics
import time
from collections import defaultdict

from vllm.v1.kv_offload.base import OffloadingWorker, TransferResult
from vllm.v1.kv_offload.cpu.shared_offload_region import SharedOffloadRegion
from vllm.v1.kv_offload.tiering.spec import TieringOffloadingSpec

from tierce.vllm import TierceTier

TIMED = ("lookup", "submit_store", "submit_load", "get_finished_jobs", "on_new_request", "on_request_finished",
         "on_schedule_end", "touch")
calls = defaultdict(list)  # name -> seconds of each call


class Copier(OffloadingWorker):
    """Copies at once. A row of the region has the blocks of a chunk side by side, tensor after tensor."""

    def __init__(self, spec, kv_caches):
        self.kv_caches, self.blocks_per_chunk = kv_caches, spec.blocks_per_chunk
        self.region = SharedOffloadRegion(
            engine_id=spec.config.engine_id, num_chunks=spec.num_chunks, rank=spec.config.parallel.rank,
            kv_bytes_per_chunk=spec.kv_bytes_per_chunk, cpu_page_size=spec.cpu_page_size_per_worker)
        self.rows = [self.region.create_next_worker_view(t.page_size_bytes * self.blocks_per_chunk)
                     for t in kv_caches.tensors]
        self.finished = []

    def cells(self, paged, host):
        """The (block, place in the region) of everything that is to be copied."""
        blocks, chunks = iter(paged.block_ids.tolist()), host.chunk_ids.tolist()
        for refs, size, first in zip(self.kv_caches.group_data_refs, paged.group_sizes, paged.block_indices):
            skipped = first % self.blocks_per_chunk
            for at in range(skipped, skipped + size):
                block, chunk = next(blocks), chunks[at // self.blocks_per_chunk]
                for ref in refs:
                    tensor = self.kv_caches.tensors[ref.tensor_idx]
                    begin = at % self.blocks_per_chunk * tensor.page_size_bytes
                    yield (tensor.tensor[block][:ref.page_size_bytes],
                           self.rows[ref.tensor_idx][chunk][begin:begin + ref.page_size_bytes])
            del chunks[:-(-(skipped + size) // self.blocks_per_chunk) if size else 0]

    def submit_store(self, job_id, src_spec, dst_spec):
        for block, place in self.cells(src_spec, dst_spec):
            place.copy_(block)
        self.finished.append(TransferResult(job_id, True))
        return True

    def submit_load(self, job_id, src_spec, dst_spec, expedited=False):
        for block, place in self.cells(dst_spec, src_spec):
            block.copy_(place)
        self.finished.append(TransferResult(job_id, True))
        return True

    def get_finished(self):
        out, self.finished = self.finished, []
        return out

    def wait(self, job_ids):
        pass

    def shutdown(self):
        self.rows.clear()
        self.region.cleanup()


class CpuTiering(TieringOffloadingSpec):
    def get_worker(self, kv_caches):
        if self._worker is None:
            self._worker = Copier(self, kv_caches)
        return self._worker


def timed(name):
    def call(self, *args, **kwargs):
        began = time.perf_counter()
        try:
            return getattr(TierceTier, name)(self, *args, **kwargs)
        finally:
            calls[name].append(time.perf_counter() - began)

    return call


class TimedTier(TierceTier):
    pass


for _name in TIMED:
    setattr(TimedTier, _name, timed(_name))


def connector(tier: dict, region_bytes: int) -> dict:
    return {"kv_connector": "OffloadingConnector", "kv_connector_extra_config": {
        "spec_name": "CpuTiering", "spec_module_path": "tiering_on_cpu", "cpu_bytes_to_use": region_bytes,
        "secondary_tiers": [{"type": "TimedTier", "module_path": "tiering_on_cpu", **tier}]}}


def take_calls() -> dict:
    """The median of all calls, and the shortest of each, in seconds."""
    out = {name: min(took) for name, took in calls.items()}
    out["all"] = statistics.median(second for took in calls.values() for second in took)
    calls.clear()
    return out
