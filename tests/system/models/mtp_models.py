# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of random weights that contain their drafter: layers for multi-token prediction (MTP). For the system tests."""

import json
import math
import os

from hybrid_models import LATENT, LATENT_ROPE, SIZES, save_random

LAYERS = 4  # of the model; the layer that follows is the drafter's
HEADS = {"num_key_value_heads": 2, "head_dim": 64}
EXPERTS = {"n_routed_experts": 2, "num_experts_per_tok": 1, "n_shared_experts": 1, "moe_intermediate_size": 128,
           "n_group": 1, "topk_group": 1, "first_k_dense_replace": LAYERS - 1}


def mimo():
    """Dense layers of Qwen2's kind."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

    return Qwen2ForCausalLM, Qwen2Config(**SIZES, **HEADS, num_hidden_layers=LAYERS + 1)


def glm4_moe():
    from transformers import Glm4MoeConfig, Glm4MoeForCausalLM

    return Glm4MoeForCausalLM, Glm4MoeConfig(**SIZES, **HEADS, **EXPERTS, num_hidden_layers=LAYERS + 1)


def deepseek_v3():
    """Latent attention."""
    from transformers import DeepseekV3Config, DeepseekV3ForCausalLM

    return DeepseekV3ForCausalLM, DeepseekV3Config(
        **SIZES, **EXPERTS, num_hidden_layers=LAYERS + 1, num_key_value_heads=SIZES["num_attention_heads"],
        rope_parameters=LATENT_ROPE, **LATENT)


# The tensors that the drafter's layer has beside those of a layer of the model.
NORMS = {"mimo": ("token_layernorm", "hidden_layernorm", "final_layernorm"),
         "glm4_moe": ("enorm", "hnorm", "shared_head.norm"), "deepseek_v3": ("enorm", "hnorm", "shared_head.norm")}
PROJECTION = {"mimo": "input_proj", "glm4_moe": "eh_proj", "deepseek_v3": "eh_proj"}
CONFIGS = {"mimo": {"architectures": ["MiMoForCausalLM"], "layer_types": None},  # transformers does not know it
           "deepseek_v3": {"topk_method": "noaux_tc"}}
KINDS = {"mimo": mimo, "glm4_moe": glm4_moe, "deepseek_v3": deepseek_v3}


def add_drafter(kind, weights, seed):
    """Makes the model's last layer the drafter's."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    hidden, last = SIZES["hidden_size"], f"model.layers.{LAYERS}."
    drafter = "model.mtp_layers.0." if kind == "mimo" else last
    out = {name.replace(last, drafter): tensor for name, tensor in weights.items()}
    out |= {f"{drafter}{norm}.weight": torch.ones(hidden) for norm in NORMS[kind]}
    out[f"{drafter}{PROJECTION[kind]}.weight"] = torch.randn(hidden, 2 * hidden, generator=generator) / math.sqrt(2 * hidden)
    if kind != "mimo":
        out[f"{drafter}embed_tokens.weight"] = weights["model.embed_tokens.weight"].clone()
        out[f"{drafter}shared_head.head.weight"] = weights["lm_head.weight"].clone()
    return out


def make_mtp(folder, kind, seed=7):
    """Returns the folder."""
    import torch
    from safetensors.torch import load_file, save_file

    torch.manual_seed(seed)
    model_class, config = KINDS[kind]()
    save_random(folder, model_class(config), seed)
    path = os.path.join(folder, "model.safetensors")
    save_file(add_drafter(kind, load_file(path), seed), path, metadata={"format": "pt"})
    path = os.path.join(folder, "config.json")
    with open(path, encoding="utf-8") as file:
        config = json.load(file)
    config |= {"num_hidden_layers": LAYERS, "num_nextn_predict_layers": 1, **CONFIGS.get(kind, {})}
    with open(path, "w", encoding="utf-8") as file:
        json.dump(config, file)
    return str(folder)
