#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""LMCache's side of test_lmcache_layout.py, for a Python that has LMCache 0.5.6: what its own token database calls the
chunks of a prompt, and what its own Redis connector writes and reads under these names.

    lmcache_peer.py put|get URL SEED BLOCKS ALGORITHM     prints "none HEX" and how many chunks were right
"""

import asyncio
import os
import sys

os.environ.setdefault("LMCACHE_TRACK_USAGE", "false")

import torch  # noqa: E402
from lmcache.v1.config import LMCacheEngineConfig  # noqa: E402
from lmcache.v1.metadata import LMCacheMetadata  # noqa: E402
from lmcache.v1.storage_backend.connector import CreateConnector  # noqa: E402
from lmcache.v1.storage_backend.local_cpu_backend import LocalCPUBackend  # noqa: E402
from lmcache.v1.token_database import ChunkedTokenDatabase  # noqa: E402

# As tests/support/lmcache_fixture.h.
LAYERS, HIDDEN, BLOCK_TOKENS, CHUNK_TOKENS = 3, 8, 4, 16


def element(seed, kv, layer, token, place):
    return (seed * 7919 + kv * 31337 + layer * 1009 + token * 17 + place * 3) & 0xffff


def expected(seed, chunk):
    """The bytes of a chunk: [2, layers, tokens, hidden]."""
    return b"".join(element(seed, kv, layer, chunk * CHUNK_TOKENS + token, place).to_bytes(2, "little")
                    for kv in range(2) for layer in range(LAYERS) for token in range(CHUNK_TOKENS)
                    for place in range(HIDDEN))


async def run(what, url, seed, blocks, algorithm):
    config = LMCacheEngineConfig.from_defaults(chunk_size=CHUNK_TOKENS, remote_url=url, remote_serde="naive",
                                               local_cpu=False, max_local_cpu_size=0.1,
                                               pre_caching_hash_algorithm=algorithm)
    metadata = LMCacheMetadata(model_name="org/small", world_size=1, local_world_size=1, worker_id=0, local_worker_id=0,
                               kv_dtype=torch.bfloat16, kv_shape=(LAYERS, 2, CHUNK_TOKENS, 2, HIDDEN // 2),
                               chunk_size=CHUNK_TOKENS)
    database = ChunkedTokenDatabase(config, metadata)
    from lmcache.v1 import token_database
    none = getattr(token_database, "NONE_HASH", 0)
    print("none", format(none, "x"))
    cpu = LocalCPUBackend(config, metadata, "cpu")
    connector = CreateConnector(url, asyncio.get_running_loop(), cpu, config, metadata)
    inner = connector.getWrappedConnector()
    tokens = [seed * 1000 + i * 3 + 5 for i in range(blocks * BLOCK_TOKENS)]
    right = 0
    for i, (_, _, key) in enumerate(database.process_tokens(tokens)):
        wanted = expected(seed, i)
        if what == "put":
            memory = cpu.allocate(inner.meta_shapes, inner.meta_dtypes, inner.meta_fmt)
            flat = torch.frombuffer(bytearray(wanted), dtype=torch.uint8)
            memory.tensor.view(torch.uint8).flatten()[:] = flat
            await inner.put(key, memory)
            right += await inner.exists(key)
        elif await inner.exists(key):
            memory = await inner.get(key)
            right += memory is not None and bytes(memory.byte_array) == wanted
    print(right, flush=True)


if __name__ == "__main__":
    asyncio.run(run(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), sys.argv[5]))
    os._exit(0)  # its connector's close never returns
