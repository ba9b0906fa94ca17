# SPDX-License-Identifier: Apache-2.0
"""tierce inspect on stores that the disk tier itself has written."""

import json
import os
import re
import shutil
import subprocess
import sys
import time
import unittest

MAKE_STORE = os.path.abspath(sys.argv.pop(2)) if len(sys.argv) > 2 else "make_store"

from cli_case import CliCase, EXECUTABLE  # noqa: E402  (takes the executable from the arguments)

# A chunk of make_store: a header of one page, 4 blocks of 4096 + 4096 + 5000 bytes, whole pages.
CHUNK_BYTES = 4096 + -(-4 * (4096 + 4096 + 5000) // 4096) * 4096


class Inspect(CliCase):
    def make(self, chunks=20, shards=2, cap_mib=64, kind=()):
        folder = os.path.join(self.folder, "store")
        subprocess.run([MAKE_STORE, folder, str(chunks), str(shards), str(cap_mib), *kind], check=True,
                       stdin=subprocess.DEVNULL, timeout=60)
        return folder

    def damage(self, folder, offset, count=1):
        with open(os.path.join(folder, "data"), "r+b") as file:
            file.seek(offset)
            old = file.read(count)
            file.seek(offset)
            file.write(bytes(b ^ 0x55 for b in old))

    def verify(self, folder, status):
        result = self.check(status, "inspect", folder, "--verify")
        return [line.split("\t") for line in result.stdout.splitlines() if "\t" in line], result

    def test_what_is_there_is_told(self):
        folder = self.make()
        result = self.check(0, "inspect", folder, out=[
            "chunks   20 in 2 namespaces", "model    SmallForTests", "weights  aabb",
            "weights  ccdd", "dtype    float32", "hash     sha256",
            "tokens   32 a block, 128 a chunk, 3 layers", "shard    tp 0 of 2, pp 0 of 1: 8 chunks",
            "chunks   16", "chunks   4"])
        self.assertEqual(result.stderr, "")

    def test_json_is_complete(self):
        folder = self.make()
        data = json.loads(self.check(0, "inspect", "--json", "--verify", folder).stdout)
        self.assertEqual(data["chunks"], 20)
        self.assertEqual(data["bytes"], 20 * CHUNK_BYTES)
        self.assertEqual(data["verify"], {"chunks": 20, "bytes": 20 * CHUNK_BYTES, "damaged": 0,
                                          "vanished": 0, "locked": 0})
        self.assertGreaterEqual(data["data_file_bytes"], data["bytes"])
        spaces = {n["weights"]: n for n in data["namespaces"]}
        self.assertEqual(spaces["aabb"]["model_name"], "SmallForTests")
        self.assertEqual(spaces["ccdd"]["model_name"], "")
        self.assertEqual((spaces["aabb"]["layer_count"], spaces["aabb"]["block_tokens"],
                          spaces["aabb"]["chunk_blocks"]), (3, 32, 4))
        for name, chunks in (("aabb", 16), ("ccdd", 4)):
            self.assertEqual(spaces[name]["chunks"], chunks)
            self.assertEqual(sum(s["chunks"] for s in spaces[name]["shards"]), chunks)
            self.assertIn(spaces[name]["digest"], os.listdir(os.path.join(folder, "ns")))
        self.assertLessEqual(data["oldest_s"], data["newest_s"])

    def test_encrypted_chunks_are_told_and_verified(self):
        keys = os.path.join(self.folder, "keys")
        with open(keys, "w", opener=lambda path, flags: os.open(path, flags, 0o600)) as file:
            file.write(f"1 {'01' * 32}\n7 {'07' * 32}\n")
        folder = self.make(kind=["encrypted", keys])
        cipher = "cipher   AES-256-GCM; the last of these has the key 7"
        locked = "verified 20 chunks, "
        only = ": 0 damaged, 20 encrypted, of which only the header and the checksums of the encrypted bytes were verified (--key-file)"
        self.check(0, "inspect", folder, "--verify", out=[cipher, locked, only])
        result = self.check(0, "inspect", folder, "--verify", "--key-file", keys, out=[cipher, ": 0 damaged"])
        self.assertNotIn(" encrypted, of which", result.stdout)
        with open(keys + ".wrong", "w", opener=lambda path, flags: os.open(path, flags, 0o600)) as file:
            file.write(f"7 {'08' * 32}\n")
        result = self.check(1, "inspect", folder, "--verify", "--key-file", keys + ".wrong", out=[": 20 damaged"])
        self.assertIn("the encrypted chunk: its key is another one, or the header or the encrypted bytes were changed", result.stdout)
        self.assertNotIn(" encrypted, of which", result.stdout)
        data = json.loads(self.check(0, "inspect", "--json", "--verify", folder).stdout)
        self.assertEqual(([n["key_number"] for n in data["namespaces"]], data["verify"]["locked"]), ([7, 7], 20))
        self.check(2, "inspect", folder, "--key-file", keys, err=["--key-file requires --verify"])
        self.check(1, "inspect", folder, "--verify", "--key-file", keys + ".no", err=["--key-file: encryption.key_file: "])
        self.damage(folder, 3 * data["bytes"] // 20 + 9000)
        bad, _ = self.verify(folder, 1)
        self.assertEqual([why for _, why in bad], ["the compressed chunk: the checksum does not match the bytes"])

    def test_coded_chunks_are_told_and_verified(self):
        folder = self.make(kind=["coded"])
        self.check(0, "inspect", folder, "--verify", out=[
            "codec    16 of these are compressed or encrypted, ", "; the last is compressed by lossless as bf16, and not encrypted",
            "verified 20 chunks"])
        data = json.loads(self.check(0, "inspect", "--json", folder).stdout)
        self.assertEqual((data["coded_chunks"], data["coded_raw_bytes"]), (20, 20 * CHUNK_BYTES))
        self.assertEqual(data["coded_bytes"], data["bytes"])
        self.assertLess(data["bytes"], 20 * CHUNK_BYTES * 0.8)
        self.damage(folder, 3 * data["bytes"] // 20 + 9000)  # behind the head of the fourth
        bad, _ = self.verify(folder, 1)
        self.assertEqual([why for _, why in bad], ["the compressed chunk: the checksum does not match the bytes"])

    def test_the_codec_of_a_plugin_is_named(self):
        file = os.path.join(self.folder, "codec.so")
        shutil.copy(os.path.join(os.path.dirname(EXECUTABLE), "..", "lib", "libplugin_codec.so"), file)
        folder = self.make(kind=["plugin", f"plugin://{file}"])
        self.check(0, "inspect", folder, out=[
            "; the last is compressed by planes_zstd (a plug-in, read with disk.codec=plugin://FILE) as bf16, and not encrypted"])
        data = json.loads(self.check(0, "inspect", "--json", folder).stdout)
        self.assertEqual([n["codec"] for n in data["namespaces"]], ["planes_zstd"] * 2)

    def test_lossy_chunks_are_told_and_verified(self):
        folder = self.make(kind=["lossy"])
        self.check(0, "inspect", folder, "--verify", out=[
            "lossy    int8: KV that leaves memory is approximate", "; the last is compressed by int8 (lossy) as bf16, and not encrypted",
            ": 0 damaged"])
        data = json.loads(self.check(0, "inspect", "--json", folder).stdout)
        self.assertEqual([(n["quantization"], n["codec"]) for n in data["namespaces"]], [("tierce-int8", "int8")] * 2)
        self.damage(folder, 3 * data["bytes"] // 20 + 9000)  # behind the head of the fourth
        bad, _ = self.verify(folder, 1)
        self.assertEqual([why for _, why in bad], ["the compressed chunk: the checksum does not match the bytes"])

    def test_a_whole_store_verifies(self):
        bad, result = self.verify(self.make(chunks=50), 0)
        self.assertEqual(bad, [])
        self.assertIn("verified 50 chunks", result.stdout)
        self.assertIn(": 0 damaged", result.stdout)

    def test_every_place_of_a_chunk_is_checked(self):
        folder = self.make(chunks=3)
        places = {0: "header", 100: "header", 300: "header", 495: "header",
                  4096: "1 of 12 cells", 4096 + 3 * 4096 + 5: "1 of 12 cells",
                  4096 + 4 * (4096 + 4096) + 3 * 5000 + 4999: "1 of 12 cells"}
        for place, says in places.items():
            self.damage(folder, place)
            bad, result = self.verify(folder, 1)
            self.assertEqual(len(bad), 1, (place, result.stdout))
            self.assertIn(says, bad[0][1])
            self.assertIn(": 1 damaged", result.stdout)
            self.damage(folder, place)
        self.verify(folder, 0)

    def test_damaged_chunks_are_named_by_their_keys(self):
        folder = self.make(chunks=30)
        for chunk in (0, 7, 29):
            self.damage(folder, chunk * CHUNK_BYTES + 5000)
        bad, _ = self.verify(folder, 1)
        self.assertEqual(len(bad), 3)
        self.assertEqual(len({key for key, _ in bad}), 3)
        for key, _ in bad:
            self.assertRegex(key, r"[0-9a-f]{64}.*[0-9a-f]{64}")
        result = self.check(1, "inspect", folder, "--verify", "--json", err=[bad[0][0]])
        self.assertEqual(json.loads(result.stdout)["verify"]["damaged"], 3)

    def test_a_chunk_in_the_place_of_another_is_found(self):
        # Chunk 4 is of the other namespace, the rest differ in their hashes only.
        folder = self.make(chunks=5, shards=1)
        path = os.path.join(folder, "data")
        with open(path, "rb") as file:
            whole = file.read()
        for chunk, says in ((1, "the header names another chunk"),
                            (4, "the header names another namespace")):
            with open(path, "r+b") as file:
                file.write(whole[chunk * CHUNK_BYTES:(chunk + 1) * CHUNK_BYTES])
            bad, _ = self.verify(folder, 1)
            self.assertEqual([why for _, why in bad], [says])

    def test_a_short_or_missing_data_file(self):
        folder = self.make(chunks=5)
        os.truncate(os.path.join(folder, "data"), 2 * CHUNK_BYTES + 4096)
        bad, _ = self.verify(folder, 1)
        self.assertEqual(len(bad), 3)
        self.assertIn("the data file ends before the chunk", bad[0][1])
        os.unlink(os.path.join(folder, "data"))
        self.check(1, "inspect", folder, "--verify", err=["data"])
        self.check(0, "inspect", folder, out=["chunks   5"])

    def test_a_damaged_journal_is_told(self):
        folder = self.make(chunks=100)
        journal = os.path.join(folder, "journal")
        self.assertGreaterEqual(os.path.getsize(journal), 3 * 4096)
        with open(journal, "r+b") as file:
            file.seek(4096 + 100)
            old = file.read(1)
            file.seek(4096 + 100)
            file.write(bytes([old[0] ^ 1]))
        self.check(1, "inspect", folder, out=["journal  DAMAGED: 1 of "])
        result = self.check(1, "inspect", folder, "--verify", "--json")
        data = json.loads(result.stdout)
        self.assertEqual((data["journal_damage"], data["verify"]["damaged"]), (1, 0))
        self.assertLess(data["chunks"], 100)

    def test_a_journal_that_lost_its_end_is_told(self):
        folder = self.make(chunks=100)
        journal = os.path.join(folder, "journal")
        pages = json.loads(self.check(0, "inspect", folder, "--json").stdout)["journal_pages"]
        size = pages * 4096  # zeroes may follow
        with open(journal, "rb") as file:
            whole = file.read()
        for left in (size - 4096, 4096, 0):
            os.truncate(journal, left)
            lost = (size - left) // 4096
            result = self.check(1, "inspect", folder, "--verify",
                                out=[f"journal  DAMAGED: {lost} of {pages} pages"])
            self.assertEqual(result.stderr, "")
            data = json.loads(self.check(1, "inspect", folder, "--json").stdout)
            self.assertEqual(data["journal_damage"], lost)
            # As a reset of the device's last sectors leaves it.
            with open(journal, "ab") as file:
                file.write(bytes(size - left))
            self.check(1, "inspect", folder, out=[f"DAMAGED: {lost} of "])
            with open(journal, "wb") as file:
                file.write(whole)
        self.check(0, "inspect", folder, "--verify")
        # Without the mark, or with a damaged one, nothing is known of the end.
        with open(os.path.join(folder, "journal.synced"), "r+b") as file:
            file.seek(24)
            file.write(b"x")
        os.truncate(journal, 4096)
        self.check(0, "inspect", folder, "--verify")
        os.unlink(os.path.join(folder, "journal.synced"))
        self.check(0, "inspect", folder, "--verify")

    def test_an_unfinished_page_at_the_end_is_no_damage(self):
        folder = self.make(chunks=5)
        with open(os.path.join(folder, "journal"), "ab") as file:
            file.write(b"TRCEJRNL" + b"x" * 5000)
        self.check(0, "inspect", folder, "--verify", out=["verified 5 chunks"])

    def test_a_newer_format_is_told(self):
        folder = self.make(chunks=5)
        journal = os.path.join(folder, "journal")
        with open(journal, "r+b") as file:
            for page in range(os.path.getsize(journal) // 4096):
                file.seek(page * 4096 + 16)
                file.write((99).to_bytes(4, "little"))
        self.check(1, "inspect", folder, err=["written by a newer Tierce", "use that newer"])

    def test_a_store_that_is_in_use_is_no_damage(self):
        folder = os.path.join(self.folder, "live")
        with subprocess.Popen([MAKE_STORE, folder, "50", "1", "6", "live"], text=True,
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE) as maker:
            try:
                self.assertEqual(maker.stdout.readline(), "ready\n")
                for _ in range(10):
                    bad, result = self.verify(folder, 0)
                    self.assertEqual(bad, [], result.stdout)
                    self.assertNotIn("chunks   0 ", result.stdout)
                self.assertIsNone(maker.poll(), "the other process has ended too early")
            finally:
                maker.terminate()
            self.assertEqual(maker.wait(timeout=30), 0)
        self.verify(folder, 0)

    def test_what_is_no_store_is_explained(self):
        self.check(1, "inspect", "/nowhere", err=["there is no such folder", "disk.path"])
        self.check(1, "inspect", self.write("file", "x"), err=["is a file"])
        os.makedirs(os.path.join(self.folder, "empty"))
        self.check(1, "inspect", "empty", err=["is not a store folder", "disk.path"])
        self.write("noise/journal", os.urandom(9000))
        self.check(1, "inspect", "noise", err=["is not a store folder", "does not belong to Tierce"])
        os.makedirs(os.path.join(self.folder, "folder", "journal"))
        self.check(1, "inspect", "folder", err=["cannot be read"])
        folder = self.make(chunks=1)
        if os.geteuid() != 0:
            os.chmod(folder, 0)
            self.check(1, "inspect", folder, err=["no permission"])
            os.chmod(folder, 0o700)

    def test_a_missing_namespace_text_is_told(self):
        folder = self.make(chunks=3)
        for name in os.listdir(os.path.join(folder, "ns")):
            os.unlink(os.path.join(folder, "ns", name))
        self.check(0, "inspect", folder, "--verify", out=["its text is missing"])
        data = json.loads(self.check(0, "inspect", folder, "--json").stdout)
        self.assertEqual(data["namespaces"][0]["chunks"], 3)

    def test_the_doctor_reads_the_same_folder(self):
        folder = self.make(chunks=10)
        self.check(0, "doctor", folder, folder, out=["2 of 2 namespaces of A can be shared"])

    def test_wrong_arguments(self):
        self.check(2, "inspect", err=["requires a store folder"])
        self.check(2, "inspect", "", err=["requires a store folder"])
        self.check(2, "inspect", "a", "b", err=["accepts one folder"])
        self.check(2, "inspect", "--fast", "a", err=['no option "--fast"'])

    def test_help_says_what_the_status_means(self):
        text = self.check(0, "inspect", "--help").stdout
        self.assertTrue(re.search(r"Exit status: 0 no damage", text))

    def test_scrub_reads_all_and_names_what_is_damaged(self):
        folder = self.make(chunks=12)
        self.check(0, "scrub", folder, out=["12 chunks read", ": 0 damaged"])
        self.damage(folder, 3 * CHUNK_BYTES + 5000)
        result = self.check(1, "scrub", folder, out=["12 chunks read", ": 1 damaged"])
        bad = [line for line in result.stdout.splitlines() if "\t" in line]
        self.assertEqual(len(bad), 1)
        self.assertIn("1 of 12 cells", bad[0])

    def test_scrub_keeps_its_rate(self):
        folder = self.make(chunks=12)
        began = time.monotonic()
        self.check(0, "scrub", folder, "--rate", str(24 * CHUNK_BYTES))
        self.assertGreaterEqual(time.monotonic() - began, 0.45)  # half a second's worth

    def test_scrub_refuses(self):
        self.check(2, "scrub", err=["requires a store folder"])
        self.check(2, "scrub", "a", "--rate", "fast", err=["--rate requires"])
        self.check(2, "scrub", "a", "b", err=["second"])
        self.check(2, "scrub", "a", "--repair", err=["--repair"])
        self.check(1, "scrub", os.path.join(self.folder, "none"), err=["no such folder"])


if __name__ == "__main__":
    unittest.main()
