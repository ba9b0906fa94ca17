# SPDX-License-Identifier: Apache-2.0
"""Tierce as vLLM's encoder cache: outputs of a multimodal encoder that are stored and loaded instead of computed again.

    ECTransferConfig(ec_connector="TierceECConnector", ec_connector_module_path="tierce.vllm", ec_role="ec_both",
                     ec_connector_extra_config={"memory.size": "4GiB", "disk.path": "/var/lib/tierce/encoder"})

The scheduler half owns the store. It loads and verifies an output before it promises the output to vLLM, because vLLM fails
if a promised output does not arrive. The worker halves get the outputs with the step, and return new ones with its result.

While vLLM starts, an invalid configuration raises ConfigError. Later the connector raises nothing: a failure is a miss."""

from __future__ import annotations

import functools
import logging
import time
from concurrent.futures import Future
from dataclasses import dataclass, field

import torch
from vllm.distributed.ec_transfer.ec_connector.base import (
    ECConnectorBase,
    ECConnectorMetadata,
    ECConnectorRole,
    ECConnectorWorkerMetadata,
)
from vllm.distributed.parallel_state import get_pp_group, get_tp_group
from vllm.platforms import current_platform

from . import identity, own_node, processors
from .connector import share_log
from .encoder_stats import EncoderProm, EncoderStats
from .encoder_store import EncoderStore, Shape, namespace
from .identity import ConfigError, Unsupported
from .media import Media, adapter_of
from .settings import Settings, open_view
from .texts import describe_store, milliseconds

log = logging.getLogger("tierce")

WHERE = "ec_connector_extra_config"
HELD_BYTES = 512 << 20  # of outputs that are being loaded or wait for their step


def require_supported(vllm_config) -> None:
    """Raises Unsupported."""
    identity.require_known(vllm_config)
    if vllm_config.model_config.multimodal_config is None:
        raise Unsupported("a model without multimodal inputs")
    if vllm_config.model_config.is_encoder_decoder:
        raise Unsupported("an encoder-decoder model; vLLM does not cache the outputs of its encoder")
    if vllm_config.ec_transfer_config.is_encode_only and not vllm_config.use_v2_model_runner:
        raise Unsupported("an engine that only encodes, with vLLM's V1 model runner, which drops the results of its workers; use "
                          "ec_role ec_both, or the V2 model runner")
    if vllm_config.weight_transfer_config is not None:
        raise Unsupported("weights that change while vLLM runs")


@dataclass
class TierceECMetadata(ECConnectorMetadata):
    outputs: dict[str, torch.Tensor] = field(default_factory=dict)  # to be used in the step


@dataclass
class TierceECWorkerMetadata(ECConnectorWorkerMetadata):
    outputs: dict[str, torch.Tensor] = field(default_factory=dict)  # computed in the step

    def aggregate(self, other):
        return TierceECWorkerMetadata({**other.outputs, **self.outputs})


@dataclass
class Item:
    """An input of requests that have not ended: its output is being loaded, loaded, or must be computed."""

    modality: str
    shape: Shape
    deadline: float
    users: dict[str, object]  # request id -> request
    future: Future | None = None
    output: torch.Tensor | None = None
    is_over: bool = False  # the output, or its absence, is final

    @property
    def held_bytes(self) -> int:
        return self.shape.bytes if self.output is not None or (self.future is not None and not self.is_over) else 0

    def cancel(self) -> None:
        """A load that has not begun does not begin, and the result of one that has is not used."""
        if self.future is not None:
            self.future.cancel()


class Widths:
    """The width and the type of a modality's outputs: the usual ones, until others were measured or seen."""

    def __init__(self, vllm_config):
        model_config = vllm_config.model_config
        measured = vllm_config.ec_transfer_config.mm_encoder_output_widths
        self.usual = model_config.get_inputs_embeds_size(), model_config.dtype
        self.known = {modality: (width, model_config.dtype) for modality, width in measured.items()}

    def shape(self, modality: str, rows: int) -> Shape:
        return Shape(rows, *self.known.get(modality, self.usual))

    def see(self, modality: str, output: torch.Tensor) -> None:
        self.known[modality] = output.shape[1], output.dtype


def open_store(vllm_config, settings: Settings, widths: Widths) -> EncoderStore:
    """Raises ConfigError or Unsupported."""
    from tierce import _core

    model = {"weights": identity.weights_of(_core, vllm_config.model_config),
             "model": identity.effective_model(vllm_config)}
    values = dict(settings.values)
    if _core.Engine.setting(settings.config_path, values, "node.socket"):
        values.setdefault("node.engine", str(vllm_config.ec_transfer_config.engine_id))
    try:
        with processors.away_from_one():
            engine = _core.Engine.open(settings.config_path, values)
    except _core.Error as error:
        raise ConfigError(f"{WHERE}: {error}") from None
    try:
        for width, dtype in {widths.usual, *widths.known.values()}:
            open_view(engine, namespace(model, Shape(1, width, dtype)))
    except Exception:
        engine.close()
        raise
    engine.set_role("vllm encoder cache")
    log.info("Tierce as encoder cache: %s", ", ".join(describe_store(engine)))
    return EncoderStore(engine, model)


