# SPDX-License-Identifier: Apache-2.0
"""Accounts with roles and scopes: which calls they may make, on which instances, and what they see."""

import base64
import hashlib
import json
import re
import signal
import socket

import pytest

from manager_process import ROOT, Grpc, Http, Manager, free_port, stubs, wait_until

pytest.importorskip("grpc_tools")

RIGHTS = {"read": {"read"}, "write": {"write"}, "trim": {"trim"}, "user": {"read", "write", "trim"},
          "node": {"node"}, "admin": {"read", "write", "trim", "node", "admin"}}
SCOPES = ["*", "chat", "chat/i", "code", "chat/other"]

# What each call needs: the right, and what of its request must be in the scope.
META = {
    "RegisterInstance": ("write", "instance"), "GetInstanceInfo": ("read", "instance"),
    "GetCacheMeta": ("read", "instance"), "GetCacheLocation": ("read", "instance"),
    "StartWriteCache": ("write", "instance"), "FinishWriteCache": ("write", "instance"),
    "RenewWriteCache": ("write", "instance"), "RemoveCache": ("trim", "instance"),
    "TrimCache": ("trim", "instance"), "ReportCache": ("write", "instance"),
    "RegisterNode": ("node", "all"), "TakeMoves": ("node", "all"), "FinishMoves": ("node", "all"),
    "InvalidateNamespace": ("trim", "instance"), "HintCache": ("read", "instance"), "CommandWorker": ("admin", "group"),
    **{name: ("write", "group") for name in ("JoinDirectory", "ReportChunks", "LeaveDirectory")},
    **{name: ("read", "group") for name in ("FindChunks", "ListWorkers", "GetCommand")}}
KV_META = {
    "RegisterInstance": ("write", "instance"), "GetInstanceInfo": ("read", "instance"),
    "Get": ("read", "instance"), "PutStart": ("write", "instance"),
    "PutFinish": ("write", "instance"), "Remove": ("trim", "instance"), "Trim": ("trim", "instance")}
ADMIN = {
    **{name: ("admin", "all") for name in (
        "AddStorage", "EnableStorage", "DisableStorage", "RemoveStorage", "UpdateStorage",
        "CreateInstanceGroup", "UpdateInstanceGroup", "RemoveInstanceGroup", "AddAccount",
        "DeleteAccount", "ListAccount", "GenConfigSnapshot", "LoadConfigSnapshot", "LeaderDemote",
        "UpdateLeaderElectorConfig", "UpdateLogger", "ReadBackup", "AdoptStorage",
        "ScrubStorage", "DrainStorage")},
    **{name: ("admin", "instance") for name in (
        "GetCacheMeta", "RemoveCache", "RegisterInstance", "RemoveInstance", "GetInstanceInfo")},
    **{name: ("admin", "nothing") for name in (
        "ListStorage", "ListInstanceGroup", "GetMetrics", "CheckHealth", "GetManagerClusterInfo",
        "GetLeaderElectorConfig")},
    "GetInstanceGroup": ("admin", "group"), "ListInstanceInfo": ("admin", "part")}
DEBUG = {name: ("admin", "all") for name in ("InjectFault", "RemoveFault", "ClearFaults")}
NEEDS = {"meta": META, "kv_meta": KV_META, "admin": ADMIN, "debug": DEBUG}
ROUTES = {**dict.fromkeys(("/livez", "/readyz", "/openapi.json", "/", "/page.css", "/page.js")),
          **dict.fromkeys(("/api/page", "/api/curves", "/api/pilot", "/metrics", "/events"), "read")}
# Of the API of LMCache's controller, whose workers are of the group chat.
LMCACHE_ROUTES = {"/lookup": "read", "/query_instance": "read", "/query_worker_info": "read", "/check_finish": "read",
                  "/controller/workers": "read", "/controller/key-stats": "read", "/health": "read", "/clear": "admin",
                  "/pin": "admin", "/compress": "admin", "/decompress": "admin", "/move": "admin"}
HOLDS = {"instance": {"*", "chat", "chat/i"}, "group": {"*", "chat"},
         "part": {"*", "chat", "chat/i", "chat/other"}, "all": {"*"}, "nothing": set(SCOPES)}


def all_calls():
    """(service, method) of each row of rpcs.def."""
    text = (ROOT / "src/proto/kvcm/rpcs.def").read_text()
    return re.findall(r"^TIERCE_RPC\((\w+), \w+, (\w+),", text, re.M)


def sha(token):
    return hashlib.sha256(token.encode()).hexdigest()


def write_tokens(path, lines):
    path.write_text("".join(f"{line}\n" for line in lines))
    path.chmod(0o600)


def line_of(roles, scope, name=None):
    """A line whose token is its roles and scope."""
    token = f"{roles} {scope}"
    return f"{roles} {name or token.replace(' ', '@')} {sha(token)} {scope}"


def bearer(roles, scope):
    return {"Authorization": f"Bearer {roles} {scope}"}


def basic(name, password):
    return {"Authorization": "Basic " + base64.b64encode(f"{name}:{password}".encode()).decode()}


def as_of(manager, roles, scope):
    return Http(manager, bearer(roles, scope))


def status(reply):
    return reply["header"]["status"]


