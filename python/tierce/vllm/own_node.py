# SPDX-License-Identifier: Apache-2.0
"""A `tierce node` that the connector starts: for several workers of an engine, or for several engines.

Two files in the runtime folder belong to a node: `node-KEY.sock`, its socket, and `node-KEY.lock`. Each worker that uses
the node holds a shared lock (flock) on the lock file until it ends. The process that starts the node takes a record lock
on the same file, and the node inherits it. The kernel releases both locks when a process ends, also after SIGKILL:

- the worker that gets the record lock starts the node; the other workers wait for the socket;
- when no process holds the shared lock, the node removes the file and exits (`tierce node --users FILE`);
- each worker waits for the record lock. When a worker gets it, the node has exited, and the worker starts the next
node."""

from __future__ import annotations

import fcntl
import hashlib
import json
import logging
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import sysconfig
import threading
import time
from collections import deque
from contextlib import contextmanager, suppress

from . import processors
from .identity import ConfigError, Unsupported
from .link import LinkError, private_folder

log = logging.getLogger(__name__)

START_S = 60.0  # limit for a started node to answer on its socket
SPAWN_S = 60.0  # limit for detached.py to tell the process id of a node
STATUS_S = 1.0  # limit for the exit status of a node whose lines have ended
LEAVE_S = 4.0  # limit of the wait for the node's exit; vLLM kills workers that take 5 s
LOCK_WAIT_S = 20  # more than the sum of the defaults of serve.drain and timeout.close
POLL_S = 0.05
RESTARTS_MAX, RESTARTS_S = 3, 600.0  # at most this number within this time
RESTART_PAUSE_S = 1.0  # the cause that ended the node may end this process next
LINES_KEPT, LINES_TOLD = 20, 3
RECORD = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)  # struct flock: the whole file
SUPERVISOR = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID", "LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES")
OTHER_VARIABLES = ("CONFIG", "PYTHON", "VENV", "STRICT")
OTHER_PREFIXES = ("MANAGER_", "NODE_", "PLUGIN_", "PLUGINS_", "TEST_")
REMEDY = "install the executable of this version (pip install or make install), name it in node.executable, or start a node and set node.socket"

# ---- settings -------------------------------------------------------------------------------------------------------


def setting(settings, name: str) -> str:
    from tierce import _core

    return _core.Engine.setting(settings.config_path, dict(settings.values), name)


def is_wanted(settings, workers: int) -> bool:
    """Whether the connector starts a node. Raises ConfigError."""
    start, running = setting(settings, "node.start"), setting(settings, "node.socket")
    if running and start != "auto":
        raise ConfigError(f"node.socket uses a running node, but node.start: {start} starts a node: set only one of them")
    return not running and (start != "auto" or workers > 1)


def place(settings, workers: int) -> str:
    """A text that is equal in all processes that can use the same node. Raises Unsupported or ConfigError."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            host = file.read().strip()
    except OSError:
        host = socket.gethostname()
    if not is_wanted(settings, workers):
        return host
    status = os.stat(runtime_folder())  # each container of a host may have its own folder
    return f"{host} {status.st_dev}:{status.st_ino}"


def runtime_folder() -> str:
    """The folder of the control sockets. Raises Unsupported."""
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    try:
        return private_folder(f"{runtime}/tierce" if runtime.startswith("/") else f"/tmp/tierce-{os.geteuid()}")
    except (LinkError, OSError) as error:
        raise Unsupported(f"the node of this engine requires a folder for its socket: {error}; set XDG_RUNTIME_DIR to a "
                          "folder of this user with mode 0700") from None


def node_parameters(settings) -> dict[str, str]:
    """The environment variables that pass this engine's configuration to a node, with the same precedence of sources."""
    out = {}
    for name, value in os.environ.items():
        name = name.removeprefix("TIERCE_") if name.startswith("TIERCE_") else ""
        if name and name not in OTHER_VARIABLES and not name.startswith(OTHER_PREFIXES):
            out[f"TIERCE_NODE_{name}"] = value
    for name, value in settings.values.items():
        if name != "strict" and not name.startswith(("node.", "plugins.")):
            out[f"TIERCE_NODE_{name.upper().replace('.', '_')}"] = value
    if setting(settings, "disk.lock_wait") == "5s":  # the default; the previous engine's node may still write
        out["TIERCE_NODE_DISK_LOCK_WAIT"] = f"{LOCK_WAIT_S}s"
    # As in an engine with its own disk: without `strict`, it runs on memory if the disk cannot be used.
    out["TIERCE_NODE_DISK_OPTIONAL"] = "false" if setting(settings, "strict") == "true" else "true"
    return out


