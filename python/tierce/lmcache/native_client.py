# SPDX-License-Identifier: Apache-2.0
"""TierceClient: the methods that LMCache calls of a native client, over an engine of the library.

An object of LMCache is a page of one cell. It is copied once, between LMCache's memory and Tierce's."""

from __future__ import annotations

import ctypes
import hashlib
import itertools
import logging
import os
import queue
import threading
from collections import deque
from dataclasses import dataclass

import numpy

from ..page_view import PageEngine, PageView, take_settings
from ..vllm.identity import ConfigError
from ..vllm.settings import open_view

log = logging.getLogger("tierce")

WHERE = "adapter_params"
THREADS = 8  # of a client; each moves one object at a time
NOTE_BYTES = 8
SIZES_MAX = 8  # of objects of one kind


@dataclass
class Batch:
    """Of one call."""

    number: int
    work: str
    results: list
    left: int  # keys without a result


class TierceClient:
    """Threads: any."""

    def __init__(self, **params):
        """Parameters of an engine by their names, `config` (a file of them) and `identity`. Raises ConfigError."""
        settings, identity = take_settings(params, WHERE)
        self.opened = PageEngine(settings, WHERE, "lmcache", "LMCache")
        self.model = {"weights": hashlib.sha256(identity.encode()).hexdigest(), "model": "objects of LMCache"}
        self.lock = threading.Lock()
        self.numbers, self.batches, self.completions = itertools.count(1), queue.SimpleQueue(), deque()
        self.failed: set[str] = set()
        self.sizes: dict[str, list[int]] = {}  # of the objects of each kind
        self.event = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        try:
            ThreadViews(self).note  # what cannot work raises now
        except BaseException:
            self.close()
            raise
        self.threads = [threading.Thread(target=self.run, name=f"tierce-lmcache-{i}", daemon=True) for i in range(THREADS)]
        for thread in self.threads:
            thread.start()

    # ---- what LMCache calls

    def event_fd(self) -> int:
        return self.event

    def submit_batch_set(self, keys, buffers) -> int:
        return self.submit("store", keys, buffers)

    def submit_batch_get(self, keys, buffers) -> int:
        return self.submit("load", keys, buffers)

    def submit_batch_exists(self, keys) -> int:
        return self.submit("exists", keys, [None] * len(keys))

    def drain_completions(self) -> list[tuple[int, bool, str, list[bool]]]:
        try:
            os.eventfd_read(self.event)
        except BlockingIOError:
            pass
        with self.lock:
            drained, self.completions = list(self.completions), deque()
        return drained

    def close(self) -> None:
        """Ends calls in progress first. Slower tiers are written for timeout.close at most."""
        threads, self.threads = getattr(self, "threads", []), []
        for _ in threads:
            self.batches.put(None)
        for thread in threads:
            thread.join()
        if self.opened is not None:
            self.opened.engine.close()
            os.close(self.event)
            self.opened = None

    # ---- work

    def submit(self, work: str, keys, buffers) -> int:
        if len(keys) != len(buffers):
            raise ValueError(f"{len(keys)} keys and {len(buffers)} buffers")
        if not self.threads:
            raise ValueError("the client is closed")
        batch = Batch(next(self.numbers), work, [False] * len(keys), len(keys))
        if not keys:
            self.complete(batch)
        elif work == "exists":  # questions to remote stores are asked together
            self.batches.put((batch, 0, list(keys), None))
        else:
            for i, (key, buffer) in enumerate(zip(keys, buffers)):
                self.batches.put((batch, i, [key], buffer))
        return batch.number

    def run(self) -> None:
        views = ThreadViews(self)
        while (item := self.batches.get()) is not None:
            batch, first, keys, buffer = item
            results = [False] * len(keys)
            try:
                results = views.exists(keys) if batch.work == "exists" else [getattr(views, batch.work)(keys[0], buffer)]
            except Exception:
                if batch.work not in self.failed:
                    self.failed.add(batch.work)
                    log.exception("Tierce for LMCache failed in %s; this is a miss, and is logged once", batch.work)
            del item, buffer  # LMCache's memory
            with self.lock:
                batch.results[first:first + len(keys)] = results
                batch.left -= len(keys)
                is_last = batch.left == 0
            if is_last:
                self.complete(batch)

    def complete(self, batch: Batch) -> None:
        """A store is complete if all its objects are held. A lookup and a load are, with a result for each key."""
        is_whole = batch.work != "store" or all(batch.results)
        error = "" if is_whole else "the store has no room, or failed"
        with self.lock:
            self.completions.append((batch.number, is_whole, error, batch.results))
        os.eventfd_write(self.event, 1)

    # ---- sizes

    def add_size(self, kind: str, size: int) -> int | None:
        """The position of a new size, or None."""
        with self.lock:
            known = self.sizes.setdefault(kind, [])
            if size in known or len(known) == SIZES_MAX:
                return None
            known.append(size)
            return len(known) - 1


