# SPDX-License-Identifier: Apache-2.0
"""tierce optimize --html, --svg and --png, from outside. tests/python/pages/test_report.py tests the page
in a browser."""

import base64
import hashlib
import json
import os
import re
import struct
import subprocess
import unittest
import xml.etree.ElementTree as ElementTree
import zlib

from cli_case import EXECUTABLE, CliCase

SVG = "{http://www.w3.org/2000/svg}"


def record(time, ids):
    return f'{{"timestamp": {time}, "hash_ids": [{", ".join(map(str, ids))}]}}\n'


class Report(CliCase):
    def setUp(self):
        super().setUp()
        self.trace = self.write("trace.jsonl", "".join(
            record(i, [0, 1 + i % 7, 10 + i % 49, 100 + i % 49]) for i in range(400)))

    def made(self, option, *args, name="out", trace=None):
        path = os.path.join(self.folder, name)
        self.check(0, "optimize", trace or self.trace, *args, option, path)
        with open(path, "rb") as file:
            return file.read()

    def data(self, page):
        text = page.decode().split('id="data">', 1)[1].split("</script>", 1)[0]
        self.assertNotRegex(text, "[<>&\u2028\u2029]")
        return json.loads(text)

    def test_the_page_holds_the_rows(self):
        rows = self.check(0, "optimize", self.trace, "--order", "rev,fwd", "--policy",
                          "lru,infinite,belady", "--capacity", "3,60,unlimited", "--csv", "-")
        page = self.made("--html", "--order", "rev,fwd", "--policy", "lru,infinite,belady",
                         "--capacity", "3,60,unlimited")
        data = self.data(page)
        got = {",".join(map(str, ["trace", c["policy"], c["order"] or "-", c["match"],
                                  "unlimited" if size is None else size, c["requests"],
                                  c["blocks"], hits, f"{hits / c['blocks']:.6f}"]))
               for c in data["curves"] for size, hits in zip(c["capacity"], c["hits"])}
        self.assertEqual(got, set(rows.stdout.splitlines()[1:]))
        self.assertEqual(data["trace"]["requests"], 400)
        self.assertEqual([c["label"] for c in data["curves"]],
                         ["lru/rev", "lru/fwd", "infinite", "belady"])

    def test_the_page_holds_what_else_was_found(self):
        """Sums of the timeline, of the histograms and of the tiers, beside the rows."""
        data = self.data(self.made("--html", "--policy", "lru,lfu,infinite,belady", "--capacity",
                                   "10,40,60", "--tier", "a:20", "--tier", "b:50"))
        curves = {c["policy"]: c for c in data["curves"]}
        timeline = {line["policy"]: line for line in data["timeline"]["lines"]}
        self.assertEqual(set(timeline), {"lru", "lfu", "infinite"})
        for policy, line in timeline.items():
            curve = curves[policy]
            self.assertEqual(len(line["hits"]), data["timeline"]["slices"])
            self.assertEqual(sum(line["hits"]),
                             curve["hits"][curve["capacity"].index(line["capacity"])])
            self.assertEqual(sum(line["blocks"]), curve["blocks"])
        life = data["life"]
        self.assertEqual((life["uses"], life["reuses"]), (1600, curves["infinite"]["hits"][0]))
        for name in ("distance", "gap_us"):
            self.assertEqual(sum(life[name]["bins"]), life["reuses"])
        self.assertEqual(sum(life["uses_of"]["bins"]), data["trace"]["distinct"])
        roots = [n for n in life["nodes"] if n["parent"] is None]
        self.assertEqual([(n["requests"], n["depth"]) for n in roots], [(400, 0)])
        tiers = data["tiers"]
        self.assertEqual([t["name"] for t in tiers["tiers"]], ["a", "b"])
        self.assertEqual(sum(t["hits"] for t in tiers["tiers"]), tiers["hits"])
        self.assertGreater(tiers["hits"], curves["lru"]["hits"][0])

    def test_capacities_in_bytes(self):
        """Of blocks that differ in size."""
        trace = self.write("sizes.csv", "time,key,size\n" + "".join(
            f"{i},{i * i % 61},{4096 + i * i % 61}\n" for i in range(400)))
        page = self.made("--html", "--capacity", "64KiB,96KiB", "--policy", "lru,sieve",
                         trace=trace)
        data = self.data(page)
        self.assertEqual(data["unit"], "bytes")
        self.assertEqual(data["curves"][0]["capacity"], [65536, 98304])
        self.assertRegex(page.decode(), r'<th scope="row">64.0&#160;KiB</th><td>')
        root = ElementTree.fromstring(self.made("--svg", "--capacity", "64KiB,4MiB", "--policy",
                                                "lru,sieve", trace=trace))
        texts = [t.text for t in root.iter(SVG + "text")]
        for wanted in ("64 KiB", "1 MiB", "4 MiB", "capacity"):
            self.assertIn(wanted, texts)

    def test_only_its_own_script_may_run(self):
        page = self.made("--html").decode()
        policy = re.search(r'Content-Security-Policy" content="([^"]*)"', page)[1]
        self.assertTrue(policy.startswith("default-src 'none';"), policy)
        self.assertNotIn("unsafe", policy)
        for name, rule in (("script", "script-src"), ("style", "style-src")):
            bodies = re.findall(f"<{name}>(.*?)</{name}>", page, re.DOTALL)
            self.assertEqual(len(bodies), 1)
            digest = base64.b64encode(hashlib.sha256(bodies[0].encode()).digest()).decode()
            self.assertIn(f"{rule} 'sha256-{digest}'", policy)
        self.assertNotRegex(page, r'(src|href)="(?!data:,|#)')
        self.assertNotRegex(page, r"@import|url\(|innerHTML =|fetch\(|XMLHttp")
        self.assertNotIn("<!--tierce:", page)

    def test_texts_that_are_no_texts(self):
        """Bytes that are no UTF-8, in a name of a file and of an instance."""
        turn = ('{"instance_id":"%s","timestamp_us":%d,"keys":[1],"query_type":"prefix_match",'
                '"block_mask":[]}\n')
        trace = self.write("\udcff\udcc3<é\u2028🙂>&.jsonl", (
            turn % ("\\u2028</script>\\ud83d\\ude42", 1) + turn % ("b", 2)).encode())
        data = self.data(self.made("--html", "--format", "kvcm-schema", trace=trace))
        self.assertEqual(data["trace"]["name"], "??<é?🙂>&")
        self.assertEqual(data["trace"]["instances"], ["\u2028</script>🙂", "b"])
        root = ElementTree.fromstring(self.made("--svg", trace=trace))
        self.assertEqual(root.find(SVG + "title").text,
                         "??<é?🙂>&: hits against capacity")

    def test_the_drawing(self):
        svg = self.made("--svg", "--match", "prefix,any", "--policy", "lru,leaf-lru,mru,belady",
                        "--block-bytes", "1MiB")
        self.assertEqual(svg, self.made("--svg", "--match", "prefix,any", "--policy",
                                        "lru,leaf-lru,mru,belady", "--block-bytes", "1MiB",
                                        "--threads", "1"))
        root = ElementTree.fromstring(svg)
        width, height = float(root.get("width")), float(root.get("height"))
        texts = [t.text for t in root.iter(SVG + "text")]
        for wanted in ("lru, leaf-lru", "mru", "belady", "capacity in blocks", "0 %", "1 MiB"):
            self.assertIn(wanted, texts)
        for wanted in ("Hits (prefix), of the blocks looked up",
                       "Hits (any), of the blocks looked up"):
            self.assertEqual(texts.count(wanted), 1)
        for line in root.iter(SVG + "polyline"):
            for point in line.get("points").split():
                x, y = map(float, point.split(","))
                self.assertTrue(0 <= x <= width and 0 <= y <= height, point)
        for text in root.iter(SVG + "text"):
            self.assertTrue(0 <= float(text.get("x")) <= width, text.text)

    def test_a_drawing_of_many_lines_has_a_legend(self):
        policies = "lru,fifo,mru,lfu,sieve,s3fifo,arc,leaf-lru,infinite,belady"
        root = ElementTree.fromstring(self.made("--svg", "--policy", policies, "--order", "rev,fwd",
                                                "--capacity", "5,20,60,100"))
        texts = [(t.text, float(t.get("y"))) for t in root.iter(SVG + "text")]
        axis = next(y for text, y in texts if text == "capacity in blocks")
        named = ", ".join(text for text, y in texts if y > axis).split(", ")
        self.assertEqual(set(named), {f"{p}/{o}" for p in policies.split(",")[:7]
                                      for o in ("rev", "fwd")} | {"leaf-lru", "infinite", "belady"})
        self.assertLess(max(y for _, y in texts), float(root.get("height")))

    def test_drawings_of_little(self):
        """One capacity, one request, nothing but the unlimited, no hits at all."""
        one = self.write("one.jsonl", record(0, [1, 2]))
        for args in (["--capacity", "5"], ["--policy", "infinite"], ["--policy", "lru,infinite"],
                     ["--policy", "lru", "--capacity", "unlimited"], []):
            for trace in (one, self.trace):
                root = ElementTree.fromstring(self.made("--svg", *args, trace=trace))
                self.assertNotRegex(ElementTree.tostring(root, "unicode"), "nan|inf[^i]")
                self.data(self.made("--html", *args, trace=trace))
                self.made("--png", *args, trace=trace)

    def test_pixels(self):
        png = self.made("--png")
        self.assertEqual(png, self.made("--png", name="again"))
        self.assertEqual(png[:8], b"\x89PNG\r\n\x1a\n")
        self.assertEqual(struct.unpack(">II", png[16:24]), (1280, 800))
        at, packed = 8, b""
        while at < len(png):
            length, kind = struct.unpack(">I4s", png[at:at + 8])
            packed += png[at + 8:at + 8 + length] if kind == b"IDAT" else b""
            at += 12 + length
        self.assertGreater(len(set(zlib.decompress(packed))), 20)  # something is drawn

    def test_pixels_without_cairo(self):
        """A library that cannot be loaded is reported before the trace is read, and needed for nothing else."""
        self.write("libs/libcairo.so.2", "no library")
        without = {"LD_LIBRARY_PATH": os.path.join(self.folder, "libs")}
        self.check(1, "optimize", "no-trace", "--png", os.path.join(self.folder, "out"), env=without,
                   err=["--png requires libcairo.so.2 and libfontconfig.so.1"])
        self.assertEqual(os.listdir(self.folder).count("out"), 0)
        self.check(0, "optimize", self.trace, "--svg", os.path.join(self.folder, "out"), env=without)

    def test_what_cannot_be_written_is_told_before_the_trace_is_read(self):
        for option in "--csv", "--html", "--svg", "--png":
            with self.subTest(option):
                before = sorted(os.listdir(self.folder))
                self.check(1, "optimize", "no-trace", option, "no-folder/out",
                           err=["no-folder/out: cannot be written: No such file or directory"])
                self.check(1, "optimize", "no-trace", option, self.folder,
                           err=["cannot be written: Is a directory"])
                self.check(1, "optimize", "no-trace", option, "out", err=["no-trace: "])
                self.assertEqual(sorted(os.listdir(self.folder)), before)

    def test_outputs_that_destroy_each_other_are_refused(self):
        trace = self.write("own.jsonl", "{}")
        link = os.path.join(self.folder, "link.jsonl")
        os.symlink(trace, link)
        for path in trace, link:
            self.check(2, "optimize", trace, "--csv", path, err=["is the trace"])
        self.check(2, "optimize", trace, "--csv", "out", "--svg", "out",
                   err=["out is given for two outputs"])
        self.check(2, "optimize", trace, "--html", "", err=["a file to be written has an empty name"])
        self.check(2, "optimize", "", err=["requires a trace: a file, or - for standard input"])
        with open(trace, encoding="utf-8") as file:
            self.assertEqual(file.read(), "{}")

    def limited(self, blocks, page):
        """As on a disk with no more room than so many blocks of 512 bytes for a file."""
        said = subprocess.run(["sh", "-c", f'ulimit -f {blocks}; trap "" XFSZ; exec "$@"', "sh",
                               EXECUTABLE, "optimize", self.trace, "--capacity", "2", "--html",
                               page], capture_output=True, text=True, timeout=60, check=False)
        self.assertEqual(said.returncode, 1, said.stderr)
        return said.stderr

    def test_full_disk(self):
        """Of a file that does not fit nothing is left, and of the one before nothing is lost."""
        page = os.path.join(self.folder, "page.html")
        self.assertIn("page.html: cannot be written to its end: File too large",
                      self.limited(80, page))
        self.assertFalse(os.path.exists(page))
        self.write("page.html", "of yesterday")
        before = sorted(os.listdir(self.folder))
        self.assertIn("the previous file is unchanged", self.limited(80, page))
        with open(page, encoding="utf-8") as file:
            self.assertEqual(file.read(), "of yesterday")
        self.assertEqual(sorted(os.listdir(self.folder)), before)
        said = self.limited(2, page)
        self.assertIn("TMPDIR", said)
        self.assertNotIn(self.trace, said)

    def test_a_report_takes_the_place_of_the_one_before(self):
        """The file is replaced through a link, with its permissions, and never overwritten: readers
        of the old file can continue."""
        for option in ("--csv", "--html", "--svg", "--png", "--timeline"):
            with self.subTest(option=option):
                target = self.write("target", "of yesterday\n" * 10000)
                os.chmod(target, 0o640)
                link = os.path.join(self.folder, "link")
                os.symlink("target", link)
                before = sorted(os.listdir(self.folder))
                with open(target, encoding="utf-8") as old:
                    self.check(0, "optimize", self.trace, "--capacity", "2", option, link)
                    self.assertTrue(old.read().startswith("of yesterday"), "it was written over")
                self.assertTrue(os.path.islink(link))
                self.assertEqual(os.stat(target).st_mode & 0o777, 0o640)
                with open(target, "rb") as file:
                    self.assertNotIn(b"of yesterday", file.read())
                self.assertEqual(sorted(os.listdir(self.folder)), before)
                os.remove(link)
        fresh = os.path.join(self.folder, "fresh.csv")
        mask = os.umask(0o027)
        self.addCleanup(os.umask, mask)
        self.check(0, "optimize", self.trace, "--csv", fresh)
        self.assertEqual(os.stat(fresh).st_mode & 0o777, 0o640)

    def test_what_cannot_be(self):
        for option in ("--html", "--svg", "--png"):
            self.check(1, "optimize", self.trace, option, "/nonexistent/x", err=["/nonexistent/x"])
            if os.path.exists("/dev/full"):
                self.check(1, "optimize", self.trace, option, "/dev/full", err=["/dev/full"])
            config = self.write("kvcm.json", "{}")
            self.check(2, "optimize", "--kvcm-config", config, option, "x", err=["--html"])
        page = self.check(0, "optimize", self.trace, "--html", "-").stdout
        self.assertTrue(page.startswith("<!DOCTYPE html>") and page.endswith("</html>\n"))


if __name__ == "__main__":
    unittest.main()
