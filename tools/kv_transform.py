#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""An experiment: transform coding of the KV of SmolLM2-135M-Instruct. No codec of Tierce does this.

    kv_transform.py [--tokens N] [--next N] --model FOLDER [STEP ...]

The rotation of keys by their positions is undone. Keys and values of each head are turned to the
axes of a principal component analysis, which was computed from the two other texts, and divided by
a step: STEP times the standard deviation of the layer's keys or values. The first four tokens stay
as they are. No bytes are written: the size is the information of the whole numbers that remain
(order 0, a table for each axis), plus the steps and either of these:

    ratio           the tables of this text, in the coded bytes: the least number, how many there
                    are up to the greatest, and how often each occurs
    of the model    tables of the two other texts, made with the steps of this text, and not counted;
                    a number that they do not have costs an escape and 16 bits: a bound for tables
                    that would belong to a model, like the axes
    without tables  the tables of this text, as if they needed no bytes: a bound

Axes are not counted. Other columns: as of kv_quality.py.
"""

import argparse
import math
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tools"))

import kv_samples  # noqa: E402
from kv_quality import compare, continued, perplexity  # noqa: E402
from kv_samples import BLOCK_TOKENS, TEXTS, Short, Unavailable, make_trained_model  # noqa: E402

SINK_TOKENS = 4
ELEMENT_BITS = 16  # of bf16
NUMBER_BITS = 16  # of a number that is written as it is
SCALE_BITS = 32  # of a step
STEPS = [0.1, 0.2, 0.3, 0.4, 0.6]


def by_token(kv):
    """[layer][K, V][head][token][channel] of a payload, and back."""
    layers, blocks, kinds, tokens, heads, channels = kv.shape
    return kv.permute(0, 2, 4, 1, 3, 5).reshape(layers, kinds, heads, blocks * tokens, channels)


def by_block(values):
    layers, kinds, heads, tokens, channels = values.shape
    blocks = values.reshape(layers, kinds, heads, tokens // BLOCK_TOKENS, BLOCK_TOKENS, channels)
    return blocks.permute(0, 3, 1, 4, 2, 5).contiguous()


def rotated(torch, model, values, direction):
    """The same with the keys rotated by their positions (direction 1) or back (-1)."""
    tokens = values.shape[3]
    cos, sin = model.model.rotary_emb(values, torch.arange(tokens)[None])
    keys = values[:, 0]
    half = keys.shape[-1] // 2
    turned = torch.cat([-keys[..., half:], keys[..., :half]], dim=-1)
    return torch.stack([keys * cos + direction * turned * sin, values[:, 1]], dim=1)


def axes_of(torch, samples):
    """The mean of each head, and the axes of its principal components: [...][channel][axis]."""
    mean = samples.mean(-2, keepdim=True)
    centred = samples - mean
    return mean, torch.linalg.eigh(centred.transpose(-1, -2) @ centred / samples.shape[-2])[1]


def sizes(torch, numbers, known):
    """Bits of whole numbers [axis][token]: their information with a table for each axis, these tables, and their
    information with tables of the numbers `known` [axis][token] and an escape."""
    information = tables = foreign = 0.0
    for axis, others in zip(numbers.long(), known.long()):
        least = min(int(axis.min()), int(others.min()))
        length = max(int(axis.max()), int(others.max())) - least + 1
        counts, seen = (torch.bincount(side - least, minlength=length).double() for side in (axis, others))
        used = counts > 0
        total = counts.sum()
        information += float((counts[used] * (total / counts[used]).log2()).sum())
        span = int(axis.max() - axis.min()) + 1
        tables += 2 * NUMBER_BITS + span * math.ceil(math.log2(float(total) + 1))
        foreign += float((counts[used] * ((seen.sum() + 1) / seen[used].clamp(min=1)).log2()).sum())
        foreign += NUMBER_BITS * float(counts[seen == 0].sum())
    return information, tables, foreign


def transform(torch, model, kv, axes, others, step):
    """The payload after quantization on these axes, and its ratios. `others`: samples of the other texts."""
    mean, basis = axes
    values = rotated(torch, model, by_token(kv.float()), -1)
    coefficients = (values - mean) @ basis
    scale = step * coefficients.std(dim=(2, 3, 4), keepdim=True)
    numbers = (coefficients / scale).round()
    coded = numbers[..., SINK_TOKENS:, :].transpose(-1, -2).flatten(0, 3)
    known = ((others - mean) @ basis / scale).round().transpose(-1, -2).flatten(0, 3)
    information, tables, foreign = sizes(torch, coded, known)
    fixed = ELEMENT_BITS * (kv.numel() - coded.numel()) + SCALE_BITS * scale.numel()
    restored = rotated(torch, model, numbers * scale @ basis.transpose(-1, -2) + mean, 1)
    restored = by_block(restored).bfloat16()
    restored[:, 0, :, :SINK_TOKENS] = kv[:, 0, :, :SINK_TOKENS]
    return restored, [ELEMENT_BITS * kv.numel() / (bits + fixed) for bits in (information + tables, foreign, information)]


def measure(arguments):
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = make_trained_model(arguments.model)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    names = [*TEXTS, "chat"]
    ids = {name: kv_samples.prompt(tokenizer, name, arguments.tokens + arguments.next) for name in names}
    kvs = {name: kv_samples.payload(torch, model, ids[name][:arguments.tokens]).bfloat16() for name in names}
    print("| text | step | ratio | of the model | without tables | distance | KL | agreement | perplexity | of the KV itself |")
    print("|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|")
    for name in names:
        others = [rotated(torch, model, by_token(kvs[other].float()), -1)[..., SINK_TOKENS:, :]
                  for other in names if other != name]
        samples = torch.cat(others, dim=-2)
        axes = axes_of(torch, samples)
        after = ids[name][arguments.tokens:]
        exact = continued(torch, model, kvs[name], after)
        for step in arguments.steps or STEPS:
            restored, ratios = transform(torch, model, kvs[name], axes, samples, step)
            result = compare(torch, exact, continued(torch, model, restored, after), after)
            distance, kl, agreement, loss = result
            columns = " | ".join(f"{ratio:.2f}" for ratio in ratios)
            print(f"| {name} | {step} | {columns} | {distance:.4f} | {kl:.4f} | {agreement:.1f} % "
                  f"| {loss:.3f} | {perplexity(exact[0], after):.3f} |", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--tokens", type=int, default=1024, help="whose KV is coded, a multiple of 16")
    parser.add_argument("--next", type=int, default=256, help="tokens that follow, at least 2")
    parser.add_argument("--model", type=Path, required=True, help="a checkpoint that is there or is to be made")
    parser.add_argument("steps", type=float, nargs="*", metavar="STEP", help="above 0")
    arguments = parser.parse_args()
    if arguments.tokens < BLOCK_TOKENS or arguments.tokens % BLOCK_TOKENS:
        parser.error(f"--tokens is {arguments.tokens}; it must be a multiple of {BLOCK_TOKENS}")
    if arguments.next < 2:
        parser.error(f"--next is {arguments.next}; it must be at least 2")
    if any(step <= 0 for step in arguments.steps):
        parser.error(f"a step is {min(arguments.steps)}; it must be above 0")
    measure(arguments)


if __name__ == "__main__":
    try:
        main()
    except (Unavailable, Short) as error:
        sys.exit(f"kv_transform.py: {error}")
