# SPDX-License-Identifier: Apache-2.0
"""Prefetches as futures: one thread of a store waits for all of them."""

from __future__ import annotations

import asyncio
import os
import select
import threading
from concurrent.futures import Future

POLL_MS = 5  # of prefetches in a node, which reports no end


class Prefetch(Future):
    """A prompt's KV on its way to memory, made by `Cache.prefetch`. Its result is a `Found`.

    `result(timeout)`, `done()` and `add_done_callback(fn)` are those of `concurrent.futures.Future`, and `await prefetch` works
    in every running event loop. A callback runs on a thread of the store, or in the call that cancels the prefetch or closes the
    store; it must not wait for another prefetch. The KV is held in memory until `close()`, a load with this prefetch, or
    `timeout.pin`. Thread: any. In a child process of fork it never ends.
    """

    def __init__(self, cache, session: int, make_result):
        """`make_result(memory_blocks)` makes the `Found`."""
        super().__init__()
        self._cache, self._session = cache, session
        self._make_result = make_result
        self._core = None  # until its end is seen

    def __await__(self):
        return asyncio.wrap_future(self).__await__()

    def cancel(self) -> bool:
        """Ends what still runs. False: it has ended already, or another call ends it."""
        if not self._cache._store._waiter.drop(self):
            return False
        self._end_cancelled()
        return True

    def _end_cancelled(self) -> None:
        super().cancel()
        self.set_running_or_notify_cancel()

    def close(self) -> None:
        """Ends what still runs, and ends the hold on memory."""
        self.cancel()
        self._cache._unpin(self._session)


class Waiter:
    """Completes the prefetches of a store. Its thread exists from the first prefetch until `close`."""

    def __init__(self, is_polling: bool):
        """`is_polling`: nothing writes the eventfd when a prefetch ends."""
        self.lock = threading.Lock()
        self.is_polling = is_polling
        self.running: set[Prefetch] = set()
        self.event = -1
        self.thread = None
        self.is_closed = False

    def begin(self, prefetch: Prefetch, make_core) -> None:
        """`make_core(eventfd)` begins it; -1 if nothing is to be written."""
        with self.lock:
            if self.is_closed:
                raise ValueError("the store is closed")
            if self.thread is None:
                self.start()
            prefetch._core = make_core(-1 if self.is_polling else self.event)
            self.running.add(prefetch)
            os.eventfd_write(self.event, 1)  # it may have ended before the thread could see it

    def start(self) -> None:
        event = os.eventfd(0, os.EFD_CLOEXEC)
        thread = threading.Thread(target=self.run, args=(event,), name="tierce-prefetch", daemon=True)
        try:
            thread.start()
        except BaseException:
            os.close(event)
            raise
        self.event, self.thread = event, thread

    def run(self, event: int) -> None:
        poll, running = select.poll(), []
        poll.register(event, select.POLLIN)
        while not self.is_closed:
            if poll.poll(POLL_MS if self.is_polling and running else None):
                os.eventfd_read(event)
            with self.lock:
                running = list(self.running)
            for prefetch in running:
                self.look_at(prefetch)
            running = [prefetch for prefetch in running if not prefetch.done()]

    def look_at(self, prefetch: Prefetch) -> None:
        with self.lock:
            if prefetch not in self.running:
                return  # cancelled
            final, _, memory_blocks, _ = prefetch._core.poll()
            if not final:
                return
            self.remove(prefetch)
        prefetch.set_running_or_notify_cancel()
        prefetch.set_result(prefetch._make_result(memory_blocks))

    def remove(self, prefetch: Prefetch) -> None:
        self.running.discard(prefetch)
        core, prefetch._core = prefetch._core, None  # which holds the view, and so the engine
        core.end()

    def drop(self, prefetch: Prefetch) -> bool:
        """Ends a prefetch that runs. False: it does not run."""
        with self.lock:
            if prefetch not in self.running:
                return False
            self.remove(prefetch)
        return True

    def close(self) -> None:
        """Cancels what still runs."""
        with self.lock:
            self.is_closed = True
            running = list(self.running)
            for prefetch in running:
                self.remove(prefetch)
            thread, self.thread = self.thread, None
            if thread is not None:
                os.eventfd_write(self.event, 1)
        for prefetch in running:
            prefetch._end_cancelled()
        if thread is not None:
            if threading.current_thread() is not thread:  # a callback may close the store
                thread.join()
            os.close(self.event)
