# SPDX-License-Identifier: Apache-2.0
"""tierce why: of a running process and of a store folder."""

import json
import os
import re
import subprocess
import sys
import time
import unittest

KEEPER = os.path.abspath(sys.argv.pop())

from cli_case import CliCase, EXECUTABLE, free_port  # noqa: E402


class Why(CliCase):
    def setUp(self):
        super().setUp()
        self.runtime = os.path.join(self.folder, "run")
        os.mkdir(self.runtime, 0o700)
        self.env = {"XDG_RUNTIME_DIR": self.runtime}
        self.store = os.path.join(self.folder, "store")

    def keep(self, *settings):
        keeper = subprocess.Popen(
            [KEEPER, "memory.size=8MiB", f"disk.path={self.store}", *settings],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env={**os.environ, **self.env})
        self.addCleanup(self.end, keeper)
        return int(keeper.stdout.readline()), keeper

    def end(self, keeper):
        if not keeper.stdin.closed:
            keeper.stdin.close()
            keeper.stdout.close()
        self.assertEqual(keeper.wait(30), 0)

    def tokens(self, *runs):
        """A file of (token, how often)."""
        name = "tokens" + "".join(f".{t}x{n}" for t, n in runs)
        return self.write(name, json.dumps([t for t, n in runs for _ in range(n)]))

    def why(self, status, *args, **kwargs):
        return self.check(status, "why", *args, env=self.env, **kwargs)

    def ask(self, status, *args):
        return json.loads(self.why(status, *args, "--json").stdout)

    def await_reason(self, reason, *args):
        for _ in range(600):
            answer = json.loads(self.tierce("why", *args, "--json", env=self.env).stdout)
            if answer["reason"] == reason:
                return answer
            time.sleep(0.1)
        self.fail(answer)

    def test_a_process_is_asked(self):
        pid, _ = self.keep()
        there = self.tokens((0, 128))
        self.why(0, "--tokens", there, out=["held       128 tokens", "missing    nothing"])
        self.why(0, str(pid), "--tokens", there)
        [name] = os.listdir(self.runtime + "/tierce")
        self.why(0, f"{self.runtime}/tierce/{name}", "--tokens", there)
        longer = self.tokens((0, 128), (7, 128))
        self.why(1, str(pid), "--tokens", longer,
                 out=["held       128 tokens", "from token 128 on", "never_stored",
                      "departs    nowhere: no stored prompt continues after token 128"])
        self.why(1, str(pid), "--tokens", self.tokens((0, 64), (7, 64)),
                 out=["departs    between tokens 64 and 79; other stored continuations: 1"])
        self.why(1, str(pid), "--tokens", self.tokens((7, 128)),
                 out=["departs    between tokens 0 and 15; other stored continuations: 1"])
        answer = self.ask(1, str(pid), "--tokens", longer)
        self.assertEqual((answer["held_blocks"], answer["reason"], answer["token"]),
                         (8, "never_stored", 128))
        self.assertIsNone(answer["tier"])
        # The first block of the second chunk is stored, in a chunk with a different continuation.
        part = self.ask(1, "--tokens", self.tokens((0, 80), (7, 48)))
        self.assertEqual((part["held_blocks"], part["reason"]), (5, "never_stored"))
        self.assertIn("from token 80 on", part["text"])
        self.assertEqual(part["departs"],
                         {"from_token": 80, "to_token": 96, "branches": 1, "other_root": 0})
        self.why(0, "--tokens", there)
        # With another salt, it is another prompt. Without full blocks, no chunk is missing.
        self.assertEqual(self.ask(1, "--tokens", there, "--salt", "s & t=1")["held_blocks"], 0)
        self.assertEqual(self.ask(1, "--tokens", there, "--lora", "00ff")["held_blocks"], 0)
        self.assertEqual(self.ask(1, "--tokens", there, "--shard", "1/2")["held_blocks"], 0)
        self.why(1, "--tokens", there, "--salt", "s",
                 out=["departs    before the first token; stored prompts with another salt or LoRA adapter: 1"])
        self.why(0, "--tokens", self.tokens((9, 15)), out=["shorter than a block: such a prompt"])
        self.why(0, "--tokens", self.tokens((9, 20)), out=["shorter than a chunk: stored only"])
        self.why(1, "--tokens", there, "--namespace", "0000000000000000",
                 err=["no namespace's digest begins with 0000000000000000", "kv_dtype=bf16"])

    def test_a_process_tells_what_is_sooner_computed(self):
        self.end(self.keep()[1])
        self.keep("token=5", "cost.read=1KB", "cost.prefill=1000000")
        answer = self.ask(1, "--tokens", self.tokens((0, 128)))
        self.assertEqual((answer["held_blocks"], answer["reason"]), (0, "not_worth_loading"))
        # The first blocks of its chunks are not remembered either.
        answer = self.ask(1, "--tokens", self.tokens((0, 32), (7, 96)))
        self.assertEqual((answer["held_blocks"], answer["reason"]), (0, "never_stored"))

    def test_a_process_tells_what_was_not_written(self):
        pid, _ = self.keep("memory.chunks=1")
        answer = self.ask(1, str(pid), "--tokens", self.tokens((0, 128)))
        self.assertEqual((answer["reason"], answer["tier"], answer["status"]),
                         ("not_written", "memory", "TIERCE_E_SLOTS"))
        self.assertGreater(answer["when_s"], 1700000000)
        self.assertIn("tier       memory\nwhen       20", answer["text"])
        self.assertIn("status     the tier held its maximum number of chunks (memory.chunks, disk.chunks)", answer["text"])

    def test_a_process_tells_what_the_disk_evicted(self):
        self.end(self.keep()[1])
        pid, _ = self.keep("token=7", "disk.chunks=2", "disk.policy=lru")
        answer = self.await_reason("evicted", str(pid), "--tokens", self.tokens((0, 64)))
        self.assertEqual((answer["reason"], answer["tier"], answer["policy"], answer["status"]),
                         ("evicted", "disk", "lru", "TIERCE_E_SLOTS"))
        self.assertIn("tier       disk, by lru\nwhen       20", answer["text"])
        self.assertIn("status     the tier held its maximum number of chunks (memory.chunks, disk.chunks)\n", answer["text"])

    def test_a_process_tells_which_tier_is_out_of_service(self):
        pid, _ = self.keep(f"remote.urls=redis://127.0.0.1:{free_port()}", "breaker.errors=1", "breaker.retry=1h")
        answer = self.await_reason("tier_down", str(pid), "--tokens", self.tokens((9, 128)))
        self.assertEqual((answer["tier"], answer["held_blocks"]), ("redis", 0))
        self.assertIn("reason     tier_down: a tier that may hold it is out of service\ntier       redis\n", answer["text"])

    def test_a_folder_is_asked(self):
        _, keeper = self.keep()
        self.end(keeper)
        there = self.tokens((0, 128))
        self.why(0, self.store, "--tokens", there, out=["held       128 tokens"])
        self.why(0, self.store, "--tokens", self.tokens((0, 140)))
        answer = self.ask(1, self.store, "--tokens", self.tokens((0, 64), (1, 128)))
        self.assertEqual((answer["held_blocks"], answer["reason"], answer["block"]),
                         (4, "never_stored", 4))
        self.assertIn("a folder has no record of removed chunks", answer["text"])
        self.assertEqual(self.ask(1, self.store, "--tokens", there, "--shard", "1/2")["reason"],
                         "never_stored")
        # From a pipe, as plain numbers.
        piped = subprocess.run([EXECUTABLE, "why", self.store, "--tokens", "-"], text=True,
                               input="0\n" * 128, stdout=subprocess.PIPE, timeout=60, check=False)
        self.assertEqual(piped.returncode, 0, piped.stdout)

    def test_a_folder_shows_where_a_prompt_diverges(self):
        self.end(self.keep()[1])
        there = self.tokens((0, 128))
        for tokens, line in ((((0, 64), (1, 128)), "between tokens 64 and 79; other stored continuations: 1"),
                             (((7, 128),), "between tokens 0 and 15; other stored continuations: 1"),
                             (((0, 30), (7, 98)), "between tokens 16 and 31; other stored continuations: 1"),
                             (((0, 128), (7, 128)), "nowhere: no stored prompt continues after token 128")):
            self.why(1, self.store, "--tokens", self.tokens(*tokens), out=[f"departs    {line}\n"])
        self.why(1, self.store, "--tokens", there, "--salt", "s",
                 out=["departs    before the first token; stored prompts with another salt or LoRA adapter: 1\n"])
        part = self.ask(1, self.store, "--tokens", self.tokens((0, 96), (7, 32)))
        self.assertEqual((part["held_blocks"], part["token"], part["departs"]),
                         (4, 64, {"from_token": 96, "to_token": 112, "branches": 1, "other_root": 0}))
        # Another branch in the same block, and one that is less near.
        self.end(self.keep("token=7")[1])
        part = self.ask(1, self.store, "--tokens", self.tokens((3, 128)))
        self.assertEqual(part["departs"], {"from_token": 0, "to_token": 16, "branches": 2, "other_root": 0})
        part = self.ask(1, self.store, "--tokens", self.tokens((7, 30), (3, 98)))
        self.assertEqual(part["departs"], {"from_token": 16, "to_token": 32, "branches": 1, "other_root": 0})
        # The headers are not what the journal says.
        [data] = [name for name in os.listdir(self.store) if name.startswith("data")]
        with open(os.path.join(self.store, data), "r+b") as file:
            size = file.seek(0, 2)
            file.seek(0)
            file.write(bytes(size))
        answer = self.ask(1, self.store, "--tokens", self.tokens((3, 128)))
        self.assertEqual(answer["reason"], "never_stored")
        self.assertNotIn("departs", answer)

    def test_another_namespace_is_named(self):
        self.end(self.keep("dtype=bf16", "token=0")[1])
        self.end(self.keep("dtype=fp8", "token=5")[1])
        pid, _ = self.keep("dtype=fp8", "token=5")
        there = self.tokens((0, 128))
        several = self.why(1, self.store, "--tokens", there,
                           err=["2 namespaces match", "kv_dtype=bf16", "kv_dtype=fp8"])
        by_dtype = {line.split("kv_dtype=")[1].split()[0]: line.split()[0]
                    for line in several.stderr.splitlines() if "kv_dtype=" in line}
        self.assertEqual(sorted(by_dtype), ["bf16", "fp8"])
        for where in (self.store, str(pid)):
            self.why(0, where, "--tokens", there, "--namespace", by_dtype["bf16"])
            answer = self.ask(1, where, "--tokens", there, "--namespace", by_dtype["fp8"])
            self.assertEqual(answer["reason"], "namespace")
            self.assertTrue(answer["twin"].startswith(by_dtype["bf16"]))
            self.assertEqual(answer["differences"],
                             [{"field": "kv_dtype", "here": "fp8", "there": "bf16"}])
            self.assertIn("differs    kv_dtype: fp8 here, bf16 there", answer["text"])

    def test_groups_of_layers_answer_together(self):
        self.end(self.keep("full=1")[1])
        pid, keeper = self.keep("window=65")
        there = self.tokens((0, 128))
        other = self.tokens((0, 64), (7, 64))  # whose window begins at block 0
        for where in (str(pid), self.store):
            said = self.why(0, where, "--tokens", there, out=["held       128 tokens in every group",
                                                              "a model with 2 groups of layers"])
            self.assertIn("group      full\n", said.stdout)
            self.assertIn("group      window of 65 tokens\n", said.stdout)
            answer = self.ask(1, where, "--tokens", other)
            self.assertEqual((answer["held_tokens"], answer["reason"]), (0, "never_stored"))
            self.assertEqual([(g["group"], g["held_blocks"], g["reason"], g["block"])
                              for g in answer["groups"]],
                             [("full", 4, "never_stored", 4), ("window", 0, "never_stored", 4)])
            # One of them alone.
            answer = self.ask(1, where, "--tokens", other, "--namespace",
                              answer["groups"][1]["namespace"][:16])
            self.assertEqual((answer["group"], answer["held_blocks"]), ("window", 0))
            if where == str(pid):
                self.end(keeper)
        self.check(0, "inspect", self.store,
                   out=["group    window", "window   65", "layers   2-3", "layers   0-1"])
        shown = json.loads(self.check(0, "inspect", self.store, "--json").stdout)["namespaces"]
        self.assertEqual(sorted((ns["group"], ns["window"], ns["layers"]) for ns in shown),
                         [("full", 0, "0-1"), ("window", 65, "2-3")])

    def test_a_chunk_is_named_by_its_hash(self):
        pid, keeper = self.keep()
        missing = self.ask(1, str(pid), "--tokens", self.tokens((0, 128), (3, 64)))["hash"]
        first = self.ask(1, str(pid), "--tokens", self.tokens((0, 64), (3, 64)))
        gone = self.ask(1, str(pid), "--hash", missing)
        self.assertEqual((gone["chunks"], gone["reason"]), ([], "never_stored"))
        self.assertIn("nowhere", gone["text"])
        every = []
        for digit in "0123456789abcdef":
            said = self.tierce("why", str(pid), "--hash", digit, "--json", env=self.env)
            every += [chunk["key"] for chunk in json.loads(said.stdout)["chunks"]]
        self.assertEqual(first["held_blocks"], 4)
        hashes = {re.split("[^0-9a-f]", key)[-1] for key in every}
        self.assertEqual(len(hashes), 2, every)
        chunk = sorted(hashes)[0]
        self.why(0, str(pid), "--hash", chunk[:7], out=["memory ", chunk])
        self.end(keeper)
        self.why(0, self.store, "--hash", chunk.upper(), out=["disk ", chunk, "4 blocks from"])
        self.why(1, self.store, "--hash", missing, out=["nowhere"])
        self.why(2, self.store, "--hash", "xyz", err=["hex digits"])
        self.why(2, self.store, "--hash", "", err=["hex digits"])
        self.why(2, self.store, "--hash", "ab", "--tokens", "f", err=["--hash DIGITS and --request"])

    def test_a_served_request_is_explained(self):
        name = "chatcmpl-7f/a b%20&c-0e1f"
        pid, _ = self.keep(f"request={name}")
        said = self.why(1, str(pid), "--request", name,
                        out=[f"request    {name}\n", "prompt     128 tokens, of which 128 were",
                             "found      0 tokens", "stored     128 tokens", "from token 0 on",
                             "reason     never_stored: "])
        self.assertIn("ended      20", said.stdout)
        answer = self.ask(1, "--request", "chatcmpl-7f/a b%20&c")
        self.assertEqual((answer["request"], answer["reason"], answer["matches"]),
                         (name, "never_stored", 1))
        self.assertEqual((answer["stored_tokens"], answer["token"]), (128, 0))
        self.why(1, str(pid), "--request", "other",
                 err=["no ended request with \"other\" in its id is remembered",
                      "the last 1024 requests (requests.remembered)"])
        # Of several processes, the one that has recorded the request answers.
        self.keep("memory.size=9MiB", "disk.path=", "request=second-1")
        self.assertEqual(self.ask(1, "--request", "second-1")["request"], "second-1")
        self.assertEqual(self.ask(1, "--request", "chatcmpl-7f")["request"], name)
        self.why(1, "--request", "third", err=["no ended request with \"third\""])
        self.why(2, "--tokens", self.tokens((0, 16)), err=["processes have control sockets"])

    def test_two_prompts_are_compared(self):
        pid, _ = self.keep()
        stored, other = self.tokens((0, 128)), self.tokens((0, 100), (7, 28))
        self.why(1, str(pid), "--tokens", other, "--against", stored,
                 out=["against    differs at token 100\n", "the hit ends with the last block before this"])
        answer = self.ask(1, str(pid), "--tokens", other, "--against", stored)
        self.assertEqual((answer["token"], answer["against"]["token"]), (96, 100))
        self.assertEqual((answer["against"]["is_same"], answer["against"]["cause"]), (False, None))
        self.why(0, str(pid), "--tokens", stored, "--against", other, out=["against    differs at token 100\n"])
        unknown = self.tokens((3, 64))
        self.why(1, str(pid), "--tokens", unknown, "--against", unknown,
                 out=["against    no difference: both prompts have the same 64 tokens",
                      "the hit ends at token 0, before this: the reason above is the cause"])
        self.why(1, str(pid), "--tokens", unknown, "--against", self.tokens((3, 40)),
                 out=["against    differs at token 40, the end of the shorter prompt"])
        self.why(1, str(pid), "--tokens", self.tokens((0, 100), (8, 28)), "--against",
                 self.tokens((0, 30), (9, 98)), out=["the hit reaches token 96, from another prompt"])
        self.why(1, str(pid), "--tokens", other, "--against", self.folder + "/none", err=["none: "])
        self.why(2, str(pid), "--hash", "ab", "--against", other, err=["--against FILE requires"])
        self.why(2, str(pid), "--tokens", "-", "--against", "-", err=["only one prompt can be read"])

    def test_two_prompts_are_compared_for_a_window(self):
        """The window that is missing lies at the end, wherever the prompts differ."""
        self.keep("window=32")
        stored, other = self.tokens((0, 128)), self.tokens((0, 96), (7, 32))
        said = self.why(1, "--tokens", other, "--against", stored, out=["held       0 tokens"])
        self.assertIn("the hit ends at token 0, before this: the reason above is the cause", said.stdout)
        self.assertEqual(self.why(0, "--tokens", stored, "--against", other).stdout.count("the hit "), 0)

    def test_a_prompt_with_a_nul_byte(self):
        for path in self.write("nul", "1 2\0 3"), "-":
            done = subprocess.run([EXECUTABLE, "why", self.folder, "--tokens", path], input="1 2\0 3",
                                  capture_output=True, text=True, timeout=60)
            self.assertEqual((done.returncode, done.stdout), (1, ""))
            self.assertEqual(done.stderr, f"tierce why: {path}: holds a NUL byte, and must be text\n")

    def test_wrong_arguments(self):
        tokens = self.tokens((0, 16))
        self.why(2, self.folder, err=["requires exactly one of --tokens FILE"])
        self.why(2, self.folder, "--tokens", err=["--tokens requires a value"])
        self.why(2, self.folder, "--token", tokens, err=["--tokens"])
        self.why(2, self.folder, "--request", "r", err=["--request requires a running process"])
        self.why(2, self.folder, "--request", "r", "--tokens", tokens, err=["and --request ID"])
        self.why(2, self.folder, "--request", "", err=["an id of 1 to 128 bytes"])
        self.why(2, self.folder, "--request", "r" * 129, err=["an id of 1 to 128 bytes"])
        self.why(2, self.folder, "x", "--tokens", tokens, err=["\"x\" is a second"])
        self.why(2, self.folder, "--tokens", tokens, "--namespace", "xyz", err=["in hex"])
        self.why(2, self.folder, "--tokens", tokens, "--shard", "2/2", err=["RANK/SIZE"])
        self.why(2, self.folder, "--tokens", tokens, "--lora", "abc", err=["in hex"])
        self.why(1, self.folder, "--tokens", tokens, err=["is not a store folder"])
        self.why(1, self.folder + "/none", "--tokens", tokens, err=["there is no such folder"])
        self.why(1, self.folder, "--tokens", self.folder + "/none", err=["none: "])
        bad = self.write("bad", "[1, two]")
        self.why(1, self.folder, "--tokens", bad, err=["not token ids at byte 5"])
        self.why(1, str(os.getpid()), "--tokens", tokens, err=[f"process {os.getpid()} has no control socket"])


if __name__ == "__main__":
    unittest.main()
