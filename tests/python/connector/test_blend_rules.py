# SPDX-License-Identifier: Apache-2.0
"""Blended prompts without a running vLLM: the gate, the segments of a request, what is promised, and what may be stored."""

import json
import math
from array import array
from types import SimpleNamespace as Thing

import pytest

pytest.importorskip("vllm")

import torch  # noqa: E402

from tierce import _core  # noqa: E402
from tierce.vllm.blend import read_gate  # noqa: E402
from tierce.vllm.blend_layers import Layers, bytes_of  # noqa: E402
from tierce.vllm.identity import ConfigError, Unsupported  # noqa: E402
from tierce.vllm.link import Facts, Later, Pending  # noqa: E402
from tierce.vllm.scheduler import SchedulerHalf  # noqa: E402
from tierce.vllm.tracker import (  # noqa: E402
    LIMIT_BLENDED, BlendSpec, ChainRoot, LoadResult, LoadSpec, ReqMeta, RequestTracker, Rules, Taint)
from tierce.vllm.transfer import ORIGIN_MEMORY, Transfer  # noqa: E402
from tierce.vllm.worker import WorkerHalf  # noqa: E402

BLOCK, SEPARATOR = 16, [99, 98]
RULES = Rules(BLOCK, 4)


# ---- the rotation


class Rotary:
    """A model's rotary embedding, as vLLM calls it: pairs of halves, in double precision."""

    is_neox_style = True

    def __init__(self, frequencies, length):
        self.frequencies, self.cos_sin_cache = frequencies, range(length)

    def __call__(self, positions, queries, keys):
        assert int(positions.max()) < len(self.cos_sin_cache)
        angles = positions.double()[:, None] * self.frequencies
        first, second = keys.double().view(len(keys), -1, 2, len(self.frequencies)).unbind(2)
        cos, sin = angles.cos()[:, None], angles.sin()[:, None]
        out = torch.stack((first * cos - second * sin, second * cos + first * sin), 2)
        return queries, out.reshape(keys.shape).to(keys.dtype)


def layers_with(rotary, rope, dtype):
    out = Layers.__new__(Layers)
    out.layers = [Thing(self_attn=Thing(rotary_emb=rotary, kv_size=2 * 64, q_size=2 * 64, head_dim=64))]
    out.dtype, out.type_name, out.rope = dtype, str(dtype).removeprefix("torch."), json.dumps(rope)
    return out


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_rotation_is_compared_at_great_distances(dtype):
    plain = {"rope_type": "default", "rope_theta": 10000.0}
    frequencies = 10000.0 ** -(torch.arange(0, 64, 2).double() / 64)
    layers_with(Rotary(frequencies, 8192), plain, dtype).require_rotation()
    layers_with(Rotary(frequencies, 60), plain, dtype).require_rotation()  # a model with a short context
    slower = torch.where(frequencies < 0.002, frequencies / 2, frequencies)  # as scaling for long contexts
    for other in (slower, frequencies * 1.001, frequencies / 2):
        with pytest.raises(Unsupported, match="differs from its rope_parameters"):
            layers_with(Rotary(other, 8192), plain, dtype).require_rotation()


# ---- the tokens to recompute


