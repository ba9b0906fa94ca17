# SPDX-License-Identifier: Apache-2.0
"""The marks of storages: a folder that is not mounted, and one that another registry governs."""

import json
import subprocess

import pytest

from manager_process import Http, Manager, executable, wait_until

MARK = "~tierce-pool"
BYTES = 600


def code(reply):
    return reply["header"]["status"]["code"]


class Case:
    """A manager with a registry in a file, one storage and one instance."""

    def __init__(self, folder):
        self.manager = Manager(folder, f"--registry.uri=local://{folder}/registry", debug=False)
        self.folder = self.manager.storage
        self.api = Http(self.manager)

    def storage(self):
        return self.api.call("admin", "ListStorage")["storage"][0]

    def configs(self):
        """What an engine learns about the storage when it registers."""
        reply = self.api.call(
            "meta", "RegisterInstance", instance_group="default", instance_id="i", block_size=4,
            model_deployment={"model_name": "m", "dtype": "bf16"},
            location_spec_infos=[{"name": "tp0", "size": BYTES}])
        assert code(reply) == "OK", reply
        return json.loads(reply["storage_configs"])[0]

    def store(self, keys):
        started = self.api.call("meta", "StartWriteCache", instance_id="i", block_keys=keys,
                                write_timeout_seconds=60)
        assert code(started) == "OK", started
        assert code(self.api.call("meta", "FinishWriteCache", instance_id="i",
                                  write_session_id=started["write_session_id"],
                                  success_blocks={"offset": len(keys)})) == "OK"

    def locate(self, keys):
        found = self.api.call("meta", "GetCacheLocation", instance_id="i", block_keys=keys,
                              query_type="QT_PREFIX_MATCH")
        return [x["location_specs"][0]["uri"] for x in found["locations"]]

    def tierce(self, *arguments):
        url = f"http://127.0.0.1:{self.manager.ports['admin_http']}"
        return subprocess.run([str(executable()), "storage", *arguments, "--url", url],
                              capture_output=True, text=True, timeout=60)


@pytest.fixture
def case(tmp_path):
    case = Case(tmp_path / "manager")
    try:
        yield case
    finally:
        case.manager.stop()


def test_a_folder_that_is_not_mounted(case, tmp_path):
    wait_until((case.folder / MARK).exists)
    wait_until(lambda: "mark" in case.configs())
    assert (case.folder / MARK).read_text() == f"tierce-pool 1 {case.configs()['mark']}\n"
    refused = case.tierce("adopt", "nfs_01")
    assert refused.returncode != 0 and "it has the mark of this registry" in refused.stderr
    case.store([1, 2, 3])
    uri = case.locate([1, 2, 3])[0]

    case.folder.rename(tmp_path / "aside")
    case.folder.mkdir()
    wait_until(lambda: case.storage()["status"] == "unwell")
    assert f"{MARK} is missing" in case.storage()["reason"]
    report = {"block_key": 1, "location_spec_name": "tp0", "uri": uri, "reason": "RR_MISSING"}
    reply = case.api.call("meta", "ReportCache", instance_id="i", reports=[report])
    assert code(reply) == "OK" and reply["dropped_locations"] == "0"
    assert code(case.api.call("meta", "StartWriteCache", instance_id="i", block_keys=[9])) != "OK"
    case.folder.rmdir()  # it is still empty
    (tmp_path / "aside").rename(case.folder)
    wait_until(lambda: case.storage()["status"] == "well")
    assert case.storage()["reason"] == "" and len(case.locate([1, 2, 3])) == 3

    case.folder.rename(tmp_path / "lost")
    case.folder.mkdir()
    wait_until(lambda: case.storage()["status"] == "unwell")
    adopted = case.tierce("adopt", "nfs_01")
    assert adopted.returncode == 0, adopted
    wait_until(lambda: case.storage()["status"] == "well")
    assert case.locate([1, 2, 3]) == [] and (case.folder / MARK).exists()
    case.store([1, 2, 3])


def test_another_registry(case, tmp_path):
    wait_until((case.folder / MARK).exists)
    mine = (case.folder / MARK).read_text()
    case.configs()
    case.store([1, 2])
    (case.folder / MARK).write_text("tierce-pool 1 00112233445566778899aabbccddeeff\n")
    wait_until(lambda: case.storage()["status"] == "unwell")
    assert "00112233445566778899aabbccddeeff" in case.storage()["reason"]
    assert case.locate([1, 2]) == []
    assert case.tierce("adopt", "none").returncode != 0
    assert case.tierce("list", "--keep").returncode == 2
    adopted = case.tierce("adopt", "nfs_01", "--keep")
    assert adopted.returncode == 0, adopted.stderr
    wait_until(lambda: case.storage()["status"] == "well")
    assert (case.folder / MARK).read_text() == mine and len(case.locate([1, 2])) == 2
