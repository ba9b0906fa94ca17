# SPDX-License-Identifier: Apache-2.0
"""The directory of the chunks that workers hold, by its calls: reports, groups, a leader that begins anew, silence."""

import hashlib
import json
import random
import signal
import subprocess

import pytest

from manager_process import Grpc, Http, Manager, executable, free_port, wait_until
from node_process import Lm, Node

pytest.importorskip("grpc_tools")

TOKENS = {"all": "*", "chat": "chat", "code": "code", "one": "chat/i", "operator": "chat", "stranger": "code"}
OPERATORS = ("all", "operator", "stranger")
SILENCE_MS = 60000  # no worker of these tests reports on a clock


@pytest.fixture(scope="module")
def manager(tmp_path_factory):
    folder = tmp_path_factory.mktemp("directory")
    tokens = folder / "tokens"
    tokens.write_text("".join(
        f"{'admin' if name in OPERATORS else 'read,write'} {name} {hashlib.sha256(name.encode()).hexdigest()} {scope}\n"
        for name, scope in TOKENS.items()))
    tokens.chmod(0o600)
    manager = Manager(folder / "m", "--auth.required=true", f"--auth.token_file={tokens}",
                      f"--directory.silence={SILENCE_MS}ms", "--directory.senders=1")
    yield manager
    assert manager.stop() == 0


def api_of(manager, name):
    return Http(manager, {"Authorization": f"Bearer {name}"})


def status(reply):
    return reply["header"]["status"]


def ok(reply):
    assert status(reply)["code"] == "OK", reply
    return reply


def key(n):
    """The two halves of chunk n's key."""
    digest = hashlib.sha256(str(n).encode()).digest()
    return [int.from_bytes(digest[i:i + 8], "big", signed=True) for i in (0, 8)]


def keys(chunks):
    return [half for n in chunks for half in key(n)]


class Worker:
    """What an engine sends."""

    def __init__(self, api, name, takes_commands=True, **fields):
        self.api, self.name, self.fields, self.next, self.sending = api, name, fields, 1, 0
        self.takes_commands = takes_commands
        self.join()

    def join(self):
        reply = ok(self.api.call("meta", "JoinDirectory", worker=self.name, transfer_address="127.0.0.1:1",
                                 host_id="h", takes_commands=self.takes_commands, **self.fields))
        self.id = {"session": reply["session"], "slot": reply.get("slot", 0)}
        return reply

    def call(self, kind, **fields):
        self.sending += kind == "RK_BEGIN"
        if kind != "RK_CHANGES":
            fields.setdefault("sending", self.sending)
        return ok(self.api.call("meta", "ReportChunks", kind=kind, **self.id, **self.fields, **fields))

    def send(self, contents):
        """{chunk: tier}."""
        assert self.call("RK_BEGIN")["answer"] == "RA_DONE"
        assert self.call("RK_CONTENTS", keys=keys(contents),
                         tiers=list(contents.values()))["answer"] == "RA_DONE"
        assert self.call("RK_END", first=self.next - 1)["answer"] == "RA_DONE"

    def report(self, changes, gap=0):
        """(chunk, tier, is it admitted)."""
        first = self.next + gap
        reply = self.call("RK_CHANGES", first=first, keys=keys(n for n, _, _ in changes),
                          tiers=[tier + (0 if admitted else 8) for _, tier, admitted in changes])
        if reply["answer"] == "RA_DONE":
            self.next = first + len(changes)
        return reply["answer"]

    def leave(self):
        ok(self.api.call("meta", "LeaveDirectory", **self.id, **self.fields))


def find(api, chunks, **fields):
    return ok(api.call("meta", "FindChunks", keys=keys(chunks), **fields))


def prefixes(api, chunks, **fields):
    return {p["worker"]: p["keys"] for p in find(api, chunks, **fields).get("prefixes", [])}