def settings_key(settings) -> str:
    """A text that is equal for engines with equal configurations."""
    content = ""
    if settings.config_path:
        with open(settings.config_path, encoding="utf-8") as file:
            content = file.read()
    return json.dumps([content, sorted(node_parameters(settings).items())])


def find_executable(named: str, wanted: str) -> str:
    """The executable of the version `wanted`. Raises Unsupported."""
    scripts = sysconfig.get_path("scripts")
    path = shutil.which(named) if named else shutil.which("tierce", path=scripts) or shutil.which("tierce")
    if path is None and named:
        raise Unsupported(f"node.executable {named} is not an executable file; {REMEDY}")
    if path is None:
        raise Unsupported(f"there is no executable `tierce` in {scripts} or in PATH; {REMEDY}")
    try:
        told = subprocess.run([path, "--version"], stdin=subprocess.DEVNULL, capture_output=True, text=True,
                              errors="replace", timeout=10, check=False).stdout.partition("\n")[0].strip()
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Unsupported(f"{path} --version cannot be run: {error}; {REMEDY}") from None
    if told != f"tierce {wanted}":
        raise Unsupported(f"{path} is {told[:80] or 'another program'!r}, and the Python module is tierce {wanted}; {REMEDY}")
    return path


# ---- the lock file --------------------------------------------------------------------------------------------------

_open: set[int] = set()  # descriptors that a child must not keep


def _enter_child() -> None:
    for fd in _open:
        os.close(fd)
    _open.clear()


os.register_at_fork(after_in_child=_enter_child)


def open_file(path: str, flags: int = 0) -> int:
    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | flags, 0o600)
    _open.add(fd)
    return fd


def close_file(fd: int) -> None:
    _open.discard(fd)
    os.close(fd)


def same_file(fd: int, path: str) -> bool:
    """Whether `path` still names the open file."""
    try:
        there = os.lstat(path)
    except FileNotFoundError:
        return False
    return os.path.samestat(os.fstat(fd), there)


def lock_record(fd: int, wait: bool = False) -> bool:
    try:
        fcntl.fcntl(fd, fcntl.F_OFD_SETLKW if wait else fcntl.F_OFD_SETLK, RECORD)
        return True
    except BlockingIOError:
        return False


def lock_users(fd: int, kind: int) -> bool:
    try:
        fcntl.flock(fd, kind | fcntl.LOCK_NB)
        return True
    except BlockingIOError:
        return False


def read_notes(fd: int) -> dict:
    """The content of the lock file: when nodes started, and the last failure. Notes of another form count as none."""
    notes = {"starts": [], "failure": "", "failed_at": 0.0}
    try:
        written = json.loads(os.pread(fd, 1 << 16, 0))
    except (ValueError, RecursionError):
        return notes
    if isinstance(written, dict) and has_valid_notes({**notes, **written}):
        notes.update(written)
    return notes


def has_valid_notes(notes: dict) -> bool:
    times = [notes["failed_at"], *notes["starts"]] if isinstance(notes["starts"], list) else [None]
    return isinstance(notes["failure"], str) and all(type(each) in (int, float) for each in times)


def write_notes(fd: int, notes: dict) -> None:
    data = json.dumps(notes).encode()
    try:
        os.ftruncate(fd, 0)
        os.pwrite(fd, data, 0)
    except OSError as error:  # the node runs without them
        log.warning("Tierce cannot write the lock file of its node: %s; earlier starts of the node are not counted",
                    error.strerror)


