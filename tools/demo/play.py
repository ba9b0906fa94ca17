# SPDX-License-Identifier: Apache-2.0
"""One vLLM engine in a process of its own: plays passes of a workload and reports each request.

Started by run.py with a JSON job on its standard input. Reports are JSON lines on its standard
output; vLLM's log goes to the job's log file. After the last pass it waits to be killed.
"""

import ctypes
import json
import os
import signal
import sys
import time

from float32_products import multiply_in_float32

ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_LOGGING_LEVEL": "INFO",
    "OMP_NUM_THREADS": str(len(os.sched_getaffinity(0))),
}


def open_reports(log_path):
    """Keeps the real standard output for reports and sends everything else to the log."""
    reports = os.fdopen(os.dup(1), "w", buffering=1)
    log = os.open(log_path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)

    def report(kind, **fields):
        reports.write(json.dumps({"kind": kind, **fields}) + "\n")

    return report


def make_engine(job):
    from vllm import LLM
    from vllm.config import KVTransferConfig

    if job.get("dtype") == "bfloat16":
        multiply_in_float32()
    options = dict(
        model=job["model"], dtype=job.get("dtype", "float32"), seed=0, enforce_eager=True,
        enable_prefix_caching=True, block_size=job["block_tokens"],
        max_model_len=job["prompt_max"], max_num_batched_tokens=job["prompt_max"],
        max_num_seqs=4, num_gpu_blocks_override=job["kv_blocks"], disable_log_stats=False,
    )
    if job["store"] is not None:
        options["kv_transfer_config"] = KVTransferConfig(
            kv_connector="TierceConnector", kv_connector_module_path="tierce.vllm",
            kv_role="kv_both", kv_load_failure_policy="recompute",
            kv_connector_extra_config=job["store"])
    return LLM(**options).llm_engine


class Player:
    def __init__(self, engine, job, report):
        from vllm import SamplingParams

        self.engine = engine
        self.job = job
        self.report = report
        # The report of the connector about each request comes back with its output.
        extra = {"kv_transfer_params": {"tierce.report": True}} if job["store"] else None
        self.sampling = SamplingParams(temperature=0.0, max_tokens=job["answer_tokens"],
                                       ignore_eos=True, extra_args=extra)
        self.one_token = SamplingParams(temperature=0.0, max_tokens=1, ignore_eos=True)
        self.store = self.open_store() if job["store"] else None

    def open_store(self):
        from tierce import _core

        # The same configuration gives the connector's own engine, counted.
        settings = {k: str(v) for k, v in self.job["store"].items()}
        return _core.Engine.open(None, settings)

    def ask(self, name, prompt, sampling=None):
        """Plays one request and returns (seconds to the first token, final output)."""
        start = time.perf_counter()
        first = None
        self.engine.add_request(name, {"prompt_token_ids": prompt}, sampling or self.sampling)
        while True:
            for output in self.engine.step():
                if first is None and output.outputs[0].token_ids:
                    first = time.perf_counter() - start
                if output.finished:
                    return first, output

    def forget(self):
        """vLLM's own prefix cache loses all blocks. Blocks that are still in use are released by steps."""
        for number in range(100):
            if self.engine.reset_prefix_cache():
                return
            self.ask(f"release-{number}", [1] * (self.job["block_tokens"] - 1), self.one_token)
        raise RuntimeError("vLLM does not release the blocks of its prefix cache")

    def play(self, pass_name):
        said = [[] for _ in self.job["sessions"]]
        order = self.job["order"]
        if pass_name == self.job.get("recall"):  # what the store recalls alone, beginning with the last it was given
            self.forget()
            order = order[::-1]
        for number, (session, turn) in enumerate(order):
            prompt = said[session] + self.job["sessions"][session][turn]
            before = self.store_stats()
            ttft, output = self.ask(f"{pass_name}-{number}", prompt)
            answer = list(output.outputs[0].token_ids)
            said[session] = prompt + answer
            # Without a store: the same prompt at once again, which vLLM's own cache holds.
            own = None if self.store else self.ask(f"{pass_name}-{number}-again", prompt,
                                                   self.one_token)[0]
            self.report("request", pass_name=pass_name, number=number, session=session, turn=turn,
                        prompt=prompt, answer=answer, ttft=ttft, own=own,
                        cached=output.num_cached_tokens or 0,
                        tierce=output.kv_transfer_params,
                        moved=self.moved_bytes(before))
        if self.store:
            durable = self.store.flush(60000)
            self.report("flushed", pass_name=pass_name, durable=bool(durable))

    def store_stats(self):
        return self.store.stats() if self.store else {}

    def moved_bytes(self, before):
        names = ("bytes_stored", "bytes_loaded_memory", "bytes_loaded_disk")
        after = self.store_stats()
        return sum(after.get(n, 0) - before.get(n, 0) for n in names)


def die_with_the_parent():
    """An engine whose run.py was killed must not stay behind."""
    pr_set_pdeathsig = 1
    ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)


def main():
    die_with_the_parent()
    job = json.load(sys.stdin)
    report = open_reports(job["log"])
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    try:
        player = Player(make_engine(job), job, report)
        # The first steps of a process pay for what is made once; nobody should measure that.
        player.ask("warm-up", [1] * (job["block_tokens"] - 1))
        report("ready")
        for pass_name in job["passes"]:
            player.play(pass_name)
        report("done")
    except BaseException as error:
        report("failed", error=repr(error))
        raise
    while True:
        time.sleep(3600)


if __name__ == "__main__":
    main()
