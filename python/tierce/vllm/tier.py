# SPDX-License-Identifier: Apache-2.0
"""Tierce as a secondary tier of vLLM's own offloading (TieringOffloadingSpec).

    KVTransferConfig(kv_connector="OffloadingConnector", kv_role="kv_both",
                     kv_connector_extra_config={
                         "spec_name": "TieringOffloadingSpec", "cpu_bytes_to_use": 8 << 30,
                         "secondary_tiers": [{"type": "TierceTier", "module_path": "tierce.vllm",
                                              "memory.size": "256MiB", "disk.path": "/var/lib/tierce"}]})

vLLM moves the KV between the GPU and a region of host memory. This tier moves whole chunks between the
region and the store. vLLM calls it on its main thread, so only drain_jobs and shutdown block: native threads move the
bytes and query the tiers (tierce._core.BlockJobs).

While vLLM starts, an invalid configuration raises ConfigError. Later the tier raises nothing: a failure
is a miss.
"""

from __future__ import annotations

import hashlib
import logging
import os
import secrets
import sys
from dataclasses import dataclass, fields

import numpy
import vllm
from vllm.config import VllmConfig
from vllm.platforms import current_platform
from vllm.v1.kv_offload.base import (
    Locality,
    LookupResult,
    Medium,
    RequestOffloadingContext,
)
from vllm.v1.kv_offload.tiering.base import JobResult, SecondaryTierManager

from . import identity, own_node
from .connector import share_log
from .identity import ConfigError, Unsupported
from .link import RESET_BYTES
from .settings import Settings, open_view
from .texts import describe_store, milliseconds
from .tier_inputs import InputKeys

log = logging.getLogger("tierce")

WHERE = "secondary_tiers"
ANSWERS = LookupResult.MISS, LookupResult.HIT, LookupResult.RETRY  # by the numbers of BlockJobs.lookup
ANSWER_MS, FAILED_MS = 1_000, 10_000
ASK_LOOKUPS = 2  # multiple of timeout.lookup: a lookup waits for the previous one
DRAIN_MS = 5_000  # between two lines of the log


# ---- options ---------------------------------------------------------------------------------


def whole_number(low: int, high: int):
    def read(value):
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise ValueError(f"a whole number from {low} to {high}")
        return value

    return read


def truth(value):
    if not isinstance(value, bool):
        raise ValueError("true or false")
    return value


def text(value):
    if not isinstance(value, str):
        raise ValueError("a text")
    return value


def place(value):
    if value not in [None, *(each.value for each in Locality)]:
        raise ValueError(" or ".join(each.value for each in Locality))
    return value


READERS = {"threads": whole_number(1, 64), "queue": whole_number(1, 1 << 20),
           "lookups": whole_number(1, 1 << 22), "keep_after_reset": truth, "locality": place,
           "identity": text}


@dataclass
class Options:
    """The tier's own options; all others are the store's parameters."""

    threads: int = 4  # that move chunks
    queue: int = 4096  # limit of chunks in unfinished jobs; jobs beyond it fail
    lookups: int = 65536  # chunks for which lookup results are remembered
    keep_after_reset: bool = False
    locality: str | None = None  # of the storage, for vLLM's filters
    identity: str = ""  # anything else that changes the KV

    @classmethod
    def take(cls, own: dict) -> "Options":
        """Takes the tier's options out of `own`. Raises ConfigError."""
        out = cls()
        for field in fields(cls):
            if field.name not in own:
                continue
            value = own.pop(field.name)
            try:
                setattr(out, field.name, READERS[field.name](value))
            except ValueError as accepted:
                raise ConfigError(f"{WHERE}: {field.name} {value!r} is invalid; accepted: {accepted}") from None
        return out


# ---- identity --------------------------------------------------------------------------------


def engine_config() -> VllmConfig | None:
    """vLLM's configuration, taken from the constructor of the connector that constructs this tier:
    vLLM does not pass it to a tier."""
    frame = sys._getframe(1)
    while frame is not None:
        found = frame.f_locals.get("vllm_config")
        if isinstance(found, VllmConfig):
            return found
        frame = frame.f_back
    return None


def process_bound(vllm_config) -> str | None:
    """The reason why vLLM's hashes are valid only in this process, or None."""
    if vllm_config.lora_config is not None:
        return "LoRA is enabled, and vLLM's hashes name an adapter, not its content"
    if not identity.media_are_hashed(vllm_config):
        return ("vLLM numbers images instead of hashing them; it hashes them with "
                "--enable-prefix-caching or an --mm-processor-cache-gb above 0")
    return None


