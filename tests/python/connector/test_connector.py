# SPDX-License-Identifier: Apache-2.0
"""The connector on vLLM's own configuration objects, without a running engine: the supported
setups, the messages for the others, and that vLLM is never harmed."""

import logging
import os
import re
import sys
from array import array
from copy import copy
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace as Thing

import pytest

os.environ.update({"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1",
                   "VLLM_CPU_KVCACHE_SPACE": "1"})
torch = pytest.importorskip("torch")
vllm = pytest.importorskip("vllm")

from vllm.config import KVTransferConfig, ParallelConfig  # noqa: E402
from vllm.distributed.kv_transfer.kv_connector.v1.base import (  # noqa: E402
    KVConnectorRole, supports_hma)
from vllm.engine.arg_utils import EngineArgs  # noqa: E402
from vllm.sampling_params import SamplingParams  # noqa: E402
from vllm.v1 import kv_cache_interface as kv  # noqa: E402
from vllm.v1.kv_hints import KvHintAction, KvHintsEnvelope  # noqa: E402
from vllm.v1.request import Request, RequestStatus  # noqa: E402

from tierce.vllm import connector as ours, identity, ranks, tracker, worker  # noqa: E402
from tierce.vllm.geometry import Numbering  # noqa: E402
from tierce.vllm.identity import ConfigError, Unsupported  # noqa: E402
from tierce.lookup_flags import LOOKUP_MEMORY_ONLY  # noqa: E402
from tierce.vllm.link import PREFETCH, VERIFY, Facts, Later, LinkError, Pending  # noqa: E402
from tierce.vllm.tracker import ChainPart, ChainRoot, LoadResult, Served  # noqa: E402

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "tools" / "demo"))

BLOCK = 32
FULL = dict(block_size=BLOCK, num_kv_heads=2, head_size=64, dtype=torch.float32)


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    from make_model import make_model

    model = make_model(str(tmp_path_factory.mktemp("model") / "m"), "test", 7)
    return EngineArgs(
        model=model, dtype="float32", block_size=BLOCK, skip_tokenizer_init=True,
        enforce_eager=True, kv_transfer_config=KVTransferConfig(
            kv_connector="TierceConnector", kv_connector_module_path="tierce.vllm",
            kv_role="kv_both", kv_load_failure_policy="recompute",
            kv_connector_extra_config={"memory.size": "4MiB", "disk.path": ""}),
    ).create_engine_config()


def cache(*specs, **changes):
    groups = [kv.KVCacheGroupSpec([f"layers.{i}.attn"], spec) for i, spec in enumerate(specs)]
    return kv.KVCacheConfig(num_blocks=8, kv_cache_tensors=[], kv_cache_groups=groups, **changes)


@pytest.fixture
def lines(caplog):
    caplog.set_level(logging.DEBUG, logger="tierce")
    logging.getLogger("tierce").propagate = True
    return lambda: [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]


def changed(config, part, **values):
    """The configuration with one of its parts changed."""
    out = copy(config)
    setattr(out, part, copy(getattr(config, part)))
    for name, value in values.items():
        object.__setattr__(getattr(out, part), name, value)
    return out


LATENT = {**FULL, "num_kv_heads": 1}
WINDOW = kv.SlidingWindowSpec(**FULL, sliding_window=128)
MAMBA = kv.MambaSpec(block_size=BLOCK, shapes=((4, 4),), dtypes=(torch.float32,))
CACHES = {
    "recurrent states with mamba_cache_mode 'none'": cache(MAMBA),
    "recurrent states of drafted tokens": cache(
        replace(MAMBA, mamba_cache_mode="align", num_speculative_blocks=1)),
    "kept longer for a draft model": cache(replace(WINDOW, extra_retained_tokens=8)),
    "a KV cache of kind CrossAttentionSpec": cache(
        kv.FullAttentionSpec(**FULL), kv.CrossAttentionSpec(**FULL)),
    "a KV cache of kind RSWASpec": cache(kv.RSWASpec(**FULL, rswa_window=64)),
    "of which the block sizes are not multiples": cache(
        kv.FullAttentionSpec(**FULL), WINDOW, hash_block_size=24),
    "sparse or compressed": cache(kv.MLAAttentionSpec(**LATENT, is_index_group_leader=True)),
    "sparse or compressed latent": cache(kv.MLAAttentionSpec(**LATENT, model_version="4")),
    "compressed latent attention": cache(kv.MLAAttentionSpec(**LATENT, tokens_per_state=4)),
    "no KV cache group that can be stored": cache(),
    "sliding window": cache(kv.FullAttentionSpec(**FULL, sliding_window=128)),
    "chunked": cache(kv.FullAttentionSpec(**FULL, attention_chunk_size=128)),
    "non-causal": cache(kv.FullAttentionSpec(**FULL, non_causal=True)),
    "two different block sizes": cache(kv.FullAttentionSpec(**{**FULL, "block_size": 64})),
    "block hashes that cover other numbers of tokens than the blocks": cache(kv.FullAttentionSpec(**FULL), hash_block_size=16),
}
CONFIGS = {
    "context parallelism": ("parallel_config", {
        "world_size": 2, "prefill_context_parallel_size": 2}),
    "2 workers, but tensor and pipeline parallelism require 1": (
        "parallel_config", {"world_size": 2}),
    "the executor external_launcher": ("parallel_config", {
        "world_size": 2, "tensor_parallel_size": 2,
        "distributed_executor_backend": "external_launcher"}),
    "workers on several hosts": ("parallel_config", {
        "world_size": 2, "tensor_parallel_size": 2, "nnodes": 2}),
    "a pooling model": ("model_config", {"runner_type": "pooling"}),
    "load format 'dummy'": ("load_config", {"load_format": "dummy"}),
    "several KV cache groups without vLLM's prefix cache": (
        "cache_config", {"enable_prefix_caching": False}, cache(kv.FullAttentionSpec(**FULL), WINDOW)),
}


