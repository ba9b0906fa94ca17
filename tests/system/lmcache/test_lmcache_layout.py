# SPDX-License-Identifier: Apache-2.0
"""Chunks that Tierce and a real LMCache 0.5.6 share through a Redis, byte for byte in both directions. Needs a Python that
has LMCache (TIERCE_LMCACHE_PYTHON) and the program lmcache_chunks of a build (TIERCE_LMCACHE_CHUNKS)."""

import os
import subprocess
from pathlib import Path

import pytest

from manager_process import Redis

PYTHON = os.environ.get("TIERCE_LMCACHE_PYTHON")
CHUNKS = os.environ.get("TIERCE_LMCACHE_CHUNKS", str(Path(__file__).resolve().parents[3] / "build/dev/bin/lmcache_chunks"))
BLOCKS = 12

pytestmark = pytest.mark.skipif(not PYTHON or not os.path.exists(CHUNKS),
                                reason="needs TIERCE_LMCACHE_PYTHON and lmcache_chunks")


def peer(what, redis, seed, algorithm):
    """LMCache's NONE_HASH, and how many chunks of 16 tokens it wrote or found right."""
    script = Path(__file__).with_name("lmcache_peer.py")
    done = subprocess.run([PYTHON, script, what, redis.uri, str(seed), str(BLOCKS), algorithm], capture_output=True,
                          text=True, timeout=300, env={**os.environ, "PYTHONHASHSEED": "0"})
    lines = done.stdout.split("\n")
    none = [line.split()[1] for line in lines if line.startswith("none ")]
    assert none, done.stderr
    return none[0], int(lines[-2])


def ours(what, redis, seed, algorithm, none):
    url = f"{redis.uri}?layout=lmcache&model=org/small&hash={algorithm}&none_hash={none}"
    done = subprocess.run([CHUNKS, what, url, str(seed), str(BLOCKS)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


@pytest.mark.parametrize("algorithm", ["builtin", "sha256_cbor"])
def test_what_one_wrote_the_other_reads(tmp_path, algorithm):
    redis = Redis(tmp_path / "redis")
    try:
        none, wrote = peer("put", redis, 1, algorithm)
        assert wrote == 3
        assert ours("load", redis, 1, algorithm, none) == BLOCKS
        assert ours("load", redis, 2, algorithm, none) == 0
        assert ours("store", redis, 2, algorithm, none) == BLOCKS
        assert peer("get", redis, 2, algorithm) == (none, 3)
        assert ours("load", redis, 2, algorithm, none) == BLOCKS
        assert peer("get", redis, 3, algorithm) == (none, 0)
    finally:
        redis.stop()
