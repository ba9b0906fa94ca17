# SPDX-License-Identifier: Apache-2.0
"""The scheduler half of the connector, for requests with images: the chain depends on their content, and
a request that gets another image during its session harms no other."""

from dataclasses import replace
from types import SimpleNamespace as Thing

import pytest

# First: test_connector sets the environment variables that vLLM reads at its import, or skips without a vLLM.
from test_connector import BLOCK, ask, config, lines, request_of, scheduled, scheduler  # noqa: F401
from media_items import feature, pixels  # noqa: E402
from tierce.vllm import worker  # noqa: E402


def with_image(name, image, seed, **more):
    return request_of(name=name, mm_features=[feature(image, pixels(seed))], **more)


def test_images_reach_the_chain(scheduler):
    """Their data do, and not their names."""
    for name, image, seed in (("a", "ca" * 32, 1), ("b", "d0" * 32, 2), ("c", "my photo", 2)):
        ask(scheduler, with_image(name, image, seed), list(range(1, 20)))
    one, two, three = (part.extras for part in scheduler.link.parts[-3:])
    assert [block for block, _ in one] == [block for block, _ in two] == [1, 2, 3, 4]
    assert all(a != b for (_, a), (_, b) in zip(one, two)) and two == three


def test_images_reach_hashes_of_vllm(scheduler):
    scheduler.link.known = replace(scheduler.link.known, hashed=True)
    for name, seed in (("a", 1), ("b", 2)):
        request = with_image(name, "ca" * 32 if seed == 1 else "d0" * 32, seed)
        request.block_hashes = [bytes([i]) * 32 for i in range(18)]
        ask(scheduler, request, list(range(1, 20)))
    one, two = (part.data for part in scheduler.link.parts[-2:])
    assert one[:32] == two[:32] == b"\0" * 32 and len(one) == len(two) == 18 * 32
    assert not {one[at:at + 32] for at in range(32, len(one), 32)} & {two[at:at + 32] for at in range(32, len(two), 32)}


@pytest.mark.parametrize("ready", [True, False])
def test_a_name_of_two_images_is_ignored_and_ends_saves_in_progress(scheduler, lines, ready):
    """Also if vLLM computed the second one while there was no store."""
    half, link = scheduler.half, scheduler.link
    ask(scheduler, with_image("a", "my photo", 1), list(range(1, 20)))
    assert not half.live["a"][1].skip_save
    if not ready:
        half.facts = half.link = None
        half.find_link = lambda: None
    assert scheduler.get_num_new_matched_tokens(with_image("b", "my photo", 2), 0) == (0, False)
    assert half.live["a"][1].skip_save
    half.find_link = lambda: link
    before = len(link.parts)
    assert ask(scheduler, with_image("c", "my photo", 1), list(range(1, 20)))[0] == 0 and len(link.parts) == before
    assert any("another content" in line for line in lines())


def continued(requests, step):
    """vLLM's output of a step that computes eight more blocks of each request; those of the n-th begin at 100 n."""
    ids = [([100 * n + 8 * step + i for i in range(8)],) for n in range(len(requests))]
    names, done, computed = [r.request_id for r in requests], 8 * step * BLOCK, Thing(req_ids=[])
    new = [Thing(req_id=name, block_ids=own, num_computed_tokens=0) for name, own in zip(names, ids) if step == 0]
    if step > 0:
        computed = Thing(req_ids=names, new_block_ids=ids, num_computed_tokens=[done] * len(names), resumed_req_ids=set())
    return Thing(scheduled_new_reqs=new, scheduled_cached_reqs=computed,
                 num_scheduled_tokens=dict.fromkeys(names, 8 * BLOCK), finished_req_ids=set())


def in_progress(scheduler, monkeypatch):
    """Three requests after their first step."""
    monkeypatch.setattr(scheduler.link, "lookup", lambda *args: (0, 0))
    requests = [with_image("a", "my photo", 1, tokens=1000), with_image("b", "my cat", 3, tokens=1000),
                request_of(1000, "c")]
    for request in requests:
        scheduler.get_num_new_matched_tokens(request, 0)
        scheduler.update_state_after_alloc(request, Thing(get_block_ids=lambda: ([],)), 0)
    assert saved(scheduler, requests, 0) == {"a": 8, "b": 8, "c": 8}
    return requests


def saved(scheduler, requests, step):
    """The blocks that each request saves in a step; the numbers of its blocks are right."""
    told = scheduler.build_connector_meta(continued(requests, step)).requests
    for n, request in enumerate(requests):
        tracked = scheduler.half.live[request.request_id][1]
        assert list(tracked.block_ids) == list(range(100 * n, 100 * n + 8 * (step + 1)))
    assert all(list(worker.int32(r.block_ids)) == list(scheduler.half.live[r.req_id][1].block_ids) for r in told)
    return {r.req_id: r.save.to_block for r in told if r.save is not None}


@pytest.mark.parametrize("image, seed, goes_on", [
    ("my photo", 2, {"b", "c"}), ("my cat", 4, {"c"}), ("new", None, {"b", "c"})])
@pytest.mark.parametrize("several", [False, True])
def test_an_image_that_a_session_gets_later_harms_no_other_request(scheduler, monkeypatch, image, seed, goes_on, several):
    scheduler.half.several = several
    requests = in_progress(scheduler, monkeypatch)
    requests[0].mm_features.append(feature(image, seed and pixels(seed), 300))
    for step in (1, 2):
        assert saved(scheduler, requests, step) == dict.fromkeys(goes_on, 8 * (step + 1))
    assert scheduler.errors == 0
    assert scheduler.get_num_new_matched_tokens(requests[0], 0) == (0, False)  # after a preemption
    assert scheduler.errors == 0


def test_a_load_of_a_session_with_an_unknown_image_fails(scheduler):
    """With several workers, some of which lack the chain."""
    scheduler.half.several = True
    request, ids = with_image("a", "my photo", 1), list(range(1, 20))
    tokens, asynchronous = scheduler.get_num_new_matched_tokens(request, 0)
    scheduler.update_state_after_alloc(request, Thing(get_block_ids=lambda: (ids,)), tokens)
    request.mm_features.append(feature("new", None, 300))
    count = 0 if asynchronous else request.num_tokens - tokens
    (told,) = scheduler.build_connector_meta(scheduled(request, ids, tokens, count)).requests
    assert (told.load.to_block, told.load.allowed, told.save, told.chain) == (18, False, None, None)
    assert list(worker.int32(told.block_ids)) == ids and scheduler.errors == 0


def test_after_a_step_that_failed_its_requests_are_not_saved(scheduler, monkeypatch):
    requests = in_progress(scheduler, monkeypatch)

    def fail(*args):
        raise RuntimeError("broken")

    with monkeypatch.context() as broken:
        broken.setattr(scheduler.half, "add", fail)
        assert saved(scheduler, requests, 1) == {}
    assert saved(scheduler, requests, 2) == {} and scheduler.errors == 1