def assert_off(config, cache_config, reason, lines):
    """Both halves are off; only the worker's says so, and says it once."""
    for role in (KVConnectorRole.SCHEDULER, KVConnectorRole.WORKER):
        c = ours.TierceConnector(config, role, cache_config)
        assert reason in c.off
        assert_harmless(c)
    assert [line for line in lines() if line.startswith("Tierce is off: ")] == (
        [f"Tierce is off: {c.off}"])
    assert len(lines()) == 1


def assert_harmless(c):
    """Every call of vLLM's, on a connector that is off."""
    request, output = Thing(request_id="r"), Thing()
    assert c.get_num_new_matched_tokens(request, 0) == (0, False)
    c.update_state_after_alloc(request, Thing(), 0)
    assert c.get_external_cache_hit_sources(request, 0) == {}
    meta = c.build_connector_meta(output)
    assert meta.requests == []
    c.register_kv_caches({})
    c.handle_preemptions(meta)
    c.bind_connector_metadata(meta)
    c.start_load_kv(None)
    c.wait_for_layer_load("layers.0.attn")
    c.save_kv_layer("layers.0.attn", None, None)
    c.wait_for_save()
    results = c.get_transfer_results(set())
    assert not results.finished_sending and not results.finished_recving
    assert c.get_block_ids_with_load_errors() == set()
    assert c.get_kv_connector_stats() is None
    assert c.build_connector_worker_meta() is None
    c.clear_connector_metadata()
    c.update_connector_output(Thing(kv_connector_worker_meta=None))
    assert c.request_finished(request, []) == (False, None)
    assert c.request_finished_all_groups(request, ([1], [2])) == (False, None)
    assert not c.reset_cache()
    assert list(c.take_events()) == []
    c.shutdown()


@pytest.mark.parametrize("reason", CACHES)
def test_caches_that_are_not_served(config, reason, lines):
    assert_off(config, CACHES[reason], reason, lines)


@pytest.mark.parametrize("reason", CONFIGS)
def test_engines_that_are_not_served(config, reason, lines):
    part, values, *caches = CONFIGS[reason]
    full = cache(kv.FullAttentionSpec(**FULL))
    assert_off(changed(config, part, **values), caches[0] if caches else full, reason, lines)


# ---- the table of README.md

ROOT = Path(__file__).resolve().parents[3]


def works_with():
    """The rows of the table: (what, today, what shows it). tools/works_with writes the third cell."""
    text = (ROOT / "README.md").read_text().partition("| vLLM with |")[2].partition("\n<!--")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines()[2:]]
    return [(*row[:2], row[-1]) for row in rows]


@pytest.mark.parametrize("row", works_with(), ids=lambda row: row[0])
def test_what_the_readme_says_works_or_does_not(config, row, lines):
    what, today, shown = row
    if "**does not work**" not in today:
        for test in shown.split(", "):
            path, _, name = test.strip("`").partition("::")
            assert re.search(rf"^def {name}\(", (ROOT / path).read_text(), re.M), what
        return
    reason = shown.strip("`")
    if reason.startswith("KV in "):
        layer = Thing(data_ptr=lambda: 1, device=Thing(type=reason.split()[2]))
        with pytest.raises(Unsupported, match=reason):
            worker.Geometry.of({"layers.0.attn": layer}, 8)
    elif reason.startswith("speculative decoding with "):
        test_speculation_with_a_draft_model_is_not_served(config, reason.split("'")[1], False)
    elif reason in CACHES:
        assert_off(config, CACHES[reason], reason, lines)
    else:
        test_engines_that_are_not_served(config, reason, lines)


def test_strict_is_a_start_that_fails(config, lines):
    strict = changed(config, "kv_transfer_config", kv_connector_extra_config={"strict": True})
    for role in (KVConnectorRole.SCHEDULER, KVConnectorRole.WORKER):
        with pytest.raises(ConfigError, match="Tierce: strict: .*kind RSWASpec"):
            ours.TierceConnector(strict, role, CACHES["a KV cache of kind RSWASpec"])
    assert len(lines()) == 1 and lines()[0].startswith("vLLM does not start, because of Tierce: strict: ")


