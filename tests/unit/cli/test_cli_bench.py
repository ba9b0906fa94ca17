# SPDX-License-Identifier: Apache-2.0
"""tierce bench: that every row is there and says what it must. Speed is no test."""

import csv
import os
import unittest

from cli_case import CliCase

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
        self.assertEqual(names, ["memory", "lookup", "hash", "disk", "optimize"])

    def test_rows(self):
        rows = self.rows("memory", "lookup", "hash", "optimize", *SMALL)
        self.assertEqual([sum(r["bench"] == n for r in rows) for n in ("memory", "lookup", "hash", "optimize")],
                         [6, 6, 2, 1])
        for row in rows:
            value, limit, ratio = (float(row[k]) for k in ("value", "limit", "ratio"))
            better = limit / value if row["unit"] == "us" else value / limit
            self.assertAlmostEqual(ratio / better, 1, delta=0.01, msg=str(row))
            self.assertGreater(float(row["goal"]), 0)
            self.assertNotIn(None, row, "a text holds a comma")

    def test_a_table_for_people(self):
        result = self.check(0, "bench", "hash", "--seconds", "0.01", out=["Mtokens/s", "ratio"])
        self.assertNotIn(",", result.stdout)

    def test_wrong_arguments(self):
        self.check(2, "bench", "hsah", err=["no such benchmark", "hsah"])
        self.check(2, "bench", "--seconds", "0", err=["--seconds"])
        self.check(2, "bench", "--seconds", "nan", err=["--seconds"])
        self.check(2, "bench", "--memory", "1MiB", err=["--memory"])
        self.check(1, "bench", "hash", "--dir", "missing", err=["cannot make missing/"])


if __name__ == "__main__":
    unittest.main()
