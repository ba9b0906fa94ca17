# SPDX-License-Identifier: Apache-2.0
"""An engine of a fleet in a process of its own, for test_manager_older.py: it runs with the package `tierce` that PYTHONPATH
names, also that of an older version.

    older_engine.py URL

Reads lines of JSON and answers each with one: {"store": SEED} with the blocks that were stored, {"load": SEED} with the blocks
that were found and whether all of their bytes are right.
"""

import ctypes
import json
import sys
from array import array

from tierce import _core as core

BLOCKS, CELL, BLOCK_TOKENS = 32, 512, 4
IDS = array("i", range(BLOCKS))
NAMESPACE = {"weights": "aa", "model": "m", "kv_dtype": "f", "quantization": "", "layout": "l", "layer_count": 1,
             "cell_bytes": [CELL], "block_tokens": BLOCK_TOKENS, "chunk_blocks": 4, "algo": "sha256"}


class Engine:
    def __init__(self, url):
        self.engine = core.Engine.open(None, {
            "memory.size": "16MiB", "disk.path": "", "remote.urls": url, "cost.check": "false", "timeout.lookup": "10s",
            "chunk.tokens": "16", "breaker.errors": "1000"})
        self.view = self.engine.view(NAMESPACE)
        self.memory = ctypes.create_string_buffer(CELL * BLOCKS)
        self.view.set_paged([ctypes.addressof(self.memory)], [CELL], BLOCKS)

    def chain(self, seed):
        chain = self.view.chain()
        chain.append(array("i", [seed] * BLOCK_TOKENS * BLOCKS))
        return chain

    def store(self, seed):
        ctypes.memmove(self.memory, expected(seed), CELL * BLOCKS)
        store = self.view.store_begin(self.chain(seed), BLOCKS, IDS)
        store.layer(0)
        stored = store.end()
        self.engine.flush(30000)
        return stored

    def load(self, seed):
        chain = self.chain(seed)
        found = self.view.lookup(chain, 0, BLOCKS, 0, 0)[0]
        ctypes.memset(self.memory, 0, CELL * BLOCKS)
        loaded = 0
        if found > 0:
            load = self.view.load_begin(chain, 0, found, IDS)
            load.layer(0)
            origins = load.end()
            loaded = next((i for i in range(found) if origins[i] == 0), found)
        return {"found": loaded, "right": self.memory.raw[:CELL * loaded] == expected(seed)[:CELL * loaded]}


def expected(seed):
    """Each block has bytes of its own."""
    return b"".join(bytes([1 + (seed * 7 + i) % 251]) * CELL for i in range(BLOCKS))


def main():
    engine = Engine(sys.argv[1])
    print(json.dumps({"blocks": BLOCKS}), flush=True)
    for line in sys.stdin:
        (verb, seed), = json.loads(line).items()
        print(json.dumps(getattr(engine, verb)(seed)), flush=True)
    engine.view = None
    engine.engine.close()


if __name__ == "__main__":
    main()
