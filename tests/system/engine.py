# SPDX-License-Identifier: Apache-2.0
"""One vLLM in a process of its own, for the system tests.

Reads a JSON job from standard input; writes JSON lines to standard output: one per round with the
answers and what was loaded, then "done". It then waits to be killed or for its input to end, as
the job says. vLLM's log goes to standard error.
"""

import json
import os
import sys
import time


def make_llm(job):
    from vllm import LLM
    from vllm.config import KVTransferConfig

    options = dict(
        model=job["model"], dtype="float32", seed=0, enforce_eager=True, block_size=32,
        enable_prefix_caching=True, max_model_len=2048, max_num_batched_tokens=2048,
        max_num_seqs=4, num_gpu_blocks_override=80, skip_tokenizer_init=True)
    options.update(job.get("options", {}))
    if job["store"] is not None:
        options["kv_transfer_config"] = KVTransferConfig(
            kv_connector="TierceConnector", kv_connector_module_path="tierce.vllm",
            kv_role="kv_both", kv_load_failure_policy=job.get("policy", "recompute"),
            kv_connector_extra_config=job["store"])
    return LLM(**options)


def play(llm, job, prompts):
    from vllm import SamplingParams

    extra = {"kv_transfer_params": {"tierce.report": True}} if job["store"] is not None else None
    sampling = SamplingParams(temperature=0.0, max_tokens=job.get("answer_tokens", 8),
                              ignore_eos=True, detokenize=False, extra_args=extra)
    batches = [prompts] if job.get("together") else [[p] for p in prompts]
    outputs = []
    for batch in batches:
        outputs += llm.generate(batch, sampling, use_tqdm=False)
    return {"answers": [list(o.outputs[0].token_ids) for o in outputs],
            "reports": [o.kv_transfer_params for o in outputs]}


def main():
    job = json.loads(sys.stdin.readline())
    lines = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    os.environ.update({"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1",
                       "VLLM_CPU_KVCACHE_SPACE": "1",
                       "VLLM_ENABLE_V1_MULTIPROCESSING": str(job.get("multiprocessing", 0)),
                       "OMP_NUM_THREADS": str(len(os.sched_getaffinity(0)))})
    llm = make_llm(job)
    store = None
    if job["store"] is not None and not job.get("multiprocessing"):
        from tierce import _core

        # An equal configuration is the connector's own engine, counted.
        store = _core.Engine.open(None, {k: str(v) for k, v in job["store"].items()})
    for prompts in job["rounds"]:
        result = play(llm, job, prompts)
        if store is not None:
            result["durable"] = store.flush(30000)
            result["stats"] = store.stats()
        lines.write(json.dumps(result) + "\n")
    lines.write('"done"\n')
    while job.get("stay"):
        time.sleep(3600)
    if store is not None:
        store.close()


if __name__ == "__main__":
    main()
