# SPDX-License-Identifier: Apache-2.0
"""Ghost curves as an operator sees them: /api/curves, the metrics, the page and the command line."""

import json
import subprocess

import pytest

from manager_process import Http, Manager, executable, wait_until

pytest.importorskip("grpc_tools")

MIB = 1 << 20
KEYS, KEY_BYTES, LOOKUPS = 16, 128 * MIB, 20  # a chain of 2 GiB
QUOTA = 1_640 * MIB  # its watermark lies at 1,312 MiB


@pytest.fixture(scope="module")
def manager(tmp_path_factory):
    """One chain, looked up 20 times by the group's only instance; only a part of it fits."""
    folder = tmp_path_factory.mktemp("curves")
    given = Manager.usual_startup(storage=folder / "nfs", quota={
        "capacity": 4 * QUOTA, "quota_config": [{"storage_type": "file", "capacity": QUOTA}]})
    (folder / "nfs").mkdir()
    manager = Manager(folder, debug=False, startup=given)
    api = Http(manager)
    call(api, "RegisterInstance", instance_group="default", instance_id="i", block_size=4,
         model_deployment={"model_name": "m", "dtype": "bf16"},
         location_spec_infos=[{"name": "tp0", "size": KEY_BYTES}])
    keys = list(range(1, KEYS + 1))
    api.call("meta", "StartWriteCache", instance_id="i", block_keys=keys, write_timeout_seconds=600)
    for _ in range(LOOKUPS):
        call(api, "GetCacheLocation", instance_id="i", block_keys=keys,
             query_type="QT_PREFIX_MATCH")
    wait_until(lambda: curves(manager)["groups"][0]["sampled_keys"] == KEYS * LOOKUPS)
    yield manager
    assert manager.stop() == 0


def call(api, method, **fields):
    reply = api.call("meta", method, **fields)
    assert reply["header"]["status"]["code"] == "OK", reply


def curves(manager):
    status, body = manager.get("/api/curves", "admin_http")
    assert status == 200
    return json.loads(body)


def test_curves_and_the_next_gib(manager):
    """A key hits if the keys up to it fit: 10 of 16 at the watermark, all of them a GiB above."""
    shown = curves(manager)
    assert shown["header"] == {"status": {"code": "OK"}}
    (group,), (instance,) = shown["groups"], shown["instances"]
    assert (group["name"], instance["id"], instance["group"]) == ("default", "i", "default")
    assert group["bytes"] == QUOTA * 8 // 10
    # Between two capacities of the curve it is a straight line.
    assert group["hit_ratio"] == pytest.approx(10 / KEYS, abs=1.5 / KEYS)
    assert group["hit_ratio"] + group["next_gib_hit_ratio"] == pytest.approx(1)
    per_second = group["next_gib_hit_ratio"] * group["tokens_per_second"]
    assert group["next_gib_tokens_per_second"] == pytest.approx(per_second, rel=1e-4)
    assert group["found_ratio"] == 0  # the writes have not ended
    assert group["tokens_per_second"] * group["seconds"] == \
        pytest.approx(4 * KEYS * LOOKUPS, rel=1e-4)
    points = group["points"]
    assert points == sorted(points) and instance["points"] == points
    assert points[0][1] == 0 and points[-1][1] == pytest.approx(1)
    assert points[-1][0] == pytest.approx(KEYS * KEY_BYTES, rel=0.15)


def test_metrics_of_the_next_gib(manager):
    text = manager.get("/metrics", "admin_http")[1].decode()
    group = curves(manager)["groups"][0]
    for name in ("hit_ratio", "next_gib_hit_ratio"):
        line = f'tierce_cache_manager_group_curve_{name}{{instance_group="default"}} '
        assert float(text.split(line)[1].split("\n")[0]) == pytest.approx(group[name], rel=1e-4)
    # It falls while nothing is looked up.
    line = 'tierce_cache_manager_group_curve_next_gib_tokens_per_second{instance_group="default"} '
    assert float(text.split(line)[1].split("\n")[0]) >= group["next_gib_tokens_per_second"]