@pytest.mark.parametrize("extra, reason", [({"memory.sise": "1GiB"}, "the nearest name is"),
                                           ({"memory.size": "much"}, "memory.size"),
                                           ({"memory": {"size": "1GiB"}}, "is a section"),
                                           *(({name: "/nowhere/x"}, "/nowhere/x") for name in ("plugins.start", "config"))])
def test_an_invalid_configuration_is_a_start_that_fails(config, lines, extra, reason):
    wrong = changed(config, "kv_transfer_config", kv_connector_extra_config=extra)
    for role in (KVConnectorRole.SCHEDULER, KVConnectorRole.WORKER):
        with pytest.raises(ConfigError, match="Tierce: ") as failure:
            ours.TierceConnector(wrong, role, cache(kv.FullAttentionSpec(**FULL)))
        assert reason in str(failure.value)
    assert len(lines()) == 1 and reason in lines()[0]


def test_the_environment_names_the_file(config, lines, monkeypatch, tmp_path):
    """As with every program; the key `config` comes before it."""
    monkeypatch.setenv("TIERCE_CONFIG", "/nowhere/y.yaml")
    with pytest.raises(ConfigError, match="/nowhere/y.yaml: cannot be read"):
        ours.TierceConnector(config, KVConnectorRole.SCHEDULER, cache(kv.FullAttentionSpec(**FULL)))
    path = tmp_path / "strict.yaml"
    path.write_text("strict: true\n")
    assert worker.Settings.from_extra_config({"config": str(path)}).check()
    monkeypatch.setenv("TIERCE_CONFIG", str(path))
    assert worker.Settings.from_extra_config({}).check()
    monkeypatch.setenv("TIERCE_CONFIG", "")
    assert not worker.Settings.from_extra_config({}).check()


def test_hybrid_models_keep_their_memory_manager():
    assert supports_hma(ours.TierceConnector)


def test_tensor_and_pipeline_parallelism_make_a_world():
    for size in ("tensor_parallel_size", "pipeline_parallel_size"):
        parallel = ParallelConfig(**{size: 2})
        assert parallel.world_size == 2
        ranks.require_supported(Thing(parallel_config=parallel))


def test_workers_on_several_hosts_are_refused_by_name(config):
    c = ours.TierceConnector(config, KVConnectorRole.WORKER, cache(kv.FullAttentionSpec(**FULL)))
    measures = [worker.Measures([64], "b", (2,), (1,), "float32", place=host) for host in "ab"]
    with pytest.raises(Unsupported, match="^workers on several hosts, or in containers"):
        c.half.register(ranks.Ranks(0, 2), measures)


@pytest.mark.parametrize("sizes", [{"prefill_context_parallel_size": 2},
                                   {"tensor_parallel_size": 2, "decode_context_parallel_size": 2},
                                   {"prefill_context_parallel_size": 2, "decode_context_parallel_size": 2}])
def test_context_parallelism_of_vllm_is_refused_by_name(sizes):
    with pytest.raises(Unsupported, match="^context parallelism$"):
        ranks.require_supported(Thing(parallel_config=ParallelConfig(**sizes)))


def drafting(config, method, modules=1):
    """The configuration with a method of speculative decoding, whose drafter has so many modules."""
    out = copy(config)
    eagle = method in ("eagle", "eagle3", "mtp", "dflash")
    out.speculative_config = Thing(method=method, use_eagle=lambda: eagle, num_speculative_tokens=modules,
                                   use_multi_module_mtp=lambda: modules > 1,
                                   draft_model_config=config.model_config)
    return out


@pytest.mark.parametrize("method, served", [
    ("ngram", True), ("suffix", True), ("eagle", True), ("eagle3", True), ("mtp", True), ("dflash", False),
    ("medusa", False), ("draft_model", False)])
def test_speculation_with_a_draft_model_is_not_served(config, method, served):
    changed_config = drafting(config, method)
    c = ours.TierceConnector(changed_config, KVConnectorRole.SCHEDULER,
                             cache(kv.FullAttentionSpec(**FULL)))
    assert (c.off is None) == served
    assert served or f"speculative decoding with '{method}'; supported methods: ngram, suffix, eagle, eagle3, mtp" in c.off


def test_a_drafter_that_reads_several_tokens_ahead_is_refused(config):
    c = ours.TierceConnector(drafting(config, "mtp", 2), KVConnectorRole.SCHEDULER,
                             cache(kv.FullAttentionSpec(**FULL)))
    assert c.off == "a drafter that reads several tokens ahead"


def test_the_drafter_is_a_part_of_the_identity(config, tmp_path):
    """Its configuration, its method and its weights."""
    other = copy(config.model_config)
    other.hf_config = copy(other.hf_config)
    other.hf_config.num_hidden_layers = 1
    eagle, changed_drafter = drafting(config, "eagle"), drafting(config, "eagle")
    changed_drafter.speculative_config.draft_model_config = other
    every = [config, eagle, drafting(config, "eagle3"), changed_drafter]
    assert len({identity.effective_model(c) for c in every}) == 4
    assert identity.effective_model(drafting(config, "ngram")) == identity.effective_model(config)
    folders = {config.model_config.model: "aa", "/drafter": "bb"}
    core = Thing(fingerprint=lambda folder, _: folders[folder])
    assert identity.weights_of_engine(core, config) == "aa"
    seen = {identity.weights_of_engine(core, eagle)}
    folders[config.model_config.model] = "bb"
    seen.add(identity.weights_of_engine(core, eagle))
    assert len(seen) == 2 and all(len(text) == 64 for text in seen)


