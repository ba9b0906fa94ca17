# SPDX-License-Identifier: Apache-2.0
"""Pages of one host pool of SGLang as chunks: each page is a chain of one block.

DescribedPool moves pages between the store and the pool's own memory. CopiedPool copies each page through a buffer, for
pools that have no addresses, and for SGLang's interface without zero copy. docs/inside/design/019-sglang.md."""

from __future__ import annotations

import ctypes
import hashlib
import threading
import time
from array import array
from dataclasses import dataclass

import numpy

from ..lookup_flags import LOOKUP_AGAIN, LOOKUP_NO_WAIT

LOADS = 16  # that are begun before the first of them is waited for
OTHERS_S = 0.1  # for which a page that may be in another process's store is waited for: a store is a copy
POLL_S = 0.001
NAME_BYTES = 32


class NoAddresses(Exception):
    """The pool's pages cannot be described by addresses; the message has the reason."""


class NoPages(Exception):
    """The pool's pages cannot be copied either; the message has the reason."""


def name_of(key: str) -> bytes:
    """The hash of a block for SGLang's name of a page, which is a SHA-256 in hexadecimal digits."""
    try:
        name = bytes.fromhex(key)
    except ValueError:
        name = b""
    return name if len(name) == NAME_BYTES else hashlib.sha256(b"a name of SGLang " + key.encode()).digest()


def leading(flags) -> int:
    flags = list(flags)
    return flags.index(False) if False in flags else len(flags)


class PageView:
    """A view of the library whose chunks are single pages of `places` cells. Any thread."""

    def __init__(self, view, places: int, store_ms: int):
        """store_ms: for which a page waits for room."""
        self.view, self.places, self.store_ms = view, places, store_ms

    def ask(self, names, until: float, stops: bool) -> list[bool]:
        """Whether tiers hold the pages. stops: the pages after the first missing one need no answer, and count as missing.
        Waits for remote stores until `until` (time.monotonic), and once more for timeout.lookup at most."""
        chain, held, pending = self.view.chain(), [False] * len(names), []
        for i, name in enumerate(names):
            held[i], is_pending = self.lookup(chain, name, LOOKUP_NO_WAIT | LOOKUP_AGAIN)
            if is_pending:
                pending.append(i)
            elif stops and not held[i]:
                break
        for i in pending:  # the queries of all are in progress
            wait = 0 if time.monotonic() < until else LOOKUP_NO_WAIT  # 0: for remote stores
            held[i], _ = self.lookup(chain, names[i], wait)
            if stops and not held[i]:
                break
        return held

    def lookup(self, chain, name: bytes, flags: int) -> tuple[bool, bool]:
        chain.reset()
        chain.append_hashes(name)
        blocks, _, is_pending = self.view.lookup(chain, 0, 1, flags, 0)
        return blocks == 1, blocks == 0 and is_pending

    def load(self, names, pages) -> list[bool]:
        """After a page that is not loaded, later pages may not be tried: SGLang uses leading pages only."""
        chain, loaded = self.view.chain(), []
        for start in range(0, len(names), LOADS):
            if False in loaded:
                break
            loads = [self.begin_load(chain, name, page)
                     for name, page in zip(names[start:start + LOADS], pages[start:start + LOADS])]
            loaded += [self.end_load(load) for load in loads]
        return loaded + [False] * (len(names) - len(loaded))

    def begin_load(self, chain, name: bytes, page: int):
        chain.reset()
        chain.append_hashes(name)
        return self.view.load_begin(chain, 0, 1, array("i", [page]))

    def end_load(self, load) -> bool:
        for place in range(self.places):
            load.layer(place)
        return load.end()[0] != 0

    def store(self, names, pages) -> list[bool]:
        """Whether tiers hold the pages now. After a page without room, later pages are not tried."""
        chain, stored = self.view.chain(), []
        for name, page in zip(names, pages):
            stored.append(self.store_page(chain, name, page))
            if not stored[-1]:
                break
        return stored + [False] * (len(names) - len(stored))

    def store_page(self, chain, name: bytes, page: int) -> bool:
        """A page that another process is storing at this moment is left to it. Two replicas with the same prompt meet so at
        each page, and SGLang would not store the rest of the prompt after a page that counts as not stored."""
        chain.reset()
        chain.append_hashes(name)
        until = time.monotonic() + OTHERS_S
        while True:
            blocks, is_full = self.view.store(chain, 1, array("i", [page]), self.store_ms)
            if blocks == 1 or self.lookup(chain, name, LOOKUP_NO_WAIT)[0]:
                return True
            if is_full or time.monotonic() >= until:  # a node does not report that it is full
                return False
            time.sleep(POLL_S)

    def clear(self) -> None:
        self.view.clear()


# ---- pools with addresses --------------------------------------------------------------------


