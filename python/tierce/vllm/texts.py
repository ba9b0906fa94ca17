# SPDX-License-Identifier: Apache-2.0
"""Texts of the store: its durations and sizes, and a line about it for the log."""

from __future__ import annotations

import re


def milliseconds(text: str) -> int:
    """A duration as the store prints it: a whole number and its unit."""
    number, unit = re.fullmatch(r"(\d+)(ms|s|min|h)", text).groups()
    return int(number) * {"ms": 1, "s": 1000, "min": 60_000, "h": 3_600_000}[unit]


def size_bytes(text: str) -> int:
    """A size as the store prints it: a whole number, and its unit if that is shorter."""
    number, prefix, binary = re.fullmatch(r"(\d+)([KMGTP]?)(i?)B?", text).groups()
    return int(number) * (1024 if binary else 1000) ** " KMGTP".index(prefix or " ")


def version() -> str:
    from tierce import _core

    return _core.version()


def without_secrets(url: str) -> str:
    """The URL without user, password and parameters, which may be secret."""
    scheme, _, rest = url.partition("://")
    return f"{scheme}://{rest.partition('?')[0].rpartition('@')[2]}"


def describe_store(engine) -> list[str]:
    """Version, tiers and sizes, for a line of the log."""
    param, stats = engine.param, engine.stats()
    parts = [version()]
    if param("node.socket"):
        there = "connected" if stats["node_connected_now"] else "not connected yet"
        parts.append(f"node {param('node.socket')} ({there})")
    else:
        parts.append(f"memory {param('memory.size')}")
        if param("memory.coded_size") != "0":
            parts.append(f"compressed copies {param('memory.coded_size')}")
        path, status = param("disk.path"), stats["disk_open_status"]
        if path and status:
            parts.append(f"memory only: disk {path} cannot be used")
        elif path:
            form = ", ".join(value for value in (param("disk.codec"), param("disk.encryption")) if value != "none")
            parts.append(f"disk {path} {param('disk.size')} with {stats['disk_chunks_now']:,} chunks"
                         + (f" (new chunks: {form})" if form else ""))
        else:
            parts.append("no disk")
        parts += [f"remote {without_secrets(url)}" for url in param("remote.urls").split()]
    if param("engine.mode") != "normal":
        parts.append(f"mode {param('engine.mode')}")
    return parts