def warn_of_hashes(algorithm: str) -> None:
    if algorithm.startswith("xxhash"):
        log.warning("Tierce finds nothing after a restart of vLLM with --prefix-caching-hash-algo %s, "
                    "unless PYTHONHASHSEED is set; use sha256 or sha256_cbor", algorithm)


def model_identity(core, vllm_config, options: Options) -> dict:
    """The part of a namespace that describes the model. Raises Unsupported or ConfigError."""
    if vllm_config is None:
        if not options.identity:
            raise ConfigError(f"{WHERE}: this vLLM does not show its configuration to a tier; set identity "
                              "to a text that changes whenever the model, its weights or their use changes")
        digest = hashlib.sha256(options.identity.encode()).hexdigest()
        return {"weights": digest, "model": "", "kv_dtype": "", "hashes": ""}
    identity.require_known(vllm_config)
    algorithm = vllm_config.cache_config.prefix_caching_hash_algo
    warn_of_hashes(algorithm)
    return {"weights": identity.weights_of_engine(core, vllm_config),
            "model": identity.effective_model(vllm_config),
            "kv_dtype": identity.kv_dtype(vllm_config), "hashes": algorithm}


def chain_algorithm(hashes: str) -> str:
    """The store's name for an algorithm of vLLM. The input of `sha256` is internal to vLLM: the
    layout keeps these hashes apart from hashes of the store."""
    if hashes == "sha256_cbor":
        return "vllm-sha256-cbor"
    return "xxh3-128" if hashes.startswith("xxhash") else "sha256"


def device_layout(vllm_config) -> dict:
    """The values of the configuration that determine how the device arranges KV."""
    if vllm_config is None:
        return {}
    attention = getattr(vllm_config, "attention_config", None)
    cpu = {"isa": identity.cpu_isa()} if current_platform.device_type == "cpu" else {}
    cache = vllm_config.cache_config
    # Settings that change the meaning of a row's bytes, but not its size.
    content = {name: str(value) for name in (
        "mamba_cache_dtype", "mamba_ssm_cache_dtype", "use_replayssm", "replayssm_buffer_len",
        "kv_cache_dtype_skip_layers") if (value := getattr(cache, name, None)) not in (None, [], False)}
    return {"platform": current_platform.device_type, "device": current_platform.get_device_name(),
            "content": content, "states": os.environ.get("VLLM_SSM_CONV_STATE_LAYOUT", ""),
            "machine": os.uname().machine, "backend": str(getattr(attention, "backend", None)), **cpu}


def layout(config, group, vllm_config, chunk_bytes: int, options: Options, model: dict) -> str:
    """The text of the layout of a group's chunks: all values of vLLM that determine a row of the
    region. A row has the layers of all groups, which overlay each other."""
    parallel = config.parallel
    return identity.canonical_json({
        "engine": f"vllm {vllm.__version__}", "tier": "a row of vLLM's host region",
        "group": group.group_id, "groups": [
            [each.group_id, each.tokens_per_block, list(each.layer_names)] for each in config.groups],
        "chunk_bytes": chunk_bytes, "worker_bytes": config.worker_kv_bytes_per_block,
        "blocks_per_chunk": config.cache.blocks_per_chunk, "hash_tokens": config.cache.tokens_per_hash,
        "hashes": model["hashes"], "dtype": config.model.dtype, "layout": config.kv_cache_layout,
        "canonical": config.canonical_layout, "replicated": config.replicated_layout,
        "ranks": {"world": parallel.world_size, "tp": parallel.tp_size, "pp": parallel.pp_size,
                  "pcp": parallel.pcp_size, "dcp": parallel.dcp_size},
        "identity": options.identity, **device_layout(vllm_config)})


# ---- the tier --------------------------------------------------------------------------------