@pytest.fixture
def load():
    """A load of the library into memory of the host."""
    engine = _core.Engine.open(None, {"memory.size": "4MiB", "disk.path": ""})
    memory = torch.zeros(1024, dtype=torch.uint8)
    view = engine.view({"weights": "aa", "model": "m", "kv_dtype": "float32", "quantization": "", "layout": "l", "layer_count": 1,
                        "cell_bytes": [1024], "block_tokens": BLOCK, "chunk_blocks": 1, "algo": "sha256"})
    view.set_paged([memory.data_ptr()], [1024], 1)
    chain = view.chain()
    chain.append(array("i", range(BLOCK)))
    load = view.load_begin(chain, 0, 1, array("i", [0]))
    yield load
    load.abort()
    engine.close()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_the_tokens_that_differ_most_are_computed(load, dtype):
    """Of 120 tokens, 100 to 119 and every fourth other one are not reused."""
    generator = torch.Generator().manual_seed(7)
    layers = layers_with(None, {}, dtype)
    layers.device = torch.device("cpu")
    is_reused = torch.tensor([at % 4 != 3 and at < 100 for at in range(120)])
    rows = is_reused.nonzero()[:, 0]
    for share in (0, 0.15, 0.5, 1):
        computed, stored = (torch.randn(count, 2, 24, generator=generator).to(dtype) for count in (120, 150))
        active = torch.arange(30, 150)
        stored[70:90] = computed[40:60]  # equal distances
        stored[90, 1, 3] = computed[80, 0, 0] = float("nan")
        pair = computed[rows].contiguous(), stored[active[rows]].contiguous()
        most = _core.differing_keys(*map(bytes_of, pair), layers.type_name, 48, share)
        assert len(most) == math.ceil(75 * share)
        chosen = layers.chosen(load, active, computed, stored, is_reused, share).tolist()
        assert chosen == sorted([*(~is_reused).nonzero()[:, 0].tolist(), *rows[most].tolist()])
        assert share == 0 or {60, 80} <= {*chosen}


# ---- the gate


def quality(tmp_path, name="quality.json", **changes):
    rows = [{"share": 15, "agreement": 95.0, "kl": 0.02}, {"share": 15, "agreement": 93.0, "kl": 0.03, "text": "plans"},
            {"share": 30, "agreement": 97.0, "kl": 0.01}]
    path = tmp_path / name
    path.write_text(json.dumps({"tierce_blend_quality": 1, "weights": "aa", "check_layer": 1, "date": "2026-11-29",
                                "rows": rows, **changes}))
    return str(path)


def test_the_gate_has_the_worst_text_of_the_share(tmp_path):
    gate = read_gate(quality(tmp_path), "aa", 0.15, 90)
    assert (gate.agreement, gate.kl, gate.check_layer, gate.share) == (93.0, 0.03, 1, 0.15)
    assert "at least 93.00 %" in gate.words and gate.words.startswith("15 % of")
    finer = quality(tmp_path, rows=[{"share": 12.5, "agreement": 95.0, "kl": 0.02}])
    assert read_gate(finer, "aa", 0.125, 90).words.startswith("12.5 % of")


def test_without_a_measurement_the_gate_is_closed(tmp_path):
    for path, weights, share, reason in (("", "aa", 0.15, "blend.quality is empty"),
                                         (quality(tmp_path), "bb", 0.15, "of other weights"),
                                         (quality(tmp_path), "aa", 0.2, "no measurement of blend.share 20%; it has 15%, 30%")):
        with pytest.raises(Unsupported, match=reason):
            read_gate(path, weights, share, 90)


def test_a_measurement_below_the_bound_keeps_the_gate_closed(tmp_path):
    path = quality(tmp_path)
    assert read_gate(path, "aa", 0.15, 93).agreement == 93.0
    with pytest.raises(Unsupported, match="the agreement with plans is 93.00 % .blend.quality .*quality.json'., below "
                                          "blend.agreement, 93.5 %; measure a greater blend.share, or lower the bound"):
        read_gate(path, "aa", 0.15, 93.5)
    assert read_gate(path, "aa", 0.3, 93.5).agreement == 97.0  # of another share
    almost = quality(tmp_path, "almost", rows=[{"share": 15, "agreement": 89.9999, "kl": 0.02}])
    with pytest.raises(Unsupported, match="the agreement is 89.99 % .*, below blend.agreement, 90 %"):
        read_gate(almost, "aa", 0.15, 90)


