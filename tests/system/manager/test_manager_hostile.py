# SPDX-License-Identifier: Apache-2.0
"""Permissions for each call, and a manager's reaction to modified files."""

import base64
import hashlib
import json
import random

import pytest

from manager_process import Grpc, Http, Manager, stubs

pytest.importorskip("grpc_tools")

SERVICES = {"meta": ("meta", "MetaService"), "kv_meta": ("kv_meta", "MetaService"),
            "admin": ("admin", "AdminService"), "debug": ("debug", "DebugService")}


def every_rpc():
    for service, (module, name) in SERVICES.items():
        for method in stubs()[module][0].DESCRIPTOR.services_by_name[name].methods:
            yield service, method.name


def code(reply):
    return reply["header"]["status"]["code"]


# ---- permissions ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def guarded(tmp_path_factory):
    folder = tmp_path_factory.mktemp("guarded")
    tokens = folder / "tokens"
    tokens.write_text("".join(f"{role} {role} {hashlib.sha256(role.encode()).hexdigest()}\n"
                              for role in ("admin", "user")))
    tokens.chmod(0o600)
    manager = Manager(folder, "--auth.required=true", f"--auth.token_file={tokens}")
    admin = Http(manager, {"Authorization": "Bearer admin"})
    for role in ("user", "admin"):
        assert code(admin.call("admin", "AddAccount", user_name=f"{role}-é", password="p:w é",
                               role=f"ROLE_{role.upper()}")) in ("OK", "INVALID_ARGUMENT")
    yield manager
    assert manager.stop() == 0


def show(who):
    return {} if who is None else {"Authorization": f"Bearer {who}"}


def http_status(manager, service, method, headers):
    port = {"meta": "http", "kv_meta": "http", "admin": "admin_http", "debug": "debug_http"}[service]
    path = "/api/" + ("kv/" if service == "kv_meta" else "") + method[0].lower() + method[1:]
    return Http(manager, headers).raw(manager.ports[port], path, "{}")[0]


OF_OTHERS = ("RegisterNode", "TakeMoves", "FinishMoves", "CommandWorker")  # of the roles `node` and `admin`


@pytest.mark.parametrize("who", [None, "nobody", "user"])
def test_every_call_over_http_knows_who_may(guarded, who):
    for service, method in every_rpc():
        allowed = who == "user" and service in ("meta", "kv_meta") and method not in OF_OTHERS
        expected = 200 if allowed else 403 if who == "user" else 401
        assert http_status(guarded, service, method, show(who)) == expected, (service, method)


@pytest.mark.parametrize("who", [None, "nobody", "user"])
def test_every_call_over_grpc_knows_who_may(guarded, who):
    import grpc
    metadata = () if who is None else (("authorization", f"Bearer {who}"),)
    api = Grpc(guarded, metadata=metadata)
    for service, method in every_rpc():
        try:
            api.call(service, method)
            got = "OK"
        except grpc.RpcError as error:
            got = error.code().name
        allowed = who == "user" and service in ("meta", "kv_meta") and method not in OF_OTHERS
        expected = ("OK" if allowed else
                    "PERMISSION_DENIED" if who == "user" else "UNAUTHENTICATED")
        assert got == expected, (service, method)
    api.close()


@pytest.mark.parametrize("path", ["/metrics", "/events", "/api/page"])
def test_pages_need_somebody(guarded, path):
    assert Http(guarded).raw(guarded.ports["admin_http"], path, None, "GET")[0] == 401


@pytest.mark.parametrize("shown", [
    "", "Bearer", "Bearer ", "Bearer  admin", "Bearer admin ", "bearer", "Basic", "Basic ",
    "Basic =", "Basic ====", "Basic QQ==", "Basic !!!!", "Basic " + "A" * 4000,
    "Basic " + base64.b64encode(b":").decode(), "Basic " + base64.b64encode(b"a\0:b").decode(),
    "Basic " + base64.b64encode(b"admin:admin").decode(),
    "Basic " + base64.b64encode(b"\xff\xfe:\x80").decode(),
    "Basic " + base64.b64encode(b"x" * 2000 + b":y").decode(), "Digest admin", "Bearer ad min"])
def test_odd_credentials_let_nobody_in(guarded, shown):
    assert http_status(guarded, "meta", "GetInstanceInfo", {"Authorization": shown}) == 401


# ---- reading back --------------------------------------------------------------------------------


def filled(folder):
    """A registry file with a bit of everything in it, and what a manager shows of it."""
    manager = Manager(folder, f"--registry.uri=local://{folder}/registry")
    api = Http(manager)
    for i in range(3):
        assert code(api.call("meta", "RegisterInstance", trace_id="r", instance_group="default",
                             instance_id=f"i{i}", block_size=4,
                             model_deployment={"model_name": "m", "dtype": "bf16"},
                             location_spec_infos=[{"name": "tp0", "size": 64}])) == "OK"
    assert code(api.call("admin", "AddAccount", user_name="ops", password="pw",
                         role="ROLE_ADMIN")) == "OK"
    snapshot = api.call("admin", "GenConfigSnapshot")
    assert manager.stop() == 0
    return snapshot


