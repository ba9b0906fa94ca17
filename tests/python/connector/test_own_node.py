# SPDX-License-Identifier: Apache-2.0
"""Nodes that the connector starts: real ones, and processes that use them as workers of vLLM do."""

import errno
import fcntl
import json
import logging
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace as Thing

import pytest

from tierce import _core
from tierce.vllm import own_node
from tierce.vllm.identity import ConfigError, Unsupported

FOLDER = Path(__file__).resolve().parent
ROOT = FOLDER.parents[2]
sys.path.insert(0, str(FOLDER.parents[1] / "system"))

from manager_process import executable  # noqa: E402
from process_tree import descendants  # noqa: E402

SECONDS = 60
VALUES = {"memory.size": "16MiB", "node.executable": str(executable())}


def wait_until(condition, what=""):
    until = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < until, what() if callable(what) else what
        time.sleep(0.02)


class User:
    def __init__(self, folder, number, **wanted):
        self.log = folder / f"{number}.log"
        wanted["values"] = {**VALUES, **wanted.get("values", {})}
        environment = {k: v for k, v in os.environ.items() if not k.startswith("TIERCE_")}
        environment.update(wanted.pop("environment", {}), XDG_RUNTIME_DIR=str(folder),
                           PYTHONPATH=str(ROOT / "python"))
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen([sys.executable, str(FOLDER / "node_user.py"), json.dumps(wanted)],
                                            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True,
                                            env=environment)

    def answer(self):
        line = self.process.stdout.readline()
        assert line, self.log.read_text()
        return json.loads(line)

    def is_served(self):
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return self.answer()["answers"]

    def started(self):
        """The processes of the nodes that it started."""
        return [int(pid) for pid in re.findall(r"started a node for .*: process (\d+),", self.log.read_text())]

    def end(self):
        self.process.stdin.close()
        assert self.process.wait(SECONDS) == 0, self.log.read_text()

    def kill(self):
        self.process.kill()
        self.process.wait()


@pytest.fixture(autouse=True)
def lines_reach_caplog(monkeypatch):
    """A connector that another test made handles its lines itself."""
    monkeypatch.setattr(logging.getLogger("tierce"), "propagate", True)


@pytest.fixture
def folder():
    """Not tmp_path, which may be too long for the address of a socket."""
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


@pytest.fixture
def user(folder):
    made = []

    def start(**wanted):
        made.append(User(folder, len(made), **wanted))
        return made[-1]

    yield start
    for one in made:
        one.kill()
    for one in made:
        for pid in one.started():
            wait_until(lambda pid=pid: is_over(pid), f"node {pid} runs")


def is_over(pid):
    """Whether a process has ended with all of its threads, which may hold its files longer than the first one; init need not
    have reaped it."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        return state == "Z" and len(os.listdir(f"/proc/{pid}/task")) <= 1
    except (FileNotFoundError, ProcessLookupError):
        return True


def files(folder):
    return sorted(path.name for path in (folder / "tierce").iterdir())


# ---- one node for several processes --------------------------------------------------------------


def test_one_of_several_starts_the_node_and_it_ends_with_the_last(folder, user):
    users = [user() for _ in range(4)]
    answers = [one.answer() for one in users]
    assert [a.get("connected") for a in answers] == [1] * 4, answers
    assert len({a["values"]["node.socket"] for a in answers}) == 1
    (pid,) = [pid for one in users for pid in one.started()]
    assert len(files(folder)) == 3, files(folder)  # its lock file, its socket, and its control socket
    for one in users[:3]:
        one.kill()
    assert users[3].is_served() and not is_over(pid)
    users[3].kill()
    wait_until(lambda: is_over(pid))
    assert files(folder) == []


def test_a_user_that_leaves_waits_for_the_end_of_the_node(folder, user):
    one = user()
    one.answer()
    (pid,) = one.started()
    one.end()
    assert is_over(pid) and files(folder) == []
    assert "ends: no process uses it any more" in one.log.read_text()


def test_a_child_of_a_user_is_none(user):
    one = user(forks=True)
    child = one.answer()["child"]
    (pid,) = one.started()
    one.kill()
    try:
        wait_until(lambda: is_over(pid))
        assert not is_over(child)
    finally:
        os.kill(child, signal.SIGKILL)


def open_files(pid):
    """The paths of a process's descriptors, of which some may be closed in the meantime."""
    found = set()
    for fd in Path(f"/proc/{pid}/fd").iterdir():
        try:
            found.add(os.readlink(fd))
        except FileNotFoundError:
            pass
    return found


