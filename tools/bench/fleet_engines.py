#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Many engines that write and read blocks in a pool, while its leading manager is killed again and again.

    tools/bench/fleet_engines.py [--engines 100] [--processes 4] [--kills 2] [--seconds 10]

Two managers with their state in one Redis, and a storage. The engines are connectors of tests/system/connector/fleet_engines.c:
each has its own connections, writes prompts, and reads prompts of others. The engines run for --seconds before each kill and
after the last one. The leader is killed by SIGKILL while they run, and starts again as a follower.

A failover lasts from the kill until a second after another manager leads. Operations that overlap one are counted apart. At
the end, a new client gets every block whose write was acknowledged. The exit code is 0 only if all are found.
"""

import argparse
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "system"))

from fleet_world import STORAGES, Fleet  # noqa: E402

PROGRAM = ROOT / "build" / "dev" / "bin" / "fleet_engines"
SETTLED_NS = 10**9
WAIT_S = 120


class Operation:
    def __init__(self, line):
        self.kind, *numbers = line.split()
        self.engine, self.prompt, self.start, self.ns = map(int, numbers[:4])
        self.end = self.start + self.ns
        if self.kind == "put":
            self.mask = int(numbers[4], 16)
        else:
            self.found, self.known = int(numbers[4]), int(numbers[5])


class Engines:
    """A process with some of the engines; its lines go to a file."""

    def __init__(self, folder, url, first, count, chunks, kib, pause_ms):
        self.path = folder / f"engines{first}.txt"
        with open(self.path, "wb") as out:
            self.process = subprocess.Popen(
                [str(PROGRAM), "run", url, *map(str, (first, count, chunks, kib, pause_ms))],
                stdin=subprocess.PIPE, stdout=out)

    def operations(self):
        lines = self.path.read_text().splitlines(keepends=True)
        return [Operation(line) for line in lines if line.endswith("\n")]

    def end(self):
        """The operations in progress end first."""
        self.process.stdin.close()
        assert self.process.wait(timeout=WAIT_S) == 0, self.path

    def stop(self):
        self.process.kill()
        self.process.wait()


def check(url, chunks, kib, operations):
    """A new client gets every acknowledged block. Returns how many there are, and a line for each that is lost."""
    asked = "".join(f"{o.engine} {o.prompt} {o.mask:x}\n" for o in operations if o.kind == "put" and o.mask)
    done = subprocess.run([str(PROGRAM), "check", url, str(chunks), str(kib)], input=asked, text=True,
                          stdout=subprocess.PIPE, timeout=540, check=True)
    *lost, last = done.stdout.splitlines()
    assert last.startswith("checked "), last
    return int(last.split()[1]), lost


def share(values, part):
    return sorted(values)[min(len(values) - 1, int(len(values) * part))] / 1e6 if values else float("nan")


class Run:
    def __init__(self, folder, engines=100, processes=4, kills=2, seconds=10.0, chunks=8, kib=64, pause_ms=200, storage="file",
                 lease_ms=2000):
        self.folder = Path(folder)
        self.engines, self.count, self.chunks, self.kib, self.pause_ms = [], engines, chunks, kib, pause_ms
        self.processes, self.kills, self.seconds = processes, kills, seconds
        self.failovers = []  # (ns of the kill, ns when another manager led)
        self.fleet = Fleet(self.folder, [STORAGES[storage](self.folder)], managers=2, lease_ms=lease_ms, fixed=True)

    def play(self):
        each = -(-self.count // self.processes)
        for first in range(0, self.count, each):
            self.engines.append(Engines(self.folder, self.fleet.url, first, min(each, self.count - first), self.chunks, self.kib,
                                        self.pause_ms))
        for _ in range(self.kills):
            time.sleep(self.seconds)  # the load's duration; nothing is waited for
            killed, at = self.fleet.leader(), time.monotonic_ns()
            self.fleet.fail_over(signal.SIGKILL)
            self.failovers.append((at, time.monotonic_ns()))
            killed.ready = False  # it follows now
            killed.start()
        time.sleep(self.seconds)
        for engines in self.engines:
            engines.end()
        self.operations = [o for engines in self.engines for o in engines.operations()]
        self.acknowledged, self.lost = check(self.fleet.url, self.chunks, self.kib, self.operations)

    def is_apart(self, operation):
        return any(operation.end > a and operation.start < b + SETTLED_NS for a, b in self.failovers)

    def rows(self):
        """(what, operations, p50 ms, p99 ms, longest ms, blocks, blocks that were not stored or found)"""
        out = []
        for kind, name in (("get", "reads"), ("put", "writes")):
            for apart, when in ((False, ""), (True, " in failovers")):
                some = [o for o in self.operations if o.kind == kind and self.is_apart(o) == apart]
                times = [o.ns for o in some]
                wanted = sum(o.known if kind == "get" else self.chunks for o in some)
                got = sum(o.found if kind == "get" else bin(o.mask).count("1") for o in some)
                out.append((name + when, len(some), share(times, 0.5), share(times, 0.99), share(times, 1), wanted, wanted - got))
        return out

    def show(self):
        print(f"{self.count} engines in {len(self.engines)} processes, {self.chunks} chunks of {self.kib} KiB in each prompt, "
              f"pauses of {self.pause_ms} ms")
        print("without a leader: " + ", ".join(f"{(b - a) / 1e9:.1f} s" for a, b in self.failovers))
        print(f"{'':22}{'count':>8}{'p50 ms':>9}{'p99 ms':>9}{'longest':>9}{'p99/p50':>9}{'blocks':>9}{'not':>7}")
        for name, count, p50, p99, longest, blocks, missed in self.rows():
            print(f"{name:22}{count:8,}{p50:9.2f}{p99:9.2f}{longest:9.1f}{p99 / p50:9.1f}{blocks:9,}{missed:7,}")
        print(f"{self.acknowledged:,} blocks were acknowledged; {len(self.lost)} of them were not found afterwards")
        for line in self.lost[:20]:
            print("  " + line)

    def stop(self):
        for engines in self.engines:
            engines.stop()
        self.fleet.stop()


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--engines", type=int, default=100)
    parser.add_argument("--processes", type=int, default=4)
    parser.add_argument("--kills", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=10, help="before each kill and after the last")
    parser.add_argument("--chunks", type=int, default=8, help="of a prompt")
    parser.add_argument("--kib", type=int, default=64, help="of a chunk")
    parser.add_argument("--pause-ms", type=int, default=200, help="of an engine between operations, on average")
    parser.add_argument("--storage", choices=list(STORAGES), default="file")
    arguments = parser.parse_args()
    if not PROGRAM.exists():
        parser.error("fleet_engines is missing: cmake --build --preset dev --target fleet_engines")
    folder = Path(tempfile.mkdtemp(prefix="tierce-engines-"))
    run = Run(folder, arguments.engines, arguments.processes, arguments.kills, arguments.seconds, arguments.chunks,
              arguments.kib, arguments.pause_ms, arguments.storage)
    try:
        run.play()
        run.show()
    finally:
        run.stop()
        shutil.rmtree(folder, ignore_errors=True)
    return 1 if run.lost else 0


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("fleet_engines: ended by SIGTERM"))
    sys.exit(main())