def starts(folder):
    """Whether a manager leads with the existing files; if not, it states the reason. It ends
    well."""
    manager = Manager(folder, f"--registry.uri=local://{folder}/registry", ready=False)
    api = Http(manager)
    try:
        for _ in range(500):
            status, body = api.raw(manager.ports["http"], "/readyz", None, "GET")
            if status == 200 or b"cannot lead" in body:
                break
        assert status == 200 or b"cannot lead" in body, body
        if status != 200:
            reply = api.call("meta", "GetInstanceInfo", instance_id="i0")
            assert code(reply) == "SERVER_NOT_LEADER"
            assert "cannot lead: " in reply["header"]["status"]["message"]
            reply = api.call("admin", "GetManagerClusterInfo")
            assert "cannot lead: " in reply["header"]["status"]["message"]
            return None
        return api.call("admin", "ListInstanceInfo", instance_group_name="default")
    finally:
        assert manager.stop() == 0


def test_a_damaged_registry_is_refused_with_its_reason(tmp_path):
    """Truncated anywhere, or with any bit flipped: the manager leads with the stored data, or
    states why it cannot; it neither crashes nor starts empty."""
    filled(tmp_path / "a")
    good = starts(tmp_path / "a")["instance_info"]
    assert len(good) == 3
    path = tmp_path / "a" / "registry"
    whole = path.read_bytes()
    dice = random.Random(5)
    changes = [whole[:cut] for cut in (0, 1, len(whole) // 2, len(whole) - 1)]
    for _ in range(12):
        at = dice.randrange(len(whole))
        changes.append(whole[:at] + bytes([whole[at] ^ 1 << dice.randrange(8)]) + whole[at + 1:])
    changes += [whole + b"x", whole + whole, b"\0" * len(whole), b"{}", b"[]", b"null"]
    for change in changes:
        path.write_bytes(change)
        shown = starts(tmp_path / "a")
        assert shown is None, change[:80]
    path.write_bytes(whole)
    assert starts(tmp_path / "a")["instance_info"] == good


@pytest.mark.parametrize("kind", ["folder", "link", "unreadable"])
def test_a_registry_that_is_no_file_is_refused(tmp_path, kind):
    (tmp_path / "a").mkdir()
    path = tmp_path / "a" / "registry"
    if kind == "folder":
        path.mkdir()
    elif kind == "link":
        path.symlink_to(tmp_path / "nowhere" / "else")
    else:
        path.write_bytes(b"\xff" * 100)
    assert starts(tmp_path / "a") is None


def test_a_snapshot_that_was_changed_changes_all_or_nothing(tmp_path):
    text = filled(tmp_path / "a")["config_snapshot"]
    manager = Manager(tmp_path / "b")
    api = Http(manager)
    dice = random.Random(7)
    for _ in range(200):
        changed = list(text)
        for _ in range(dice.choice((1, 1, 3))):
            at = dice.randrange(len(changed))
            what = dice.randrange(3)
            if what == 0:
                changed[at] = dice.choice('{}[]",:0-9eE.\\x')
            elif what == 1:
                del changed[at:at + dice.randrange(1, 40)]
            else:
                changed[at:at] = changed[at:at + dice.randrange(1, 40)]
        before = api.call("admin", "GenConfigSnapshot")["config_snapshot"]
        reply = api.call("admin", "LoadConfigSnapshot", config_snapshot="".join(changed))
        if code(reply) != "OK":
            assert reply["header"]["status"]["message"]
            assert api.call("admin", "GenConfigSnapshot")["config_snapshot"] == before
    assert manager.stop() == 0


# ---- persistent state ----------------------------------------------------------------------------


def test_no_password_is_in_a_log(tmp_path):
    """An index in Redis is named by a URI, in which there may be one."""
    manager = Manager(tmp_path / "m", "--log.level=debug")
    api = Http(manager)
    group = manager.usual_startup(manager.storage)["instance_group"]
    group["cache_config"]["meta_indexer_config"]["meta_storage_backend_config"] = {
        "storage_type": "redis", "storage_uri": "redis://name:s3cr3t\"/@@127.0.0.1:1/0"}
    group.update(name="r", user_data="redis-cluster://:s3cr3t@a,b http://@")
    api.call("admin", "CreateInstanceGroup", instance_group=group)
    api.call("admin", "UpdateInstanceGroup", instance_group=group)
    api.call("admin", "GetInstanceGroup", name="r")
    api.call("meta", "RegisterInstance", instance_group="r", instance_id="i", block_size=4,
             model_deployment={"model_name": "m", "dtype": "d"},
             location_spec_infos=[{"name": "a", "size": 1}])
    api.call("admin", "AddAccount", user_name="u", password="s3cr3t")
    assert manager.stop() == 0
    written = [(manager.folder / "stderr.log"), *(manager.folder / "logs").iterdir()]
    assert [f.name for f in written if "s3cr3t" in f.read_text()] == []
    lines = (manager.folder / "logs" / "access.log").read_text().splitlines()
    shown = [json.loads(line) for line in lines]
    assert any(entry["api_name"] == "CreateInstanceGroup" and "redis://***@" in str(entry)
               for entry in shown)
