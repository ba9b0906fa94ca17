#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Time to the first token of blended prompts in vLLM on this machine's CPU, beside the full computation and exact prefixes.

    blend_ttft.py [--tokens N] [--answer N] [--share PERCENT] [--text NAME]... --model FOLDER --quality FILE

--quality is a file of tools/kv_blend.py. The prompts are those of that tool, with four documents of --tokens tokens in four
orders for each text. The documents were stored after the lead before. Columns, means of the prompts:

    prompt, blended      tokens, and those that were blended: documents after the first one, and separators
    TTFT                 seconds from the request to its first token, with one thread: of the full computation, with the exact
                         prefix loaded, and blended
    CPU                  processor seconds of the process for the same: less disturbed by other programs
    ratio                of the processor seconds: full and prefix by blended
    same first           prompts whose first token is the same as that of the full computation
    same beginning       leading tokens of the answer that are the same, of --answer tokens
"""

import argparse
import sys
from pathlib import Path

from vllm_asker import BLOCK_TOKENS, ROOT, Asker

from kv_blend import DOCUMENTS, LEAD, QUESTION, SEPARATOR


def start(arguments):
    store = {"memory.size": "2GiB", "disk.path": "", "cost.check": "false", "blend.enabled": "true",
             "blend.quality": str(arguments.quality), "blend.share": f"{arguments.share:g}%", "blend.agreement": "0%"}
    return Asker(arguments.model, "float32", 4 * (arguments.tokens + 64) + 512, store)


def prompts_of(tokenizer, paths, tokens):
    """The lead, the documents, and prompts with their segments."""
    lead, separator, question = (tokenizer.encode(text, add_special_tokens=False) for text in (LEAD, SEPARATOR, QUESTION))
    lead += separator
    documents = [tokenizer.encode((ROOT / path).read_text(), add_special_tokens=False)[:tokens] for path in paths]
    prompts = []
    for first in range(len(documents)):
        prompt, segments = list(lead), []
        for document in documents[first:] + documents[:first]:
            prompt += separator if segments else []
            segments.append([len(prompt), len(prompt) + len(document)])
            prompt += document
        prompts.append((prompt + question, segments))
    return lead, documents, prompts


def same_beginning(a, b):
    return next((at for at, (x, y) in enumerate(zip(a, b)) if x != y), len(a))


def measure(asker, lead, documents, prompts, count):
    """The row of a text."""
    for document in documents:
        asker.ask(lead + document, 1)
    rows = []
    for prompt, segments in prompts:
        full, *full_s, _ = asker.ask(prompt, count, skip_load=True, skip_save=True)
        _, *prefix_s, _ = asker.ask(prompt, 1, skip_save=True)
        blended, *blended_s, report = asker.ask(prompt, count, segments=segments)
        reused = report.get("tierce.blended_tokens", 0)
        if reused == 0:
            sys.exit("blend_ttft.py: nothing was blended; vLLM's log names the reason")
        begins = same_beginning(full, blended)
        rows.append((len(prompt), reused, *[each[0] for each in (full_s, prefix_s, blended_s)],
                     *[each[1] for each in (full_s, prefix_s, blended_s)], begins > 0, begins))
    return [sum(column) / len(rows) for column in zip(*rows)]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--tokens", type=int, default=512, help="of each document, at least 64")
    parser.add_argument("--answer", type=int, default=16, help="tokens to generate")
    parser.add_argument("--share", type=float, default=15, help="percent, as in the file of --quality")
    parser.add_argument("--text", choices=list(DOCUMENTS), action="append", help="one of the texts; several times")
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--quality", type=Path, required=True)
    arguments = parser.parse_args()
    if arguments.tokens < 2 * BLOCK_TOKENS:
        parser.error(f"--tokens is {arguments.tokens}; it must be at least {2 * BLOCK_TOKENS}")
    from transformers import AutoTokenizer

    asker, tokenizer = start(arguments), AutoTokenizer.from_pretrained(arguments.model)
    asker.ask(list(range(1000, 1064)), 2)  # what the first request prepares is not measured
    print("| text | recomputed | prompt | blended | TTFT full, prefix, blended | CPU full, prefix, blended | ratio | same first | "
          "same beginning |")
    print("|---|---:|---:|---:|---:|---:|---:|---:|---:|")
    for name, paths in DOCUMENTS.items():
        if arguments.text and name not in arguments.text:
            continue
        lead, documents, prompts = prompts_of(tokenizer, paths, arguments.tokens)
        row = measure(asker, lead, documents, prompts, arguments.answer)
        times = [", ".join(f"{each:.2f}" for each in row[at:at + 3]) for at in (2, 5)]
        print(f"| {name} | {arguments.share:g} % | {row[0]:.0f} | {row[1]:.0f} | {times[0]} s | {times[1]} s | {row[5] / row[7]:.1f}, "
              f"{row[6] / row[7]:.1f} | {row[8]:.0%} | {row[9]:.1f} of {arguments.answer} |", flush=True)


if __name__ == "__main__":
    main()