@pytest.mark.parametrize("bound, blends", [("93%", True), ("0.93", True), ("93.01%", False)])
def test_the_bound_of_the_operator(tmp_path, caplog, bound, blends):
    values = {"blend.enabled": "true", "blend.quality": quality(tmp_path), "blend.share": "0.15", "blend.agreement": bound,
              "blend.separator": ""}
    worker = WorkerHalf.__new__(WorkerHalf)
    worker.engine, worker.weights, worker.hashed = Thing(param=values.__getitem__), "aa", False
    worker.memory, worker.ranks, worker.part = Thing(kind="host"), Thing(count=1), Thing(layer_count=2)
    worker.vllm_config = Thing(speculative_config=None, lora_config=None,
                               kv_transfer_config=Thing(kv_load_failure_policy="recompute"))
    worker.open_layers, worker.view_of = object, list
    with caplog.at_level("INFO", "tierce"):
        worker.prepare_blend()
    assert (worker.blend_layers is not None, worker.unblended) == (blends, not blends)
    if blends:
        assert "Tierce blends prompts: 15 % of the reused tokens" in caplog.text and "at least 93.00 %" in caplog.text
    else:
        assert "Tierce does not blend prompts: the agreement with plans is 93.00 %" in caplog.text
        assert "below blend.agreement, 93.01 %" in caplog.text


def test_the_bound_has_a_default():
    engine = _core.Engine.open(None, {"memory.size": "4MiB", "disk.path": ""})
    assert engine.param("blend.agreement") == "0.9"
    engine.close()


def test_a_file_that_is_no_measurement_fails_the_start(tmp_path):
    wrong = tmp_path / "wrong"
    wrong.write_text("[]")
    for path, reason in ((str(tmp_path / "missing"), "No such file"), (str(wrong), "not a file of tools/kv_blend.py"),
                         (quality(tmp_path, "rows", rows=[{"share": "x"}]), "not a file of"),
                         (quality(tmp_path, "nan", rows=[{"share": 15, "agreement": float("nan"), "kl": 0}]), "not a file of"),
                         (quality(tmp_path, "kl", rows=[{"share": 15, "agreement": 99, "kl": float("inf")}]), "not a file of"),
                         (quality(tmp_path, "format", tierce_blend_quality=2), "has format 2")):
        with pytest.raises(ConfigError, match=reason):
            read_gate(path, "aa", 0.15, 0)


# ---- the scheduler half