class TierceTier(SecondaryTierManager):
    medium = Medium.STORAGE

    def __init__(self, offloading_spec, primary_kv_view, tier_type, backpressure_detector=None, **own):
        super().__init__(offloading_spec, primary_kv_view, tier_type, backpressure_detector)
        share_log()
        self.off: str | None = None  # why the store is not used
        self.engine = self.jobs = None
        self.failed_methods: set[str] = set()
        self.told: set[str] = set()
        self.inputs: InputKeys | None = None  # of a multimodal model
        self.keys: dict[int, list[bytes] | None] = {}  # of the jobs in progress; None: of several with one id
        self.over: list[JobResult] = []  # results that vLLM has not taken
        self.options = Options.take(own)
        self.locality = Locality(self.options.locality) if self.options.locality else None
        self.settings = Settings.from_extra_config(own)
        strict = self.settings.check(WHERE)
        if (start := own_node.setting(self.settings, "node.start")) != "auto":
            raise ConfigError(f"{WHERE}: node.start {start!r} is for the connector only; start a `tierce node`, and "
                              "set node.socket")
        try:
            self.open()
        except Unsupported as reason:
            if strict:
                raise ConfigError(f"Tierce: strict: {reason}") from None
            self.switch_off(str(reason))

    def switch_off(self, reason: str) -> None:
        self.off = reason
        log.warning("Tierce's tier is off: %s", reason)

    # ---- opening and closing

    def open(self) -> None:
        """Raises Unsupported or ConfigError."""
        from tierce import _core

        config, vllm_config = self._offloading_spec.config, engine_config()
        model = model_identity(_core, vllm_config, self.options)
        self.weights = model["weights"]
        self.namespaces = {g.group_id: self.namespace(config, g, vllm_config, model) for g in config.groups}
        if not self.namespaces:
            raise ConfigError("vLLM offloads no group of layers of this model")
        self.bind_to_process(vllm_config)
        if vllm_config is None or vllm_config.model_config.multimodal_config is not None:
            self.inputs = InputKeys(self.tell_once)
        values = dict(self.settings.values)
        if (codec := _core.Engine.setting(self.settings.config_path, values, "codec.lossy")) != "none":
            raise ConfigError(f"{WHERE}: codec.lossy {codec!r} is for the connector only; remove it")
        if _core.Engine.setting(self.settings.config_path, values, "node.socket"):
            values.setdefault("node.engine", str(config.engine_id))
        try:
            self.engine = _core.Engine.open(self.settings.config_path, values)
        except _core.Error as error:
            raise ConfigError(f"{WHERE}: {error}") from None
        self.engine.set_role("vllm tier")
        try:
            self.open_jobs()
        except (ConfigError, _core.Error) as error:
            self.engine.close()
            raise ConfigError(f"{WHERE}: {error}") from None
        log.info("Tierce as tier %s: %s", self.tier_type, ", ".join(
            [*describe_store(self.engine), f"chunks of {self._block_size_bytes:,} bytes",
             f"{len(self.namespaces)} groups"]))

    def namespace(self, config, group, vllm_config, model: dict) -> dict:
        return {"weights": model["weights"], "model": model["model"],
                "kv_dtype": model["kv_dtype"] or config.model.dtype, "quantization": "",
                "layout": layout(config, group, vllm_config, self._block_size_bytes, self.options, model),
                "layer_count": 1, "cell_bytes": [self._block_size_bytes],
                "block_tokens": group.tokens_per_block * config.cache.blocks_per_chunk,
                "chunk_blocks": 1, "algo": chain_algorithm(model["hashes"])}

    def bind_to_process(self, vllm_config) -> None:
        reason = process_bound(vllm_config) if vllm_config is not None else None
        if reason is None:
            return
        log.warning("Tierce's tier finds only chunks that this process has stored: %s", reason)
        self.weights = identity.weights_after_reset(self.weights, secrets.token_bytes(RESET_BYTES))
        self.name_weights(self.weights)

    def name_weights(self, weights: str) -> None:
        for namespace in self.namespaces.values():
            namespace["weights"] = weights

    def open_jobs(self) -> None:
        from tierce import _core

        lower = "vLLM's blocks_per_chunk" if self._offloading_spec.config.cache.blocks_per_chunk > 1 else ""
        views = [open_view(self.engine, self.namespaces[i], lower=lower) if i in self.namespaces else None
                 for i in range(max(self.namespaces) + 1)]
        self.jobs = _core.BlockJobs.open(
            views, self._primary_kv_view, self._block_size_bytes, threads=self.options.threads,
            blocks_max=self.options.queue, timeout_ms=milliseconds(self.engine.param("timeout.load")),
            lookups=self.options.lookups,
            ask_ms=ASK_LOOKUPS * milliseconds(self.engine.param("timeout.lookup")),
            answer_ms=ANSWER_MS, failed_ms=FAILED_MS)

    def close_jobs(self) -> None:
        jobs, self.jobs = self.jobs, None
        if jobs is not None:
            jobs.close()

    def shutdown(self):
        if self.jobs is not None:  # the last jobs of vLLM should be stored
            self.jobs.drain(milliseconds(self.engine.param("timeout.close")))
        self.close_jobs()
        if self.engine is not None:
            self.engine.close()
            self.engine = None
        self.off = "the tier was shut down"

    # ---- calls of vLLM's scheduler

    def count_error(self, where: str) -> None:
        if where not in self.failed_methods:
            self.failed_methods.add(where)
            log.exception("Tierce's tier failed in %s; this is a miss, and is logged once", where)

    def tell_once(self, text: str) -> None:
        if text not in self.told and len(self.told) < 100:
            self.told.add(text)
            log.warning("%s", text)

    def on_new_request(self, req_context):
        try:
            if self.inputs is not None:
                self.inputs.see(req_context)
        except Exception:  # the request does not touch the store
            self.count_error("on_new_request")
        return RequestOffloadingContext()

    def stored_key(self, key, req_context):
        """None: the request must not touch the store."""
        return key if self.inputs is None else self.inputs.key(key, req_context)

    def lookup(self, key, req_context):
        try:
            stored = self.stored_key(key, req_context) if self.jobs is not None else None
            return ANSWERS[self.jobs.lookup(stored)] if stored is not None else LookupResult.MISS
        except Exception:
            self.count_error("lookup")
            return LookupResult.MISS

    def submit_store(self, job_metadata):
        self.submit(job_metadata, "store")

    def submit_load(self, job_metadata):
        self.submit(job_metadata, "load")

    def submit(self, job, operation: str) -> None:
        keys, taken = list(job.keys), False
        if self.is_known(job.job_id):
            self.reject_twin(job.job_id)
            return
        if not keys:
            self.over.append(JobResult(job.job_id, success=True, transfer_time=0.0, transfer_bytes=0))
            return
        try:
            stored = [self.stored_key(key, job.req_context) for key in keys]
            if self.jobs is not None and None not in stored:
                chunks = numpy.ascontiguousarray(job.chunk_ids, dtype=numpy.int64)
                taken = getattr(self.jobs, operation)(job.job_id, stored, chunks)
        except Exception:
            self.count_error(operation)
        if taken:
            self.keys[job.job_id] = keys
        else:
            self.over.append(JobResult(job.job_id, success=False))

    def is_known(self, job_id: int) -> bool:
        return job_id in self.keys or any(result.job_id == job_id for result in self.over)

    def reject_twin(self, job_id: int) -> None:
        """Of several jobs with one id, only the first runs. They get one result, a failure: a second one
        would end vLLM, and a success would be about the keys of the last."""
        log.error("vLLM's job %d was submitted again before its result was taken; this job fails", job_id)
        if job_id in self.keys:
            self.keys[job_id] = None
        else:
            self.over = [result for result in self.over if result.job_id != job_id]
            self.over.append(JobResult(job_id, success=False))

    def get_finished_jobs(self):
        self.collect()
        out, self.over = self.over, []
        return out

    def collect(self) -> None:
        while self.jobs is not None and (done := self.jobs.poll()) is not None:
            self.over.append(self.result(*done))

    def result(self, job_id: int, is_load: bool, moved: bytes, seconds: float) -> JobResult:
        keys = self.keys.pop(job_id)
        if keys is None:
            return JobResult(job_id, success=False)
        good = [key for key, is_good in zip(keys, moved) if is_good]
        success = len(good) == len(keys)
        return JobResult(
            job_id, success, successful_keys=good if is_load and good and not success else None,
            transfer_time=seconds, transfer_bytes=len(good) * self._block_size_bytes)

    def drain_jobs(self):
        """vLLM calls this when it resets its cache, and at no other time."""
        while self.jobs is not None and not self.jobs.drain(DRAIN_MS):
            log.warning("a reset of vLLM's cache waits for the jobs of Tierce's tier: %s", self.jobs.state())
        self.collect()
        if self.jobs is not None and not self.options.keep_after_reset:
            self.begin_era()

    def begin_era(self) -> None:
        """The weights may have changed: nothing that was stored before is found any more."""
        self.close_jobs()
        self.name_weights(identity.weights_after_reset(self.weights, secrets.token_bytes(RESET_BYTES)))
        try:
            self.open_jobs()
        except Exception as error:
            self.switch_off(f"after a reset of vLLM's cache: {error!r}")
