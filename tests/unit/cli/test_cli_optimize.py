# SPDX-License-Identifier: Apache-2.0
"""tierce optimize, from outside: what it is asked, what it answers, and the golden numbers."""

import csv
import os
import random
import unittest

from cli_case import CliCase

DATA = os.environ.get("TIERCE_TEST_DATA")


def record(time, ids):
    return f'{{"timestamp": {time}, "hash_ids": [{", ".join(map(str, ids))}]}}\n'


def rows_of(text):
    return list(csv.DictReader(text.splitlines()))


class Optimize(CliCase):
    def trace(self, requests):
        return self.write("trace.jsonl", "".join(record(i, r) for i, r in enumerate(requests)))

    def rows(self, *args):
        return rows_of(self.check(0, "optimize", *args, "--csv", "-").stdout)

    def hits(self, *args):
        rows = self.rows(*args)
        self.assertEqual(len(rows), 1, rows)
        return int(rows[0]["hits"])

    def test_by_hand(self):
        """Two chains that share their first block, in a cache of three."""
        path = self.trace([[1, 2, 3], [1, 4], [1, 2, 3]])
        at = [path, "--capacity", "3", "--policy", "lru"]
        # After the second request: 1, 4 and, touched from the tail, 2.
        self.assertEqual(self.hits(*at), 1 + 2)
        # Touched from the head, block 1 is the oldest of the first request and still there.
        self.assertEqual(self.hits(*at, "--order", "fwd"), 1 + 1)
        self.assertEqual(self.hits(*at, "--match", "any", "--order", "fwd"), 1 + 2)
        self.assertEqual(self.hits(*at[:-1], "infinite"), 1 + 3)
        self.assertEqual(self.hits(*at[:-1], "belady"), 1 + 3)

    def test_columns(self):
        path = self.trace([[1, 2], [1, 2]])
        result = self.check(0, "optimize", path, "--policy", "lru,leaf_lru,belady", "--capacity",
                            "2,unlimited", "--order", "rev,fwd", "--match", "prefix,stream,window:1",
                            "--csv", "-")
        self.assertEqual(result.stdout.split("\n")[0],
                         "trace,policy,order,match,capacity,requests,blocks,hits,hit_rate")
        rows = rows_of(result.stdout)
        self.assertEqual({r["trace"] for r in rows}, {"trace"})
        keys = [(r["policy"], r["order"], r["match"], r["capacity"]) for r in rows]
        self.assertEqual(len(keys), len(set(keys)))
        self.assertEqual(sum(k[0] == "lru" for k in keys), 2 * 3 * 2)
        self.assertEqual(sum(k[0] == "leaf-lru" for k in keys), 2 * 2)  # no order, no stream
        self.assertEqual(sum(k[0] == "belady" for k in keys), 2)  # nor without a limit
        for r in rows:
            self.assertEqual((r["requests"], r["blocks"]), ("2", "4"))
            self.assertEqual((r["hits"], r["hit_rate"]), ("2", "0.500000"), r)

    def test_the_curve_and_the_replay_agree(self):
        """A trace with a read is replayed; the same without it comes from the curve."""
        draw = random.Random(7)
        requests = []
        for _ in range(300):
            node, chain = draw.randrange(1, 8), []
            for _ in range(draw.randrange(12)):
                chain.append(node)
                node = 3 * node + draw.randrange(3) + 8
            requests.append(chain)
        path = self.trace(requests)
        sizes = "1,2,3,5,8,13,21,34,55,89,144"
        args = [path, "--order", "rev,fwd", "--match", "prefix,any,stream,window:2", "--capacity",
                sizes]
        curve = self.rows(*args, "--policy", "lru")
        replay = self.rows(*args, "--policy", "ttl", "--ttl", "1000h")
        self.assertEqual(len(curve), 11 * 8)
        for a, b in zip(curve, replay):
            self.assertEqual([a[k] for k in ("order", "match", "capacity", "hits")],
                             [b[k] for k in ("order", "match", "capacity", "hits")])

    def test_a_table_is_printed(self):
        path = self.trace([[1, 2, 3]] * 4)
        self.check(0, "optimize", path, out=["4 requests", "12 blocks", "lru", "belady", "75.00%"])
        self.check(0, "optimize", path, "--block-bytes", "1MiB", "--capacity", "3MiB",
                   out=["3.0 MiB", "75.00%"])

    def test_csv_to_a_file(self):
        path, out = self.trace([[1], [1]]), os.path.join(self.folder, "out.csv")
        self.check(0, "optimize", path, "--csv", out, "--policy", "lru", out=["lru"])
        with open(out, encoding="utf-8") as file:
            self.assertEqual(int(rows_of(file.read())[-1]["hits"]), 1)
        self.check(1, "optimize", path, "--csv", "/nonexistent/x.csv", err=["/nonexistent/x.csv"])

    def test_bad_lines_are_told(self):
        lines = [record(i, [1, 2]) for i in range(100)]
        lines[40] = "{broken\n"
        path = self.write("bad.jsonl", "".join(lines))
        self.check(0, "optimize", path, err=["1 of 100 lines", "line 41"])
        path = self.write("worse.jsonl", "".join(lines[:50] + ["x\n"] * 20 + lines[50:]))
        self.check(1, "optimize", path, err=["line 41"])
        self.check(0, "optimize", path, "--bad-lines", "0.5", err=["21 of 120 lines"])

    def test_wrong_arguments(self):
        path = self.trace([[1]])
        for args, said in [
                ([], "takes a trace"),
                ([path, path], "one trace"),
                ([path, "--policy", "lur"], '"lru"?'),
                ([path, "--policy", ""], "there is no policy"),
                ([path, "--policy", "ttl"], "--ttl"),
                ([path, "--order", "back"], "rev, fwd"),
                ([path, "--match", "window:0"], "window:N"),
                ([path, "--capacity", "0"], "less than one block"),
                ([path, "--capacity", "ten"], "blocks (10000)"),
                ([path, "--capacity", "1GiB"], "--block-bytes"),
                ([path, "--block-bytes", "1MiB", "--capacity", "1KiB"], "less than one block"),
                ([path, "--threads", "0"], "--threads"),
                ([path, "--bad-lines", "2"], "--bad-lines"),
                ([path, "--capacity", ",".join(["1"] * 65)], "at most 64"),
                ([path, "--nonsense"], "nonsense")]:
            with self.subTest(args=args):
                self.check(2, "optimize", *args, err=[said])

    def test_a_trace_that_is_none(self):
        self.check(1, "optimize", "/nonexistent.jsonl", err=["/nonexistent.jsonl"])
        self.check(1, "optimize", self.folder, err=[self.folder])
        self.check(1, "optimize", self.write("empty.jsonl", ""), err=["empty.jsonl"])
        self.check(1, "optimize", self.write("text", "to be or not to be\n"), err=["text"])
        self.check(1, "optimize", self.trace([[1]]), env={"TMPDIR": "/nonexistent"},
                   err=["TMPDIR"])

    @unittest.skipUnless(DATA, "TIERCE_TEST_DATA is not set")
    def test_golden(self):
        for table in ("policy_small_expected", "optimizer_expected"):
            with open(f"{DATA}/golden/{table}.csv", encoding="utf-8") as file:
                want = list(csv.DictReader(file))
            trace, = {row["trace"] for row in want}
            lists = {name: ",".join(sorted({row[name] for row in want} - {"-"}))
                     for name in ("policy", "match", "capacity", "order")}
            got = {(r["policy"].replace("-", "_"), r["order"], r["match"], r["capacity"]): r
                   for r in self.rows(f"{DATA}/traces/{trace}.jsonl",
                                      *(a for n, v in lists.items() for a in (f"--{n}", v)))}
            for row in want:
                key = (row["policy"], row["order"], row["match"], row["capacity"])
                self.assertEqual({**row, "policy": ""}, {**got[key], "policy": ""}, key)


if __name__ == "__main__":
    unittest.main()
