# SPDX-License-Identifier: Apache-2.0
"""A slow network in front of a server of 127.0.0.1: the program of tests/support/servers/delay_proxy.c."""

import atexit
import os
import subprocess

from manager_process import executable

ROUND_TRIPS_US = (200, 5000, 30000)  # a machine nearby, a region, a continent
BYTES_PER_S = 10**9


class Delay:
    """Clients connect to `port`; use as a context manager, or call end()."""

    def __init__(self, port, round_trip_us, jitter_us=None, bytes_per_s=BYTES_PER_S):
        jitter_us = round_trip_us // 20 if jitter_us is None else jitter_us
        seed = os.environ.get("TIERCE_TEST_SEED")
        program = executable().with_name("delay_proxy")
        self.process = subprocess.Popen(
            [str(program), *map(str, (port, round_trip_us, jitter_us, bytes_per_s)), *([seed] if seed else [])],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        atexit.register(self.process.kill)  # of a test that failed before it ended its proxy
        line = self.process.stdout.readline().split()
        assert len(line) == 2, f"{program} did not start"
        self.port = int(line[0])
        print(f"delay_proxy: TIERCE_TEST_SEED={line[1]}")

    def tell(self, what):
        self.process.stdin.write(what + "\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline() == "ok\n"

    def delay(self, round_trip_us):
        self.tell(f"delay {round_trip_us}")

    def cut(self):
        self.tell("cut")

    def freeze(self, frozen=True):
        self.tell("freeze" if frozen else "thaw")

    def end(self):
        if self.process.poll() is None:
            self.process.stdin.close()
            self.process.wait(30)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.end()
