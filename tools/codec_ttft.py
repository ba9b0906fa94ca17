#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Time to the first token of a hit in vLLM on this machine's CPU, over a link and from disk, uncompressed and with a codec.

    codec_ttft.py [--tokens N] [--text NAME]... [--rounds N] [--gbit RATE]... [--tierce EXECUTABLE] --model FOLDER      # as root

A vLLM in bfloat16 computes a prompt of each text, of --tokens tokens and one, and Tierce stores it in a `tierce node` on another
host (remote.codec) and on disk (disk.codec, below TMPDIR): both without and with the codec. For each place, without and then with
the codec, a new vLLM then loads each prompt --rounds times and once before; Tierce's memory and vLLM's own cache are emptied before each. The other host is a
network namespace at the end of a veth pair with the rate (tools/bench/peer_hosts.py). vLLM and the node share the processors.
A model that is not in the folder of --model is made there first, from PyPI (tools/demo/trained_model.py). Columns:

    TTFT         seconds from the request to its first token, median and range of all prompts and rounds
    of full      the median by that of the full computation, during which the prompt is stored in both places, by the second
                 engine compressed
    CPU          processor seconds of vLLM's process for the same, median
    MiB          bytes received on the link, or read from the disk, of one hit
    load time    of these hits by that of uncompressed ones, as Tierce has measured it: above codec.load_time (95 %), new chunks
                 stay uncompressed. Tierce has to decompress 64 MiB before it knows

