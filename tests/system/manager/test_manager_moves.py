# SPDX-License-Identifier: Apache-2.0
"""A storage is drained, by a whole manager and a mover over HTTP."""

import json
import re
import subprocess
from pathlib import Path

import pytest

from manager_process import Http, Manager, executable, wait_until

BYTES = 600
KEYS = [1, 2, 3]
EXTRA = f"{'ab' * 32}:{'cd' * 32}"  # as engines of Tierce register


@pytest.fixture
def manager(tmp_path):
    manager = Manager(tmp_path / "manager", f"--registry.uri=local://{tmp_path}/registry", debug=False)
    try:
        yield manager
    finally:
        manager.stop()


def code(reply):
    return reply["header"]["status"]["code"]


def storage(manager, *arguments, fails=False):
    url = f"http://127.0.0.1:{manager.ports['admin_http']}"
    done = subprocess.run([str(executable()), "storage", *arguments, "--url", url, "--json"],
                          capture_output=True, text=True, timeout=60)
    assert (done.returncode != 0) == fails, done
    return done.stderr if fails else json.loads(done.stdout)


def place_of(uri):
    """The file, and where in it the block lies."""
    path, slot = re.fullmatch(r"file://\w+(/[^?]*)\?(?:blkid=(\d+)&)?size=\d+", uri).groups()
    return Path(path), int(slot or 0) * BYTES


def write_at(uri, value):
    path, offset = place_of(uri)
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "r+b" if path.exists() else "w+b") as file:
        file.seek(offset)
        file.write(value)


def read_at(uri):
    path, offset = place_of(uri)
    return path.read_bytes()[offset:offset + BYTES]


def candidates(api, names):
    group = api.call("admin", "GetInstanceGroup", name="default")["instance_group"]
    version = group["version"]
    group.update(storage_candidates=names, version=str(int(version) + 1))
    reply = api.call("admin", "UpdateInstanceGroup", instance_group=group, current_version=version)
    assert code(reply) == "OK", reply


def store(api, keys):
    started = api.call("meta", "StartWriteCache", instance_id="i", block_keys=keys,
                       write_timeout_seconds=60)
    for key, location in zip(keys, started["locations"]):
        write_at(location["location_specs"][0]["uri"], bytes([key]) * BYTES)
    reply = api.call("meta", "FinishWriteCache", instance_id="i",
                     write_session_id=started["write_session_id"], success_blocks={"offset": len(keys)})
    assert code(reply) == "OK", reply


def read(api, keys):
    found = api.call("meta", "GetCacheLocation", instance_id="i", block_keys=keys,
                     query_type="QT_PREFIX_MATCH")["locations"]
    return [read_at(l["location_specs"][0]["uri"]) for l in found]


def move(api, batch):
    """As a mover: copies, and says so."""
    for block in batch["moves"]:
        for part in block["parts"]:
            write_at(part["to_uri"], read_at(part["from_uri"]))
    return api.call("meta", "FinishMoves", instance_id=batch["instance_id"],
                    write_session_id=batch["write_session_id"], results=["MR_COPIED"] * len(batch["moves"]))


def test_a_storage_is_emptied_and_removed(manager, tmp_path):
    api, root = Http(manager), tmp_path / "cold"
    root.mkdir()
    wait_until((manager.storage / "~tierce-pool").exists)
    reply = api.call("admin", "AddStorage", storage={
        "global_unique_name": "cold", "nfs": {"root_path": f"{root}/", "key_count_per_file": 1}})
    assert code(reply) == "OK", reply
    wait_until((root / "~tierce-pool").exists)
    candidates(api, ["nfs_01", "cold"])
    api.call("meta", "RegisterInstance", instance_group="default", instance_id="i", block_size=4,
             model_deployment={"model_name": "m", "dtype": "bf16", "extra": EXTRA},
             location_spec_infos=[{"name": "tp0", "size": BYTES}])
    store(api, KEYS)
    wanted = [bytes([key]) * BYTES for key in KEYS]
    assert read(api, KEYS) == wanted
    assert api.call("meta", "TakeMoves", mover="m", blocks_max=10)["batches"] == []

    assert storage(manager, "drain", "nfs_01")["state"] == "moving"
    taken = {}

    def take():
        taken.update(api.call("meta", "TakeMoves", mover="m", blocks_max=10))
        return taken["batches"]

    wait_until(take)
    (batch,) = taken["batches"]
    assert (batch["from_storage"], batch["to_storage"], batch["kind"]) == ("nfs_01", "cold", "MK_MOVE")
    assert {s["global_unique_name"] for s in json.loads(taken["storage_configs"])} == {"nfs_01", "cold"}
    assert read(api, KEYS) == wanted
    held = [{"instance_id": "i", "write_session_id": batch["write_session_id"]},
            {"instance_id": "i", "write_session_id": "another"}]
    assert api.call("meta", "TakeMoves", mover="m", held=held)["lost"] == ["another"]
    few = api.call("meta", "FinishMoves", instance_id="i", write_session_id=batch["write_session_id"],
                   results=["MR_COPIED"])
    assert code(few) == "INVALID_ARGUMENT" and "the batch has 3 blocks" in few["header"]["status"]["message"]
    candidates(api, ["cold"])
    assert "still holds" in storage(manager, "remove", "nfs_01", fails=True)

    assert move(api, batch)["moved_blocks"] == len(KEYS)
    assert code(move(api, batch)) == "WRITE_SESSION_UNKNOWN"
    assert read(api, KEYS) == wanted
    shown = storage(manager, "drain", "nfs_01", "show")
    left = (shown["left_bytes"], shown["deleting_bytes"], shown["deleting_locations"])
    assert (shown["state"], *left) == ("deleting", "0", str(len(KEYS) * BYTES), str(len(KEYS)))
    assert "the last deletion is due in" in shown["reason"]
    store(api, [7])
    assert read(api, [7]) == [bytes([7]) * BYTES]
    listed = {s["global_unique_name"]: s for s in api.call("admin", "ListStorage")["storage"]}
    assert (listed["nfs_01"]["drain"], listed["cold"]["drain"]) == ("deleting", "")
    assert listed["nfs_01"]["drain_reason"].startswith("3 locations are still to be deleted")
    metrics = manager.get("/metrics", "admin_http")[1].decode()
    assert 'tierce_moves_moved_count_total{reason="drain"} 3\n' in metrics
    refused = storage(manager, "remove", "nfs_01", fails=True)
    assert f"nfs_01 still has {len(KEYS)} deleted locations ({len(KEYS) * BYTES} bytes)" in refused and "--abandon" in refused
    assert "an option of storage remove" in storage(manager, "drain", "nfs_01", "--abandon", fails=True)
    storage(manager, "remove", "nfs_01", "--abandon")
    assert read(api, KEYS) == wanted

    assert storage(manager, "drain", "cold", "--drop")["state"] in ("dropping", "deleting")
    wait_until(lambda: storage(manager, "drain", "cold", "show")["state"] == "deleting")
    assert read(api, KEYS) == []
    assert storage(manager, "undrain", "cold")["state"] == ""
    store(api, KEYS)
    assert read(api, KEYS) == wanted
    assert "there is no storage none" in storage(manager, "drain", "none", fails=True)
    assert "a name, and show" in storage(manager, "drain", "cold", "begin", fails=True)
    assert "--drop is an option of storage drain" in storage(manager, "undrain", "cold", "--drop", fails=True)
