# SPDX-License-Identifier: Apache-2.0
"""Pages of one pool of SGLang as chunks: each page is a chain of one block.

DescribedPool moves pages between the store and the pool's own memory. CopiedPool moves SGLang's copies of pages, for pools
that have no addresses, and for SGLang's interface without zero copy. docs/inside/design/019-sglang.md."""

from __future__ import annotations

import hashlib
import threading
from dataclasses import dataclass

import numpy

from ..page_view import PageView

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
        view.set_paged(geometry.bases.tolist(), geometry.strides.tolist(), geometry.pages, getattr(pool, "kind", "host"))
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


class CopiedPool:
    """Pages as SGLang flattens them."""

    def __init__(self, pool, open_view, store_ms: int):
        """Raises NoPages, and ConfigError if a page does not fit into memory."""
        self.pool, self.open_view, self.store_ms = pool, open_view, store_ms
        self.threads = threading.local()  # a view describes one page at a time, so each thread has its own
        self.page_bytes = flat_bytes(pool)
        self.view(self.page_bytes)  # what cannot work raises now: later it would only be a miss

    def view(self, size: int) -> PageView:
        views = self.threads.__dict__
        if size not in views:
            views[size] = PageView(self.open_view([size]), 1, self.store_ms)
        return views[size]

    def at(self, page) -> PageView:
        """A view whose only page is this tensor."""
        size = bytes_of(page)
        pages = self.view(size)
        pages.view.set_paged([page.data_ptr()], [size], 1)
        return pages

    def get(self, name: bytes, target) -> bool:
        """False: the target holds anything."""
        if not target.is_contiguous():
            raise ValueError("a page's target is not contiguous")
        return self.at(target).load([name], [0])[0]

    def set(self, name: bytes, value) -> bool:
        value = value.contiguous()
        return self.at(value).store([name], [0])[0]

    def ask(self, names, until: float, stops: bool) -> list[bool]:
        return self.view(self.page_bytes).ask(names, until, stops)

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
        self.view(self.page_bytes).clear()
