#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How lossy codecs change the answers of a trained model, SmolLM2-135M-Instruct, on three texts.

    kv_quality.py [--tokens N] [--next N] [--model FOLDER] [--restore PROGRAM] [CODEC ...]

The model computes the KV of the first --tokens tokens of each text. The KV, in bf16, is encoded and
decoded by each codec, in chunks of 256 tokens, and the model continues with the next tokens of the
text. Its logits are compared with those that follow from the KV itself:

    ratio       bytes of the KV, by the coded bytes
    distance    length of the difference of the logits by that of the logits, mean of the tokens
    KL          Kullback-Leibler divergence of the probabilities, nats, mean of the tokens
    agreement   tokens whose most probable successor is the same, percent
    perplexity  of the next tokens of the text, and of the KV itself

PROGRAM is codec_restore, a program of the tests (target test_programs). Without CODEC: all.
"""

import argparse
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tools"))

import kv_samples  # noqa: E402
from kv_samples import BLOCK_TOKENS, TEXTS, Short, Unavailable, make_trained_model  # noqa: E402

CODECS = ["lossless", "int8", "fp8", "int4", "cachegen"]
CHUNK_TOKENS = 256
ELEMENT_BYTES = 2  # of bf16


def restore(torch, program, codec, kv):
    """The payload [layer][block][K, V][token][head][channel] after the codec, and its coded bytes."""
    layers, blocks, _, tokens, heads, channels = kv.shape
    row = heads * channels * ELEMENT_BYTES
    part = tokens * row
    run = 2 * part * min(blocks, CHUNK_TOKENS // BLOCK_TOKENS)
    command = [program, codec, "bf16", layers, run, part, row]
    done = subprocess.run([str(word) for word in command], input=kv.view(torch.uint8).numpy().tobytes(),
                          capture_output=True)
    if done.returncode != 0:
        sys.exit(f"kv_quality.py: {' '.join(map(str, command))}: {done.stderr.decode().strip()}")
    restored = torch.frombuffer(bytearray(done.stdout), dtype=torch.bfloat16).reshape(kv.shape)
    return restored, int(done.stderr.split()[-1])


def cache_of(kv, config):
    """A cache of transformers with the values of a payload."""
    from transformers import DynamicCache

    cache = DynamicCache(config=config)
    for layer, blocks in enumerate(kv.float()):
        pair = blocks.permute(1, 3, 0, 2, 4).flatten(2, 3)  # [2][head][token][channel]
        cache.update(pair[0][None], pair[1][None], layer)
    return cache


def continued(torch, model, kv, ids):
    """The logarithms of the probabilities after each of the tokens, and the logits."""
    with torch.no_grad():
        logits = model(ids[None], past_key_values=cache_of(kv, model.config), use_cache=True).logits[0].float()
    return torch.log_softmax(logits, dim=-1), logits


def perplexity(logs, ids):
    return float((-logs[:-1].gather(1, ids[1:, None]).mean()).exp())


def compare(torch, exact, other, ids):
    (exact_logs, exact_logits), (logs, logits) = exact, other
    distance = ((logits - exact_logits).norm(dim=-1) / exact_logits.norm(dim=-1)).mean()
    kl = (exact_logs.exp() * (exact_logs - logs)).sum(-1).mean()
    agreement = (logs.argmax(-1) == exact_logs.argmax(-1)).float().mean()
    return float(distance), float(kl), 100 * float(agreement), perplexity(logs, ids)


def measure(arguments, model_folder):
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(model_folder, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(model_folder)
    print("| text | codec | ratio | distance | KL | agreement | perplexity | of the KV itself |")
    print("|---|---|---:|---:|---:|---:|---:|---:|")
    for name in [*TEXTS, "chat"]:
        ids = kv_samples.prompt(tokenizer, name, arguments.tokens + arguments.next)
        kv = kv_samples.payload(torch, model, ids[:arguments.tokens]).bfloat16()
        after = ids[arguments.tokens:]
        exact = continued(torch, model, kv, after)
        for codec in arguments.codecs or CODECS:
            restored, coded = restore(torch, arguments.restore, codec, kv)
            distance, kl, agreement, loss = compare(torch, exact, continued(torch, model, restored, after), after)
            ratio = kv.numel() * ELEMENT_BYTES / coded
            print(f"| {name} | {codec} | {ratio:.2f} | {distance:.4f} | {kl:.4f} | {agreement:.1f} % "
                  f"| {loss:.3f} | {perplexity(exact[0], after):.3f} |", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--tokens", type=int, default=1024, help="whose KV is coded, a multiple of 256")
    parser.add_argument("--next", type=int, default=256, help="tokens that follow, at least 2")
    parser.add_argument("--model", type=Path, required=True, help="a checkpoint that is there or is to be made")
    parser.add_argument("--restore", type=Path, default=ROOT / "build" / "dev" / "bin" / "codec_restore")
    parser.add_argument("codecs", nargs="*", metavar="CODEC")
    arguments = parser.parse_args()
    if arguments.tokens < CHUNK_TOKENS or arguments.tokens % CHUNK_TOKENS:
        parser.error(f"--tokens is {arguments.tokens}; it must be a multiple of {CHUNK_TOKENS}")
    if arguments.next < 2:
        parser.error(f"--next is {arguments.next}; it must be at least 2")
    if not arguments.restore.exists():
        parser.error(f"{arguments.restore} does not exist; build the target test_programs, or name codec_restore")
    measure(arguments, make_trained_model(arguments.model))


if __name__ == "__main__":
    try:
        main()
    except (Unavailable, Short) as error:
        sys.exit(f"kv_quality.py: {error}")
