# SPDX-License-Identifier: Apache-2.0
"""The worker half's objects of the library: loads and stores in progress, and views that workers share."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from .tracker import ReqMeta

log = logging.getLogger(__name__)

ORIGIN_FAILED, ORIGIN_MEMORY, ORIGIN_DISK = 0, 1, 2  # of a loaded block: enum tierce_origin
HASH_BYTES = 32  # of a block


@dataclass
class Transfer:
    """A load or a store in progress; `handle` is the library's object for it."""

    request: ReqMeta
    handle: object
    next_layer: int = 0
    failed: bool = False

    def advance(self, end: int) -> None:
        """Moves its layers up to `end`; a failure ends the transfer, never the caller."""
        while not self.failed and self.next_layer < end:
            try:
                self.handle.layer(self.next_layer)
                self.next_layer += 1
            except Exception as error:
                self.abort(error)

    def abort(self, error=None) -> None:
        if self.failed:
            return
        self.failed = True
        if error is not None:
            log.warning("a transfer of request %s failed: %s", self.request.req_id, error)
        try:
            self.handle.abort()
        except Exception as second:
            log.debug("abort: %s", second)


class SharedView:
    """A view of layers that other workers hold too: `share`: the blocks that are stored here."""

    def __init__(self, view, share):
        self.view, self.share = view, share
        self.store_begin = share.store_begin

    def __getattr__(self, name):
        return getattr(self.view, name)
