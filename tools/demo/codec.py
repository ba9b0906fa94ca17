#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`make run CODEC=lossless`: how many sessions a disk, and then memory, of one size holds without and with a codec.

    fill   a vLLM with Tierce computes the first prompt of every session; the store is smaller than their KV together
    again  the same prompts, the last one first, so that the store serves what it holds

The disk is compared with disk.codec=none and with the codec; `again` is asked of a new vLLM, after kill -9 of the first.
Memory is compared as memory.size alone, and divided into memory.size and memory.coded_size; `again` is asked of the same
vLLM. Each store begins empty. The KV is bfloat16, which codecs compress. The exit code is 0 only if the conditions of
`judge` hold.
"""

import argparse
import json
import shutil
import signal
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from run import (BLOCK_TOKENS, CHUNK_TOKENS, KV_BLOCKS, PROMPT_MAX, Failed, Screen, StoredBlocks,  # noqa: E402
                 choose_model, hold_folder, percentile, play, print_lines)
from workload import ByteSpeech, ChatSpeech, question_sessions  # noqa: E402

STORE_SHARE = 0.6  # of the KV of all sessions
DOCUMENT_BYTES = 900  # short, so that the sessions are many and one that is held in part changes little
ANSWER_TOKENS = 4
DISK_MEMORY = "256MiB"
HELD_SHARE = 0.9  # of a prompt: a session counts as held
GAIN_MIN = 1.4  # for bytes that are stored by the codec
STAGING_MAX = 64 << 20


def kv_bytes(model):
    """Bytes of one token in bfloat16."""
    config = json.loads((Path(model) / "config.json").read_text())
    head = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    return config["num_hidden_layers"] * 2 * config["num_key_value_heads"] * head * 2


def split_memory(total, prompt):
    """(memory.size, memory.coded_size), which use `total` bytes together with the codec's own memory.

    A chunk is copied uncompressed while more than an eighth of memory.size waits for the codec, so an eighth holds the KV of
    the longest prompt. The codec uses another eighth in each direction, beside both sizes."""
    size = 8 * prompt
    return size, total - size - 2 * min(size // 8, STAGING_MAX)


def disk_stores(total, folder, codec):
    """(name, settings) of both disks, and the least gain."""
    shared = {"disk.path": str(folder), "disk.size": str(total), "memory.size": DISK_MEMORY, "codec.load_time": "1000%"}
    return [(f"disk.codec={name}", {**shared, "disk.codec": name}) for name in ("none", codec)], GAIN_MIN


def memory_stores(total, prompt):
    """(name, settings) of both memories, and the least gain: of all the memory only memory.coded_size holds coded bytes."""
    size, coded = split_memory(total, prompt)
    gain = GAIN_MIN * coded / total
    if gain <= 1:
        raise Failed(f"--sessions is too small: of {total >> 20} MiB, the requests in progress need so much that compressed "
                     "copies gain nothing")
    names = f"{total >> 20} MiB of memory.size", f"{size >> 20} MiB, and {coded >> 20} MiB of memory.coded_size"
    stores = {"memory.size": str(total)}, {"memory.size": str(size), "memory.coded_size": str(coded)}
    return list(zip(names, stores)), gain


def summarise(name, tier, fill, again):
    """One row of the table."""
    row = dict(name=name, sessions=len(again), held=0, tokens=0, wanted=0, answers={})
    hits, stored = [], StoredBlocks()
    for request in fill:
        stored.add(request["prompt"])
    for request in again:
        report = request["tierce"] or {}
        loaded = report.get(f"tierce.{tier}_tokens", 0)
        # The text that begins all prompts is soon held by vLLM itself.
        wanted = stored.held_tokens(request["prompt"]) - report.get("tierce.local_tokens", 0)
        row["tokens"] += loaded
        row["wanted"] += wanted
        row["answers"][request["session"]] = loaded, request["answer"]
        if loaded >= HELD_SHARE * wanted:
            row["held"] += 1
            hits.append(request["ttft"])
    row["hit_p50"] = percentile(hits, 0.5) if hits else None
    row["all_mean"] = sum(r["ttft"] for r in again) / len(again)
    row["miss_p50"] = percentile([r["ttft"] for r in fill], 0.5)
    return row


def print_table(tier, rows):
    lines = [(tier, "sessions held", f"tokens from {tier}", "hit rate", "TTFT p50 of these", "computed", "mean of all")]
    for r in rows:
        hit = "-" if r["hit_p50"] is None else f"{r['hit_p50']:.3f} s"
        lines.append((r["name"], f"{r['held']} of {r['sessions']}", f"{r['tokens']:,}", f"{r['tokens'] / r['wanted']:.1%}",
                      hit, f"{r['miss_p50']:.2f} s", f"{r['all_mean']:.2f} s"))
    print_lines(lines)


def judge(tier, raw, coded, gain_min):
    """The conditions of the exit code; returns those that failed, in words."""
    failed = []
    gain = coded["tokens"] / raw["tokens"] if raw["tokens"] else 0.0
    print(f"{tier}: with the codec {gain:.2f} times the tokens; at least {gain_min:.2f} are required")
    same = [s for s, (loaded, _) in raw["answers"].items() if loaded and loaded == coded["answers"][s][0]]
    equal = sum(raw["answers"][s][1] == coded["answers"][s][1] for s in same)
    print(f"{tier}: {equal} of {len(same)} answers are equal where both loaded the same tokens")
    if not same:
        failed.append(f"{tier}: no session was loaded from both stores, so no answers can be compared")
    if equal != len(same):
        failed.append(f"{tier}: {len(same) - equal} answers differ between the stores")
    if gain < gain_min:
        failed.append(f"{tier}: {gain:.2f} times the tokens, less than {gain_min:.2f}")
    return failed


def play_disk(screen, root, job, work, number):
    """(fill, again), each in an engine of its own."""
    fill = play(screen, root, {**job, "log": str(work / f"vllm-codec-disk-{number}-fill.log")}, ["fill"])
    screen.say("killed the engine with SIGKILL")
    again = play(screen, root, {**job, "log": str(work / f"vllm-codec-disk-{number}-again.log")}, ["again"])
    return fill["fill"], again["again"]


def play_memory(screen, root, job, work, number):
    """(fill, again) in one engine, whose memory is the store."""
    passes = play(screen, root, {**job, "log": str(work / f"vllm-codec-memory-{number}.log")}, ["fill", "again"])
    return passes["fill"], passes["again"]


def compare(screen, root, job, work, tier, stores, gain_min):
    """Plays both stores of a tier, and prints their table; the conditions that failed."""
    folder, rows = work / "store", []
    for number, (name, store) in enumerate(stores):
        shutil.rmtree(folder, ignore_errors=True)
        screen.say(f"{tier}: {name}")
        played = {"disk": play_disk, "memory": play_memory}[tier]
        try:
            passes = played(screen, root, {**job, "store": {**store, "chunk.tokens": CHUNK_TOKENS}}, work, number)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        rows.append(summarise(name, tier, *passes))
    print()
    print_table(tier, rows)
    print()
    return judge(tier, *rows, gain_min)


def run(root, arguments):
    screen, work = Screen(), arguments.work
    kind, model = choose_model(screen, arguments.model, work)
    speech = ByteSpeech() if kind == "random" else ChatSpeech(model)
    speech.document_bytes = DOCUMENT_BYTES
    sessions = [turns[:1] for turns in question_sessions(root, speech, arguments.sessions)]
    lengths = [len(turns[0]) // BLOCK_TOKENS * BLOCK_TOKENS for turns in sessions]  # whole blocks are stored
    kv, token = sum(lengths) * kv_bytes(model), kv_bytes(model)
    total = max(int(kv * STORE_SHARE), 1 << 20)
    screen.say(f"{len(sessions)} sessions, {sum(lengths):,} tokens with {kv / 2**20:,.0f} MiB of KV in bfloat16, "
               f"{kind} weights; a disk, and a memory, of {total / 2**20:,.0f} MiB")
    job = dict(model=model, dtype="bfloat16", sessions=sessions, order=[(s, 0) for s in range(len(sessions))],
               block_tokens=BLOCK_TOKENS, prompt_max=PROMPT_MAX, kv_blocks=KV_BLOCKS[kind], answer_tokens=ANSWER_TOKENS,
               recall="again")
    tiers, failed = [arguments.tier] if arguments.tier else ["disk", "memory"], []
    stores = {tier: disk_stores(total, work / "store", arguments.codec) if tier == "disk" else
              memory_stores(total, max(lengths) * token) for tier in tiers}
    for tier in tiers:
        failed += compare(screen, root, job, work, tier, *stores[tier])
    return failed


def main():
    root = Path(__file__).resolve().parents[2]
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--codec", default="lossless", choices=["lossless"])
    parser.add_argument("--tier", choices=["disk", "memory"], help="only this comparison")
    parser.add_argument("--sessions", type=int, default=128)
    parser.add_argument("--model", choices=["trained", "random"], help="as in run.py")
    parser.add_argument("--work", type=Path, default=root / "run", help="model, store and logs")
    arguments = parser.parse_args()
    if arguments.sessions < 4:
        raise Failed(f"--sessions {arguments.sessions}: at least 4, because the store holds a part of them")
    with hold_folder(arguments.work):
        failed = run(root, arguments)
    for reason in failed:
        print(f"FAILED {reason}")
    print("FAILED" if failed else "all conditions hold")
    return 1 if failed else 0


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("make run: ended by SIGTERM"))
    try:
        sys.exit(main())
    except Failed as failure:
        sys.exit(f"make run: {failure}")
    except KeyboardInterrupt:
        sys.exit("make run: interrupted; the engine was killed")
