#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes a small Llama with random weights and a byte tokenizer, so that no download is needed.
With size mla it makes a small DeepSeek-V2, whose heads share a latent vector.

    make_model.py FOLDER [--size demo|test|mla] [--seed N]

The weights depend on the size and the seed only. Text becomes one token per UTF-8 byte, so that
any document serves as a prompt; ids 256 and above are the special tokens.
"""

import argparse
import json
import math
import os
import shutil
import tempfile

import torch

SIZES = {
    # 96.4 million parameters; 32 KiB of float32 KV per token.
    "demo": dict(layers=8, hidden=1024, heads=16, kv_heads=8, head_dim=64, inner=2880),
    # 2.4 million parameters; 4 KiB of float32 KV per token.
    "test": dict(layers=4, hidden=256, heads=4, kv_heads=2, head_dim=64, inner=512),
    # 4.1 million parameters; 9 KiB of float32 KV per token: vLLM serves no other latent on CPUs.
    "mla": dict(layers=4, hidden=256, heads=4, latent=512, rope_dim=64, head_dim=64, inner=512),
}
SPECIALS = ["<|bos|>", "<|eos|>", "<|turn|>"]
VOCAB = 256 + len(SPECIALS)
MAX_TOKENS = 8192
FORMAT = 1  # raised when the same arguments give other files


def byte_alphabet():
    """The printable character that stands for each byte in byte-level tokenizers."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    letters = {byte: chr(byte) for byte in plain}
    spare = 256
    for byte in range(256):
        if byte not in letters:
            letters[byte] = chr(spare)
            spare += 1
    return [letters[byte] for byte in range(256)]


def tokenizer_files():
    vocab = {letter: byte for byte, letter in enumerate(byte_alphabet())}
    specials = [
        {"id": 256 + i, "content": text, "single_word": False, "lstrip": False, "rstrip": False,
         "normalized": False, "special": True}
        for i, text in enumerate(SPECIALS)
    ]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False,
                  "use_regex": False}
    yield "tokenizer.json", {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": specials,
        "normalizer": None, "pre_tokenizer": byte_level, "post_processor": None,
        "decoder": byte_level,
        "model": {"type": "BPE", "dropout": None, "unk_token": None,
                  "continuing_subword_prefix": None, "end_of_word_suffix": None,
                  "fuse_unk": False, "byte_fallback": False, "vocab": vocab, "merges": []},
    }
    yield "tokenizer_config.json", {
        "tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": MAX_TOKENS,
        "bos_token": SPECIALS[0], "eos_token": SPECIALS[1], "pad_token": SPECIALS[1],
        "clean_up_tokenization_spaces": False,
        "chat_template": "{% for m in messages %}{{ m.content }}<|turn|>{% endfor %}",
    }