def test_a_user_that_waits_for_the_previous_node_takes_no_file_of_it(folder, user):
    """The file is unlinked before the lock is free."""
    one = user(engine="e")
    path = Path(one.answer()["values"]["node.socket"]).with_suffix(".lock")
    one.end()
    with open(path, "w") as previous:
        fcntl.flock(previous, fcntl.LOCK_EX)
        two = user(engine="e")
        wait_until(lambda: str(path) in open_files(two.process.pid))
        path.unlink()
    assert two.answer()["connected"] == 1 and path.exists()
    three = user(engine="e")
    assert three.answer()["connected"] == 1 and three.started() == []


def test_engines_have_nodes_of_their_own(user):
    one, two = user(engine="a"), user(engine="b")
    sockets = {u.answer()["values"]["node.socket"] for u in (one, two)}
    assert len(sockets) == 2 and len(one.started()) == len(two.started()) == 1


def test_a_shared_node_ends_with_the_last_engine(folder, user):
    shared = {"node.start": "shared"}
    one = user(engine="a", workers=1, values=shared)
    first = one.answer()["values"]
    two, other = user(engine="b", workers=1, values=shared), user(engine="c", workers=1,
                                                                 values={**shared, "memory.size": "17MiB"})
    second, third = two.answer()["values"], other.answer()["values"]
    assert first["node.socket"] == second["node.socket"] != third["node.socket"]
    assert (first["node.engine"], second["node.engine"]) == ("a", "b")
    (pid,) = one.started()
    assert two.started() == [] and len(other.started()) == 1
    one.end()
    assert two.is_served() and not is_over(pid)
    two.end()
    other.end()
    wait_until(lambda: is_over(pid) and files(folder) == [], lambda: files(folder))


def test_one_worker_starts_none_unless_it_is_told(user):
    assert "node.socket" not in user(workers=1).answer()["values"]
    assert user(workers=1, values={"node.start": "own"}).answer()["connected"] == 1


# ---- unexpected ends ------------------------------------------------------------------------------


def parent_of(pid):
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def command_of(pid):
    return Path(f"/proc/{pid}/cmdline").read_text()


def test_a_node_outlives_the_descendants_of_its_user(folder, user):
    """vLLM kills the descendants of its processes when it ends."""
    one = user(forks=True)
    child = one.answer()["child"]
    (pid,) = one.started()
    below = descendants(one.process.pid)
    assert child in below and pid not in below and parent_of(pid) != one.process.pid
    wait_until(lambda: "detached.py" not in command_of(parent_of(pid)))
    for each in below:
        os.kill(each, signal.SIGKILL)
    assert one.is_served() and not is_over(pid)
    one.kill()
    wait_until(lambda: is_over(pid))
    assert files(folder) == []


def test_a_user_that_is_killed_while_it_starts_a_node_leaves_no_process_but_the_node(folder, user):
    made = folder / "pid"
    waits = program(folder, f'[ "$1" = --version ] && exec echo tierce {_core.version()}\n'
                            f"echo $$ >{made}.new\nmv {made}.new {made}\nexec sleep 1000")
    one = user(values={"node.executable": waits})
    wait_until(made.exists, one.log.read_text)
    pid = int(made.read_text())
    try:
        helper = parent_of(pid)
        assert "detached.py" in command_of(helper)
        wait_until(lambda: not {pid, helper} & set(descendants(one.process.pid)))
        one.kill()
        wait_until(lambda: is_over(helper))
        assert not is_over(pid)
    finally:
        os.kill(pid, signal.SIGKILL)


def test_a_node_that_is_killed_is_started_again(user):
    """Any user starts it again, also if the user that started it is killed too."""
    users = [user(constants={"RESTART_PAUSE_S": 0.1}) for _ in range(3)]
    for one in users:
        one.answer()
    (starter,) = [one for one in users if one.started()]
    (pid,) = starter.started()
    others = [one for one in users if one is not starter]
    starter.kill()
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: sum(len(one.started()) for one in others) == 1)
    wait_until(lambda: all(one.is_served() for one in others))


