# SPDX-License-Identifier: Apache-2.0
"""A process that runs vLLM engines for the system tests, one after the other.

Commands are JSON lines on standard input: the name of a method of Host and its arguments. Answers
are JSON lines on standard output; everything else that is printed goes to the log named as the
first argument. Importing vLLM takes longer than starting a small engine, so one process serves
many tests. A second argument names another build of the extension, to be used instead.
"""

import ctypes
import gc
import importlib.util
import json
import os
import sys
import time
import traceback
from contextlib import contextmanager


class Fault(Exception):
    pass


class Faulty:
    """An object one of whose methods raises; `made` wraps what a method returns."""

    def __init__(self, real, broken, made=None):
        self.real, self.broken, self.made = real, broken, made or {}
        self.hits = 0

    def __getattr__(self, name):
        if name == self.broken:
            return self.fail
        value = getattr(self.real, name)
        if name not in self.made:
            return value
        return lambda *args, **kwargs: self.made[name](value(*args, **kwargs))

    def fail(self, *args, **kwargs):
        self.hits += 1
        raise Fault(self.broken)


class Host:
    def __init__(self):
        self.llm = None
        self.store = None
        self.heal = lambda: 0

    def start(self, model, store=None, policy="recompute", connector=None, **options):
        """`store`: the configuration of Tierce's connector. `connector`: another one."""
        if self.llm is not None:
            raise RuntimeError("an engine is running already")
        from vllm import LLM
        from vllm.config import KVTransferConfig

        options = {
            "model": model, "dtype": "float32", "seed": 0, "enforce_eager": True,
            "enable_prefix_caching": True, "block_size": 32, "max_model_len": 2048,
            "max_num_batched_tokens": 2048, "max_num_seqs": 4, "num_gpu_blocks_override": 200,
            "disable_log_stats": False, "skip_tokenizer_init": True, **options}
        if store is not None:
            if "node.socket" in store:  # else the connector takes vLLM's name, and `opened` another engine
                store = {"node.engine": f"engine of process {os.getpid()}", **store}
            connector = {"kv_connector": "TierceConnector", "kv_connector_module_path": "tierce.vllm",
                         "kv_connector_extra_config": store}
        if connector is not None:
            options["kv_transfer_config"] = KVTransferConfig(
                kv_role="kv_both", kv_load_failure_policy=policy, **connector)
        # vLLM collects garbage five times while it starts: most of the time that a small engine
        # needs, unless what was imported is left out.
        gc.freeze()
        self.store = store
        self.llm = LLM(**options)

    def generate(self, prompts, tokens=8, salts=None, wishes=None, adapters=None, together=False):
        """Answers in the order of the prompts. `salts` and `adapters`: one or None for each."""
        from vllm import SamplingParams
        from vllm.lora.request import LoRARequest

        nothing = [None] * len(prompts)
        sampling = SamplingParams(
            temperature=0.0, max_tokens=tokens, ignore_eos=True, detokenize=False,
            extra_args={"kv_transfer_params": {"tierce.report": True, **(wishes or {})}})
        asked = [{"prompt_token_ids": p, **({"cache_salt": s} if s else {})}
                 for p, s in zip(prompts, salts or nothing)]
        loras = [a and LoRARequest(*a) for a in adapters or nothing]
        size = len(asked) if together else 1
        out = []
        for at in range(0, len(asked), size):
            began = time.monotonic()
            for result in self.llm.generate(asked[at:at + size], sampling, use_tqdm=False,
                                            lora_request=loras[at:at + size]):
                out.append({"answer": list(result.outputs[0].token_ids),
                            "end": result.outputs[0].finish_reason,
                            "report": result.kv_transfer_params,
                            "cached": result.num_cached_tokens,
                            "seconds": time.monotonic() - began})
        return out

    def forget(self):
        """Empties vLLM's own prefix cache, not the store."""
        return self.llm.llm_engine.reset_prefix_cache()

    def step(self):
        """What a connector sends from the blocks of a request that has ended, a step after that lets go."""
        self.llm.llm_engine.step()

    def reset_connector(self):
        return self.llm.llm_engine.reset_prefix_cache(reset_connector=True)

    def metric(self, name):
        return sum(m.value for m in self.llm.get_metrics() if m.name == name)

    @contextmanager
    def opened(self):
        """The store that the connector holds open: an equal configuration is the same one."""
        from tierce import _core

        engine = _core.Engine.open(None, {k: str(v) for k, v in self.store.items()})
        try:
            yield engine
        finally:
            engine.close()

    def stats(self):
        with self.opened() as engine:
            return engine.stats()

    def flush(self):
        with self.opened() as engine:
            return engine.flush(120000)

    def delay_reads(self, seconds):
        """Reads of the disk take so much longer from now on; None: they hang until the next call.
        Needs the extension of faulty_core.c."""
        from tierce import _core

        delay = ctypes.CDLL(_core.__file__).tierce_test_reads
        delay(ctypes.c_int64(-1 if seconds is None else int(seconds * 1e9)))

    def break_call(self, part, name):
        """From now on a method of the connector's scheduler or worker half raises, or a call of the
        store: of its view, or "load.NAME" and "store.NAME" of a transfer."""
        from tierce.vllm import worker

        (half,) = worker._here.values()
        if part == "scheduler":
            half = self.llm.llm_engine.engine_core.engine_core.scheduler.connector.half
        if part != "store":
            faulty = Faulty(half, name)
            setattr(half, name, faulty.fail)
            self.heal = lambda: delattr(half, name) or faulty.hits
            return
        view, (kind, _, method) = half.view, name.rpartition(".")
        transfer = Faulty(None, method)

        def begun(real):
            if real is None:
                return None
            transfer.real = real
            return transfer

        half.view = Faulty(view, name, {kind + "_begin": begun} if kind else None)

        def heal():
            faulty, half.view = half.view, view
            transfer.real = None  # or it would keep the view busy
            return faulty.hits + transfer.hits

        self.heal = heal

    def mend_call(self):
        """Ends break_call; returns how often the call was made."""
        return self.heal()

    def tell_workers(self, method, arguments):
        """Calls a method of the worker extension in every worker."""
        return self.llm.collective_rpc(method, args=tuple(arguments))

    def stop(self):
        """Again after it was stopped does nothing."""
        if self.llm is None:
            return
        from vllm.distributed.parallel_state import (destroy_distributed_environment,
                                                     destroy_model_parallel)

        self.llm.llm_engine.engine_core.shutdown()
        self.llm = self.store = None
        destroy_model_parallel()
        destroy_distributed_environment()


def use_core(path):
    """Takes this build of the extension."""
    spec = importlib.util.spec_from_file_location("tierce._core", path)
    core = importlib.util.module_from_spec(spec)
    sys.modules["tierce._core"] = core
    spec.loader.exec_module(core)


def main():
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    log = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(log, 1)
    os.dup2(log, 2)
    if len(sys.argv) > 2:
        use_core(sys.argv[2])
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
