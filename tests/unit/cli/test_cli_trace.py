# SPDX-License-Identifier: Apache-2.0
"""tierce trace: its summary of a trace, and the traces that it writes."""

import gzip
import json
import os
import re
import subprocess
import unittest

from cli_case import EXECUTABLE, CliCase

MOONCAKE = """\
{"timestamp": 0, "input_length": 1000, "output_length": 5, "hash_ids": [0, 1]}
{"timestamp": 1.5, "input_length": 1500, "output_length": 5, "hash_ids": [0, 1, 2]}
{"timestamp": 1.5, "input_length": 500, "output_length": 5, "hash_ids": [7]}
"""

KVCM = """\
{"type":"GetCacheLocation","source":"a","trigger_time_us":7,"query_type":"prefix_match","keys":[1,2],"block_mask":1}
{"type":"StartWriteCache","source":"b","trigger_time_us":8,"write_session_id":"x","keys":[1,2]}
{"type":"FinishWriteCache","source":"b","trigger_time_us":9,"write_session_id":"x"}
"""


def sessions_trace(count):
    """Three requests of each session, taking turns; a tree for every second session."""
    return "".join(
        json.dumps({"timestamp": turn * count + s, "hash_ids": [s // 2 * 100] + [s * 100 + 50 + i for i in range(turn)],
                    "session_id": s}) + "\n" for turn in range(3) for s in range(count))


class Trace(CliCase):
    def stat(self, text):
        return dict(re.findall(r"^ *([a-z ]+?)  +(.*)$", text, re.M))

    def test_stat(self):
        path = self.write("t.jsonl", MOONCAKE)
        values = self.stat(self.check(0, "trace", "stat", path).stdout)
        self.assertEqual(values["format"], "mooncake")
        for name, value in {"requests": 3, "turns": 3, "reads": 0, "blocks read": 6,
                            "blocks written": 6, "distinct blocks": 4, "longest request": 3,
                            "instances": 1, "sessions": 0, "input tokens": 3000,
                            "output tokens": 15, "lines": 3, "bad lines": 0}.items():
            self.assertEqual(values[name], str(value), name)
        self.assertEqual(values["reuse"], "0.3333")
        self.assertEqual(values["span"], "0.001500 s")
        kvcm = self.write("k.log", KVCM)
        values = self.stat(self.check(0, "trace", "stat", kvcm).stdout)
        self.assertEqual((values["format"], values["reads"], values["writes"], values["instances"],
                          values["internal blocks"]), ("kvcm-log", "1", "1", "2", "1"))

    def test_standard_input_and_gzip(self):
        packed = gzip.compress(MOONCAKE.encode())
        result = subprocess.run([EXECUTABLE, "trace", "stat", "-"], input=packed, timeout=60,
                                capture_output=True, check=True)
        self.assertIn(b"requests         3\n", result.stdout)

    def test_head(self):
        path = self.write("t.jsonl", MOONCAKE)
        lines = self.check(0, "trace", "head", "-n", "2", path).stdout.splitlines()
        self.assertEqual(len(lines), 3)
        self.assertEqual(lines[2].split(), ["2", "0.001500", "turn", "-", "-", "3", "0", "1", "2"])
        self.assertEqual(self.check(0, "trace", "head", "-n", "0", path).stdout, "")
        lines = self.check(0, "trace", "head", self.write("k.log", KVCM)).stdout.splitlines()
        self.assertEqual(lines[1].split(), ["1", "0.000007", "read", "a", "-", "2", "1*", "2"])

    def test_convert_to_the_same_changes_nothing(self):
        path = self.write("t.jsonl", MOONCAKE)
        result = self.check(0, "trace", "convert", path, "--to", "mooncake")
        self.assertEqual(result.stdout, MOONCAKE)
        self.assertEqual(result.stderr, "")
        access = self.check(0, "trace", "convert", path, "--to", "access",
                            err=["3 requests lost their lengths in tokens"]).stdout
        self.assertEqual(access.splitlines()[:2], [
            '{"tierce_access":1,"time_us":0,"op":"lookup","namespace":"","request":1,'
            '"blocks":"00000000000000000000000000000001"}',
            '{"tierce_access":1,"time_us":0,"op":"store","namespace":"","request":1,'
            '"blocks":"00000000000000000000000000000001"}'])
        path = self.write("a.jsonl", access)
        result = self.check(0, "trace", "convert", path, "--to", "access")
        self.assertEqual(result.stdout, access)
        self.assertEqual(result.stderr, "")
        csv = self.check(0, "trace", "convert", path, "--to", "csv", err=[
            "2 requests lost the information which blocks belong together"]).stdout
        self.assertEqual(csv.splitlines()[:3], ["time_us,key,size", "0,0,1", "0,1,1"])
        path = self.write("c.csv", csv)
        self.assertEqual(self.check(0, "trace", "convert", path, "--to", "csv").stdout, csv)

    def test_convert_to_the_schema_of_kvcm(self):
        path = self.write("k.log", KVCM)
        schema = self.check(0, "trace", "convert", path, "--to", "kvcm-schema").stdout
        self.assertEqual(json.loads(schema.splitlines()[0]), {
            "instance_id": "a", "trace_id": "1", "timestamp_us": 7, "tokens": [], "keys": [1, 2],
            "query_type": "prefix_match", "block_mask": 1, "sw_size": 0, "location_spec_names": []})
        path = self.write("s.jsonl", schema)
        result = self.check(0, "trace", "convert", path, "--to", "kvcm-schema")
        self.assertEqual((result.stdout, result.stderr), (schema, ""))
        path = self.write("m.jsonl", MOONCAKE)
        schema = self.check(0, "trace", "convert", path, "--to", "kvcm-schema").stdout
        path = self.write("s.jsonl", schema)
        self.assertEqual(self.check(0, "trace", "convert", path, "--to", "mooncake").stdout, MOONCAKE)

    def test_convert_says_what_has_no_place(self):
        path = self.write("k.log", KVCM.replace('"b"', '"a"'))
        result = self.check(0, "trace", "convert", path, "--to", "mooncake", err=[
            "1 writes were omitted", "1 requests lost the information which blocks the engine held itself"])
        self.assertEqual(len(result.stdout.splitlines()), 1)
        writes = self.write("w.jsonl", '{"instance_id":"i","timestamp_us":1,"keys":[1]}\n')
        self.check(1, "trace", "convert", writes, "--to", "csv",
                   err=["contains nothing that csv can record"])

    def test_instances_stay_apart(self):
        text = "".join(f'{{"instance_id":"{i}","timestamp_us":{t},"keys":[5],"query_type":'
                       f'"prefix_match","block_mask":0}}\n' for t, i in enumerate("aba"))
        path = self.write("s.jsonl", text)
        self.check(1, "trace", "convert", path, "--to", "mooncake",
                   err=['line 2 names a second instance, "b"', "--renumber"])
        result = self.check(0, "trace", "convert", path, "--to", "mooncake", "--renumber",
                            err=["1 requests lost their instance"])
        ids = [json.loads(line)["hash_ids"] for line in result.stdout.splitlines()]
        self.assertEqual(ids, [[0], [1], [0]])
        access = self.check(0, "trace", "convert", path, "--to", "access").stdout
        self.assertEqual([json.loads(line)["namespace"] for line in access.splitlines()],
                         ["a", "b", "a"])

    def test_names_are_escaped(self):
        name = 'q"\\\u0001ä'
        path = self.write("s.jsonl", json.dumps(
            {"instance_id": name, "timestamp_us": 1, "keys": [5]}) + "\n")
        access = self.check(0, "trace", "convert", path, "--to", "access").stdout
        self.assertEqual(json.loads(access)["namespace"], name)
        self.check(0, "trace", "head", path, out=['q"\\?ä'])

    def test_samples_take_whole_groups(self):
        path = self.write("t.jsonl", sessions_trace(200))
        lines = sessions_trace(200).splitlines()
        for how, group in (("session", lambda r: r["session_id"]),
                           ("prefix-tree", lambda r: r["hash_ids"][0])):
            args = ("trace", "sample", path, "--rate", "0.3", "--by", how)
            result = self.check(0, *args, "--seed", "1")
            taken = [json.loads(line) for line in result.stdout.splitlines()]
            groups = {group(r) for r in taken}
            whole = [r for r in map(json.loads, lines) if group(r) in groups]
            self.assertEqual([r["hash_ids"] for r in taken], [r["hash_ids"] for r in whole])
            total = len({group(json.loads(line)) for line in lines})
            self.assertTrue(0.15 * total < len(groups) < 0.45 * total, (len(groups), total))
            self.assertIn(f"took {len(taken)} of 600 requests: {len(groups)} of {total} ",
                          result.stderr)
            self.assertEqual(self.check(0, *args, "--seed", "1").stdout, result.stdout)
            self.assertNotEqual(self.check(0, *args, "--seed", "2").stdout, result.stdout)
        whole = self.check(0, "trace", "sample", path, "--rate", "1", "--by", "session").stdout
        self.assertEqual(len(whole.splitlines()), 600)
        plain = self.write("p.jsonl", MOONCAKE)
        self.check(1, "trace", "sample", plain, "--rate", "0.5", "--by", "session",
                   err=["line 1 names no session", "--by prefix-tree"])

    def test_bad_lines_are_told(self):
        path = self.write("t.jsonl", MOONCAKE + "x\x1b\n" + '{"timestamp": 1, "hash_ids": [1')
        result = self.check(0, "trace", "stat", path, out=["bad lines        2"], err=[
            "t.jsonl: 2 of 5 lines are bad and were ignored, the last one because it is cut",
            "  line 4: is not an object (column 1)", '  line 5: "hash_ids": the line ends too early'])
        self.assertNotIn("\x1b", result.stderr)
        path = self.write("many.jsonl", MOONCAKE + "x\n" * 12)
        self.check(1, "trace", "stat", path, err=[
            "11 of the first 14 lines are bad, which is more than 1 %", "line 13: ", "  and 1 more"])
        self.check(0, "trace", "stat", path, "--bad-share", "1", err=["12 of 15 lines are bad",
                                                                     "  and 2 more"])

    def test_order_and_limits(self):
        path = self.write("t.csv", "3,a\n1,b\n2,c\n")
        lines = self.check(0, "trace", "head", path).stdout.splitlines()[1:]
        self.assertEqual([line.split()[0] for line in lines], ["2", "3", "1"])
        self.check(0, "trace", "head", path, "--window", "1",
                   err=["2 of 3 lines are bad", "line 2: is 2 s out of order"])
        path = self.write("t.jsonl", MOONCAKE + '{"timestamp": 2, "hash_ids": [' +
                          ", ".join(["1"] * 100) + "]}\n")
        self.check(0, "trace", "stat", path, "--line-size", "100B",
                   err=["line 4: exceeds the maximum length of a line, 100 bytes"])

    def test_wrong_files(self):
        self.check(1, "trace", "stat", "missing", err=["missing: cannot be opened: No such file"])
        self.check(1, "trace", "stat", self.folder, err=["is a folder; name the file"])
        self.check(1, "trace", "stat", self.write("e", ""), err=["e: is empty"])
        self.check(1, "trace", "stat", self.write("t", "hello\n"),
                   err=["has an unknown format, judging by its first lines", "kvcm-log, kvcm-schema, qwen"])
        path = self.write("t.csv", "1,a\n")
        self.check(1, "trace", "stat", path, "--format", "mooncake",
                   err=["holds no request that can be read; as mooncake, line 1: is not an object"])
        cut = gzip.compress(MOONCAKE.encode())[:-9]
        self.check(1, "trace", "stat", self.write("t.gz", cut),
                   err=["the compressed stream ends too early"])

    def test_wrong_arguments(self):
        path = self.write("t.jsonl", MOONCAKE)
        self.check(2, "trace", err=["requires stat, head, convert or sample"])
        self.check(2, "trace", "stats", path, err=['the nearest is "stat"'])
        self.check(2, "trace", "stat", err=["stat requires one file"])
        self.check(2, "trace", "stat", path, path, err=["stat requires one file"])
        self.check(2, "trace", "stat", path, "--to", "csv", err=["stat does not accept --to"])
        self.check(2, "trace", "head", path, "-n", "x", err=['-n requires a number: "x"'])
        self.check(2, "trace", "convert", path, err=["convert requires --to FORMAT"])
        self.check(2, "trace", "convert", path, "--to", "qwen",
                   err=['--to accepts access, csv, kvcm-schema, mooncake; not "qwen"'])
        self.check(2, "trace", "stat", path, "--format", "moon", err=["--format accepts access, ",
                                                                     '"moon"'])
        self.check(2, "trace", "stat", path, "--frmat", "csv", err=['no option "--frmat"',
                                                                    'nearest is "--format"'])
        self.check(2, "trace", "head", path, "-n", err=["-n requires a value"])
        self.check(2, "trace", "sample", path, err=["sample requires --rate R and --by"])
        self.check(2, "trace", "sample", path, "--rate", "2", err=["--rate requires a share"])
        self.check(2, "trace", "sample", path, "--rate", "1", "--by", "block",
                   err=["--by accepts session or prefix-tree"])
        self.check(2, "trace", "stat", path, "--window", "0", err=["--window accepts 1 to"])
        self.check(2, "trace", "stat", path, "--bad-share", "0", err=["--bad-share requires"])
        self.check(2, "trace", "stat", path, "--line-size", "0", err=["--line-size requires"])

    @unittest.skipUnless("TIERCE_TEST_DATA" in os.environ, "TIERCE_TEST_DATA is not set")
    def test_real_traces(self):
        folder = os.path.join(os.environ["TIERCE_TEST_DATA"], "traces")
        path = os.path.join(folder, "mooncake_conversation.jsonl")
        values = self.stat(self.check(0, "trace", "stat", path).stdout)
        self.assertEqual((values["requests"], values["blocks read"], values["distinct blocks"]),
                         ("12031", "288500", "182790"))
        with open(path) as file:
            self.assertEqual(self.check(0, "trace", "convert", path, "--to", "mooncake").stdout,
                             file.read())
        values = self.stat(self.check(0, "trace", "stat", os.path.join(
            folder, "kvcm_event_publisher.log")).stdout)
        self.assertEqual((values["reads"], values["blocks read"], values["writes"]),
                         ("102", "4246", "102"))


if __name__ == "__main__":
    unittest.main()
