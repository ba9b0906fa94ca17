#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Speed between two hosts: an engine loads a prompt from its peer, and pushes one to it, compared with a bare TCP connection.

    cmake --build --preset dev --target peer_engine tierce_executable
    tools/bench/peer_hosts.py [--gbit RATE] [--mib N] [--rounds N]      # as root

The hosts are two network namespaces with a veth pair between them, whose ends are limited to RATE Gbit/s by tbf (token
buckets of 2 MB; packets of 9000 bytes). The manager and the engine that has stored the prompt (N MiB, by default 64, in chunks of
16 MiB) run on one host, the other engine on the other one. Each round: N MiB by a bare connection; a load of the prompt by an engine
that has forgotten it, with the question to the directory and each byte verified; a push of a prompt while it is stored, layer by
layer, until the other engine has verified it. The engines have checks of invariants (a build for tests). Prints medians, in GB/s."""

import argparse
import contextlib
import os
import select
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = ROOT / "build" / "dev" / "bin"
NEAR, FAR, MANAGER_PORT = "10.78.0.1", "10.78.0.2", 6381
CELL, LAYERS, CHUNK_BLOCKS = 1 << 20, 4, 4
SECONDS, LOAD_MS = 120, 60000

RECEIVER = """
import socket, sys, time
connection, buffer = socket.create_connection((sys.argv[1], int(sys.argv[2]))), bytearray(1 << 20)
for line in sys.stdin:
    began, left = time.monotonic(), int(line)
    connection.sendall(b"x")
    while left:
        left -= connection.recv_into(buffer, min(left, len(buffer)))
    print(time.monotonic() - began, flush=True)
