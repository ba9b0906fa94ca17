# SPDX-License-Identifier: Apache-2.0
"""Two real vLLMs that are peers behind one manager: each loads from the other's memory what that one has computed, and the
answers equal those of a vLLM without a store, also after one of them was killed."""

import pytest

from conftest import answers, loaded
from manager_process import Http, Manager, wait_until
from test_vllm import whole_blocks


@pytest.fixture
def manager(tmp_path):
    manager = Manager(tmp_path / "manager")
    yield manager
    assert manager.stop() == 0


def known(manager):
    """How many chunks of each engine the directory knows."""
    workers = Http(manager).call("meta", "ListWorkers")["workers"]
    return sorted(int(worker["keys"]) for worker in workers)


@pytest.mark.long
def test_each_loads_what_the_other_has_computed(engine, manager, prompts, expected):
    config = {"memory.size": "256MiB", "cost.check": "false", "timeout.lookup": "5s",
              "remote.urls": f"peers://127.0.0.1:{manager.ports['grpc']}"}
    both = engine(config), engine(config)
    asked = prompts, [[(token + 1) % 256 for token in prompt] for prompt in prompts]
    for host, own in zip(both, asked):
        assert answers(host.generate(prompts=own)) == expected(own)
        assert host.flush()
    wait_until(lambda: known(manager) == sorted(host.stats()["memory_chunks_now"] for host in both))
    for host, others in zip(both, reversed(asked)):
        outputs = host.generate(prompts=others)
        assert answers(outputs) == expected(others)
        assert loaded(outputs, "failed") == [0] * len(others)
        came = [a + b + c for a, b, c in zip(*(loaded(outputs, what) for what in ("local", "memory", "remote")))]
        assert came == whole_blocks(others) and loaded(outputs, "remote")[0] == came[0]
    left, killed = both
    fresh = [[(token + 2) % 256 for token in prompt] for prompt in prompts]
    assert answers(killed.generate(prompts=fresh)) == expected(fresh)
    assert killed.flush()
    killed.kill()
    outputs = left.generate(prompts=fresh)
    assert answers(outputs) == expected(fresh)
    assert loaded(outputs, "remote") == [0] * len(fresh) and max(o["seconds"] for o in outputs) < 60
