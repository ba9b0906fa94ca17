#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures cost and benefit of chunk.tail: conversations of random tokens in a real engine,
without and with tails. Requires the extension (`make build`), and python/ on PYTHONPATH.

60 conversations take turns: a system prompt of 700 tokens that all share, 50 to 3,000 tokens of the
first question, 20 to 300 of each later one, answers of 30 to 500 tokens, 1 to 8 questions."""

import ctypes
import random
import sys
import tempfile
from array import array

from tierce import _core

BLOCK, CHUNK_BLOCKS, LAYERS, CELL, BLOCKS = 16, 16, 2, 4096, 1024
SESSIONS = 60
NAMESPACE = {"weights": "00", "model": "{}", "kv_dtype": "bf16", "quantization": "", "layout": "bench",
             "layer_count": LAYERS, "cell_bytes": [CELL] * LAYERS, "block_tokens": BLOCK,
             "chunk_blocks": CHUNK_BLOCKS, "algo": "sha256"}


def conversations(seed):
    """The prompts, in the order in which they are asked."""
    rng = random.Random(seed)

    def text(least, most):
        return [rng.randrange(50000) for _ in range(rng.randint(least, most))]

    system = text(700, 700)
    said, turns = [list(system) for _ in range(SESSIONS)], [rng.randint(1, 8) for _ in range(SESSIONS)]
    for turn in range(8):
        for session in range(SESSIONS):
            if turn < turns[session]:
                said[session] += text(20, 300) if turn else text(50, 3000)
                yield list(said[session])
                said[session] += text(30, 500)


def play(tails, seed, folder):
    engine = _core.Engine.open(None, {
        "memory.size": "64MiB", "disk.path": folder, "disk.size": "4GiB", "disk.queue": "1GiB",
        "cost.check": "false", "control.socket": ""})
    view = engine.view(NAMESPACE)
    memory = [bytearray(CELL * BLOCKS) for _ in range(LAYERS)]
    view.set_paged([ctypes.addressof(ctypes.c_char.from_buffer(m)) for m in memory], [CELL] * LAYERS, BLOCKS)
    asked = found = 0
    for session, prompt in enumerate(conversations(seed), 1):
        blocks, limit = len(prompt) // BLOCK, (len(prompt) - 1) // BLOCK
        chain = view.chain()
        chain.append(array("i", prompt[:blocks * BLOCK]))
        hit, _ = view.lookup(chain, 0, limit, 0, session)
        asked, found = asked + len(prompt), found + hit * BLOCK
        whole = blocks // CHUNK_BLOCKS * CHUNK_BLOCKS
        tail = tails and blocks > whole and hit < limit
        end = blocks if tail else whole
        store = view.store_begin(chain, end, array("i", range(end)), tail, session) if end else None
        if store is not None:
            for layer in range(LAYERS):
                store.layer(layer)
            store.end()
        if not engine.flush(60000):
            sys.exit("error: the stored chunks were not durable within 60 s")
    stats = engine.stats()
    del view, chain, store
    engine.close()
    return asked, found, stats["bytes_stored"], stats["disk_bytes_now"]


def main():
    print("seed  computed without  computed with  stored, with/without  held on disk, with/without")
    for seed in (1, 2, 3):
        with tempfile.TemporaryDirectory() as folder:
            asked, *plain = play(False, seed, f"{folder}/plain")
            _, *tails = play(True, seed, f"{folder}/tails")
        print(f"{seed:4}  {asked - plain[0]:16,}  {asked - tails[0]:13,}  {tails[1] / plain[1]:20.3f}"
              f"  {tails[2] / plain[2]:26.3f}")


if __name__ == "__main__":
    main()
