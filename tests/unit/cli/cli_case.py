# SPDX-License-Identifier: Apache-2.0
"""Shared by the tests of the command line: they run the real executable as a process."""

import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import unittest

EXECUTABLE = os.path.abspath(sys.argv.pop(1)) if len(sys.argv) > 1 else "tierce"


claimed = []  # until this process ends


def free_port():
    """A port that is free, and that no other test is given (as tests/support/servers/server_process.h has it)."""
    while True:
        port = random.SystemRandom().randrange(20000, 32000)
        claim = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
                claim.bind(f"\0tierce-test-port-{port}")
            except OSError:
                claim.close()
                continue
        claimed.append(claim)
        return port


class CliCase(unittest.TestCase):
    """A folder of its own for each test, and an environment without TIERCE_ variables."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def write(self, name, content):
        path = os.path.join(self.folder, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        mode = "wb" if isinstance(content, bytes) else "w"
        with open(path, mode) as file:
            file.write(content)
        return path

    def tierce(self, *args, env=None, stdout=subprocess.PIPE):
        clean = {k: v for k, v in os.environ.items() if not k.startswith("TIERCE_")}
        clean.update(env or {})
        return subprocess.run([EXECUTABLE, *args], stdin=subprocess.DEVNULL, stdout=stdout,
                              stderr=subprocess.PIPE, text=True, errors="replace", timeout=60,
                              cwd=self.folder, env=clean, check=False)

    def check(self, status, *args, out=(), err=(), env=None):
        """Runs, compares the exit status, and looks for texts in the output."""
        result = self.tierce(*args, env=env)
        said = f"{args}\n--- stdout\n{result.stdout}--- stderr\n{result.stderr}"
        self.assertEqual(result.returncode, status, said)
        for text in out:
            self.assertIn(text, result.stdout, said)
        for text in err:
            self.assertIn(text, result.stderr, said)
        if status == 2:
            self.assertEqual(result.stdout, "", "nothing is done when the arguments are wrong")
        return result


class KeeperCase(CliCase):
    """Processes with an engine (keep_engine) whose control sockets lie in a folder of the test's."""

    KEEPER = None  # the program; set by the test

    def setUp(self):
        super().setUp()
        self.runtime = os.path.join(self.folder, "run")
        os.mkdir(self.runtime, 0o700)
        self.env = {"XDG_RUNTIME_DIR": self.runtime}

    def keep(self, *settings):
        """Starts a process with an engine that holds two chunks; its id and itself."""
        keeper = subprocess.Popen(
            [self.KEEPER, "memory.size=8MiB", *settings], stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, text=True, env={**os.environ, **self.env})
        self.addCleanup(self.end, keeper)
        return int(keeper.stdout.readline()), keeper

    def end(self, keeper):
        keeper.stdin.close()
        keeper.stdout.close()
        self.assertIn(keeper.wait(30), (0, -signal.SIGKILL))
