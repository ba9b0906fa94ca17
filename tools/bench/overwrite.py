#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures SETs of small values whose old value is on disk, beside SETs of new values.

    tools/bench/overwrite.py EXECUTABLE... [--rounds 9] [--values 8192] [--bytes 64] [--folder FOLDER]

Each round starts a node of its own with 1 GiB of memory and 8 GiB of disk. 16 connections with pipelines of 16 SETs store
the values. When all of them are durable on disk, the same names get other values. Several executables take turns, in another
order in each round, so that they see the same machine. The table shows medians over the rounds, and the ratio's range.
--folder names the disk that is measured (default: the current folder).
"""

import argparse
import json
import os
import select
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time

CONNECTIONS, PIPELINE = 16, 16
DURABLE_WITHIN_S = 120
MEMORY_BYTES = 1 << 30


def free_port():
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


def resident_bytes(pid):
    with open(f"/proc/{pid}/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


class Node:
    def __init__(self, executable, folder):
        self.executable, self.port = executable, free_port()
        self.child = subprocess.Popen(
            [executable, "node", f"--disk.path={folder}/store", "--disk.size=8GiB", f"--memory.size={MEMORY_BYTES}",
             f"--listen.resp_port={self.port}", "--listen.lm_port=0", "--listen.http_port=0"],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def connect(self):
        until = time.monotonic() + 60
        while True:
            try:
                sock = socket.create_connection(("127.0.0.1", self.port))
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                return sock
            except ConnectionError:
                if self.child.poll() is not None or time.monotonic() > until:
                    raise
                time.sleep(0.05)

    def wait_until_touched(self):
        """A node takes its memory from the kernel page by page in the background, which costs a processor."""
        until = time.monotonic() + DURABLE_WITHIN_S
        while resident_bytes(self.child.pid) < MEMORY_BYTES:
            if time.monotonic() > until:
                sys.exit("the node has not allocated its memory yet")
            time.sleep(0.05)

    def stats(self):
        out = subprocess.run([self.executable, "top", "--json", str(self.child.pid)], check=True, capture_output=True)
        return json.loads(out.stdout)["stats"]

    def wait_until_durable(self, count):
        """A few values may be in memory only, because buffers for the disk use at most half of the
        memory."""
        until = time.monotonic() + DURABLE_WITHIN_S
        while True:
            stats = self.stats()
            there = stats["disk_durable_chunks_now"]
            if stats["disk_queued_bytes_now"] == 0 and there == stats["disk_chunks_now"] and there > 0.99 * count:
                return
            if time.monotonic() > until:
                sys.exit(f"{there} of {count} values are durable after {DURABLE_WITHIN_S} s")
            time.sleep(0.05)

    def end(self):
        self.child.send_signal(signal.SIGTERM)
        self.child.wait()


def make_pipelines(options, mark):
    """One list of messages for each connection."""
    out = [[] for _ in range(CONNECTIONS)]
    value = mark * options.bytes
    for first in range(0, options.values, PIPELINE):
        text = "".join(f"*3\r\n$3\r\nSET\r\n$10\r\n{n:010}\r\n${len(value)}\r\n{value}\r\n"
                       for n in range(first, min(first + PIPELINE, options.values)))
        out[first // PIPELINE % CONNECTIONS].append(text.encode())
    return out


def run(socks, pipelines, count):
    """Returns how many SETs were answered a second; each connection waits for its pipeline's answers."""
    poll = select.epoll()
    queues = [iter(messages) for messages in pipelines]
    owed = [0] * len(socks)

    def send_next(i):
        message = next(queues[i], None)
        if message is not None:
            owed[i] = message.count(b"SET") * len(b"+OK\r\n")
            socks[i].sendall(message)

    index = {sock.fileno(): i for i, sock in enumerate(socks)}
    for fd in index:
        poll.register(fd, select.EPOLLIN)
    begun, left = time.perf_counter(), count * len(b"+OK\r\n")
    for i in range(len(socks)):
        send_next(i)
    while left > 0:
        for fd, _ in poll.poll():
            i = index[fd]
            got = socks[i].recv(65536)
            if got == b"" or b"-" in got:
                sys.exit(f"the node answered {got[:200]!r}")
            owed[i] -= len(got)
            left -= len(got)
            if owed[i] == 0:
                send_next(i)
    rate = count / (time.perf_counter() - begun)
    poll.close()
    return rate


def measure(executable, options):
    """Returns the rates of new values and of values that replace others."""
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        node = Node(executable, folder)
        try:
            socks = [node.connect() for _ in range(CONNECTIONS)]
            node.wait_until_touched()
            new = run(socks, make_pipelines(options, "a"), options.values)
            node.wait_until_durable(options.values)
            other = run(socks, make_pipelines(options, "b"), options.values)
            for sock in socks:
                sock.close()
        finally:
            node.end()
    return new, other


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("executable", nargs="+")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--values", type=int, default=8192)
    parser.add_argument("--bytes", type=int, default=64)
    parser.add_argument("--folder", default=os.curdir)
    options = parser.parse_args()
    had = {executable: [] for executable in options.executable}
    for i in range(options.rounds):
        first = i % len(options.executable)
        for executable in options.executable[first:] + options.executable[:first]:
            had[executable].append(measure(executable, options))
    print("| executable | new, SETs a second | overwriting, SETs a second | ratio | ratio, least to most |")
    print("|---|---|---|---|---|")
    for executable, rates in had.items():
        ratios = sorted(other / new for new, other in rates)
        print(f"| {executable} | {statistics.median(r[0] for r in rates):.0f} | {statistics.median(r[1] for r in rates):.0f}"
              f" | {statistics.median(ratios):.2f} | {ratios[0]:.2f} to {ratios[-1]:.2f} |", flush=True)


if __name__ == "__main__":
    main()