def register(api, group, instance, service="meta", **more):
    return status(api.call(service, "RegisterInstance", trace_id="t", instance_group=group,
                           instance_id=instance, block_size=4,
                           model_deployment={"model_name": "m", "dtype": "bf16", **more},
                           location_spec_infos=[{"name": "tp0", "size": 64}]))


def write(api, instance, keys):
    """The status of the first call that fails, or of the last."""
    started = api.call("meta", "StartWriteCache", trace_id="t", instance_id=instance,
                       block_keys=keys, write_timeout_seconds=30)
    if status(started)["code"] != "OK":
        return status(started)
    return status(api.call("meta", "FinishWriteCache", trace_id="t", instance_id=instance,
                           write_session_id=started["write_session_id"],
                           success_blocks={"offset": len(keys)}))


def hits(api, instance, keys):
    reply = api.call("meta", "GetCacheLocation", trace_id="t", instance_id=instance,
                     block_keys=keys, query_type="QT_PREFIX_MATCH")
    assert status(reply)["code"] == "OK", reply
    return len(reply["locations"])


EVERY_ACCOUNT = [(role, scope) for role in RIGHTS if role != "node" for scope in SCOPES] + [
    ("node", "*"), ("node", "chat"), ("read,write", "chat"), ("read,write,trim", "chat"), ("read,admin", "chat/i")]


@pytest.fixture(scope="module")
def manager(tmp_path_factory):
    """Groups chat and code with an instance and a storage each: i in nfs_01, j in nfs_02."""
    folder = tmp_path_factory.mktemp("tenants")
    tokens = folder / "tokens"
    write_tokens(tokens, [line_of(*account) for account in EVERY_ACCOUNT] + [
        "read,write restricted account chat", f"read both {sha('both-1')} chat", f"read both {sha('both-2')} code", f"admin old {sha('old')}", f"user engine {sha('engine')}"])
    port = free_port()
    manager = Manager(folder / "m", "--auth.required=true", f"--auth.token_file={tokens}",
                      f"--registry.uri=local://{folder}/registry", f"--lmcache.http_port={port}", "--lmcache.group=chat")
    manager.lmcache_port = port
    admin = as_of(manager, "admin", "*")
    assert status(admin.call("admin", "AddStorage", trace_id="t", storage={
        "global_unique_name": "nfs_02",
        "nfs": {"root_path": f"{folder}/nfs_02/", "key_count_per_file": 8}}))["code"] == "OK"
    group = admin.call("admin", "GetInstanceGroup", trace_id="t", name="default")["instance_group"]
    for name, storage in (("chat", "nfs_01"), ("code", "nfs_02")):
        reply = admin.call("admin", "CreateInstanceGroup", trace_id="t", instance_group={
            **group, "name": name, "storage_candidates": [storage]})
        assert status(reply)["code"] == "OK", reply
    assert register(admin, "chat", "i")["code"] == register(admin, "code", "j")["code"] == "OK"
    assert write(admin, "i", [1, 2, 3])["code"] == write(admin, "j", [1, 2])["code"] == "OK"
    yield manager
    assert manager.stop() == 0


# ---- every call ----------------------------------------------------------------------------------


def request_of(service, method, instance="i", group="chat"):
    """The fields of a request that name something."""
    messages = stubs()[service][0]
    fields = getattr(messages, method + "Request").DESCRIPTOR.fields_by_name
    values = {"trace_id": "t", "instance_id": instance, "instance_group": group, "name": group,
              "instance_group_name": group}
    return {name: value for name, value in values.items()
            if name in fields and fields[name].message_type is None}


class Caller:
    """One account, over HTTP or gRPC: how a call ends."""

    def __init__(self, manager, roles, scope, kind):
        headers = bearer(roles, scope)
        self.http = Http(manager, headers)
        self.grpc = None
        if kind == "grpc":
            self.grpc = Grpc(manager, (("authorization", headers["Authorization"]),))

    def end_of(self, service, method, fields):
        import grpc
        if self.grpc is not None:
            try:
                return self.end_of_reply(self.grpc.call(service, method, **fields))
            except grpc.RpcError as error:
                assert error.code().name == "PERMISSION_DENIED", error
                return "denied"
        path = "/api/" + ("kv/" if service == "kv_meta" else "") + method[0].lower() + method[1:]
        port = {"meta": "http", "kv_meta": "http", "admin": "admin_http", "debug": "debug_http"}
        code, body = self.http.raw(self.http.manager.ports[port[service]], path, json.dumps(fields))
        assert code in (200, 403), (code, body)
        return "denied" if code == 403 else self.end_of_reply(json.loads(body))

    @staticmethod
    def end_of_reply(reply):
        message = status(reply)["message"]
        return ("served" if "fault injection" in message else
                "refused" if "outside the scope" in message else message)

    def close(self):
        if self.grpc is not None:
            self.grpc.close()


def expected_end(roles, scope, right, target):
    rights = set().union(*(RIGHTS[role] for role in roles.split(",")))
    if right not in rights or (target == "all" and scope != "*"):
        return "denied"
    return "served" if scope in HOLDS[target] else "refused"


