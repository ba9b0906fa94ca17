# SPDX-License-Identifier: Apache-2.0
"""Stores that end after the step that began them, while their copies out of a GPU's memory continue."""

from __future__ import annotations

import logging
import queue
import threading

log = logging.getLogger(__name__)

THREADS = 2  # one computes sums while the other waits for copies


class StoresBehind:
    """`end` ends a transfer and returns the blocks that it stored. It blocks until the copies have ended
    or, after timeout.load, nothing will be published.

    The blocks of a store must not be written before it has ended: a copy of changed bytes would be
    published as the old KV. So wait_for has no deadline of its own.
    """

    def __init__(self, end):
        self.end = end
        self.changed = threading.Condition()
        self.readers: dict[int, int] = {}  # block -> stores in progress that read it
        self.stored = 0  # blocks since take_stored
        self.jobs: queue.SimpleQueue = queue.SimpleQueue()
        self.threads = [threading.Thread(target=self.run, name="tierce-store", daemon=True)
                        for _ in range(THREADS)]
        for thread in self.threads:
            thread.start()

    def add(self, transfer, blocks: set[int]) -> None:
        """The copies of all layers have been enqueued."""
        with self.changed:
            for block in blocks:
                self.readers[block] = self.readers.get(block, 0) + 1
        self.jobs.put((transfer, blocks))

    def wait_for(self, blocks) -> None:
        """Returns when no store reads one of the blocks."""
        with self.changed:
            self.changed.wait_for(lambda: self.readers.keys().isdisjoint(blocks))

    def wait_for_all(self) -> None:
        with self.changed:
            self.changed.wait_for(lambda: not self.readers)

    def take_stored(self) -> int:
        with self.changed:
            stored, self.stored = self.stored, 0
        return stored

    def run(self) -> None:
        while (job := self.jobs.get()) is not None:
            transfer, blocks = job
            stored = 0
            try:
                stored = self.end(transfer)
            except Exception:
                log.exception("a store failed at its end, and published nothing")
            with self.changed:
                self.stored += stored
                self.release(blocks)
                self.changed.notify_all()

    def release(self, blocks) -> None:
        """Under the condition's lock."""
        for block in blocks:
            self.readers[block] -= 1
            if self.readers[block] == 0:
                del self.readers[block]

    def close(self) -> None:
        """Ends all stores."""
        for _ in self.threads:
            self.jobs.put(None)
        for thread in self.threads:
            thread.join()