def kind_of(size):
    if "latent" not in size:
        return {"architectures": ["LlamaForCausalLM"], "model_type": "llama",
                "num_key_value_heads": size["kv_heads"], "head_dim": size["head_dim"]}
    # Of its mixture of experts nothing is left: all layers are dense.
    return {"architectures": ["DeepseekV2ForCausalLM"], "model_type": "deepseek_v2",
            "num_key_value_heads": size["heads"], "q_lora_rank": None,
            "kv_lora_rank": size["latent"], "qk_rope_head_dim": size["rope_dim"],
            "qk_nope_head_dim": size["head_dim"], "v_head_dim": size["head_dim"],
            "first_k_dense_replace": size["layers"], "n_routed_experts": 2, "n_shared_experts": 1,
            "num_experts_per_tok": 1, "moe_intermediate_size": size["inner"],
            # As the real ones have it: vLLM 0.32 rotates without it wrongly on CPUs.
            "rope_scaling": {"type": "yarn", "factor": 2, "mscale": 1.0, "mscale_all_dim": 1.0,
                             "original_max_position_embeddings": MAX_TOKENS // 2}}


def config_file(size):
    return {
        **kind_of(size), "vocab_size": VOCAB,
        "hidden_size": size["hidden"], "intermediate_size": size["inner"],
        "num_hidden_layers": size["layers"], "num_attention_heads": size["heads"],
        "max_position_embeddings": MAX_TOKENS, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
        "hidden_act": "silu", "tie_word_embeddings": False, "attention_bias": False,
        "mlp_bias": False, "bos_token_id": 256, "eos_token_id": 257, "torch_dtype": "float32",
    }


def weights(size, seed):
    """Matrices that preserve the norm of their inputs: outputs then depend on the whole prompt
    instead of converging to one token."""
    generator = torch.Generator().manual_seed(seed)
    hidden, inner = size["hidden"], size["inner"]

    def matrix(rows, columns, gain=1.0):
        return torch.randn(rows, columns, generator=generator) * (gain / math.sqrt(columns))

    # Queries and keys beyond unit size make attention choose; evenly spread attention would make all
    # long prompts look the same.
    def keys_and_values():
        heads, kv_heads = (size[k] * size["head_dim"] for k in ("heads", "kv_heads"))
        yield "q_proj", matrix(heads, hidden, gain=2.0)
        yield "k_proj", matrix(kv_heads, hidden, gain=2.0)
        yield "v_proj", matrix(kv_heads, hidden)
        yield "o_proj", matrix(hidden, heads)

    def latent():
        head_dim, rope_dim, width = size["head_dim"], size["rope_dim"], size["latent"]
        yield "q_proj", matrix(size["heads"] * (head_dim + rope_dim), hidden, gain=2.0)
        yield "kv_a_proj_with_mqa", matrix(width + rope_dim, hidden, gain=2.0)
        yield "kv_a_layernorm", torch.ones(width)
        yield "kv_b_proj", matrix(size["heads"] * 2 * head_dim, width)
        yield "o_proj", matrix(hidden, size["heads"] * head_dim)

    out = {"model.embed_tokens.weight": matrix(VOCAB, hidden, gain=math.sqrt(hidden)),
           "model.norm.weight": torch.ones(hidden), "lm_head.weight": matrix(VOCAB, hidden)}
    for layer in range(size["layers"]):
        name = f"model.layers.{layer}."
        for part, values in latent() if "latent" in size else keys_and_values():
            out[f"{name}self_attn.{part}.weight"] = values
        out[name + "mlp.gate_proj.weight"] = matrix(inner, hidden)
        out[name + "mlp.up_proj.weight"] = matrix(inner, hidden)
        out[name + "mlp.down_proj.weight"] = matrix(hidden, inner)
        out[name + "input_layernorm.weight"] = torch.ones(hidden)
        out[name + "post_attention_layernorm.weight"] = torch.ones(hidden)
    return out


def make_model(folder, size_name="demo", seed=7):
    """Returns `folder`, which then holds the model; an existing model is kept."""
    made_from = {"format": FORMAT, "size": size_name, "seed": seed}
    stamp = os.path.join(folder, "made_from.json")
    if os.path.exists(stamp):
        with open(stamp, encoding="utf-8") as file:
            if json.load(file) == made_from:
                return folder
    from safetensors.torch import save_file  # here: gpu.py uses the weights without it

    parent = os.path.dirname(os.path.abspath(folder))
    os.makedirs(parent, exist_ok=True)
    work = tempfile.mkdtemp(dir=parent)
    files = [("config.json", config_file(SIZES[size_name])), *tokenizer_files(),
             ("made_from.json", made_from)]
    for name, content in files:
        with open(os.path.join(work, name), "w", encoding="utf-8") as file:
            json.dump(content, file, indent=1)
    save_file(weights(SIZES[size_name], seed), os.path.join(work, "model.safetensors"),
              metadata={"format": "pt"})
    shutil.rmtree(folder, ignore_errors=True)
    os.rename(work, folder)
    return folder


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("folder")
    parser.add_argument("--size", choices=SIZES, default="demo")
    parser.add_argument("--seed", type=int, default=7)
    arguments = parser.parse_args()
    make_model(arguments.folder, arguments.size, arguments.seed)


if __name__ == "__main__":
    main()
