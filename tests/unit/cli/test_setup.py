# SPDX-License-Identifier: Apache-2.0
"""tools/setup and make run where a machine lacks something: said first, and nothing is fetched."""

import os
import subprocess
import sys
import tempfile
import unittest

SOURCE = os.path.abspath(sys.argv.pop(1))

DF = "echo head; echo /dev/x 9 9 1048576 9% /"
FETCH = 'echo "$0 $*" >>"$LOG"; exit 1'


class Setup(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.bin, self.log = os.path.join(folder.name, "bin"), os.path.join(folder.name, "log")
        os.mkdir(self.bin)
        for name in ("apt-get", "pip", "cmake"):
            self.tool(name, FETCH)
        self.environment = {**os.environ, "PATH": f"{self.bin}:{os.environ['PATH']}",
                            "LOG": self.log, "TIERCE_VENV": os.path.join(folder.name, "venv")}

    def tool(self, name, script):
        path = os.path.join(self.bin, name)
        with open(path, "w", encoding="utf-8") as file:
            file.write(f"#!/bin/sh\n{script}\n")
        os.chmod(path, 0o755)

    def refused(self, *command):
        """Runs a command that must fail before it fetches or builds; what it said."""
        result = subprocess.run(command, cwd=SOURCE, env=self.environment, text=True, timeout=60,
                                stdin=subprocess.DEVNULL, capture_output=True, check=False)
        self.assertNotEqual(result.returncode, 0)
        self.assertFalse(os.path.exists(self.log), "something was fetched or built")
        return result

    def test_too_little_disk_is_said_first(self):
        self.tool("df", DF)
        self.tool("dpkg-query", "exit 1")
        for command in (["make", "run"], ["tools/setup"], ["tools/setup", "room"]):
            self.assertIn("about 4 GB are needed", self.refused(*command).stderr)

    def test_who_is_not_root_gets_one_line(self):
        self.tool("dpkg-query", "exit 1")
        self.tool("id", "echo 1000")
        result = self.refused("tools/setup", "packages")
        self.assertRegex(result.stdout, r"^apt-get install [^\n]* libfyaml-dev [^\n]*\n$")

    def test_packages_that_pip_cannot_get(self):
        """The environment cannot be made: the last line says why, and what to do."""
        self.tool("df", "echo head; echo /dev/x 9 9 99999999 9% /")
        self.tool("python-of-venv", "echo 'ERROR: no network' >&2; exit 1")
        self.tool("python", f"""case $1$2 in -mvenv)
            mkdir -p "$3/bin" && ln -s {self.bin}/python-of-venv "$3/bin/python";; esac""")
        self.environment["PYTHON"] = os.path.join(self.bin, "python")
        said = self.refused("tools/setup", "python").stderr
        self.assertIn("sources do not offer torch", said)
        self.assertNotIn("CUDA", said)
        self.assertIn("ERROR: no network", said)
        self.assertRegex(said, "setup: pip cannot install torch .*PIP_INDEX_URL.* run the command "
                               "again")


if __name__ == "__main__":
    unittest.main()
