# SPDX-License-Identifier: Apache-2.0
"""vLLM's side of Tierce: KVConnectorBase_V1 over the two halves.

    KVTransferConfig(kv_connector="TierceConnector", kv_connector_module_path="tierce.vllm",
                     kv_role="kv_both", kv_load_failure_policy="recompute",
                     kv_connector_extra_config={"disk.path": "/var/lib/tierce"})

While vLLM starts, an invalid configuration raises ConfigError, so that the start fails. Later an
exception would kill the engine, so the connector raises none: it logs each kind of failure once, and
the failure is a miss. If the connector does not support the setup, it logs the reason once and stays
off; with `strict` the start fails instead.
"""

from __future__ import annotations

import functools
import logging
from array import array
from dataclasses import dataclass, field

import vllm
from vllm.distributed.kv_events import AllBlocksCleared
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorMetadata,
    KVConnectorRole,
    KVConnectorWorkerMetadata,
    SupportsHMA,
)
from vllm.v1.metrics.cache_hit_source import CacheHitSource

from .. import programs
from . import processors
from . import ranks as workers
from . import worker as worker_half
from .device import memory_of
from .groups.group_scheduler import GroupSchedulerHalf
from .groups.group_table import GroupTable, table_of
from .groups.group_worker import GroupWorkerHalf
from .heads import heads_or_why
from .identity import ConfigError, Unsupported, require_known
from .kv_events import TierceKVEvents, open_events
from .link import LinkError, LinkServer, RemoteWorker
from .reuse import blocks_to_write
from .scheduler import SchedulerHalf
from .settings import Settings
from .stats import TierceProm, TierceStats
from .tracker import LoadResult, LoadSpec, ReqMeta
from .worker import WorkerHalf

TESTED_VLLM = "0.32."

log = logging.getLogger("tierce")


def share_log() -> None:
    """Tierce logs through vLLM's handlers, unless the program has configured Tierce's logger."""
    engine_log = logging.getLogger("vllm")
    # The packages of some models add handlers to the root logger, which would hide lines below a warning.
    if not log.handlers and log.level == logging.NOTSET and engine_log.handlers:
        log.handlers = list(engine_log.handlers)
        log.setLevel(engine_log.level)
        log.propagate = False


def require_supported(vllm_config) -> None:
    """Raises Unsupported if the store does not support this engine."""
    workers.require_supported(vllm_config)
    require_known(vllm_config)


def guarded(default=None, fail_step=False):
    """A method that vLLM calls. It returns `default` if the connector is off or an unexpected
    exception occurs."""

    def wrap(method):
        @functools.wraps(method)
        def call(self, *args, **kwargs):
            if self.off:
                return default() if callable(default) else default
            try:
                return method(self, *args, **kwargs)
            except Exception:
                self.count_error(method.__name__)
                if fail_step:
                    self.fail_step()
                return default() if callable(default) else default

        return call

    return wrap


@dataclass
class TierceMetadata(KVConnectorMetadata):
    requests: list[ReqMeta] = field(default_factory=list)
    over: list[int] = field(default_factory=list)  # sessions that have ended
    era: bytes = b""  # of the last reset
    # Blocks that the step may write, if stores end after their steps. None: not known.
    written: bytes | None = b""
    announce: bool = False  # vLLM has told readers of its KV events to forget all blocks


@dataclass
class TierceWorkerMetadata(KVConnectorWorkerMetadata):
    results: dict[str, LoadResult] = field(default_factory=dict)
    tainted: bool = False

    def aggregate(self, other):
        results = dict(self.results)
        for req_id, result in other.results.items():
            results[req_id] = result.worse(results.get(req_id, result))
        return TierceWorkerMetadata(results, self.tainted or other.tainted)


