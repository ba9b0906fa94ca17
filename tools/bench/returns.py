#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures how long conversations that return wait for their KV, with and without prefetch.ahead.

    PYTHONPATH=python tools/bench/returns.py [--folder FOLDER] [--conversations 12] [--gap 6] [--jitter 0.1] [--turns 9]

Each conversation returns after --gap seconds, or that share --jitter earlier or later, with one more chunk. Each turn loads
its prompt from three stores, in another order each time: one whose memory holds everything, and two whose memory holds a
third, without and with prefetch.ahead. Nobody gives hints: the gaps are learned, so only turns after the fourth count.
--folder names the disk (default: the current folder); its page cache is bypassed.
"""

import argparse
import heapq
import random
import statistics
import tempfile
import time

import numpy

import tierce

CHUNK_TOKENS, BLOCK_TOKENS, LAYERS = 256, 16, 4
CHUNKS, CELL = 32, 32768  # 2 MiB a chunk
LEARNED = 4


class Kind:
    def __init__(self, name, memory_mib, folder, blocks, ahead):
        self.store = tierce.open({"memory.size": f"{memory_mib}MiB", "disk.path": folder, "disk.size": "8GiB",
                                  "disk.queue": "1GiB", "timeout.store": "10s", "prefetch.ahead": ahead,
                                  "control.socket": ""})
        self.arrays = [numpy.zeros((blocks, CELL), numpy.uint8) for _ in range(LAYERS)]
        self.cache = self.store.cache(self.arrays, model="returns", weights="00", layout="bench/1",
                                      block_tokens=BLOCK_TOKENS, chunk_tokens=CHUNK_TOKENS)
        self.name, self.times = name, []

    def turn(self, tokens, blocks, counts):
        start = time.perf_counter()
        loaded = self.cache.load(tokens[:-CHUNK_TOKENS], blocks[:-CHUNK_TOKENS // BLOCK_TOKENS])
        took = time.perf_counter() - start
        assert loaded.tokens >= len(tokens) - CHUNK_TOKENS, (self.name, loaded.tokens, len(tokens))
        self.cache.store(tokens, blocks)
        if counts:
            self.times.append(took * 1e3)


def run(args, folders):
    chunk_mib = CELL * LAYERS * CHUNK_TOKENS // BLOCK_TOKENS >> 20
    all_mib = args.conversations * (CHUNKS + args.turns) * chunk_mib
    blocks = (CHUNKS + args.turns + 1) * CHUNK_TOKENS // BLOCK_TOKENS
    ids = list(range(blocks))
    kinds = [Kind("all in memory", int(all_mib * 1.2), folders[0], blocks, "0"),
             Kind("a third, off", all_mib // 3, folders[1], blocks, "0"),
             Kind("a third, prefetch.ahead", all_mib // 3, folders[2], blocks, args.ahead)]
    draw = random.Random(1)
    due = []
    for number in range(args.conversations):
        for kind in kinds:
            kind.cache.store(prompt(number, CHUNKS), ids)
            kind.store.durable(60)
        heapq.heappush(due, (time.monotonic() + args.gap * (1 + number / args.conversations), number, 1))
    while due:
        at, number, turn = heapq.heappop(due)
        time.sleep(max(0, at - time.monotonic()))
        tokens = prompt(number, CHUNKS + turn)
        for kind in draw.sample(kinds, len(kinds)):
            kind.turn(tokens, ids, turn > LEARNED)
        if turn < args.turns:
            gap = args.gap * (1 + draw.uniform(-args.jitter, args.jitter))
            heapq.heappush(due, (time.monotonic() + gap, number, turn + 1))
    print(f"{'memory':26} {'turns':>5} {'p50 ms':>8} {'p90 ms':>8} {'mean ms':>8}")
    for kind in kinds:
        t = sorted(kind.times)
        print(f"{kind.name:26} {len(t):5} {statistics.median(t):8.2f} {t[len(t) * 9 // 10]:8.2f} {statistics.mean(t):8.2f}")
    stats = kinds[2].store.stats()
    used, unused = stats["ahead_used_chunks"], stats["ahead_unused_chunks"]
    print(f"read ahead: {stats['ahead_chunks']} chunks, used {used}, unused {unused}, late {stats['ahead_late_chunks']}; "
          f"used share {used / max(1, used + unused):.0%}; now {stats['ahead_bytes_per_second_now'] >> 20} MiB/s")
    for kind in kinds:
        s = kind.store.stats()
        print(f"{kind.name:26} blocks from memory {s['blocks_loaded_memory']}, disk {s['blocks_loaded_disk']}")
        kind.cache.close()
        kind.store.close()


def prompt(number, chunks):
    return [number * 1000003 + i for i in range(chunks * CHUNK_TOKENS)]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", default=".")
    parser.add_argument("--conversations", type=int, default=12)
    parser.add_argument("--gap", type=float, default=6)
    parser.add_argument("--jitter", type=float, default=0.1)
    parser.add_argument("--turns", type=int, default=9)
    parser.add_argument("--ahead", default="512MiB")
    args = parser.parse_args()
    folders = [tempfile.TemporaryDirectory(prefix="tierce-returns-", dir=args.folder) for _ in range(3)]
    try:
        run(args, [folder.name for folder in folders])
    finally:
        for folder in folders:
            folder.cleanup()


if __name__ == "__main__":
    main()
