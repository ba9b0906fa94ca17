# SPDX-License-Identifier: Apache-2.0
"""tierce optimize, what it simulates beside the sweep: tiers, groups, life, times, parts, bytes."""

import csv
import json
import os
import random
import re
import unittest

from cli_case import CliCase


def rows_of(text):
    return list(csv.DictReader(text.splitlines()))


class OptimizeSim(CliCase):
    def trace(self, requests, every_ms=1000, name="trace.jsonl"):
        lines = [f'{{"timestamp": {i * every_ms}, "hash_ids": [{", ".join(map(str, ids))}]}}\n'
                 for i, ids in enumerate(requests)]
        return self.write(name, "".join(lines))

    def conversations(self, count=300, seed=7):
        draw, requests = random.Random(seed), []
        for _ in range(count):
            node, chain = draw.randrange(1, 40), [0]
            for _ in range(draw.randrange(12)):
                chain.append(node)
                node = 3 * node + draw.randrange(2) + 8
            requests.append(chain)
        return requests

    def rows(self, *args):
        return rows_of(self.check(0, "optimize", *args, "--csv", "-").stdout)

    def line(self, output, start):
        """The columns of the line that begins so."""
        found = [line.split() for line in output.splitlines() if line.startswith(start)]
        self.assertEqual(len(found), 1, f"{start!r} in\n{output}")
        return found[0]

    # ---- the autopilot ----

    def access_log(self, requests):
        return self.write("log.jsonl", "".join(
            json.dumps({"instance_id": name, "timestamp_us": int(1e6 * second), "keys": keys,
                        "query_type": "prefix_match", "block_mask": 0, "input_len": 0, "output_len": 0,
                        "total_keys": keys}) + "\n" for second, name, keys in requests))

    def test_the_autopilot_gives_bytes_to_the_instance_that_uses_them(self):
        """One instance uses 150 blocks again and again, the other none; each begins with 100."""
        trace = self.access_log(sorted(
            [(20 * i, "loop", [1 + 7 * i % 150]) for i in range(1400)] +
            [(20 * i + 1, "scan", [1000 + i]) for i in range(1400)]))
        out = self.check(0, "optimize", trace, "--autopilot", "200", "--capacity", "200").stdout
        hits = {name: int(self.line(out, name + " ")[2]) for name in ("best split", "equal parts", "moving split")}
        act = int(self.line(out, "autopilot ")[1])
        self.assertEqual(hits["equal parts"], 0)  # LRU has none in a loop of more than its blocks
        self.assertGreater(act, 0.6 * hits["best split"])
        self.assertLessEqual(act, hits["moving split"])
        self.assertIn("200 blocks over groups of LRU caches, for 7.8 h, with the manager's autopilot:", out)
        self.check(2, "optimize", trace, "--autopilot", "200", "--capacity", "200", "--group", "both=loop,scan",
                   err=["--autopilot divides a size among 2 to 64 groups, and there is 1; name them with --group"])
        self.check(2, "optimize", trace, "--autopilot", "1", "--capacity", "200",
                   err=["--autopilot needs at least a block for each group"])

    # ---- the engine's own cache ----

    def test_the_engines_hits_are_not_the_stores(self):
        """Of 8 blocks the engine held 3; of the other 5 a store that keeps all has 2."""
        lines = [("0", "1,2,3", 0), ("1", "1,2,3", 2), ("2", "1,2,3", 1), ("3", "4", 0)]
        trace = self.write("e.jsonl", "".join(
            f'{{"instance_id":"i","timestamp_us":{t},"keys":[{keys}],"query_type":"prefix_match",'
            f'"block_mask":{held},"input_len":0,"output_len":0,"total_keys":[{keys}]}}\n'
            for t, keys, held in lines))
        at = [trace, "--capacity", "100", "--policy", "lru,belady,infinite"]
        for row in self.rows(*at):
            self.assertEqual((row["blocks"], row["hits"], row["internal_blocks"],
                              row["internal_hits"], row["store_hit_rate"]),
                             ("10", "6", "3", "3", f"{3 / 7:.6f}"), row)
        out = self.check(0, "optimize", *at).stdout
        self.assertIn("hits by prefix, excluding the engine's own hits: shares of the 7 of 10 blocks looked up that "
                      "the engine did not hold, by cache size in blocks:", out)
        for name in ("lru", "belady", "infinite"):
            self.assertEqual(self.line(out, f"{name} ")[1], "42.86%")
        self.check(2, "optimize", *at, "--engine-cache", "2",
                   err=["--engine-cache", "already states what the engine held"])

    def test_an_engine_that_is_simulated(self):
        """An engine of two blocks: 1 and 2 after the first two requests, 1 and 4 after the third."""
        trace = self.trace([[1, 2], [1, 2], [1, 4], [1, 2], [5]])
        at = [trace, "--capacity", "100", "--policy", "lru"]
        self.assertIn("hits by prefix, including the engine's own hits (--engine-cache SIZE excludes them): shares of "
                      "the blocks looked up, ", self.check(0, "optimize", *at).stdout)
        self.assertNotIn("store_hit_rate", self.rows(*at)[0])
        row = self.rows(*at, "--engine-cache", "2")[0]
        # Held: [1 2], [1], [1]; of [2] and the first of all the store has 2.
        self.assertEqual((row["blocks"], row["hits"], row["internal_blocks"], row["internal_hits"]),
                         ("9", "5", "4", "4"))
        self.assertEqual(row["store_hit_rate"], f"{1 / 5:.6f}")
        # An engine as large as the store leaves nothing to it.
        row = self.rows(*at, "--engine-cache", "100")[0]
        self.assertEqual((row["hits"], row["internal_hits"]), ("5", "5"))
        in_bytes = self.rows(*at, "--block-bytes", "1MiB", "--engine-cache", "2MiB")[0]
        self.assertEqual(in_bytes["internal_blocks"], "4")

    def test_every_instance_has_an_engine(self):
        lines = [("a", "1,2"), ("b", "1,2"), ("a", "1,2"), ("b", "1,2")]
        trace = self.write("e.jsonl", "".join(
            f'{{"instance_id":"{i}","timestamp_us":{t},"keys":[{keys}],"query_type":"prefix_match",'
            f'"block_mask":0,"input_len":0,"output_len":0,"total_keys":[{keys}]}}\n'
            for t, (i, keys) in enumerate(lines)))
        row = self.rows(trace, "--capacity", "100", "--policy", "lru", "--engine-cache", "2")[0]
        self.assertEqual((row["internal_blocks"], row["internal_hits"]), ("4", "4"))

    # ---- times to live ----

    def test_ttl_list(self):
        """Without a limit from one scan; with one that is never reached from replays."""
        path = self.trace(self.conversations())
        at = [path, "--policy", "ttl,lru", "--ttl", "1s,3s,60s,1h", "--match", "prefix,any",
              "--order", "rev,fwd"]
        curve = self.rows(*at, "--capacity", "unlimited")
        replay = self.rows(*at, "--capacity", "1000000")
        self.assertEqual(len(curve), (4 + 1) * 2 * 2)
        self.assertEqual([(r["policy"], r["order"], r["match"], r["hits"]) for r in curve],
                         [(r["policy"], r["order"], r["match"], r["hits"]) for r in replay])
        self.assertEqual({r["policy"] for r in curve}, {"ttl:1s", "ttl:3s", "ttl:1min", "ttl:1h",
                                                        "lru"})
        hits = [int(r["hits"]) for r in curve if r["match"] == "prefix" and r["order"] == "rev"]
        self.assertEqual(hits[:4], sorted(hits[:4]))
        self.assertEqual(hits[0], 0)  # a second later it has expired
        self.assertEqual(hits[3], hits[4])
        swept = self.rows(*at[:-4], "--capacity", "20,100")
        self.assertEqual([(r["policy"], r["capacity"]) for r in swept[:8]],
                         [(f"ttl:{t}", c) for c in ("20", "100")
                          for t in ("1s", "3s", "1min", "1h")])
        self.check(0, "optimize", *at[:-4], "--capacity", "20", out=["ttl:1min  ", "ttl:1h  "])
        self.check(2, "optimize", path, "--policy", "ttl", "--ttl", "1s,soon", err=["--ttl"])

    # ---- tiers ----

    def test_tiers_by_hand(self):
        """A memory of two blocks before a disk of four."""
        path = self.trace([[1, 2], [3], [1, 2], [1, 2]])
        out = self.check(0, "optimize", path, "--policy", "lru", "--capacity", "2", "--tier",
                         "memory:2,read=1MB/s", "--tier", "disk:4,read=500KB/s,latency=100ms",
                         "--block-bytes", "1MB").stdout
        # [3] pushes 2 out of memory, which the third request reads from disk: 100 ms and 2 s.
        memory, disk = self.line(out, "memory"), self.line(out, "disk")
        self.assertEqual(memory[1:5], ["2", "2", "42.86%", "42.86%"])
        self.assertEqual(disk[1:5], ["4", "3", "25.00%", "14.29%"])
        self.assertIn("all hits, by prefix                                   57.14%", out)
        self.assertIn("over the 2 requests that load: mean 2.0 s, 50 % 2.0 s", out)
        self.assertIn("longest 2.1 s", out)

    def test_writes_take_a_tiers_time(self):
        """A disk that writes 1 MB/s and gets 3 MB a second: the load two seconds later waits."""
        path = self.trace([[1, 2, 3], [4], [1, 2, 3]])
        at = [path, "--policy", "lru", "--capacity", "2", "--block-bytes", "1MB", "--tier",
              "memory:3", "--tier", "disk:9,read=10MB/s,write=%s", "--tier-promote", "none"]
        def disk(write):
            out = self.check(0, "optimize", *[a.replace("%s", write) for a in at]).stdout
            row = self.table(self.check(0, "optimize", *[a.replace("%s", write) for a in at],
                                        "--tier-csv", "-").stdout)[1]
            return out, row
        # 3 s of writing from second 0, 1 s more from second 1: free at second 4.
        out, row = disk("1MB/s")
        self.assertIn("disk serves one request at a time: 1 of 1 loads waited, 2.0 s in all; its queue "
                      "was 3.0 s at most, 2.1 s at the end", out)
        self.assertEqual([row[k] for k in ("waits", "waiting_s", "queue_s", "queue_max_s")],
                         ["1", "2", "2.1", "3"])
        self.assertIn("longest 2.1 s", out)
        out, row = disk("100MB/s")
        self.assertEqual([row["waits"], row["waiting_s"]], ["0", "0"])
        self.assertIn("longest 100.0 ms", out)

    def table(self, text):
        """Rows with exactly the columns of their header."""
        rows = rows_of(text)
        for row in rows:
            self.assertNotIn(None, row)
            self.assertNotIn(None, row.values())
        return rows

    def test_tiers_as_csv(self):
        path, out = self.trace([[1, 2], [3], [1, 2], [1, 2]]), os.path.join(self.folder, "t.csv")
        at = [path, "--policy", "lru", "--capacity", "2", "--tier", "memory:2,read=1MB/s", "--tier",
              "disk:4,read=500KB/s,latency=100ms,endurance=30MB", "--block-bytes", "1MB"]
        self.check(0, "optimize", *at, "--tier-csv", out, out=["all hits, by prefix"])
        with open(out, encoding="utf-8") as file:
            memory, disk, both = rows = self.table(file.read())
        keys = ("trace", "tier", "policy", "capacity", "used", "asked", "hits", "read_bytes",
                "written_blocks", "promoted", "evicted")
        self.assertEqual([memory[k] for k in keys], ["trace", "memory", "lru", "2", "2", "7", "3",
                                                    "3000000", "4", "1", "2"])
        self.assertEqual([disk[k] for k in keys], ["trace", "disk", "lru", "4", "3", "4", "1",
                                                  "1000000", "3", "0", "0"])
        self.assertEqual((disk["hit_rate"], disk["worn"], disk["reading_s"]),
                         ("0.250000", "0.1", "2.1"))
        self.assertEqual([both[k] for k in ("tier", "asked", "hits", "hit_rate", "loads", "load_mean",
                                           "load_p50", "load_p99", "not_stored")],
                         ["all", "7", "4", "0.571429", "2", "2.05", "2", "2.1", "0"])
        # To standard output it is all that is there.
        self.assertEqual(self.table(self.check(0, "optimize", *at, "--tier-csv", "-").stdout), rows)
        self.assertEqual(len(self.table(self.check(0, "optimize", *at, "--csv", "-").stdout)), 1)
        self.check(2, "optimize", *at, "--tier-csv", "-", "--csv", "-", err=["only one file"])
        self.check(2, "optimize", path, "--tier-csv", "x", err=["--tier-csv requires --tier"])
        self.check(1, "optimize", *at, "--tier-csv", "/nonexistent/x", err=["/nonexistent/x"])

    def test_one_tier_is_the_row_of_its_policy(self):
        path = self.trace(self.conversations())
        for policy, capacity in (("lru", "50"), ("leaf-lru", "31")):
            row, = self.rows(path, "--policy", policy, "--capacity", capacity)
            out = self.check(0, "optimize", path, "--tier", f"memory:{capacity},policy={policy}",
                             "--policy", policy, "--capacity", capacity).stdout
            self.assertEqual(self.line(out, "memory")[4], f"{100 * float(row['hit_rate']):.2f}%")

    def test_tiers_that_keep_all_are_the_infinite_cache(self):
        path = self.trace(self.conversations())
        row, = self.rows(path, "--policy", "infinite")
        want = f"{100 * float(row['hit_rate']):.2f}%"
        for writes in ("all", "waterfall"):
            for promote in ("first", "all", "none"):
                out = self.check(0, "optimize", path, "--policy", "lru", "--tier", "memory:20",
                                 "--tier", "disk:40", "--tier", "remote", "--tier-writes", writes,
                                 "--tier-promote", promote).stdout
                self.assertEqual(self.line(out, "all hits")[-1], want)

    def test_tiers_without_end(self):
        path = self.trace([[1, 2], [3], [1, 2]])
        out = self.check(0, "optimize", path, "--policy", "lru", "--block-bytes", "1PB", "--tier",
                         "memory:1,read=1B/s,write=1B/s,latency=9999999999s,endurance=1B",
                         "--tier", "disk:9,endurance=16000PB").stdout
        self.assertEqual(self.line(out, "all hits")[-1], "20.00%")  # 2 never fits

    def test_wrong_tiers(self):
        path = self.trace([[1]])
        for spec, said in [("", "NAME:SIZE"), (":5", "not a name"), ("memory=5", "NAME:SIZE"), ("a:0", "not \"0\""),
                           ("a:5,polcy=lru", '"polcy" is unknown here; the nearest is "policy"'),
                           ("a:5,policy=belady", "no policy \"belady\""),
                           ("a:5,read", '"read" lacks a value'), ("a:5,read=fast", "a rate like"),
                           ("a:5,latency=x", "a time like"), ("a:5,ttl=0", "a time like"),
                           ("a:5,endurance=-1", "a size like"), ("a" * 40, "not a name"),
                           ("a:5," + "x" * 200, "NAME:SIZE"),
                           ("a:1GiB", "--block-bytes")]:
            with self.subTest(spec=spec):
                self.check(2, "optimize", path, "--tier", spec, err=[said])
        self.check(2, "optimize", path, "--tier-writes", "waterfall", err=["require --tier"])
        self.check(2, "optimize", path, "--tier", "a:1", "--tier-writes", "some", err=["all or"])
        self.check(2, "optimize", path, *["--tier", "a:1"] * 9, err=["8 times"])

    # ---- life and time ----

    def test_life(self):
        path = self.trace([[1, 2, 3], [1, 2, 4], [1, 5]], every_ms=2000)
        out = self.check(0, "optimize", path, "--policy", "lru", "--capacity", "2", "--life",
                         "--block-tokens", "16").stdout
        self.assertIn("37.50% of the 8 blocks looked up had occurred before", out)
        self.assertIn("60.00% of the 5 different blocks stored are never used again", out)
        self.assertEqual(self.line(out, "  time until used again")[4:], ["3", "2.0", "s", "2.0",
                                                                        "s", "2.0", "s", "2.0",
                                                                        "s", "2.0", "s"])
        tree = out[out.index("the prefixes"):].splitlines()[2:6]
        self.assertEqual([line.split()[:6] for line in tree],
                         [["3", "100.00%", "0", "1", "16", "2"],
                          ["2", "66.67%", "1", "1", "16", "2"],
                          ["1", "33.33%", "2", "1", "16", "0"],
                          ["1", "33.33%", "2", "1", "16", "0"]])
        lru = [line for line in out.splitlines() if line.startswith("lru ")][-1].split()
        # Stored: 3 and what pushes 3 out, 1 and 2 of the first; then 4, 2, 1 once more; then 5.
        self.assertEqual(lru[1], "2")
        self.assertEqual(int(lru[2]) - int(lru[3]), 2)
        self.assertNotIn("life of blocks in a cache",
                         self.check(0, "optimize", path, "--life").stdout)

    def test_timeline(self):
        requests = self.conversations()
        path, out = self.trace(requests), os.path.join(self.folder, "time.csv")
        self.check(0, "optimize", path, "--policy", "lru,leaf-lru,infinite,belady,kvcm-lru",
                   "--capacity", "30,60", "--timeline", out)
        with open(out, encoding="utf-8") as file:
            rows = rows_of(file.read())
        lines = {}
        for row in rows:
            lines.setdefault((row["policy"], row["capacity"]), []).append(row)
        self.assertEqual(set(lines), {("lru", "30"), ("lru", "60"), ("leaf-lru", "30"),
                                      ("leaf-lru", "60"), ("infinite", "unlimited"),
                                      ("kvcm-lru", "30"), ("kvcm-lru", "60")})
        swept = {(r["policy"], r["capacity"]): r
                 for r in self.rows(path, "--policy", "lru,leaf-lru,infinite,kvcm-lru",
                                    "--capacity", "30,60")}
        for key, slices in lines.items():
            self.assertEqual(len(slices), 200)
            self.assertEqual(sum(int(s["requests"]) for s in slices), len(requests))
            self.assertEqual(sum(int(s["hits"]) for s in slices), int(swept[key]["hits"]))
        self.check(2, "optimize", path, "--timeline", out, err=["--capacity"])
        self.check(1, "optimize", path, "--capacity", "3", "--timeline", "/nonexistent/x",
                   err=["/nonexistent/x"])

    # ---- groups ----

    def log(self):
        """An event log of KVCM of three instances."""
        draw, lines = random.Random(3), []
        for i in range(200):
            source, keys = f"i{draw.randrange(3)}", [draw.randrange(9)]
            keys += [keys[0] * 10 + k for k in range(draw.randrange(4))]
            event = {"source": source, "trigger_time_us": i, "keys": keys}
            lines.append({**event, "type": "GetCacheLocation", "query_type": "prefix_match",
                          "block_mask": 0})
            lines.append({**event, "type": "StartWriteCache", "write_session_id": f"s{i}"})
            lines.append({"source": source, "trigger_time_us": i, "type": "FinishWriteCache",
                          "write_session_id": f"s{i}"})
        return self.write("events.log", "".join(json.dumps(line) + "\n" for line in lines))

    def quotas(self, *args):
        """(group, policy) of each row, and its hits in percent."""
        out = self.check(0, "optimize", self.log(), "--policy", "lru,sieve", "--capacity", "9",
                         *args).stdout
        table = out[out.index("groups with caches"):].splitlines()[2:]
        return {(line.split()[0], line.split()[1]): line.split()[3:] for line in table if line}

    def test_quotas(self):
        rows = self.quotas("--quota", "i0=10", "--quota", "rest=20", "--group", "rest=i1,i2")
        self.assertEqual(set(rows), {(g, p) for g in ("i0", "rest", "all")
                                     for p in ("lru", "sieve")})
        for policy in ("lru", "sieve"):
            self.assertEqual([rows[g, policy][0] for g in ("i0", "rest", "all")],
                             ["10", "20", "30"])
            self.assertEqual(rows["all", policy][1], "400")
        # One group of all is the sweep.
        everything = self.quotas("--quota", "g=9", "--group", "g=i0,i1,i2")
        row, = self.rows(self.log(), "--policy", "sieve", "--capacity", "9")
        self.assertEqual(everything["g", "sieve"][3], f"{100 * float(row['hit_rate']):.2f}%")
        self.assertEqual(everything["all", "sieve"], everything["g", "sieve"])
        for args, said in [(["--quota", "i0"], "NAME="), (["--quota", "i0=0"], "--quota accepts"),
                           (["--quota", "i9=5"], 'no instance "i9" ("i0"?)'),
                           (["--quota", "i0=5", "--quota", "i0=6"], "twice"),
                           (["--group", "g=i0"], "requires --quota"),
                           (["--group", "g=i0", "--quota", "i1=4"], "no --quota"),
                           (["--quota", "g=1", "--quota", "i0=1", "--group", "g=i0"],
                            "two groups")]:
            with self.subTest(args=args):
                self.check(2, "optimize", self.log(), *args, err=[said])
        self.check(0, "optimize", self.log(), "--quota", "i0=5", out=["in no group"])
        self.check(2, "optimize", self.trace([[1]]), "--quota", "i0=5", err=["names no instances"])

    def test_groups_as_csv(self):
        path, out = self.log(), os.path.join(self.folder, "g.csv")
        at = [path, "--policy", "lru", "--capacity", "9", "--quota", "i0=10", "--quota",
              'a,"b=20', "--group", 'a,"b=i1,i2', "--split", "40"]
        self.check(0, "optimize", *at, "--group-csv", out, out=["groups with caches", "no split"])
        with open(out, encoding="utf-8") as file:
            rows = self.table(file.read())
        self.assertEqual([(r["kind"], r["group"], r["policy"], r["order"]) for r in rows],
                         [("quota", g, "lru", "rev") for g in ("i0", 'a,"b', "all")] +
                         [("split", g, "lru", "rev") for g in ('a,"b', "all")])
        quotas, parts = rows[:3], rows[3:]
        for key in ("capacity", "requests", "blocks", "hits"):
            self.assertEqual(int(quotas[0][key]) + int(quotas[1][key]), int(quotas[2][key]), key)
        self.assertEqual([r["hits_max"] for r in quotas], [""] * 3)
        self.assertLessEqual(int(parts[-1]["hits"]), float(parts[-1]["hits_bound"]))
        self.assertLessEqual(int(parts[-1]["hits"]), int(parts[-1]["hits_max"]))
        # To standard output it is all that is there.
        row = self.table(self.check(0, "optimize", *at[:5], "--quota", "g=" + parts[0]["capacity"],
                                    "--group", "g=i1,i2", "--group-csv", "-").stdout)[0]
        self.assertEqual((row["group"], row["capacity"]), ("g", parts[0]["capacity"]))
        self.check(2, "optimize", path, "--group-csv", "x", err=["requires --quota or --split"])

    def test_split(self):
        out = self.check(0, "optimize", self.log(), "--policy", "lru", "--capacity", "9",
                         "--split", "40").stdout
        parts = [self.line(out, f"i{i} ") for i in range(3)]
        self.assertLessEqual(sum(int(p[1]) for p in parts), 40)
        self.assertIn("no split has more than", out)
        self.assertIn("only look up", out)
        out = self.check(0, "optimize", self.log(), "--policy", "lru", "--capacity", "9", "--split",
                         "40", "--group", "a=i0,i1", "--group", "b=i2").stdout
        self.assertEqual(sum(int(self.line(out, g)[1]) for g in ("a  ", "b  ")) <= 40, True)

    def test_hostile_names(self):
        """Names of instances from a trace are escaped before they reach the terminal."""
        turns = [{"instance_id": f"\033[2J{i % 2}", "trace_id": "x", "timestamp_us": i, "tokens": [],
                  "keys": [1, i], "query_type": "prefix_match", "block_mask": [], "sw_size": 0,
                  "location_spec_names": [], "input_len": 32, "output_len": 1,
                  "total_keys": [1, i]} for i in range(20)]
        path = self.write("names.jsonl", "".join(json.dumps(turn) + "\n" for turn in turns))
        at = ["optimize", path, "--policy", "lru", "--capacity", "4"]
        for args in (["--life"], ["--split", "4"], ["--quota", "\033[2J0=4"]):
            out = self.check(0, *at, *args, out=["?[2J0"]).stdout
            self.assertNotIn("\033", out)
        error = self.check(2, *at, "--quota", "x=4", err=["?[2J0"]).stderr
        self.assertNotIn("\033", error)

    # ---- bytes, budgets, parts ----

    def sized(self):
        draw = random.Random(11)
        keys = {k: 1 + draw.randrange(1000) for k in range(60)}
        lines = [f"{i},{k},{keys[k]}\n" for i, k in
                 enumerate(draw.choices(list(keys), k=600))]
        return self.write("sized.csv", "time,key,size\n" + "".join(lines)), keys, lines

    def test_bytes(self):
        path, keys, lines = self.sized()
        capacity, cache, hits = 5000, {}, 0
        for line in lines:  # plain LRU in bytes
            key = int(line.split(",")[1])
            hits += key in cache
            size = cache.pop(key, keys[key])
            while sum(cache.values()) + size > capacity:
                del cache[next(iter(cache))]
            cache[key] = size
        row, = self.rows(path, "--policy", "lru", "--capacity", "5000B")
        self.assertEqual((int(row["hits"]), row["capacity"]), (hits, "5000"))
        blocks, = self.rows(path, "--policy", "lru", "--capacity", "5000")
        self.assertGreater(int(blocks["hits"]), hits)
        # What is chosen for such a trace is bytes, up to all of them; belady knows blocks only.
        rows = self.rows(path)
        self.assertEqual(max(int(r["capacity"]) for r in rows), sum(keys.values()))
        self.assertNotIn("belady", {r["policy"] for r in rows})
        self.check(0, "optimize", path, out=["by cache size in bytes"])
        self.check(0, "optimize", path, "--policy", "belady", out=["cache size in blocks"])
        self.check(2, "optimize", path, "--policy", "belady", "--capacity", "1KiB",
                   err=["counts blocks"])
        self.check(2, "optimize", path, "--capacity", "1KiB,5", err=["in the same unit"])
        self.check(2, "optimize", path, "--capacity", "1KiB", "--split", "1KiB",
                   err=["counts blocks"])
        out = self.check(0, "optimize", path, "--policy", "lru", "--capacity", "5000B", "--tier",
                         "memory:5000B,read=1KB/s").stdout
        self.assertEqual(self.line(out, "memory")[4:6], ["KiB", self.line(out, "lru ")[-1]])

    # ---- recurrent states ----

    def states(self, *args):
        """Rows of --state-csv by capacity and rule."""
        out = self.check(0, "optimize", *args, "--policy", "lru", "--state-csv", "-").stdout
        return {(row["capacity"], row["rule"]): row for row in rows_of(out)}

    def test_states_by_rule(self):
        """The second and the third prompt leave the first after two blocks; the last one continues it."""
        path = self.trace([[1, 2, 3, 4], [1, 2, 5], [1, 2, 6], [1, 2, 3, 4, 7]])
        at = [path, "--block-bytes", "10", "--states", "100"]
        rules = ["--state-rules", "every,every:2,last,branch,last+branch"]
        rows = self.states(*at, *rules)
        self.assertEqual({rule: (int(row["hit_tokens"]) / 512, int(row["lost_tokens"]) / 512, int(row["states"]))
                          for (_, rule), row in rows.items()},
                         {"every": (8, 0, 7), "every:2": (8, 0, 2), "last": (4, 4, 4), "branch": (4, 4, 2),
                          "last+branch": (6, 2, 5)})
        self.assertEqual({capacity for capacity, _ in rows}, {"unlimited"})
        row = rows["unlimited", "last"]
        self.assertEqual([row[key] for key in ("requests", "tokens", "hit_rate", "state_bytes", "kv_bytes",
                                               "states_stored")],
                         ["4", str(15 * 512), f"{4 / 15:.6f}", "400", "70", "4"])
        self.assertEqual([rule for (_, rule), row in rows.items() if row["best"] == "1"], ["every:2"])
        out = self.check(0, "optimize", *at, *rules, "--policy", "lru",
                         out=["recurrent states of 100 B, and KV of 10 B per block of 512 tokens",
                              "shares of the 7680 tokens looked up"]).stdout
        self.assertEqual(self.line(out, "last+branch ")[1:5], ["unlimited", str(6 * 512), "40.00%", "13.33%"])
        self.assertEqual(self.line(out, "every:2 ")[-1], "best")

    def test_states_share_the_capacity_with_kv(self):
        """With 120 bytes the third prompt evicts everything, with 220 only the first state."""
        path = self.trace([[1, 2], [1, 2], [3, 4], [1, 2]])
        rows = self.states(path, "--block-bytes", "10", "--states", "100", "--state-rules", "last",
                           "--capacity", "12,22,unlimited")
        self.assertEqual({capacity: (row["hit_tokens"], row["state_bytes"], row["kv_bytes"], row["states_stored"])
                          for (capacity, _), row in rows.items()},
                         {"120": ("1024", "100", "20", "3"), "220": ("1024", "100", "40", "3"),
                          "unlimited": ("2048", "200", "40", "2")})

    def test_a_partial_block_has_no_state(self):
        lines = [f'{{"timestamp": {at}, "input_length": {tokens}, "output_length": 1, "hash_ids": {ids}}}\n'
                 for at, (tokens, ids) in enumerate([(1500, [1, 2, 3]), (2100, [1, 2, 4, 5, 6]), (1500, [1, 2, 3])])]
        path = self.write("partial.jsonl", "".join(lines))
        rows = self.states(path, "--block-bytes", "10", "--states", "100", "--state-rules", "every,last")
        self.assertEqual([(row["tokens"], row["hit_tokens"], row["states"]) for row in rows.values()],
                         [("5100", "2048", "4"), ("5100", "2048", "2")])

    def test_wrong_states(self):
        path = self.trace([[1, 2], [1, 2]])
        at = ["optimize", path, "--block-bytes", "10"]
        self.check(2, "optimize", path, "--states", "1MiB", err=["--block-bytes SIZE or --model NAME"])
        self.check(2, *at, "--state-rules", "last", err=["--state-rules requires --states SIZE"])
        self.check(2, *at, "--state-csv", "x", err=["--state-csv requires --states SIZE"])
        self.check(2, *at, "--states", "none", err=["--states requires a size like 48MiB"])
        self.check(2, *at, "--states", "8192PiB", err=["--states"])
        self.check(1, *at, "--states", "4096PiB", "--policy", "lru", err=["at most 4096 PiB"])
        self.check(2, *at, "--states", "1MiB", "--state-csv", path, err=["is the trace"])
        for rule in ("every:0", "first", "last+", "last+last"):
            self.check(2, *at, "--states", "1MiB", "--state-rules", rule, err=["--state-rules accepts", f'"{rule}"'])
        self.check(2, *at, "--states", "1MiB", "--state-rules", ",".join(["last"] * 33), err=["at most 32"])
        plain = self.write("plain.csv", "timestamp_us,id,size\n0,1,5\n")
        self.check(2, "optimize", plain, "--block-bytes", "10", "--states", "1MiB", err=["--block-tokens N"])
        self.check(2, "optimize", "--live", path, "--states", "1MiB", err=["--live shows hit rates"])

    def test_budget(self):
        path = self.trace(self.conversations())
        rows = self.rows(path, "--policy", "lru,sieve,arc,belady,infinite", "--budget", "77")
        self.assertIn("77", {r["capacity"] for r in rows})
        best = max((int(r["hits"]), -int(r["capacity"])) for r in rows
                   if r["policy"] not in ("belady", "infinite") and int(r["capacity"]) <= 77)
        out = self.check(0, "optimize", path, "--policy", "lru,sieve,arc,belady,infinite",
                         "--budget", "77").stdout
        found = re.search(r"the best within 77: (\S+) at (\d+), with", out)
        self.assertEqual([int(r["hits"]) for r in rows
                          if (r["policy"], r["capacity"]) == found.groups()], [best[0]])
        self.assertEqual(int(found.group(2)), -best[1])
        self.check(0, "optimize", path, "--budget", "1MiB", "--block-bytes", "10KiB",
                   out=["the best within 102: "])
        self.check(2, "optimize", path, "--budget", "none", err=["--budget accepts"])

    def test_scale(self):
        path = self.trace(self.conversations(2000))
        at = [path, "--policy", "sieve,lru", "--capacity", "20,60,150"]
        out = self.check(0, "optimize", *at, "--scale", "0.3",
                         out=["lru, the whole", "lru, the part", "difference"]).stdout
        found = re.search(r"(\d+) of 2000 requests were replayed, with (\S+)% of the blocks", out)
        self.assertLess(int(found.group(1)), 1200)
        self.assertGreater(int(found.group(1)), 100)
        whole = [f"{100 * float(r['hit_rate']):.2f}%" for r in self.rows(*at)
                 if r["policy"] == "lru"]
        self.assertEqual(self.line(out, "lru, the whole")[3:], whole)
        self.assertEqual([r["hits"] for r in self.rows(*at, "--scale", "1")],
                         [r["hits"] for r in self.rows(*at)])
        result = self.check(0, "optimize", *at, "--scale", "30%", "--csv", "-",
                            err=["points on average"])
        self.assertEqual([r["capacity"] for r in rows_of(result.stdout)], ["20", "60", "150"] * 2)
        self.check(1, "optimize", *at, "--scale", "0.000000001", err=["nothing was sampled"])
        for share in ("0", "1.5", "half"):
            self.check(2, "optimize", *at, "--scale", share, err=["--scale requires"])
        self.check(2, "optimize", *at, "--scale", "0.5", "--html", "x", err=["--html"])

    def test_not_with_a_config_of_kvcm(self):
        for args in (["--life"], ["--tier", "a:1"], ["--scale", "0.5"], ["--quota", "a=1"],
                     ["--states", "1MiB"]):
            self.check(2, "optimize", "--kvcm-config", "x.json", *args, err=["--kvcm-config"])


if __name__ == "__main__":
    unittest.main()
