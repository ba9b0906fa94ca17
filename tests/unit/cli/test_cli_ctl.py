# SPDX-License-Identifier: Apache-2.0
"""tierce ctl: modes and clears of running processes."""

import glob
import http.client
import json
import os
import sys
import time
import unittest
import urllib.error
import urllib.request
import socket

KEEPER = os.path.abspath(sys.argv.pop())

from cli_case import KeeperCase, free_port  # noqa: E402


class Ctl(KeeperCase):
    KEEPER = KEEPER

    def keep_id(self, *settings):
        return str(self.keep(*settings)[0])

    def status(self, pid):
        return json.loads(self.check(0, "top", pid, "--json", env=self.env).stdout)

    def ctl(self, *args):
        return self.check(0, "ctl", *args, env=self.env).stdout.strip()

    def chunks(self, pid):
        return [tier["chunks"] for tier in self.status(pid)["tiers"]]

    def await_disk(self, pid, chunks):
        """A backfill sends the chunks that are on disk when it begins."""
        give_up = time.monotonic() + 60
        while self.chunks(pid)[1] != chunks:
            self.assertLess(time.monotonic(), give_up, self.chunks(pid))

    def post(self, pid, path):
        (name,) = glob.glob(f"{self.env['XDG_RUNTIME_DIR']}/tierce/{pid}-*.sock")
        with socket.socket(socket.AF_UNIX) as link:
            link.connect(name)
            connection = http.client.HTTPConnection("localhost")
            connection.sock = link
            connection.request("POST", path)
            answer = connection.getresponse()
            return answer.status, answer.read().decode()

    def test_modes(self):
        pid = self.keep_id()
        self.assertEqual(self.ctl(pid, "mode"), "normal")
        for number, mode in ((1, "freeze"), (2, "bypass"), (0, "normal")):
            self.assertEqual(self.ctl(pid, "mode", mode), mode)
            self.assertEqual(self.ctl(pid, "mode"), mode)
            status = self.status(pid)
            self.assertEqual(status["mode"], mode)
            self.assertEqual(status["stats"]["mode_now"], number)
            shown = self.check(0, "top", pid, env=self.env).stdout
            self.assertEqual(f"mode {mode}" in shown, mode != "normal")
        self.assertEqual(self.chunks(pid), [2])

    def test_a_process_may_begin_frozen(self):
        pid = self.keep_id("engine.mode=freeze")
        self.assertEqual(self.ctl(pid, "mode"), "freeze")
        status = self.status(pid)
        self.assertEqual(status["stats"]["chunks_stored"], 0)
        self.assertEqual(status["stats"]["stores_refused"], 2)

    def test_clear(self):
        pid = self.keep_id(f"disk.path={self.folder}/store")
        self.assertEqual(self.ctl(pid, "clear", "--tier", "memory"), "2")
        self.assertEqual(self.chunks(pid)[0], 0)
        self.ctl(pid, "clear")
        self.assertEqual(self.chunks(pid), [0, 0])
        self.assertEqual(self.ctl(pid, "clear"), "0")

    def test_clear_a_namespace(self):
        pid = self.keep_id()
        (namespace,) = self.status(pid)["namespaces"]
        self.assertRegex(namespace["digest"], "^[0-9a-f]{64}$")
        self.assertIn("bf16", namespace["text"])
        other = ("1" if namespace["digest"][0] == "0" else "0") * 64
        self.check(1, "ctl", pid, "clear", "--namespace", other, env=self.env)
        self.assertEqual(self.chunks(pid), [2])
        self.assertEqual(
            self.ctl(pid, "clear", "--tier", "memory", "--namespace", namespace["digest"][:12]),
            "2")
        self.assertEqual(self.chunks(pid), [0])

    def test_what_is_not_understood_clears_nothing(self):
        pid = self.keep_id()
        for query in ("namespace=", "namespace", "namespce=00", "tier=", "tier", "tier=memory&tier=",
                      "tier=memory&all", "=memory"):
            status, answer = self.post(pid, f"/clear?{query}")
            self.assertEqual((status, "not empty" in answer), (400, True), query)
        self.assertEqual(self.post(pid, "/mode?sett=bypass")[0], 400)
        self.assertEqual(self.chunks(pid), [2])
        self.assertEqual(self.post(pid, "/clear?tier=memory"), (200, "2\n"))

    def test_the_port_shows_and_changes_nothing(self):
        port = free_port()
        pid = self.keep_id(f"metrics.port={port}")
        for page in ("mode?set=bypass", "clear"):
            with self.assertRaises(urllib.error.HTTPError) as refused:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/{page}", data=b"", timeout=10)
            self.assertEqual(refused.exception.code, 404)
        self.assertEqual(self.ctl(pid, "mode"), "normal")
        self.assertEqual(self.chunks(pid), [2])

    def test_backfill(self):
        """A store that is added later receives the chunks on disk, once."""
        disk, shared = f"disk.path={self.folder}/store", f"{self.folder}/shared"
        _, keeper = self.keep(disk)
        keeper.stdin.close()
        keeper.wait()
        keeper.stdout.close()
        pid = self.keep_id(disk, f"remote.urls=file://{shared}", "token=7")
        self.await_disk(pid, 4)
        self.check(1, "ctl", pid, "backfill", "show", err=["no backfill was started"], env=self.env)
        self.assertRegex(self.ctl(pid, "backfill"),
                         r"^done: 4 of 4 chunks, [234] sent \(.*iB\), [012] already stored, 0 rejected, "
                         r"0 unreadable, ")
        again = self.ctl(pid, "backfill", "start", "--rate", "1GiB")
        self.assertRegex(again, r"^done: 4 of 4 chunks, 0 sent \(0 B\), 4 already stored, ")
        self.assertEqual(self.ctl(pid, "backfill", "show"), again)
        # Another one, with nothing but that store, finds both prompts.
        for token in (0, 7):
            other = self.keep_id(f"remote.urls=file://{shared}", f"token={token}", "cost.check=false")
            self.assertEqual(self.status(other)["stats"]["lookup_hit_blocks"], 16)

    def test_a_backfill_has_a_rate_and_ends(self):
        disk = f"disk.path={self.folder}/store"
        _, keeper = self.keep(disk)
        keeper.stdin.close()
        keeper.wait()
        keeper.stdout.close()
        pid = self.keep_id(disk, f"remote.urls=file://{self.folder}/shared", "token=7")
        self.await_disk(pid, 4)
        # 4 chunks of 36 KiB: the second waits for 36 s.
        status, answer = self.post(pid, "/backfill?do=start&rate=1KiB")
        self.assertEqual((status, json.loads(answer)["state"]), (200, "running"))
        self.assertEqual(self.post(pid, "/backfill?do=start"), (400, "a backfill is already running\n"))
        self.check(1, "ctl", pid, "backfill", "stop", out=["stopped, on request: "], env=self.env)
        self.assertRegex(self.ctl(pid, "backfill"), "^done: 4 of 4 chunks")
        for query in ("do=", "do=begin", "rate=1KiB", "do=stop&rate=1KiB", "do=start&rate=0",
                      "do=start&rate=many"):
            self.assertEqual(self.post(pid, f"/backfill?{query}")[0], 400, query)
        self.ctl(pid, "mode", "freeze")
        self.check(1, "ctl", pid, "backfill", err=["requires the mode normal"], env=self.env)

    def test_a_backfill_of_a_store_that_fails_says_so(self):
        disk = f"disk.path={self.folder}/store"
        pid = self.keep_id(disk, "remote.urls=redis://127.0.0.1:1", "token=7")
        self.await_disk(pid, 2)
        self.check(1, "ctl", pid, "backfill", out=["failed, ", " 0 sent"], env=self.env)
        self.check(1, "ctl", self.keep_id(), "backfill", err=["requires disk.path and remote.urls"],
                   env=self.env)

    def test_wrong_arguments(self):
        pid = self.keep_id()
        self.check(2, "ctl", err=["a process"])
        self.check(2, "ctl", pid, err=["mode, clear or backfill"])
        self.check(2, "ctl", "mode", "freeze", err=["requires a process"], env=self.env)
        self.check(2, "ctl", pid, "stop", err=["'stop'"], env=self.env)
        self.check(2, "ctl", pid, "mode", "frozen", err=["'frozen'"], env=self.env)
        self.check(2, "ctl", pid, "mode", "freeze", "now", err=["one mode"], env=self.env)
        self.check(2, "ctl", pid, "clear", "--teir", "x", err=["--tier"], env=self.env)
        self.check(2, "ctl", pid, "clear", "--tier", err=["--tier requires"], env=self.env)
        self.check(2, "ctl", pid, "clear", "--tier", "a&b", err=["--tier requires"], env=self.env)
        self.check(2, "ctl", pid, "clear", "--tier", "memory", "--tier", "disk",
                   err=["--tier may be given only once"], env=self.env)
        refused = self.check(1, "ctl", pid, "clear", "--tier", "tape", err=["no tier"],
                             env=self.env)
        self.assertIn("the tiers are: memory\n", refused.stderr)
        self.assertNotIn("\n\n", refused.stderr)
        self.check(2, "ctl", pid, "backfill", "begin", err=["'begin'"], env=self.env)
        self.check(2, "ctl", pid, "backfill", "--rat", "1MiB", err=["--rate"], env=self.env)
        self.check(2, "ctl", pid, "backfill", "--rate", "fast", err=["a size above 0, such as 64MiB"], env=self.env)
        self.check(2, "ctl", pid, "backfill", "stop", "--rate", "1MiB", err=["requires backfill start"], env=self.env)
        self.check(1, "ctl", "4711", "mode", env=self.env, err=["4711", "no control socket"])


if __name__ == "__main__":
    unittest.main()