def test_with_a_drafter_a_hit_ends_before_the_last_found_block(config):
    c = ours.TierceConnector(drafting(config, "eagle"), KVConnectorRole.SCHEDULER,
                             cache(kv.FullAttentionSpec(**FULL)))
    link = Link()
    c.half.find_link = lambda: link
    tokens, meta = ask(c, request_of(), list(range(1, 20)))
    assert tokens == 17 * BLOCK  # of the 18 that may be loaded
    assert (meta.requests[0].load.from_block, meta.requests[0].load.to_block) == (0, 17)
    # Nothing of the prompt is stored again, neither the block that is computed again nor the tail.
    assert meta.requests[0].save is None or meta.requests[0].save.to_block == 16
    # vLLM holds all but the last of them.
    assert c.get_num_new_matched_tokens(request_of(name="s"), 17 * BLOCK) == (0, False)
    assert c.get_num_new_matched_tokens(request_of(name="t"), 16 * BLOCK) == (BLOCK, False)


@pytest.mark.parametrize("version, warnings", [("0.32.0", 0), ("0.32.9", 0), ("0.33.0", 1),
                                               ("0.31.2", 1), ("0.320.0", 1), ("1.0", 1)])
def test_another_vllm_is_one_warning(config, monkeypatch, lines, version, warnings):
    monkeypatch.setattr(vllm, "__version__", version)
    for role in (KVConnectorRole.SCHEDULER, KVConnectorRole.WORKER):
        assert ours.TierceConnector(config, role, cache(kv.FullAttentionSpec(**FULL))).off is None
    assert [version in line for line in lines()] == [True] * warnings


# ---- a step of the scheduler, and one of the worker


def request_of(tokens=600, name="r", **changes):
    return Request(**{"request_id": name, "prompt_token_ids": list(range(tokens)),
                      "sampling_params": SamplingParams(max_tokens=4), "pooling_params": None,
                      **changes})


class Link:
    """Stands for the worker half; finds everything, in memory."""

    def __init__(self, load_async=False):
        self.parts, self.known = [], Facts(None, 8, False, False, False, load_async, 0)
        self.notes = []

    def facts(self):
        return self.known

    def lookup(self, session, part, from_block, to_block, flags):
        self.parts.append(part)
        return to_block, to_block

    def release(self, session, keep_chain):
        pass

    def note(self, served):
        self.notes.append(served)


@pytest.fixture(params=[False, True], ids=["sync", "async"])
def scheduler(request, config, monkeypatch):
    c = ours.TierceConnector(config, KVConnectorRole.SCHEDULER, cache(kv.FullAttentionSpec(**FULL)))
    link = Link(request.param)
    c.half.find_link = lambda: link
    c.link = link
    return c


def scheduled(request, block_ids, computed, count):
    """vLLM's output of a step that schedules one new request; an asynchronous load has none."""
    new = [] if count == 0 else [Thing(req_id=request.request_id, block_ids=(block_ids,),
                                       num_computed_tokens=computed)]
    none = Thing(req_ids=[], new_block_ids=[], num_computed_tokens=[], resumed_req_ids=set())
    return Thing(scheduled_new_reqs=new, scheduled_cached_reqs=none,
                 num_scheduled_tokens={request.request_id: count}, finished_req_ids=set())


def ask(c, request, block_ids):
    """From the lookup to the step's metadata, as vLLM's scheduler does it."""
    tokens, asynchronous = c.get_num_new_matched_tokens(request, 0)
    c.update_state_after_alloc(request, Thing(get_block_ids=lambda: (block_ids,)), tokens)
    c.get_external_cache_hit_sources(request, tokens)
    count = 0 if asynchronous else request.num_tokens - tokens
    return tokens, c.build_connector_meta(scheduled(request, block_ids, tokens, count))


def test_a_promise_is_passed_on(scheduler):
    ids = list(range(1, 20))
    tokens, meta = ask(scheduler, request_of(), ids)
    assert tokens == 18 * BLOCK
    (told,) = meta.requests
    assert (told.load.from_block, told.load.to_block, told.load.allowed) == (0, 18, True)
    assert list(worker.int32(told.block_ids)) == ids
    assert not scheduler.promised


@pytest.mark.parametrize("broken", ["allocated", "step"])
def test_a_promise_that_cannot_be_kept_is_reported(scheduler, broken, lines):
    def fail(*args):
        raise RuntimeError("broken")

    setattr(scheduler.half, broken, fail)
    ids = list(range(1, 20))
    tokens, meta = ask(scheduler, request_of(), ids)
    assert tokens == 18 * BLOCK
    (told,) = [r for r in meta.requests if r.load is not None]
    assert not told.load.allowed
    assert list(worker.int32(told.block_ids)) == ids and told.load.blocks == len(ids)
    assert told.load.asynchronous == scheduler.link.known.load_async
    assert len([line for line in lines() if "Tierce failed in" in line]) == 1
    # The next step knows nothing of it.
    delattr(scheduler.half, broken)
    assert scheduler.build_connector_meta(scheduled(request_of(), [], 0, 0)).requests == []


