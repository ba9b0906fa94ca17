# SPDX-License-Identifier: Apache-2.0
"""Blocks that move from one storage to another while engines read and write, and the leading manager is killed."""

import signal
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "tools" / "bench"))

import fleet_engines  # noqa: E402
from fleet_world import Files, Fleet, RedisStorage, code  # noqa: E402
from manager_process import wait_until  # noqa: E402
from node_process import Node  # noqa: E402

LEASE_MS = 500


def test_a_storage_is_drained(tmp_path):
    """Redis is drained to a folder: every block that was written is found, at all times but in the failover."""
    redis, files = RedisStorage(tmp_path), Files(tmp_path)
    fleet = Fleet(tmp_path, [redis, files], managers=2, lease_ms=LEASE_MS)
    folder = tmp_path / "mover"
    folder.mkdir()
    node = Node(folder, f"--mover.manager={fleet.managers_url}", "--pool.name=m1", "--memory.size=16MiB")
    engines = fleet_engines.Engines(tmp_path, fleet.url, 0, 4, chunks=4, kib=16, pause_ms=5)

    def moved():
        return int(node.metric("node_mover_moved_blocks_total"))

    try:
        wait_until(lambda: redis.objects() > 100)
        assert files.objects() <= 1  # the mark
        drained = fleet.api.call("admin", "DrainStorage", storage_unique_name=redis.name, action="DRAIN_START")
        assert code(drained) == "OK", drained
        wait_until(lambda: moved() >= 30)
        before = engines.operations()
        fleet.fail_over(signal.SIGKILL)
        wait_until(lambda: moved() >= redis.objects() - 1)  # moved ones are deleted ten seconds later
        engines.end()
        assert all(o.found == o.known for o in before if o.kind == "get")
        written = [o for o in engines.operations() if o.kind == "put"]
        acknowledged, lost = fleet_engines.check(fleet.url, 4, 16, written)
        assert lost == [] and acknowledged >= 100
        assert node.metric("node_mover_sources_bad_total") == 0
        assert node.metric("node_mover_unverifiable_total") == 0
    finally:
        engines.stop()
        node.end()
        fleet.stop()