@pytest.mark.parametrize("kind", ["http", "grpc"])
def test_every_call_with_every_role_and_scope(manager, kind):
    """Served calls have no effect: they meet a fault on purpose, which is behind all checks."""
    admin = as_of(manager, "admin", "*")
    calls = all_calls()
    assert len(calls) > 40
    missing = [call for call in calls if call[1] not in NEEDS[call[0]]]
    assert missing == [], "calls of rpcs.def without a row here: which right do they need?"
    for method in {method for service, method in calls if service != "debug"}:
        assert status(admin.call("debug", "InjectFault", api_name=method,
                                 fault_type="FT_INTERNAL_ERROR"))["code"] == "OK"
    try:
        ends = {}
        for roles, scope in EVERY_ACCOUNT:
            caller = Caller(manager, roles, scope, kind)
            for service, method in calls:
                if service == "debug" and expected_end(roles, scope, "admin", "all") == "served":
                    continue
                right, target = NEEDS[service][method]
                end = caller.end_of(service, method, request_of(service, method))
                ends[roles, scope, service, method] = (end, expected_end(roles, scope, right, target))
            caller.close()
        wrong = {key: end for key, end in ends.items() if end[0] != end[1]}
        assert wrong == {}
        assert {end[0] for end in ends.values()} == {"served", "refused", "denied"}
    finally:
        assert status(admin.call("debug", "ClearFaults"))["code"] == "OK"


@pytest.mark.parametrize("kind", ["http", "grpc"])
def test_a_missing_and_a_forbidden_target_answer_the_same(manager, kind):
    for roles, scope in (("admin", "chat"), ("admin", "chat/i"), ("user", "chat")):
        headers = bearer(roles, scope)
        api = Http(manager, headers) if kind == "http" else Grpc(
            manager, (("authorization", headers["Authorization"]),))
        tried = 0
        for service, method in all_calls():
            right, target = NEEDS[service][method]
            if target not in ("instance", "group", "part") or right not in RIGHTS[roles]:
                continue

            def answer(instance, group):
                reply = api.call(service, method, **request_of(service, method, instance, group))
                reply["header"].pop("request_id")
                assert status(reply)["code"] != "OK"
                text = json.dumps(reply)
                return text.replace(f"instance {instance} ", "instance X ").replace(
                    f"group {group} ", "group Y ")

            assert answer("j", "code") == answer("none", "gone"), (service, method)
            assert "outside the scope" in answer("j", "code")
            tried += 1
        assert tried >= 16
        if kind == "grpc":
            api.close()


def test_routes(manager):
    text = (ROOT / "src/manager/api/needs.def").read_text()
    routes = re.findall(r'^TIERCE_NEED_ROUTE\("([^"]+)"', text, re.M)
    assert set(routes) == set(ROUTES) | set(LMCACHE_ROUTES), "routes without a row here: which right do they need?"
    for route, right in ROUTES.items():
        for headers in [{}, {"Authorization": "Bearer unknown"}] + [bearer(*a) for a in EVERY_ACCOUNT]:
            with socket.create_connection(("127.0.0.1", manager.ports["admin_http"]), 30) as s:
                lines = [f"{name}: {value}" for name, value in headers.items()]
                s.sendall("\r\n".join([f"GET {route} HTTP/1.1", "Host: localhost", *lines, "",
                                       ""]).encode())
                code = int(s.recv(4096).split()[1])
            roles = headers.get("Authorization", "").removeprefix("Bearer ").split(" ")[0].split(",")
            known = roles[0] in RIGHTS
            may = known and right in set().union(*(RIGHTS[role] for role in roles))
            assert code == (200 if right is None or may else 403 if known else 401), (route, headers)


def test_routes_of_lmcache(manager):
    for route, right in LMCACHE_ROUTES.items():
        method = "GET" if route.startswith("/controller/") else "POST"
        for account in [None] + EVERY_ACCOUNT:
            headers = bearer(*account) if account else {"Authorization": "Bearer unknown"}
            code, body = Http(manager, headers).raw(manager.lmcache_port, route, "{}", method)
            may = account and right in set().union(*(RIGHTS[role] for role in account[0].split(",")))
            if not account:
                assert code == 401, (route, account)
            elif may and account[1] in HOLDS["group"]:
                assert code in (200, 422, 501), (route, account, code)
            else:
                assert code == 403, (route, account, code)
                assert not may or b"chat" in body


def test_lines_of_before_keep_their_meaning(manager):
    admin, engine = ({"Authorization": f"Bearer {token}"} for token in ("old", "engine"))
    names = [g["name"] for g in Http(manager, admin).call("admin", "ListInstanceGroup")["instance_group"]]
    assert names == ["chat", "code", "default"]
    for instance, keys in (("i", [1, 2, 3]), ("j", [1, 2])):
        assert hits(Http(manager, engine), instance, keys) == len(keys)
    code, _ = Http(manager, engine).raw(manager.ports["admin_http"], "/api/listStorage", "{}")
    assert code == 403


# ---- one team and the other's cache --------------------------------------------------------------


