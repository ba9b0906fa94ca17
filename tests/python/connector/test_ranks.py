# SPDX-License-Identifier: Apache-2.0
"""Several workers: the layers of a chunk in each worker, the messages to all workers, and the
combination of their answers."""

from types import SimpleNamespace as Thing

import pytest

pytest.importorskip("vllm")

from tierce.vllm import identity  # noqa: E402
from tierce.vllm.connector import TierceWorkerMetadata  # noqa: E402
from tierce.vllm.groups.group_ranks import GroupLayers, GroupMeasures  # noqa: E402
from tierce.vllm.link import Facts  # noqa: E402
from tierce.vllm.ranks import Ranks, part_of  # noqa: E402
from tierce.vllm.scheduler import SchedulerHalf  # noqa: E402
from tierce.vllm.tracker import ChainRoot, LoadResult, LoadSpec, RequestTracker  # noqa: E402
from tierce.vllm.tracker import SaveSpec  # noqa: E402


def every(tp, pp):
    return [Ranks(t, tp, p, pp) for p in range(pp) for t in range(tp)]


def test_one_worker_has_the_whole_chunk():
    part = part_of(Ranks(), [[64, 64]])
    assert (part.first_layer, part.layer_count, part.cell_bytes) == (0, 2, [64, 64])
    assert part.store == range(2)
    assert Ranks().first and Ranks().gather("x") == ["x"]


@pytest.mark.parametrize("tp, pp", [(2, 1), (1, 2), (2, 3), (4, 2)])
def test_the_parts_are_the_chunk(tp, pp):
    layers = [3, 5, 2][:pp]
    ranks = every(tp, pp)
    assert [r.index for r in ranks] == list(range(tp * pp))
    assert [r.first for r in ranks] == [True] + [False] * (tp * pp - 1)
    cells = [[100 + r.index] * layers[r.pp_rank] for r in ranks]
    whole = None
    for r in ranks:
        part = part_of(r, cells)
        # Stage by stage, in each the tensor ranks one after the other.
        before = sum(layers[:r.pp_rank]) * tp
        assert part.first_layer == before + r.tp_rank * layers[r.pp_rank]
        assert part.cell_bytes[part.first_layer:][:part.layer_count] == cells[r.index]
        assert whole in (None, part.cell_bytes)
        whole = part.cell_bytes
    assert len(whole) == sum(layers) * tp


