# SPDX-License-Identifier: Apache-2.0
"""A manager as a process: it starts, ends, is killed, and reads its options."""

import json
import signal
import subprocess
import time

import pytest

from manager_process import Grpc, Http, Manager, executable
from test_manager import code, finish, group, locate, register, start, store

pytest.importorskip("grpc_tools")


def test_it_ends_at_once(tmp_path):
    manager = Manager(tmp_path)
    began = time.monotonic()
    assert manager.stop() == 0
    assert time.monotonic() - began < 10  # it waits for none of its timers
    assert sorted(p.name for p in tmp_path.iterdir()) == ["logs", "nfs", "startup.json",
                                                         "stderr.log"]


def test_two_managers_in_one_folder(tmp_path):
    """They would write to the same logs."""
    first = Manager(tmp_path)
    said = (tmp_path / "logs" / "kv_cache_manager.log").read_text()
    with pytest.raises(RuntimeError, match="another manager writes its logs to logs below the working "
                                           "directory; end it, or give this one another log.folder"):
        Manager(tmp_path)
    assert (tmp_path / "logs" / "kv_cache_manager.log").read_text() == said
    second = Manager(tmp_path, "--log.folder=other")
    assert second.stop() == 0
    first.stop(signal.SIGKILL)
    first.start()  # a killed manager leaves no lock
    assert first.stop() == 0


def test_another_address_needs_more(tmp_path):
    with pytest.raises(RuntimeError, match="insecure"):
        Manager(tmp_path, "--listen.host=0.0.0.0")


@pytest.mark.parametrize("kind", ["local", "rocksdb"])
def test_blocks_survive_kill_9(tmp_path, kind):
    registry = f"--registry.uri=local://{tmp_path}/registry.json"
    startup = Manager.usual_startup(storage=tmp_path / "nfs")
    indexer = startup["instance_group"]["cache_config"]["meta_indexer_config"]
    indexer["meta_storage_backend_config"] = {"storage_type": kind,
                                              "storage_uri": f"{tmp_path}/meta"}
    manager = Manager(tmp_path, registry, startup=startup)
    api = Http(manager)
    instance = register(api)
    store_keys = list(range(1, 101))
    store(api, instance, store_keys)
    open_session = start(api, instance, [1001, 1002])
    expected = locate(api, instance, store_keys)
    manager.stop(signal.SIGKILL)
    manager.start()
    api = Http(manager)
    assert locate(api, instance, store_keys) == expected
    # The session goes on: no other session writes its blocks, and its client finishes it.
    assert start(api, instance, [1001])["locations"] == []
    assert code(finish(api, instance, open_session["write_session_id"], {"offset": 2})) == "OK"
    assert len(locate(api, instance, [1001, 1002])) == 2
    metrics = manager.get("/metrics", "admin_http")[1].decode()
    line = next(l for l in metrics.splitlines()
                if l.startswith("tierce_cache_manager_group_serving_bytes"))
    assert float(line.split()[-1]) == 102 * 2048
    manager.stop()


def test_groups_share_a_quota(tmp_path):
    with pytest.raises(RuntimeError, match="NAME=SIZE"):
        Manager(tmp_path / "wrong", "--quota.groups=q:10")
    manager = Manager(tmp_path, "--quota.groups=q=10000,other=1GiB")
    api = Http(manager)
    instances = []
    for name in ("one", "two"):
        wide = group(name, capacity=1_000_000)
        assert code(api.call("admin", "CreateInstanceGroup", instance_group=wide)) == "OK"
        instances.append(register(api, instance_group=name))
    started = [start(api, instance, [1, 2, 3]) for instance in instances]
    assert [len(s["locations"]) for s in started] == [3, 1]  # four of 2048 bytes
    manager.stop()


def test_authentication(tmp_path):
    import base64
    import hashlib
    tokens = tmp_path / "tokens"
    lines = [f"{role} {name} {hashlib.sha256(token.encode()).hexdigest()}"
             for role, name, token in (("admin", "ops", "secret-a"), ("user", "engine", "secret-u"))]
    tokens.write_text("# role name digest\n" + "\n".join(lines) + "\n")
    tokens.chmod(0o600)
    manager = Manager(tmp_path, "--auth.required=true", f"--auth.token_file={tokens}")
    body = json.dumps({"user_name": "u", "password": "pw", "role": "ROLE_USER"})

    def status(header, port, path, content):
        headers = {"Authorization": header} if header else {}
        return Http(manager, headers).raw(manager.ports[port], path, content)[0]

    get = json.dumps({"instance_id": "x", "block_keys": [1], "query_type": 2})
    assert status(None, "http", "/api/getCacheLocation", get) == 401
    assert status("Bearer wrong", "http", "/api/getCacheLocation", get) == 401
    assert status("Bearer secret-u", "http", "/api/getCacheLocation", get) == 200
    assert status("Bearer secret-u", "admin_http", "/api/addAccount", body) == 403
    assert status("Bearer secret-a", "admin_http", "/api/addAccount", body) == 200
    basic = "Basic " + base64.b64encode(b"u:pw").decode()
    for _ in range(2):
        assert status(basic, "http", "/api/getCacheLocation", get) == 200
    wrong = "Basic " + base64.b64encode(b"u:no").decode()
    assert status(wrong, "http", "/api/getCacheLocation", get) == 401
    assert status(basic, "admin_http", "/api/listAccount", "{}") == 403
    reply = Http(manager, {"Authorization": "Bearer secret-a"}).call("admin", "DeleteAccount",
                                                                     user_name="u")
    assert code(reply) == "OK"
    assert status(basic, "http", "/api/getCacheLocation", get) == 401
    grpc = Grpc(manager, metadata=(("authorization", "Bearer secret-u"),))
    reply = grpc.call("meta", "GetInstanceInfo", instance_id="x")
    assert code(reply) == "INSTANCE_NOT_EXIST"
    import grpc as grpc_module
    with pytest.raises(grpc_module.RpcError) as error:
        grpc.call("admin", "ListStorage")
    assert error.value.code() == grpc_module.StatusCode.PERMISSION_DENIED
    assert "secret" not in (tmp_path / "logs" / "access.log").read_text()
    assert '"pw"' not in (tmp_path / "logs" / "access.log").read_text()
    manager.stop()


def test_events_are_read_by_the_optimizer(tmp_path):
    manager = Manager(tmp_path)
    api = Http(manager)
    instance = register(api)
    for _ in range(2):
        locate(api, instance, [1, 2, 3])
        store(api, instance, [1, 2, 3])
    manager.stop()
    out = subprocess.run([str(executable()), "optimize", str(tmp_path / "logs" / "event_publisher.log"),
                          "--policy", "lru", "--capacity", "100", "--csv", "-"],
                         capture_output=True, text=True, check=True).stdout
    row = out.splitlines()[1].split(",")
    assert row[5:8] == ["4", "6", "3"] or int(row[7]) == 3, out