def test_it_cannot_register_fill_or_trim_elsewhere(manager):
    team, admin = as_of(manager, "read,write,trim", "chat"), as_of(manager, "admin", "*")
    assert write(team, "i", [10, 11])["code"] == "OK" and hits(team, "i", [10, 11]) == 2
    for got in (register(team, "code", "new"), register(team, "code", "j"),
                register(team, "chat", "j"),            # another team's id in its own group
                register(team, "chat", "j", tp_size=7),  # and the differences are not told
                write(team, "j", [20])):
        assert got["code"] == "INSTANCE_NOT_EXIST" and "outside the scope" in got["message"], got
    for method, fields in (("TrimCache", {"strategy": "TS_REMOVE_ALL_CACHE"}),
                           ("RemoveCache", {"block_keys": [1, 2]})):
        reply = team.call("meta", method, trace_id="t", instance_id="j", **fields)
        assert status(reply)["code"] == "INSTANCE_NOT_EXIST", reply
    assert hits(admin, "j", [1, 2]) == 2 and hits(admin, "j", [20]) == 0
    instances = admin.call("admin", "ListInstanceInfo", trace_id="t", instance_group_name="code")
    assert [i["instance_id"] for i in instances["instance_info"]] == ["j"]
    assert register(team, "chat", "own")["code"] == "OK"
    assert status(admin.call("admin", "RemoveInstance", trace_id="t", instance_id="own",
                             instance_group="chat"))["code"] == "OK"


def test_a_session_belongs_to_its_instance(manager):
    """Who has another team's session id can neither end nor extend its write with an instance of his own."""
    admin, team = as_of(manager, "admin", "*"), as_of(manager, "read,write,trim", "chat")
    started = admin.call("meta", "StartWriteCache", trace_id="t", instance_id="j", block_keys=[30],
                         write_timeout_seconds=30)
    session = started["write_session_id"]
    for method, fields in (("FinishWriteCache", {"success_blocks": {"offset": 1}}),
                           ("RenewWriteCache", {})):
        reply = team.call("meta", method, trace_id="t", instance_id="i", write_session_id=session,
                          **fields)
        assert status(reply)["code"] != "OK", reply
    assert status(admin.call("meta", "FinishWriteCache", trace_id="t", instance_id="j",
                             write_session_id=session,
                             success_blocks={"offset": 1}))["code"] == "OK"
    assert hits(admin, "j", [30]) == 1


def test_a_scope_of_one_instance(manager):
    admin = as_of(manager, "admin", "*")
    assert register(admin, "chat", "sibling")["code"] == "OK"
    one = as_of(manager, "user", "chat/i")
    assert register(one, "chat", "i")["code"] == "OK" and write(one, "i", [40])["code"] == "OK"
    assert write(one, "sibling", [1])["code"] == "INSTANCE_NOT_EXIST"
    assert register(one, "chat", "another")["code"] == "INSTANCE_NOT_EXIST"
    own = as_of(manager, "read,admin", "chat/i")
    listed = own.call("admin", "ListInstanceInfo", trace_id="t", instance_group_name="chat")
    assert [i["instance_id"] for i in listed["instance_info"]] == ["i"]
    assert own.call("admin", "ListInstanceGroup")["instance_group"] == []
    assert status(admin.call("admin", "RemoveInstance", trace_id="t", instance_id="sibling",
                             instance_group="chat"))["code"] == "OK"


def test_an_administrator_of_a_group(manager):
    """Administers its instances, but not its quota or storages."""
    own = as_of(manager, "admin", "chat")
    assert [g["name"] for g in own.call("admin", "ListInstanceGroup")["instance_group"]] == ["chat"]
    assert [s["global_unique_name"] for s in own.call("admin", "ListStorage", trace_id="t")["storage"]] \
        == ["nfs_01"]
    listed = own.call("admin", "ListInstanceInfo", trace_id="t", instance_group_name="chat")
    assert [i["instance_id"] for i in listed["instance_info"]] == ["i"]
    assert register(own, "chat", "made", "admin")["code"] == "OK"
    assert status(own.call("admin", "RemoveInstance", trace_id="t", instance_id="made",
                           instance_group="chat"))["code"] == "OK"
    group = own.call("admin", "GetInstanceGroup", trace_id="t", name="chat")["instance_group"]
    code, _ = own.raw(manager.ports["admin_http"], "/api/updateInstanceGroup",
                      json.dumps({"trace_id": "t", "instance_group": group}))
    assert code == 403


# ---- what is shown -------------------------------------------------------------------------------


def labels_of(text):
    """(metric, labels) of each line."""
    found = re.findall(rb"^(\w+)(?:\{(.*)\})? [^ ]+$", text, re.M)
    return [(name.decode(), dict(re.findall(r'(\w+)="([^"]*)"', labels.decode())))
            for name, labels in found]


def test_metrics_are_those_of_the_scope(manager):
    def shown(scope):
        code, text = as_of(manager, "read", scope).raw(manager.ports["admin_http"], "/metrics", None,
                                                       "GET")
        assert code == 200
        return labels_of(text)

    everything = shown("*")
    assert {labels.get("instance_group") for _, labels in everything} == {None, "chat", "code", "default"}
    assert "both" in {labels.get("account") for _, labels in everything}
    for scope, storages in (("chat", {"nfs_01"}), ("chat/i", {"nfs_01"}), ("code", {"nfs_02"})):
        group, _, instance = scope.partition("/")
        seen = shown(scope)
        assert seen and all(series in [(n, labels) for n, labels in everything] for series in seen)
        expected = {name for name, labels in everything
                    if labels.get("instance_group") == group and (
                        labels.get("instance_id") == instance if instance else True)}
        extra = {"tierce_manager_is_leader", "tierce_data_storage_healthy_status"}
        accounts = {"tierce_manager_account_used_total", "tierce_manager_account_limited_calls_total"}
        assert {name for name, _ in seen} == expected | extra | accounts
        within = {line_of(*account).split()[1] for account in EVERY_ACCOUNT
                  if (account[1] == scope or account[1].startswith(scope + "/"))}
        # "both" has a line outside the scope, and its numbers are one.
        assert {labels["account"] for _, labels in seen if "account" in labels} == \
            within | ({"restricted"} if scope == "chat" else set())
        assert {labels.get("instance_group", group) for _, labels in seen} == {group}
        assert {labels["unique_name"] for _, labels in seen if "unique_name" in labels} == storages
        if instance:
            assert {labels.get("instance_id", instance) for _, labels in seen} == {instance}
    api = as_of(manager, "admin", "code").call("admin", "GetMetrics", trace_id="t")
    tags = [{t["tag_key"]: t["tag_value"] for t in m["metric_tags"]} for m in api["metrics"]]
    assert {t.get("instance_group", "code") for t in tags} == {"code"} and len(tags) > 10


