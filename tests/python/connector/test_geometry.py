# SPDX-License-Identifier: Apache-2.0
"""vLLM's paged memory as runs of bytes: compared with the places of all elements."""

import itertools
from types import SimpleNamespace as Thing

import pytest

pytest.importorskip("vllm")

from tierce.vllm.device import memory_of  # noqa: E402
from tierce.vllm.geometry import RUNS_MAX, Geometry, block_form, block_runs  # noqa: E402
from tierce.vllm.identity import Unsupported  # noqa: E402


def places(shape, strides):
    return [sum(map(int.__mul__, index, strides)) for index in itertools.product(*map(range, shape))]


@pytest.mark.parametrize("shape, strides, runs", [
    ((4,), (1,), ([0], 4)), ((2, 3), (3, 1), ([0], 6)), ((3, 2), (1, 3), ([0], 6)),
    ((2, 1, 3), (3, 99, 1), ([0], 6)), ((2, 3), (4, 1), ([0, 4], 3)), ((2, 2, 3), (20, 4, 1), ([0, 4, 20, 24], 3)),
    ((2, 2, 4), (12, 8, 1), ([0, 8, 12, 20], 4)),  # runs that touch, but not in the order of the axes
    ((2, 4), (0, 1), None), ((2, 4), (2, 1), None), ((2, 2, 3), (5, 4, 1), None)])
def test_the_runs_of_a_block(shape, strides, runs):
    assert block_runs(shape, strides) == runs
    found = places(shape, strides)
    if runs is None:
        assert len(set(found)) < len(found)  # elements lie on each other
    else:
        assert sorted(found) == [at + i for at in runs[0] for i in range(runs[1])]


class Tensor:
    """A tensor of 2-byte elements."""

    def __init__(self, shape, strides, at=0, device="cuda", ordinal=0):
        self.shape, self.strides, self.at, self.dtype = shape, strides, at, "torch.float16"
        self.device = Device(device, ordinal)

    def stride(self):
        return self.strides

    def data_ptr(self):
        return self.at

    def element_size(self):
        return 2


class Device(tuple):
    def __new__(cls, kind, ordinal):
        return super().__new__(cls, (kind, ordinal))

    type = property(lambda self: self[0])


@pytest.mark.parametrize("shape, strides, form", [
    ((8, 3, 4), (12, 4, 1), ((3, 4), (4, 1), 12)),  # 8 blocks
    ((16, 3, 4), (12, 4, 1), ((2, 3, 4), (12, 4, 1), 24)),  # the kernel's blocks are half as large
    ((2, 8, 4), (100, 4, 1), ((2, 4), (100, 1), 4)),  # keys and values apart
    ((12, 4), (4, 1), None), ((4, 4), (4, 1), None)])
def test_the_form_of_a_block(shape, strides, form):
    assert block_form(Tensor(shape, strides), 8) == form


@pytest.mark.parametrize("runs", [RUNS_MAX, RUNS_MAX + 1])
def test_runs_have_a_limit(runs):
    tensor = Tensor((8, runs, 4), (runs * 8, 8, 1), at=1 << 20)
    if runs > RUNS_MAX:
        with pytest.raises(Unsupported, match="as one run of bytes, or as at most"):
            Geometry.of({"model.layers.0.attn": tensor}, 8)
        return
    found = Geometry.of({"model.layers.0.attn": tensor, "model.layers.1.attn": tensor}, 8)
    assert found.layer_of == {"model.layers.0.attn": 0, "model.layers.1.attn": 0}  # they share their KV
    assert found.bases == [(1 << 20) + 16 * i for i in range(runs)]
    assert set(found.strides) == {runs * 16} and set(found.cell_bytes) == {8}


@pytest.mark.parametrize("other", [Tensor((8, 3, 4), (12, 4, 1), 4096, "cpu"), Tensor((8, 4, 3), (12, 3, 1), 4096)])
def test_layers_of_one_form_in_one_kind_of_memory(other):
    with pytest.raises(Unsupported, match="layers of different KV shapes"):
        Geometry.of({"model.layers.0.attn": Tensor((8, 3, 4), (12, 4, 1)), "model.layers.1.attn": other}, 8)


def test_kv_of_several_gpus_in_one_worker_is_refused_by_name():
    caches = {f"model.layers.{i}.attn": Tensor((8, 4), (4, 1), ordinal=i) for i in range(2)}
    with pytest.raises(Unsupported, match="KV in the memory of several GPUs in one worker"):
        memory_of(caches, Thing(), Thing())