def test_contents_and_changes(manager):
    api = api_of(manager, "chat")
    zone = "eu/row-2/rack-7"
    wrong = api.call("meta", "JoinDirectory", worker="a", zone="eu//7")
    assert status(wrong)["code"] == "INVALID_ARGUMENT" and "eu-1/row-2/rack-7" in status(wrong)["message"]
    worker = Worker(api, "a", transfer_tls=True, zone=zone)
    assert worker.report([(1, 0, True)]) == "RA_RESYNC"
    worker.send({n: n % 2 for n in range(10)})
    assert worker.report([(10, 1, True), (0, 0, False)]) == "RA_DONE"
    assert prefixes(api, range(12)) == {}
    reply = find(api, range(1, 12))
    assert [p["keys"] for p in reply["prefixes"]] == [10]
    assert reply["prefixes"][0]["in_tier"][:2] == [0, 1]
    run = {"worker": "a", "transfer_address": "127.0.0.1:1", "first": 0, "keys": 10, "slowest_tier": 1,
           "transfer_tls": True}
    assert [{name: got[name] for name in run} for got in reply["runs"]] == [run]
    assert reply["prefixes"][0]["transfer_tls"] and ok(api.call("meta", "ListWorkers"))["workers"][0]["transfer_tls"]
    assert worker.call("RK_CHANGES", first=worker.next, load=125, models="m-1, m-2")["answer"] == "RA_DONE"
    listed = ok(api.call("meta", "ListWorkers"))["workers"][0]
    assert (listed["zone"], listed["host_id"], listed["models"]) == (zone, "h", "m-1, m-2")
    for host, of, distance in (("h", "", 0), ("other", "", 1), ("other", zone, 1), ("other", "eu/row-2/rack-8/x", 3)):
        reply = find(api, range(1, 12), host_id=host, zone=of)
        for got in (reply["runs"][0], reply["prefixes"][0]):
            assert int(got["load"]) == 125 and got.get("same_host", False) is (distance == 0)
            assert got.get("distance", 0) == distance
    assert status(api.call("meta", "FindChunks", keys=keys([1]), zone="a b"))["code"] == "INVALID_ARGUMENT"
    assert worker.report([(20, 0, True)], gap=1) == "RA_RESYNC"
    assert prefixes(api, range(1, 12)) == {"a": 10}     # until it has sent its contents
    worker.next += 1
    worker.send({1: 0})
    assert prefixes(api, range(1, 12)) == {"a": 1}
    worker.leave()
    assert prefixes(api, range(1, 12)) == {}
    assert worker.call("RK_CHANGES")["answer"] == "RA_UNKNOWN"


def test_against_a_model(manager):
    """Random changes of two workers; every chunk is found exactly where it is."""
    dice, api = random.Random(7), api_of(manager, "chat")
    workers = [Worker(api, f"w{i}") for i in range(2)]
    held = [{}, {}]
    for worker in workers:
        worker.send({})
    for _ in range(60):
        i = dice.randrange(2)
        if dice.random() < 0.1:
            workers[i].send(held[i])
            continue
        changes = []
        for _ in range(dice.randrange(20)):
            chunk = dice.randrange(40)
            if chunk in held[i]:
                changes.append((chunk, held[i].pop(chunk), False))
            else:
                held[i][chunk] = dice.randrange(3)
                changes.append((chunk, held[i][chunk], True))
        assert workers[i].report(changes) == "RA_DONE"
    for chunk in range(40):
        found = {p["worker"]: p["in_tier"].index(1)
                 for p in find(api, [chunk]).get("prefixes", [])}
        assert found == {w.name: h[chunk] for w, h in zip(workers, held) if chunk in h}
    for worker in workers:
        worker.leave()