def name_of(content: bytes) -> str:
    return f"data {content.hex()}"


class EncoderScheduler:
    """The scheduler half. vLLM's scheduler thread."""

    def __init__(self, store: EncoderStore, widths: Widths, is_consumer: bool):
        self.store = store
        self.widths = widths
        self.is_consumer = is_consumer
        self.media = Media()
        self.wait_s = sum(milliseconds(store.engine.param(name)) for name in ("timeout.lookup", "timeout.load")) / 1000
        self.items: dict[str, Item] = {}
        self.promised: dict[str, torch.Tensor] = {}  # for the next step

    # ---- items of requests

    def are_ready(self, request, computed_tokens: int) -> bool:
        """Whether nothing is in transit that the rest of the prompt requires."""
        ready = True
        for feature in request.mm_features:
            content = self.content(request, feature)
            position = feature.mm_position
            if position.offset + position.length > computed_tokens:
                ready = self.is_over(self.item(request, feature, content)) and ready
        return ready

    def content(self, request, feature) -> str | None:
        """The name of an item's output in the store; None: its content is not certain, or not all that counts."""
        try:
            content = self.media.content(request, feature)
            if adapter_of(request, feature):
                raise Unsupported("the encoder has an adapter")
            return name_of(content)
        except Unsupported as reason:
            self.store.tell_once(f"an encoder's output is neither stored nor loaded: {reason}")
            return None

    def item(self, request, feature, content: str | None) -> Item:
        item = self.items.get(feature.identifier)
        if item is None:
            item = self.items[feature.identifier] = Item(
                feature.modality, self.widths.shape(feature.modality, feature.mm_position.get_num_embeds()),
                time.monotonic() + self.wait_s, {})
            self.store.count("lookups")
        if content is None and not (item.is_over and item.output is None):
            self.miss(item, "identity unknown")
            item.output = None
        item.users[request.request_id] = request
        if item.future is None and not item.is_over and self.has_room(item):
            item.future = self.store.load(content, item.shape)
        return item

    def has_room(self, item: Item) -> bool:
        held = sum(each.held_bytes for each in self.items.values())
        return held == 0 or held + item.shape.bytes <= HELD_BYTES

    def is_over(self, item: Item) -> bool:
        if item.is_over:
            return True
        if item.future is not None and item.future.done():
            item.output, item.is_over = item.future.result(), True
        elif time.monotonic() > item.deadline:
            self.miss(item, "late")
        return item.is_over

    def miss(self, item: Item, reason: str) -> None:
        item.is_over = True
        item.cancel()
        self.store.count(f"miss: {reason}")

    def is_there(self, identifier: str) -> bool:
        item = self.items.get(identifier)
        return item is not None and item.output is not None

    def promise(self, identifier: str) -> None:
        """vLLM has room for the output. A producer that is no consumer only needs to know that the output is stored."""
        if self.is_there(identifier):
            item = self.items[identifier]
            if self.is_consumer:
                self.promised[identifier] = item.output
            item.output = None
            self.store.count("hits")

    def take_promised(self) -> dict[str, torch.Tensor]:
        promised, self.promised = self.promised, {}
        return promised

    def forget(self, request) -> None:
        for identifier in {feature.identifier for feature in request.mm_features or ()}:
            self.leave(identifier, request.request_id)

    def leave(self, identifier: str, request_id: str) -> None:
        item = self.items.get(identifier)
        if item is None:
            return
        item.users.pop(request_id, None)
        if not item.users:
            self.store.count("unused", item.output is not None)
            item.cancel()
            del self.items[identifier]

    def end_unreported(self, request_ids) -> None:
        """Leaves the items of requests that vLLM has freed without a call: their outputs would be held for ever."""
        for identifier, item in list(self.items.items()):
            for request_id in [each for each in request_ids if each in item.users]:
                if item.users[request_id].is_finished():
                    self.leave(identifier, request_id)

    # ---- outputs of steps

    def save(self, outputs: dict[str, torch.Tensor]) -> None:
        for identifier, output in outputs.items():
            if identifier in self.items:
                self.widths.see(self.items[identifier].modality, output)
            known = self.media.known(identifier)
            if known is not None and not known.encoder:
                self.store.save(name_of(known.content), output)


