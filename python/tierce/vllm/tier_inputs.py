# SPDX-License-Identifier: Apache-2.0
"""Images and similar inputs in the keys of the tier.

vLLM's hashes name an input by vLLM's name for it, which a client may choose (`multi_modal_uuids`). Two clients may use one
name for two images, in two engines that share a store. So a key behind an input has the digest of the input's data, too. vLLM
gives the tier only the number of a request; the tier takes the request itself from the connector that knows it. A request
that is not found there neither stores nor loads."""

from __future__ import annotations

import sys

from blake3 import blake3  # vLLM requires it
from vllm.v1.kv_offload.base import get_offload_block_hash, get_offload_group_idx, make_offload_key
from vllm.v1.request import Request

from .identity import Unsupported
from .media import Media, Span, framed

FRAMES_MAX = 8  # between the connector and the tier


def request_of(req_id: str):
    """The request that vLLM's connector announces; None: it is not found."""
    frame = sys._getframe(1)
    for _ in range(FRAMES_MAX):
        if frame is None:
            break
        found = frame.f_locals.get("request")
        if isinstance(found, Request) and found.request_id == req_id:
            return found
        frame = frame.f_back
    return None


class Inputs:
    """The inputs of a request, of which a session of vLLM gets more."""

    def __init__(self, request, media: Media):
        self.request, self.media = request, media
        self.count = 0
        self.spans: list[Span] | None = []  # None: the content of one is unknown

    def see(self) -> None:
        """Raises Unsupported if an input is new and its content is unknown."""
        if self.count != len(self.request.mm_features):
            self.count, self.spans = len(self.request.mm_features), None
            self.spans = self.media.spans(self.request)

    def are_certain(self) -> bool:
        """No name has got a second content: vLLM's own caches go by names, and may have confused the two."""
        return self.spans is not None and all(
            self.media.known(each.identifier) is not None for each in self.request.mm_features)


class InputKeys:
    """Keys of a multimodal model. The scheduler's thread."""

    def __init__(self, tell_once):
        self.media = Media()
        self.tell_once = tell_once

    def see(self, req_context) -> None:
        """A request begins: its inputs are kept in its context."""
        try:
            request = request_of(req_context.req_id)
            if request is None:
                raise Unsupported("vLLM does not show the request to the tier")
            inputs = Inputs(request, self.media)
            req_context.set_state(inputs)
            inputs.see()
        except Unsupported as reason:
            self.tell_once(f"Tierce's tier ignores a request: {reason}")

    def key(self, key: bytes, req_context) -> bytes | None:
        """The store's key; None: the request must not touch the store."""
        inputs = req_context.get_state(Inputs)
        try:
            if inputs is not None:
                inputs.see()
        except Unsupported as reason:
            self.tell_once(f"Tierce's tier ignores a request: {reason}")
        if inputs is None or not inputs.are_certain():
            return None
        if not inputs.spans:
            return key
        end = req_context.get_offload_key_position(key)
        if end is None:
            return None
        before = [each for each in inputs.spans if each.first < end]
        if not before:
            return key
        digest = get_offload_block_hash(key)
        hasher = blake3(framed(b"h", digest))
        for first, last, content in before:
            hasher.update(framed(b"i", b"%d %d " % (first, last) + content))
        return make_offload_key(hasher.digest(length=len(digest)), get_offload_group_idx(key))
