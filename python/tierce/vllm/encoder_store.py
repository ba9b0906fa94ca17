# SPDX-License-Identifier: Apache-2.0
"""Outputs of a multimodal encoder in the store: chunks of rows, stored and found by the hash of the content.

An output is a matrix with a row for each embedding. Its rows are the tokens of a chain whose root is the hash of the
content, so that chunks, tiers, sums and stores are those of KV. docs/inside/design/013-encoder-cache.md."""

from __future__ import annotations

import logging
import threading
from array import array
from collections import Counter
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import torch
import vllm
from vllm.platforms import current_platform

from ..lookup_flags import LOOKUP_NO_WAIT
from . import identity, processors
from .settings import open_view

log = logging.getLogger("tierce")

ROWS = 64  # of a chunk. The last one of an output is filled up with zeros, so that all chunks have one size
LOAD_THREADS = 4
SAVING_BYTES = 256 << 20  # limit of the outputs that wait to be stored


@dataclass(frozen=True)
class Shape:
    rows: int
    width: int
    dtype: torch.dtype

    @classmethod
    def of(cls, output: torch.Tensor) -> "Shape":
        return cls(*output.shape, output.dtype)

    @property
    def chunks(self) -> int:
        return -(-self.rows // ROWS)

    @property
    def chunk_bytes(self) -> int:
        return ROWS * self.width * self.dtype.itemsize

    @property
    def bytes(self) -> int:
        return self.chunks * self.chunk_bytes

    def empty(self) -> torch.Tensor:
        return torch.zeros((self.chunks * ROWS, self.width), dtype=self.dtype)


def namespace(model: dict, shape: Shape) -> dict:
    """`model`: weights and model, as in a namespace of KV."""
    dtype = str(shape.dtype).removeprefix("torch.")
    return {**model, "kv_dtype": dtype, "quantization": "", "layer_count": 1,
            "layout": identity.canonical_json({
                "engine": f"vllm {vllm.__version__}", "platform": current_platform.device_type,
                "content": "output of the multimodal encoder", "rows": ROWS, "width": shape.width, "dtype": dtype}),
            "cell_bytes": [shape.chunk_bytes], "block_tokens": ROWS, "chunk_blocks": 1, "algo": "sha256"}


class EncoderStore:
    """Loads and stores outputs on threads of its own. Any thread."""

    def __init__(self, engine, model: dict):
        self.engine = engine
        self.model = model
        self.views = threading.local()  # a view describes one matrix at a time, so each thread has its own
        self.loaders = ThreadPoolExecutor(LOAD_THREADS, "tierce-encoder-load", processors.leave_one)
        self.saver = ThreadPoolExecutor(1, "tierce-encoder-save", processors.leave_one)
        self.lock = threading.Lock()
        self.saving_bytes = 0
        self.counters = Counter()
        self.told: set[str] = set()

    def close(self) -> None:
        """Waits for the outputs that are being stored."""
        self.loaders.shutdown(cancel_futures=True)
        self.saver.shutdown()
        self.engine.close()

    def count(self, name: str, number: int = 1) -> None:
        with self.lock:
            if number:
                self.counters[name] += number

    def take_counters(self) -> dict[str, int]:
        with self.lock:
            counters, self.counters = self.counters, Counter()
        return dict(counters)

    def tell_once(self, text: str, *values) -> None:
        with self.lock:
            is_new = text not in self.told
            self.told.add(text)
        if is_new:
            log.warning(text + "; logged once, and counted", *values)

    # ---- the parts of an output

    def view(self, shape: Shape):
        views = self.views.__dict__
        key = f"{shape.dtype} {shape.width}"
        if key not in views:
            views[key] = open_view(self.engine, namespace(self.model, shape))
        return views[key]

    def chain(self, view, name: str, shape: Shape):
        """The number of rows belongs to the root: the last chunk does not say how many of its rows are an output's."""
        chain = view.chain(salt=f"{name} {shape.rows}".encode())
        chain.append(array("i", [0]) * (shape.chunks * ROWS))
        return chain

    # ---- loading

    def load(self, name: str, shape: Shape) -> Future:
        """The output, or None. The future never raises."""
        return self.loaders.submit(self.load_or_none, name, shape)

    def load_or_none(self, name: str, shape: Shape) -> torch.Tensor | None:
        try:
            return self.load_now(name, shape)
        except Exception as error:
            self.count("miss: failed")
            self.tell_once("Tierce cannot load an encoder's output, which is a miss: %r", error)
            return None

    def load_now(self, name: str, shape: Shape) -> torch.Tensor | None:
        view = self.view(shape)
        chain = self.chain(view, name, shape)
        found, _, _ = view.lookup(chain, 0, shape.chunks, 0, 0)
        if found < shape.chunks:
            self.count("miss: not stored" if found == 0 else "miss: incomplete")
            return None
        output = shape.empty()
        view.set_paged([output.data_ptr()], [shape.chunk_bytes], shape.chunks)
        load = view.load_begin(chain, 0, shape.chunks, array("i", range(shape.chunks)))
        load.layer(0)
        results = load.end()
        if not all(results):
            self.count("miss: damaged")
            self.tell_once("an encoder's output of %d chunks could not be loaded from the store, or its bytes were "
                           "damaged: %d chunks are missing, and vLLM encodes the item again",
                           shape.chunks, results.count(0))
            return None
        return output[:shape.rows]

    # ---- storing

    def save(self, name: str, output: torch.Tensor) -> None:
        """The caller does not change the output afterwards. Does not wait."""
        shape = Shape.of(output)
        with self.lock:
            fits = self.saving_bytes == 0 or self.saving_bytes + shape.bytes <= SAVING_BYTES
            self.saving_bytes += shape.bytes if fits else 0
        if fits:
            self.saver.submit(self.save_and_count, name, output, shape)
        else:
            self.count("not stored: queue full")
            self.tell_once("encoder outputs come faster than the store takes them; those above %d MiB are not stored",
                           SAVING_BYTES >> 20)

    def save_and_count(self, name: str, output: torch.Tensor, shape: Shape) -> None:
        try:
            self.count(self.save_now(name, output, shape))
        except Exception as error:
            full = getattr(error, "name", "") == "TIERCE_E_FULL"
            self.count("not stored: store full" if full else "not stored: failed")
            self.tell_once("Tierce cannot store an encoder's output: %r", error)
        finally:
            with self.lock:
                self.saving_bytes -= shape.bytes

    def save_now(self, name: str, output: torch.Tensor, shape: Shape) -> str:
        """The name of the counter."""
        view = self.view(shape)
        chain = self.chain(view, name, shape)
        padded = shape.empty()
        padded[:shape.rows] = output
        view.set_paged([padded.data_ptr()], [shape.chunk_bytes], shape.chunks)
        store = view.store_begin(chain, shape.chunks, array("i", range(shape.chunks)))
        if store is None:
            return "stored before"
        store.layer(0)
        # A store may have room for the first chunks only, or may have had some of them.
        if store.end() < shape.chunks and view.lookup(chain, 0, shape.chunks, LOOKUP_NO_WAIT, 0)[0] < shape.chunks:
            self.tell_once("the store has no room for an encoder's output of %d bytes", shape.bytes)
            return "not stored: store full"
        self.count("stored bytes", shape.bytes)
        return "stored"
