# SPDX-License-Identifier: Apache-2.0
"""`tierce manager backup` and `restore`, with each kind of registry, index and lease."""

import os
import shutil
import socket
import stat
import subprocess
import urllib.parse

import pytest

from manager_process import Etcd, Http, Manager, Redis, executable, wait_until

KEYS = list(range(1, 41))
BYTES = 64


def tierce(*arguments):
    """Exit status and all output."""
    done = subprocess.run([str(executable()), "manager", *map(str, arguments)], stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=120, check=False)
    return done.returncode, done.stdout


def code(reply):
    return reply["header"]["status"]["code"]


def back_up(manager, file):
    status, said = tierce("backup", file, "--url", f"http://127.0.0.1:{manager.ports['admin_http']}")
    assert status == 0, said
    return said


def startup(storage, kind, uri, slots=1):
    whole = Manager.usual_startup(storage=storage)
    whole["storage_config"]["storage_spec"]["key_count_per_file"] = slots
    whole["instance_group"]["cache_config"]["meta_indexer_config"]["meta_storage_backend_config"] = {
        "storage_type": kind, "storage_uri": uri}
    return whole


def place(location):
    uri = urllib.parse.urlparse(location["location_specs"][0]["uri"])
    slot = int(urllib.parse.parse_qs(uri.query).get("blkid", ["0"])[0])
    return uri.path, slot * BYTES


def content(key):
    return bytes([key]) * BYTES


def store(api, keys):
    """Registers, and writes blocks as a client does."""
    assert code(api.call("meta", "RegisterInstance", instance_group="default", instance_id="i", block_size=4,
                         model_deployment={"model_name": "m", "dtype": "bf16"},
                         location_spec_infos=[{"name": "tp0", "size": BYTES}])) == "OK"
    started = api.call("meta", "StartWriteCache", instance_id="i", block_keys=keys, write_timeout_seconds=30)
    assert code(started) == "OK", started
    for key, location in zip(keys[-len(started["locations"]):], started["locations"]):
        path, offset = place(location)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "r+b" if os.path.exists(path) else "w+b") as file:
            file.seek(offset)
            file.write(content(key))
    assert code(api.call("meta", "FinishWriteCache", instance_id="i", write_session_id=started["write_session_id"],
                         success_blocks={"offset": len(started["locations"])})) == "OK"


def read(api, keys):
    """The keys whose bytes could be read; a wrong byte fails the test."""
    reply = api.call("meta", "GetCacheLocation", instance_id="i", block_keys=keys, query_type="QT_BATCH_GET")
    assert code(reply) == "OK", reply
    found = []
    for key, location in zip(keys, reply["locations"]):
        if not location["location_specs"]:
            continue
        path, offset = place(location)
        try:
            with open(path, "rb") as file:
                file.seek(offset)
                got = file.read(BYTES)
        except FileNotFoundError:
            continue
        assert got == content(key), key
        found.append(key)
    return found


def status_of(api, name="nfs_01"):
    (storage,) = [s for s in api.call("admin", "ListStorage")["storage"] if s["global_unique_name"] == name]
    return storage["status"], storage["reason"]


def wait_marked(folder):
    """The manager has an id, and has probed its storage."""
    wait_until((folder / "~tierce-pool").exists)


