# SPDX-License-Identifier: Apache-2.0
"""A store in a separate process, which publishes KV events and may be killed at any time. Its parameters are in argv as JSON; it
reads commands, and writes a line for each, and one for each STEP changes."""

import ctypes
import json
import random
import sys
from array import array

from tierce import _core as core

PROMPTS, DEPTH, CHUNK_TOKENS, CELL, STEP = 400, 32, 4, 1024, 5000


def prompt_tokens(prompt):
    return array("i", (prompt * DEPTH + depth for depth in range(DEPTH) for _ in range(CHUNK_TOKENS)))


class Worker:
    def __init__(self, parameters):
        self.engine = core.Engine.open(None, parameters)
        self.memory, self.blocks = ctypes.create_string_buffer(DEPTH * CELL), array("i", range(DEPTH))
        self.view = self.engine.view({"weights": "aa", "model": "m", "kv_dtype": "float32", "quantization": "", "layout": "l", "layer_count": 1,
                                      "cell_bytes": [CELL], "block_tokens": CHUNK_TOKENS, "chunk_blocks": 1, "algo": "sha256"})
        self.view.set_paged([ctypes.addressof(self.memory)], [CELL], DEPTH)
        self.chains = []
        for prompt in range(PROMPTS):
            self.chains.append(self.view.chain())
            self.chains[-1].append(prompt_tokens(prompt))

    def store(self, prompt, depth):
        store = self.view.store_begin(self.chains[prompt], depth, self.blocks)
        if store is not None:
            store.layer(0)
            store.end()

    def changes(self):
        """Chunks that came to a tier, or left it."""
        stats = self.engine.stats()
        tiers = sum(stats[f"{tier}_evictions"] * 2 + stats[f"{tier}_chunks_now"] for tier in ("memory", "disk") if f"{tier}_evictions" in stats)
        return tiers

    def run(self, wanted, seed):
        rng, told = random.Random(seed), 0
        while (made := self.changes()) < wanted:
            if made >= told + STEP:
                print(made, flush=True)
                told = made
            for _ in range(20):
                self.store(rng.randrange(PROMPTS), rng.randrange(1, DEPTH + 1))
        print("done", made, flush=True)

    def lengths(self):
        """How much of each prompt a lookup finds."""
        self.engine.flush(60_000)
        return [self.view.lookup(chain, 0, DEPTH, 0, 0)[0] for chain in self.chains]


def main():
    worker = Worker(json.loads(sys.argv[1]))
    print("open", flush=True)
    for line in sys.stdin:
        command, *numbers = line.split()
        if command == "run":
            worker.run(*map(int, numbers))
        elif command == "store":
            worker.store(*map(int, numbers))
            print("stored", flush=True)
        else:
            print(json.dumps(worker.lengths()), flush=True)


if __name__ == "__main__":
    main()
