# SPDX-License-Identifier: Apache-2.0
"""A client of Mooncake for bridge.py, which is read before this file."""

import ctypes
import os
import socket
import threading

OBJECT_HAS_LEASE = -706


def look_for_master(master, seconds):
    """The address that this host has towards the master; Mooncake itself tries for a minute."""
    host, port = master.rsplit(":", 1)
    try:
        with socket.create_connection((host.strip("[]"), int(port)), seconds) as probe:
            return probe.getsockname()[0]
    except OSError as error:
        raise RuntimeError(f"no Mooncake master at {master}: {error}") from None


class Put:
    def __init__(self, *what):
        self.what, self.status = what, None
        self.turn = threading.Semaphore(0)  # it is done, or leads the next call


class Puts:
    """Puts that come during a call of Mooncake go together in the next one: of calls side by side
    each is slower than all in one (half as fast with four of 1 MiB, two cores, 2026-11)."""

    def __init__(self, run):
        self.run, self.lock, self.waiting, self.busy = run, threading.Lock(), [], False

    def call(self, *what):
        put = Put(*what)
        with self.lock:
            self.waiting.append(put)
            leads, self.busy = not self.busy, True
        if not leads:
            put.turn.acquire()
        if put.status is None:
            self.lead()
        return put.status

    def lead(self):
        with self.lock:
            batch, self.waiting = self.waiting, []
        statuses = self.run(*(list(column) for column in zip(*(put.what for put in batch))))
        for put, status in zip(batch, statuses):
            put.status = status
        with self.lock:
            following = self.waiting[:1]
            self.busy = bool(following)
        for put in batch + following:
            put.turn.release()


class Mooncake:
    def __init__(self, options, pool):
        seconds = options["timeout"]
        os.environ["MC_TCP_STATUS_TIMEOUT_SEC"] = seconds
        os.environ["MC_TCP_PROGRESS_TIMEOUT_SEC"] = seconds
        os.environ["MC_RPC_TIMEOUT_MS"] = str(int(seconds) * 1000)
        os.environ["MC_STORE_CLIENT_SETUP_RETRIES"] = "3"  # other ports of its own
        from_here = look_for_master(options["master"], int(seconds))
        from mooncake import store as mooncake

        if "numa" in options:
            mooncake.bind_to_numa_node(int(options["numa"]))
        self.store = mooncake.MooncakeDistributedStore()
        if not hasattr(self.store, "get_into_ranges"):
            raise RuntimeError("this release of Mooncake cannot read a range of an object")
        self.replicas = mooncake.ReplicateConfig()
        self.replicas.replica_num = int(options["replicas"])
        self.puts = Puts(
            lambda names, places, sizes: self.store.batch_put_from(
                names, places, sizes, self.replicas
            )
        )
        status = self.store.setup(
            options["host"] or from_here,
            options["metadata"],
            int(options["segment"]),
            int(options["buffer"]),
            options["protocol"],
            options["device"],
            options["master"],
        )
        if status != 0:
            raise RuntimeError(f"no Mooncake at {options['master']} (its error {status})")
        self.pool = pool  # the address is valid as long as it lives
        self.base = ctypes.addressof(ctypes.c_char.from_buffer(pool))
        status = self.store.register_buffer(self.base, len(pool))
        if status != 0:
            raise RuntimeError(f"Mooncake does not take the pool's memory (its error {status})")

    def exists(self, names):
        found = 0
        for status in self.store.batch_is_exist(names):
            if status < 0:
                return status
            if status == 0:
                break
            found += 1
        return found

    def delete(self, name):
        status = self.store.remove(name)
        return self.store.remove(name, True) if status == OBJECT_HAS_LEASE else status

    def get(self, name, place, offset, length):
        read = self.store.get_into_ranges(
            [self.base + place], [[name]], [[[0]]], [[[offset]]], [[[length]]]
        )
        return read[0][0][0]

    def put(self, name, place, length):
        return self.puts.call(name, self.base + place, length)

    def close(self):
        self.store.close()


main(Mooncake)  # noqa: F821