@pytest.mark.parametrize("tp, pp, replicas", [(2, 1, 2), (4, 1, 4), (4, 1, 2), (2, 3, 2), (4, 2, 2)])
def test_workers_with_the_same_kv_share_its_layers(tp, pp, replicas):
    layers = [5, 4, 7][:pp]
    ranks = every(tp, pp)
    cells = [[100 + 10 * r.pp_rank + r.tp_rank // replicas] * layers[r.pp_rank] for r in ranks]
    stored = []
    for r in ranks:
        part = part_of(r, cells, replicas)
        # Each reads all that it has, as its own; and each stores something.
        assert part.cell_bytes[part.first_layer:][:part.layer_count] == cells[r.index]
        assert part.store and part.store.stop <= part.layer_count
        stored += [part.first_layer + layer for layer in part.store]
        assert len(part.cell_bytes) == sum(layers) * tp // replicas
        assert ranks[0].count <= len(part.cell_bytes)
    assert stored == list(range(len(part.cell_bytes)))


def group_of(*numbers, cell=64, backend="b"):
    return GroupMeasures(numbers, tuple(cell for _ in numbers), backend, (2,), (1,), "float32")


@pytest.mark.parametrize("tp, stages, holders", [
    (2, [(0, 3)], 2), (1, [(0, 3), (6,)], 2), (2, [(0, 3), (6,)], 4),
    (1, [(), (4, 5)], 1), (2, [(1,), (), (7, 8)], 4)])
def test_a_group_s_chunk_has_the_layers_of_all_ranks(tp, stages, holders):
    ranks = every(tp, len(stages))
    measures = [group_of(*stages[r.pp_rank], cell=100 + r.index) if stages[r.pp_rank] else GroupMeasures()
                for r in ranks]
    seen, indexes = [], []
    for r in ranks:
        layers = GroupLayers.join(r, measures)
        assert layers.numbers == [n for stage in stages for n in tp * stage]
        assert layers.sample.backend == "b"
        if not stages[r.pp_rank]:
            assert layers.part is None
            continue
        part = layers.part
        assert layers.numbers[part.first_layer:][:part.layer_count] == list(stages[r.pp_rank])
        assert layers.cell_bytes[part.first_layer:][:part.layer_count] == list(measures[r.index].cell_bytes)
        seen += range(part.first_layer, part.first_layer + part.layer_count)
        indexes.append((part.index, part.count))
    assert seen == list(range(len(layers.numbers)))
    assert indexes == [(i, holders) for i in range(holders)]


def test_ranks_whose_groups_differ_are_refused():
    for measures, why in (([group_of(0), group_of(0, backend="c")], "workers with KV of different shapes"),
                          ([GroupMeasures(), GroupMeasures()], "a KV cache group without layers")):
        with pytest.raises(identity.Unsupported, match=why):
            GroupLayers.join(Ranks(0, 2), measures)


def test_a_worker_without_a_layer_to_store_has_no_say():
    with pytest.raises(identity.Unsupported, match="4 workers that have the same KV, of 3 layers"):
        part_of(Ranks(1, 4), [[64] * 3] * 4, 4)


def test_how_the_layers_lie_is_part_of_the_identity():
    def text(ranks=None):
        return identity.layout("1", "b", (2,), (1,), "float32", 16, ranks)

    assert text() == text(Ranks())
    assert len({text(r) for r in (None, *every(2, 1), *every(1, 2), *every(4, 1))}) == 4
    assert identity.layout("1", "b", (2,), (1,), "float32", 16, Ranks(1, 2), 2) not in (
        text(), text(Ranks(1, 2)))


def test_of_a_load_the_worse_result_counts():
    one, two = LoadResult(memory=8), LoadResult(memory=5, failed=3)
    for first, second in ((one, two), (two, one)):
        meta = TierceWorkerMetadata({"r": first}).aggregate(TierceWorkerMetadata({"r": second}))
        assert meta.results == {"r": two}
    meta = TierceWorkerMetadata({"r": one}, True).aggregate(TierceWorkerMetadata({"s": two}))
    assert meta.results == {"r": one, "s": two} and meta.tainted


def test_a_failed_load_stays_failed_whoever_tells_last(half):
    for results in ((LoadResult(failed=3), LoadResult(memory=8)),
                    (LoadResult(memory=8), LoadResult(failed=3))):
        made, tracker = half(2), RequestTracker("r", 1, ChainRoot(), 40)
        made.live["r"] = None, tracker
        for result in results:
            made.stepped({"r": result}, False)
        assert tracker.loaded == LoadResult(failed=3) and tracker.skip_load


@pytest.fixture
def half():
    def make(world):
        config = Thing(
            kv_transfer_config=Thing(is_kv_consumer=True, is_kv_producer=True,
                                     kv_load_failure_policy="recompute"),
            cache_config=Thing(block_size=4, enable_prefix_caching=True),
            parallel_config=Thing(world_size=world), model_config=Thing(multimodal_config=None), speculative_config=None)
        made = SchedulerHalf(config, lambda: None)
        made.facts = Facts(None, 2)
        return made

    return make


def told(part):
    return None if part is None else (part.from_block, len(part.data) // 16)


def test_workers_that_are_not_asked_get_the_chain_with_the_steps(half):
    request = Thing(all_token_ids=list(range(40)), mm_features=[])
    tracker = RequestTracker("r", 1, ChainRoot(), 40)
    load, save = LoadSpec(0, 4, 4, False), SaveSpec(6)
    several = half(2)
    tracker.sent_blocks = 7  # by a lookup, to the first worker
    assert told(several.step_part(request, tracker, load, None)) == (0, 7)
    assert told(several.step_part(request, tracker, None, save)) is None
    assert told(several.step_part(request, tracker, None, SaveSpec(9))) == (7, 2)
    one, tracker = half(1), RequestTracker("r", 1, ChainRoot(), 40, sent_blocks=5)
    assert one.step_part(request, tracker, load, None) is None
    assert told(one.step_part(request, tracker, None, save)) == (5, 1)
