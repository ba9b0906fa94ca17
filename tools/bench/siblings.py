#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures the benefit of hits inside a chunk: prompts that diverge at random tokens are looked up
and stored one after the other, with and without chunk.siblings.

    PYTHONPATH=python tools/bench/siblings.py

Every prompt equals an earlier one up to a random token, and differs from there on. The limit
counts token blocks: the hits of a cache without chunks. A second table shows the cost of the
search to a lookup that finds nothing.
"""

import ctypes
import random
import statistics
import time
from array import array

from tierce import _core

BLOCK_TOKENS = 16
CHUNK_TOKENS = 64, 256, 1024
PROMPTS = 300
SHORTEST, LONGEST = 500, 8000
CELL = 64
MISS_TOKENS = 32768
ROUNDS = 400


def namespace(chunk_tokens):
    return {"weights": "00", "model": "bench", "kv_dtype": "float32", "quantization": "",
            "layout": "bench", "layer_count": 1, "cell_bytes": [CELL],
            "block_tokens": BLOCK_TOKENS, "chunk_blocks": chunk_tokens // BLOCK_TOKENS,
            "algo": "xxh3-128"}


def make_prompts(seed):
    """Prompts, and how many blocks each shares with the most similar earlier prompt."""
    source = random.Random(seed)
    prompts, shared, seen = [], [], set()
    for _ in range(PROMPTS):
        length = source.randint(SHORTEST, LONGEST)
        tokens = array("i")
        if prompts:
            other = source.choice(prompts)
            tokens = other[:source.randint(0, min(len(other), length))]
        tokens.extend(source.randrange(100_000) for _ in range(length - len(tokens)))
        prompts.append(tokens)
        blocks = length // BLOCK_TOKENS
        prefixes = [hash(tokens[:(i + 1) * BLOCK_TOKENS].tobytes()) for i in range(blocks)]
        shared.append(next((i for i, p in enumerate(prefixes) if p not in seen), blocks))
        seen.update(prefixes)
    return prompts, shared


class Store:
    def __init__(self, chunk_tokens, siblings):
        self.engine = _core.Engine.open(None, {
            "memory.size": "1GiB", "memory.chunks": "200000", "disk.path": "",
            "control.socket": "", "chunk.siblings": "true" if siblings else "false"})
        self.view = self.engine.view(namespace(chunk_tokens))
        blocks = LONGEST // BLOCK_TOKENS
        self.ids = array("i", range(blocks))
        self.memory = ctypes.create_string_buffer(CELL * blocks)
        self.view.set_paged([ctypes.addressof(self.memory)], [CELL], blocks)

    def close(self):
        """Opening equal settings again returns the same engine as long as it is referenced; each
        view holds a reference."""
        del self.view
        self.engine.close()

    def chain(self, tokens):
        chain = self.view.chain()
        chain.append(tokens[:len(tokens) // BLOCK_TOKENS * BLOCK_TOKENS])
        return chain

    def ask_and_store(self, tokens):
        """Tokens that are found."""
        chain, blocks = self.chain(tokens), len(tokens) // BLOCK_TOKENS
        found, _, _ = self.view.lookup(chain, 0, blocks, 0, 0)
        store = self.view.store_begin(chain, blocks, self.ids)
        if store is not None:
            store.layer(0)
            store.end()
        return found * BLOCK_TOKENS


def measure_savings():
    prompts, shared = make_prompts(1)
    asked = sum(len(p) for p in prompts)
    limit = sum(shared) * BLOCK_TOKENS
    print("| chunk | found, whole chunks | found, inside chunks too | by blocks | "
          "computed, less by | tokens a prompt |")
    print("|---:|---:|---:|---:|---:|---:|")
    for chunk_tokens in CHUNK_TOKENS:
        found = []
        for siblings in (False, True):
            store = Store(chunk_tokens, siblings)
            found.append(sum(store.ask_and_store(p) for p in prompts))
            store.close()
        less = (found[1] - found[0]) / (asked - found[0])
        print(f"| {chunk_tokens} | {100 * found[0] / asked:.1f} % | {100 * found[1] / asked:.1f} % "
              f"| {100 * limit / asked:.1f} % | {100 * less:.1f} % | {(found[1] - found[0]) / PROMPTS:.0f} |")
    print(f"\n{PROMPTS} prompts, {asked} tokens asked for")


def measure_miss():
    """A lookup of a prompt that is not stored, in a cache with many chunks of other prompts."""
    stores = {siblings: Store(256, siblings) for siblings in (False, True)}
    source = random.Random(2)
    tokens = array("i", (source.randrange(100_000) for _ in range(MISS_TOKENS)))
    times = {siblings: [] for siblings in stores}
    for siblings, store in stores.items():
        for prompt in make_prompts(1)[0][:100]:
            store.ask_and_store(prompt)
    chains = {siblings: store.chain(tokens) for siblings, store in stores.items()}
    for _ in range(ROUNDS):
        for siblings, store in stores.items():
            start = time.perf_counter_ns()
            for _ in range(20):
                store.view.lookup(chains[siblings], 0, MISS_TOKENS // BLOCK_TOKENS, 0, 0)
            times[siblings].append((time.perf_counter_ns() - start) / 20)
    for siblings, taken in times.items():
        print(f"miss of {MISS_TOKENS} tokens, chunk.siblings {str(siblings).lower()}: "
              f"median {statistics.median(taken):.0f} ns, fastest {min(taken):.0f} ns")


if __name__ == "__main__":
    measure_savings()
    measure_miss()
