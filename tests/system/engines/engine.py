# SPDX-License-Identifier: Apache-2.0
"""A process that runs vLLM engines for the system tests, one after the other.

Commands are JSON lines on standard input: the name of a method of Host and its arguments. Answers
are JSON lines on standard output; everything else that is printed goes to the log named as the
first argument. A second argument names another build of the extension, to be used instead.
Importing vLLM takes longer than starting a small engine, so one process serves many tests, and with
`fork` as its argument it only imports, and forks hosts and vLLM's HTTP servers.
"""

import ctypes
import gc
import importlib.util
import json
import os
import signal
import socket
import sys
import time
import traceback
from contextlib import contextmanager, nullcontext


POLL_SECONDS = 1e-4
IMAGE_PIXELS = 224  # in each direction


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


def with_images(images):
    """A prompt's fields for images of noise, each of a seed. vLLM identifies an image by its name, if it has one."""
    import numpy
    from PIL import Image

    names = [name for _, name in images]
    noise = [numpy.random.default_rng(seed).integers(0, 256, (IMAGE_PIXELS, IMAGE_PIXELS, 3), numpy.uint8)
             for seed, _ in images]
    return {"multi_modal_data": {"image": [Image.fromarray(each) for each in noise]},
            **({"multi_modal_uuids": {"image": names}} if any(names) else {})}


class Dropping:
    """A view that stores nothing."""

    def __init__(self, view):
        self.view = view

    def __getattr__(self, name):
        return getattr(self.view, name)

    def store_begin(self, *_):
        return None