def test_curves_are_those_of_the_scope(manager):
    for scope, groups, instances in (
            ("*", ["chat", "code"], ["i", "j"]), ("chat", ["chat"], ["i"]), ("chat/i", [], ["i"]),
            ("code", ["code"], ["j"])):
        code, text = as_of(manager, "read", scope).raw(manager.ports["admin_http"], "/api/curves",
                                                       None, "GET")
        assert code == 200
        got = json.loads(text)
        assert sorted(g["name"] for g in got["groups"]) == groups, scope
        assert sorted(i["id"] for i in got["instances"]) == instances, scope


def test_the_page_is_that_of_the_scope(manager):
    def page(scope):
        code, text = as_of(manager, "read", scope).raw(manager.ports["admin_http"], "/api/page", None,
                                                       "GET")
        assert code == 200
        return json.loads(text)

    everything = page("*")
    assert everything["has_all"] and len(everything["groups"]) == 3 and everything["calls"]
    wait_until(lambda: page("*")["samples"])
    for scope, groups, storages in (("chat", ["chat"], ["nfs_01"]), ("chat/i", [], ["nfs_01"]),
                                    ("code", ["code"], ["nfs_02"])):
        got = page(scope)
        assert not got["has_all"] and "calls" not in got and "reclaim" not in got
        assert [g["name"] for g in got["groups"]] == groups
        assert [s["name"] for s in got["storages"]] == storages
        assert "serving_bytes" not in got["storages"][0] and got["storages"][0]["used_share"] is None
        assert [i["id"] for i in got["instances"]] == (["j"] if scope == "code" else ["i"])
        assert got["instance_count"] == 1
        numbers = {g["number"] for g in got["groups"]}
        assert all({g[0] for g in s["groups"]} <= numbers and "calls" not in s for s in got["samples"])


class Events:
    """A stream of /events."""

    def __init__(self, manager, headers):
        self.socket = socket.create_connection(("127.0.0.1", manager.ports["admin_http"]), 30)
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        self.socket.sendall(f"GET /events HTTP/1.1\r\nHost: localhost\r\n{lines}\r\n".encode())
        self.data = b""
        wait_until(lambda: b"\r\n\r\n" in self.read())

    def read(self):
        """What has come; None at the end."""
        self.socket.settimeout(0.2)
        try:
            data = self.socket.recv(1 << 16)
        except TimeoutError:
            return self.data
        self.data += data
        return self.data if data else None

    def sources(self):
        return set(re.findall(rb'"source":"([^"]*)"', self.read() or self.data))

    def is_over(self):
        data = self.read()
        return data is None or data.endswith(b"0\r\n\r\n")


def test_events_are_those_of_the_scope(manager):
    streams = {scope: Events(manager, bearer("read", scope)) for scope in SCOPES}
    admin = as_of(manager, "admin", "*")

    def look():  # a subscription begins with the next turn of the log's thread
        for instance in ("j", "i"):
            hits(admin, instance, [1])
        return all(b"i" in streams[s].sources() for s in ("*", "chat", "chat/i")) and \
            b"j" in streams["code"].sources()

    wait_until(look)
    assert {scope: stream.sources() for scope, stream in streams.items()} == {
        "*": {b"i", b"j"}, "chat": {b"i"}, "chat/i": {b"i"}, "code": {b"j"}, "chat/other": set()}
    for stream in streams.values():
        stream.socket.close()


# ---- accounts of the registry --------------------------------------------------------------------


def test_a_line_restricts_an_account_of_the_registry(manager):
    admin = as_of(manager, "admin", "*")
    for name in ("restricted", "free"):
        assert status(admin.call("admin", "AddAccount", trace_id="t", user_name=name, password="p",
                                 role="ROLE_ADMIN"))["code"] == "OK"
    restricted, free = (Http(manager, basic(name, "p")) for name in ("restricted", "free"))
    assert hits(restricted, "i", [1, 2, 3]) == 3 and hits(free, "j", [1, 2]) == 2
    assert write(restricted, "j", [50])["code"] == "INSTANCE_NOT_EXIST"
    for api, code in ((restricted, 403), (free, 200)):
        assert api.raw(manager.ports["admin_http"], "/api/listAccount", "{}")[0] == code
    trim = json.dumps({"trace_id": "t", "instance_id": "i", "strategy": "TS_TIMESTAMP"})
    assert restricted.raw(manager.ports["http"], "/api/trimCache", trim)[0] == 403
    # The word "account" is no token, and the line does not replace the password.
    for headers in ({"Authorization": "Bearer account"}, {"Authorization": "Bearer "},
                    basic("restricted", "q")):
        assert Http(manager, headers).raw(manager.ports["http"], "/api/getInstanceInfo", "{}")[0] == 401


