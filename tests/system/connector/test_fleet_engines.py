# SPDX-License-Identifier: Apache-2.0
"""Engines of a pool whose leading manager is killed: every block whose write was acknowledged is found afterwards."""

import signal
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "tools" / "bench"))

import fleet_engines  # noqa: E402
from fleet_world import CHUNKS, Engine, Files, Fleet, RedisStorage  # noqa: E402
from manager_process import Proxy, wait_until  # noqa: E402

LEASE_MS = 500


def test_the_leader_is_killed_twice(tmp_path):
    """tools/bench/fleet_engines.py with its smallest workload."""
    run = fleet_engines.Run(tmp_path, engines=8, processes=2, kills=2, seconds=0.3, chunks=4, kib=16, pause_ms=5,
                            lease_ms=LEASE_MS)
    try:
        run.play()
        assert run.lost == []
        assert run.acknowledged >= 8 * 4
        assert any(o.kind == "get" and o.found == o.known > 0 for o in run.operations)
        never = fleet_engines.Operation("put 7 4000 0 0 5")
        count, lost = fleet_engines.check(run.fleet.url, run.chunks, run.kib, [never])
        assert count == len(lost) == 2
    finally:
        run.stop()


class Gate(Proxy):
    """Once closed, it holds back connections that send much at once: blocks, but no probes of the managers."""

    closed = False

    def forward(self, source, to, may_wait):
        super().forward(source, Held(self, source, to) if may_wait else to, False)

    def open(self):
        self.closed = False
        self.let_go()


class Held:
    """A socket behind a gate."""

    MUCH = 16384

    def __init__(self, gate, source, to):
        self.gate, self.source, self.to = gate, source, to

    def sendall(self, data):
        with self.gate.lock:
            if self.gate.closed and len(data) >= self.MUCH:
                self.gate.held_bytes += len(data)
                self.gate.lock.wait_for(lambda: not self.gate.closed)
        self.to.sendall(data)

    def shutdown(self, how):
        self.to.shutdown(how)


class GatedRedis(RedisStorage):
    def __init__(self, folder):
        super().__init__(folder)
        self.gate = Gate(self.server.port)

    def spec(self):
        return {"global_unique_name": self.name, "redis": {"uri": self.gate.uri, "key_prefix": "pool:"}}

    def stop(self):
        self.gate.open()
        self.gate.close()
        super().stop()


@pytest.mark.parametrize("sig", [signal.SIGTERM, signal.SIGKILL], ids=["term", "kill"])
def test_the_leader_ends_in_the_middle_of_a_write(tmp_path, sig):
    """The session was begun, and the bytes are on their way: another manager takes it over, and finishes it."""
    storage = GatedRedis(tmp_path)
    fleet = Fleet(tmp_path, [storage], managers=2, lease_ms=LEASE_MS)
    engines = fleet_engines.Engines(tmp_path, fleet.url, 0, 1, chunks=4, kib=64, pause_ms=1)

    def puts():
        return [o for o in engines.operations() if o.kind == "put"]

    try:
        wait_until(lambda: any(o.mask == 0xf for o in puts()))
        with storage.gate.lock:
            storage.gate.closed = True
        wait_until(lambda: storage.gate.held_bytes > 0)
        before = len(puts())
        fleet.fail_over(sig)
        assert len(puts()) == before
        storage.gate.open()
        wait_until(lambda: len(puts()) > before)
        engines.end()
        assert puts()[before].mask == 0xf
        acknowledged, lost = fleet_engines.check(fleet.url, 4, 64, puts())
        assert lost == [] and acknowledged >= 4 * before + 4
    finally:
        engines.stop()
        fleet.stop()


CLOSED, OPEN = 1, 2  # enum tierce_hint


def test_hints_of_sessions_reach_the_manager(tmp_path):
    """Of new blocks with their write; of blocks that a reader used, also if its memory had them, after the load."""
    fleet = Fleet(tmp_path, [Files(tmp_path)])
    engine = Engine(fleet.url)

    def uses():
        return dict(fleet.numbers("cache_manager_group_hint_use_count_total", "hint"))

    try:
        engine.view.hint(7, OPEN)
        engine.store(b"a" * len(engine.memory), session=7)
        wait_until(lambda: uses().get("open") == CHUNKS)
        engine.close()
        engine = Engine(fleet.url)
        engine.view.hint(8, CLOSED)
        assert engine.found() == CHUNKS
        for loads in (1, 2):
            assert engine.load(session=8) == b"a" * len(engine.memory)
            wait_until(lambda: uses().get("closed") == loads * CHUNKS)
        assert uses()["open"] == CHUNKS
    finally:
        engine.close()
        fleet.stop()
