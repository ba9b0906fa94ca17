# SPDX-License-Identifier: Apache-2.0
"""The optimizer reads every line of the log that a real manager writes."""

import csv
import io
import json
import subprocess

import pytest

from manager_process import Http, Manager, executable, wait_until

BLOCK_TOKENS = 4
BLOCK_BYTES = 2048  # of tp0 and tp1 together
SPECS = [{"name": "tp0", "size": 1536}, {"name": "tp1", "size": 512}]


def call(api, method, **fields):
    reply = api.call("meta", method, instance_id="i", **fields)
    assert reply["header"]["status"]["code"] == "OK", reply
    return reply


def start(api, keys, **fields):
    return call(api, "StartWriteCache", block_keys=keys, write_timeout_seconds=30, **fields)


def finish(api, started, written):
    call(api, "FinishWriteCache", write_session_id=started["write_session_id"],
         success_blocks=written)


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    """Lookups of all kinds, writes that go well, fail and never end, and a reclaim."""
    folder = tmp_path_factory.mktemp("events")
    manager = Manager(folder, startup=Manager.usual_startup(
        storage=folder / "nfs", quota={"capacity": 64 * BLOCK_BYTES, "quota_config": []}))
    path = folder / "logs" / "event_publisher.log"
    try:
        api = Http(manager)
        call(api, "RegisterInstance", instance_group="default", block_size=BLOCK_TOKENS,
             model_deployment={"model_name": "m", "dtype": "bf16"}, location_spec_infos=SPECS)
        finish(api, start(api, [1, 2, 3, 4]), {"offset": 4})
        finish(api, start(api, [1, 2, 5, 6]), {"offset": 0})                  # 5 and 6 fail
        finish(api, start(api, [1, 2, 7, 8]), {"bool_masks": {"values": [True, False]}})
        start(api, [9])                                                       # never ends
        call(api, "GetCacheLocation", block_keys=[1, 2, 3, 4], query_type="QT_PREFIX_MATCH")
        call(api, "GetCacheLocation", block_keys=[4, 6], query_type="QT_BATCH_GET")
        call(api, "GetCacheLocation", block_keys=[1, 2, 3], query_type="QT_REVERSE_ROLL_SW_MATCH",
             sw_size=2)
        call(api, "GetCacheLocation", block_keys=[1, 2, 7, 8], query_type="QT_PREFIX_MATCH")
        finish(api, start(api, list(range(100, 155))), {"offset": 55})        # over the watermark
        wait_until(lambda: "CacheReclaimSubmit" in path.read_text())
    finally:
        manager.stop()
    return path


def run(*arguments):
    return subprocess.run([str(executable()), *map(str, arguments)], capture_output=True, text=True,
                          check=True).stdout


def types_of(log):
    types = {}
    for line in log.read_text().splitlines():
        kind = json.loads(line)["type"]
        types[kind] = types.get(kind, 0) + 1
    return types


def test_no_line_is_skipped(log):
    types = types_of(log)
    stat = {name.strip(): value for name, value in
            (line.rsplit(None, 1) for line in run("trace", "stat", log).splitlines()
             if not line.startswith(("time", "span")))}
    became = {name: int(stat[name]) for name in
              ("reads", "writes", "removals", "joined lines", "notices", "skipped lines",
               "bad lines")}
    assert became == {"reads": types["GetCacheLocation"], "writes": types["StartWriteCache"],
                      "removals": types["CacheReclaimSubmit"],
                      "joined lines": types["FinishWriteCache"],
                      "notices": types["LeaderPromoted"] + types.get("LeaderDemoted", 0),
                      "skipped lines": 0, "bad lines": 0}
    assert sum(became.values()) == sum(types.values()) == int(stat["lines"])
    assert int(stat["block bytes"]) == BLOCK_BYTES
    assert int(stat["input tokens"]) == (4 + 2 + 3 + 4) * BLOCK_TOKENS


def test_what_failed_is_no_store(log):
    out = run("optimize", log, "--policy", "lru,kvcm-lru", "--capacity", "1000", "--csv", "-",
              "--match", "prefix")
    hits = {row["policy"]: row["hits"] for row in csv.DictReader(io.StringIO(out))}
    # 4 of [1 2 3 4], 1 of [4 6], 3 of [1 2 3], 3 of [1 2 7 8]; KVCM asks for prefixes alone, and
    # does not ask what failed.
    assert hits == {"lru": "11", "kvcm-lru": "8"}


def test_sizes_in_bytes_need_no_option(log):
    size = 100 * BLOCK_BYTES
    out = run("optimize", log, "--policy", "lru", "--capacity", f"{size}B", "--csv", "-")
    assert next(csv.DictReader(io.StringIO(out)))["capacity"] == "100"