class Link:
    """A worker half whose store holds the chains of `held`, or raises it."""

    def __init__(self, held=()):
        self.held, self.asked, self.released = held, [], []

    def lookup(self, session, part, from_block, to_block, flags):
        self.asked.append((session, list(memoryview(part.data).cast("i")), from_block, to_block))
        if isinstance(self.held, Exception):
            raise self.held
        tokens = self.asked[-1][1]
        equal = [sum(1 for _ in iter_equal(tokens, chain)) // BLOCK for chain in self.held]
        return min(to_block, max([0, *equal])), 0

    def release(self, session, keep_chain):
        self.released.append(session)


def iter_equal(a, b):
    for x, y in zip(a, b):
        if x != y:
            return
        yield x


def half_of(link):
    config = Thing(cache_config=Thing(block_size=BLOCK), parallel_config=Thing(world_size=1), speculative_config=None,
                   kv_transfer_config=Thing(is_kv_consumer=True, is_kv_producer=True, kv_load_failure_policy="recompute"))
    half = SchedulerHalf(config, lambda: link)
    half.link, half.facts, half.rules = link, Facts(blend={"separator": SEPARATOR}), RULES
    return half


LEAD, DOCUMENTS = list(range(20)), [list(range(100 * i, 100 * i + 50)) for i in range(1, 4)]
QUESTION = [7, 7, 7]


def request_of(marks=None, documents=DOCUMENTS):
    tokens = LEAD + [t for each in documents for t in SEPARATOR + each] + SEPARATOR + QUESTION
    return Thing(request_id="r", prompt_token_ids=tokens, num_prompt_tokens=len(tokens), mm_features=[],
                 block_hashes=[bytes([i % 256]) * 32 for i in range(len(tokens) // BLOCK)],
                 kv_transfer_params=None if marks is None else {"tierce.segments": marks})


def planned(half, request, local=0, load=None):
    tracker = RequestTracker("r", 1, ChainRoot(), request.num_prompt_tokens)
    tracker.load = load
    return tracker, half.plan_blend(request, tracker, local)


def test_documents_after_the_exact_prefix_are_promised():
    lead = LEAD + SEPARATOR
    link = Link([lead + DOCUMENTS[1], lead + DOCUMENTS[2]])
    half, request = half_of(link), request_of()
    tracker, tokens = planned(half, request, local=1)
    # 22 tokens of the lead and 50 of a document are 4 whole blocks, of which 42 tokens belong to the document.
    starts = [22 + 50 + 2, 22 + 2 * (50 + 2)]
    assert tokens == starts[1] + 42 - BLOCK
    assert [reused[:2] + reused[3:] for reused in tracker.load.blend.reused] == [(s, s + 42, 22) for s in starts]
    assert tracker.load.tokens(BLOCK) == tokens and not tracker.load.asynchronous
    assert [asked[1] for asked in link.asked] == [(lead + each)[:4 * BLOCK] for each in DOCUMENTS[1:]]
    assert {reused[2] for reused in tracker.load.blend.reused} == {asked[0] for asked in link.asked}
    # vLLM's cache must not give these blocks to another request, and the exact ones have their names.
    assert request.block_hashes[0] == bytes(32) and request.block_hashes[1] != bytes([1]) * 32
    half.end_blend(tracker)
    assert sorted(link.released) == sorted(asked[0] for asked in link.asked)


def test_marks_of_the_request_instead_of_separators():
    link = Link([DOCUMENTS[0], [0]])
    tokens = DOCUMENTS[1] + DOCUMENTS[0] + QUESTION
    request = Thing(**{**vars(request_of()), "prompt_token_ids": tokens, "num_prompt_tokens": len(tokens),
                       "kv_transfer_params": {"tierce.segments": [[0, 50], [50, 100]]}})
    tracker, promised = planned(half_of(link), request)
    assert promised == 50 + 48 and tracker.load.blend.reused == [(50, 98, tracker.blended.sessions[1], 0)]


@pytest.mark.parametrize("marks", [[[0, 0]], [[5, 3]], [[0, 999]], [[0]], "x", 7, [[-1, 4]], [["a", "b"]]])
def test_invalid_marks_are_ignored(marks, caplog):
    half = half_of(Link([LEAD]))
    assert planned(half, request_of(marks))[1] == 0
    assert "tierce.segments of a request is ignored" in caplog.text


def test_nothing_is_blended_if_nothing_is_found():
    half, request = half_of(Link()), request_of()
    before = list(request.block_hashes)
    assert planned(half, request)[1] == 0 and request.block_hashes == before
    half.link.held = Later()
    with pytest.raises(Later):
        planned(half, request)


def test_all_segments_are_looked_up_before_the_first_wait():
    """Lookups in a remote store run at the same time, instead of one after another."""
    half = half_of(Link(Pending()))
    with pytest.raises(Pending):
        planned(half, request_of())
    assert len(half.link.asked) == len(DOCUMENTS) - 1


def test_a_prompt_with_too_many_segments_is_not_blended(caplog):
    for count in (300, 4097):
        half, request = half_of(Link([LEAD])), request_of(documents=[[5]] * count)
        load = LoadSpec(0, 1, 1, True)
        tracker, tokens = planned(half, request, load=load)
        assert tokens == 0 and tracker.load is load and not half.link.asked
    assert "a prompt with 300 segments is not blended" in caplog.text
    assert "the segments of a prompt are ignored" in caplog.text


def test_exact_kv_is_used_where_there_is_any():
    lead = LEAD + SEPARATOR
    half, request = half_of(Link([lead + DOCUMENTS[1], lead + DOCUMENTS[2]])), request_of()
    exact = 7  # blocks: up to token 112, inside the second document
    tracker, tokens = planned(half, request, load=LoadSpec(0, exact, exact, True))
    assert tracker.load.blend.exact_block == exact and tracker.load.blend.reused[0][0] == exact * BLOCK
    assert tracker.load.blend.reused[0][3] == 22 + exact * BLOCK - 74


def test_a_document_in_the_last_partial_block_is_not_blended():
    """vLLM has no hash of that block that could be renamed, and would later cache it under its ordinary name."""
    lead = LEAD + SEPARATOR
    document = DOCUMENTS[1][:4 * BLOCK - len(lead)]
    half, request = half_of(Link([lead + document])), request_of(documents=[DOCUMENTS[0], document])
    exact, before = len(request.block_hashes), list(request.block_hashes)
    assert exact * BLOCK < len(lead + DOCUMENTS[0] + SEPARATOR + document)
    for load, local in ((None, exact), (LoadSpec(0, exact, exact, True), 0)):
        tracker, tokens = planned(half, request, local, load)
        assert (tokens, tracker.load, request.block_hashes) == (0, load, before)
    # One block less, and its name is changed.
    assert planned(half, request, exact - 1)[1] > 0 and request.block_hashes[-1] != before[-1]


def test_a_reset_of_the_weights_ends_blending():
    half = half_of(Link([LEAD + SEPARATOR + DOCUMENTS[1]]))
    half.era = b"x"
    assert planned(half, request_of())[1] == 0


def test_only_the_exact_prefix_is_stored():
    half = half_of(Link([LEAD + SEPARATOR + each for each in DOCUMENTS]))
    request = request_of()
    tracker, tokens = planned(half, request, load=LoadSpec(0, 4, 4, False))
    assert tracker.allow_load(RULES, tokens, range(12)) and tracker.exact_tokens == 4 * BLOCK
    assert tracker.plan_save(RULES, tokens, request.num_prompt_tokens).to_block == 4
    tracker.count_loaded(LoadResult(memory=4, blended=6))
    assert tracker.note_end(RULES).limit == LIMIT_BLENDED
    # After a preemption, vLLM's cache has the request's own blended blocks.
    tracker.load = None
    tokens = half.plan_blend(request, tracker, 6)
    assert tokens > 0 and tracker.allow_load(RULES, tokens, range(12))
    assert tracker.load.blend.exact_block == 6 and tracker.exact_tokens == tracker.named_blocks * BLOCK == 4 * BLOCK


def test_vllm_takes_fewer_tokens():
    spec = BlendSpec(2, array("i", range(100)).tobytes(), [(40, 60, 5, 8), (70, 100, 6, 8)])
    tracker = RequestTracker("r", 1, ChainRoot(), 200)
    for taken, reused, blocks, lacks in ((50, [(40, 50, 5, 8)], 4, 14), (32, None, 2, 0), (90, [*spec.reused[:1], (70, 90, 6, 8)], 6, 6)):
        tracker.load = LoadSpec(0, 7, 7, False, lacks=12, blend=spec)
        assert tracker.allow_load(RULES, taken, range(7))
        load = tracker.load
        assert (load.blend and load.blend.reused, load.to_block, load.lacks) == (reused, blocks, lacks)


def step_of(half, scheduled, computed):
    """The message to the worker half for a step with these requests, all of which have run before."""
    cached = Thing(req_ids=list(computed), new_block_ids=[None] * len(computed), resumed_req_ids=(),
                   num_computed_tokens=list(computed.values()))
    return half.step(Thing(num_scheduled_tokens=scheduled, finished_req_ids=(), scheduled_cached_reqs=cached,
                           scheduled_new_reqs=()))


def test_a_prefix_that_the_same_step_computes_is_not_read():
    half = half_of(Link())
    for first, computed, refused in ((1, {"a": 0, "b": 40}, True), (0, {"a": 0, "b": 40}, False), (1, {"a": 16, "b": 40}, False),
                                     (1, {"b": 40}, True)):
        half.live = {name: (Thing(request_id=name, num_tokens=64, mm_features=[]),
                            RequestTracker(name, 1, ChainRoot(), 64, skip_save=True, block_ids=array("i", [3, *rest])))
                     for name, rest in (("a", [4]), ("b", [5, 6]))}
        half.live["b"][1].load = LoadSpec(first, 3, 3, False, allowed=True, blend=BlendSpec(1, b"", [(16, 32, 5, 0)]))
        (sent,) = step_of(half, {"a": 16, "b": 10}, computed)
        assert (sent.req_id, sent.load.allowed, sent.load.blend.early) == ("b", True, refused)
        worker = worker_of(sent)
        worker.blend_prompts()
        # The block before the load is valid, and vLLM must not compute it again for all requests that have it.
        assert worker.error_blocks == ({5, 6} if refused else set())


# ---- the worker half


class Handle:
    """A load of the library that notes its end; `origins` None: it fails."""

    def __init__(self, log, name, origins):
        self.log, self.name, self.origins = log, name, origins

    def layer(self, number):
        if self.origins is None:
            raise RuntimeError("the checksum is wrong")

    def end(self):
        self.log.append(f"{self.name} ends")
        return self.origins

    def abort(self):
        pass


def worker_of(*requests, failing=()):
    """A worker half that loads and blends; loads of requests in `failing` fail."""
    worker = WorkerHalf.__new__(WorkerHalf)
    worker.requests, worker.loads, worker.taint = list(requests), [], Taint()
    worker.error_blocks, worker.results, worker.log = set(), {}, []
    worker.numbering, worker.blend_layers = Thing(count=2), object()

    def begin_load(request):
        name, count = request.req_id, request.load.blocks
        return Transfer(request, Handle(worker.log, name, None if name in failing else bytes([ORIGIN_MEMORY]) * count))

    worker.begin_load = begin_load
    worker.blend_rest = lambda request: worker.log.append(f"{request.req_id} is blended")
    worker.loads = [begin_load(r) for r in requests if r.load.blend is None]
    return worker


def loading(name, blocks, first, exact=None):
    """A request that loads the blocks from the `first` on; those from `exact` on are blended."""
    blend = None if exact is None else BlendSpec(exact, b"", [(exact * BLOCK, len(blocks) * BLOCK, 5, 0)])
    return ReqMeta(name, 1, None, array("i", blocks).tobytes(), first, first,
                   LoadSpec(first, len(blocks), len(blocks), False, allowed=True, blend=blend))


def test_a_blend_reads_no_block_of_a_load_that_failed():
    """vLLM keeps the blocks of b, because a has reported those before them."""
    a, b, c = loading("a", [3, 4], 0), loading("b", [3, 4, 5], 2, 2), loading("c", [8, 9], 1, 1)
    worker = worker_of(a, b, c, failing={"a"})
    worker.blend_prompts()
    assert worker.log == ["c is blended"] and worker.error_blocks == {3, 4, 5}
    assert worker.results["b"].failed == worker.results["c"].blended == 1
    worker = worker_of(a, b, c)
    worker.blend_prompts()
    assert worker.log == ["a ends", "b is blended", "c is blended"] and not worker.error_blocks


def test_exact_blocks_of_all_blended_prompts_are_loaded_before_the_first_blend():
    b, c = loading("b", [3, 4, 5], 2, 2), loading("c", [3, 4, 6], 0, 2)  # vLLM's cache gave b two blocks of c
    worker = worker_of(b, c)
    worker.blend_prompts()
    assert worker.log == ["c ends", "b is blended", "c is blended"]
    assert worker.results["c"].memory == 2 and worker.results["c"].blended == 1
    worker = worker_of(b, c, failing={"c"})
    worker.blend_prompts()
    assert worker.log == [] and worker.error_blocks == {3, 4, 5, 6}
