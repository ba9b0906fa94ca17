#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`make run CODEC=lossless`: how many sessions a disk of one size holds without and with a codec.

    fill   a vLLM with Tierce computes the first prompt of every session; the disk is smaller than their KV together
    again  after kill -9, a new vLLM asks the same prompts, the last one first, so that the disk serves what it holds

Both are played with disk.codec=none and with the codec, on new folders of the same size. The KV is bfloat16, which codecs
compress. The exit code is 0 only if the conditions of `judge` hold.
"""

import argparse
import json
import shutil
import signal
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from run import (ANSWER_TOKENS, BLOCK_TOKENS, CHUNK_TOKENS, KV_BLOCKS, PROMPT_MAX, Failed, Screen,  # noqa: E402
                 StoredBlocks, choose_model, hold_folder, percentile, play, print_lines)
from workload import ByteSpeech, ChatSpeech, question_sessions  # noqa: E402

DISK_SHARE = 0.5  # of the KV of all sessions
MEMORY = "256MiB"
HELD_SHARE = 0.9  # of a prompt: a session counts as held
GAIN_MIN = 1.2


def kv_bytes(model):
    """Bytes of one token in bfloat16."""
    config = json.loads((Path(model) / "config.json").read_text())
    head = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    return config["num_hidden_layers"] * 2 * config["num_key_value_heads"] * head * 2


def summarise(codec, fill, again):
    """One row of the table."""
    row = dict(codec=codec, sessions=len(again), held=0, tokens=0, wanted=0, answers={})
    hits, stored = [], StoredBlocks()
    for request in fill:
        stored.add(request["prompt"])
    for request in again:
        loaded = (request["tierce"] or {}).get("tierce.disk_tokens", 0)
        wanted = stored.held_tokens(request["prompt"])
        row["tokens"] += loaded
        row["wanted"] += wanted
        row["answers"][request["session"]] = loaded, request["answer"]
        if loaded >= HELD_SHARE * wanted:
            row["held"] += 1
            hits.append(request["ttft"])
    row["hit_p50"] = percentile(hits, 0.5) if hits else None
    row["all_p50"] = percentile([r["ttft"] for r in again], 0.5)
    row["all_mean"] = sum(r["ttft"] for r in again) / len(again)
    row["miss_p50"] = percentile([r["ttft"] for r in fill], 0.5)
    return row


def print_table(rows):
    lines = [("disk.codec", "sessions held", "tokens from disk", "hit rate", "TTFT p50 of these", "computed", "mean of all")]
    for r in rows:
        hit = "-" if r["hit_p50"] is None else f"{r['hit_p50']:.3f} s"
        lines.append((r["codec"], f"{r['held']} of {r['sessions']}", f"{r['tokens']:,}", f"{r['tokens'] / r['wanted']:.1%}",
                      hit, f"{r['miss_p50']:.2f} s", f"{r['all_mean']:.2f} s"))
    print_lines(lines)


def judge(raw, coded):
    """The conditions of the exit code; returns those that failed, in words."""
    failed = []
    gain = coded["tokens"] / raw["tokens"] if raw["tokens"] else 0.0
    print(f"the disk holds {gain:.2f} times the tokens with {coded['codec']}")
    same = [s for s, (loaded, _) in raw["answers"].items() if loaded and loaded == coded["answers"][s][0]]
    equal = sum(raw["answers"][s][1] == coded["answers"][s][1] for s in same)
    print(f"{equal} of {len(same)} answers are equal where both loaded the same tokens")
    if not same:
        failed.append("no session was loaded from both disks, so no answers can be compared")
    if equal != len(same):
        failed.append(f"{len(same) - equal} answers differ between the disks")
    if gain < GAIN_MIN:
        failed.append(f"{coded['codec']}: {gain:.2f} times the tokens, less than {GAIN_MIN}")
    return failed


def play_codec(screen, root, work, job, store, codec):
    """(fill, again) with one codec."""
    folder = work / "store"
    shutil.rmtree(folder, ignore_errors=True)
    job = {**job, "store": {**store, "disk.path": str(folder), "disk.codec": codec}}
    try:
        fill = play(screen, root, {**job, "log": str(work / f"vllm-codec-{codec}-fill.log")}, ["fill"])["fill"]
        screen.say(f"{codec}: killed the engine with SIGKILL")
        again = play(screen, root, {**job, "order": job["order"][::-1], "log": str(work / f"vllm-codec-{codec}-again.log")}, ["again"])
        return fill, again["again"]
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def run(root, arguments):
    screen, work = Screen(), arguments.work
    kind, model = choose_model(screen, arguments.model, work)
    speech = ByteSpeech() if kind == "random" else ChatSpeech(model)
    sessions = [turns[:1] for turns in question_sessions(root, speech, arguments.sessions)]
    tokens = sum(len(turns[0]) for turns in sessions)
    total = tokens * kv_bytes(model)
    disk = max(int(total * DISK_SHARE), 1 << 20)
    screen.say(f"{len(sessions)} sessions, {tokens:,} tokens with {total / 2**20:,.0f} MiB of KV in bfloat16, "
               f"{'trained' if kind == 'trained' else 'random'} weights; a disk of {disk / 2**20:,.0f} MiB")
    job = dict(model=model, dtype="bfloat16", sessions=sessions, order=[(s, 0) for s in range(len(sessions))],
               block_tokens=BLOCK_TOKENS, prompt_max=PROMPT_MAX, kv_blocks=KV_BLOCKS[kind], answer_tokens=ANSWER_TOKENS[kind])
    store = {"disk.size": str(disk), "memory.size": MEMORY, "chunk.tokens": CHUNK_TOKENS}
    rows = [summarise(codec, *play_codec(screen, root, work, job, store, codec)) for codec in ("none", arguments.codec)]
    print()
    print_table(rows)
    print()
    return judge(*rows)


def main():
    root = Path(__file__).resolve().parents[2]
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--codec", default="lossless", choices=["lossless"])
    parser.add_argument("--sessions", type=int, default=16)
    parser.add_argument("--model", choices=["trained", "random"], help="as in run.py")
    parser.add_argument("--work", type=Path, default=root / "run", help="model, store and logs")
    arguments = parser.parse_args()
    if arguments.sessions < 4:
        raise Failed(f"--sessions {arguments.sessions}: at least 4, because the disk holds half of them")
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
