# SPDX-License-Identifier: Apache-2.0
"""tierce optimize: money and waiting, how far to trust it, the drawing; from outside."""

import csv
import os
import re
import unittest

from cli_case import CliCase

DATA = os.environ.get("TIERCE_TEST_DATA")

MODEL = "bytes=100,params=500,layers=1,heads=1,qk_dim=3,v_dim=2"
GPU = "flops=20000,price=3.6,mfu=0.5"
TIER = "price=1,years=1,bandwidth=1000,latency=0.5"


def rows_of(text):
    return list(csv.DictReader(text.splitlines()))


class Money(CliCase):
    def trace(self, requests, tokens=None):
        """An hour between the first and the last request."""
        lines = []
        for i, ids in enumerate(requests):
            length = "" if tokens is None else f'"input_length": {tokens[i]}, '
            time = 3600000 * i // max(1, len(requests) - 1)
            lines.append(f'{{"timestamp": {time}, {length}"hash_ids": {ids}}}\n')
        return self.write("trace.jsonl", "".join(lines))

    def story(self):
        """The one that tests/unit/optimizer/test_economy.c works out by hand."""
        return self.trace([[1, 2, 3], [1, 2, 4], [1, 2, 3]], [30, 25, 30])

    def rows(self, *args):
        return rows_of(self.check(0, "optimize", *args, "--csv", "-").stdout)

    def test_by_hand(self):
        rows = self.rows(self.story(), "--policy", "lru", "--capacity", "3,4", "--model", MODEL,
                         "--gpu", GPU, "--cost-tier", TIER, "--block-tokens", "10")
        three, four = rows
        self.assertEqual([three[k] for k in ("hits", "bytes", "hit_tokens", "saved_flops")],
                         ["4", "3000", "40", "44000"])
        for key, value in [("saved_share", 44000 / 97125), ("saved_gpu_seconds", 4.4),
                           ("gpus_saved", 4.4 / 3600), ("saved_per_hour", 0.0044),
                           ("cost_per_hour", 3e-6 / 8766),
                           ("net_per_hour", 0.0044 - 3e-6 / 8766),
                           ("break_even_bandwidth", 4000 / 4.4)]:
            self.assertAlmostEqual(float(three[key]) / value, 1, 5, key)
        self.assertEqual(four["saved_flops"], "56500")
        for key, value in [("ttft_p50", 3.45), ("ttft_p99", 3.5295)]:
            self.assertAlmostEqual(float(four[key]) / value, 1, delta=0.006)

    def test_what_has_no_money_has_no_cells(self):
        rows = self.rows(self.story(), "--policy", "lru,infinite", "--match", "prefix,any,stream",
                         "--capacity", "3", "--model", MODEL, "--gpu", GPU, "--block-tokens", "10")
        for row in rows:
            has_money = row["policy"] == "lru" and row["match"] == "prefix"
            self.assertEqual(row["saved_per_hour"] != "", has_money, row)
            self.assertEqual(row["ttft_p50"] != "", row["match"] == "prefix", row)

    def test_columns_are_asked_for(self):
        plain = self.rows(self.story(), "--policy", "lru")[0]
        self.assertEqual(list(plain)[-1], "hit_rate")
        model = self.rows(self.story(), "--policy", "lru", "--model", "qwen3-32b")[0]
        self.assertEqual(list(model), list(plain))
        drawn = self.rows(self.story(), "--policy", "lru", "--bootstrap", "20")[0]
        self.assertEqual(list(drawn)[len(plain):],
                         ["low", "high", "warm_up", "compulsory", "findings"])

    def test_the_table(self):
        result = self.check(0, "optimize", self.story(), "--policy", "lru,lfu", "--capacity", "3,4",
                            "--model", "llama-3.1-70b", "--gpu", "h100,price=2.1",
                            "--cost-tier", "nvme",
                            out=["what lru saves", "$2.1 a GPU-hour (given)",
                                 "$0.15 a GB for 4 years (placeholder)",
                                 "without a cache, prefill takes", "without queueing",
                                 "where it stops paying", "lfu",
                                 "assumptions: blocks of 512 tokens and 167772160 bytes",
                                 "public config (meta-llama/Llama-3.1-70B): bytes 327680 a token",
                                 "data sheet: flops 9.89e+14", "given: price 2.1 $/h",
                                 "the weights alone take 139 GB"])
        # Every figure has its mark.
        marks = r"    (placeholder|public config \(.*\)|data sheet|given): "
        basis = result.stdout.split("assumptions:")[1].split("\n\n")[0]
        for line in basis.split("\n")[1:]:
            self.assertTrue(re.match(marks, line) or re.match(r"  \w", line), line)

    def test_lines_are_told_apart(self):
        at = [self.story(), "--policy", "lru,ttl", "--ttl", "60s,2h", "--order", "rev,fwd",
              "--match", "prefix,window:2", "--capacity", "3,4"]
        out = self.check(0, "optimize", *at, "--model", MODEL, "--gpu", GPU).stdout
        paying = out.split("where it stops paying")[1].split("\n\n")[0].split("\n")[2:]
        labels = [line.split("  ")[0] for line in paying]
        self.assertEqual(len(labels), 12)
        self.assertEqual(len(set(labels)), 12, labels)
        for label in ["lru/rev by prefix", "ttl:1min/fwd by window:2"]:
            self.assertIn(label, labels)

    def test_a_tier_that_is_too_slow_or_wears_out(self):
        at = ["optimize", self.story(), "--policy", "lru", "--capacity", "4", "--model", MODEL,
              "--gpu", GPU, "--block-tokens", "10", "--cost-tier"]
        out = self.check(0, *at, TIER).stdout
        self.assertNotIn("too slow", out)
        self.assertNotIn("wears out", out)
        # 50 tokens hit, which are 5000 bytes and save 5.65 s: 885 bytes/s.
        self.check(0, *at, "price=1,bandwidth=880", out=["too slow"])
        # 4000 bytes may be written 10 times; 4 blocks of 1000 bytes an hour missed.
        self.check(0, *at, TIER + ",writes=10", out=["wears out early", "last 10 h (10 times all of"])

    def test_a_h20_is_reported(self):
        self.check(0, "optimize", self.story(), "--model", "deepseek-v3", "--gpu", "h20",
                   out=["reported: flops 1.48e+14"])

    def test_capacities_in_bytes(self):
        # 512 tokens of 128 KiB: 64 MiB a block.
        at = [self.story(), "--policy", "lru", "--model", "llama-3.1-8b"]
        self.assertEqual([r["capacity"] for r in self.rows(*at, "--capacity", "128MiB,1GiB,7")],
                         ["2", "16", "7"])
        self.check(0, "optimize", *at, "--capacity", "128MiB", out=["128 MiB"])
        self.assertEqual(self.rows(*at, "--capacity", "1GiB", "--block-tokens", "256")[0]
                         ["capacity"], "32")
        # --block-bytes is what is said last of a block, and in any order.
        self.assertEqual(self.rows(*at, "--capacity", "1GiB", "--block-bytes", "1MiB")[0]
                         ["capacity"], "1024")
        self.check(2, "optimize", *at, "--capacity", "1MiB", err=["less than one block"])

    def test_block_tokens(self):
        qwen = ('{"chat_id": 1, "parent_chat_id": -1, "timestamp": 1.0, "input_length": 32, '
                '"output_length": 1, "type": "text", "turn": 1, "hash_ids": [5, 6]}\n')
        at = ["--policy", "lru", "--model", "llama-3.1-8b", "--capacity", "1GiB"]
        self.assertEqual(self.rows(self.write("q.jsonl", qwen), *at)[0]["capacity"], "512")
        access = ('{"tierce_access":1,"time_us":1,"op":"lookup","namespace":"n","session":7,'
                  '"block_tokens":32,"held":0,"blocks":"67a3f0c2b1d4e58f59e1a2b3c4d5e6f7"}\n')
        self.assertEqual(self.rows(self.write("a.jsonl", access), *at)[0]["capacity"], "256")
        kvcm = self.write("k.jsonl", '{"instance_id":"i","trace_id":"t","timestamp_us":1,'
                          '"tokens":[],"keys":[1,2],"query_type":"prefix_match",'
                          '"block_mask":0,"sw_size":0,"location_spec_names":[]}\n')
        self.check(2, "optimize", kvcm, *at, err=["--block-tokens"])
        self.assertEqual(self.rows(kvcm, *at, "--block-tokens", "64")[0]["capacity"], "128")

    def test_block_tokens_from_lengths(self):
        """Blocks of 24: of 3 blocks for 60 tokens, 5 for 100 and 6 for 144, as of no rounder
        number."""
        lines = [f'{{"instance_id":"i","trace_id":"t","timestamp_us":{i},"tokens":[],'
                 f'"keys":{list(range(n))},"query_type":"prefix_match","block_mask":0,'
                 f'"sw_size":0,"location_spec_names":[],"input_len":{t},"output_len":1,'
                 f'"total_keys":{list(range(n))}}}\n'
                 for i, (n, t) in enumerate([(3, 60), (5, 100), (6, 144)])]
        self.check(0, "optimize", self.write("k.jsonl", "".join(lines)), "--model", MODEL,
                   "--gpu", GPU, "--capacity", "4800", out=["blocks of 24 tokens"])

    def test_tokens_that_do_not_fit_are_told(self):
        path = self.trace([[1, 2, 3]] * 4, [30] * 4)
        self.check(0, "optimize", path, "--model", MODEL, err=["do not fit", "3 for 30 tokens"])
        result = self.check(0, "optimize", path, "--model", MODEL, "--block-tokens", "10")
        self.assertEqual(result.stderr, "")

    def test_no_time_no_money(self):
        path = self.write("now.jsonl", '{"timestamp": 5, "hash_ids": [1]}\n' * 3)
        result = self.check(0, "optimize", path, "--policy", "lru", "--model", MODEL, "--gpu", GPU,
                            err=["per hour"])
        self.assertNotIn("saves", result.stdout)

    def test_wrong_arguments(self):
        path = self.story()
        for args, said in [
                (["--gpu", "h100"], "--gpu requires --model"),
                (["--cost-tier", "nvme"], "require --model and --gpu"),
                (["--model", "llama-3.1-8"], '("llama-3.1-8b"?)'),
                (["--model", "bytes=1"], "requires params="),
                (["--model", MODEL + ",heds=1"], '("heads"?)'),
                (["--model", MODEL, "--gpu", "h100,mfu=2"], "from 1e-06 to 1"),
                (["--model", MODEL, "--gpu", "h100", "--cost-tier", "ram"], '("dram"?)'),
                (["--block-tokens", "0"], "--block-tokens"),
                (["--bootstrap", "0"], "--bootstrap"),
                (["--bootstrap", "100001"], "to 100000")]:
            with self.subTest(args=args):
                self.check(2, "optimize", path, *args, err=[said])

    # ---- files ----

    def profile(self, text):
        return self.write("profile.yaml", text)

    def test_money_of_tiers(self):
        """One tier is the row of its policy; of several each has its own price."""
        at = [self.story(), "--policy", "lru", "--model", MODEL, "--gpu", GPU, "--block-tokens",
              "10", "--profile", self.profile(
                  "tiers:\n  fast: {price: 5, years: 2, bandwidth: 1}\n"
                  "  slow: {price: 1, years: 1, bandwidth: 1}\n")]
        row, = self.rows(*at, "--capacity", "3", "--cost-tier", "fast")
        one, both = rows_of(self.check(0, "optimize", *at, "--tier", "m:3,cost=fast", "--tier-csv",
                                       "-").stdout)
        for key in ("saved_per_hour", "cost_per_hour", "net_per_hour"):
            self.assertEqual(float(both[key]), float(row[key]), key)
        self.assertEqual((one["cost_per_hour"], one["saved_per_hour"]), (row["cost_per_hour"], ""))
        *tiers, both = rows_of(self.check(
            0, "optimize", *at, "--tier", "m:3,cost=fast", "--tier",
            "d:4,cost=slow,endurance=8000B", "--tier-csv", "-").stdout)
        # 4 blocks of 1,000 bytes were written to d in an hour: 8,000 last for two.
        self.assertEqual([float(t["cost_per_hour"]) for t in tiers],
                         [float(f"{v:.6g}") for v in (3e-6 * 5 / (2 * 8766), 4e-6 * 1 / 2)])
        larger, = self.rows(*at, "--capacity", "4")
        self.assertEqual(both["saved_per_hour"], larger["saved_per_hour"])
        self.check(0, "optimize", *at, "--tier", "m:3,cost=fast", "--tier", "d:4,cost=slow",
                   out=["savings: $0.00565 an hour", "$5 a GB for 2 years, given"])
        for args, said in [(["--tier", "m:3,cost=fats"], '("fast"?)'),
                           (["--tier", "m:3,cost=fast", "--tier", "d:4"], "in every --tier"),
                           (["--tier", "m:3,cost="], "name of a profile")]:
            self.check(2, "optimize", *at, *args, err=[said])
        self.check(2, "optimize", self.story(), "--tier", "m:3,cost=dram", err=["--gpu"])

    def test_a_profile(self):
        path = self.profile("models:\n  mine: {bytes: 100, params: 500}\n"
                            "gpus:\n  H100:\n    price: 1.5  # per hour\n"
                            "  box: {flops: 20e3, price: 0}\n"
                            "tiers:\n  dram: {price: 4, bandwidth: 40GB}\n")
        at = [self.story(), "--profile", path, "--block-tokens", "10"]
        self.check(0, "optimize", *at, "--model", "mine", "--gpu", "h100",
                   out=["given: price 1.5 $/h", "data sheet: flops 9.89e+14",
                        "given: price 4 $/GB, bandwidth 4e+10 bytes/s"])
        self.check(0, "optimize", *at, "--model", "mine", "--gpu", "box", "--cost-tier", "nvme",
                   out=["GPU box", "given: flops 20000 FLOP/s, price 0 $/h"])

    def test_wrong_profiles(self):
        at = [self.story(), "--model", "llama-3.1-8b", "--profile"]
        self.check(2, "optimize", *at, "/none.yaml", err=[
            "/none.yaml: cannot be read: No such file or directory; it is given as --profile"])
        for text, said in [
                ("gpu: {}\n", '"gpu" is unknown here; the nearest is "gpus"'),
                ("gpus: 3\n", "must be a mapping of names"),
                ("gpus:\n  h100: 3\n", "mapping of keys to numbers"),
                ("gpus:\n  h100: {prize: 3}\n", '("price"?)'),
                ("gpus:\n  h100: {price: [3]}\n", "must be a number"),
                ("gpus:\n  h100: {price: cheap}\n", 'not "cheap"'),
                ("gpus:\n  h100: {price: 1, price: 2}\n", "twice"),
                ("gpus:\n  h100: {price: 1}\n  h100: {mfu: 1}\n", "twice"),
                ("tiers: {a: &x {price: 1}, b: *x}\n", "mapping of keys to numbers"),
                ("- gpus\n", "mapping with the keys models, gpus and tiers"),
                ("", "mapping with the keys models, gpus and tiers"),
                ("gpus: {\n", "profile.yaml")]:
            with self.subTest(text=text):
                self.check(2, "optimize", *at, self.profile(text), err=[said, "profile.yaml"])
        self.check(2, "optimize", *at, "/nonexistent.yaml", err=["/nonexistent.yaml"])

    def test_speeds_of_this_machine(self):
        """Of several sizes of chunks the one nearest to a block, 64 MiB here."""
        path = self.write("bench.csv",
                          "bench,case,unit,value,limit,ratio,goal,peer,peer_value\n"
                          "memory,load chunks of 1 MiB,GB/s,10.25,9.6,1.06,0.85,memcpy,6.387\n"
                          "memory,load chunks of 16 MiB,GB/s,11.13,9.6,1.15,0.85,memcpy,6.517\n"
                          "memory,store chunks of 16 MiB,GB/s,99,9.6,1.15,0.85,memcpy,6.517\n"
                          "disk,read chunks of 4 MiB,GB/s,2.175,2.18,0.995,0.9,,\n")
        at = [self.story(), "--model", "llama-3.1-8b", "--gpu", "h100"]
        self.check(0, "optimize", *at, "--tier-speeds", path,
                   out=["measured: bandwidth 1.113e+10 bytes/s", "placeholder: price 6 $/GB"])
        self.check(0, "optimize", *at, "--tier-speeds", path, "--cost-tier", "nvme,latency=0",
                   out=["measured: bandwidth 2.175e+09 bytes/s", "given: latency 0 s"])
        # 1 MiB: 2048 tokens of 512 bytes.
        self.check(0, "optimize", self.story(), "--model", "bytes=2KiB,params=8e9", "--gpu", "h100",
                   "--tier-speeds", path, out=["measured: bandwidth 1.025e+10 bytes/s"])
        self.check(1, "optimize", *at, "--tier-speeds", self.write("other.csv", "a,b\n1,2\n"),
                   err=["other.csv", "tierce bench"])
        self.check(1, "optimize", *at, "--tier-speeds", "/nonexistent", err=["/nonexistent"])
        self.check(2, "optimize", self.story(), "--tier-speeds", path, err=["--gpu"])

    # ---- trust ----

    def test_findings(self):
        path = self.trace([[1], [2], [1], [3], [2], [4], [1], [5], [1], [2]])
        self.check(0, "optimize", path, "--policy", "lru,sieve", "--capacity", "2,4,5",
                   out=["nothing was evicted: every policy would have had the same result\n"
                        "    from 5 on: lru, sieve",
                        "it was not yet full during most of the requests\n    at 4: lru, sieve"])
        # The hand comes round in a cache of 4, and neither in one of 3 nor in one of 5.
        apart = self.trace([[b] for b in (2, 1, 1, 7, 3, 2, 7, 3, 5, 1, 6, 2, 1, 7)])
        self.check(0, "optimize", apart, "--policy", "sieve", "--capacity", "5,2,3,1,4",
                   out=["the hand never completed a lap: it chose as LFU would have\n"
                        "    at 3, from 5 on: sieve\n"])
        path = self.trace([[1], [2], [1], [3], [2], [4], [1], [5], [1], [2]])
        rows = self.rows(path, "--policy", "lru", "--capacity", "2,4,5", "--bootstrap", "10")
        self.assertEqual([r["warm_up"] for r in rows], ["0.3000", "0.7000", "1.0000"])
        self.assertEqual(rows[2]["findings"], "unexercised;compulsory")

    def test_sizes_of_a_trace(self):
        """Blocks differ in size: all is in bytes, and there is no talk of blocks."""
        path = self.write("sized.csv", "time,id,size\n" + "".join(
            f"{i},{i * i % 31},{(i * i % 31 % 5 + 1) * 1000}\n" for i in range(500)))
        out = self.check(0, "optimize", path, "--policy", "lru", "--capacity", "4KiB,16KiB,1MiB",
                         "--bootstrap", "10", out=["from 1.0 MiB on: lru"]).stdout
        self.assertNotIn("had little effect", out)
        self.assertRegex(out, r"\n +4.0 KiB +16 KiB +64 KiB +256 KiB +1.0 MiB\n")
        self.assertRegex(out, r"\nlru +4.0 KiB +\d")

    def test_nothing_to_say(self):
        # A working set of four in turns, in three: LRU hits nothing, and the cache is full at once.
        path = self.trace([[1 + i % 4] for i in range(400)])
        result = self.check(0, "optimize", path, "--policy", "lru", "--capacity", "3")
        self.assertNotIn("limits of these rates", result.stdout)

    def test_intervals(self):
        path = self.trace([[1, 2], [1, 2], [3, 4]] * 20)
        args = ["optimize", path, "--policy", "lru,arc", "--capacity", "2,4", "--bootstrap", "50"]
        first = self.check(0, *args, "--seed", "3",
                           out=["95 % of 50 draws of 2 sessions", "seed 3", "names no sessions"])
        self.assertEqual(first.stdout, self.check(0, *args, "--seed", "3").stdout)
        self.assertNotEqual(first.stdout, self.check(0, *args, "--seed", "4").stdout)

    # ---- the drawing ----

    def drawing(self, *args, **env):
        path = self.trace([[i * i % 50] for i in range(400)])
        env = {"LANG": "C", "LC_ALL": "", "LC_CTYPE": "", "COLUMNS": "", **env}
        out = self.check(0, "optimize", path, *args, env=env).stdout
        return out.split("against capacity:\n")[1].split("\n\n")[0].split("\n")

    def test_the_curve(self):
        lines = self.drawing("--policy", "lru,lfu,belady")
        self.assertTrue(all(len(line) <= 80 for line in lines), lines)
        self.assertEqual(lines[-1].split(), "l lru f lfu b belady".split())
        plot = "\n".join(lines[:13])
        self.assertTrue(plot.isascii())
        for letter in "lfb":
            self.assertIn(letter, plot)
        self.assertNotIn("\033", plot)
        self.assertTrue(all(line[7] in "|+" for line in lines[:13]), lines)

    def test_the_curve_is_as_wide_as_asked(self):
        self.assertGreater(max(map(len, self.drawing(COLUMNS="120"))), 110)
        self.assertLessEqual(max(map(len, self.drawing(COLUMNS="50"))), 50)
        self.assertLessEqual(max(map(len, self.drawing(COLUMNS="-3"))), 80)
        self.assertLessEqual(max(map(len, self.drawing(COLUMNS="999999999999"))), 160)

    def test_lines_of_boxes_where_they_can_be_shown(self):
        self.assertIn("┤", self.drawing(LANG="C.UTF-8")[0])
        self.assertIn("+", self.drawing(LANG="C.UTF-8", LC_ALL="C")[0])

    def test_lines_that_fall_together_take_turns(self):
        lines = self.drawing("--policy", "lru,leaf-lru")
        self.assertRegex("\n".join(lines[:13]), "lele|elel")

    def test_more_hits_than_lookups(self):
        """KVCM counts hits in what a turn stores beyond what it asks for."""
        line = ('{"instance_id":"i","trace_id":"t","timestamp_us":%d,"tokens":[],"keys":[1],'
                '"query_type":"prefix_match","block_mask":0,"sw_size":0,"location_spec_names":[],'
                '"input_len":48,"output_len":0,"total_keys":[1,2,3]}\n')
        path = self.write("turns.jsonl", "".join(line % i for i in range(9)))
        self.check(0, "optimize", path, "--policy", "kvcm-lru,lru", "--capacity", "2,4,8",
                   "--model", MODEL, "--gpu", GPU, "--block-tokens", "16", out=["100%", "k kvcm-lru"])

    def test_one_capacity_is_no_curve(self):
        path = self.trace([[1], [1]])
        result = self.check(0, "optimize", path, "--capacity", "1")
        self.assertNotIn("against capacity", result.stdout)

    def test_a_terminal_has_colours(self):
        import pty
        import subprocess
        import cli_case
        path = self.trace([[i * i % 50] for i in range(400)])
        for extra, coloured in [({}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)]:
            leader, follower = pty.openpty()
            env = {"TERM": "xterm", "PATH": os.environ["PATH"], **extra}
            with subprocess.Popen([cli_case.EXECUTABLE, "optimize", path, "--policy", "lru"],
                                  stdout=follower, stderr=subprocess.DEVNULL, env=env) as process:
                os.close(follower)
                text = b""
                try:
                    while chunk := os.read(leader, 65536):
                        text += chunk
                except OSError:
                    pass  # the other side is gone
                process.wait()
            os.close(leader)
            self.assertEqual(b"\033[32ml" in text, coloured, extra)

    # ---- numbers that must come out ----

    @unittest.skipUnless(DATA, "TIERCE_TEST_DATA is not set")
    def test_a_conversation_worked_out_elsewhere(self):
        """Net dollars an hour of Llama-3.1-70B on H100 for each capacity, where all blocks count as
        whole and each token that hits saves as much as one of a prefix of 8192 tokens."""
        path = os.path.join(DATA, "traces", "mooncake_conversation.jsonl")
        rows = self.rows(path, "--policy", "lru", "--capacity", "1000,10000,30000,50000,100000",
                         "--model", "llama-3.1-70b", "--gpu", "h100")
        flops_per_token = 2 * 69.5e9 + 80 * 64 * 256 * 8192
        hours = 3536.999 / 3600
        nets = []
        for row in rows:
            tokens = 512 * int(row["hits"])
            self.assertLess(0.998 * tokens, float(row["hit_tokens"]))
            self.assertGreater(tokens, float(row["hit_tokens"]))
            seconds = tokens * flops_per_token / (989e12 * 0.45)
            nets.append(seconds / 3600 * 2.5 / hours - float(row["cost_per_hour"]))
        self.assertEqual([f"{n:.2f}" for n in nets], ["1.54", "7.15", "10.58", "11.02", "9.90"])


if __name__ == "__main__":
    unittest.main()