@pytest.mark.parametrize("failed, again", [(0, 18 * BLOCK), (1, 0)])
def test_a_load_that_failed_is_not_tried_again(scheduler, failed, again):
    """vLLM asks anew after a failed asynchronous load, and a store may lie again."""
    request, ids = request_of(), list(range(1, 20))
    assert ask(scheduler, request, ids)[0] == 18 * BLOCK
    results = {"r": LoadResult(memory=18 - failed, failed=failed)}
    scheduler.update_connector_output(
        Thing(kv_connector_worker_meta=ours.TierceWorkerMetadata(results)))
    assert ask(scheduler, request, ids)[0] == again
    assert ask(scheduler, request_of(name="other"), ids)[0] == 18 * BLOCK


def test_a_request_whose_end_vllm_does_not_report(scheduler):
    """The lists of ended requests end it, unless a new request has its number; a new one has an identity of its own."""
    half, ids = scheduler.half, list(range(1, 20))
    request, other = request_of(), request_of(name="other")
    for each in request, other:
        ask(scheduler, each, ids)
    request.status = RequestStatus.FINISHED_ABORTED
    step = scheduled(other, [], 0, 0)
    step.finished_req_ids = {"r", "other", "unknown"}
    scheduler.build_connector_meta(step)
    assert list(half.live) == ["other"]
    salted = request_of(name="other", cache_salt="another client's")
    before = half.live["other"][1]
    ask(scheduler, salted, ids)
    assert half.live["other"][0] is salted and half.live["other"][1].root != before.root


def noted(c, request):
    c.request_finished(request, [])
    return c.link.notes[-1]


def test_a_served_request_is_noted(scheduler):
    request = request_of(name="cmpl-1")
    ask(scheduler, request, list(range(1, 20)))
    results = {"cmpl-1": LoadResult(memory=10, disk=8)}
    scheduler.update_connector_output(
        Thing(kv_connector_worker_meta=ours.TierceWorkerMetadata(results)))
    # After a preemption vLLM asks again; this does not explain the first hit.
    scheduler.get_num_new_matched_tokens(request, 3 * BLOCK)
    note = noted(scheduler, request)
    assert note.session > 0
    assert note._replace(session=0) == Served(
        "cmpl-1", 0, 600, BLOCK, local_tokens=0, looked_tokens=18 * BLOCK, found_tokens=18 * BLOCK,
        loaded_tokens=18 * BLOCK, limit=tracker.LIMIT_NONE)
    assert scheduler.request_finished(request, []) == (False, None)
    assert len(scheduler.link.notes) == 1


def test_a_request_that_ends_in_the_step_of_its_load_is_noted_with_it(scheduler):
    request = request_of(name="cmpl-1")
    ask(scheduler, request, list(range(1, 20)))
    scheduler.request_finished(request, [])
    assert not scheduler.link.notes
    results = {"cmpl-1": LoadResult(memory=10, disk=8)}
    scheduler.update_connector_output(
        Thing(kv_connector_worker_meta=ours.TierceWorkerMetadata(results)))
    (note,) = scheduler.link.notes
    assert note.loaded_tokens == 18 * BLOCK
    # A step without a report of the load, as after an abortion.
    other = request_of(name="cmpl-2")
    ask(scheduler, other, list(range(1, 20)))
    scheduler.request_finished(other, [])
    ask(scheduler, request_of(name="cmpl-3"), list(range(1, 20)))
    assert [n.name for n in scheduler.link.notes] == ["cmpl-1", "cmpl-2"]


def served_with(c, request, local=0, room=None):
    """The note of a request: vLLM holds `local` tokens of it, and loads at most `room`."""
    tokens, _ = c.get_num_new_matched_tokens(request, local)
    c.update_state_after_alloc(request, Thing(get_block_ids=lambda: (list(range(1, 20)),)),
                               tokens if room is None else min(tokens, room))
    return noted(c, request)


def test_a_note_says_why_not_more_was_loaded(scheduler, monkeypatch):
    assert served_with(scheduler, request_of(BLOCK)).limit == tracker.LIMIT_SHORT
    note = served_with(scheduler, request_of(name="x" * 200), local=18 * BLOCK)
    assert (note.limit, note.local_tokens, note.looked_tokens) == (tracker.LIMIT_LOCAL, 18 * BLOCK, 0)
    assert note.name == "x" * 128
    skips = request_of()
    skips.kv_transfer_params = {"tierce.skip_load": True}
    assert served_with(scheduler, skips).limit == tracker.LIMIT_OPTION
    assert served_with(scheduler, request_of(), room=BLOCK).limit == tracker.LIMIT_ROOM
    assert noted(scheduler, begun(scheduler)).limit == tracker.LIMIT_ENDED

    def fail(*args):
        raise LinkError("gone")

    monkeypatch.setattr(scheduler.link, "lookup", fail)
    note = served_with(scheduler, request_of())
    assert (note.limit, note.found_tokens, note.looked_tokens) == (tracker.LIMIT_FAILED, 0, 18 * BLOCK)
    monkeypatch.setattr(scheduler.link, "note", fail)
    scheduler.request_finished(begun(scheduler), [])
    assert scheduler.errors == 0


