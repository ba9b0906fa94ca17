# SPDX-License-Identifier: Apache-2.0
"""Small models of random weights with several KV cache groups, saved as checkpoints, for the system tests."""

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


KINDS = {"gemma3": gemma3, "mistral": mistral, "qwen3_next": qwen3_next, "gpt_oss": gpt_oss, "llama4": llama4}
DTYPES = {"qwen3_next": "bfloat16"}  # the only one of vLLM's kernel for CPUs


def make_hybrid(folder, kind, seed=7, **changes):
    """Returns the folder. The matrices preserve the norm of their inputs, so that outputs depend on the whole prompt."""
    import torch

    torch.manual_seed(seed)
    model_class, config = KINDS[kind](**changes)
    model = model_class(config)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() >= 2:
                gain = 2.0 if any(part in name for part in ("q_proj", "k_proj", "in_proj_qkvz")) else 1.0
                gain = 0.1 if "embed_tokens" in name else gain  # small, or a token would follow itself
                parameter.copy_(torch.randn(parameter.shape, generator=generator)
                                * (gain / math.sqrt(parameter.shape[-1])))
    os.makedirs(folder, exist_ok=True)
    model.to(getattr(torch, DTYPES.get(kind, "float32"))).save_pretrained(folder)
    return str(folder)
