# SPDX-License-Identifier: Apache-2.0
"""A process that uses a node of its own, as a worker of vLLM does, for test_own_node.py.

    node_user.py JSON     {"engine": ID, "workers": N, "values": {...}, "constants": {...}, "processors": [...], "forks": BOOL}

It prints a line of JSON: the parameters, or the error. For each line of its standard input it asks the node to flush,
and prints whether the node answers. When its input ends, it leaves.
"""

import json
import logging
import os
import signal
import sys
import time
from types import SimpleNamespace

from tierce import _core
from tierce.vllm import own_node

wanted = json.loads(sys.argv[1])
logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s", stream=sys.stderr)
for name, value in wanted.get("constants", {}).items():
    setattr(own_node, name, value)
if "processors" in wanted:
    os.sched_setaffinity(0, wanted["processors"])
settings = SimpleNamespace(config_path=wanted.get("config"), values=wanted.get("values", {}))
try:
    values, node = own_node.client_values(settings, wanted.get("workers", 2), wanted.get("engine", "e"),
                                          wanted.get("version", _core.version()))
    engine = _core.Engine.open(settings.config_path, values)
    until = time.monotonic() + 20  # on a loaded machine the node answers late, and a request connects again
    while values.get("node.socket") and not engine.stats()["node_connected_now"] and time.monotonic() < until:
        engine.flush(1000)
        time.sleep(0.05)
    answer = {"values": values, "connected": engine.stats()["node_connected_now"]}
except Exception as error:
    answer = {"error": f"{type(error).__name__}: {error}"}
if wanted.get("forks"):
    answer["child"] = os.fork()
    if answer["child"] == 0:
        os.close(1)
        signal.pause()
print(json.dumps(answer), flush=True)
for line in sys.stdin:
    print(json.dumps({"answers": engine.flush(10_000)}), flush=True)
if "error" not in answer:
    engine.close()
    if node is not None:
        node.leave()
