# SPDX-License-Identifier: Apache-2.0
"""The identity of SGLang's KV: the model, and the layout of a pool's pages."""

from __future__ import annotations

import hashlib
import os
from types import SimpleNamespace

from ..vllm.identity import LOAD_FORMATS, ConfigError, Unsupported, canonical_json, weights_of

# Arguments of SGLang that can change KV. A name that this SGLang lacks adds nothing.
ENGINE_FIELDS = (
    "dtype", "quantization", "quantization_param_path", "kv_cache_dtype", "context_length", "json_model_override_args",
    "model_impl", "model_config_parser", "model_loader_extra_config", "modelopt_quant",
    "modelopt_checkpoint_restore_path", "quantize_and_serve",
    "rl_quant_profile", "rl_on_policy_target", "enable_deterministic_inference", "enable_tf32_matmul",
    "attention_backend", "prefill_attention_backend", "decode_attention_backend", "mm_attention_backend",
    "enable_lean_attention", "triton_attention_reduce_in_fp32", "dsa_prefill_backend", "dsa_decode_backend",
    "prefill_kv_cache_dequant_dtype", "qsa_indexer_dtype", "enable_precise_embedding_interpolation",
    "mamba_backend", "mamba_ssm_dtype", "enable_mamba_cache_stochastic_rounding", "mamba_cache_philox_rounds",
    "enable_int8_mamba_checkpoint", "linear_attn_backend", "linear_attn_prefill_backend", "linear_attn_decode_backend",
    "enable_linear_replayssm", "linear_replayssm_cache_len",
    "enable_w4a4_mxfp4_megamoe", "flashinfer_mxfp4_moe_precision", "deepep_dispatcher_output_dtype",
    "enable_quant_communications", "kt_method", "kt_weight_path", "dllm_algorithm", "dllm_algorithm_config",
    "speculative_algorithm", "speculative_num_steps", "speculative_eagle_topk", "speculative_num_draft_tokens",
    "speculative_draft_model_quantization", "speculative_draft_kv_cache_dtype", "speculative_draft_window_size",
    "speculative_draft_sink_size", "speculative_draft_attention_backend", "uno_lora_path",
    "decrypted_config_file", "decrypted_draft_config_file", "forward_hooks", "enable_mis", "enable_prefill_cp", "cp_strategy",
    "enable_dsa_cache_layer_split", "enable_encoder_swa_bounded_replay", "enable_decoder_swa_bounded_replay",
    "mm_process_config", "image_processor_backend", "disable_fast_image_processor", "language_model_only")
EXTERNAL_MODELS = "SGLANG_EXTERNAL_MODEL_PACKAGE"
# Environment variables of SGLang that change the order of the bytes of a page, the weights, or what is computed with them.
ENVIRONMENT = (
    "SGLANG_USE_HND_KVCACHE", "SGLANG_AITER_KV_CACHE_LAYOUT", "SGLANG_USE_AITER", "SGLANG_DSA_HIP_DISABLE_PRESHUFFLE",
    "AITER_ENABLE_AOT_GLUON_PA_MQA_LOGITS", EXTERNAL_MODELS, "SGLANG_CPU_QUANTIZATION", "SGLANG_INT4_WEIGHT",
    "SGLANG_HUMMING_ONLINE_QUANT_CONFIG", "SGLANG_HUMMING_INPUT_QUANT_CONFIG", "SGLANG_FP8_IGNORED_LAYERS",
    "SGLANG_FP4_IGNORED_LAYERS", "SGLANG_QUANT_ALLOW_DOWNCASTING", "SGLANG_FORCE_MXFP8_BLOCK_CONVERT_DENSE",
    "SGLANG_NVFP4_CKPT_FP8_GEMM_IN_ATTN", "SGLANG_NVFP4_CKPT_FP8_NEXTN_MOE", "SGLANG_GLM_NEXTN_MOE_PTPC",
    "SGLANG_NPU_ARCH35_REQUANT_BLOCK_FP8", "SGLANG_MOE_NVFP4_DISPATCH", "SGLANG_MORI_DISPATCH_DTYPE",
    "SGLANG_MORI_COMBINE_DTYPE", "DEEP_NORMAL_MODE_USE_INT8_QUANT", "SGLANG_SIMULATE_UNIFORM_EXPERTS",
    "SGLANG_SIMULATE_ROUND_ROBIN_EXPERTS", "SGLANG_SKIP_SOFTMAX_PREFILL_THRESHOLD_SCALE_FACTOR",
    "SGLANG_SKIP_SOFTMAX_DECODE_THRESHOLD_SCALE_FACTOR", "SGLANG_MINIMAX_M3_INDEX_TOPK_FREQ",
    "SGLANG_MINICPM_DENSE_AS_SPARSE", "SGLANG_MINICPM_FORCE_DENSE", "SGLANG_ENABLE_MTP_BOUNDARY_KV_FIX")
# Arguments with which SGLang's keys or the fingerprint do not identify KV.
REJECTED = (
    (("enable_lora", "lora_paths"), "LoRA adapters are not supported: SGLang names an adapter by its name and path, not by "
     "its content; start SGLang without them, or without this storage"),
    (("trust_mm_content_hashes",), "--trust-mm-content-hashes is not supported: clients could give different images one "
     "name; start SGLang without it, or without this storage"))
# Weights, or files that change KV, outside the folders of the model and of its drafter.
UNKNOWN_WEIGHTS = (
    "custom_weight_loader", "checkpoint_engine_wait_weights_before_ready", "modelopt_checkpoint_restore_path",
    "quantization_param_path", "kt_weight_path", "uno_lora_path", "decrypted_config_file", "decrypted_draft_config_file",
    "dllm_algorithm_config")