"""


class Process:
    """One that answers each line with a line."""

    def __init__(self, *command, log=None):
        self.process = subprocess.Popen([*map(str, command)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True,
                                        bufsize=1)

    def ask(self, *words):
        self.begin(*words)
        return self.answer()

    def begin(self, *words):
        self.process.stdin.write(" ".join(map(str, words)) + "\n")

    def answer(self):
        ready, _, _ = select.select([self.process.stdout], [], [], SECONDS)
        line = self.process.stdout.readline() if ready else ""
        if not line:
            sys.exit(f"{self.process.args[-1]} gave no answer within {SECONDS} s, or ended")
        return line.split()

    def end(self):
        self.process.stdin.close()
        self.process.wait()
        self.process.stdout.close()


def enter_own_network():
    """Begins this program again in a network namespace of its own."""
    if os.environ.pop("TIERCE_BENCH_NAMESPACE", None) != "1":
        os.execvpe("unshare", ["unshare", "-n", sys.executable, *sys.argv], {**os.environ, "TIERCE_BENCH_NAMESPACE": "1"})


class Hosts:
    """This process is on the near one. far: what starts a command on the other one."""

    def __init__(self, gbit=None):
        self.keeper = subprocess.Popen(["unshare", "-n", "sleep", "infinity"])
        try:
            self.connect(gbit)
        except BaseException:
            self.end()
            raise

    def connect(self, gbit):
        own = os.readlink("/proc/self/ns/net")
        while os.readlink(f"/proc/{self.keeper.pid}/ns/net") == own:
            time.sleep(0.01)
        self.far = ["nsenter", "-t", str(self.keeper.pid), "-n"]
        self.run("ip", "link", "add", "near", "type", "veth", "peer", "name", "far", "netns", str(self.keeper.pid))
        for before, device, address in (([], "near", NEAR), (self.far, "far", FAR)):
            self.run(*before, "ip", "link", "set", "lo", "up")
            self.run(*before, "ip", "address", "add", f"{address}/24", "dev", device)
            self.run(*before, "ip", "link", "set", device, "mtu", "9000", "up")
        self.limit(gbit)

    def limit(self, gbit):
        """Sets the rate of both directions. None: no limit."""
        rate = ["pfifo"] if gbit is None else ["tbf", "rate", f"{gbit}gbit", "burst", "2mb", "limit", "16mb"]
        for before, device in (([], "near"), (self.far, "far")):
            self.run(*before, "tc", "qdisc", "replace", "dev", device, "root", *rate)

    @staticmethod
    def run(*command):
        subprocess.run(command, check=True)

    def end(self):
        self.keeper.kill()
        self.keeper.wait()


class Bare:
    """A TCP connection from the near host to the far one."""

    def __init__(self, hosts, mib):
        with socket.create_server((NEAR, 0)) as listener:
            self.receiver = Process(*hosts.far, sys.executable, "-c", RECEIVER, NEAR, listener.getsockname()[1])
            listener.settimeout(SECONDS)
            try:
                self.connection, _ = listener.accept()
            except BaseException:
                self.receiver.end()
                raise
        self.mib, self.bytes = mib, memoryview(os.urandom(1 << 20))

    def seconds(self):
        self.receiver.begin(self.mib << 20)
        self.connection.recv(1)
        for _ in range(self.mib):
            self.connection.sendall(self.bytes)
        return float(self.receiver.answer()[0])

    def end(self):
        self.receiver.end()
        self.connection.close()


def engine(before, address, mib, log):
    return Process(*before, PROGRAMS / "peer_engine", f"{CELL},{mib // LAYERS}", f"remote.urls=peers://{NEAR}:{MANAGER_PORT}", f"peers.listen={address}",
                   f"memory.size={max(512, 2 * mib)}MiB", "disk.path=", log=log)


def load(reader, mib):
    """Until the directory knows the chunks, in the first round."""
    until = time.monotonic() + SECONDS
    while time.monotonic() < until:
        reader.ask("forget")
        _, blocks, us = reader.ask("load", 1, LOAD_MS)
        if int(blocks) == mib // LAYERS:
            return int(us) / 1e6
    sys.exit("the prompt was not loaded")


def push(holder, reader, prompt, mib):
    _, port, ticket = reader.ask("accept", FAR, NEAR)
    _, chunks, us, *why = holder.ask("push", prompt, FAR, port, ticket, LOAD_MS)
    if int(chunks) != mib // LAYERS // CHUNK_BLOCKS:
        sys.exit(f"{chunks} of {mib // LAYERS // CHUNK_BLOCKS} chunks were pushed: {' '.join(why)}")
    return int(us) / 1e6


def measure(hosts, mib, rounds, folder):
    with (folder / "log").open("w") as log, contextlib.ExitStack() as stack:
        manager = stack.enter_context(
            subprocess.Popen([PROGRAMS / "tierce", "manager", f"--listen.host={NEAR}", "--listen.insecure=true",
                              f"--listen.grpc_port={MANAGER_PORT}"], cwd=folder, stdout=log, stderr=log))
        stack.callback(manager.terminate)
        holder = engine([], NEAR, mib, log)
        stack.callback(holder.end)
        reader = engine(hosts.far, FAR, mib, log)
        stack.callback(reader.end)
        bare = Bare(hosts, mib)
        stack.callback(bare.end)
        holder.ask("store", 1)
        load(reader, mib)
        for prompt in range(2, 2 + rounds):
            yield bare.seconds(), load(reader, mib), push(holder, reader, prompt, mib)
            for one in (holder, reader):
                one.ask("forget")
            holder.ask("store", 1)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gbit", type=float, default=10)
    parser.add_argument("--mib", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=7)
    arguments = parser.parse_args()
    if arguments.mib <= 0 or arguments.mib % (LAYERS * CHUNK_BLOCKS) != 0:
        parser.error("--mib must be a multiple of 16")
    enter_own_network()
    hosts = Hosts(arguments.gbit)
    try:
        with tempfile.TemporaryDirectory() as folder:
            rows = list(measure(hosts, arguments.mib, arguments.rounds, Path(folder)))
    finally:
        hosts.end()
    limit, *values = ([(arguments.mib << 20) / seconds / 1e9 for seconds in column] for column in zip(*rows, strict=True))
    print(f"{f'{arguments.mib} MiB between two hosts':30}{'GB/s':>8}{'limit':>8}{'ratio':>8}   least and most of {arguments.rounds}")
    for name, column in zip(("load from the peer's memory", "push while it is stored"), values, strict=True):
        value, bound = statistics.median(column), statistics.median(limit)
        print(f"{name:30}{value:8.4f}{bound:8.4f}{value / bound:8.3f}   {min(column):.4f} to {max(column):.4f}; limit "
              f"{min(limit):.4f} to {max(limit):.4f}")


if __name__ == "__main__":
    main()