# ---- changing the file ---------------------------------------------------------------------------


@pytest.fixture
def changing(tmp_path):
    """A manager of its own, and a function that changes its file and returns the new lines of its log."""
    tokens = tmp_path / "tokens"
    write_tokens(tokens, [f"admin ops {sha('ops')}", f"user team {sha('old')} default"])
    manager = Manager(tmp_path / "m", "--auth.required=true", f"--auth.token_file={tokens}",
                      f"--registry.uri=local://{tmp_path}/registry")
    log = manager.folder / "logs" / "kv_cache_manager.log"

    def change(lines, event):
        before = len(log.read_text())
        write_tokens(tokens, lines)
        manager.process.send_signal(signal.SIGHUP)
        wait_until(lambda: event in log.read_text()[before:])
        return log.read_text()[before:]

    yield manager, change
    assert manager.stop() == 0


def code_of(manager, token, path="/api/getInstanceInfo", port="http"):
    return Http(manager, {"Authorization": f"Bearer {token}"}).raw(manager.ports[port], path,
                                                                   '{"instance_id":"i"}')[0]


def test_a_token_is_replaced_while_it_is_used(changing):
    manager, change = changing
    ops, team = f"admin ops {sha('ops')}", "user team {} default"
    api = {token: Http(manager, {"Authorization": f"Bearer {token}"}) for token in ("old", "new")}
    assert register(api["old"], "default", "i")["code"] == "OK"
    assert code_of(manager, "new") == 401
    change([ops, team.format(sha("old")), team.format(sha("new"))], "manager.read_again")
    for token in api:  # both, until all clients have the new one
        assert write(api[token], "i", [ord(token[0])])["code"] == "OK"
    change([ops, team.format(sha("new"))], "manager.read_again")
    assert code_of(manager, "old") == 401
    assert hits(api["new"], "i", [ord("o")]) == hits(api["new"], "i", [ord("n")]) == 1


def test_a_scope_changes_without_a_restart(changing):
    manager, change = changing
    ops, team = f"admin ops {sha('ops')}", f"{{}} team {sha('old')} {{}}"
    api = Http(manager, {"Authorization": "Bearer old"})
    assert register(api, "default", "i")["code"] == "OK"
    change([ops, team.format("user", "another")], "manager.read_again")
    assert write(api, "i", [1])["code"] == "INSTANCE_NOT_EXIST"
    change([ops, team.format("read", "default")], "manager.read_again")
    assert hits(api, "i", [1]) == 0
    body = '{"instance_id":"i","block_keys":[1],"write_timeout_seconds":5}'
    code, _ = api.raw(manager.ports["http"], "/api/startWriteCache", body)
    assert code == 403


@pytest.mark.parametrize("line, fault", [
    (f"user team {sha('new')} a/b/c", "line 2: the scope has more than one '/'"),
    (f"users team {sha('new')}", "line 2: a role must be"),
    ("user team new-secret", "line 2: the third word is neither"),
    (f"read ops {sha('ops')}", "line 2: another line of this token says otherwise")])
def test_a_line_that_is_invalid_changes_nothing(changing, line, fault):
    manager, change = changing
    text = change([f"admin ops {sha('ops')}", line], "manager.cannot_read_again")
    assert fault in text and "new-secret" not in text, text
    assert code_of(manager, "old") == 200 and code_of(manager, "new") == 401
    assert code_of(manager, "ops", "/api/listAccount", "admin_http") == 200


def test_a_manager_does_not_start_with_an_invalid_line(tmp_path):
    tokens = tmp_path / "tokens"
    write_tokens(tokens, [f"admin ops {sha('ops')}", f"admin team {sha('team')} chat/"])
    with pytest.raises(RuntimeError, match="line 2: a name of the scope is empty"):
        Manager(tmp_path / "m", "--auth.required=true", f"--auth.token_file={tokens}")


def test_streams_end_with_their_account(changing):
    """Of a token and of an account; those whose line stays go on."""
    manager, change = changing
    ops, watch = f"admin ops {sha('ops')}", f"read watch {sha('watch')}"
    change([ops, watch, f"user team {sha('old')} default"], "manager.read_again")
    admin = Http(manager, {"Authorization": "Bearer ops"})
    for name in ("leaving", "staying"):
        assert status(admin.call("admin", "AddAccount", trace_id="t", user_name=name, password="p",
                                 role="ROLE_USER"))["code"] == "OK"
    team, stays = (Events(manager, {"Authorization": f"Bearer {t}"}) for t in ("old", "watch"))
    leaving, staying = (Events(manager, basic(name, "p")) for name in ("leaving", "staying"))
    change([ops, watch, f"user team {sha('old')} another"], "manager.read_again")
    wait_until(team.is_over)
    assert status(admin.call("admin", "DeleteAccount", trace_id="t", user_name="leaving"))["code"] \
        == "OK"
    wait_until(leaving.is_over)
    assert register(admin, "default", "i")["code"] == "OK"
    for stream in (stays, staying):  # they still receive
        wait_until(lambda: hits(admin, "i", [1]) == 0 and b"i" in stream.sources())
    change([ops], "manager.read_again")
    wait_until(stays.is_over)
    change([ops, "read staying account another"], "manager.read_again")
    wait_until(staying.is_over)