@dataclass(frozen=True)
class Geometry:
    """Place i of page p has sizes[i] bytes at bases[i] + p * strides[i]."""

    bases: numpy.ndarray
    strides: numpy.ndarray
    sizes: numpy.ndarray
    page_tokens: int
    pages: int

    @classmethod
    def of(cls, pool, indices) -> "Geometry":
        """`indices(n)`: the first n indices of tokens, as SGLang passes them. Raises NoAddresses."""
        tokens = int(pool.page_size)
        pages = int(pool.size) // tokens
        probed = min(pages, 2)
        try:
            found = pool.get_page_buffer_meta(indices(probed * tokens))
        except (AssertionError, AttributeError, NotImplementedError, ValueError) as error:
            raise NoAddresses(str(error) or type(error).__name__) from None
        starts, sizes = found or ([], [])  # None: the pool has no memory
        if probed == 0 or not starts or len(starts) % probed or len(sizes) != len(starts):
            raise NoAddresses(f"{len(starts)} addresses and {len(sizes)} sizes for {probed} pages")
        starts, sizes = (table(each, probed) for each in (starts, sizes))
        strides = starts[-1] - starts[0] if probed > 1 else sizes[0]
        if (sizes[0] <= 0).any() or (sizes[0] != sizes[-1]).any() or (strides < sizes[0]).any():
            raise NoAddresses("the first two pages overlap or differ in size")
        return cls(starts[0], strides, sizes[0], tokens, pages)

    def pages_of(self, pool, host_indices) -> list[int]:
        """The numbers of the pages that begin at these indices. Raises ValueError if a page is not where this geometry has
        it: nothing may be moved then."""
        firsts = host_indices.tolist()[::self.page_tokens]
        if any(first % self.page_tokens or not 0 <= first < self.pages * self.page_tokens for first in firsts):
            raise ValueError("indices that are not whole pages of the pool")
        if not firsts:
            return []
        pages = [first // self.page_tokens for first in firsts]
        starts, sizes = (table(each, len(pages)) for each in pool.get_page_buffer_meta(host_indices))
        wanted = self.bases + numpy.array(pages, dtype=numpy.int64)[:, None] * self.strides
        if starts.shape != wanted.shape or (starts != wanted).any() or (sizes != self.sizes).any():
            raise ValueError("the pool's pages are not at equal distances")
        return pages


def table(numbers, rows: int) -> numpy.ndarray:
    return numpy.array(numbers, dtype=numpy.int64).reshape(rows, -1)


class DescribedPool:
    def __init__(self, pool, geometry: Geometry, open_view, store_ms: int):
        """`open_view(cells)` opens a view whose chunks have these cells. Raises ConfigError."""
        self.pool, self.geometry = pool, geometry
        view = open_view(geometry.sizes.tolist())
        view.set_paged(geometry.bases.tolist(), geometry.strides.tolist(), geometry.pages)
        self.pages = PageView(view, len(geometry.sizes), store_ms)
        self.page_bytes = int(geometry.sizes.sum())

    def ask(self, names, until: float, stops: bool) -> list[bool]:
        return self.pages.ask(names, until, stops)

    def load(self, names, host_indices) -> list[bool]:
        return self.pages.load(names, self.geometry.pages_of(self.pool, host_indices))

    def store(self, names, host_indices) -> list[bool]:
        return self.pages.store(names, self.geometry.pages_of(self.pool, host_indices))

    def clear(self) -> None:
        self.pages.clear()


# ---- pages that are copied -------------------------------------------------------------------


def bytes_of(tensor) -> int:
    return tensor.numel() * tensor.element_size()


def flat_bytes(pool) -> int:
    """Of a flattened page. Some classes of SGLang have no such pages, and only raise when one is asked for. Raises NoPages."""
    try:
        target, page = bytes_of(pool.get_dummy_flat_data_page()), bytes_of(pool.get_data_page(0))
    except Exception as error:
        raise NoPages(str(error) or type(error).__name__) from None
    if target != page or page == 0:
        raise NoPages(f"a page of {page} bytes, and {target} bytes for it")
    return page


class Row:
    """A buffer of one page, and the view that describes it."""

    def __init__(self, open_view, size: int, store_ms: int):
        self.memory = ctypes.create_string_buffer(size)
        view = open_view([size])
        view.set_paged([ctypes.addressof(self.memory)], [size], 1)
        self.pages = PageView(view, 1, store_ms)


class CopiedPool:
    """Pages as SGLang flattens them."""

    def __init__(self, pool, open_view, store_ms: int):
        """Raises NoPages, and ConfigError if a page does not fit into memory."""
        self.pool, self.open_view, self.store_ms = pool, open_view, store_ms
        self.threads = threading.local()  # a row holds one page at a time, so each thread has its own
        self.page_bytes = flat_bytes(pool)
        self.row(self.page_bytes)  # what cannot work raises now: later it would only be a miss

    def row(self, size: int) -> Row:
        rows = self.threads.__dict__
        if size not in rows:
            rows[size] = Row(self.open_view, size, self.store_ms)
        return rows[size]

    def get(self, name: bytes, target) -> bool:
        if not target.is_contiguous():
            raise ValueError("a page's target is not contiguous")
        row = self.row(bytes_of(target))
        if row.pages.load([name], [0]) != [True]:
            return False
        ctypes.memmove(target.data_ptr(), row.memory, bytes_of(target))
        return True

    def set(self, name: bytes, value) -> bool:
        value = value.contiguous()
        row = self.row(bytes_of(value))
        ctypes.memmove(row.memory, value.data_ptr(), bytes_of(value))
        return row.pages.store([name], [0]) == [True]

    def ask(self, names, until: float, stops: bool) -> list[bool]:
        return self.row(self.page_bytes).pages.ask(names, until, stops)

    def load(self, names, host_indices) -> list[bool]:
        return self.each(names, host_indices, self.load_page)

    def store(self, names, host_indices) -> list[bool]:
        return self.each(names, host_indices, self.store_page)

    def each(self, names, host_indices, move) -> list[bool]:
        firsts, moved = host_indices.tolist()[::int(self.pool.page_size)], []
        for name, first in zip(names, firsts):
            moved.append(move(name, first))
            if not moved[-1]:
                break
        return moved + [False] * (len(names) - len(moved))

    def load_page(self, name: bytes, first: int) -> bool:
        page = self.pool.get_dummy_flat_data_page()
        if not self.get(name, page):
            return False
        self.pool.set_from_flat_data_page(first, page)
        return True

    def store_page(self, name: bytes, first: int) -> bool:
        return self.set(name, self.pool.get_data_page(first))

    def clear(self) -> None:
        self.row(self.page_bytes).pages.clear()
