# SPDX-License-Identifier: Apache-2.0
"""tierce top: the reported state of running processes."""

import json
import os
import signal
import socket
import sys
import threading
import time
import unittest
import urllib.request
from concurrent.futures import ThreadPoolExecutor

KEEPER = os.path.abspath(sys.argv.pop())

from cli_case import KeeperCase, free_port  # noqa: E402


class Top(KeeperCase):
    KEEPER = KEEPER

    def test_a_process_is_shown(self):
        pid, _ = self.keep(f"disk.path={self.folder}/store")
        shown = self.check(0, "top", env=self.env,
                           out=[f"engine {pid}", "memory", "disk", "serves", "hit 50.0%"])
        self.assertEqual(shown.stderr, "")
        by_pid = self.check(0, "top", str(pid), "--json", env=self.env)
        status = json.loads(by_pid.stdout)
        self.assertEqual(status["pid"], pid)
        self.assertEqual(status["stats"]["lookups"], 2)
        self.assertEqual(status["stats"]["chunks_stored"], 2)
        self.assertEqual([tier["name"] for tier in status["tiers"]], ["memory", "disk"])
        self.assertEqual(status["tiers"][0]["chunks"], 2)
        self.assertEqual([tier["breaker"] for tier in status["tiers"]], ["closed", "closed"])

    def test_of_a_remote_store_only_what_is_known_is_shown(self):
        self.keep(f"remote.urls=file://{self.folder}/shared")
        shown = self.check(0, "top", env=self.env)
        (row,) = [line.split() for line in shown.stdout.splitlines() if line.startswith("  file ")]
        self.assertEqual(row[1:7], ["serves", "-", "-", "-", "-", "-"])
        self.assertEqual(row[-3:], ["-", "0", "0"])  # evicted, errors, unsent

    def test_a_lack_of_slots_is_shown(self):
        self.keep("memory.chunks=1")
        shown = self.check(0, "top", env=self.env,
                           out=["holds its maximum number of chunks, 1: set memory.chunks to a larger value"])
        (row,) = [line.split() for line in shown.stdout.splitlines() if line.startswith("  memory   serves")]
        self.assertEqual(row[2:4], ["1", "100%"])
        (memory,) = json.loads(self.check(0, "top", "--json", env=self.env).stdout)["tiers"]
        self.assertEqual((memory["slots"], memory["used_slots"], memory["out_of_slots"]), (1, 1, 1))

    def until(self, *parts):
        """Repeats until the page has a line with these parts, and returns its words."""
        for _ in range(600):
            for line in self.check(0, "top", env=self.env).stdout.splitlines():
                if all(part in line for part in parts):
                    return line.split()
            time.sleep(0.1)
        self.fail(parts)

    def test_a_lack_of_slots_on_disk_is_shown(self):
        folder = f"disk.path={self.folder}/store"
        _, keeper = self.keep(folder)
        self.end(keeper)
        self.keep(folder, "token=7", "disk.chunks=2")
        self.until("  disk     holds its maximum number of chunks, 2: set disk.chunks to a larger value")
        row = self.until("  disk     serves")
        self.assertEqual(row[2:4], ["2", "100%"])
        (disk,) = [t for t in json.loads(self.check(0, "top", "--json", env=self.env).stdout)["tiers"] if t["name"] == "disk"]
        self.assertEqual((disk["slots"], disk["used_slots"], disk["out_of_slots"] > 0), (2, 2, True))

    def test_a_tier_out_of_service_is_shown(self):
        self.keep(f"remote.urls=redis://127.0.0.1:{free_port()}", "breaker.errors=1", "breaker.retry=1h")
        self.assertEqual(self.until("  redis ", " OUT ")[-1], "2")  # the chunks that it did not get

    def test_memory_only_is_said(self):
        self.keep("disk.path=/proc/none")
        shown = self.check(0, "top", env=self.env, out=["STATE memory only"])
        status = json.loads(self.check(0, "top", "--json", env=self.env).stdout)
        self.assertEqual((status["state"], status["stats"]["memory_only_now"]), ("memory only", 1))
        self.assertNotIn("disk full", shown.stdout)

    def test_rates_and_count(self):
        self.keep()
        shown = self.check(0, "top", "--count", "2", "--interval", "0.1", env=self.env)
        self.assertEqual(shown.stdout.count("engine "), 2)
        self.assertEqual(shown.stdout.count("(rates since the start)"), 1)

    def test_one_of_several(self):
        first, _ = self.keep()
        second, _ = self.keep()
        both = self.check(0, "top", env=self.env)
        self.assertIn(f"engine {first}", both.stdout)
        self.assertIn(f"engine {second}", both.stdout)
        one = self.check(0, "top", str(second), env=self.env)
        self.assertNotIn(f"engine {first}", one.stdout)

    def test_a_socket_of_its_own(self):
        path = os.path.join(self.folder, "mine.sock")
        pid, _ = self.keep(f"control.socket={path}")
        self.check(0, "top", path, env=self.env, out=[f"engine {pid}"])
        self.check(1, "top", str(pid), env=self.env, err=[f"process {pid} has no control socket", "control.socket"])

    def test_what_a_killed_process_left_is_passed_over(self):
        pid, keeper = self.keep()
        keeper.kill()
        keeper.wait()
        self.assertEqual(len(os.listdir(os.path.join(self.runtime, "tierce"))), 1)
        self.check(1, "top", str(pid), env=self.env, err=[f"process {pid} has no control socket"])

    def test_a_process_without_the_runtime_folder_of_this_shell(self):
        with_folder, self.env = self.env, {"XDG_RUNTIME_DIR": ""}
        pid, _ = self.keep()
        self.check(0, "top", str(pid), env=with_folder, out=[f"engine {pid}"])

    def test_the_message_names_both_folders(self):
        result = self.tierce("top", env=self.env)
        if result.returncode == 0:
            self.skipTest("other processes of this user have sockets in the other folder")
        for text in (f"in {self.runtime}/tierce or /tmp/tierce-{os.geteuid()}", "'Tierce is off:'", "node_not_there"):
            self.assertIn(text, result.stderr)

    def test_a_folder_of_others_is_not_asked(self):
        """Files in /tmp may belong to any user, and `tierce why` would send them a prompt."""
        self.keep()
        folder = os.path.join(self.runtime, "tierce")
        os.chmod(folder, 0o755)
        for command in (("top",), ("why", "--tokens", self.write("tokens", "1 2 3"))):
            self.check(1, *command, env=self.env, err=["folder with access for this user only"])
        os.chmod(folder, 0o700)
        if os.geteuid() == 0:
            os.chown(folder, 4711, -1)
            self.check(1, "top", env=self.env, err=["folder with access for this user only"])
            os.chown(folder, 0, -1)
        self.check(0, "top", env=self.env)

    def test_a_process_that_does_not_answer_is_named(self):
        pid, keeper = self.keep()
        keeper.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, pid, os.WSTOPPED)
        self.addCleanup(keeper.send_signal, signal.SIGCONT)
        [name] = os.listdir(self.runtime + "/tierce")
        path = f"{self.runtime}/tierce/{name}"
        tokens = self.write("tokens", "1 2 3")
        listed = [f"process {pid} has a control socket, {path}, but did not answer within 5 s: it is stopped"]
        commands = ((("top",), listed), (("top", str(pid)), listed), (("ctl", str(pid), "mode"), listed),
                    (("why", "--tokens", tokens), listed),
                    (("top", path), [f"{path}: the process did not answer within 10 s: it is stopped"]))
        with ThreadPoolExecutor(len(commands)) as pool:  # each takes as long as it says
            shown = list(pool.map(lambda command: self.check(1, *command[0], env=self.env, err=command[1]), commands))
        for result in shown:
            self.assertNotIn("no process", result.stderr)
            self.assertEqual(len(result.stderr.splitlines()), 1, result.stderr)
        # Others are shown all the same.
        other, _ = self.keep()
        both = self.check(0, "top", env=self.env, out=[f"engine {other}"], err=listed)
        self.assertNotIn(f"engine {pid}", both.stdout)

    def impostor(self, status, body):
        """Something that answers each request with the same; the path of its socket."""
        path = os.path.join(self.folder, "impostor.sock")
        if os.path.exists(path):
            os.unlink(path)
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(path)
        listener.listen(8)

        def serve():
            while True:
                try:
                    peer, _ = listener.accept()
                except OSError:
                    return
                with peer:
                    peer.recv(65536)
                    peer.sendall(f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n"
                                 "Connection: close\r\n\r\n".encode() + body)

        thread = threading.Thread(target=serve)
        thread.start()

        def end():
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()
            listener.close()

        return path, end

    def test_what_answers_may_say_anything(self):
        escape = rb"\u001b]0;title\u0007\u001b[31m\u009b2J"
        tokens = self.write("tokens", "1 2 3")
        for status, body in (
                ("200 OK", b'{"tiers":{},"stats":{}}'),
                ("200 OK", b'{"tiers":7,"stats":[1],"mode":5,"uptime_ms":-1}'),
                ("200 OK", b'{"tiers":[1,null,{},{"name":null}],"mode":null}'),
                ("200 OK", b'[1]'), ("200 OK", b''), ("200 OK", b'null'), ("200 OK", b'\x1b[31m'),
                ("200 OK", b'{"text":5,"reason":null}'), ("200 OK", b'{"text":null,"reason":"x"}'),
                ("200 OK", b'{"text":"%s","reason":"none"}' % escape),
                ("200 OK", b'{"mode":"%s","tiers":[{"name":"%s"}]}' % (escape, escape)),
                ("403 Forbidden", b"\x1b[31mno\x9b2J\xc2\x9b2J\x07"),
                ("200 OK", b"\x1b[31mno\x9b2J\xc2\x9b2J\x07")):
            path, end = self.impostor(status, body)
            for command in (("top", path, "--count", "2", "--interval", "0.1"),
                            ("top", path, "--json"), ("ctl", path, "mode"),
                            ("why", path, "--tokens", tokens),
                            ("why", path, "--tokens", tokens, "--json")):
                with self.subTest(body=body, command=command[0]):
                    shown = self.tierce(*command)
                    self.assertIn(shown.returncode, (0, 1), shown.stderr)
                    said = shown.stdout + shown.stderr
                    self.assertEqual([c for c in said if not c.isprintable() and c != "\n"], [])
            end()

    def test_metrics(self):
        port = free_port()
        self.keep(f"metrics.port={port}")
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as page:
            text = page.read().decode()
            self.assertTrue(page.headers["Content-Type"].startswith("text/plain; version=0.0.4"))
        values = {}
        for line in text.splitlines():
            if not line.startswith("#"):
                name, value = line.rsplit(" ", 1)
                self.assertNotIn(name, values, "a sample comes once")
                values[name] = float(value)
        self.assertEqual(values["tierce_lookups_total"], 2)
        self.assertEqual(values['tierce_tier_chunks{tier="memory"}'], 2)
        self.assertEqual(values['tierce_tier_in_service{tier="memory"}'], 1)
        self.assertEqual(values['tierce_tier_evicted_chunks_total{tier="memory",policy="hazard"}'], 0)
        self.assertEqual(values["tierce_sessions_now"], 0)
        with self.assertRaises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/status", timeout=10)
        self.assertEqual(refused.exception.code, 404)

    def test_wrong_arguments(self):
        self.check(2, "top", "--intervall", "1", err=["--interval"])
        self.check(2, "top", "--interval", "x", err=["--interval requires"])
        self.check(2, "top", "--count", "0", err=["--count requires"])
        self.check(2, "top", "nginx", err=["process id", "socket"])
        self.check(2, "top", "1", "2", err=["one process"])
        self.check(1, "top", "/nowhere/x.sock", err=["/nowhere/x.sock", "no process answers"])
        self.check(1, "top", "4711", env=self.env, err=["4711", "no control socket"])


if __name__ == "__main__":
    unittest.main()
