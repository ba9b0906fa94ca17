#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures the cost of a call from Python into the library, compared with a call of a builtin in
the same run.

    PYTHONPATH=python tools/bench/python_call.py

The time of the loop around the calls is included on both sides. The limit is the requested time.
"""

import statistics
import time
from array import array
from itertools import repeat

from rows import HEADER, row
from tierce import _core

CALLS = 200_000
ROUNDS = 15
GOAL_NS = 150


def time_calls(function, *args):
    """Nanoseconds of one call."""
    loop = repeat(None, CALLS)
    start = time.perf_counter_ns()
    for _ in loop:
        function(*args)
    return (time.perf_counter_ns() - start) / CALLS


def main():
    engine = _core.Engine.open(None, {"memory.size": "64MiB"})
    view = engine.view({
        "weights": "00", "model": "bench", "kv_dtype": "float32", "quantization": "",
        "layout": "bench", "layer_count": 1, "cell_bytes": [4096], "block_tokens": 16,
        "chunk_blocks": 16, "algo": "xxh3-128"})
    chain = view.chain()
    chain.append(array("i", range(32768)))
    token = array("i", [1])
    cases = {
        "view.unpin(session)": (view.unpin, 7),
        "chain.hash(index)": (chain.hash, 3),
        "chain.append(one token)": (chain.append, token),
    }
    # A call that takes locks and lets go of the interpreter: what is above the others is its work.
    lookup = "view.lookup of no block"
    cases[lookup] = (view.lookup, chain, 0, 0, 0, 0)
    times = {name: [] for name in [*cases, "abs"]}
    for _ in range(ROUNDS):
        for name, call in cases.items():
            times[name].append(time_calls(*call))
        times["abs"].append(time_calls(abs, -1))
    print(HEADER)
    floor = statistics.median(times["abs"])
    for name in cases:
        goal = 1 if name != lookup else None
        print(row("python", name, "ns", statistics.median(times[name]), GOAL_NS, goal, "abs(-1)",
                  floor))


if __name__ == "__main__":
    main()
