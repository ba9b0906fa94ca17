# SPDX-License-Identifier: Apache-2.0
"""A GPU that fails in the middle of a load; run by test_vllm_cuda.py, in a process that cannot use it afterwards."""

import ctypes

from cuda_engine import Engine, base_config, gpu, quiet, request_of, settings, step_of, until  # noqa: F401
from cuda_steps import BLOCK, FIRST, TOKENS, cache_of, prefill
from test_connector import config  # noqa: F401
from tierce.vllm.tracker import LIMIT_NOT_READY

ILLEGAL_ADDRESS = 700
CALL = 16  # after the calls about the first address, three times


def test_a_device_that_fails_is_a_miss(gpu, config):  # noqa: F811
    engine = Engine(gpu, settings(config), cache_of())
    prefill(engine)
    engine.stored()
    request = request_of(TOKENS, "b")
    engine.begin_load(request, ([*range(20, 29)],), 8 * BLOCK)
    engine.begin(engine.scheduler.build_connector_meta(step_of()))
    engine.half.memory.order_loads()
    engine.half.memory.order_loads = lambda: None  # vLLM's own calls do not fail
    gpu.driver.cuda_fake_fail_nth(ctypes.c_uint64(CALL), ILLEGAL_ADDRESS)
    engine.worker.start_load_kv(None)
    until(lambda: engine.half.finished)
    assert gpu.driver.cuda_fake_fail_nth(ctypes.c_uint64(0), 0) >= CALL
    results = engine.end()
    assert results.finished_recving == {"b"} and results.errors == set(range(20, 28))
    # Nothing is found or stored from now on, and vLLM continues.
    later = request_of(TOKENS, "c")
    assert engine.ask(later) == (0, False) and engine.limit(later) == LIMIT_NOT_READY
    stored = engine.half.engine.stats()["chunks_stored"]
    prefill(engine, "d", [40, *FIRST[1:]])
    engine.stored()
    assert engine.half.engine.stats()["chunks_stored"] == stored
    engine.close()
