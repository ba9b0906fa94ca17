# SPDX-License-Identifier: Apache-2.0
"""A storage of the manager in a real server of S3: probed, written to by a client, deleted in."""

import importlib.util
import os
import socket
import subprocess
import sys

import pytest

from manager_process import Http, Manager, free_port, wait_until

KEYS = {"NANIO_ACCESS_KEY": "someone", "NANIO_SECRET_KEY": "something"}
BYTES = 6000


class Server:
    """nanio, which checks signatures and keeps each object as a file at its key."""

    def __init__(self, folder):
        if importlib.util.find_spec("nanio") is None:
            if os.environ.get("CI"):
                raise RuntimeError("nanio is missing: see tools/requirements-test.txt")
            pytest.skip("needs nanio")
        self.folder = folder / "data"
        (self.folder / "kv-cache").mkdir(parents=True)
        self.port = free_port()
        self.credentials = folder / "credentials"
        self.credentials.write_text("[default]\naws_access_key_id = someone\n"
                                    "aws_secret_access_key = something\n")
        self.start()

    def start(self):
        self.process = subprocess.Popen(
            [sys.executable, "-m", "nanio", "serve", "--data-dir", str(self.folder), "--host",
             "127.0.0.1", "--port", str(self.port), "--no-access-log", "--log-level", "warning"],
            env={**os.environ, **KEYS})

        def answers():
            with socket.socket() as s:
                return s.connect_ex(("127.0.0.1", self.port)) == 0

        wait_until(answers)

    def stop(self):
        self.process.kill()
        self.process.wait()

    def spec(self, name, **more):
        return {"global_unique_name": name, **more,
                "s3": {"endpoint": f"http://127.0.0.1:{self.port}", "bucket": "kv-cache",
                       "prefix": "pool/a", "credentials_file": str(self.credentials),
                       "is_path_style": True}}

    def path(self, uri):
        """Where the object of a URI is: PREFIX + the URI's path."""
        assert uri.startswith("s3://s3_01/")
        return self.folder / "kv-cache" / "pool/a" / uri[len("s3://s3_01/"):].split("?")[0]


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    server = Server(tmp_path_factory.mktemp("s3"))
    yield server
    server.stop()


@pytest.fixture(scope="module")
def manager(tmp_path_factory, server):
    manager = Manager(tmp_path_factory.mktemp("manager"), debug=False)
    try:
        set_up(Http(manager), server)
        yield manager
    finally:
        manager.stop()


def set_up(api, server):
    added = api.call("admin", "AddStorage", storage=server.spec(
        "s3_01", check_storage_available_when_open=True))
    assert code(added) == "OK", added
    group = {"name": "bucket", "storage_candidates": ["s3_01"], "max_instance_count": 2,
             "global_quota_group_name": "q", "quota": {"capacity": 10_000_000}, "version": 1,
             "cache_config": {
                 "reclaim_strategy": {"storage_unique_name": "s3_01", "reclaim_policy": "POLICY_LRU",
                                      "trigger_strategy": {"used_percentage": 0.9}},
                 "data_storage_strategy": "CPS_PREFER_3FS",
                 "meta_indexer_config": {
                     "max_key_count": 1000, "mutex_shard_num": 16, "batch_key_size": 16,
                     "meta_storage_backend_config": {"storage_type": "local"},
                     "meta_cache_policy_config": {"type": "LRU", "capacity": 100}}}}
    created = api.call("admin", "CreateInstanceGroup", instance_group=group)
    assert code(created) == "OK", created
    assert code(api.call("meta", "RegisterInstance", instance_group="bucket", instance_id="i @/x",
                         block_size=4, model_deployment={"model_name": "m", "dtype": "bf16"},
                         location_spec_infos=[{"name": "tp0", "size": BYTES}])) == "OK"


def code(reply):
    return reply["header"]["status"]["code"]


def state_of(api, name="s3_01"):
    return {s["global_unique_name"]: s["status"]
            for s in api.call("admin", "ListStorage")["storage"]}[name]


def write(api, server, keys):
    """Blocks of a client; returns the files behind them."""
    started = api.call("meta", "StartWriteCache", instance_id="i @/x", block_keys=keys,
                       write_timeout_seconds=60)
    assert code(started) == "OK", started
    files = [server.path(location["location_specs"][0]["uri"])
             for location in started["locations"]]
    for path in files:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x" * BYTES)
    assert code(api.call("meta", "FinishWriteCache", instance_id="i @/x",
                         write_session_id=started["write_session_id"],
                         success_blocks={"offset": len(files)})) == "OK"
    return files


def remove(api, keys):
    assert code(api.call("meta", "RemoveCache", instance_id="i @/x", block_keys=keys)) == "OK"


def test_blocks_are_deleted(manager, server):
    api = Http(manager)
    assert state_of(api) == "well"
    files = write(api, server, [1, 2, 3])
    located = api.call("meta", "GetCacheLocation", instance_id="i @/x", block_keys=[1, 2, 3],
                       query_type="QT_PREFIX_MATCH")
    assert [server.path(x["location_specs"][0]["uri"]) for x in located["locations"]] == files
    remove(api, [2, 3])  # from the end: a block's successors leave with it
    wait_until(lambda: not files[1].exists() and not files[2].exists())
    assert files[0].exists()
    remove(api, [1])
    wait_until(lambda: not files[0].exists())


def test_a_probe_leaves_nothing(manager, server):
    def probes():  # os.walk ignores folders that the server removes meanwhile
        return [name for _, _, names in os.walk(server.folder) for name in names
                if name.startswith("tierce-probe")]

    assert len(probes()) <= 1  # of the probe in progress
    wait_until(lambda: not probes())


def test_a_server_that_is_gone(manager, server):
    api = Http(manager)
    files = write(api, server, [11, 12])
    server.stop()
    wait_until(lambda: state_of(api) == "unwell")
    located = api.call("meta", "GetCacheLocation", instance_id="i @/x", block_keys=[11, 12],
                       query_type="QT_PREFIX_MATCH")
    assert code(located) == "OK" and located["locations"] == []
    remove(api, [12])
    assert all(path.exists() for path in files)
    server.start()
    wait_until(lambda: state_of(api) == "well")
    wait_until(lambda: not files[1].exists())  # the deletion is tried again
    assert files[0].exists()
    located = api.call("meta", "GetCacheLocation", instance_id="i @/x", block_keys=[11],
                       query_type="QT_PREFIX_MATCH")
    assert len(located["locations"]) == 1


def test_a_storage_that_cannot_be_used_is_rejected(manager, server):
    api = Http(manager)
    wrong = server.spec("s3_02", check_storage_available_when_open=True)
    wrong["s3"]["bucket"] = "missing-bucket"
    message = api.call("admin", "AddStorage", storage=wrong)["header"]["status"]
    assert message["code"] != "OK" and "write: " in message["message"], message
    wrong["s3"].update(bucket="kv-cache", credentials_file="/nonexistent/credentials")
    message = api.call("admin", "AddStorage", storage=wrong)["header"]["status"]
    assert message["code"] != "OK" and "/nonexistent/credentials" in message["message"], message