def begun(c):
    """A request that ends while its first lookup is pending."""
    request = request_of()
    c.half.tracker(request)
    return request


def test_a_request_that_is_ignored_is_noted(scheduler, monkeypatch):
    def reject(*args):
        raise Unsupported("of its kind")

    monkeypatch.setattr(identity, "chain_root", reject)
    note = served_with(scheduler, request_of())
    assert (note.limit, note.tokens) == (tracker.LIMIT_UNSUPPORTED, 600)
    assert not scheduler.half.ignored
    running, ended = request_of(name="running"), request_of(name="ended")
    ended.is_finished = lambda: True
    for each in running, ended:
        scheduler.half.tracker(each)
    scheduler.half.end_unreported({"running", "ended"})
    assert list(scheduler.half.ignored) == ["running"]
    monkeypatch.undo()
    assert scheduler.half.tracker(running) and not scheduler.half.ignored


class PrefetchingLink(Link):
    """The prefetch that a lookup begins is through at the third question."""

    def __init__(self):
        super().__init__()
        self.known = replace(self.known, load_prefetch=True)
        self.flags = []

    def lookup(self, session, part, from_block, to_block, flags):
        self.flags.append(flags)
        if len(self.flags) < 3:
            raise Later
        return super().lookup(session, part, from_block, to_block, flags)


def test_a_request_waits_for_its_prefetch_once(config):
    c = ours.TierceConnector(config, KVConnectorRole.SCHEDULER, cache(kv.FullAttentionSpec(**FULL)))
    link = PrefetchingLink()
    c.half.find_link = lambda: link
    request = request_of()
    assert c.get_num_new_matched_tokens(request, 0) == (None, False)
    assert c.get_num_new_matched_tokens(request, 0) == (None, False)
    assert c.get_num_new_matched_tokens(request, 0) == (18 * BLOCK, False)
    assert [bool(flags & PREFETCH) for flags in link.flags] == [True, False, False]
    (part,) = link.parts
    assert part.from_block == 18 and part.data == b""  # the chain went with the first question


class AskingLink(PrefetchingLink):
    """A remote store is asked first, and then a prefetch begins."""

    def lookup(self, session, part, from_block, to_block, flags):
        if not self.flags:
            self.flags.append(flags)
            raise Pending
        return super().lookup(session, part, from_block, to_block, flags)


def test_a_request_waits_for_a_remote_store_before_its_prefetch(config):
    c = ours.TierceConnector(config, KVConnectorRole.SCHEDULER, cache(kv.FullAttentionSpec(**FULL)))
    link = AskingLink()
    c.half.find_link = lambda: link
    request = request_of()
    assert c.get_num_new_matched_tokens(request, 0) == (None, False)
    assert c.get_num_new_matched_tokens(request, 0) == (None, False)
    assert c.get_num_new_matched_tokens(request, 0) == (18 * BLOCK, False)
    assert [bool(flags & PREFETCH) for flags in link.flags] == [True, True, False]


def test_with_policy_fail_memory_gets_verified_chunks_first(config):
    c = ours.TierceConnector(config, KVConnectorRole.SCHEDULER, cache(kv.FullAttentionSpec(**FULL)))
    link = PrefetchingLink()
    c.half.find_link = lambda: link
    c.half.memory_only = True
    request = request_of()
    assert c.get_num_new_matched_tokens(request, 0) == (None, False)
    assert c.get_num_new_matched_tokens(request, 0) == (None, False)
    assert c.get_num_new_matched_tokens(request, 0) == (18 * BLOCK, False)
    known = PREFETCH | VERIFY | LOOKUP_MEMORY_ONLY
    assert [flags & known for flags in link.flags] == [
        PREFETCH | VERIFY, LOOKUP_MEMORY_ONLY, LOOKUP_MEMORY_ONLY]


def test_embeddings_are_left_alone(scheduler, lines):
    for i in range(2):
        request = request_of(name=str(i), prompt_token_ids=None,
                             prompt_embeds=torch.zeros(600, 256))
        tokens, meta = ask(scheduler, request, list(range(1, 20)))
        assert tokens == 0 and meta.requests == [] and scheduler.link.parts == []
        assert scheduler.request_finished(request, []) == (False, None)
    assert [line for line in lines() if "embeddings" in line] == [
        "Tierce ignores a request: the prompt holds embeddings"]


def test_tokens_reach_the_chain(scheduler):
    tokens, meta = ask(scheduler, request_of(cache_salt="salt"), list(range(1, 20)))
    assert tokens == 18 * BLOCK
    (part,) = scheduler.link.parts
    assert isinstance(part.root, ChainRoot) and part.root.salt
    assert part == ChainPart(part.root, 0, array("i", range(18 * BLOCK)).tobytes(), False)


