# SPDX-License-Identifier: Apache-2.0
"""Loads that run beside the steps of the engine, on separate threads: a part of the worker half."""

from __future__ import annotations

import logging
import queue
import threading
import time

from .tracker import LoadResult, ReqMeta, int32
from .transfer import ORIGIN_FAILED

log = logging.getLogger(__name__)

ASYNC_LOADS = 2
PREPARING_S = 10.0  # limit of a load's wait for a GPU that is still being prepared


class LoadsAsync:
    def init_loads(self) -> None:
        """After the worker half has its lock."""
        self.idle = threading.Condition(self.lock)  # see busy
        self.busy: dict[int, int] = {}  # session -> asynchronous loads that use it
        self.released: set[int] = set()  # sessions to release when they are no longer busy
        self.submitted: set[str] = set()  # requests of this step whose asynchronous loads will end
        self.loaders: list[threading.Thread] = []
        self.to_load: queue.SimpleQueue[ReqMeta | None] = queue.SimpleQueue()
        self.finished: list[tuple[ReqMeta, bytes]] = []

    def wait_for_loads(self) -> None:
        with self.idle:
            self.idle.wait_for(lambda: not self.busy)

    def start_loaders(self) -> None:
        for _ in range(ASYNC_LOADS):
            self.loaders.append(threading.Thread(
                target=self.run_loads, name="tierce-load", daemon=True))
            self.loaders[-1].start()

    def stop_loaders(self) -> None:
        for _ in self.loaders:
            self.to_load.put(None)
        for thread in self.loaders:
            if thread.ident is not None:
                thread.join()

    def run_loads(self) -> None:
        while (job := self.to_load.get()) is not None:
            self.load_whole(*job)

    def submit_load(self, request: ReqMeta) -> None:
        with self.lock:
            self.busy[request.session] = self.busy.get(request.session, 0) + 1
        self.to_load.put((request, self.era))
        self.submitted.add(request.req_id)

    def wait_until_prepared(self) -> None:
        """The first worker, which answers lookups, may be ready before the others."""
        until = time.monotonic() + PREPARING_S
        while not self.can_transfer() and time.monotonic() < until:
            time.sleep(0.05)

    def load_whole(self, request: ReqMeta, era: bytes) -> None:
        """Runs on a separate thread. The load always ends in `finished`, because vLLM waits for
        it."""
        origins = b""
        try:
            self.wait_until_prepared()
            transfer = self.begin_load(request)
            if transfer is not None:
                transfer.advance(self.numbering.count)
                if not transfer.failed:
                    origins = transfer.handle.end()
        except Exception as error:
            log.warning("a load for request %s failed: %r; with kv_load_failure_policy recompute, vLLM computes its blocks",
                        request.req_id, error)
        finally:
            if era != self.era:
                origins = b""  # of the weights before a reset
            with self.lock:
                self.finished.append((request, origins))
                self.busy[request.session] -= 1
                over = self.busy[request.session] == 0
                if over:
                    del self.busy[request.session]
                    self.idle.notify_all()
                release = over and request.session in self.released
                if release:
                    self.released.discard(request.session)
            if release:
                self.release(request.session, keep_chain=False)

    def take_received(self) -> set[str]:
        """Requests whose asynchronous load has ended, with success or not."""
        with self.lock:
            finished, self.finished = self.finished, []
        if any(not origins or ORIGIN_FAILED in origins for _, origins in finished):
            # Copies to blocks that failed may still be in progress, and vLLM computes these blocks now.
            self.memory.order_behind_loads()
        for request, origins in finished:
            try:
                self.count_load(request, origins)
            except Exception:
                log.exception("the result of the load for request %s is unknown", request.req_id)
                self.lose(request)
        return {request.req_id for request, _ in finished}

    def lose(self, request: ReqMeta) -> None:
        """None of this request's blocks may be used."""
        self.error_blocks.update(int32(request.block_ids))
        self.results[request.req_id] = LoadResult(failed=request.load.blocks)
