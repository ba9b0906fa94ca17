# SPDX-License-Identifier: Apache-2.0
"""The processors that the store's threads and processes may use. vLLM binds a worker to few processors, and what a thread
starts inherits them. On CPUs, it binds the main thread of each worker to a single one, computes there, and polls there between
two steps: a thread of the store that shares this processor can be without it for seconds."""

from __future__ import annotations

import logging
import os
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress

log = logging.getLogger(__name__)


def add_those_of_parent() -> None:
    """This thread may also use the processors of the parent process."""
    try:
        os.sched_setaffinity(0, os.sched_getaffinity(0) | os.sched_getaffinity(os.getppid()))
    except OSError as error:
        log.debug("threads of the store are limited to the processors of this worker: %s", error)


@contextmanager
def of_parent():
    """Threads and processes that this thread starts meanwhile may also use the processors of the parent process. Where the
    system does not permit the change, nothing changes."""
    own = os.sched_getaffinity(0)
    add_those_of_parent()
    try:
        yield
    finally:
        with suppress(OSError):
            os.sched_setaffinity(0, own)


def is_bound_to_one() -> bool:
    return len(os.sched_getaffinity(0)) == 1


def away_from_one() -> AbstractContextManager:
    """`of_parent` if this thread may use a single processor."""
    return of_parent() if is_bound_to_one() else nullcontext()


def leave_one() -> None:
    """At the beginning of a thread, whose starter may be bound to a single processor."""
    if is_bound_to_one():
        add_those_of_parent()
