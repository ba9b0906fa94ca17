# SPDX-License-Identifier: Apache-2.0
"""tierce storage scrub, by a whole manager."""

import json
import os
import re
import signal
import subprocess
import time

import pytest

from manager_process import Http, Manager, executable, wait_until

BYTES = 600


@pytest.fixture
def manager(tmp_path):
    manager = Manager(tmp_path / "manager", f"--registry.uri=local://{tmp_path}/registry", debug=False)
    try:
        yield manager
    finally:
        manager.stop()


def scrub(manager, *arguments, fails=False):
    url = f"http://127.0.0.1:{manager.ports['admin_http']}"
    done = subprocess.run([str(executable()), "storage", "scrub", *arguments, "--url", url, "--json"],
                          capture_output=True, text=True, timeout=60)
    assert (done.returncode != 0) == fails, done
    return done.stderr if fails else json.loads(done.stdout)


def test_orphans_leave_and_blocks_stay(manager):
    folder, api = manager.storage, Http(manager)
    wait_until((folder / "~tierce-pool").exists)
    api.call("meta", "RegisterInstance", instance_group="default", instance_id="i", block_size=4,
             model_deployment={"model_name": "m", "dtype": "bf16"},
             location_spec_infos=[{"name": "tp0", "size": BYTES}])
    started = api.call("meta", "StartWriteCache", instance_id="i", block_keys=[1, 2],
                       write_timeout_seconds=60)
    api.call("meta", "FinishWriteCache", instance_id="i", write_session_id=started["write_session_id"],
             success_blocks={"offset": 2})
    assert scrub(manager, "nfs_01")["state"] == "none"

    old, young = folder / "gone/tp0/00000000000000a1", folder / "gone/tp0/00000000000000a2"
    old.parent.mkdir(parents=True)
    old.write_bytes(b"x" * BYTES)
    young.write_bytes(b"y" * BYTES)
    os.utime(old, (time.time() - 100000,) * 2)
    scrub(manager, "nfs_01", "start", "--repair", "--rate", "100000")
    wait_until(lambda: scrub(manager, "nfs_01")["ended_us"] != "0")
    state = scrub(manager, "nfs_01", "show")
    assert state["state"] == "done" and state["repairs"] and state["lists_objects"], state
    assert (state["orphans"], state["deleted_bytes"], state["young_objects"]) == ("1", str(BYTES), "1")
    assert state["fresh_files"] == "2" and state["dropped_locations"] == "0"
    assert not old.exists() and young.exists()
    shown = api.call("admin", "ListStorage")["storage"][0]["scrub"]
    assert shown["state"] == "done" and shown["ended_us"] == state["ended_us"]
    assert (shown["orphans"], shown["deleted_orphans"]) == ("1", "1")
    metrics = manager.get("/metrics", "admin_http")[1].decode()
    assert re.search(r'data_storage_scrub_fixed_count\{.*unique_name="nfs_01"\} 1\n', metrics), metrics
    assert re.search(r'data_storage_scrub_age_s\{.*unique_name="nfs_01"\} \d', metrics), metrics
    found = api.call("meta", "GetCacheLocation", instance_id="i", block_keys=[1, 2],
                     query_type="QT_PREFIX_MATCH")
    assert len(found["locations"]) == 2

    scrub(manager, "nfs_01", "start", "--repair", "--rate", "1")
    wait_until(lambda: scrub(manager, "nfs_01")["state"] == "objects")
    before = scrub(manager, "nfs_01")
    manager.stop(signal.SIGKILL)
    manager.start()
    wait_until(lambda: scrub(manager, "nfs_01")["state"] == "done")  # the next leader goes on
    after = scrub(manager, "nfs_01")
    assert (after["repairs"], after["began_us"]) == (True, before["began_us"])
    manager.stop(signal.SIGKILL)
    manager.start()
    assert scrub(manager, "nfs_01")["state"] == "none"

    assert "there is no storage none" in scrub(manager, "none", fails=True)
    assert "start, stop or show" in scrub(manager, "nfs_01", "begin", fails=True)
    assert "options of storage scrub NAME start" in scrub(manager, "nfs_01", "--repair", fails=True)
