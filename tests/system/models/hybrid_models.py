# SPDX-License-Identifier: Apache-2.0
"""Small models of random weights with several KV cache groups, saved as checkpoints, for the system tests."""

import json
import math
import os

VOCAB = 259
SIZES = {"vocab_size": VOCAB, "hidden_size": 256, "intermediate_size": 512, "num_attention_heads": 4,
         "max_position_embeddings": 8192, "bos_token_id": 256, "eos_token_id": 257, "pad_token_id": 258,
         "tie_word_embeddings": False}


def gemma3(**more):
    """Four layers with a window of 64 tokens, and two of full attention."""
    from transformers import Gemma3ForCausalLM, Gemma3TextConfig

    kinds = ["sliding_attention", "sliding_attention", "full_attention"] * 2
    return Gemma3ForCausalLM, Gemma3TextConfig(**{
        **SIZES, "num_hidden_layers": 6, "num_key_value_heads": 2, "head_dim": 64, "layer_types": kinds,
        "sliding_window": 64, "query_pre_attn_scalar": 64, "tie_word_embeddings": True, **more})


def mistral(**more):
    """One group: every layer has a window of 128 tokens."""
    from transformers import MistralConfig, MistralForCausalLM

    return MistralForCausalLM, MistralConfig(**{
        **SIZES, "num_hidden_layers": 4, "num_key_value_heads": 2, "head_dim": 64, "sliding_window": 128, **more})


def qwen3_next(**more):
    """Three layers with a recurrent state (gated delta network), and one of full attention."""
    from transformers import Qwen3NextConfig, Qwen3NextForCausalLM

    return Qwen3NextForCausalLM, Qwen3NextConfig(**{
        **SIZES, "num_hidden_layers": 4, "num_key_value_heads": 4, "num_attention_heads": 4, "head_dim": 128,
        "layer_types": ["linear_attention"] * 3 + ["full_attention"],
        "linear_num_key_heads": 1, "linear_num_value_heads": 2, "linear_key_head_dim": 128,
        "linear_value_head_dim": 128, "linear_conv_kernel_dim": 4, "num_experts": 2, "num_experts_per_tok": 1,
        "moe_intermediate_size": 128, "shared_expert_intermediate_size": 128, "decoder_sparse_step": 1,
        "mlp_only_layers": [0, 1, 2], **more})


def gpt_oss(**more):
    """Two layers with a window of 32 tokens and sinks, and two of full attention."""
    from transformers import GptOssConfig, GptOssForCausalLM

    return GptOssForCausalLM, GptOssConfig(**{
        **SIZES, "num_hidden_layers": 4, "num_key_value_heads": 2, "head_dim": 64, "sliding_window": 32,
        "num_local_experts": 2, "num_experts_per_tok": 1, "intermediate_size": 256, **more})


def llama4(**more):
    """Three layers of chunked attention, in chunks of 64 tokens, and one of full attention."""
    from transformers import Llama4ForCausalLM, Llama4TextConfig

    return Llama4ForCausalLM, Llama4TextConfig(**{
        **SIZES, "num_hidden_layers": 4, "num_key_value_heads": 2, "head_dim": 64, "attention_chunk_size": 64,
        "intermediate_size_mlp": 512, "num_local_experts": 2, "num_experts_per_tok": 1, "interleave_moe_layer_step": 4,
        **more})


def gemma4(**more):
    """Four layers with a window of 64 tokens, and two of full attention with half as much KV per token: their blocks hold
    twice as many tokens."""
    from transformers import Gemma4ForCausalLM, Gemma4TextConfig

    kinds = ["sliding_attention", "sliding_attention", "full_attention"] * 2
    return Gemma4ForCausalLM, Gemma4TextConfig(**{
        **SIZES, "num_hidden_layers": 6, "layer_types": kinds, "sliding_window": 64, "num_key_value_heads": 4, "head_dim": 64,
        "attention_k_eq_v": True, "num_global_key_value_heads": 1, "global_head_dim": 128, "hidden_size_per_layer_input": 0,
        "tie_word_embeddings": True, **more})


KINDS = {"gemma3": gemma3, "mistral": mistral, "qwen3_next": qwen3_next, "gpt_oss": gpt_oss, "llama4": llama4,
         "gemma4": gemma4}
DTYPES = {"qwen3_next": "bfloat16"}  # the only one of vLLM's kernel for CPUs


def make_hybrid(folder, kind, seed=7, **changes):
    """Returns the folder."""
    import torch

    torch.manual_seed(seed)
    model_class, config = KINDS[kind](**changes)
    save_random(folder, model_class(config), seed, DTYPES.get(kind, "float32"))
    return str(folder)


def save_random(folder, model, seed=7, dtype="float32"):
    """Matrices that preserve the norm of their inputs, so that outputs depend on the whole prompt."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() >= 2:
                gain = 2.0 if any(part in name for part in ("q_proj", "k_proj", "in_proj_qkvz")) else 1.0
                gain = 0.1 if "embed_tokens" in name else gain  # small, or a token would follow itself
                parameter.copy_(torch.randn(parameter.shape, generator=generator)
                                * (gain / math.sqrt(parameter.shape[-1])))
    os.makedirs(folder, exist_ok=True)
    model.to(getattr(torch, dtype)).save_pretrained(folder)


LATENT = {"kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 64, "v_head_dim": 64, "q_lora_rank": 128}
# As in make_model.py: vLLM 0.32 rotates wrongly on CPUs without this scaling.
LATENT_ROPE = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 2, "mscale": 1.0, "mscale_all_dim": 1.0,
               "original_max_position_embeddings": SIZES["max_position_embeddings"] // 2}


def make_latent_hybrid(folder, seed=7):
    """A checkpoint for latent_on_cpu.py: Qwen3-Next's, with latent attention in its last layer. Returns the folder."""
    import torch
    from safetensors.torch import load_file, save_file

    folder = make_hybrid(folder, "qwen3_next", seed)
    weights = load_file(os.path.join(folder, "model.safetensors"))
    generator = torch.Generator().manual_seed(seed)

    def matrix(rows, columns):
        return (torch.randn(rows, columns, generator=generator) / math.sqrt(columns)).to(torch.bfloat16)

    hidden, heads, latent, rope, nope, value, query = (SIZES["hidden_size"], SIZES["num_attention_heads"], *LATENT.values())
    attention = "model.layers.3.self_attn."
    weights = {name: tensor for name, tensor in weights.items() if not name.startswith(attention)}
    parts = {"fused_qkv_a_proj": matrix(query + latent + rope, hidden), "q_b_proj": matrix(heads * (nope + rope), query),
             "kv_b_proj": matrix(heads * (nope + value), latent), "o_proj": matrix(hidden, heads * value),
             "q_a_layernorm": torch.ones(query, dtype=torch.bfloat16), "kv_a_layernorm": torch.ones(latent, dtype=torch.bfloat16)}
    save_file({**weights, **{f"{attention}{name}.weight": tensor for name, tensor in parts.items()}},
              os.path.join(folder, "model.safetensors"), metadata={"format": "pt"})
    path = os.path.join(folder, "config.json")
    with open(path, encoding="utf-8") as file:
        config = json.load(file)
    config |= {**LATENT, "architectures": ["LatentHybridForCausalLM"], "model_type": "kimi_linear",
               "rope_parameters": LATENT_ROPE}
    with open(path, "w", encoding="utf-8") as file:
        json.dump(config, file)
    return folder
