# SPDX-License-Identifier: Apache-2.0
"""Single pages as chunks: each page is a chain of one block, for engines and caches that name pages themselves."""

from __future__ import annotations

import logging
import os
import time
from array import array

from .lookup_flags import LOOKUP_AGAIN, LOOKUP_NO_WAIT
from .vllm.identity import ConfigError
from .vllm.settings import Settings
from .vllm.texts import describe_store, milliseconds

log = logging.getLogger("tierce")

LOADS = 16  # that are begun before the first of them is waited for
OTHERS_S = 0.1  # for which a page that may be in another process's store is waited for: a store is a copy
POLL_S = 0.001
STORE_WAIT = "2s"  # in place of 0ms: callers store on threads that have nothing else to do


def take_settings(given: dict, where: str) -> tuple[Settings, str]:
    """The parameters that `where` gives, and the text `identity` among them, or "". Raises ConfigError."""
    own = dict(given)
    identity = own.pop("identity", "")
    if not isinstance(identity, str):
        raise ConfigError(f"{where}: identity {identity!r} is invalid; accepted: a text")
    path = own.pop("config", None) or os.getenv("TIERCE_CONFIG") or None
    settings = Settings(path, {k: str(v).lower() if isinstance(v, bool) else str(v) for k, v in own.items()})
    settings.check(where)
    require_no_start(settings, where)
    return settings, identity


def require_no_start(settings: Settings, where: str) -> None:
    """Raises ConfigError."""
    if (start := setting(settings, "node.start")) != "auto":
        raise ConfigError(f"{where}: node.start {start!r} is for vLLM's connector only; start a `tierce node`, and set "
                          "node.socket")


def setting(settings: Settings, name: str) -> str:
    from tierce import _core

    return _core.Engine.setting(settings.config_path, dict(settings.values), name)


class PageEngine:
    """An engine whose callers wait for one page at a time."""

    def __init__(self, settings: Settings, where: str, role: str, title: str):
        """`title`: of the log's line. Raises ConfigError."""
        from tierce import _core

        values = dict(settings.values)
        try:
            if setting(settings, "timeout.store") == "0ms" and "timeout.store" not in values:
                values["timeout.store"] = STORE_WAIT
            if not setting(settings, "node.socket"):  # it would weigh a tier's latency against one page, and pages load together
                values.setdefault("cost.check", "false")
            self.engine = _core.Engine.open(settings.config_path, values)
        except _core.Error as error:
            raise ConfigError(f"{where}: {error}") from None
        self.engine.set_role(role)
        self.lookup_s = milliseconds(self.engine.param("timeout.lookup")) / 1000
        self.store_ms = milliseconds(self.engine.param("timeout.store"))
        log.info("Tierce for %s: %s", title, ", ".join(describe_store(self.engine)))

    def until(self) -> float:
        """When a question that begins now stops to wait for remote stores (time.monotonic)."""
        return time.monotonic() + self.lookup_s


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
        """After a page that is not loaded, later pages may not be tried: callers use leading pages only."""
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
        each page, and the rest of the prompt would not be stored after a page that counts as not stored."""
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