# ---- limits --------------------------------------------------------------------------------------


def numbers_of(manager, metric):
    """{(account, kind): value} of a metric, as the operator sees it."""
    code, text = Http(manager, {"Authorization": "Bearer ops"}).raw(
        manager.ports["admin_http"], "/metrics", None, "GET")
    assert code == 200
    found = re.findall(rf'^tierce_manager_account_{metric}{{account="(\w+)",kind="(\w+)"}} (\S+)$',
                       text.decode(), re.M)
    return {(account, kind): float(value) for account, kind, value in found}


def test_requests_keys_and_bytes_have_limits(changing):
    """A limit so low that a second on a slow machine brings no new call: its balance is a debt of minutes."""
    import grpc
    manager, change = changing
    ops = f"admin ops {sha('ops')}"
    change([ops, f"user team {sha('team')} default keys=1", f"user team {sha('second')} default keys=1",
            f"user heavy {sha('heavy')} default bytes=1", f"user free {sha('free')} default"],
           "manager.read_again")
    team, second, heavy, free = (Http(manager, {"Authorization": f"Bearer {t}"})
                                 for t in ("team", "second", "heavy", "free"))
    assert register(free, "default", "i")["code"] == "OK"

    def start(api, keys):
        body = json.dumps({"instance_id": "i", "block_keys": keys, "write_timeout_seconds": 600})
        code, text = api.raw(manager.ports["http"], "/api/startWriteCache", body)
        return code, json.loads(text) if code == 200 else text.decode()

    # The first call is larger than the limit and passes; the account then pays for it.
    keys = list(range(600))
    code, started = start(team, keys)
    assert code == 200 and len(started["locations"]) == 600, started
    for api in (team, second):  # another token of the account is the same account
        code, text = start(api, [1000])
        assert code == 429 and "account team exceeds its limit of 1 keys a second; retry in" in text
    # The end of the write is not refused, nor are calls without keys, nor other accounts.
    assert status(team.call("meta", "FinishWriteCache", trace_id="t", instance_id="i",
                            write_session_id=started["write_session_id"],
                            success_blocks={"offset": 600}))["code"] == "OK"
    assert status(team.call("meta", "GetInstanceInfo", trace_id="t", instance_id="i"))["code"] == "OK"
    assert hits(free, "i", keys) == 600
    # Bytes are those of the located blocks: 64 for each.
    assert hits(heavy, "i", keys) == 600
    body = json.dumps({"instance_id": "i", "block_keys": [0], "query_type": "QT_PREFIX_MATCH"})
    code, text = heavy.raw(manager.ports["http"], "/api/getCacheLocation", body)
    assert code == 429 and "exceeds its limit of 1 bytes a second" in text.decode()
    api = Grpc(manager, (("authorization", "Bearer heavy"),))
    with pytest.raises(grpc.RpcError) as refused:
        hits(api, "i", [0])
    assert refused.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    assert "account heavy exceeds its limit" in refused.value.details()
    api.close()
    used, limited = numbers_of(manager, "used_total"), numbers_of(manager, "limited_calls_total")
    assert used["team", "keys"] == 600 and used["team", "bytes"] == used["heavy", "bytes"] == 600 * 64
    assert used["free", "keys"] == 600 and limited["free", "keys"] == 0
    assert limited["team", "keys"] == 2 and limited["heavy", "bytes"] == 2
    assert numbers_of(manager, "limit") == {("team", "keys"): 1, ("heavy", "bytes"): 1}
    # A changed file pays no debt.
    change([ops, f"user team {sha('team')} default keys=2"], "manager.read_again")
    assert start(team, [1000])[0] == 429
    change([ops, f"user team {sha('team')} default"], "manager.read_again")
    assert start(team, [1000])[0] == 200


def test_requests_have_a_limit_on_every_route(changing):
    manager, change = changing
    change([f"admin ops {sha('ops')}", f"user team {sha('team')} default requests=1"],
           "manager.read_again")
    api = Http(manager, {"Authorization": "Bearer team"})
    for port, path, method in (("http", "/api/getInstanceInfo", "POST"),
                               ("admin_http", "/metrics", "GET")):
        wait_until(lambda: api.raw(manager.ports[port], path, "{}", method)[0] == 429)
    wait_until(lambda: api.raw(manager.ports["http"], "/api/getInstanceInfo", "{}")[0] == 200)
    assert numbers_of(manager, "limited_calls_total")["team", "requests"] >= 2
    # A scope of a group sees the numbers of its own accounts.
    change([f"admin ops {sha('ops')}", f"user team {sha('team')} default",
            f"user other {sha('other')} another"], "manager.read_again")
    seen = labels_of(api.raw(manager.ports["admin_http"], "/metrics", None, "GET")[1])
    assert {labels["account"] for _, labels in seen if "account" in labels} == {"team"}


# ---- the audit log -------------------------------------------------------------------------------