def test_restarts_have_a_limit(folder, user):
    one = user(constants={"RESTART_PAUSE_S": 0.01})
    one.answer()
    for count in range(1, own_node.RESTARTS_MAX + 2):
        wait_until(lambda: len(one.started()) == count, one.log.read_text)
        os.kill(one.started()[-1], signal.SIGKILL)
    wait_until(lambda: "has exited 4 times within 10 min and is not started again" in one.log.read_text())
    assert not one.is_served()
    one.end()
    assert not [name for name in files(folder) if name.startswith("node-")]


def test_files_of_the_dead_are_removed_by_the_next(folder, user):
    one = user(engine="dead")
    one.answer()
    (pid,) = one.started()
    os.kill(pid, signal.SIGSTOP)  # so that it cannot end with its user
    one.kill()
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: is_over(pid))
    left = {name for name in files(folder) if name.startswith("node-")}
    assert len(left) == 2
    two = user(engine="alive")
    two.answer()
    assert not left & set(files(folder))


def test_foreign_things_in_the_folder_do_not_stop_an_engine(bare, folder, monkeypatch, caplog):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(folder))
    mine = Path(own_node.OwnNode(Thing(config_path=None, values=VALUES), "e", False, _core.version()).lock)
    (mine.parent / "node-x.lock").touch()
    (mine.parent / "node-x.sock").mkdir()
    own_node.remove_dead(str(mine.parent))
    assert re.search(r"cannot remove \S+/node-x\.sock, which .*: Is a directory", caplog.text), caplog.text
    for make in (mine.mkdir, lambda: mine.symlink_to("/nowhere")):
        make()
        with pytest.raises(Unsupported, match=rf"^{mine} cannot be opened as the lock file of a node: .*; remove it"):
            own_node.client_values(Thing(config_path=None, values=VALUES), 2, "e", _core.version())
        (mine.unlink if mine.is_symlink() else mine.rmdir)()
    Path(own_node.socket_of(str(mine))).mkdir()  # the node's own message reaches the caller
    with pytest.raises(Unsupported, match=r"status 1; its log ends: .*not a socket"):
        own_node.client_values(Thing(config_path=None, values=VALUES), 2, "e", _core.version())


def test_a_node_runs_although_its_start_cannot_be_noted(bare, folder, monkeypatch, caplog):
    def pwrite(fd, data, offset):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setenv("XDG_RUNTIME_DIR", str(folder))
    monkeypatch.setattr(os, "pwrite", pwrite)
    values, node = own_node.client_values(Thing(config_path=None, values=VALUES), 2, "e", _core.version())
    assert node.answers() and re.search(r"cannot write the lock file of its node: No space left on device", caplog.text)
    node.leave()
    assert values["node.socket"] == node.socket and files(folder) == []


# ---- nodes that do not start ---------------------------------------------------------------------


def program(folder, text):
    path = folder / "program"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


@pytest.mark.parametrize("content", [
    b"", b"{", b"[]", b"null", b"7", b'"starts"', b'{"starts": 5}', b'{"starts": ["a"]}', b'{"starts": [true]}',
    b'{"failed_at": null}', b'{"failure": 3}', b"\xff\xfe\x00", b"[" * 60000],
    ids=lambda content: content[:20].decode("latin-1"))
def test_notes_of_another_form_count_as_none(tmp_path, content):
    path = tmp_path / "lock"
    path.write_bytes(content)
    with open(path, "rb") as file:
        assert own_node.read_notes(file.fileno()) == {"starts": [], "failure": "", "failed_at": 0.0}


def test_notes_are_read_as_written(tmp_path):
    notes = {"starts": [1.5, 7], "failure": "no memory", "failed_at": 3.0}
    with open(tmp_path / "lock", "w+b") as file:
        own_node.write_notes(file.fileno(), notes)
        assert own_node.read_notes(file.fileno()) == notes


def test_an_executable_of_another_version_is_refused(folder):
    ours = _core.version()
    with pytest.raises(Unsupported, match=rf"program is 'tierce 9\.9\.9', and the Python module is tierce {ours}; install"):
        own_node.find_executable(program(folder, "echo tierce 9.9.9"), ours)
    with pytest.raises(Unsupported, match=r"program is 'another program'"):
        own_node.find_executable(program(folder, "exit 3"), ours)
    with pytest.raises(Unsupported, match=r"node\.executable /nowhere/tierce is not an executable file; install"):
        own_node.find_executable("/nowhere/tierce", ours)
    assert own_node.find_executable(program(folder, f"echo tierce {ours}"), ours) == str(folder / "program")


