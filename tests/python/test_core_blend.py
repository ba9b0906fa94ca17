# SPDX-License-Identifier: Apache-2.0
"""The functions of tierce._core for blended prompts, and hostile arguments: an exception, never a crash."""

import math
import struct
from array import array

import pytest

from tierce import _core as core

ROPE = '{"rope_type": "default", "rope_theta": 10000.0}'


def floats(*values):
    return bytearray(struct.pack(f"{len(values)}f", *values))


def test_segments_lie_between_separators():
    tokens = array("i", [1, 2, 9, 9, 3, 4, 9, 9, 9, 9, 5, 9, 9, 6])
    assert core.split_segments(tokens, array("i", [9, 9])) == [(4, 6), (10, 11)]
    assert core.split_segments(tokens, array("i", [7])) == []
    with pytest.raises(core.Error):
        core.split_segments(tokens, array("i"))


def test_a_plan_has_the_prefix_the_segments_and_the_rest():
    plan = core.blend_plan(20, 4, 2, [(4, 8, 4), (10, 16, 5)])
    assert plan == [(0, 4, 0, 0, 0), (4, 8, 1, 0, 2), (8, 10, 2, 0, 0), (10, 15, 1, 1, 2), (15, 20, 2, 0, 0)]


@pytest.mark.parametrize("segments", [[(4, 4, 0)], [(4, 8, 5)], [(8, 10, 0), (4, 6, 0)], [(10, 21, 0)]])
def test_invalid_segments(segments):
    with pytest.raises(ValueError, match="segment . is invalid"):
        core.blend_plan(20, 0, 0, segments)


@pytest.mark.parametrize("segments", [[(1, 2)], [1], [(-1, 2, 0)], [(0, 1 << 32, 0)], None])
def test_segments_of_other_types(segments):
    with pytest.raises((TypeError, OverflowError, ValueError)):
        core.blend_plan(20, 0, 0, segments)


def test_a_rotation_turns_each_pair_by_its_angle():
    keys = floats(1, 1, 0, 0)
    core.rotate_keys(keys, "float32", 4, ROPE, True, 3)
    turned = struct.unpack("4f", keys)
    assert turned == pytest.approx([math.cos(3), math.cos(0.03), math.sin(3), math.sin(0.03)], abs=1e-6)
    core.rotate_keys(keys, "float32", 4, ROPE, True, -3)
    assert struct.unpack("4f", keys) == pytest.approx([1, 1, 0, 0], abs=1e-6)


@pytest.mark.parametrize("args, error", [
    ((floats(1, 1, 0), "float32", 4, ROPE, True, 3), core.Error),
    ((bytes(16), "float32", 4, ROPE, True, 3), (BufferError, TypeError)),
    ((floats(1, 1), "fp8", 2, ROPE, True, 3), ValueError),
    ((floats(1, 1), "float32", 2, '{"rope_type": "longrope"}', True, 3), core.Error),
    ((floats(1, 1), "float32", 0, ROPE, True, 3), core.Error),
    ((floats(1, 1), "float32", 2, ROPE, True, 1 << 40), core.Error)])
def test_what_is_not_rotated(args, error):
    with pytest.raises(error):
        core.rotate_keys(*args)


def test_the_tokens_that_differ_most():
    computed, reused = floats(0, 0, 5, 5, 1, 1, 9, 9), floats(0, 0, 0, 5, 1, 1, 0, 0)
    assert core.differing_keys(computed, reused, "float32", 2, 0.25) == [3]
    assert core.differing_keys(computed, reused, "float32", 2, 0.26) == [1, 3]
    assert core.differing_keys(computed, reused, "float32", 2, 0) == []
    assert core.differing_keys(b"", b"", "float32", 2, 1) == []


def test_the_greatest_distances():
    distances = floats(1, math.nan, 3, 3, 3, math.inf)
    for share, places in ((0, []), (0.1, [1]), (0.3, [1, 5]), (0.5, [1, 2, 5]), (0.6, [1, 2, 3, 5]), (1, [*range(6)])):
        assert core.greatest_distances(distances, share) == places
    assert core.greatest_distances(b"", 1) == []
    for args in ((bytes(7), 1), (bytes(8), 1.1), (bytes(8), math.nan), (memoryview(bytearray(9))[1:], 1)):
        with pytest.raises(core.Error):
            core.greatest_distances(*args)
    with pytest.raises(TypeError):
        core.greatest_distances([1.0], 1)


@pytest.mark.parametrize("args", [(floats(1, 1), floats(1), "float32", 2, 1), (floats(1), floats(1), "float32", 2, 1),
                                  (floats(1), floats(1), "float32", 0, 1), (floats(1), floats(1), "float32", 1, 2),
                                  (floats(1), floats(1), "float32", 1, math.nan)])
def test_what_is_not_compared(args):
    with pytest.raises(core.Error):
        core.differing_keys(*args)
