# SPDX-License-Identifier: Apache-2.0
"""A process that runs vLLM engines for the system tests, one after the other.

Commands are JSON lines on standard input, answers JSON lines on standard output; everything else
that is printed goes to the log file named as the first argument. Importing vLLM takes longer than
starting a small engine, so one process serves many tests.
"""

import gc
import json
import os
import sys
import traceback


class Host:
    def __init__(self):
        self.llm = None

    def start(self, model, store=None, policy="recompute", own_process=False, **options):
        """`own_process`: vLLM runs scheduler and worker in a child, the worker in one of its own
        where the platform wants that."""
        if self.llm is not None:
            raise RuntimeError("an engine is running already")
        os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = str(int(own_process))
        from vllm import LLM
        from vllm.config import KVTransferConfig

        options = {
            "model": model, "dtype": "float32", "seed": 0, "enforce_eager": True,
            "enable_prefix_caching": True, "block_size": 32, "max_model_len": 2048,
            "max_num_batched_tokens": 2048, "max_num_seqs": 8, "num_gpu_blocks_override": 256,
            "disable_log_stats": False, "skip_tokenizer_init": True, **options}
        if store is not None:
            options["kv_transfer_config"] = KVTransferConfig(
                kv_connector="TierceConnector", kv_connector_module_path="tierce.vllm",
                kv_role="kv_both", kv_load_failure_policy=policy, kv_connector_extra_config=store)
        # vLLM collects garbage five times while it starts: most of the time that a small engine
        # needs, unless what was imported is left out.
        gc.freeze()
        self.llm = LLM(**options)

    def generate(self, prompts, tokens=8, salts=None, wishes=None, together=True):
        """Answers in the order of the prompts: all at once, or one after the other."""
        from vllm import SamplingParams

        transfer = {"tierce.report": True, **(wishes or {})}
        sampling = SamplingParams(temperature=0.0, max_tokens=tokens, ignore_eos=True,
                                  detokenize=False,
                                  extra_args={"kv_transfer_params": transfer})
        asked = [{"prompt_token_ids": p, **({"cache_salt": s} if s else {})}
                 for p, s in zip(prompts, salts or [None] * len(prompts))]
        batches = [asked] if together else [[a] for a in asked]
        out = []
        for batch in batches:
            for result in self.llm.generate(batch, sampling, use_tqdm=False):
                out.append({"answer": list(result.outputs[0].token_ids),
                            "end": result.outputs[0].finish_reason,
                            "report": result.kv_transfer_params})
        return out

    def forget(self):
        """Empties vLLM's own prefix cache, not the store."""
        return self.llm.llm_engine.reset_prefix_cache()

    def preemptions(self):
        return sum(m.value for m in self.llm.get_metrics() if m.name == "vllm:num_preemptions")

    def reset_connector(self):
        return self.llm.llm_engine.reset_prefix_cache(reset_connector=True)

    def store_stats(self, store):
        """Of the engine that the connector of this process holds open."""
        from tierce import _core

        engine = _core.Engine.open(None, {k: str(v) for k, v in store.items()})
        stats = engine.stats()
        engine.close()
        return stats

    def flush(self, store):
        from tierce import _core

        engine = _core.Engine.open(None, {k: str(v) for k, v in store.items()})
        durable = engine.flush(30000)
        engine.close()
        return durable

    def stop(self):
        """Again after it was stopped does nothing."""
        if self.llm is None:
            return
        from vllm.distributed.parallel_state import (destroy_distributed_environment,
                                                     destroy_model_parallel)

        self.llm.llm_engine.engine_core.shutdown()
        self.llm = None
        destroy_model_parallel()
        destroy_distributed_environment()


def main():
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    log = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(log, 1)
    os.dup2(log, 2)
    host = Host()
    for line in sys.stdin:
        name, arguments = json.loads(line)
        try:
            answer = {"value": getattr(host, name)(**arguments)}
        except BaseException:
            answer = {"error": traceback.format_exc()}
        answers.write(json.dumps(answer) + "\n")


if __name__ == "__main__":
    main()