LOAD_FORMAT_FIELDS = ("load_format", "speculative_draft_load_format")
# Numbers and names of a pool that describe a page.
POOL_FIELDS = (
    "layout", "page_size", "layer_num", "target_layer_num", "head_num", "head_dim", "v_head_dim", "kv_lora_rank",
    "qk_rope_head_dim", "kv_cache_dim", "num_mamba_layers", "temporal_state_elem_size", "conv_state_elem_sizes",
    "temporal_dtype", "conv_dtype", "indexer_dtype", "storage_format_tag", "size_per_token")
REMEDY = "set identity to a text that changes whenever the model, its weights or their use changes"


def model_identity(core, args, own: str) -> dict:
    """Weights and model of a namespace. `args`: SGLang's arguments, or None; `own`: replaces the fingerprint, or empty. Raises
    ConfigError."""
    for names, reason in REJECTED:
        if any(getattr(args, name, None) for name in names):
            raise ConfigError(reason)
    if args is None and not own:
        raise ConfigError(f"this SGLang does not show its arguments to a storage; {REMEDY}")
    weights = hashlib.sha256(own.encode()).hexdigest() if own else fingerprint(core, args)
    used = {**({} if args is None else arguments(args)), **environment()}
    return {"weights": weights, "model": canonical_json(used) if used else ""}


def fingerprint(core, args) -> str:
    """Of the model's files, and of its drafter's."""
    for name in LOAD_FORMAT_FIELDS:
        if (form := str(getattr(args, name, None) or "auto")) not in LOAD_FORMATS:
            raise ConfigError(f"weights of load format {form!r} cannot be fingerprinted; {REMEDY}")
    for name in UNKNOWN_WEIGHTS:
        if getattr(args, name, None):
            raise ConfigError(f"weights that come with {name} cannot be fingerprinted; {REMEDY}")
    if os.environ.get(EXTERNAL_MODELS):
        raise ConfigError(f"the code of the models in {EXTERNAL_MODELS} cannot be fingerprinted; {REMEDY}")
    if getattr(args, "weight_cache_mode", None) == "client":  # a daemon has read them, perhaps from other files of this name
        raise ConfigError(f"weights of a weight cache's daemon cannot be fingerprinted; {REMEDY}")
    folders = [(args.model_path, getattr(args, "revision", None))]
    if drafter := getattr(args, "speculative_draft_model_path", None):
        folders.append((drafter, getattr(args, "speculative_draft_model_revision", None)))
    try:
        digests = [weights_of(core, SimpleNamespace(model=path, revision=revision)) for path, revision in folders]
    except (Unsupported, core.Error) as reason:
        raise ConfigError(f"{reason}; {REMEDY}") from None
    return digests[0] if len(digests) == 1 else hashlib.sha256(" ".join(digests).encode()).hexdigest()


def arguments(args) -> dict:
    found = {name: getattr(args, name, None) for name in ENGINE_FIELDS}
    return {name: value if isinstance(value, (bool, int)) else str(value)
            for name, value in found.items() if value is not None}


def environment() -> dict:
    return {name: value_or_content(os.environ[name]) for name in ENVIRONMENT if name in os.environ}


def value_or_content(value: str) -> str:
    """Some variables of SGLang have JSON, or the name of a file with it."""
    if not os.path.isfile(value):
        return value
    with open(value, "rb") as file:
        return hashlib.sha256(file.read()).hexdigest()


def layout(version: str, name: str, pool, kv_pool, config, copied: bool) -> str:
    """The text of the layout of a pool's pages. The sizes of its places are in the namespace too. `kv_pool` knows the layers
    of the pipeline rank: SGLang can divide a model unevenly, and then a rank's number does not name its layers."""
    stage = {} if config.pp_size == 1 else {
        "stage": [getattr(kv_pool, "start_layer", None), getattr(kv_pool, "end_layer", None)]}
    fields = {field: value if isinstance(value, (bool, int)) else str(value)
              for field in POOL_FIELDS if (value := getattr(pool, field, None)) is not None}
    # A page has its bytes in the order of the pool on the device, which is no name of the host pool.
    orders = [str(getattr(getattr(info, "buffers", None), "layout", "")) for info in getattr(pool, "_buffer_infos", ())]
    context = {} if config.attn_cp_size == 1 else {"context": [config.attn_cp_rank, config.attn_cp_size]}
    return canonical_json({"engine": f"sglang {version}", "pool": name, "class": type(pool).__name__, **fields, **context,
                           **stage, **({"device": orders} if any(orders) else {}), **({"form": "flattened"} if copied else {})})


def has_rank_parts(name: str, pool) -> bool:
    """Whether each tensor rank has another part of this pool: of heads, or of states."""
    return name == "mamba" or getattr(pool, "head_num", None) is not None


def shard(config, name: str, pool) -> tuple[int, int, int, int]:
    """With latent attention all tensor ranks have the same KV, of which SGLang stores rank 0's; states stay divided. Raises
    ConfigError."""
    is_divided = not config.is_mla_model or has_rank_parts(name, pool)
    if is_divided and config.is_mla_model and config.tp_size > 1 and name != "mamba":
        raise ConfigError(f"the pool {name!r} of a model with latent attention has heads, and SGLang stores those of rank "
                          "0 only; start SGLang with one tensor rank, or without this storage")
    tensor = (config.tp_rank, config.tp_size) if is_divided else (0, 1)
    return (*tensor, config.pp_rank, config.pp_size)