def test_groups(manager):
    chat, code, everything = (api_of(manager, name) for name in ("chat", "code", "all"))
    mine, theirs = Worker(chat, "same"), Worker(code, "same")
    mine.send({1: 0})
    assert prefixes(chat, [1]) == {"same": 1} and prefixes(code, [1]) == {}
    assert prefixes(everything, [1], instance_group="chat") == {"same": 1}
    assert prefixes(everything, [1]) == {}
    # A session of another group is one that does not exist.
    stranger = Worker(code, "stranger")
    stranger.id = mine.id
    assert stranger.call("RK_CHANGES")["answer"] == "RA_UNKNOWN"
    stranger.leave()
    assert mine.call("RK_CHANGES", first=1)["answer"] == "RA_DONE"
    listed = ok(chat.call("meta", "ListWorkers"))["workers"]
    assert [w["worker"] for w in listed] == ["same"] and int(listed[0]["tier_keys"][0]) == 1

    def on_page(name):
        code, body = api_of(manager, name).raw(manager.ports["admin_http"], "/api/page", None, "GET")
        assert code == 200
        return {(w["group"], w["name"]): w["tier_keys"][0] for w in json.loads(body)["workers"]}

    assert on_page("chat") == {("chat", "same"): 1} and on_page("one") == {}
    assert {("chat", "same"), ("code", "same")} <= set(on_page("all"))
    groups = sorted(w["instance_group"] for w in ok(everything.call("meta", "ListWorkers"))["workers"])
    assert {"chat", "code"} <= set(groups)
    for api, fields in ((chat, {"instance_group": "code"}), (api_of(manager, "one"), {})):
        for method, more in (("JoinDirectory", {"worker": "w"}), ("FindChunks", {}), ("ListWorkers", {})):
            got = status(api.call("meta", method, **fields, **more))
            assert got["code"] == "INSTANCE_NOT_EXIST" and "outside the scope" in got["message"]
    mine.leave()
    theirs.leave()


def test_the_secret_of_a_group(manager):
    """Its workers have one, other groups have others, and no log has any."""
    chat, code = api_of(manager, "chat"), api_of(manager, "code")
    a, b, c = Worker(chat, "a"), Worker(chat, "b"), Worker(code, "c")
    secret = a.join()["secret"]
    assert len(secret) == 64 and b.join()["secret"] == secret != c.join()["secret"]
    listed = ok(chat.call("meta", "ListWorkers"))["workers"]
    assert [w["transfer_address"] for w in listed] == ["127.0.0.1:1"] * 2
    assert [w["transfer_tls"] for w in listed] == [False] * 2
    several = "10.0.0.1:1,[::1]:2,h:3,h:4"
    ok(chat.call("meta", "JoinDirectory", worker="b", transfer_address=several))
    assert several in [w["transfer_address"] for w in ok(chat.call("meta", "ListWorkers"))["workers"]]
    b.join()
    for address in ("127.0.0.1", ":1", "h:70000", "h:1/x", "h:1,h:2,", "h:1,h", "h:1,h:2,h:3,h:4,h:5", "u@h:1", "h:" + "1" * 200):
        got = status(chat.call("meta", "JoinDirectory", worker="x", transfer_address=address))
        assert got["code"] == "INVALID_ARGUMENT" and "HOST:PORT" in got["message"], address
    logs = [path.read_text() for path in manager.folder.rglob("*.log")]
    assert any("JoinDirectory" in text for text in logs) and not any(secret in text for text in logs)
    for worker in (a, b, c):
        worker.leave()


def test_one_sends_at_a_time(manager):
    api = api_of(manager, "chat")
    a, b = Worker(api, "a"), Worker(api, "b")
    assert a.call("RK_BEGIN")["answer"] == "RA_DONE"
    reply = b.call("RK_BEGIN")
    assert reply["answer"] == "RA_LATER" and 0 < int(reply["wait_ms"]) <= SILENCE_MS / 2
    assert a.call("RK_END")["answer"] == "RA_DONE"
    b.send({1: 0})
    a.leave()
    b.leave()


@pytest.mark.parametrize("fields, why", [
    ({"keys": [1]}, "two for each chunk"), ({"keys": [1, 2], "tiers": []}, "one for each"),
    ({"keys": [1, 2], "tiers": [16]}, "accepted are 0 to 7"), ({"keys": [1, 2], "tiers": [-1]}, "accepted are"),
    ({"kind": "RK_CONTENTS", "sending": 1, "keys": [1, 2], "tiers": [8]}, "accepted are 0 to 7"),
    ({"kind": 4}, "kind is 4"), ({"kind": "RK_BEGIN"}, "sending is 0"),
    ({"kind": "RK_BEGIN", "sending": 1, "keys": [1, 2]}, "accepted are none in RK_BEGIN"), ({"first": -1}, "first is negative"),
    ({"keys": [0] * 8194, "tiers": [0] * 4097}, "at most 4096 chunks"),
    ({"results": [{"command": 1}] * 17}, "accepted are at most 16")])