def test_where_the_executable_is_searched(folder, monkeypatch):
    ours = _core.version()
    (folder / "tierce").symlink_to(program(folder, f"echo tierce {ours}"))
    (folder / "scripts").mkdir()
    monkeypatch.setattr(own_node.sysconfig, "get_path", lambda name: str(folder / name))
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(Unsupported, match=r"no executable `tierce` in .*/scripts or in PATH; install .* set node\.socket"):
        own_node.find_executable("", ours)
    monkeypatch.setenv("PATH", str(folder))
    assert own_node.find_executable("", ours) == str(folder / "tierce")
    (folder / "scripts" / "tierce").symlink_to(folder / "program")
    assert own_node.find_executable("", ours) == str(folder / "scripts" / "tierce")


def test_a_node_that_does_not_start_gives_its_last_lines_to_all(folder, user):
    users = [user(values={"remote.urls": "nothing://x"}) for _ in range(3)]
    errors = [one.answer()["error"] for one in users]
    for error in errors:
        assert re.search(r"^Unsupported: \S+/tierce node exited with status 2; its log ends: .*nothing://", error), error
    for one in users:
        one.kill()
    assert files(folder) == []


def test_a_node_that_does_not_listen_is_given_up(folder, user):
    waits = program(folder, f'[ "$1" = --version ] && exec echo tierce {_core.version()}\necho it waits >&2\nexec sleep 1000')
    one = user(values={"node.executable": waits}, constants={"START_S": 0.5})
    error = one.answer()["error"]
    assert re.search(r"program node does not answer on \S+\.sock within 0 s; its log ends: it waits$", error), error
    assert files(folder) == []


def test_a_node_that_cannot_be_run_tells_why(bare, folder, monkeypatch):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(folder))
    monkeypatch.setattr(own_node, "find_executable", lambda named, wanted: named)
    gone = Thing(config_path=None, values={**VALUES, "node.executable": f"{folder}/gone"})
    with pytest.raises(Unsupported, match=rf"^{folder}/gone cannot be started: .*No such file or directory"):
        own_node.client_values(gone, 2, "e", _core.version())
    monkeypatch.setattr(sys, "executable", program(folder, "echo it is broken >&2\nexit 3"))
    with pytest.raises(Unsupported, match=r"/gone cannot be started: .*detached\.py exited with status 3; .*: it is broken$"):
        own_node.client_values(gone, 2, "e", _core.version())
    monkeypatch.setattr(sys, "executable", program(folder, "exec sleep 1000"))
    monkeypatch.setattr(own_node, "SPAWN_S", 0.2)
    with pytest.raises(Unsupported, match=r"/gone cannot be started: .*detached\.py has not run it within 0 s$"):
        own_node.client_values(gone, 2, "e", _core.version())
    assert files(folder) == []


def test_the_status_of_a_node_that_a_signal_ends(folder, user):
    dies = program(folder, f'[ "$1" = --version ] && exec echo tierce {_core.version()}\necho it dies >&2\nkill -9 $$')
    error = user(values={"node.executable": dies}).answer()["error"]
    assert re.search(r"program node exited with status -9; its log ends: it dies$", error), error


def test_a_folder_of_others_is_refused(folder, monkeypatch):
    (folder / "tierce").mkdir(mode=0o755)
    os.chmod(folder / "tierce", 0o755)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(folder))
    with pytest.raises(Unsupported, match="a folder for its socket: .* this user only"):
        own_node.runtime_folder()


def test_a_path_that_is_too_long_is_refused(folder, user):
    deep = folder / ("x" * 80)
    deep.mkdir()
    one = user(environment={}, values={})
    one.kill()
    node = User(deep, 0)
    assert "the path of the node's socket is too long" in node.answer()["error"]
    node.kill()


# ---- its configuration ---------------------------------------------------------------------------


def settings(config=None, **values):
    return Thing(config_path=config, values={k.replace("_", ".", 1): v for k, v in values.items()})


@pytest.fixture
def bare(monkeypatch):
    for name in [name for name in os.environ if name.startswith("TIERCE_")]:
        monkeypatch.delenv(name)


