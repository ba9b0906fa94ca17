# SPDX-License-Identifier: Apache-2.0
"""tierce bench: every row is present and has the right fields. Speed is no test."""

import concurrent.futures
import csv
import ctypes
import json
import os
import signal
import subprocess
import time
import unittest
import unittest.mock

from cli_case import EXECUTABLE, CliCase

HEADER = ("bench,case,unit,value,limit,ratio,goal,peer,peer_value,value_min,value_max,limit_min,"
          "limit_max")
SMALL = ("--seconds", "0.01", "--memory", "64MiB", "--blocks", "10000", "--csv")
LARGER = (*SMALL, "--memory", "256MiB")  # chunks of 16 MiB need it


class Bench(CliCase):
    def bench(self, *args):
        lines = self.check(0, "bench", *args).stdout.splitlines()
        self.assertEqual(lines[0], HEADER)
        return list(csv.DictReader(lines))

    def rows(self, *args):
        out = self.bench(*args)
        self.assertEqual(os.listdir(self.folder), [], "files are left behind")
        return out

    def test_list_names_all(self):
        text = self.check(0, "bench", "--list").stdout
        names = [line.split()[0] for line in text.splitlines()]
        self.assertEqual(names, ["memory", "lookup", "hash", "disk", "prefetch", "codec", "blend", "open", "policy",
                                 "manager", "reclaim", "directory", "events", "router", "families", "autopilot", "optimize", "native", "transfer", "redis", "s3", "remote", "proxy", "fleet", "peers", "handover", "mooncake", "nixl",
                                 "device"])

    def test_rows(self):
        counts = {"memory": 8, "lookup": 14, "hash": 2, "codec": 31, "blend": 5, "open": 1, "manager": 19, "reclaim": 10, "directory": 4, "events": 1, "router": 2, "families": 18, "autopilot": 9, "optimize": 13,
                  "s3": 2, "transfer": 8, "proxy": 5, "peers": 8, "handover": 4, "native": 4 if len(os.sched_getaffinity(0)) > 1 else 2}
        with concurrent.futures.ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
            rows = sum(pool.map(lambda name: self.bench(name, *(LARGER if name == "memory" else SMALL), "--python",
                                                        "missing/python3"), counts), [])
        self.assertEqual(os.listdir(self.folder), [], "files are left behind")
        kernels = [row["case"].rpartition("; kernel ")[2] for row in rows if "; kernel " in row["case"]]
        self.assertEqual({n: sum(r["bench"] == n and "; kernel " not in r["case"] for r in rows) for n in counts}, counts)
        # Each other kernel has rows of encoding and decoding: the lossless codec of two elements, and four lossy ones of bf16.
        self.assertEqual(len(kernels), 12 * len(set(kernels)))
        for row in rows:
            if row["unit"] in ("Mblocks/s", "B/block"):
                continue
            value, limit, ratio = (float(row[k]) for k in ("value", "limit", "ratio"))
            better = limit / value if row["unit"] in ("us", "ms", "bytes", "%", "CPU s/GB") else value / limit
            self.assertAlmostEqual(ratio / better, 1, delta=0.01, msg=str(row))
            if row["bench"] != "reclaim" or row["case"].startswith("memory index; files"):
                self.assertGreater(float(row["goal"]), 0, row)
            self.assertNotIn(None, row, "a text holds a comma")

    def test_nixl(self):
        """Without NIXL there are no rows, and no failure."""
        self.assertEqual(self.rows("nixl", *SMALL, "--python", "missing/python3"), [])
        self.check(0, "bench", "nixl", *SMALL, "--python", "missing/python3",
                   err=["left out, missing/python3 has no package nixl-cu12; --python names another"])
        python = os.path.join(os.environ.get("TIERCE_VENV", ".venv"), "bin", "python")
        find = "import importlib.util as u; print(u.find_spec('nixl_cu12') is not None)"
        if os.path.exists(python) and subprocess.run([python, "-c", find], capture_output=True, check=True).stdout == b"True\n":
            rows = self.rows("nixl", *SMALL, "--python", python)
            self.assertEqual([row["case"] for row in rows], ["write 1 MiB", "read 1 MiB", "write 16 MiB", "read 16 MiB", "get objects of 4 MiB; 8 in flight",
                                                        "put objects of 4 MiB; 8 in flight"])

    def test_codec_of_a_file(self):
        """The values of a file; another file is rejected with the names that are accepted."""
        path = os.path.join(self.folder, "..", os.path.basename(self.folder) + ".fp16")
        with open(path, "wb") as file:
            file.write(bytes(range(256)) * 1000 + b"odd")
        self.addCleanup(os.remove, path)
        rows = [row for row in self.rows("codec", *SMALL, "--kv", path) if "; kernel " not in row["case"]]
        self.assertEqual([row["case"].split(" ")[0] for row in rows], ["encode"] * 2 + ["size"] * 2 + ["decode"] * 2 +
                         ["encode", "size", "decode"] * 4)
        self.assertTrue(all(os.path.basename(path) in row["case"] for row in rows), rows)
        self.check(1, "bench", "codec", *SMALL, "--kv", path + ".gz",
                   err=["must end with .bf16, .fp16, .e4m3 or .e5m2"])

    @unittest.skipUnless("TIERCE_LMCACHE_PYTHON" in os.environ, "TIERCE_LMCACHE_PYTHON names no Python with LMCache")
    def test_cachegen_restores_the_values_of_lmcache(self):
        """Made-up values; the benchmark fails if they differ."""
        rows = self.rows("codec", *SMALL, "--python", os.environ["TIERCE_LMCACHE_PYTHON"])
        beside = [row for row in rows if "; beside LMCache " in row["case"]]
        self.assertEqual([row["case"].split(" of ")[0] for row in beside], ["encode cachegen", "size", "decode cachegen"])
        self.assertTrue(all(float(row["peer_value"]) > 0 for row in beside), beside)

    def test_redis(self):
        rows = self.rows("redis", *SMALL)
        self.assertEqual([row["case"] for row in rows],
                         [f"{op} {mib} MiB{what}" for mib in (1, 4, 16) for op in ("SET", "GET")
                          for what in ("", "; processor")])
        for row in rows:
            self.assertGreater(float(row["value"]), 0, row)

    def test_remote(self):
        rows = self.rows("remote", *SMALL)
        whats = {"redis": ("lookup", "load", "store_begin"), "node": ("lookup", "load"), "s3": ("lookup", "load")}
        self.assertEqual([row["case"].split(" of ")[0] for row in rows],
                         [f"{store}: {what}" for store in whats for what in whats[store]])
        for row in rows:
            self.assertGreater(float(row["value"]), 0, row)
            self.assertGreater(float(row["limit"]), 0, row)
            self.assertGreater(float(row["goal"]), 0, row)

    def test_fleet(self):
        *rows, reports = self.rows("fleet", *SMALL)
        self.assertEqual(reports["case"], "reports of 100 nodes: the manager's share of a processor")
        self.assertGreater(float(reports["value"]), 0)
        self.assertEqual([row["case"].split(" of ")[0] for row in rows],
                         [f"{store}: {what}" for store in ("redis", "file", "s3", "node")
                          for what in ("hit", "manager's share; chunks")])
        for row in rows:
            self.assertGreater(float(row["value"]), 0, row)
            self.assertGreater(float(row["limit"]), 0, row)
            self.assertGreater(float(row["goal"]), 0, row)
            has_peer = "share" in row["case"] or row["case"].startswith("node")
            self.assertEqual(float(row["peer_value"] or 0) > 0, has_peer, row)

    def test_device_without_a_gpu(self):
        try:
            ctypes.CDLL("libcuda.so.1")
        except OSError:
            result = self.check(1, "bench", "device", *SMALL,
                                err=["tierce bench: device: there is no Nvidia GPU"])
            self.assertEqual(result.stdout, "")
        else:
            self.skipTest("there is a driver")

    def test_device(self):
        """On the driver of tests/support/cuda, in place of a real one."""
        fake = os.path.join(os.path.dirname(os.path.dirname(EXECUTABLE)), "tests", "cuda")
        if not os.path.exists(os.path.join(fake, "libcuda.so.1")):
            self.skipTest(f"{fake}/libcuda.so.1 is not built")
        with unittest.mock.patch.dict(os.environ, {"LD_LIBRARY_PATH": fake, "CUDA_FAKE_DELAY_US": "0"}):
            *rows, overlap, decoded = self.rows("device", *SMALL)
        self.assertEqual([row["case"] for row in rows],
                         [f"{op}; cells of {kib} KiB; {way}" for op in ("store", "load")
                          for kib in (2, 4, 16, 64, 256, 1024) for way in ("copies", "direct", "staged")])
        for row in rows:
            self.assertGreater(float(row["value"]), 0, row)
            self.assertGreater(float(row["limit"]), 0, row)
        goals = {row["case"].split(";")[1].strip(): row["goal"] for row in rows if row["peer"] == "chosen"}
        self.assertEqual(goals, {f"cells of {kib} KiB": "0.6" if kib < 16 else "0.9" for kib in (2, 4, 16, 64, 256, 1024)})
        self.assertEqual([sum(bool(row[column]) for row in rows) for column in ("peer", "goal")], [12, 12])
        # How much the work hides on a simulated GPU is no measurement.
        self.assertEqual([overlap[column] for column in ("case", "unit", "limit", "goal")],
                         ["load of 64 tokens in 80 layers behind work; hidden", "%", "100", "0.9"])
        self.assertRegex(overlap["peer"], r"^ms: load alone [\d.]+; work alone [\d.]+; both$")
        self.assertGreater(float(overlap["peer_value"]), 0)
        self.assertEqual([decoded[column] for column in ("case", "unit", "goal", "peer")],
                         ["lossless bf16; made up; decoded on the GPU", "GB/s", "1", "decoded by a thread of the host"])
        for column in ("value", "limit", "peer_value"):
            self.assertGreater(float(decoded[column]), 0, decoded)

    def replays(self, *args):
        rows = self.rows("optimize", *SMALL, *args)
        return {row["case"].split(";")[0]: row for row in rows if row["unit"] == "Mblocks/s"}

    def test_replays_without_libcachesim(self):
        rows = self.replays("--python", "missing/python3")
        self.assertEqual(list(rows), ["lru", "sieve", "s3fifo", "arc", "lfu", "lru curve"])
        for row in rows.values():
            self.assertTrue(row["case"].endswith("; a made-up trace"), row)
            self.assertEqual((row["limit"], row["ratio"]), ("", ""))
            least, value, most = (float(row[k]) for k in ("value_min", "value", "value_max"))
            self.assertTrue(0 < least <= value <= most, row)
            self.assertGreater(float(row["peer_value"]), 0)

    def test_replays_of_a_trace(self):
        path = os.path.join(self.folder, "..", os.path.basename(self.folder) + ".jsonl")
        with open(path, "w") as trace:
            for i in range(2000):
                print(json.dumps({"timestamp": i, "input_length": 512, "output_length": 1,
                                  "hash_ids": [i % 7, 1000 + i % 300, 2000 + i]}), file=trace)
        self.addCleanup(os.remove, path)
        rows = self.replays("--trace", path, "--python", "missing/python3")
        name = os.path.basename(self.folder)
        self.assertEqual(rows["arc"]["case"], f"arc; 230 of 2307 blocks; {name}")
        self.check(1, "bench", "optimize", *SMALL, "--trace", "missing", err=["missing: "])

    def test_hits_are_those_of_libcachesim(self):
        python = os.environ.get("TIERCE_TEST_LIBCACHESIM")
        if python is None:
            self.skipTest("TIERCE_TEST_LIBCACHESIM names no Python with libcachesim")
        for row in self.replays("--python", python).values():
            self.assertGreater(float(row["limit"]), 0)

    def test_every_policy_has_a_row(self):
        rows = self.rows("policy", "--seconds", "0.01", "--memory", "64MiB", "--csv")
        goals = {row["case"].split(";")[0]: float(row["limit"]) for row in rows}
        lru, = (float(row["value"]) for row in rows if row["case"].startswith("lru;"))
        self.assertLess(abs(goals.pop("hazard") * 3 / lru - 1), .01)
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
        self.check(2, "bench", "--seconds", err=["--seconds requires a value", "help bench"])
        self.check(2, "bench", "--csv=1", err=['--csv takes no value: "--csv=1"'])
        self.check(2, "bench", "--seconds", "0", err=["--seconds"])
        self.check(2, "bench", "--seconds", "nan", err=["--seconds"])
        self.check(2, "bench", "--memory", "1MiB", err=["--memory"])
        self.check(1, "bench", "hash", "--dir", "missing", err=["cannot create missing/"])

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