@pytest.mark.parametrize("hashes, promised", [(18, 18 * BLOCK), (17, 0), (0, 0)])
def test_hashes_reach_the_chain_if_there_is_one_for_each_block(scheduler, hashes, promised):
    scheduler.link.known = replace(scheduler.link.known, hashed=True)
    request = request_of()
    request.block_hashes = [bytes([i]) * 32 for i in range(hashes)]
    assert ask(scheduler, request, list(range(1, 20)))[0] == promised
    data = [(part.from_block, part.data, part.hashed) for part in scheduler.link.parts]
    assert data == ([(0, b"".join(request.block_hashes), True)] if promised else [])


def test_layers_without_a_cache_are_passed_over(config):
    c = ours.TierceConnector(config, KVConnectorRole.WORKER, cache(kv.FullAttentionSpec(**FULL)))
    done = []
    c.half.numbering = Numbering({"layers.0.attn": 0}, 1)
    c.half.part = Thing(store=range(1))
    c.half.loads = c.half.stores = [Thing(next_layer=0, advance=done.append)]
    for name in ("vision.0.attn", "layers.0.attn"):
        c.half.wait_layer(name)
        c.half.save_layer(name)
    assert done == [1, 1]


@pytest.mark.parametrize("role, loads, saves", [
    ("kv_both", True, True), ("kv_consumer", True, False), ("kv_producer", False, True)])
def test_roles_decide_what_is_done(config, role, loads, saves):
    transfer = copy(config.kv_transfer_config)
    transfer.kv_role = role
    roled = copy(config)
    roled.kv_transfer_config = transfer
    c = ours.TierceConnector(roled, KVConnectorRole.SCHEDULER, cache(kv.FullAttentionSpec(**FULL)))
    c.half.find_link = Link
    tokens, meta = ask(c, request_of(), list(range(1, 20)))
    assert (tokens > 0) == loads
    assert any(r.load is not None for r in meta.requests) == loads
    # Where all of it was found there is nothing to save.
    assert any(r.save is not None for r in meta.requests) == (saves and not loads)


@pytest.mark.parametrize("option, tag", [
    ("team a", "team a"), ("é" * 100, "?" * 64), (7, ""), (None, "")])
def test_tags_go_with_lookups_and_saves(scheduler, option, tag):
    request = request_of()
    request.kv_transfer_params = {"tierce.tag": option}
    _, meta = ask(scheduler, request, list(range(1, 20)))
    assert [part.tag for part in scheduler.link.parts] == [tag]
    assert meta.requests and all(r.tag == tag for r in meta.requests)


@pytest.mark.parametrize("options, hint", [
    ({}, 0), ({"tierce.session": "closed", "tierce.ttl": 5}, 1), ({"tierce.session": "open"}, 2),
    ({"tierce.session": "open", "tierce.returns_in": 60}, (3, 60000)), ({"tierce.returns_in": 60.5}, (4, 60500)),
    ({"tierce.returns_in": 1e300}, (4, 2**32 - 1)), ({"tierce.ttl": 300}, 5),
    ({"tierce.ttl": 0}, 1), ({"tierce.session": "ajar"}, 0), ({"tierce.ttl": "5"}, 0), ({"tierce.returns_in": -1}, 0),
    ({"tierce.returns_in": True}, 0), ({"tierce.ttl": float("nan")}, 0)])
def test_hints_go_with_loads_and_saves(scheduler, options, hint):
    request = request_of()
    request.kv_transfer_params = options
    _, meta = ask(scheduler, request, list(range(1, 20)))
    expected = hint if isinstance(hint, tuple) else (hint, 0)
    assert meta.requests and all(r.hint == expected for r in meta.requests)


@pytest.mark.parametrize("options, actions, hint", [
    ({}, [], 0), ({}, [("tierce.hint", "1", {"tierce.session": "open"})], 2),
    ({}, [("pin", "1", {"tierce.session": "closed"}), ("tierce.hint", "1", {"tierce.returns_in": 30})], (3, 30000)),
    ({"tierce.ttl": 5}, [("tierce.hint", "1", {"tierce.session": "open"})], 5), ({}, [("tierce.hint", "1", "open")], 0),
    ({}, [("tierce.hint", "2", {"tierce.session": "open"})], 0), ({}, [("tierce.hint", "1", {"tierce.ttl": "x"})], 0)])
def test_hints_in_an_envelope_of_vllm(scheduler, options, actions, hint):
    envelope = KvHintsEnvelope("1", "m", [KvHintAction(str(i), *action) for i, action in enumerate(actions)])
    request = request_of(kv_hints=envelope)
    request.kv_transfer_params = options
    _, meta = ask(scheduler, request, list(range(1, 20)))
    assert meta.requests and all(r.hint == (hint if isinstance(hint, tuple) else (hint, 0)) for r in meta.requests)


def test_options_of_any_shape(scheduler):
    for i, options in enumerate([None, {}, {"tierce.skip_load": "yes"}, {"x": 1}, [1], "x"]):
        request = request_of(name=str(i))
        request.kv_transfer_params = options
        tokens, _ = ask(scheduler, request, list(range(1, 20)))
        assert tokens == (0 if isinstance(options, (list, str)) else 18 * BLOCK)
    for i, options in enumerate([{"tierce.skip_load": True}, {"tierce.skip_save": True}]):
        request = request_of(name=f"skip{i}")
        request.kv_transfer_params = options
        tokens, meta = ask(scheduler, request, list(range(1, 20)))
        assert tokens == (0 if i == 0 else 18 * BLOCK)
        assert all(r.save is None for r in meta.requests) or i == 0


