# SPDX-License-Identifier: Apache-2.0
"""A vLLM with Tierce in this process, for tools that measure the time to the first token on this machine's CPU."""

import os
import sys
import time
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BLOCK_TOKENS = 32
ENVIRONMENT = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_CPU_KVCACHE_SPACE": "2", "VLLM_CPU_OMP_THREADS_BIND": "nobind",
               "VLLM_ENABLE_V1_MULTIPROCESSING": "0", "TORCH_COMPILE_DISABLE": "1", "VLLM_LOGGING_STREAM": "ext://sys.stderr"}

sys.path[:0] = [str(ROOT / "tools"), str(ROOT / "python")]


class Asker:
    """store: the configuration of the connector."""

    def __init__(self, model, dtype, length, store, threads=1):
        """The first one sets the number of threads of this process."""
        os.environ.update({**ENVIRONMENT, "OMP_NUM_THREADS": str(threads)})
        from vllm import LLM
        from vllm.config import KVTransferConfig

        self.llm = LLM(model=str(model), dtype=dtype, enforce_eager=True, block_size=BLOCK_TOKENS, max_model_len=length,
                       max_num_batched_tokens=length, max_num_seqs=1, kv_transfer_config=KVTransferConfig(
                           kv_connector="TierceConnector", kv_connector_module_path="tierce.vllm", kv_role="kv_both",
                           kv_load_failure_policy="recompute", kv_connector_extra_config=store))
        self.engine, self.store, self.asked = self.llm.llm_engine, store, 0

    def ask(self, tokens, count, **wishes):
        """The answer, seconds and processor seconds to its first token, and the report of the load."""
        from vllm import SamplingParams

        self.engine.reset_prefix_cache()
        self.asked += 1
        params = SamplingParams(temperature=0.0, max_tokens=count, ignore_eos=True, detokenize=False, extra_args={
            "kv_transfer_params": {"tierce.report": True, **{f"tierce.{name}": value for name, value in wishes.items()}}})
        began, cpu_began, took = time.monotonic(), time.process_time(), None
        self.engine.add_request(f"{self.asked}", {"prompt_token_ids": tokens}, params)
        while self.engine.has_unfinished_requests():
            for out in self.engine.step():
                if took is None and out.outputs[0].token_ids:
                    took = time.monotonic() - began, time.process_time() - cpu_began
        return list(out.outputs[0].token_ids), *took, out.kv_transfer_params

    @contextmanager
    def opened(self):
        """The store that the connector holds open: an equal configuration is the same one."""
        from tierce import _core

        engine = _core.Engine.open(None, {name: str(value) for name, value in self.store.items()})
        try:
            yield engine
        finally:
            engine.close()

    def end(self):
        """Another one may be made afterwards."""
        from vllm.distributed.parallel_state import destroy_distributed_environment, destroy_model_parallel

        self.engine.engine_core.shutdown()
        self.llm = self.engine = None
        destroy_model_parallel()
        destroy_distributed_environment()
