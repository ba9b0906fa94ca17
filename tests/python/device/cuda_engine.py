# SPDX-License-Identifier: Apache-2.0
"""Both halves of a connector, and vLLM's steps with them on a GPU, for cuda_*.py."""

import functools
import itertools
import os
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace as Thing

import pytest
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole
from vllm.v1 import kv_cache_interface as kv

from tierce.vllm import connector as ours

from fake_cuda import Gpu, Pool

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "connector"))
from test_connector import changed, config as base_config, request_of  # noqa: E402, F401

SECONDS = 60


@functools.cache
def the_gpu():
    return Gpu()


@pytest.fixture
def gpu():
    return the_gpu()


@pytest.fixture(autouse=True)
def quiet(gpu):
    """Every test ends without a report of the driver."""
    yield
    gpu.release()
    report = gpu.report()
    gpu.driver.cuda_fake_forgive()
    assert report == ""


NUMBERS = itertools.count(1)


def settings(config, **values):
    """All configurations differ, because engines with equal configurations in a process are one engine."""
    extra = {"memory.size": "8MiB", "disk.path": "", "timeout.load": "60s", "timeout.pin": f"{60 + next(NUMBERS)}s",
             **values}
    return changed(config, "kv_transfer_config", kv_connector_extra_config=extra)


def until(condition, *arguments):
    give_up = time.monotonic() + SECONDS
    while not (answer := condition(*arguments)):
        assert time.monotonic() < give_up, condition
        time.sleep(0.001)
    return answer


class Allocated:
    """vLLM's KVCacheBlocks. tables: lists of ids, of which 0 is null."""

    def __init__(self, tables):
        self.blocks = [[Thing(is_null=i == 0, block_hash=None, block_id=i) for i in ids] for ids in tables]
        self.tables = tables

    def get_block_ids(self):
        return self.tables


def step_of(*new, cached=(), offers=()):
    """vLLM's SchedulerOutput. new: (request, tables, computed, count); cached: the same, with the new blocks or None,
    and whether the request resumes; offers: (request, [(group, block, tokens)])."""
    tables = {request.request_id: tables for request, tables, *_ in new}
    cached_requests = Thing(req_ids=[c[0].request_id for c in cached], new_block_ids=[c[1] for c in cached],
                            num_computed_tokens=[c[2] for c in cached],
                            resumed_req_ids={c[0].request_id for c in cached if c[4:] and c[4]})
    state = Thing(get_block_ids=tables.get, boundary_state_offloads={r.request_id: o for r, o in offers})
    return Thing(scheduled_new_reqs=[Thing(req_id=request.request_id, block_ids=tables, num_computed_tokens=computed)
                                     for request, tables, computed, _ in new],
                 scheduled_cached_reqs=cached_requests, kv_connector_block_state=state,
                 num_scheduled_tokens={request.request_id: count
                                       for request, _, _, count, *_ in [*new, *cached]},
                 finished_req_ids=set())


class Engine:
    def __init__(self, gpu, config, cache, pool=None, **layout):
        if gpu.stream is None:
            before = gpu.calls()
            gpu.start()
            assert before == 0
        self.gpu, self.cache = gpu, cache
        self.pool = pool or Pool(gpu, cache, **layout)
        calls = gpu.calls_here()
        self.worker = ours.TierceConnector(config, KVConnectorRole.WORKER, cache)
        assert gpu.calls_here() == calls  # CUDA is not used before the KV is registered
        self.worker.register_kv_caches(self.pool.tensors())
        assert self.worker.off is None, self.worker.off
        until(self.half.can_transfer)
        calls = gpu.calls_here()
        self.scheduler = ours.TierceConnector(config, KVConnectorRole.SCHEDULER, cache)
        self.scheduler.half.find_link = lambda: self.half
        assert gpu.calls_here() == calls  # nor by the scheduler's half
        self.data = {}  # (layer, block) -> what the model computed last

    @property
    def half(self):
        return self.worker.half

    def names(self):
        """The layers that vLLM calls the connector for, in the order of the model."""
        return sorted(name for group in self.cache.kv_cache_groups for name in group.layer_names
                      if not isinstance(group.kv_cache_spec, kv.MambaSpec))

    def compute(self, name, blocks):
        for block in blocks:
            self.data[name, block] = os.urandom(self.pool.bytes_of(name))
            self.pool.write(name, block, self.data[name, block])

    def step(self, output, blocks=(), layerwise=True):
        """blocks: the blocks that the model writes, for all layers, or by the name of a layer."""
        self.begin(self.scheduler.build_connector_meta(output))
        for name in self.names():
            if layerwise:
                self.worker.wait_for_layer_load(name)
            self.compute(name, blocks.get(name, ()) if isinstance(blocks, dict) else blocks)
            if layerwise:
                self.worker.save_kv_layer(name, None, None)
        return self.finish()

    def begin(self, meta):
        self.worker.handle_preemptions(meta)
        self.worker.bind_connector_metadata(meta)

    def finish(self):
        self.worker.start_load_kv(None)  # after the forward pass if no load is synchronous
        return self.end()

    def end(self):
        self.worker.wait_for_save()
        results = self.worker.get_transfer_results(set())
        results.errors = self.worker.get_block_ids_with_load_errors()
        self.scheduler.update_connector_output(Thing(
            kv_connector_worker_meta=self.worker.build_connector_worker_meta()))
        self.worker.clear_connector_metadata()
        return results

    def stored(self):
        """All stores have ended."""
        if self.half.behind is not None:
            self.half.behind.wait_for_all()

    def ask(self, request, local=0):
        return self.scheduler.get_num_new_matched_tokens(request, local)

    def limit(self, request):
        """Why the last lookup of a request found no more, for `tierce why --request`."""
        return self.scheduler.half.live[request.request_id][1].served.limit

    def admit(self, request, tables):
        """A request that finds nothing."""
        assert self.ask(request) == (0, False)
        self.scheduler.update_state_after_alloc(request, Allocated(tables), 0)

    def begin_load(self, request, tables, tokens):
        assert self.ask(request) == (tokens, True)
        self.scheduler.update_state_after_alloc(request, Allocated(tables), tokens)

    def received(self, request):
        """Steps without work until the load has ended."""
        return until(lambda: self.take(request.request_id))

    def take(self, name):
        results = self.step(step_of())
        return results if name in results.finished_recving else None

    def close(self):
        self.worker.shutdown()
        self.pool.free()
        assert not self.worker.failed_methods and not self.scheduler.failed_methods


class Background(threading.Thread):
    """Runs a step on a thread of its own, because it may block. Returns when the step blocks or has ended."""

    def __init__(self, engine, work):
        super().__init__(daemon=True)
        self.engine, self.work, self.error = engine, work, None
        self.waits = threading.Event()
        behind = engine.half.behind
        original = behind.changed.wait_for

        def wait_for(condition, *arguments):
            if not condition():
                self.waits.set()
            return original(condition, *arguments)

        behind.changed.wait_for = wait_for
        self.start()
        assert self.waits.wait(SECONDS)

    def run(self):
        try:
            self.engine.gpu.enter()
            self.work()
        except BaseException as error:
            self.error = error
        finally:
            self.waits.set()

    def ended(self):
        self.join(SECONDS)
        assert not self.is_alive()
        if self.error is not None:
            raise self.error

