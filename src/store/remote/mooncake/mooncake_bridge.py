# SPDX-License-Identifier: Apache-2.0
"""The other end of mooncake_bridge.c: a client of Mooncake that works on the memory of its parent.

It is read from standard input. Descriptor 3 says when it is ready and ends when the parent does,
4 is the parent's pool, and from 5 on there is a socket for each of its callers. On each of those
come requests, one after the other, and go answers (mooncake_bridge.c has the same structures).
"""

import sys

sys.path[:] = [folder for folder in sys.path if folder]  # not what lies in the working folder

import ctypes  # noqa: E402
import mmap  # noqa: E402
import os  # noqa: E402
import select  # noqa: E402
import socket  # noqa: E402
import struct  # noqa: E402
import threading  # noqa: E402
import traceback  # noqa: E402

MAGIC = 0x4E4F4F4D
HELLO = struct.Struct("<8sII")
ASK = struct.Struct("<IIIIQQQ")
ANSWER = struct.Struct("<IIq")
CONTROL, POOL, FIRST_SEAT = 3, 4, 5
EXISTS, GET, PUT, DELETE = 1, 2, 3, 4
OBJECT_HAS_LEASE = -706
LOOK_MS = 1000  # whether the parent lives


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


class Bridge:
    def __init__(self, options):
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
        self.pool = mmap.mmap(POOL, 0)
        self.base = ctypes.addressof(ctypes.c_char.from_buffer(self.pool))
        status = self.store.register_buffer(self.base, len(self.pool))
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

    def run(self, op, names, place, offset, length):
        memory = self.base + place
        if op == EXISTS:
            return self.exists(names)
        if op == GET:
            read = self.store.get_into_ranges(
                [memory], [[names[0]]], [[[0]]], [[[offset]]], [[[length]]]
            )
            return read[0][0][0]
        if op == PUT:
            return self.puts.call(names[0], memory, length)
        if op == DELETE:
            return self.delete(names[0])
        raise ValueError(f"operation {op}")

    def serve(self, seat):
        """All requests of a caller."""
        while True:
            head = receive(seat, ASK.size)
            magic, op, count, text_bytes, place, offset, length = ASK.unpack(head)
            if magic != MAGIC:
                raise ValueError("invalid request")
            sizes = struct.unpack(f"<{count}H", receive(seat, 2 * count))
            text = receive(seat, text_bytes)
            names, at = [], 0
            for size in sizes:
                names.append(text[at : at + size])
                at += size
            result = self.run(op, names, place, offset, length)
            seat.sendall(ANSWER.pack(MAGIC, 0, result))


def receive(seat, size):
    data = seat.recv(size, socket.MSG_WAITALL) if size > 0 else b""
    if len(data) != size:
        raise EOFError
    return data


def serve_or_end(bridge, seat):
    """What cannot be served ends the process: its parent makes another one."""
    try:
        bridge.serve(seat)
    except (EOFError, OSError):
        return  # the parent has ended, which the main thread sees
    except BaseException:
        traceback.print_exc()
        os._exit(1)


def say_hello(control, status, text):
    told = text.encode(errors="replace")[:200]
    control.sendall(HELLO.pack(b"tierce-1", status, len(told)) + told)


def wait_for_the_end(control, parent):
    """Children of the parent may have its sockets too, so their end alone does not tell."""
    poller = select.poll()
    poller.register(control, select.POLLIN)
    while os.getppid() == parent and not poller.poll(LOOK_MS):
        pass


def main():
    parent = os.getppid()
    options = dict(argument.split("=", 1) for argument in sys.argv[1:])
    control = socket.socket(fileno=CONTROL)
    try:
        bridge = Bridge(options)
    except BaseException as error:
        traceback.print_exc()
        say_hello(control, 1, str(error) or type(error).__name__)
        os._exit(1)
    for number in range(int(options["seats"])):
        seat = socket.socket(fileno=FIRST_SEAT + number)
        threading.Thread(target=serve_or_end, args=(bridge, seat), daemon=True).start()
    say_hello(control, 0, "")
    wait_for_the_end(control, parent)
    bridge.store.close()
    os._exit(0)


main()