def test_invalid_reports(manager, fields, why):
    import grpc
    api = Grpc(manager, (("authorization", "Bearer chat"),))
    try:
        got = status(api.call("meta", "ReportChunks", session=1, slot=70000, **fields))
        assert got["code"] == "INVALID_ARGUMENT" and why in got["message"]
    except grpc.RpcError as error:
        pytest.fail(str(error))
    finally:
        api.close()


def test_a_new_leader_knows_nobody(manager):
    api, admin = api_of(manager, "chat"), api_of(manager, "all")
    worker = Worker(api, "a")
    worker.send({1: 0})
    assert status(admin.call("admin", "LeaderDemote"))["code"] == "OK"
    wait_until(lambda: status(api.call("meta", "FindChunks"))["code"] == "OK")
    assert prefixes(api, [1]) == {}
    assert worker.report([(2, 0, True)]) == "RA_UNKNOWN"
    worker.join()
    worker.send({1: 0})
    assert prefixes(api, [1]) == {"a": 1}
    worker.leave()


def test_a_silent_worker_is_removed(tmp_path):
    """With all that it holds."""
    manager = Manager(tmp_path / "m", "--directory.silence=300ms")
    api = Http(manager)
    worker = Worker(api, "a")
    for kind, fields in (("RK_BEGIN", {}), ("RK_CONTENTS", {"keys": key(1), "tiers": [0]}), ("RK_END", {})):
        worker.call(kind, **fields)     # on a busy machine it is removed before the last one
    wait_until(lambda: ok(api.call("meta", "ListWorkers")).get("workers", []) == [])
    assert worker.call("RK_CHANGES")["answer"] == "RA_UNKNOWN"
    wait_until(lambda: b"tierce_directory_holder_count 0\n" in api.raw(
        manager.ports["admin_http"], "/metrics", None, "GET")[1])
    assert manager.stop() == 0