def audit_of(manager):
    text = (manager.folder / "logs" / "audit.log").read_text()
    return [json.loads(line) for line in text.splitlines() if line]


def test_the_audit_log(changing):
    """A line for each call that administers, removes or is refused; no secrets."""
    manager, change = changing
    ops, team = (Http(manager, {"Authorization": f"Bearer {t}"}) for t in ("ops", "old"))
    assert register(team, "default", "i")["code"] == "OK"        # an engine's call: no line
    assert write(team, "i", [1])["code"] == "OK"
    ops.call("admin", "AddAccount", trace_id="t", user_name="u", password="secret-password")
    ops.call("admin", "AddStorage", trace_id="t", storage={
        "global_unique_name": "r", "redis": {"uri": "redis://localhost/0", "credentials_file": "/s"}})
    ops.call("admin", "RemoveStorage", trace_id="t", storage_unique_name="none")
    team.call("meta", "TrimCache", trace_id="t", instance_id="i", strategy="TS_REMOVE_ALL_CACHE")
    team.call("meta", "TrimCache", trace_id="t", instance_id="j \"x\"",
              strategy="TS_REMOVE_ALL_CACHE")
    body = json.dumps({"trace_id": "t", "user_name": "v", "password": "secret-password"})
    assert team.raw(manager.ports["admin_http"], "/api/addAccount", body)[0] == 403
    for headers in ({"Authorization": "Bearer secret-token"}, basic("u", "secret-guess"), {}):
        assert Http(manager, headers).raw(manager.ports["admin_http"], "/metrics", None, "GET")[0] \
            == 401
    api = Grpc(manager, (("authorization", "Bearer ops"),))
    api.call("admin", "ListStorage", trace_id="t")
    api.close()
    change([f"admin ops {sha('ops')}", f"read team {sha('old')} default requests=1"],
           "manager.read_again")
    wait_until(lambda: team.raw(manager.ports["admin_http"], "/metrics", None, "GET")[0] == 429)
    change(["root team secret-token"], "manager.cannot_read_again")
    wait_until(lambda: sum(line["what"] == "SIGHUP" for line in audit_of(manager)) == 2)
    lines = audit_of(manager)
    assert all(line["from"].startswith("127.0.0.1:") for line in lines if line["what"] != "SIGHUP")
    got = [(line["who"], line["what"], line["on"], line.get("over"), line["outcome"],
            line.get("code")) for line in lines]
    assert got == [
        ("ops", "AddAccount", {"user_name": "u"}, "http", "done", "OK"),
        ("ops", "AddStorage", {"storage": "r"}, "http", "done", "OK"),
        ("ops", "RemoveStorage", {"storage_unique_name": "none"}, "http", "failed", "INTERNAL_ERROR"),
        ("team", "TrimCache", {"instance_id": "i"}, "http", "done", "OK"),
        ("team", "TrimCache", {"instance_id": 'j "x"'}, "http", "scope", "INSTANCE_NOT_EXIST"),
        ("team", "AddAccount", {}, "http", "denied", None),
        ("", "/metrics", {}, "http", "unknown", None),
        ("u", "/metrics", {}, "http", "unknown", None),
        ("", "/metrics", {}, "http", "unknown", None),
        ("ops", "ListStorage", {}, "grpc", "done", "OK"),
        ("", "SIGHUP", {}, None, "done", None),
        ("team", "/metrics", {}, "http", "limited", None),
        ("", "SIGHUP", {}, None, "failed", None)]
    assert "has no right \"admin\", which AddAccount needs" in lines[5]["why"]
    assert "limit of 1 requests a second" in lines[11]["why"] and "line 1" in lines[12]["why"]
    text = (manager.folder / "logs" / "audit.log").read_text()
    assert "secret" not in text and sha("ops") not in text and "scrypt" not in text
    assert (manager.folder / "logs" / "audit.log").stat().st_mode & 0o777 == 0o600


def test_refused_calls_do_not_flood_the_audit_log(changing):
    """Above 100 a second they are counted; calls of administrators are written nevertheless."""
    manager, _ = changing
    ops, stranger = (Http(manager, {"Authorization": f"Bearer {t}"}) for t in ("ops", "unknown"))
    tries = 0

    def left_out():
        nonlocal tries
        for _ in range(300):
            assert stranger.raw(manager.ports["http"], "/api/trimCache", "{}")[0] == 401
        tries += 300
        ops.call("admin", "CheckHealth", trace_id="t")
        return sum(line.get("left_out", 0) for line in audit_of(manager)) > 0

    wait_until(left_out)  # a slow machine may need several seconds for 100 in one

    def all_accounted():
        lines = audit_of(manager)
        refused = sum(line["outcome"] == "unknown" for line in lines)
        return refused + sum(line.get("left_out", 0) for line in lines) == tries

    ops.call("admin", "CheckHealth", trace_id="t")
    wait_until(all_accounted)
    assert {line["what"] for line in audit_of(manager)} == {"TrimCache", "CheckHealth"}


def test_an_audit_log_may_be_switched_off(tmp_path):
    manager = Manager(tmp_path, "--log.audit=false")
    Http(manager).call("admin", "ListStorage", trace_id="t")
    assert not (manager.folder / "logs" / "audit.log").exists()
    assert (manager.folder / "logs" / "access.log").exists()
    assert manager.stop() == 0
