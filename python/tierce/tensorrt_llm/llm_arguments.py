# SPDX-License-Identifier: Apache-2.0
"""Arguments of TensorRT-LLM and models that the connector rejects, and the identity of the KV."""

from __future__ import annotations

import json
import os
from operator import attrgetter
from types import SimpleNamespace

from ..vllm import identity
from ..vllm.identity import ConfigError, Unsupported, canonical_json

REMEDY = "start TensorRT-LLM without it, or without this connector"


def is_set(value) -> bool:
    return value is not None and value is not False


def above_one(value) -> bool:
    return value != 1


# Arguments (TorchLlmArgs) whose value may exclude the connector: the test, the name of the feature, the remedy.
REJECTED = {
    "pipeline_parallel_size": (above_one, "pipeline parallelism", REMEDY),
    "context_parallel_size": (above_one, "context parallelism", REMEDY),
    "enable_attention_dp": (is_set, "attention data parallelism", REMEDY),
    "max_beam_width": (above_one, "beam search", REMEDY),
    "speculative_config": (is_set, "speculative decoding", REMEDY),
    "enable_lora": (is_set, "LoRA adapters", REMEDY),
    "lora_config": (is_set, "LoRA adapters", REMEDY),
    "cache_transceiver_config": (is_set, "disaggregated serving", REMEDY),
    "sparse_attention_config": (is_set, "sparse attention", REMEDY),
    "checkpoint_loader": (is_set, "weights from a custom checkpoint loader, which cannot be fingerprinted,", REMEDY),
    "kv_cache_config.enable_partial_reuse": (is_set, "reuse of partial blocks", "set it to false"),
    "kv_cache_config.use_kv_cache_manager_v2": (lambda value: value is True, "KVCacheManagerV2", "set it to false"),
    "kv_cache_config.host_cache_size": (bool, "TensorRT-LLM's own cache in host memory", "set it to 0; Tierce takes its place"),
    "kv_cache_config.max_attention_window": (is_set, "windows of attention", REMEDY),
    "kv_cache_config.sink_token_length": (bool, "sink tokens", REMEDY),
}
# Some versions of TensorRT-LLM do not have them.
OPTIONAL = {"sparse_attention_config", "checkpoint_loader", "cache_transceiver_config", "max_beam_width",
            "kv_cache_config.use_kv_cache_manager_v2"}
# Fields of a model's configuration that exclude the connector.
REJECTED_MODELS = {
    "kv_lora_rank": "latent attention (MLA)", "attention_chunk_size": "chunked attention",
    "is_encoder_decoder": "an encoder and a decoder", "vision_config": "images", "audio_config": "audio",
}
# Arguments that can change the KV of a prompt. A name that this TensorRT-LLM lacks adds nothing.
KV_ARGUMENTS = ("dtype", "quant_config", "model_kwargs", "max_seq_len", "moe_config", "force_dynamic_quantization")
# Of the pool. Other ones are packed, and have scales outside the pool.
KV_DTYPES = {"float32", "float16", "bfloat16", "float8_e4m3fn"}
# Of a request: its KV depends on more than its tokens.
INPUTS = ("lora_task_id", "multimodal_hashes", "multimodal_positions", "multimodal_lengths", "prompt_embedding_table",
          "mrope_rotary_cos_sin")
SALTS = ("cache_salt", "cache_salt_id")


def require_supported(llm_args, world: int, hosts_ranks: int) -> None:
    """`world`: all ranks; `hosts_ranks`: those on this host. Raises ConfigError."""
    for path, (is_rejected, name, remedy) in REJECTED.items():
        try:
            value = attrgetter(path)(llm_args)
        except AttributeError:
            if path in OPTIONAL:
                continue
            raise ConfigError(f"this TensorRT-LLM has no argument {path}, so Tierce cannot tell whether it uses {name}; "
                              "accepted: a version that has it") from None
        if is_rejected(value):
            raise ConfigError(f"Tierce does not support {name} of TensorRT-LLM ({path}: {value}); {remedy}")
    if (form := getattr(llm_args.load_format, "name", str(llm_args.load_format))).lower() != "auto":
        raise ConfigError(f"weights of load_format {form} cannot be fingerprinted; accepted: auto")
    if world != llm_args.tensor_parallel_size:
        raise ConfigError(f"{world} ranks, but tensor_parallel_size is {llm_args.tensor_parallel_size}; they must be equal")
    if hosts_ranks != world:
        raise ConfigError(f"{hosts_ranks} of {world} ranks are on this host; all ranks must be on one host, because they share a "
                          "`tierce node`")


def model_of(llm_args) -> SimpleNamespace:
    return SimpleNamespace(model=str(llm_args.model), revision=getattr(llm_args, "revision", None))


def require_supported_model(llm_args) -> None:
    """Raises ConfigError."""
    try:
        path = os.path.join(identity.model_folder(model_of(llm_args)), "config.json")
        with open(path, encoding="utf-8") as file:
            config = json.load(file)
    except (Unsupported, OSError, ValueError) as error:
        raise ConfigError(f"the model's configuration cannot be read: {error}") from None
    for part in identity.configs_below(config):
        for name, feature in REJECTED_MODELS.items():
            if part.get(name):
                raise ConfigError(f"Tierce for TensorRT-LLM does not support models with {feature} ({name} in {path}); {REMEDY}")
        if part.get("sliding_window") and part.get("use_sliding_window", True):
            raise ConfigError(f"Tierce for TensorRT-LLM does not support models with windows of attention (sliding_window in {path}); "
                              f"{REMEDY}")


def layers_of(pool) -> dict:
    """The pool of all layers' KV, by layer: blocks, layers, keys and values, values of a block. Raises ConfigError."""
    shape, dtype = tuple(pool.shape), str(pool.dtype).removeprefix("torch.")
    if len(shape) != 4 or shape[2] != 2:
        raise ConfigError(f"a pool of the shape {shape} is not supported; accepted: (blocks, layers, 2, values of a block)")
    if dtype not in KV_DTYPES:
        raise ConfigError(f"KV of type {dtype} is not supported: it may have scales outside the pool; accepted: "
                          f"{', '.join(sorted(KV_DTYPES))}")
    return {f"layer.{layer}.": pool[:, layer] for layer in range(shape[1])}


def namespace(core, llm_args, version: str, geometry, cells: list[int], ranks) -> dict:
    """Without the fields of chunks. Raises Unsupported if the weights have no fingerprint."""
    used = {name: str(value) for name in KV_ARGUMENTS if (value := getattr(llm_args, name, None)) is not None}
    return {
        "weights": identity.weights_of(core, model_of(llm_args)), "model": canonical_json(used),
        "kv_dtype": geometry.dtype.removeprefix("torch."), "quantization": "",
        "layout": canonical_json({
            "engine": f"tensorrt_llm {version}", "backend": str(getattr(llm_args, "attn_backend", "")),
            "block_shape": geometry.block_shape, "block_strides": geometry.block_strides, "dtype": geometry.dtype,
            "ranks": ranks.tp_size}),
        "layer_count": len(cells), "cell_bytes": cells, "block_tokens": llm_args.kv_cache_config.tokens_per_block,
    }


def salt_of(request) -> bytes | None:
    """The salt of a request; None if its KV depends on more than its tokens and salt, or if that is unknown."""
    for name in INPUTS:
        value = getattr(request, name, None)
        if value is not None and (not hasattr(value, "__len__") or len(value)):
            return None
    salts = [getattr(request, name) for name in SALTS if hasattr(request, name)]
    if not salts:
        return None
    return next((str(salt).encode() for salt in salts if salt is not None), b"")