def test_failures_are_asked_for_after_the_loads_have_ended():
    asked = []
    half = Thing(end_loads=lambda: asked.append("end"), take_failed=lambda: asked.append("failed") or set(),
                 take_received=set)
    connector = ours.TierceConnector.__new__(ours.TierceConnector)
    connector.half, connector.off, connector._connector_metadata = half, None, None
    connector.get_transfer_results(set())
    assert asked[0] == "end" and "failed" in asked


def test_what_depends_on_the_length_is_a_part_of_the_model(config):
    """LongRoPE and Llama 4 derive from it what they do at every position."""
    def model(max_len, **fields):
        made = Thing(hf_config=Thing(to_dict=lambda: fields), dtype="f", quantization=None, max_model_len=max_len,
                     override_generation_config={}, try_get_generation_config=dict, multimodal_config=None)
        return identity.effective_model(Thing(model_config=made, cache_config=Thing(), speculative_config=None))

    rope = {"rope_parameters": {"rope_type": "longrope", "original_max_position_embeddings": 4096}}
    assert model(4096, **rope) != model(8192, **rope) == model(16384, **rope)
    llama = {"model_type": "llama4", "text_config": {"model_type": "llama4_text"}}
    assert model(8192, **llama) == model(32768, **llama) != model(65536, **llama)
    assert model(4096, model_type="llama") == model(65536, model_type="llama")


def test_options_of_images_are_a_part_of_the_model(config):
    def model(**options):
        made = Thing(hf_config=Thing(to_dict=dict), dtype="f", quantization=None, max_model_len=1,
                     multimodal_config=Thing(**options))
        return identity.effective_model(Thing(model_config=made, cache_config=Thing(), speculative_config=None))

    texts = {model(), model(mm_processor_kwargs={"size": 1}), model(mm_processor_kwargs={"size": 2}),
             model(video_pruning_rate=0.5)}
    assert len(texts) == 4 and model(mm_processor_kwargs={}) == model()


def test_the_hit_rate_in_the_log_of_vllm():
    from tierce.vllm.stats import TierceStats
    stats = TierceStats({"lookup_tokens": 300, "hit_tokens": 100}).aggregate(
        TierceStats({"lookup_tokens": 100, "loads": 1}))
    assert stats.reduce() == {"Tierce lookup tokens": 400, "Tierce hit tokens": 100,
                              "Tierce loads": 1, "Tierce hit rate %": 25.0}
    assert TierceStats({"loads": 1}).reduce() == {"Tierce loads": 1}
    failed = TierceStats({"lookup_tokens": 100, "hit_tokens": 90, "failed_tokens": 90})
    assert failed.reduce()["Tierce hit rate %"] == 0.0


def test_a_lost_node_is_a_metric(config):
    from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
    from tierce.vllm.stats import NODE, TierceProm, TierceStats

    registry = CollectorRegistry()
    types = {each: partial(each, registry=registry) for each in (Counter, Gauge, Histogram)}
    metrics = TierceProm(config, types, ["engine"], {0: ["0"]})

    def value():
        return registry.get_sample_value("vllm:tierce_node_connected", {"engine": "0"})

    metrics.observe({"loads": 1})
    assert value() is None
    # Of several ranks, the one without a node counts.
    stats = TierceStats({NODE: 1, "loads": 1}).aggregate(TierceStats({NODE: 0})).aggregate(TierceStats({NODE: 1}))
    assert stats.reduce() == {"Tierce loads": 1, "Tierce node connected": 0}
    metrics.observe(stats.data)
    assert value() == 0
    metrics.observe({NODE: 1})
    assert value() == 1 and TierceStats({NODE: 1}).reduce() == {}


def test_groups_are_a_label_of_one_metric(config):
    from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
    from tierce.vllm.stats import TierceProm, TierceStats, group_counter

    registry = CollectorRegistry()
    types = {each: partial(each, registry=registry) for each in (Counter, Gauge, Histogram)}
    metrics = TierceProm(config, types, ["engine"], {0: ["0"], 1: ["1"]})
    stats = TierceStats({group_counter(0, "full"): 6, group_counter(1, "window 48"): 3, "loads": 1})
    assert stats.reduce() == {"Tierce group blocks of 0 full": 6, "Tierce group blocks of 1 window 48": 3,
                              "Tierce loads": 1}
    metrics.observe(stats.data, 1)
    metrics.observe({group_counter(0, "full"): 2}, 1)
    got = {group: registry.get_sample_value("vllm:tierce_loaded_group_blocks_total", {"engine": "1", "group": group})
           for group in ("0 full", "1 window 48", "2 state")}
    assert got == {"0 full": 8, "1 window 48": 3, "2 state": None}
    assert registry.get_sample_value("vllm:tierce_loads_total", {"engine": "1"}) == 1
