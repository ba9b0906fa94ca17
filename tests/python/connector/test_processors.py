# SPDX-License-Identifier: Apache-2.0
"""A worker that vLLM has bound to one processor: the threads of its store use others, too. Beside the worker's own computing and
polling, they could be without this processor for seconds."""

import os

import pytest

pytest.importorskip("vllm")

from test_connector import config  # noqa: E402, F401
from test_handover_groups import matched, pair, prefill  # noqa: E402, F401
from tierce.vllm import processors  # noqa: E402

pytestmark = pytest.mark.skipif(len(os.sched_getaffinity(os.getppid())) < 2, reason="a machine with one processor")


@pytest.fixture
def bound_to_one():
    """This thread, as vLLM binds a worker's. Returns the threads that exist."""
    own = os.sched_getaffinity(0)
    existing = set(os.listdir("/proc/self/task"))
    os.sched_setaffinity(0, {min(own)})
    yield existing
    assert os.sched_getaffinity(0) == {min(own)}
    os.sched_setaffinity(0, own)


def bound(threads):
    return [thread for thread in threads if len(os.sched_getaffinity(int(thread))) == 1]


def test_no_thread_of_a_store_is_bound_to_one(bound_to_one, pair):  # noqa: F811
    prefiller, decoder = pair
    _, answer = matched(decoder, prefill(prefiller))
    assert answer == (192, True)
    started = set(os.listdir("/proc/self/task")) - bound_to_one
    assert len(started) > 8 and not bound(started)


def test_a_worker_with_several_processors_keeps_them():
    own = os.sched_getaffinity(0)
    with processors.away_from_one():
        assert os.sched_getaffinity(0) == own
    processors.leave_one()
    assert os.sched_getaffinity(0) == own


def test_a_system_without_the_permission_changes_nothing(bound_to_one, monkeypatch):
    """As with a seccomp profile that forbids sched_setaffinity."""
    def refuse(pid, processors):
        raise PermissionError(1, "Operation not permitted")

    own = os.sched_getaffinity(0)
    with monkeypatch.context() as patch:
        patch.setattr(os, "sched_setaffinity", refuse)
        with processors.away_from_one():
            assert os.sched_getaffinity(0) == own
        processors.leave_one()
