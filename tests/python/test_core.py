# SPDX-License-Identifier: Apache-2.0
"""The extension: what Python hands over arrives whole in C, or raises."""

import ctypes
from array import array

import pytest

from tierce import _core

CELL, BLOCKS = 64, 8
NAMESPACE = {"weights": "00", "model": "{}", "kv_dtype": "float32", "quantization": "",
             "layout": "test/1", "layer_count": 2, "cell_bytes": [CELL, CELL], "block_tokens": 4,
             "chunk_blocks": 2, "algo": "sha256"}


@pytest.fixture
def engine():
    engine = _core.Engine.open(None, {"memory.size": "4MiB"})
    yield engine
    engine.close()


@pytest.mark.parametrize("change, error", [
    ({"model": "{}\0x"}, ValueError),
    ({"weights": "00\0"}, ValueError),
    ({"algo": "sha256\0"}, ValueError),
    ({"cell_bytes": [CELL, 2**32 + CELL]}, OverflowError),
    ({"cell_bytes": [CELL, "x"]}, TypeError),
    ({"cell_bytes": [CELL]}, ValueError),
    ({"block_tokens": 2**32 + 4}, OverflowError),
    ({"chunk_blocks": -1}, OverflowError),
    ({"layer_count": 0, "cell_bytes": []}, _core.Error),
])
def test_a_namespace_is_never_cut(engine, change, error):
    with pytest.raises(error):
        engine.view({**NAMESPACE, **change})


def test_a_configuration_is_never_cut():
    with pytest.raises(ValueError):
        _core.Engine.open(None, {"memory.size": "4MiB\0"})


def test_store_and_load(engine):
    view = engine.view(NAMESPACE)
    memory = [bytearray(range(256)) * 2 for _ in range(2)]
    view.set_paged([ctypes.addressof((ctypes.c_char * len(m)).from_buffer(m)) for m in memory],
                   [CELL, CELL], BLOCKS)
    chain = view.chain(salt=b"s")
    assert chain.append(array("i", range(16))) == 4
    store = view.store_begin(chain, 4, array("i", [0, 1, 2, 3]))
    with pytest.raises(OverflowError):
        store.layer(2**32)
    for layer in range(2):
        store.layer(layer)
    assert store.end() == 4
    with pytest.raises(ValueError):
        store.end()
    assert view.lookup(chain, 0, 4, 0, 0) == (4, 4)
    with pytest.raises(OverflowError):
        view.lookup(chain, 0, 4, 2**32, 0)
    for m in memory:
        m[4 * CELL:] = bytes(4 * CELL)
    load = view.load_begin(chain, 0, 4, array("i", [4, 5, 6, 7]))
    for layer in range(2):
        load.layer(layer)
    assert load.end() == b"\1\1\1\1"
    for m in memory:
        assert m[4 * CELL:] == m[:4 * CELL]
    with pytest.raises(OverflowError):
        engine.flush(2**32)