def test_commands_to_workers(manager):
    """A worker hears of a command in its next answer, until it has taken it; its operator gets the result."""
    api, operator, code = (api_of(manager, name) for name in ("chat", "operator", "code"))
    worker, older = Worker(api, "a"), Worker(api, "older", takes_commands=False)
    worker.send({1: 0})

    def command(by, **fields):
        return by.call("meta", "CommandWorker", **{"worker": "a", **fields})

    def state(number, by=operator):
        return by.call("meta", "GetCommand", command=number)

    number = ok(command(operator, action="WA_PIN", keys=key(1), pin_ms=5000))["command"]
    other = ok(command(operator, action="WA_CLEAR", tiers=[1, 1]))["command"]
    assert ok(state(number))["state"] == "CS_WAITING"
    for _ in range(2):      # the first answer may be lost
        first, second = worker.call("RK_CHANGES", first=1)["commands"]
    assert (first["command"], first["action"], first["pin_ms"]) == (number, "WA_PIN", "5000")
    assert [int(half) for half in first["keys"]] == key(1) and 0 < int(first["timeout_ms"]) <= 30000
    assert first["session"] == worker.id["session"]
    assert (second["command"], second["tiers"]) == (other, [1])
    assert [c["command"] for c in worker.call("RK_CHANGES", first=1, last_command=number)["commands"]] == [other]
    assert ok(state(number))["state"] == "CS_SENT"
    results = [{"command": number, "is_done": True, "chunks": 1},
               {"command": other, "message": "there is no tier 1"}]
    assert worker.call("RK_CHANGES", first=1, last_command=other, results=results).get("commands", []) == []
    got = ok(state(number))
    assert (got["worker"], got["action"], got["state"], int(got["chunks"])) == ("a", "WA_PIN", "CS_DONE", 1)
    got = ok(state(other))
    assert (got["state"], got["message"]) == ("CS_FAILED", "there is no tier 1")
    # The audit log names worker and action, and not each question for a result.
    audit = [json.loads(line) for line in next(manager.folder.rglob("audit.log")).read_text().splitlines()]
    given = [line for line in audit if "CommandWorker" in line["what"]]
    assert [line["on"] for line in given] == [{"worker": "a", "action": name} for name in ("WA_PIN", "WA_CLEAR")]
    assert not any("GetCommand" in line["what"] for line in audit)
    # Only the operator of the group, and only workers that take commands.
    for by in (api, code):
        assert by.raw(manager.ports["http"], "/api/commandWorker", '{"worker":"a","action":1}')[0] == 403
    assert status(state(number, code))["code"] == "INSTANCE_NOT_EXIST"
    assert status(command(api_of(manager, "stranger"), action="WA_HEALTH"))["code"] == "INSTANCE_NOT_EXIST"
    assert ok(state(number, api_of(manager, "all")))["state"] == "CS_DONE"
    assert status(command(operator, worker="older", action="WA_HEALTH"))["code"] == "UNSUPPORTED"
    for code_, fields, why in (
            ("INVALID_ARGUMENT", {"action": 9}, "action is 9"), ("INVALID_ARGUMENT", {}, "action is 0"),
            ("INVALID_ARGUMENT", {"action": "WA_PIN"}, "WA_PIN requires"),
            ("INVALID_ARGUMENT", {"action": "WA_CLEAR", "keys": key(1)}, "accepts none"),
            ("INVALID_ARGUMENT", {"action": "WA_HEALTH", "tiers": [1]}, "tiers must be empty for WA_HEALTH"),
            ("INVALID_ARGUMENT", {"action": "WA_CLEAR", "tiers": [8]}, "tiers is 8"),
            ("INVALID_ARGUMENT", {"action": "WA_MOVE", "keys": key(1), "from_tier": 1, "to_tier": 2}, "exactly one"),
            ("INVALID_ARGUMENT", {"action": "WA_PIN", "keys": key(1), "pin_ms": -1}, "pin_ms is -1"),
            ("INVALID_ARGUMENT", {"action": "WA_PIN", "keys": [0] * 2050}, "at most 1024"),
            ("INVALID_ARGUMENT", {"action": "WA_HEALTH", "timeout_ms": 600001}, "timeout_ms is 600001"),
            ("INVALID_ARGUMENT", {"action": "WA_NAME", "keys": key(1)}, "action is 7"),
            ("INVALID_ARGUMENT", {"action": "WA_PIN", "keys": key(1), "to_worker": "b"}, "to_worker is 'b'"),
            ("INVALID_ARGUMENT", {"action": "WA_MOVE", "keys": key(1), "from_tier": 1, "to_worker": "b"}, "to_tier 0"),
            ("INVALID_ARGUMENT", {"action": "WA_MOVE", "keys": key(1), "to_worker": "a"}, "the worker itself"),
            ("INSTANCE_NOT_EXIST", {"action": "WA_MOVE", "keys": key(1), "to_worker": "b"}, "worker b of group"),
            ("UNSUPPORTED", {"action": "WA_MOVE", "keys": key(1), "to_worker": "older"}, "takes no commands")):
        got = status(command(operator, **fields))
        assert got["code"] == code_ and why in got["message"], (fields, got)
    # It does not answer; it starts again; another leader.
    number = ok(command(operator, action="WA_HEALTH", timeout_ms=1))["command"]
    wait_until(lambda: state(number)["state"] == "CS_FAILED")
    assert "worker a sent no result within 1 ms" in state(number)["message"]
    number = ok(command(operator, action="WA_HEALTH"))["command"]
    worker.join()
    got = ok(state(number))
    assert got["state"] == "CS_FAILED" and "worker a has joined again" in got["message"]
    number = ok(command(operator, action="WA_HEALTH"))["command"]
    assert status(api_of(manager, "all").call("admin", "LeaderDemote"))["code"] == "OK"
    wait_until(lambda: status(api.call("meta", "FindChunks"))["code"] == "OK")
    got = status(state(number))
    assert got["code"] == "INSTANCE_NOT_EXIST" and "another leader" in got["message"]