def test_numbers_of_the_page(manager):
    page = json.loads(manager.get("/api/page", "admin_http")[1])
    shown, group = page["groups"][0]["curve"], curves(manager)["groups"][0]
    assert set(shown) == {"hit_ratio", "next_gib_hit_ratio", "next_gib_tokens_per_second", "is_warm"}
    for name in ("hit_ratio", "next_gib_hit_ratio", "is_warm"):
        assert shown[name] == group[name], name


def tierce(manager, *arguments):
    done = subprocess.run([str(executable()), *arguments, "--url",
                           f"http://127.0.0.1:{manager.ports['admin_http']}"],
                          capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done
    return done.stdout


def test_the_command_line(manager):
    head, row = tierce(manager, "group", "curves").splitlines()[:2]
    shown = dict(zip(head.split(), row.split()))
    group = curves(manager)["groups"][0]
    assert shown["name"] == "default" and shown["points"] == f"({len(group['points'])})"
    assert float(shown["next_gib_hit_ratio"]) == group["next_gib_hit_ratio"]
    whole = json.loads(tierce(manager, "group", "curves", "--json"))
    assert whole["groups"][0]["points"] == group["points"]


def test_without_lookups_nothing_is_known(manager):
    """A group without an instance has no curve, and one without lookups no ratios."""
    api = Http(manager)
    group = api.call("admin", "GetInstanceGroup", name="default")["instance_group"]
    reply = api.call("admin", "CreateInstanceGroup", instance_group={**group, "name": "idle"})
    assert reply["header"]["status"]["code"] == "OK", reply
    assert [g["name"] for g in curves(manager)["groups"]] == ["default"]
    call(api, "RegisterInstance", instance_group="idle", instance_id="j", block_size=4,
         model_deployment={"model_name": "m", "dtype": "bf16"},
         location_spec_infos=[{"name": "tp0", "size": KEY_BYTES}])
    idle = next(g for g in curves(manager)["groups"] if g["name"] == "idle")
    assert idle["points"] == [] and idle["sampled_keys"] == 0
    assert {idle[name] for name in ("hit_ratio", "next_gib_hit_ratio", "found_ratio",
                                    "next_gib_tokens_per_second")} == {None}
    text = manager.get("/metrics", "admin_http")[1].decode()
    assert 'tierce_cache_manager_group_curve_next_gib_hit_ratio{instance_group="idle"} -1\n' in text


def test_the_autopilots_page(manager):
    """Modes and bounds of groups, as calls set them; there are no steps without a second group that
    has requests."""
    api = Http(manager)
    group = api.call("admin", "GetInstanceGroup", name="default")["instance_group"]
    assert (group["autopilot"], group["quota"]["min_bytes"]) == ("", "0")
    group["quota"]["min_bytes"] = KEY_BYTES
    group.pop("warning", None)
    version = int(group["version"])
    reply = api.call("admin", "UpdateInstanceGroup", current_version=version,
                     instance_group={**group, "autopilot": "advise", "autopilot_policies": "lru,lfu",
                                     "version": version + 1})
    assert reply["header"]["status"]["code"] == "OK", reply
    status, body = manager.get("/api/pilot", "admin_http")
    page = json.loads(body)
    shown = next(g for g in page["groups"] if g["name"] == "default")
    assert status == 200 and page["steps"] == []
    assert shown == {"name": "default", "autopilot": "advise", "is_followed": True,
                     "capacity": 4 * QUOTA,
                     "policy": "lru", "policies": "lru,lfu", "ttl_seconds": 0, "ttl_min_seconds": 0,
                     "ttl_max_seconds": 0, "min_bytes": KEY_BYTES, "max_bytes": 0}
    rows = [line.split() for line in tierce(manager, "group", "pilot").splitlines()]
    assert ["default", "advise", "true", str(4 * QUOTA), "lru", "lru,lfu", "0", "0", "0", str(KEY_BYTES), "0"] in rows
    wrong = api.call("admin", "UpdateInstanceGroup", current_version=version + 1,
                     instance_group={**group, "autopilot": "on", "version": version + 2})
    assert "accepted are off, advise, act and default" in wrong["header"]["status"]["message"]
    text = manager.get("/metrics", "admin_http")[1].decode()
    assert 'tierce_autopilot_step_count_total{state="made"} 0\n' in text
