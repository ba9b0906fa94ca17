# SPDX-License-Identifier: Apache-2.0
"""tierce bench: that every row is there and says what it must. Speed is no test."""

import csv
import os
import signal
import subprocess
import time
import unittest

from cli_case import EXECUTABLE, CliCase

HEADER = "bench,case,unit,value,limit,ratio,goal,peer,peer_value"
SMALL = ("--seconds", "0.01", "--memory", "256MiB", "--csv")


class Bench(CliCase):
    def rows(self, *args):
        result = self.check(0, "bench", *args)
        lines = result.stdout.splitlines()
        self.assertEqual(lines[0], HEADER)
        self.assertEqual(os.listdir(self.folder), [], "files are left behind")
        return list(csv.DictReader(lines))

    def test_list_names_all(self):
        text = self.check(0, "bench", "--list").stdout
        names = [line.split()[0] for line in text.splitlines()]
        self.assertEqual(names, ["memory", "lookup", "hash", "disk", "open", "policy", "manager",
                                 "optimize"])

    def test_rows(self):
        counts = {"memory": 6, "lookup": 6, "hash": 2, "open": 1, "manager": 6, "optimize": 1}
        rows = self.rows(*counts, *SMALL)
        self.assertEqual({n: sum(r["bench"] == n for r in rows) for n in counts}, counts)
        for row in rows:
            value, limit, ratio = (float(row[k]) for k in ("value", "limit", "ratio"))
            better = limit / value if row["unit"] in ("us", "ms", "bytes") else value / limit
            self.assertAlmostEqual(ratio / better, 1, delta=0.01, msg=str(row))
            self.assertGreater(float(row["goal"]), 0)
            self.assertNotIn(None, row, "a text holds a comma")

    def test_every_policy_has_a_row(self):
        rows = self.rows("policy", "--seconds", "0.01", "--memory", "64MiB", "--csv")
        goals = {row["case"].split(";")[0]: float(row["limit"]) for row in rows}
        self.assertEqual(goals, {
            "lru": 20, "fifo": 20, "sieve": 20, "mru": 10, "lfu": 10, "s3fifo": 10,
            "s3fifo_lcs": 10, "arc": 10, "leaf_lru": 10, "ttl": 10, "sampled_lru": 10})
        for row in rows:
            self.assertEqual((row["unit"], row["goal"]), ("Mops/s", "1"))
            self.assertRegex(row["case"], r"; 262144 entries; [1-9][0-9]? % hits$")

    def test_a_table_for_people(self):
        result = self.check(0, "bench", "hash", "--seconds", "0.01", out=["Mtokens/s", "ratio"])
        self.assertNotIn(",", result.stdout)

    def test_wrong_arguments(self):
        self.check(2, "bench", "hsah", err=['no benchmark "hsah"; the nearest is "hash"'])
        self.check(2, "bench", "--lst", err=['tierce bench: there is no option "--lst"', '"--list"'])
        self.check(2, "bench", "-x", err=['there is no option "-x"'])
        self.check(2, "bench", "--seconds", err=["--seconds needs a value", "help bench"])
        self.check(2, "bench", "--csv=1", err=['"--csv=1"'])
        self.check(2, "bench", "--seconds", "0", err=["--seconds"])
        self.check(2, "bench", "--seconds", "nan", err=["--seconds"])
        self.check(2, "bench", "--memory", "1MiB", err=["--memory"])
        self.check(1, "bench", "hash", "--dir", "missing", err=["cannot make missing/"])

    def test_a_signal_leaves_no_files(self):
        for number in (signal.SIGINT, signal.SIGTERM):
            bench = subprocess.Popen([EXECUTABLE, "bench", "disk", "--seconds", "60", "--memory",
                                      "256MiB"], cwd=self.folder, stdout=subprocess.DEVNULL,
                                     stderr=subprocess.DEVNULL)
            give_up = time.monotonic() + 30
            while not self.files() and time.monotonic() < give_up:
                time.sleep(0.01)
            self.assertTrue(self.files())
            bench.send_signal(number)
            self.assertEqual(bench.wait(timeout=30), -number)
            self.assertEqual(os.listdir(self.folder), [])

    def files(self):
        return [name for _, _, names in os.walk(self.folder) for name in names]

    def test_without_a_reader_nothing_is_measured(self):
        long = ("--seconds", "600", "--memory", "256MiB")
        with open("/dev/full", "w") as full:
            self.assertEqual(self.tierce("bench", *long, stdout=full).returncode, 1)
        reader, writer = os.pipe()
        os.close(reader)
        result = self.tierce("bench", *long, stdout=writer)
        os.close(writer)
        self.assertEqual(result.returncode, 1)
        self.assertIn("could not be written: Broken pipe", result.stderr)
        self.assertEqual(os.listdir(self.folder), [])


if __name__ == "__main__":
    unittest.main()