def test_the_command_line(manager, tmp_path):
    token = tmp_path / "token"
    token.write_text("all\n")
    token.chmod(0o600)
    worker = Worker(api_of(manager, "chat"), "shown")
    worker.send({1: 0, 2: 1})

    def tierce(*arguments, code=0):
        done = subprocess.run(
            [str(executable()), "directory", *arguments, "--meta-url",
             f"http://127.0.0.1:{manager.ports['http']}", "--token-file", str(token)],
            capture_output=True, text=True)
        assert done.returncode == code, done
        return done.stdout + done.stderr

    line = next(line for line in tierce("list").splitlines() if "shown" in line)
    assert line.split()[:6] == ["shown", "chat", "127.0.0.1:1", "2", "1", "1"] and line.split()[-1] == "complete"
    text = [hashlib.sha256(str(n).encode()).digest()[:16].hex() for n in (1, 2, 3)]
    assert "shown" in tierce("find", "chat", *text) and "shown" not in tierce("find", "code", *text)
    assert "32 hexadecimal digits" in tierce("find", "chat", "12", code=2)
    worker.leave()


def command_nodes(manager):
    """Real workers carry out an operator's commands. A busy machine may keep a node silent for too long: again then."""
    def tierce(*arguments):
        done = subprocess.run([str(executable()), "directory", *arguments, "--meta-url",
                               f"http://127.0.0.1:{manager.ports['http']}"], capture_output=True, text=True)
        return f"{done.returncode} {done.stdout}{done.stderr}"

    names = {int(w["keys"]): w["worker"] for w in ok(Http(manager).call("meta", "ListWorkers"))["workers"]}
    for code, text, *arguments in (
            (0, "mode normal; tier 0 (memory): in service, 20 chunks", "health", "", names[20]),
            (0, "state: CS_DONE", "clear", "", names[30], "memory"),
            (1, "this engine has no disk", "compress", "", names[20]),
            (1, "1 are not in memory", "pin", "", names[20], "0" * 32),
            (1, "has no transfer address", "move", "", names[20], "0" * 32, "--to", names[30]),
            (2, "accepts GROUP WORKER KEY... --to WORKER", "move", "", names[20], "--to", names[30]),
            (1, "not in the directory", "health", "", "nobody"), (1, "command 7 is unknown", "result", "", "7")):
        wait_until(lambda: (lambda said: said.startswith(f"{code} ") and text in said)(tierce(*arguments)))


def test_nodes_report_what_they_hold(tmp_path):
    """Two nodes, and a manager that is killed and starts again: as many chunks are known as the nodes hold."""
    port = free_port()
    manager = Manager(tmp_path / "m", f"--listen.grpc_port={port}", "--directory.silence=1500ms")
    nodes = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        nodes.append(Node(tmp_path / name, f"--directory.manager=fleet://127.0.0.1:{port}"))

    def put(node, first, count):
        client = Lm(node)
        for i in range(first, first + count):
            client.put(f"m@1@0@{i:064x}@bfloat16", b"v" * (1 << 20))  # small ones share pages, which are not reported
            assert client.exist(f"m@1@0@{i:064x}@bfloat16")
        client.close()

    def is_known():
        workers = ok(Http(manager).call("meta", "ListWorkers")).get("workers", [])
        return (all(w["is_complete"] for w in workers) and sorted(int(w["keys"]) for w in workers) ==
                sorted(int(n.metric("memory_chunks_now")) for n in nodes))

    put(nodes[0], 0, 20)
    put(nodes[1], 10, 30)
    wait_until(is_known)
    assert sorted(int(n.metric("memory_chunks_now")) for n in nodes) == [20, 30]
    command_nodes(manager)
    wait_until(is_known)
    put(nodes[0], 0, 20)
    put(nodes[1], 10, 30)
    wait_until(is_known)
    manager.stop(signal.SIGKILL)
    put(nodes[0], 100, 7)
    manager.start()
    wait_until(is_known)
    nodes[1].kill()
    nodes.pop()
    wait_until(is_known)
    nodes[0].end()
    nodes.pop()
    assert is_known()    # it has left, and is not only silent
    assert manager.stop() == 0
