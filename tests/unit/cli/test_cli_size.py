# SPDX-License-Identifier: Apache-2.0
"""tierce size: memory, disk, wear and network. Models by their config.json: test_kv_shape.c."""

import json
import os
import unittest

from cli_case import CliCase

LLAMA = {"architectures": ["LlamaForCausalLM"], "hidden_size": 4096, "num_hidden_layers": 32,
         "num_attention_heads": 32, "num_key_value_heads": 8}


class Size(CliCase):
    def size(self, model, *args, status=0, out=(), err=()):
        path = self.write("model/config.json", json.dumps(model))
        return self.check(status, "size", "--model", os.path.dirname(path), "--sessions", "1000", "--tokens", "8000",
                          *args, out=out, err=err).stdout

    def test_all_results(self):
        text = self.size(LLAMA)
        self.assertEqual(text, """\
model                 LlamaForCausalLM: 32 layers with KV, 8 KV heads of 128 values, 2 bytes each
KV of a token         128 KiB
chunk                 256 tokens, 32.0 MiB with its header
session               8000 tokens, 32 chunks, 1000 MiB
all sessions          1000, 977 GiB
memory holds          10 % of the sessions, and pins those of 50 requests at a time (memory.pins: half)
requests              3.33 a second
loads                 3.26 GiB a second, of which the disk reads 2.93 GiB
disk writes           267 MiB a second, 22.0 TiB a day: 22.57 times disk.size
network               25.2 Gbit/s to load and 2.2 Gbit/s to store, if a remote store takes the disk's place

chunk.tokens: 256
memory.size: 98GiB
disk.size: 997GiB
""")
        self.check(0, "config", "--file", self.write("tierce.yaml", text[text.index("chunk.tokens"):]))

    def test_options(self):
        self.size({**LLAMA, "full_attention_interval": 4}, "--memory", "1TiB", "--kv-bytes", "1", "--chunk-tokens",
                  "512", "--turn-every", "100s",
                  out=["8 layers with KV, 8 KV heads of 128 values, 1 bytes each", "the states of 24 recurrent layers",
                       "KV of a token         16.0 KiB\n", "8000 tokens, 16 chunks", "100 % of the sessions",
                       "the disk reads 0 B\n", "requests              10.00 a second\n", "chunk.tokens: 512\n",
                       "memory.size: 1TiB\n"])
        self.size({**LLAMA, "kv_lora_rank": 512, "qk_rope_head_dim": 64}, "--memory", "1MiB",
                  out=["latent attention of 576 values", "KV of a token         36.0 KiB\n", "warning",
                       "memory cannot pin one session"])
        self.check(0, "size", "--token-bytes", "256KiB", "--sessions", "1000000", "--tokens", "32000",
                   out=["KV of a token         256 KiB\n", "# memory.size: ",
                        "on several hosts; it is at most 16TiB on each\n", "# disk.size: "])

    def test_wrong_arguments(self):
        usual = ["--token-bytes", "1KiB", "--sessions", "1", "--tokens", "1000"]
        for args, reason in (
                ([*usual, "--model", "x"], "either --model or --token-bytes"), (usual[:4], "--tokens is required"),
                ([*usual, "--tokens", "15"], "at least 16"), ([*usual, "--chunk-tokens", "100"], "a multiple of 16"),
                (["--model", "missing", "--sessions", "1", "--tokens", "99"], "--model: missing: No such file"),
                ([*usual, "--tokens", "1000000000", "--sessions", "1000000000"], "more than 10^18 bytes"),
                ([*usual, "--token-bytes", "1", "--tokens", "1600000", "--sessions", "1000000000", "--chunk-tokens", "16"],
                 "more than 10^18 bytes"),  # of disk.size, 256 KiB for each chunk
                ([*usual, "--token-bytes", "64MiB", "--chunk-tokens", "65536"], "is too large; lower --chunk-tokens")):
            self.check(2, "size", *args, err=[reason])
        self.size({}, status=2, err=["model/config.json: num_hidden_layers", "by --token-bytes"])


if __name__ == "__main__":
    unittest.main()
