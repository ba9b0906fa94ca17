# SPDX-License-Identifier: Apache-2.0
"""Programs that run beside an engine (`plugins.start`), started by its first worker.

A program is an executable file, a file of Python or one of the shell. Its lines go to the log. It ends with the engine: by
SIGTERM, then SIGKILL if it takes longer than STOP_S, or by the kernel if the engine is killed. A program that ends is logged
with its exit status, and is not started again."""

from __future__ import annotations

import json
import logging
import os
import selectors
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress

log = logging.getLogger("tierce")

STOP_S = 2.0  # vLLM kills workers that take 5 s to end
LINE_BYTES = 8192  # longer lines are split
READS = 4  # of 64 KiB, before other programs and the end of the engine have their turn
# Runs the program with its parent's death as its own. Popen's preexec_fn would run Python in a fork of a process with threads.
LAUNCH = """
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(1, signal.SIGKILL)
if os.getppid() == int(sys.argv[1]):
    os.execv(sys.argv[2], sys.argv[2:])
"""
INTERPRETERS = {".py": sys.executable or "/usr/bin/python3", ".sh": "/bin/sh"}


class WrongProgram(ValueError):
    """A file that cannot be run."""


def command_of(path: str) -> list[str]:
    """Raises WrongProgram."""
    if os.access(path, os.X_OK):
        return [path]
    interpreter = INTERPRETERS.get(os.path.splitext(path)[1])
    if interpreter is None:
        raise WrongProgram(f"plugins.start: {path} is not executable, and does not end in .py or .sh")
    return [interpreter, path]


def environment(role: str, worker: int, workers: int, settings: dict[str, str]) -> dict[str, str]:
    """The variables of the engine may have credentials, so programs get those that are not Tierce's, and `settings`. Python
    buffers its output to a pipe unless PYTHONUNBUFFERED is set."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TIERCE_")}
    return {**kept, "PYTHONUNBUFFERED": "1", "TIERCE_PLUGIN_ROLE": role, "TIERCE_PLUGIN_WORKER": str(worker), "TIERCE_PLUGIN_WORKERS": str(workers),
            "TIERCE_PLUGIN_CONFIG": json.dumps(settings)}


class Program:
    def __init__(self, command: list[str], variables: dict[str, str]):
        self.name = os.path.basename(command[-1])
        self.rest = b""
        launch = [sys.executable or "python3", "-S", "-c", LAUNCH, str(os.getpid()), *command]
        self.process = subprocess.Popen(launch, env=variables, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                        stderr=subprocess.STDOUT, bufsize=0, start_new_session=True)
        os.set_blocking(self.process.stdout.fileno(), False)
        self.pidfd = os.pidfd_open(self.process.pid)

    def read(self) -> bool:
        """Logs lines that have come. False: no line will come any more."""
        for _ in range(READS):
            try:
                data = os.read(self.process.stdout.fileno(), 1 << 16)
            except BlockingIOError:
                return True
            *lines, self.rest = (self.rest + data).split(b"\n")
            if not data or len(self.rest) > LINE_BYTES:
                lines, self.rest = [*lines, self.rest], b""
            for line in lines:
                if line := line.rstrip():
                    self.tell(line.decode(errors="replace"))
            if not data:
                return False
        return True

    def tell(self, line: str) -> None:
        for at in range(0, len(line), LINE_BYTES):
            shown = "".join(c if c.isprintable() else " " for c in line[at : at + LINE_BYTES])
            log.info("%s: %s", self.name, shown)

    def signal(self, number: int) -> None:
        """Also to the processes that it has started. Only before its status is read: then its number is free."""
        if self.process.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, number)

    def end(self, is_stopped: bool) -> None:
        """After its death. With the engine, processes that it has left end too."""
        if is_stopped:
            self.signal(signal.SIGKILL)
        status = self.process.wait()
        os.close(self.pidfd)
        ended = f"was ended by signal {-status}" if status < 0 else f"exited with status {status}"
        log.log(logging.INFO if is_stopped or status == 0 else logging.WARNING, "the program %s (process %d) %s; it is not "
                "started again", self.name, self.process.pid, ended)


class Programs:
    """Runs programs until `stop`. Their thread starts them, because the kernel ends them with the thread that did."""

    def __init__(self, commands: list[list[str]], variables: dict[str, str]):
        self.commands, self.variables = commands, variables
        self.running: list[Program] = []
        self.selector = selectors.DefaultSelector()
        self.wake, self.woken = os.pipe()
        self.stop_at: float | None = None
        self.selector.register(self.wake, selectors.EVENT_READ)
        self.thread = threading.Thread(target=self.run, name="tierce-programs", daemon=True)
        self.thread.start()

    def run(self) -> None:
        try:
            for command in self.commands:
                self.start(command)
            while self.stop_at is None:
                self.step(None)
            for number, seconds in ((signal.SIGTERM, STOP_S), (signal.SIGKILL, STOP_S)):
                for program in self.running:
                    program.signal(number)
                until = time.monotonic() + seconds
                while self.running and time.monotonic() < until:
                    self.step(until - time.monotonic())
        except Exception:
            log.exception("Tierce no longer watches the programs of plugins.start")

    def start(self, command: list[str]) -> None:
        try:
            program = Program(command, self.variables)
        except OSError as error:
            log.warning("the program %s cannot be started: %s", command[-1], error)
            return
        self.running.append(program)
        self.selector.register(program.process.stdout, selectors.EVENT_READ, program)
        self.selector.register(program.pidfd, selectors.EVENT_READ, program)
        log.info("started the program %s: process %d", command[-1], program.process.pid)

    def step(self, timeout: float | None) -> None:
        ready = self.selector.select(timeout)
        # Lines before the end: the last ones tell why.
        for key, _ in sorted(ready, key=lambda item: item[0].fd == getattr(item[0].data, "pidfd", None)):
            program = key.data
            if program is None:
                self.selector.unregister(self.wake)
            elif key.fd != program.pidfd:
                self.read(program)
            else:
                self.selector.unregister(program.pidfd)
                self.read(program)
                program.end(self.stop_at is not None)
                self.running.remove(program)

    def read(self, program: Program) -> None:
        stdout = program.process.stdout
        if not stdout.closed and not program.read():
            self.selector.unregister(stdout)
            stdout.close()

    def stop(self) -> None:
        self.stop_at = time.monotonic()
        os.write(self.woken, b"x")
        self.thread.join(2 * STOP_S + 1)


def start(commands: list[list[str]], role: str, worker: int, workers: int, settings: dict[str, str]) -> Programs | None:
    """`settings`: what the programs may know of the configuration."""
    return Programs(commands, environment(role, worker, workers, settings)) if commands else None