class Host:
    def __init__(self):
        self.llm = None
        self.store = None
        self.heal = lambda: 0

    def start(self, model, store=None, policy="recompute", connector=None, tier=None, region=64 << 20, patch=None,
              encoder=None, encoder_role="ec_both", events=None, **options):
        """`store`: the configuration of Tierce's connector. `connector`: another one. `tier`: that of Tierce
        as a secondary tier of vLLM's own, whose host region has so many bytes. `encoder`: that of Tierce's encoder cache.
        `events`: of vLLM's publisher of KV events. `patch`: a module whose `applied` changes vLLM during the start."""
        if self.llm is not None:
            raise RuntimeError("an engine is running already")
        from vllm import LLM
        from vllm.config import ECTransferConfig, KVEventsConfig, KVTransferConfig

        options = {
            "model": model, "dtype": "float32", "seed": 0, "enforce_eager": True,
            "enable_prefix_caching": True, "block_size": 32, "max_model_len": 2048,
            "max_num_batched_tokens": 2048, "max_num_seqs": 4, "num_gpu_blocks_override": 200,
            "disable_log_stats": False, "skip_tokenizer_init": True,
            # On processors with AVX512-BF16 vLLM takes this type for recurrent states in any case; the block size follows from it.
            "mamba_ssm_cache_dtype": "float32",
            # On processors with AMX vLLM takes another one for latent attention (MLA), which rejects float32. Models
            # without it have their own in any case.
            "attention_backend": "CPU_MLA", **options}
        if store is not None:
            if "node.socket" in store:  # else the connector takes vLLM's name, and `opened` another engine
                store = {"node.engine": f"engine of process {os.getpid()}", **store}
            connector = {"kv_connector": "TierceConnector", "kv_connector_module_path": "tierce.vllm",
                         "kv_connector_extra_config": store}
        if tier is not None:
            import tiering_on_cpu

            connector = tiering_on_cpu.connector(tier, region)
            store = {name: value for name, value in tier.items() if "." in name}
        if connector is not None:
            options["kv_transfer_config"] = KVTransferConfig(
                kv_role="kv_both", kv_load_failure_policy=policy, **connector)
        if encoder is not None:
            options["ec_transfer_config"] = ECTransferConfig(
                ec_connector="TierceECConnector", ec_connector_module_path="tierce.vllm", ec_role=encoder_role,
                ec_connector_extra_config=encoder)
        if events is not None:
            options["kv_events_config"] = KVEventsConfig(**events)
        self.store = encoder if store is None else store
        with importlib.import_module(patch).applied() if patch else nullcontext():
            self.llm = LLM(**options)

    def generate(self, prompts, tokens=8, salts=None, wishes=None, adapters=None, images=None, together=False):
        """Answers in the order of the prompts. `salts` and `adapters`: one or None for each. `images`: for each a list of
        (seed, name or None)."""
        from vllm import SamplingParams
        from vllm.lora.request import LoRARequest

        nothing = [None] * len(prompts)
        sampling = SamplingParams(
            temperature=0.0, max_tokens=tokens, ignore_eos=True, detokenize=False,
            extra_args={"kv_transfer_params": {"tierce.report": True, **(wishes or {})}})
        asked = [{"prompt_token_ids": p, **({"cache_salt": s} if s else {}), **(with_images(i) if i else {})}
                 for p, s, i in zip(prompts, salts or nothing, images or nothing)]
        loras = [a and LoRARequest(*a) for a in adapters or nothing]
        size = len(asked) if together else 1
        out = []
        for at in range(0, len(asked), size):
            began = time.monotonic()
            for result in self.llm.generate(asked[at:at + size], sampling, use_tqdm=False,
                                            lora_request=loras[at:at + size]):
                out.append({"id": result.request_id, "answer": list(result.outputs[0].token_ids),
                            "end": result.outputs[0].finish_reason,
                            "report": result.kv_transfer_params,
                            "cached": result.num_cached_tokens,
                            "seconds": time.monotonic() - began})
        return out

    def generate_from_embeddings(self, tokens, seed, count=8):
        """An answer to so many random embeddings instead of tokens."""
        import torch
        from vllm import SamplingParams

        config = self.llm.llm_engine.model_config
        embeddings = torch.randn((tokens, config.get_hidden_size()), generator=torch.Generator().manual_seed(seed))
        sampling = SamplingParams(temperature=0.0, max_tokens=count, ignore_eos=True, detokenize=False)
        (result,) = self.llm.generate([{"prompt_embeds": embeddings.to(config.dtype)}], sampling, use_tqdm=False)
        return {"answer": list(result.outputs[0].token_ids), "end": result.outputs[0].finish_reason}

    def forget(self):
        """Empties vLLM's own prefix cache, not the store."""
        return self.llm.llm_engine.reset_prefix_cache()

    def forget_images(self):
        """Empties vLLM's own caches of prefixes and of encoder outputs, and counts calls of the encoder from now on."""
        core = self.llm.llm_engine.engine_core.engine_core
        model = core.model_executor.driver_worker.worker.model_runner.model
        if not hasattr(self.llm, "encodings"):
            real = model.embed_multimodal

            def counted(**inputs):
                self.llm.encodings += 1
                return real(**inputs)

            model.embed_multimodal = counted
        self.llm.encodings = 0
        self.llm.llm_engine.reset_encoder_cache()
        return self.llm.llm_engine.reset_prefix_cache()

    def encodings(self):
        return self.llm.encodings

    def reasons(self, name, label="reason"):
        """A metric by one of its labels."""
        return {m.labels[label]: m.value for m in self.llm.get_metrics() if m.name == name}

    def step(self):
        """What a connector sends from the blocks of a request that has ended, a step after that lets go."""
        self.llm.llm_engine.step()

    def reset_connector(self):
        return self.llm.llm_engine.reset_prefix_cache(reset_connector=True)

    def tier_calls(self):
        """Waits until vLLM's offloading has nothing left to do. Returns how long calls of the tier have taken since the
        last time."""
        import tiering_on_cpu

        connector = self.llm.llm_engine.engine_core.engine_core.scheduler.connector
        until = time.monotonic() + 60
        while connector.has_pending_push_work():
            if time.monotonic() > until:
                raise TimeoutError("jobs of the tier")
            self.llm.llm_engine.step()
        return tiering_on_cpu.take_calls()

    def metric(self, name):
        return sum(m.value for m in self.llm.get_metrics() if m.name == name)

    @contextmanager
    def opened(self):
        """The store that the connector holds open: an equal configuration is the same one."""
        from tierce import _core

        engine = _core.Engine.open(None, {k: str(v) for k, v in self.store.items()
                                          if not k.startswith("handover.")})
        try:
            yield engine
        finally:
            engine.close()

    def stats(self):
        with self.opened() as engine:
            return engine.stats()

    def group_blocks(self):
        """The loaded blocks of each KV cache group, from vLLM's metrics."""
        return {m.labels["group"]: m.value for m in self.llm.get_metrics()
                if m.name == "vllm:tierce_loaded_group_blocks"}

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

    def group_views(self):
        from tierce.vllm import worker

        (half,) = worker._here.values()
        return half.view

    def rotate_groups(self, places):
        """Until mend_call, loads write the blocks of these groups to each other's blocks."""
        views = self.group_views()
        begin = views.load_begin

        def rotated(chain, from_unit, to_unit, tables, firsts, session):
            tables = list(tables)
            moved = [tables[at] for at in places[1:] + places[:1]]
            for at, ids in zip(places, moved):
                tables[at] = ids
            return begin(chain, from_unit, to_unit, tables, firsts, session)

        views.load_begin = rotated
        self.heal = lambda: delattr(views, "load_begin")

    def count_loads(self):
        """Until mend_call, which returns the blocks of each load by group."""
        views, loads = self.group_views(), []
        begin = views.load_begin

        def counted(chain, from_unit, to_unit, tables, firsts, session):
            loads.append([part.all_blocks(to_unit) - first for part, first in zip(views.parts, firsts)])
            return begin(chain, from_unit, to_unit, tables, firsts, session)

        def heal():
            del views.load_begin
            return loads

        views.load_begin, self.heal = counted, heal

    def watch_drafts(self):
        """Until mend_call, which returns the tokens that a drafter proposed for each request in each step."""
        scheduler, drafts = self.llm.llm_engine.engine_core.engine_core.scheduler, []
        take = scheduler.update_draft_token_ids

        def watched(proposed):
            drafts.extend(list(draft) for draft in proposed.draft_token_ids)
            return take(proposed)

        def heal():
            del scheduler.update_draft_token_ids
            return drafts

        scheduler.update_draft_token_ids, self.heal = watched, heal

    def load_last_blocks(self):
        """From now on a hit includes the last block that was found, although a drafter has read the token after it."""
        half = self.llm.llm_engine.engine_core.engine_core.scheduler.connector.half
        half.before_end = lambda request, tracker, local, found, in_memory: (found, in_memory)

    def scribble(self, before=0):
        """Until mend_call, a load whose last block of full attention is partly filled is followed by other KV in this block:
        behind the end of the hit, and in so many tokens `before` it. vLLM itself writes them, because only it knows where a
        token lies in a block. mend_call returns the number of these blocks."""
        import torch

        views, layers = self.group_views(), self.llm.llm_engine.vllm_config.compilation_config.static_forward_context
        begin, spoiled = views.load_begin, []

        def scribbled(chain, from_unit, to_unit, tables, firsts, session):
            load = begin(chain, from_unit, to_unit, tables, firsts, session)
            end = load.end

            def ended():
                del load.end
                origins = end()
                for part, ids in zip(views.parts, tables):
                    whole, size = part.whole_blocks(to_unit), part.group.block_tokens
                    if part.group.kind != "full" or whole == part.all_blocks(to_unit):
                        continue
                    first = to_unit * views.table.unit_tokens - whole * size - before
                    slots = ids[whole] * size + torch.arange(first, size)
                    for layer in map(layers.get, part.group.layer_names):
                        noise = torch.randn((size - first, layer.num_kv_heads, layer.head_size)).to(layer.kv_cache.dtype)
                        layer.impl.do_kv_cache_update(layer, noise, noise, layer.kv_cache, slots)
                    spoiled.append(ids[whole])
                return origins

            load.end = ended
            return load

        views.load_begin = scribbled
        self.heal = lambda: delattr(views, "load_begin") or len(spoiled)

    def blend(self, prompt, segments, share, salt):
        """The output of a prompt that is blended, and the distance of its keys and values from those of the full computation,
        by the length of these."""
        from dataclasses import replace

        from tierce.vllm import worker

        (half,) = worker._here.values()
        end, kept, size = half.end_step, [], half.namespace["block_tokens"]

        def kept_step():
            for request in half.requests:
                ids = list(memoryview(request.block_ids).cast("i"))[:len(prompt) // size]
                kept.append([half.blend_layers.cells.read(cache[ids], part).float() for cache in half.blend_layers.caches
                             for part in range(2)])
            return end()

        half.end_step, half.gate = kept_step, replace(half.gate, share=share)
        try:
            (out,) = self.generate([prompt], tokens=2, salts=[salt], wishes={"tierce.segments": segments})
            self.generate([prompt], tokens=2, salts=[f"full {salt}"], wishes={"tierce.skip_load": True})
        finally:
            del half.end_step
        blended, full = kept
        far = sum(((a - b) ** 2).sum() for a, b in zip(blended, full)) / sum((b ** 2).sum() for b in full)
        return out, float(far.sqrt())

    def groups(self):
        """Kind, window and tokens of a block of each group, of which there are several."""
        return [[part.group.kind, part.group.window, part.group.block_tokens] for part in self.group_views().parts]

    def forget_stores(self, at):
        """Until mend_call, nothing of this group is stored."""
        part = self.group_views().parts[at]
        views = part.view, part.inside
        part.view, part.inside = (view and Dropping(view) for view in views)

        def heal():
            part.view, part.inside = views

        self.heal = heal

    def die_in_store(self, at):
        """This process and its children end in the middle of the next store of a group."""
        part = self.group_views().parts[at]
        part.view = Faulty(part.view, None, {"store_begin": lambda real: real and Faulty(
            real, None, {"layer": lambda _: os.killpg(0, signal.SIGKILL)})})

    def kill_workers_at_once(self):
        """From now on, vLLM kills its workers when it ends them. It would wait 8 seconds for a worker that waits for one
        that was killed."""
        from vllm.v1.executor.multiproc_executor import MultiprocExecutor

        MultiprocExecutor._ensure_worker_termination = staticmethod(
            lambda processes: [process.kill() for process in processes])

    def mend_call(self):
        """Ends break_call, and returns how often the call was made, or one of the others."""
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
        self.heal = lambda: 0  # it may keep views, and with them the store, open
        destroy_model_parallel()
        destroy_distributed_environment()


def preload():
    """Does once what each host, and each of its workers, would do when it starts: it takes longer than a small engine
    lives."""
    gc.disable()
    for name in ("vllm.entrypoints.llm", "vllm.entrypoints.launchers.api_server.entry", "vllm.v1.worker.cpu_worker",
                 "vllm.model_executor.models.llama", "vllm.model_executor.models.deepseek_v2",
                 "vllm.model_executor.layers.quantization.online.base"):
        importlib.import_module(name)
    from vllm.distributed.device_communicators import shm_broadcast
    from vllm.model_executor.models import registry
    from vllm.platforms import current_platform

    # Engine and workers poll for messages with sched_yield(). With more of them than processors, Linux 6.18 gave
    # nothing else on the machine a processor for 40 s (a trace of the scheduler showed it).
    shm_broadcast.sched_yield = lambda: time.sleep(POLL_SECONDS)
    # vLLM inspects the class of a model in another process, which would import everything again.
    registry._run_in_subprocess = lambda inspect: inspect()
    # Each worker searches all modules for kernels to replace.
    current_platform.register_triton_kernel_overrides()
    current_platform.register_triton_kernel_overrides = lambda: None
    # vLLM calls gc.unfreeze() and then collects garbage, several times in the life of an engine: most of the time that
    # a small engine needs, unless what was imported is omitted.
    gc.freeze()
    gc.freeze = gc.unfreeze = lambda: None
    gc.enable()


def fork_workers():
    """Workers, and the engine of an HTTP server, are forked from what this process is now, with all that it has
    imported. vLLM would start each from nothing."""
    from multiprocessing import forkserver, get_context, resource_tracker, set_forkserver_preload, util

    from vllm.v1.engine import utils
    from vllm.v1.executor import multiproc_executor

    def fork(path, arguments, descriptors):
        pid = os.fork()
        if pid == 0:
            exec(arguments[-1])  # the program that Python would have started: multiprocessing's own
            os._exit(0)
        return pid

    set_forkserver_preload([])
    resource_tracker.ensure_running()
    start, util.spawnv_passfds = util.spawnv_passfds, fork
    forkserver.ensure_running()
    util.spawnv_passfds = start
    for module in (multiproc_executor, utils):
        module.get_mp_context = lambda: get_context("forkserver")


def use_core(path):
    """Takes this build of the extension."""
    spec = importlib.util.spec_from_file_location("tierce._core", path)
    core = importlib.util.module_from_spec(spec)
    sys.modules["tierce._core"] = core
    spec.loader.exec_module(core)


def fork_others(requests):
    """Forks a process for each request, a JSON list of a function and its arguments, with the socket that becomes its
    standard input and output; answers with its process id."""
    preload()
    while True:
        request, commands, _, _ = socket.recv_fds(requests, 4096, 1)
        if not request:
            return
        pid = os.fork()
        if pid == 0:
            os.setsid()
            os.dup2(commands[0], 0)
            os.dup2(commands[0], 1)
            os.close(commands[0])
            name, *arguments = json.loads(request)
            globals()[name](*arguments)
            os._exit(0)
        os.close(commands[0])
        requests.send(str(pid).encode())


def print_to(log):
    log = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(log, 1)
    os.dup2(log, 2)


def serve_http(log, environment, arguments):
    """Runs vLLM's HTTP server; says how it ended."""
    child = os.fork()
    if child > 0:
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)
        return
    os.environ.update(environment)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    print_to(log)
    fork_workers()
    from vllm.entrypoints.launchers.api_server.entry import main

    sys.argv = ["api_server", *arguments]
    main()
    sys.exit()


def serve(log, core=None):
    """Carries out the commands on standard input until it ends."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    print_to(log)
    if core is not None:
        use_core(core)
    fork_workers()
    host = Host()
    for line in sys.stdin:
        name, arguments = json.loads(line)
        try:
            answer = {"value": getattr(host, name)(**arguments)}
        except BaseException:
            answer = {"error": traceback.format_exc()}
        answers.write(json.dumps(answer) + "\n")


if __name__ == "__main__":
    if sys.argv[1] == "fork":
        fork_others(socket.socket(fileno=0))
    else:
        preload()
        serve(*sys.argv[1:])