class EncoderWorker:
    """The worker half: of all workers, one returns outputs."""

    def __init__(self):
        self.outputs: dict[str, torch.Tensor] = {}
        self.returns: bool | None = None  # unknown until the workers have found each other

    def load(self, cache: dict[str, torch.Tensor], outputs: dict[str, torch.Tensor]) -> None:
        device = current_platform.device_type
        if current_platform.is_cuda_alike():
            device = f"{device}:{current_platform.current_device()}"
        for identifier, output in outputs.items():
            if identifier not in cache:
                cache[identifier] = output.to(device)

    def save(self, identifier: str, output: torch.Tensor) -> None:
        if self.returns is None:
            self.returns = get_pp_group().is_first_rank and get_tp_group().rank_in_group == 0
        if self.returns and output.dim() == 2 and len(output):
            self.outputs[identifier] = output.detach().to("cpu", copy=True).contiguous()

    def take(self) -> dict[str, torch.Tensor]:
        outputs, self.outputs = self.outputs, {}
        return outputs


def guarded(default=None):
    """A method that vLLM calls: `default` if the cache is off or an unexpected exception occurs."""

    def wrap(method):
        @functools.wraps(method)
        def call(self, *args, **kwargs):
            if self.off:
                return default
            try:
                return method(self, *args, **kwargs)
            except Exception:
                if method.__name__ not in self.failed_methods:
                    self.failed_methods.add(method.__name__)
                    log.exception("Tierce's encoder cache failed in %s; this is a miss, and is logged once", method.__name__)
                return default
        return call
    return wrap


class TierceECConnector(ECConnectorBase):
    def __init__(self, vllm_config, role):
        super().__init__(vllm_config, role)
        share_log()
        self.off: str | None = None
        self.failed_methods: set[str] = set()
        self.half: EncoderScheduler | EncoderWorker | None = None
        settings = Settings.from_extra_config(vllm_config.ec_transfer_config.ec_connector_extra_config)
        strict = settings.check(WHERE)
        if (start := own_node.setting(settings, "node.start")) != "auto":
            raise ConfigError(f"{WHERE}: node.start {start!r} is for the connector of KV only; start a `tierce node`, and "
                              "set node.socket")
        try:
            require_supported(vllm_config)
            self.half = EncoderWorker() if role == ECConnectorRole.WORKER else self.scheduler(vllm_config, settings)
        except Unsupported as reason:
            if strict:
                raise ConfigError(f"Tierce: strict: {reason}") from None
            self.off = str(reason)
            if role == ECConnectorRole.SCHEDULER:
                log.warning("Tierce's encoder cache is off: %s", reason)

    def scheduler(self, vllm_config, settings: Settings) -> EncoderScheduler:
        widths = Widths(vllm_config)
        return EncoderScheduler(open_store(vllm_config, settings, widths), widths, self.is_consumer)

    # ---- worker

    def start_load_caches(self, encoder_cache, **kwargs):
        outputs = self._get_connector_metadata().outputs
        if outputs:  # vLLM counts on them, so an exception must not be hidden
            self.half.load(encoder_cache, outputs)

    @guarded()
    def save_caches(self, encoder_cache, mm_hash, **kwargs):
        if self.is_producer:
            self.half.save(mm_hash, encoder_cache[mm_hash])

    @guarded()
    def build_connector_worker_meta(self):
        outputs = self.half.take()
        return TierceECWorkerMetadata(outputs) if outputs else None

    # ---- scheduler

    @guarded(default=False)
    def has_cache_item(self, identifier):
        return self.half.is_there(identifier)

    @guarded(default=True)
    def ensure_cache_available(self, request, num_computed_tokens):
        return self.half.are_ready(request, num_computed_tokens)

    @guarded()
    def update_state_after_alloc(self, request, index):
        self.half.promise(request.mm_features[index].identifier)

    @guarded()
    def end_unreported(self, scheduler_output):
        self.half.end_unreported(scheduler_output.finished_req_ids)

    def build_connector_meta(self, scheduler_output):
        self.end_unreported(scheduler_output)
        return TierceECMetadata({} if self.off else self.half.take_promised())

    @guarded()
    def update_connector_output(self, connector_output):
        meta = connector_output.ec_connector_worker_meta
        if isinstance(meta, TierceECWorkerMetadata):
            self.half.save(meta.outputs)

    @guarded(default=(False, None))
    def request_finished(self, request):
        self.half.forget(request)
        return False, None

    @guarded()
    def get_ec_connector_stats(self):
        if isinstance(self.half, EncoderScheduler) and (counters := self.half.store.take_counters()):
            return EncoderStats(counters)
        return None

    @classmethod
    def build_ec_connector_stats(cls, data=None):
        return EncoderStats(data or {})

    @classmethod
    def build_prom_metrics(cls, vllm_config, metric_types, labelnames, per_engine_labelvalues):
        return EncoderProm(vllm_config, metric_types, labelnames, per_engine_labelvalues)

    def shutdown(self):
        self.off = self.off or "shut down"
        half, self.half = self.half, None
        try:
            if isinstance(half, EncoderScheduler):
                half.store.close()
        except Exception:
            log.exception("Tierce's encoder cache could not shut down cleanly")