def test_who_starts_a_node(bare):
    assert not own_node.is_wanted(settings(), 1) and own_node.is_wanted(settings(), 2)
    assert own_node.is_wanted(settings(node_start="own"), 1)
    assert own_node.is_wanted(settings(node_start="shared"), 1)
    assert not own_node.is_wanted(settings(node_socket="/s"), 2)
    with pytest.raises(ConfigError, match="set only one of them"):
        own_node.is_wanted(settings(node_socket="/s", node_start="own"), 2)


def test_a_node_has_the_configuration_of_its_engine(bare, folder, monkeypatch):
    """File, environment and values, with increasing precedence; variables that a supervisor gave to vLLM are not
    passed on."""
    path = folder / "engine.yaml"
    path.write_text("memory: {size: 3MiB, pins: 10%}\ndisk: {size: 5MiB}\nstrict: false\n")
    for name, value in {"TIERCE_DISK_SIZE": "7MiB", "TIERCE_MEMORY_SIZE": "9MiB", "TIERCE_NODE_LIMIT_VALUE": "1MiB",
                        "TIERCE_NODE_ENGINE": "x", "TIERCE_VENV": "v", "TIERCE_PYTHON": "p", "TIERCE_CONFIG": "/c", "TIERCE_TEST_SEED": "1",
                        "TIERCE_STRICT": "false"}.items():
        monkeypatch.setenv(name, value)
    engine = settings(str(path), memory_size="11MiB", node_start="own", remote_urls=f"file://{folder}/r?a b")
    given = own_node.node_parameters(engine)
    printed = subprocess.run([executable(), "node", "--print-config"], check=True, capture_output=True, text=True,
                             env={**given, "TIERCE_NODE_CONFIG": str(path)}).stdout
    found = dict(re.findall(r"^  (size|pins|value|optional|start|urls): (\S+) +# (?!default)", printed, re.M))
    sizes = re.findall(r"^  size: (\S+) ", printed, re.M)
    assert sizes[:2] == ["11MiB", "7MiB"] and found["pins"] == "0.1"
    assert "value" not in found and "start" not in found and found["optional"] == "true"
    assert given["TIERCE_NODE_REMOTE_URLS"] == f"file://{folder}/r?a b"
    assert given["TIERCE_NODE_DISK_LOCK_WAIT"] == "20s"
    assert own_node.node_parameters(settings(disk_lock_wait="1s"))["TIERCE_NODE_DISK_LOCK_WAIT"] == "1s"
    engine.values["strict"] = "true"
    assert own_node.node_parameters(engine)["TIERCE_NODE_DISK_OPTIONAL"] == "false"


def test_the_key_of_shared_nodes(bare, folder, monkeypatch):
    path = folder / "engine.yaml"
    path.write_text("memory: {size: 3MiB}\n")
    keys = [own_node.settings_key(settings()), own_node.settings_key(settings(memory_size="1MiB")),
            own_node.settings_key(settings(str(path)))]
    path.write_text("memory: {size: 4MiB}\n")
    keys.append(own_node.settings_key(settings(str(path))))
    monkeypatch.setenv("TIERCE_MEMORY_SIZE", "5MiB")
    keys.append(own_node.settings_key(settings()))
    assert len(set(keys)) == len(keys)


def test_a_node_has_the_processors_of_the_parent_and_no_supervisor(user):
    several = os.sched_getaffinity(0)
    if len(several) == 1:
        pytest.skip("one processor")
    one = user(processors=[min(several)], environment={"NOTIFY_SOCKET": "/nowhere", "LISTEN_FDS": "1"})
    one.answer()
    (pid,) = one.started()
    assert os.sched_getaffinity(pid) == several
    environment = Path(f"/proc/{pid}/environ").read_text()
    assert "NOTIFY_SOCKET" not in environment and "LISTEN_FDS" not in environment.replace("TIERCE_NODE_LISTEN", "")


def test_workers_that_cannot_use_one_node_are_told_apart(bare, folder, monkeypatch):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(folder))
    alone, together = own_node.place(settings(), 1), own_node.place(settings(), 2)
    assert together.startswith(f"{alone} ") and own_node.place(settings(node_socket="/s"), 2) == alone
    (folder / "other").mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(folder / "other"))
    assert own_node.place(settings(), 2) not in (alone, together)
