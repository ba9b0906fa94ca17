#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What a block costs a manager, by kind of index: memory of the manager, bytes of RocksDB's folder, memory of Redis, and the
time from the start of a manager that was killed until it finds the first blocks.

    tools/bench/manager_scale.py [--blocks N,N,..] [--index KIND,KIND,..]
    tools/bench/manager_scale.py --remove [--blocks N,N,..] [--index KIND,KIND,..]

Blocks have one spec and lie in slots of files; none of their bytes are written. Needs redis-server, and the Python packages
of the tests. Prints a row of each kind and number, with the slope between two numbers. With --remove it stores so many blocks
and removes all of them, again for each number, and prints the manager's memory at the beginning, with the blocks, and
afterwards.
"""

import argparse
import os
import random
import signal
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "system"))

from manager_process import Grpc, Manager, Redis, stubs  # noqa: E402

KEYS = 1024  # of a session


def resident(process):
    text = Path(f"/proc/{process.pid}/status").read_text()
    return next(int(line.split()[1]) << 10 for line in text.splitlines() if line.startswith("VmRSS"))


def folder_bytes(folder):
    return sum(p.stat().st_size for p in Path(folder).rglob("*") if p.is_file())


class Fleet:
    def __init__(self, folder, kind):
        self.redis = Redis(folder / "redis") if kind == "redis" else None
        self.index = folder / "index"
        uri = {"local": "", "rocksdb": str(self.index),
               "redis": f"redis://127.0.0.1:{self.redis.port}/" if self.redis else ""}[kind]
        startup = Manager.usual_startup(storage=folder / "nfs")
        group = startup["instance_group"]
        group["quota"] = {"capacity": 10**18, "quota_config": [{"storage_type": "file", "capacity": 10**18}]}
        indexer = group["cache_config"]["meta_indexer_config"]
        indexer.update(max_key_count=10**10, mutex_shard_num=256,
                       meta_storage_backend_config={"storage_type": kind, "storage_uri": uri})
        (folder / "nfs").mkdir()
        self.manager = Manager(folder / "manager", f"--registry.uri=local://{folder}/registry", debug=False,
                               startup=startup)
        self.rng = random.Random(7)
        self.first = [self.rng.getrandbits(63) for _ in range(KEYS)]
        self.keys = self.first
        self.stored, self.written = 0, []
        self.connect()
        Grpc(self.manager).call("meta", "RegisterInstance", instance_group="default", instance_id="i", block_size=16,
                                model_deployment={"model_name": "m", "dtype": "bf16"},
                                location_spec_infos=[{"name": "tp0", "size": 4 << 20}])

    def connect(self):
        import grpc
        messages, services = stubs()["meta"]
        self.messages = messages
        self.stub = services.MetaServiceStub(grpc.insecure_channel(f"127.0.0.1:{self.manager.ports['grpc']}"))

    def store(self, blocks):
        while self.stored < blocks:
            started = self.stub.StartWriteCache(self.messages.StartWriteCacheRequest(
                instance_id="i", block_keys=self.keys, write_timeout_seconds=60), timeout=60)
            assert len(started.locations) == KEYS, started.header
            mask = self.messages.BlockMask(offset=KEYS)
            done = self.stub.FinishWriteCache(self.messages.FinishWriteCacheRequest(
                instance_id="i", write_session_id=started.write_session_id, success_blocks=mask), timeout=60)
            assert done.header.status.code == 1, done
            self.stored += KEYS
            self.written.append(self.keys)
            self.keys = [self.rng.getrandbits(63) for _ in range(KEYS)]

    def remove(self):
        """All blocks. Their bytes were never written, so deleting them finds no files."""
        client = Grpc(self.manager)
        for keys in self.written:
            client.call("meta", "RemoveCache", instance_id="i", block_keys=keys)
        client.close()
        end = time.monotonic() + 600
        while self.deleting_bytes() > 0:
            if time.monotonic() > end:
                raise RuntimeError("the bytes of removed blocks are still being deleted")
            time.sleep(0.2)
        self.stored, self.written = 0, []

    def deleting_bytes(self):
        metric = "tierce_cache_manager_group_deleting_bytes"
        lines = self.manager.get("/metrics", "admin_http")[1].decode().splitlines()
        return sum(float(line.split()[-1]) for line in lines if line.startswith(metric))

    def restart(self):
        """Seconds until the first blocks are found."""
        self.manager.process.send_signal(signal.SIGKILL)
        self.manager.process.wait()
        start = time.monotonic()
        self.manager.start()
        self.connect()
        request = self.messages.GetCacheLocationRequest(
            instance_id="i", query_type=self.messages.QT_PREFIX_MATCH, block_keys=self.first)
        while len(self.stub.GetCacheLocation(request, timeout=60).locations) != KEYS:
            if time.monotonic() > start + 60:
                raise RuntimeError("the restarted manager does not find the blocks")
            time.sleep(0.01)
        return time.monotonic() - start

    def bytes(self):
        """Of the manager's memory, of the index's folder, of Redis."""
        redis = 0
        if self.redis is not None:
            import redis as client
            with client.Redis(port=self.redis.port) as one:
                redis = one.info("memory")["used_memory"]
        return (resident(self.manager.process), folder_bytes(self.index) if self.index.exists() else 0, redis)

    def stop(self):
        self.manager.stop()
        if self.redis is not None:
            self.redis.stop()


def print_slopes(fleet, kind, numbers):
    before, had = fleet.bytes(), 0
    for blocks in numbers:
        start = time.monotonic()
        fleet.store(blocks)
        rate = (fleet.stored - had) / (time.monotonic() - start)
        now = fleet.bytes()
        slopes = [(b - a) / (fleet.stored - had) for a, b in zip(before, now)]
        seconds = f"{fleet.restart():.2f}" if kind != "local" else ""
        print(",".join([kind, str(fleet.stored), *(f"{s:.0f}" for s in slopes), seconds, f"{rate:.0f}"]), flush=True)
        before, had = fleet.bytes(), fleet.stored


def print_removals(fleet, kind, numbers):
    for blocks in numbers:
        before = fleet.bytes()[0]
        fleet.store(blocks)
        stored, full = fleet.stored, fleet.bytes()[0]
        fleet.remove()
        print(",".join([kind, str(stored), *(f"{b / 1e6:.1f}" for b in (before, full, fleet.bytes()[0]))]), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--blocks", default="200000,1000000")
    parser.add_argument("--index", default="local,rocksdb,redis")
    parser.add_argument("--remove", action="store_true", help="remove the blocks again, and print the memory afterwards")
    args = parser.parse_args()
    print("index,blocks,MB of the manager before,with them,after their removal" if args.remove else
          "index,blocks,manager B/block,folder B/block,redis B/block,restart s,blocks/s")
    for kind in args.index.split(","):
        with tempfile.TemporaryDirectory(dir=os.environ.get("TMPDIR")) as folder:
            fleet = Fleet(Path(folder), kind)
            try:
                (print_removals if args.remove else print_slopes)(fleet, kind, list(map(int, args.blocks.split(","))))
            finally:
                fleet.stop()


if __name__ == "__main__":
    main()