def adopt(manager):
    done = subprocess.run([str(executable()), "storage", "adopt", "nfs_01", "--keep", "--url",
                           f"http://127.0.0.1:{manager.ports['admin_http']}"], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    wait_until(lambda: status_of(Http(manager))[0] == "well")


def flush(redis):
    with socket.create_connection(("127.0.0.1", redis.port), 10) as s:
        s.sendall(b"FLUSHALL\r\n")
        assert s.recv(64) == b"+OK\r\n"


@pytest.fixture(params=["rocksdb", "redis"])
def shared(request, tmp_path):
    """(startup, arguments, lose) of a manager whose state outlives it; lose() deletes that state."""
    if request.param == "rocksdb":
        registry, index = tmp_path / "registry", tmp_path / "index"
        (tmp_path / "lease").mkdir()
        arguments = [f"--registry.uri=local://{registry}", f"--elector.uri=file://{tmp_path}/lease"]

        def lose():
            registry.unlink()
            shutil.rmtree(index)
        yield startup(tmp_path / "blocks", "rocksdb", str(index)), arguments, lose
        return
    redis, etcd = Redis(tmp_path / "redis"), Etcd(tmp_path / "etcd")
    arguments = [f"--registry.uri={redis.uri}?cluster_name=c", f"--elector.uri=etcd://127.0.0.1:{etcd.port}"]
    yield startup(tmp_path / "blocks", "redis", redis.uri), arguments, lambda: flush(redis)
    redis.stop()
    etcd.stop()


def test_a_lost_registry_and_index_are_restored(shared, tmp_path):
    first, arguments, lose = shared
    arguments.append("--elector.lease=1s")
    (tmp_path / "blocks").mkdir()
    manager = Manager(tmp_path / "m", *arguments, startup=first)
    api, file = Http(manager), tmp_path / "backup"
    store(api, KEYS)
    wait_marked(tmp_path / "blocks")
    assert f"{len(KEYS)} blocks" in back_up(manager, file)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    # After the backup: more blocks, and bytes that are deleted.
    store(api, [77, 78])
    assert code(api.call("meta", "RemoveCache", instance_id="i", block_keys=KEYS[-2:])) == "OK"
    status, said = tierce("restore", file, *arguments)
    assert status == 1 and "leads; stop all managers first" in said, said
    assert manager.stop() == 0
    status, said = tierce("restore", file, *arguments)
    assert status == 1 and "the registry is not empty: it has storage nfs_01" in said, said
    lose()
    status, said = tierce("restore", file, *arguments)
    assert status == 0, said
    assert f"1 storages, 1 instance groups, 1 instances, {len(KEYS)} blocks" in said
    assert "tierce storage adopt NAME --keep" in said
    manager = Manager(tmp_path / "m", *arguments, startup=first)
    api = Http(manager)
    wait_until(lambda: status_of(api)[0] == "unwell")
    assert "it has the mark of another registry" in status_of(api)[1]
    adopt(manager)
    assert read(api, KEYS) == KEYS[:-2], "blocks whose bytes were deleted are misses, the others are read"
    assert read(api, [77, 78]) == []
    store(api, KEYS)  # masked, and new blocks have files of their own
    store(api, [99])
    assert read(api, KEYS + [99]) == KEYS[:-2] + [99]
    assert manager.stop() == 0


def test_a_manager_that_tries_a_backup_deletes_nothing(tmp_path):
    """It runs beside the one that was backed up, with its storage."""
    whole = startup(tmp_path / "blocks", "local", "")
    (tmp_path / "blocks").mkdir()
    manager = Manager(tmp_path / "a", f"--registry.uri=local://{tmp_path}/registry", startup=whole)
    api, file = Http(manager), tmp_path / "backup"
    store(api, KEYS)
    wait_marked(tmp_path / "blocks")
    back_up(manager, file)
    for flags, status in (([], "unwell"), (["--restore.same_registry=true"], "well")):
        trial = Manager(tmp_path / "b", f"--restore.file={file}", *flags)
        other = Http(trial)
        if status == "unwell":
            assert code(other.call("meta", "RemoveCache", instance_id="i", block_keys=KEYS)) == "OK"
        wait_until(lambda s=status, o=other: status_of(o)[0] == s)
        assert trial.stop() == 0
        assert read(api, KEYS) == KEYS
    assert manager.stop() == 0


def test_a_manager_in_memory_restores_at_its_start(tmp_path):
    manager = Manager(tmp_path / "a")
    file = tmp_path / "backup"
    store(Http(manager), KEYS)
    back_up(manager, file)
    status, said = tierce("restore", file)
    assert status == 1 and "registry.uri is empty" in said, said
    assert manager.stop() == 0
    for flags, expected in (([], []), (["--restore.keep_slots=true"], KEYS)):
        manager = Manager(tmp_path / "b", f"--restore.file={file}", *flags)
        assert read(Http(manager), KEYS) == expected
        assert manager.stop() == 0
    status, said = tierce("restore", file, f"--registry.uri=local://{tmp_path}/registry")
    assert status == 1 and "the index of instance group default is in memory" in said, said
    file.write_bytes(file.read_bytes()[:-30])
    with pytest.raises(RuntimeError, match="cut short"):
        Manager(tmp_path / "b", f"--restore.file={file}")


def test_a_backup_that_fails_leaves_the_file_of_before(tmp_path):
    file = tmp_path / "backup"
    file.write_text("older")
    status, said = tierce("backup", file, "--url", "http://127.0.0.1:1")
    assert status == 1 and "no manager listens there" in said, said
    assert file.read_text() == "older"
    assert os.listdir(tmp_path) == ["backup"]
    assert tierce("backup")[0] == 2
    assert tierce("restore")[0] == 2
