# SPDX-License-Identifier: Apache-2.0
"""The identity of images and similar inputs: a digest of the data that the model reads, and not their name.

vLLM identifies an input by a hash, which clients can replace by a name of their own (`multi_modal_uuids`). A name says
nothing about the content, and vLLM hashes some names, so that they look like hashes of content."""

from __future__ import annotations

import struct
import weakref
from collections import OrderedDict
from collections.abc import Mapping
from typing import NamedTuple

import numpy
import torch
from blake3 import blake3  # vLLM requires it

from .identity import Unsupported

# Names whose content is remembered. vLLM's own caches hold fewer inputs, and forget the least recently used first, too.
NAMES_MAX = 1 << 17
# An input in vLLM's shared memory (--mm-processor-cache-type shm) has these fields instead of data.
HANDLE = {"address", "monotonic_id"}


class Span(NamedTuple):
    """An input in a prompt: its tokens [first, last), and its content."""

    first: int
    last: int
    content: bytes


class Seen:
    """The content of a name in this process."""

    __slots__ = ("data", "content", "encoder")

    def __init__(self, data, content: bytes, encoder: str):
        self.data = weakref.ref(data)
        self.content: bytes | None = content  # None: the name had several contents
        self.encoder = encoder  # adapter_of


def framed(kind: bytes, data: bytes) -> bytes:
    return kind + struct.pack("<Q", len(data)) + data


def feed_tensor(hasher, tensor: torch.Tensor) -> None:
    flat = tensor.detach().to("cpu").contiguous().reshape(-1).view(torch.uint8)
    hasher.update(framed(b"t", f"{tensor.dtype} {list(tensor.shape)}".encode()))
    hasher.update(memoryview(flat.numpy()))


def feed(hasher, value) -> None:
    """Adds a value in a form that no other value has. Raises Unsupported."""
    if isinstance(value, torch.Tensor):
        feed_tensor(hasher, value)
    elif isinstance(value, numpy.ndarray) and not value.dtype.hasobject:
        hasher.update(framed(b"a", f"{value.dtype.str} {list(value.shape)}".encode()))
        hasher.update(numpy.ascontiguousarray(value).tobytes())
    elif isinstance(value, (bytes, bytearray)):
        hasher.update(framed(b"b", bytes(value)))
    elif isinstance(value, (str, bool, int, float)):
        hasher.update(framed(b"v", f"{type(value).__name__} {value!r}".encode()))
    elif isinstance(value, (list, tuple)):
        hasher.update(b"l" + struct.pack("<Q", len(value)))
        for each in value:
            feed(hasher, each)
    elif isinstance(value, Mapping):
        hasher.update(b"m" + struct.pack("<Q", len(value)))
        for name in sorted(value):
            feed(hasher, name)
            feed(hasher, value[name])
    else:
        raise Unsupported(f"an image or similar input holds a value of type {type(value).__name__}, which has no digest")


def content_of(feature) -> bytes:
    """The digest of an input that has data. Raises Unsupported."""
    if HANDLE <= set(feature.data):
        raise Unsupported("images are in vLLM's shared memory, where Tierce cannot read them; use --mm-processor-cache-type lru")
    fields = {name: element.data for name, element in feature.data.items()}
    if not fields or any(value is None for value in fields.values()):
        raise Unsupported("an image or similar input has no data")
    hasher = blake3()
    feed(hasher, feature.modality)
    feed(hasher, fields)
    return hasher.digest()


def span_of(feature, content: bytes) -> Span:
    """Which of the tokens are embeddings of the encoder is a part of the content."""
    position = feature.mm_position
    mask = getattr(position, "is_embed", None)
    if mask is not None:
        hasher = blake3(content)
        feed_tensor(hasher, mask)
        content = hasher.digest()
    return Span(position.offset, position.offset + position.length, content)


class Media:
    """The contents of inputs by vLLM's names for them. The scheduler's thread.

    vLLM's own caches go by names. So once a name has had two contents in this process, vLLM may have computed the KV of
    either with the other, and neither is stored or loaded any more."""

    def __init__(self):
        self.seen: OrderedDict[str, Seen] = OrderedDict()

    def content(self, request, feature) -> bytes:
        """The digest of an input's data. Raises Unsupported."""
        name, encoder = feature.identifier, adapter_of(request, feature)
        known = self.seen.get(name)
        if feature.data is not None and (known is None or known.data() is not feature.data):
            known = self.see(name, known, Seen(feature.data, content_of(feature), encoder))
        if known is None:
            raise Unsupported("vLLM passes an image or similar input without its data")
        self.seen.move_to_end(name)
        if known.encoder != encoder:
            known.content = None
        if known.content is None:
            raise Unsupported("an image or similar input has a name (uuid) that had another content before, and vLLM's own "
                              "caches may confuse the two")
        return known.content

    def see(self, name: str, known: Seen | None, now: Seen) -> Seen:
        if known is not None and (known.content, known.encoder) != (now.content, now.encoder):
            now.content = None
        self.seen[name] = now
        if len(self.seen) > NAMES_MAX:
            self.seen.popitem(last=False)
        return now

    def known(self, name: str) -> Seen | None:
        """The digests of the item with this name; None if it had several contents, or is unknown."""
        known = self.seen.get(name)
        return known if known is not None and known.content is not None else None

    def spans(self, request) -> list[Span]:
        """Sees all inputs of a request. Raises Unsupported if the content of one is unknown."""
        spans, reason = [], None
        for feature in request.mm_features:
            try:
                spans.append(span_of(feature, self.content(request, feature)))
            except Unsupported as error:
                reason = error
        if reason is not None:
            raise reason
        return sorted(spans)


def adapter_of(request, feature) -> str:
    """The adapter that changes the encoder's output for an input: vLLM's name of the input begins with its name."""
    base, lora = getattr(feature, "mm_hash", None), getattr(request, "lora_request", None)
    if lora is None or base is None or feature.identifier == base:
        return ""
    return f"{lora.lora_name} {lora.lora_path}"
