# SPDX-License-Identifier: Apache-2.0
"""Commands of tierce that a demonstration starts and ends. Requires nothing but Python."""

import ctypes
import os
import re
import signal
import subprocess
import tempfile
import time
from pathlib import Path

START_S = 600
LISTENING = re.compile(r"^.*listening on (.*)\n", re.M)
PORT = re.compile(r"(\w+)(?: [\d.]+)? (\d+)(?=[,\s]|$)")


class Failed(Exception):
    """A process failed; the message is shown to the user."""


def die_with_the_parent():
    pr_set_pdeathsig = 1
    ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)


def executable(root):
    """The one that `make build` links to, or that of the release."""
    named = os.environ.get("TIERCE_EXECUTABLE")
    found = [Path(named)] if named else [root / "build" / folder / "tierce" for folder in ("bin", "rel/bin")]
    for path in found:
        if path.exists():
            return path
    raise Failed(f"{found[0]} does not exist: run `make build`")


class Service:
    """`tierce NAME` on loopback. ports: protocol -> port, as it prints them; of several, the first."""

    def __init__(self, root, name, log, arguments, environment=None):
        self.folder = tempfile.TemporaryDirectory(prefix="tierce-run-", ignore_cleanup_errors=True)
        self.name, self.log = name, Path(log)
        with open(log, "wb") as out:
            self.process = subprocess.Popen(
                [str(executable(root)), name, *arguments], stdout=out, stderr=out,
                preexec_fn=die_with_the_parent,
                env={"STATE_DIRECTORY": self.folder.name, "PATH": "/usr/bin:/bin", **(environment or {})})
        self.ports = self.find_ports()

    def find_ports(self):
        until = time.monotonic() + START_S
        while (found := LISTENING.search(self.log.read_text())) is None:
            if self.process.poll() is not None or time.monotonic() > until:
                self.end()
                raise Failed(f"tierce {self.name} did not start (log: {self.log})")
            time.sleep(0.01)
        return {kind: int(port) for kind, port in reversed(PORT.findall(found[1]))}

    def end(self):
        self.process.terminate()
        self.process.wait()
        self.folder.cleanup()