def remove_if_dead(lock: str) -> None:
    """Removes the files of a node that has ended and that no process uses."""
    try:
        fd = open_file(lock, os.O_NOFOLLOW)
    except OSError:
        return
    try:
        if lock_users(fd, fcntl.LOCK_EX) and lock_record(fd) and same_file(fd, lock):
            for path in (socket_of(lock), lock):
                remove(path)
    finally:
        close_file(fd)


def remove(path: str) -> None:
    """A folder, or whatever else cannot be removed, does not stop an engine that uses another node."""
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass
    except OSError as error:
        log.warning("Tierce cannot remove %s, which a node left or another program made: %s", path, error.strerror)


def socket_of(lock: str) -> str:
    return lock.removesuffix(".lock") + ".sock"


def remove_dead(folder: str) -> None:
    for name in os.listdir(folder):
        if name.startswith("node-") and name.endswith(".lock"):
            remove_if_dead(os.path.join(folder, name))


# ---- a process ------------------------------------------------------------------------------------------------------


class Process:
    """A node that this process has started, but that is no descendant of it: when vLLM ends, it kills all descendants of its
    processes. Until `release`, detached.py is the node's parent. The node's lines go to the log. Raises OSError."""

    def __init__(self, executable: str, lock: str, record: int, parameters: dict[str, str]):
        kept = {k: v for k, v in os.environ.items() if not k.startswith("TIERCE_") and k not in SUPERVISOR}
        listen = {"TIERCE_NODE_LISTEN_NATIVE": socket_of(lock), "TIERCE_NODE_LISTEN_RESP": "false",
                  "TIERCE_NODE_LISTEN_LM": "false", "TIERCE_NODE_LISTEN_HTTP_PORT": "0"}
        self.lines: deque[str] = deque(maxlen=LINES_KEPT)
        self.status: str | None = None
        self.link, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            with theirs:
                self.pid = self.spawn([executable, "node", "--users", lock], {**kept, **parameters, **listen}, record, theirs)
        except BaseException:
            self.release()
            raise

    def spawn(self, command: list[str], environment: dict[str, str], record: int, theirs: socket.socket) -> int:
        python = [sys.executable or "python3", "-S", os.path.join(os.path.dirname(__file__), "detached.py")]
        fds = (theirs.fileno(), record)
        # In its own session: Ctrl-C in vLLM's terminal would otherwise end the node before its users.
        with processors.of_parent():
            popen = subprocess.Popen(
                [*python, *map(str, fds), *command], env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE, text=True, errors="replace", pass_fds=fds, start_new_session=True)
        theirs.close()
        self.reader = threading.Thread(target=self.read, args=(popen.stderr,), name="tierce-node-log", daemon=True)
        self.reader.start()
        try:
            self.link.settimeout(SPAWN_S)
            answer = int(self.link.recv(32) or 0)
        except TimeoutError:
            raise OSError(f"{' '.join(python)} has not run it within {SPAWN_S:.0f} s") from None
        finally:
            popen.kill()  # it has exited unless the time is over
            popen.wait()
        if answer == 0:
            self.reader.join(1)
            raise OSError(f"{' '.join(python)} exited with status {popen.returncode}; its log ends: {self.last_lines()}")
        if answer < 0:
            raise OSError(-answer, os.strerror(-answer))
        self.link.settimeout(STATUS_S)
        return answer

    def read(self, stderr) -> None:
        for line in stderr:
            line = line.rstrip()
            self.lines.append(line)
            bad = "level=warn" in line or "level=error" in line
            log.log(logging.WARNING if bad else logging.INFO, "Tierce's node: %s", line)
        stderr.close()

    def ended(self) -> bool:
        """Whether the node has ended and holds no lock any more. Not after `release`."""
        if self.status is None and not self.reader.is_alive():
            try:
                self.link.send(b"?")
                self.status = self.link.recv(32).decode() or "unknown"
            except TimeoutError:
                pass  # it has closed its standard error and runs
            except OSError:
                self.status = "unknown"
        return self.status is not None

    def last_lines(self) -> str:
        return " | ".join(list(self.lines)[-LINES_TOLD:]) or "nothing"

    def kill(self) -> None:
        """Not after `release`: until then the process id belongs to the node."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        self.reader.join(1)
        self.ended()

    def release(self) -> None:
        """The node has no parent of ours from here on."""
        with suppress(OSError):
            self.link.shutdown(socket.SHUT_RDWR)  # also for a child of this process that has a copy
        self.link.close()


# ---- the node of this engine ----------------------------------------------------------------------------------------


class OwnNode:
    """A node that this process uses, and may have started. The node runs at least until `leave`."""

    def __init__(self, settings, key: str, is_shared: bool, version: str):
        self.settings, self.version, self.is_shared = settings, version, is_shared
        name = hashlib.sha256(key.encode()).hexdigest()[:24]
        self.lock = os.path.join(runtime_folder(), f"node-{name}.lock")
        self.socket = socket_of(self.lock)
        self.ending = threading.Event()
        self.users: int | None = None
        self.watcher: threading.Thread | None = None

    def client_values(self) -> dict[str, str]:
        """The parameters that make an engine with the same configuration a client of the node."""
        return {"node.socket": self.socket, "node.start": "shared" if self.is_shared else "own"}

    def join(self) -> None:
        """Becomes a user of the node; starts it if no other process has. Raises Unsupported."""
        remove_dead(os.path.dirname(self.lock))
        began = time.monotonic()
        try:
            self.enter(began + START_S)
            self.await_node(began)
            self.watch()
        except BaseException:
            self.leave()
            raise

    def enter(self, until: float) -> None:
        while True:
            fd = self.opened()
            # While the previous node is exiting, it holds the lock exclusively. Afterwards the path names another
            # file, or none.
            while not lock_users(fd, fcntl.LOCK_SH):
                if time.monotonic() > until:
                    close_file(fd)
                    raise Unsupported(f"the previous node of this configuration has not exited within {START_S:.0f} s and "
                                      f"holds {self.lock}; start vLLM again when it has exited")
                time.sleep(POLL_S)
            if same_file(fd, self.lock):
                self.users = fd
                return
            close_file(fd)

    def opened(self) -> int:
        """A descriptor of the lock file, made if missing. Raises Unsupported."""
        try:
            return open_file(self.lock, os.O_CREAT | os.O_NOFOLLOW)
        except OSError as error:
            raise Unsupported(f"{self.lock} cannot be opened as the lock file of a node: {error.strerror}; remove it, "
                              "or set XDG_RUNTIME_DIR to another folder with free space") from None

    def await_node(self, began: float) -> None:
        while not self.answers():
            with self.record() as fd:
                if fd is not None:
                    notes = read_notes(fd)
                    if notes["failed_at"] >= began:
                        raise Unsupported(notes["failure"])
                    self.start(fd, notes)
                    return
            if time.monotonic() > began + START_S:
                raise Unsupported(f"no node answers on {self.socket} within {START_S:.0f} s; another process is starting it: "
                                  "see the lines `Tierce's node:` in its log")
            time.sleep(POLL_S)

    @contextmanager
    def record(self):
        """A descriptor with the record lock, or None if another process has it."""
        fd = self.reopened()
        try:
            yield fd if lock_record(fd) else None
        finally:
            close_file(fd)

    def reopened(self) -> int:
        """A new descriptor of the lock file, even if the file was unlinked."""
        return open_file(f"/proc/self/fd/{self.users}")

    def answers(self) -> bool:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
            try:
                sock.settimeout(1)
                sock.connect(self.socket)
                return True
            except OSError as error:
                if "too long" in str(error):
                    raise Unsupported(f"the path of the node's socket is too long: {self.socket}; set XDG_RUNTIME_DIR to a "
                                      "shorter path") from None
                return False

    def start(self, record: int, notes: dict) -> None:
        """Starts a node; the caller holds the record lock. A failure is noted for the waiting workers. Raises Unsupported."""
        try:
            executable = find_executable(setting(self.settings, "node.executable"), self.version)
            pid = self.run(executable, record)
        except Unsupported as reason:
            write_notes(record, {**notes, "failure": str(reason), "failed_at": time.monotonic()})
            raise
        write_notes(record, {**notes, "starts": [*notes["starts"], time.monotonic()]})
        log.info("Tierce started a node for %s: process %d, %s, socket %s",
                 "engines with this configuration" if self.is_shared else "this engine", pid, executable,
                 self.socket)

    def run(self, executable: str, record: int) -> int:
        """The process id of a node that answers."""
        parameters = node_parameters(self.settings)
        if self.settings.config_path:
            parameters["TIERCE_NODE_CONFIG"] = self.settings.config_path
        try:
            process = Process(executable, self.lock, record, parameters)
        except OSError as error:
            raise Unsupported(f"{executable} cannot be started: {error}") from None
        try:
            self.await_process(process, executable)
        finally:
            process.release()
        return process.pid

    def await_process(self, process: Process, executable: str) -> None:
        until = time.monotonic() + START_S
        while not self.answers():
            if process.ended():
                raise Unsupported(f"{executable} node exited with status {process.status}; its log ends: "
                                  f"{process.last_lines()}")
            if time.monotonic() > until or self.ending.is_set():
                process.kill()
                raise Unsupported(f"{executable} node does not answer on {self.socket} within {START_S:.0f} s; its log "
                                  f"ends: {process.last_lines()}")
            time.sleep(POLL_S)

    # ---- while it runs

    def watch(self) -> None:
        self.watcher = threading.Thread(target=self.restart_always, args=(self.reopened(),), name="tierce-node",
                                        daemon=True)
        self.watcher.start()

    def restart_always(self, fd: int) -> None:
        """Runs on its own thread. Returns when the node must not be started again."""
        again = True
        while again:
            try:
                lock_record(fd, wait=True)  # the node has exited
                again = not self.ending.wait(RESTART_PAUSE_S) and self.restart(fd)
                following = open_file(f"/proc/self/fd/{fd}") if again else None
            except Exception:
                log.exception("Tierce no longer watches its node and does not start it again")
                again, following = False, None
            close_file(fd)
            fd = following

    def restart(self, fd: int) -> bool:
        notes, now = read_notes(fd), time.monotonic()
        if self.answers():  # a node that was started in another way
            return False
        if notes["failed_at"] > max(notes["starts"], default=0.0):
            return False  # another worker has logged it
        recent = [at for at in notes["starts"] if at > now - RESTARTS_S]
        if len(recent) > RESTARTS_MAX:
            reason = (f"Tierce's node has exited {len(recent)} times within {RESTARTS_S / 60:.0f} min and is not started "
                      "again; vLLM runs without a cache until vLLM is restarted")
            write_notes(fd, {**notes, "failure": reason, "failed_at": now})
            log.error("%s", reason)
            return False
        log.warning("Tierce's node has exited; it is started again, with an empty memory")
        try:
            self.start(fd, {**notes, "starts": recent})
        except Unsupported as reason:
            if not self.ending.is_set():
                log.error("Tierce's node cannot be started again, and vLLM runs without a cache: %s", reason)
            return False
        return True

    def leave(self) -> None:
        """Stops using the node, which exits with its last user. Waits up to LEAVE_S for its exit, unless it is
        shared."""
        self.ending.set()
        if self.users is not None:
            close_file(self.users)
            self.users = None
        if self.watcher is not None and not self.is_shared:
            self.watcher.join(LEAVE_S)
        remove_if_dead(self.lock)


def client_values(settings, workers: int, engine_id: str, version: str) -> tuple[dict[str, str], OwnNode | None]:
    """The parameters of this worker's engine, and the node that it needs. Starts or finds the node of this engine, or of
    all engines with its configuration. Raises Unsupported or ConfigError."""
    values, node = dict(settings.values), None
    if is_wanted(settings, workers):
        is_shared = setting(settings, "node.start") == "shared"
        node = OwnNode(settings, settings_key(settings) + version if is_shared else engine_id, is_shared, version)
        node.join()
        values.update(node.client_values())
    if node is not None or setting(settings, "node.socket"):
        # A name that all processes of this vLLM engine have, and no process of another engine.
        values.setdefault("node.engine", engine_id)
    return values, node