On a processor without instructions for bfloat16, products are computed in float32 and rounded (tools/demo/float32_products.py).
"""

import argparse
import contextlib
import http.client
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from vllm_asker import ROOT, Asker

from kv_samples import TEXTS, Short, Unavailable, model_folder, prompt

sys.path.insert(0, str(ROOT / "tools" / "bench"))
from float32_products import multiply_in_float32  # noqa: E402
from peer_hosts import FAR, Hosts, enter_own_network  # noqa: E402

CODECS = ["none", "lossless"]
NODE_PORT, CHUNK_TOKENS, SECONDS = 6494, 256, 120
MIB = 1 << 20


class Control(http.client.HTTPConnection):
    """The control socket of an engine."""

    def __init__(self, path):
        super().__init__("localhost", timeout=SECONDS)
        self.path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect(self.path)

    def ask(self, method, path):
        with contextlib.closing(self):
            self.request(method, path)
            answer = self.getresponse()
            text = answer.read().decode()
        if answer.status != 200:
            sys.exit(f"codec_ttft.py: {method} {path} of the control socket: {text}")
        return json.loads(text)


@contextlib.contextmanager
def vllm(arguments, folder, **store):
    """With a store of one place, or of several."""
    store = {"memory.size": "2GiB", "chunk.tokens": CHUNK_TOKENS, "cost.check": "false", "disk.path": "", "timeout.lookup": "2s",
             "control.socket": str(folder / "control"), **store}
    asker = Asker(arguments.model, "bfloat16", arguments.tokens + CHUNK_TOKENS, store, threads=len(os.sched_getaffinity(0)))
    try:
        asker.ask(list(range(1000, 1064)), 2, skip_save=True)  # what the first request prepares is not measured
        yield asker
    finally:
        asker.end()


def remote(codec):
    return {"remote.urls": f"tierce://{FAR}:{NODE_PORT}?tls=false&prefix={codec}", "remote.codec": codec}


def disk(folder, codec):
    return {"disk.path": str(folder / codec), "disk.size": "8GiB", "disk.codec": codec}


def codec_state(asker):
    """Of the only place with a codec."""
    status = Control(asker.store["control.socket"]).ask("GET", "/status")
    return status["codec"] if asker.store["disk.path"] else status["remote_codecs"][0]


def flush(asker):
    with asker.opened() as engine:
        if not engine.flush(SECONDS * 1000):
            sys.exit(f"codec_ttft.py: the chunks were not stored within {SECONDS} s")


# ---- hits -------------------------------------------------------------------------------------------


def bytes_received():
    with open("/proc/self/net/dev") as lines:
        return next(int(line.split(":")[1].split()[0]) for line in lines if line.strip().startswith("near:"))


def bytes_read():
    with open("/proc/self/io") as lines:
        return next(int(line.split()[1]) for line in lines if line.startswith("read_bytes:"))


def hit(asker, tokens):
    """(seconds, processor seconds, bytes)"""
    counter, place = (bytes_read, "disk") if asker.store["disk.path"] else (bytes_received, "remote")
    Control(asker.store["control.socket"]).ask("POST", "/clear?tier=memory")
    before = counter()
    _, seconds, cpu, report = asker.ask(tokens, 2, skip_save=True)  # a request of one token ends before its load is reported
    moved, found = counter() - before, report[f"tierce.{place}_tokens"]
    if found != len(tokens) - 1:
        sys.exit(f"codec_ttft.py: {found} of {len(tokens) - 1} tokens were loaded ({place}); vLLM's log names the reason")
    return seconds, cpu, moved


def measure(arguments, folder, prompts, codec, store):
    """A row: times, processor seconds and bytes of the hits, and the time of loads that Tierce has measured, in percent."""
    with vllm(arguments, folder, **store) as asker:
        for tokens in prompts:
            hit(asker, tokens)
        hits = [hit(asker, tokens) for _ in range(arguments.rounds) for tokens in prompts]
        return *zip(*hits), codec_state(asker)["load_time_percent"] if codec != "none" else 0


# ---- the table --------------------------------------------------------------------------------------


def fill(arguments, folder, codec):
    """The prompts, and (seconds, processor seconds) of the full computation of each."""
    from transformers import AutoTokenizer

    with vllm(arguments, folder, **remote(codec), **disk(folder, codec)) as asker:
        tokenizer = AutoTokenizer.from_pretrained(arguments.model)
        prompts = [prompt(tokenizer, name, arguments.tokens + 1).tolist() for name in arguments.text]
        times = []
        for tokens in prompts:
            times.append(asker.ask(tokens, 1)[1:3])
            flush(asker)
    return prompts, times


def start_node(hosts, arguments, folder):
    with (folder / "node.log").open("w") as log:
        process = subprocess.Popen(
            [*hosts.far, arguments.tierce, "node", f"--listen.host={FAR}", "--listen.insecure=true", f"--listen.resp_port={NODE_PORT}",
             "--listen.lm=false", "--listen.http_port=0", "--control.socket=", "--memory.size=2GiB"], stdout=log, stderr=log)
    until = time.monotonic() + SECONDS
    while process.poll() is None and time.monotonic() < until:
        with contextlib.suppress(OSError):
            socket.create_connection((FAR, NODE_PORT), timeout=1).close()
            return process
        time.sleep(0.05)
    process.kill()
    sys.exit(f"codec_ttft.py: the node did not start: {(folder / 'node.log').read_text()}")


def rows(arguments, hosts, folder):
    """(place, codec, seconds of each hit, processor seconds, bytes, load time in percent), the full computation first."""
    places = [*((f"{gbit:g} Gbit/s", gbit) for gbit in arguments.gbit), ("no limit", None), ("disk", None)]
    full, found = [], {}
    hosts.limit(None)
    for codec in CODECS:
        prompts, times = fill(arguments, folder, codec)
        full += times
    for place, gbit in places:
        hosts.limit(gbit)
        for codec in CODECS:
            store = disk(folder, codec) if place == "disk" else remote(codec)
            found[place, codec] = measure(arguments, folder, prompts, codec, store)
    yield "computed", "", *zip(*full), [0], 0
    for place, _ in places:
        for codec in CODECS:
            yield place, codec, *found[place, codec]


def print_table(table):
    print("| from | codec | TTFT | of full | CPU | MiB | load time |\n|---|---|---:|---:|---:|---:|---|")
    full = statistics.median(table[0][2])
    for place, codec, seconds, cpu, moved, percent in table:
        median = statistics.median(seconds)
        load_time = "" if codec in ("", "none") else f"{percent} %" if percent else "not known"
        print(f"| {place} | {codec} | {median:.3f} s ({min(seconds):.3f} to {max(seconds):.3f}) | {median / full:.3f} | "
              f"{statistics.median(cpu):.2f} s | {statistics.median(moved) / MIB:.1f} | {load_time} |")


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--tokens", type=int, default=4096, help="of each prompt, a multiple of 256; one more is computed")
    parser.add_argument("--text", choices=[*TEXTS, "chat"], action="append", help="one of the texts; several times")
    parser.add_argument("--rounds", type=int, default=5, help="hits of each prompt that are measured")
    parser.add_argument("--gbit", type=float, action="append", help="the rate of the link, several times; 1 and 10")
    parser.add_argument("--tierce", type=Path, default=ROOT / "build" / "bin" / "tierce", help="the executable")
    parser.add_argument("--model", type=Path, required=True)
    arguments = parser.parse_args()
    if arguments.tokens < CHUNK_TOKENS or arguments.tokens % CHUNK_TOKENS:
        parser.error(f"--tokens is {arguments.tokens}; it must be a multiple of {CHUNK_TOKENS}")
    if arguments.rounds < 1:
        parser.error(f"--rounds is {arguments.rounds}; it must be at least 1")
    if any(gbit <= 0 for gbit in arguments.gbit or []):
        parser.error("--gbit must be above 0")
    if not arguments.tierce.is_file():
        parser.error(f"--tierce {arguments.tierce} does not exist; run make build, or name the executable")
    if os.geteuid() != 0:
        parser.error("only root can make network namespaces; run it as root")
    arguments.text, arguments.gbit = arguments.text or ["english", "code"], arguments.gbit or [1, 10]
    return arguments


def main():
    arguments = parse_arguments()
    arguments.model = model_folder(arguments.model)
    multiply_in_float32()
    enter_own_network()
    hosts = Hosts()
    try:
        with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
            node = stack.enter_context(start_node(hosts, arguments, Path(folder)))
            stack.callback(node.kill)
            table = list(rows(arguments, hosts, Path(folder)))
    finally:
        hosts.end()
    print_table(table)


if __name__ == "__main__":
    try:
        main()
    except (Unavailable, Short) as error:
        sys.exit(f"codec_ttft.py: {error}")