class TierceConnector(KVConnectorBase_V1, SupportsHMA):
    # SupportsHMA: without it vLLM handles hybrid models worse or not at all, even if we are off.

    def __init__(self, vllm_config, role, kv_cache_config):
        super().__init__(vllm_config, role, kv_cache_config)
        share_log()
        self.off: str | None = None
        self.half: SchedulerHalf | WorkerHalf | None = None
        self.server: LinkServer | None = None
        self.programs: programs.Programs | None = None
        self.failed_methods: set[str] = set()
        self.was_tainted = False
        self.errors = 0
        self.kv_events: list = []  # that vLLM has not taken yet
        self.block_pool = self.cleared = None  # vLLM's; the last AllBlocksCleared that was seen in its queue
        self.promised: dict[str, list[int]] = {}  # request -> its blocks, until the step is built
        self.settings = Settings()
        self.strict = False
        self.fatal: str | None = None  # the reason why vLLM must not start
        self.table: GroupTable | None = None
        self.attempt(self.start, vllm_config, role, kv_cache_config)
        self.stop_if_fatal()

    def stop_if_fatal(self) -> None:
        if self.fatal is None:
            return
        if self._role == KVConnectorRole.WORKER:
            log.error("vLLM does not start, because of Tierce: %s", self.fatal)
        raise ConfigError(f"Tierce: {self.fatal}")

    def start(self, vllm_config, role, kv_cache_config) -> None:
        self.settings = Settings.from_extra_config(
            self._kv_transfer_config.kv_connector_extra_config)
        self.strict = self.settings.check()
        self.settings.programs()  # a wrong path is an error of the configuration in every process
        require_supported(vllm_config)
        self.table = table_of(vllm_config, kv_cache_config)
        self.in_process = vllm_config.parallel_config.distributed_executor_backend == "uni"
        if role == KVConnectorRole.WORKER:
            if not vllm.__version__.startswith(TESTED_VLLM):
                log.warning("Tierce is tested with vLLM %sx, this is %s", TESTED_VLLM,
                            vllm.__version__)
            self.half = WorkerHalf(vllm_config, self.settings, vllm.__version__) if (
                self.table is None) else GroupWorkerHalf(
                    vllm_config, self.settings, vllm.__version__, self.table)
        else:
            if self._kv_transfer_config.kv_load_failure_policy == "fail":
                log.warning("kv_load_failure_policy is 'fail': a request waits until its chunks are in memory and verified; "
                            "with 'recompute' Tierce loads them from disk layer by layer")
            self.half = SchedulerHalf(vllm_config, self.find_link) if (
                self.table is None) else GroupSchedulerHalf(
                    vllm_config, self.find_link, self.table)

    def find_link(self):
        engine_id = self._kv_transfer_config.engine_id
        return worker_half.find(engine_id) if self.in_process else RemoteWorker(engine_id)

    def switch_off(self, reason: str) -> None:
        self.off = reason
        if self.half is not None:
            self.half.off = reason
        if self.strict and self.fatal is None:
            self.fatal = f"strict: {reason}"
        if self._role == KVConnectorRole.WORKER and self.fatal is None:
            log.warning("Tierce is off: %s", reason)

    def count_error(self, where: str) -> None:
        self.errors += 1
        if where not in self.failed_methods:
            self.failed_methods.add(where)
            log.exception("Tierce failed in %s; this is a miss, and is logged once", where)

    def fail_step(self) -> None:
        try:
            if self._role == KVConnectorRole.WORKER:
                metadata = self._connector_metadata
                self.half.fail_step(metadata.requests if metadata is not None else [])
            else:
                self.half.fail_step()
        except Exception:
            self.count_error("fail_step")

    @property
    def requires_kv_delivery(self) -> bool:
        return False

    @classmethod
    def requires_piecewise_for_cudagraph(cls, extra_config) -> bool:
        """No: with a full graph, vLLM does not call the connector for single layers. Loads on GPUs do not need these
        calls (see CudaMemory), and the end of the step stores the layers without a call."""
        return False

    # ---- worker

    def register_kv_caches(self, kv_caches):
        """If one worker's store were off while others load, that worker's load would never be
        done: either all workers start or none."""
        ranks = self.ranks()
        measures = self.attempt(self.measure, kv_caches)
        if self.agree(ranks):
            told = ranks.gather(measures)
            with processors.away_from_one():
                self.attempt(self.open_store, ranks, told)
            if self.agree(ranks) and ranks.first:
                log.info("Tierce %s", self.half.describe())
                commands, settings = self.settings.programs()
                self.programs = programs.start(commands, "worker", ranks.index, ranks.count, settings)
        if self.off and ranks.first:
            self.serve_off()

    def serve_off(self) -> None:
        """Lets a scheduler half in another process, which checks less, query whether this half is off."""
        try:
            if self.half is not None and self.server is None and not self.in_process:
                self.server = LinkServer(self.half, self._kv_transfer_config.engine_id)
        except (OSError, LinkError) as error:
            log.debug("the scheduler half cannot query whether this half is off: %s", error)

    def ranks(self) -> workers.Ranks:
        try:
            return workers.Ranks.here(self._vllm_config)
        except Exception as error:  # vLLM has created no process groups, so no other worker waits for this one
            if not self.off:
                self.switch_off(repr(error))
            return workers.Ranks()

    def attempt(self, method, *args):
        """Runs a step of the start. An exception switches the connector off or is fatal."""
        if self.off:
            return None
        try:
            return method(*args)
        except Unsupported as reason:
            self.switch_off(str(reason))
        except ConfigError as error:
            self.fatal = str(error)
            self.switch_off(self.fatal)
        except Exception as error:
            log.exception("Tierce failed to start; vLLM runs without it")
            self.switch_off(repr(error))
        return None

    def agree(self, ranks) -> bool:
        """Whether all workers are ready. If one worker must not start, none starts."""
        states = ranks.gather((self.off, self.fatal))
        reasons = [off for off, _ in states if off]
        self.fatal = next((fatal for _, fatal in states if fatal), None)
        if reasons and not self.off:
            self.switch_off(reasons[0])
        self.stop_if_fatal()
        return not self.off

    def measure(self, kv_caches):
        config = self._kv_cache_config
        self.half.memory = memory_of(kv_caches, self._vllm_config, config)
        if self.table is not None:
            return self.half.measure_groups(kv_caches, config.num_blocks, self.backend_name)
        self.half.kv_heads = heads_or_why(self._vllm_config, config.kv_cache_groups[0].kv_cache_spec)
        names = set(config.kv_cache_groups[0].layer_names)
        layers = {n: t for n, t in kv_caches.items() if n in names}
        return self.half.measure(layers, config.num_blocks, self.backend_name(layers),
                                 config.kv_tp_replicas)

    def open_store(self, ranks, measures) -> None:
        try:
            self.half.register(ranks, measures)
        except Exception:
            self.half.close_engine()
            raise
        self.half.tier_events = open_events(self.half, self._kv_cache_config)
        if ranks.first and not self.in_process:
            self.server = LinkServer(self.half, self._kv_transfer_config.engine_id)

    # vLLM 0.33 calls these three in sleep mode.

    @classmethod
    def supports_sleep_mode(cls, kv_transfer_config) -> bool:
        return True

    @guarded()
    def unregister_kv_caches(self):
        self.half.suspend()

    @guarded()
    def restore_kv_caches(self):
        self.half.resume()

    def backend_name(self, layers) -> str:
        context = self._vllm_config.compilation_config.static_forward_context
        backends = {context[n].attn_backend.get_name() for n in layers if n in context}
        return "+".join(sorted(backends))

    @guarded(fail_step=True)
    def start_load_kv(self, forward_context, **kwargs):
        self.half.start_loads()

    @guarded(fail_step=True)
    def wait_for_layer_load(self, layer_name):
        self.half.wait_layer(layer_name)

    @guarded(fail_step=True)
    def save_kv_layer(self, layer_name, kv_layer, attn_metadata, **kwargs):
        self.half.save_layer(layer_name)

    @guarded(fail_step=True)
    def wait_for_save(self):
        self.half.end_step()

    @guarded()
    def handle_preemptions(self, kv_connector_metadata):
        """Before vLLM writes to blocks that it has allocated again, after a preemption or otherwise."""
        self.half.wait_for_stores(kv_connector_metadata.requests, kv_connector_metadata.written)

    def bind_connector_metadata(self, connector_metadata):
        super().bind_connector_metadata(connector_metadata)
        self.begin_step(connector_metadata)

    @guarded(fail_step=True)
    def begin_step(self, metadata):
        self.half.begin_step(metadata.requests, metadata.over, metadata.era, metadata.written)
        if metadata.announce:
            self.half.announce_again()

    @guarded(default=lambda: (None, None))
    def get_finished(self, finished_req_ids):
        return None, self.half.take_received() or None

    def get_transfer_results(self, finished_req_ids):
        self.end_loads()
        results = super().get_transfer_results(finished_req_ids)
        results.failed_recving |= self.take_failed()
        return results

    @guarded(fail_step=True)
    def end_loads(self):
        self.half.end_loads()

    @guarded(default=set)
    def take_failed(self):
        return self.half.take_failed()

    @guarded(default=set)
    def get_block_ids_with_load_errors(self):
        return self.half.take_errors()

    @guarded()
    def get_kv_connector_kv_cache_events(self):
        events = self.half.take_kv_events()
        return TierceKVEvents(events) if events else None

    @guarded()
    def build_connector_worker_meta(self):
        results, tainted = self.half.take_results(), bool(self.half.taint)
        # Taint is reported in each step until it ends, because the end of another worker's taint must not hide it.
        if not results and not tainted and not self.was_tainted:
            return None
        self.was_tainted = tainted
        return TierceWorkerMetadata(results, tainted)

    # ---- scheduler

    @guarded(default=(0, False))
    def get_num_new_matched_tokens(self, request, num_computed_tokens):
        return self.half.matched_tokens(request, num_computed_tokens)

    @guarded()
    def update_state_after_alloc(self, request, blocks, num_external_tokens):
        if num_external_tokens > 0:
            self.promised[request.request_id] = blocks.get_block_ids()[0]
        self.half.allocated(request, blocks, num_external_tokens)

    def get_external_cache_hit_sources(self, request, num_external_tokens):
        return self.hit_sources(request, num_external_tokens) or (
            super().get_external_cache_hit_sources(request, num_external_tokens))

    @guarded()
    def hit_sources(self, request, external_tokens):
        memory, rest = self.half.load_sources(request)
        if memory + rest != external_tokens:
            return None
        sources = {CacheHitSource.HOST: memory, CacheHitSource.DISK: rest}
        return {source: tokens for source, tokens in sources.items() if tokens}

    def build_connector_meta(self, scheduler_output):
        requests = self.plan_step(scheduler_output)
        requests += self.unkept_promises(requests)
        if self.off:
            return TierceMetadata(requests)
        return TierceMetadata(requests, self.half.take_over(), self.half.era,
                              self.blocks_to_write(scheduler_output), self.cache_was_cleared())

    def bind_gpu_block_pool(self, gpu_block_pool):
        super().bind_gpu_block_pool(gpu_block_pool)
        self.block_pool = gpu_block_pool

    @guarded(default=False)
    def cache_was_cleared(self) -> bool:
        """Whether vLLM's cache was cleared since the last call. Its event is still in the queue, because vLLM takes it
        after the step that is planned now."""
        queue = self.block_pool.kv_event_queue if self.block_pool is not None else []
        cleared = next((e for e in reversed(queue) if isinstance(e, AllBlocksCleared)), None)
        is_new = cleared is not None and cleared is not self.cleared
        self.cleared = cleared or self.cleared
        return is_new

    @guarded()
    def blocks_to_write(self, scheduler_output) -> bytes | None:
        facts, config = self.half.facts, self._kv_cache_config
        if facts is None or not facts.blocks_to_write:
            return b""
        sizes = [group.kv_cache_spec.block_size if index in config.prefix_cacheable_group_ids else 0
                 for index, group in enumerate(config.kv_cache_groups)]
        return blocks_to_write(scheduler_output, sizes)

    @guarded(default=list, fail_step=True)
    def plan_step(self, scheduler_output):
        return self.half.step(scheduler_output)

    def unkept_promises(self, requests) -> list[ReqMeta]:
        """vLLM treats all promised blocks as loaded. If an unexpected exception prevented the
        planning of a load, the worker half must report to vLLM that all blocks of the request
        failed."""
        promised, self.promised = self.promised, {}
        for request in requests:
            if request.load is not None:
                promised.pop(request.req_id, None)
        return [ReqMeta(req_id, 0, None, array("i", ids).tobytes(), len(ids), len(ids),
                        LoadSpec(0, len(ids), 0, self.half.rules.load_async))
                for req_id, ids in promised.items()]

    @guarded()
    def update_connector_output(self, connector_output):
        meta = connector_output.kv_connector_worker_meta
        if isinstance(meta, TierceWorkerMetadata):
            self.half.stepped(meta.results, meta.tainted)
        events = getattr(connector_output, "kv_cache_events", None)
        if isinstance(events, TierceKVEvents):
            self.kv_events += events.get_all_events()

    @guarded(default=list)
    def take_events(self):
        events, self.kv_events = self.kv_events, []
        return events

    @guarded(default=(False, None))
    def request_finished(self, request, block_ids):
        return False, self.half.finished(request)

    def request_finished_all_groups(self, request, block_ids):
        return self.request_finished(request, block_ids[0] if block_ids else [])

    @guarded(default=False)
    def reset_cache(self):
        return self.half.reset()

    # ---- both

    @guarded()
    def get_kv_connector_stats(self):
        counters = self.half.take_counters()
        if self.errors:
            counters["errors"], self.errors = self.errors, 0
        return TierceStats(counters) if counters else None

    @classmethod
    def build_kv_connector_stats(cls, data=None):
        return TierceStats(data or {})

    @classmethod
    def build_prom_metrics(cls, vllm_config, metric_types, labelnames, per_engine_labelvalues):
        return TierceProm(vllm_config, metric_types, labelnames, per_engine_labelvalues)

    def shutdown(self):
        try:
            if self.server is not None:
                self.server.close()
            if self.programs is not None:
                self.programs.stop()
            if isinstance(self.half, WorkerHalf):
                self.off = self.off or "shut down"
                self.half.close()
        except Exception:
            log.exception("Tierce could not shut down cleanly")