class ThreadViews:
    """The views of one thread. The memory of a view is described before each transfer, so no two threads share one.

    LMCache asks for an object by its key alone, and a chunk is found by its key and size. So the sizes of each kind of object
    are stored too, as notes: another process finds them before it has stored an object of the kind."""

    def __init__(self, client: TierceClient):
        self.client, self.views = client, {}
        self.memory = ctypes.c_uint64()
        self.note = self.view("sizes", NOTE_BYTES)
        self.note.view.set_paged([ctypes.addressof(self.memory)], [NOTE_BYTES], 1)

    def view(self, layout: str, size: int) -> PageView:
        if (layout, size) not in self.views:
            namespace = {**self.client.model, "kv_dtype": "", "quantization": "", "layout": layout, "layer_count": 1,
                         "cell_bytes": [size], "block_tokens": 1, "chunk_blocks": 1, "algo": "sha256"}
            self.views[layout, size] = PageView(open_view(self.client.opened.engine, namespace), 1, self.client.opened.store_ms)
        return self.views[layout, size]

    def at(self, buffer) -> PageView:
        """A view of the objects of this size, whose page is this memory."""
        array = numpy.frombuffer(buffer, numpy.uint8)
        pages = self.view("objects", array.size)
        pages.view.set_paged([array.ctypes.data], [array.size], 1)
        return pages

    def store(self, key: str, buffer) -> bool:
        kind, size = kind_of(key), memoryview(buffer).nbytes
        if not self.at(buffer).store([name_of(key)], [0])[0]:
            return False
        if size not in self.sizes_of(kind):
            self.write_note(kind, size)
        return True

    def load(self, key: str, buffer) -> bool:
        return self.at(buffer).load([name_of(key)], [0])[0]

    def exists(self, keys) -> list[bool]:
        found, until = [False] * len(keys), self.client.opened.until()
        by_size: dict[int, list[int]] = {}
        for i, key in enumerate(keys):
            for size in self.sizes_of(kind_of(key)):
                by_size.setdefault(size, []).append(i)
        for size, indices in by_size.items():
            left = [i for i in indices if not found[i]]
            answers = self.view("objects", size).ask([name_of(keys[i]) for i in left], until, False)
            for i, is_held in zip(left, answers):
                found[i] = is_held
        return found

    def sizes_of(self, kind: str) -> list[int]:
        known = self.client.sizes.get(kind)
        if not known:
            for i in range(SIZES_MAX):
                if not self.note.load([note_of(kind, i)], [0])[0]:
                    break
                self.client.add_size(kind, self.memory.value)
            known = self.client.sizes.get(kind, [])
        return list(known)

    def write_note(self, kind: str, size: int) -> None:
        """A note that is not stored costs later processes this kind's hits, until they store an object of it."""
        i = self.client.add_size(kind, size)
        if i is not None:
            self.memory.value = size
            self.note.store([note_of(kind, i)], [0])


def kind_of(key: str) -> str:
    """Objects of one model, rank and group have the same size: LMCache's keys begin with these three."""
    return "@".join(key.split("@")[:3])


def name_of(key: str) -> bytes:
    return hashlib.sha256(key.encode()).digest()


def note_of(kind: str, position: int) -> bytes:
    return name_of(f"size {position} of {kind}")


__all__ = ["ConfigError", "TierceClient"]
