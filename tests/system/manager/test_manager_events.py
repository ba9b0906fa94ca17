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
ENTRY_BYTES = 300
SPECS = [{"name": "tp0", "size": 1536}, {"name": "tp1", "size": 512}]


def call(api, method, service="meta", instance="i", **fields):
    reply = api.call(service, method, instance_id=instance, **fields)
    assert reply["header"]["status"]["code"] == "OK", reply
    return reply


def call_kv(api, method, **fields):
    return call(api, method, "kv_meta", "images", **fields)


def start(api, keys, **fields):
    return call(api, "StartWriteCache", block_keys=keys, write_timeout_seconds=30, **fields)


def finish(api, started, written):
    call(api, "FinishWriteCache", write_session_id=started["write_session_id"],
         success_blocks=written)


def put_entries(api, names, failed):
    """Entries, of which some fail; returns the number of those that were looked up and found afterwards."""
    started = call_kv(api, "PutStart", keys=names, write_timeout_seconds=30)
    uris = [location["location_specs"][0]["uri"] for location in started["locations"]]
    call_kv(api, "PutFinish", write_session_id=started["write_session_id"],
            locations=[{"location_specs": [{"name": "value", "uri": f"{uri}?size={ENTRY_BYTES}"}]}
                       for name, uri in zip(names, uris, strict=True) if name not in failed])
    found = call_kv(api, "Get", query_type="QT_BATCH_GET", keys=names)
    return sum(location["location_specs"][0]["uri"] != "" for location in found["locations"])


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
        call_kv(api, "RegisterInstance", instance_group="default")
        assert put_entries(api, ["a", "b", "c"], failed=["b"]) == 2
        call_kv(api, "Remove", keys=["a"])
        call_kv(api, "Get", query_type="QT_BATCH_GET", keys=["a", "c"])
        call(api, "RemoveCache", block_keys=[7, 8], block_mask={"offset": 1})
        finish(api, start(api, list(range(100, 155))), {"offset": 55})        # over the watermark
        wait_until(lambda: "CacheReclaimSubmit" in path.read_text())
        call_kv(api, "Trim", strategy="TS_REMOVE_ALL_CACHE")
    finally:
        manager.stop()
    return path


def lines_of(log, source):
    return [line for line in log.read_text().splitlines() if json.loads(line)["source"] == source]


@pytest.fixture(scope="module")
def blocks(log):
    """The lines of the instance of blocks."""
    path = log.with_name("blocks.log")
    path.write_text("\n".join(lines_of(log, "i")))
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
                      "removals": types["CacheReclaimSubmit"] + types["RemoveCache"],
                      "joined lines": types["FinishWriteCache"],
                      "notices": types["LeaderPromoted"] + types.get("LeaderDemoted", 0)
                                 + types["TrimCache"],
                      "skipped lines": 0, "bad lines": 0}
    assert sum(became.values()) == sum(types.values()) == int(stat["lines"])
    assert int(stat["input tokens"]) == (4 + 2 + 3 + 4) * BLOCK_TOKENS


def test_what_failed_is_no_store(blocks):
    out = run("optimize", blocks, "--policy", "lru,kvcm-lru", "--capacity", "1000", "--csv", "-",
              "--match", "prefix")
    hits = {row["policy"]: row["hits"] for row in csv.DictReader(io.StringIO(out))}
    # 4 of [1 2 3 4], 1 of [4 6], 3 of [1 2 3], 3 of [1 2 7 8]; KVCM asks for prefixes alone, and
    # does not ask what failed.
    assert hits == {"lru": "11", "kvcm-lru": "8"}


def test_sizes_in_bytes_need_no_option(blocks):
    size = 100 * BLOCK_BYTES
    out = run("optimize", blocks, "--policy", "lru", "--capacity", f"{size}B", "--csv", "-")
    assert next(csv.DictReader(io.StringIO(out)))["capacity"] == "100"


def test_entries_by_name_have_events(log):
    """Those of blocks, without tokens; the sizes are in the end of a write."""
    events = [json.loads(line) for line in lines_of(log, "images")]
    assert [event["type"] for event in events[:5]] == [
        "StartWriteCache", "FinishWriteCache", "GetCacheLocation", "RemoveCache", "GetCacheLocation"]
    start, finish, get, remove, again = events[:5]
    assert len(set(start["keys"])) == 3 and start["block_size"] == 0 and "block_bytes" not in start
    assert finish["success_block"] == [True, False, True]
    assert finish["block_bytes"] == [ENTRY_BYTES, 0, ENTRY_BYTES]
    assert get["keys"] == start["keys"] and get["query_type"] == "batch_get"
    assert remove["keys"] == start["keys"][:1]
    assert [get["hits"], again["hits"]] == [2, 1]
    assert events[-1]["type"] == "TrimCache" and events[-1]["strategy"] == "remove_all_cache"


def test_the_optimizer_replays_entries(log, tmp_path):
    """A failed entry does not hide the next."""
    path = tmp_path / "images.log"
    path.write_text("\n".join(lines_of(log, "images")))
    hits = [next(csv.DictReader(io.StringIO(run(
        "optimize", path, "--policy", "lru", "--match", "any", "--capacity", f"{size}B", "--csv", "-"))))["hits"]
        for size in (10 * ENTRY_BYTES, ENTRY_BYTES)]
    # Of [a b c] and then [a c]: both each time, or one each time. A replay makes no removals.
    assert hits == ["4", "2"]


def test_entries_have_a_curve(tmp_path):
    """Its bytes are the mean of the entries' sizes, which no spec gives."""
    names = [f"image {i}" for i in range(20)]
    manager = Manager(tmp_path, startup=Manager.usual_startup(storage=tmp_path / "nfs"))
    try:
        api = Http(manager)
        call_kv(api, "RegisterInstance", instance_group="default")
        assert put_entries(api, names, failed=[]) == len(names)

        def points():
            curve = json.loads(manager.get("/api/curves", "admin_http")[1])["instances"][0]
            assert curve["id"] == "images"
            return curve["points"]

        wait_until(lambda: points() and points()[-1][1] == pytest.approx(1)
                   and points()[-1][0] == pytest.approx(len(names) * ENTRY_BYTES, rel=0.15))
    finally:
        assert manager.stop() == 0
