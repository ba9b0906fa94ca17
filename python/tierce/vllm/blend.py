# SPDX-License-Identifier: Apache-2.0
"""Blended prompts: KV of documents that was computed after another prefix (docs/using/blending.md).

The scheduler half finds the segments of a prompt, looks up the chain of (lead, segment) for each, and promises vLLM the
tokens up to the last one that was found. The worker half loads their KV, rotates the keys, computes the tokens that are
recomputed, and writes the result to vLLM's paged memory (blend_worker.py, blend_layers.py)."""

from __future__ import annotations

import hashlib
import logging
import secrets
from array import array
from dataclasses import dataclass, field

from ..lookup_flags import LOOKUP_PIN
from .identity import Unsupported
from .link import FromStart, Later, LinkError, NotReady
from .quality import figure, nats, percent, read_measured, require_agreement
from .tracker import BlendSpec, ChainPart, LoadSpec

log = logging.getLogger(__name__)

SEGMENTS = "tierce.segments"
REUSED = 1  # of _core.blend_plan: a token's KV is that of a segment
SEGMENTS_MAX = 256  # of a prompt: each is looked up


# ---- the gate


@dataclass(frozen=True)
class Gate:
    """The measured quality of a model's blended prompts, at one share."""

    share: float
    check_layer: int
    agreement: float  # percent, of the worst text
    kl: float  # nats, of the worst text
    date: str

    @property
    def words(self) -> str:
        return (f"{100 * self.share:.4g} % of the reused tokens are recomputed; measured on {self.date}: agreement with the full "
                f"computation at least {percent(self.agreement)}, divergence at most {nats(self.kl)}")


def read_gate(path: str, weights: str, share: float, bound: float) -> Gate:
    """The measurement of these weights at this share. bound: the least agreement in percent, of each text. Raises
    ConfigError if the file is no such file, and Unsupported if it has no such measurement within the bound."""
    def parse(measured):
        rows = [(figure(row["share"]), figure(row["agreement"]), figure(row["kl"]), str(row.get("text", "")))
                for row in measured["rows"]]
        return rows, int(measured["check_layer"]), str(measured["date"])

    rows, check_layer, date = read_measured(path, "blend.quality", "kv_blend.py", weights, parse)
    same = [row for row in rows if abs(row[0] - 100 * share) < 1e-6]
    if not same:
        shares = ", ".join(f"{each:g}%" for each in sorted({row[0] for row in rows}))
        raise Unsupported(f"blend.quality {path!r} has no measurement of blend.share {100 * share:.4g}%; it has {shares or 'none'}")
    worst = min(same, key=lambda row: row[1])
    require_agreement(worst[1], worst[3], "blend", path, bound, "measure a greater blend.share")
    return Gate(share, check_layer, worst[1], max(row[2] for row in same), date)


# ---- the scheduler half


@dataclass
class Blended:
    """The segments of a request, kept in its tracker."""

    lead: int
    segments: list[tuple[int, int]]
    sessions: dict[int, int] = field(default_factory=dict)  # segment -> the session of its chain
    salt: bytes = field(default_factory=lambda: secrets.token_bytes(16))


class BlendsRequests:
    """A part of the scheduler half."""

    def blends(self) -> bool:
        return bool(self.facts.blend) and not self.era  # the measurement is of the weights before a reset

    def blended_of(self, request, tracker) -> Blended | None:
        """None if nothing of this request is blended."""
        if tracker.blended is None and not tracker.blend_refused:
            tracker.blend_refused = True
            if (not tracker.root.lora and not request.mm_features and not tracker.offers and tracker.push is None
                    and not tracker.pulls):
                segments = self.segments_of(request)
                if segments:
                    tracker.blended, tracker.blend_refused = Blended(segments[0][0], segments), False
        return tracker.blended

    def segments_of(self, request) -> list[tuple[int, int]]:
        from tierce import _core

        marks = (request.kv_transfer_params or {}).get(SEGMENTS)
        tokens = array("i", request.prompt_token_ids)
        if marks is None:
            separator = array("i", self.facts.blend["separator"])
            try:
                found = _core.split_segments(tokens, separator) if separator else []
            except _core.Error as error:  # there are too many
                self.warn_once(f"the segments of a prompt are ignored: {error}")
                return []
        else:
            try:
                found = [(start, end) for start, end in marks]
                _core.blend_plan(len(tokens), 0, 0, [(*each, 0) for each in found])
            except (ValueError, TypeError, OverflowError) as error:
                self.warn_once(f"{SEGMENTS} of a request is ignored: {error}")
                return []
        if len(found) > SEGMENTS_MAX:
            self.warn_once(f"a prompt with {len(found)} segments is not blended; at most {SEGMENTS_MAX} are")
            return []
        return found

    def plan_blend(self, request, tracker, local: int) -> int:
        """After the lookup of the exact prefix, of which vLLM holds `local` blocks: extends the planned load by
        blended tokens. Returns the tokens to promise, or 0 if nothing is blended. Raises Later."""
        if not self.blends() or (blended := self.blended_of(request, tracker)) is None:
            return 0
        from tierce import _core

        size, exact = self.block_tokens, tracker.load.to_block if tracker.load is not None else local
        if exact >= request.num_prompt_tokens // size:
            return 0  # the block that would get blended tokens has no hash yet that could be renamed
        try:
            segments = self.found_segments(request, tracker, exact * size)
        except (LinkError, NotReady) as error:
            self.warn_once(f"a prompt is not blended: {error!r}")
            return 0
        plan = _core.blend_plan(request.num_prompt_tokens, exact * size, blended.lead, segments)
        spans = [span for span in plan if span[2] == REUSED]
        reused = sum(end - start for start, end, *_ in spans)
        if reused == 0 or reused < self.rules.load_min_tokens:
            return 0
        end = spans[-1][1]
        to_block = -(-end // size)
        memory = tracker.load.memory_blocks if tracker.load is not None else local
        spec = BlendSpec(exact, array("i", request.prompt_token_ids[:end]).tobytes(),
                         [(start, stop, blended.sessions[segment], at) for start, stop, _, segment, at in spans])
        tracker.load = LoadSpec(local, to_block, memory, False, lacks=to_block * size - end, blend=spec)
        self.rename_blocks(request, tracker, exact)
        return end - local * size

    def found_segments(self, request, tracker, exact: int) -> list[tuple[int, int, int]]:
        """All are looked up before the first wait, so that the queries to a remote store run at the same time. Raises
        Later, LinkError or NotReady."""
        out, later = [], None
        for index, segment in enumerate(tracker.blended.segments):
            try:
                out.append((*segment, self.found_of(request, tracker, index, exact)))
            except Later as reason:
                later = reason
        if later is not None:
            raise later
        return out

    def found_of(self, request, tracker, index: int, exact: int) -> int:
        """Tokens of a segment whose KV is stored after the lead. Raises Later, LinkError or NotReady."""
        blended, size = tracker.blended, self.block_tokens
        start, end = blended.segments[index]
        blocks = (blended.lead + end - start) // size
        if start == blended.lead or end <= exact or blocks * size <= blended.lead:
            return 0  # the first segment belongs to the exact prefix
        tokens = request.prompt_token_ids
        session = blended.sessions.get(index) or next(self.sessions)
        blended.sessions[index] = session
        data = array("i", [*tokens[:blended.lead], *tokens[start:end]][:blocks * size]).tobytes()
        part = ChainPart(tracker.root, 0, data, False, tag=tracker.tag)
        try:
            found, _ = self.link.lookup(session, part, blended.lead // size, blocks, LOOKUP_PIN)
        except FromStart:
            raise LinkError("the worker half lacks the chain of a segment although it was sent") from None
        return max(0, min(found * size - blended.lead, end - start))

    def rename_blocks(self, request, tracker, exact: int) -> None:
        """vLLM's prefix cache must not give blended blocks to other requests: from the first one on, their hashes become
        ones that no other request has. vLLM hashes later blocks after these."""
        hashes, salt = request.block_hashes, tracker.blended.salt
        tracker.named_blocks = exact if tracker.named_blocks is None else min(exact, tracker.named_blocks)
        for index in range(exact, len(hashes)):
            hashes[index] = type(hashes[index])(hashlib.sha256(salt + hashes[index]).digest())

    def end_blend(self, tracker) -> None:
        """The request has ended."""
        if tracker.blended is not None:
            for session in tracker.blended.sessions.values():
                self.link.release(session, False)

    def computes_in_step(self, output, computed: dict[str, int]) -> set[int]:
        """The paged blocks that vLLM computes in this step. A blended prompt whose prefix is among them cannot be
        computed before the step."""
        out: set[int] = set()
        for req_id, tokens in computed.items():
            tracker = self.live[req_id][1]
            first, last = tokens // self.block_tokens, -(-(tokens + output.num_scheduled_tokens[req_id]) // self.block_tokens)
            out.update(tracker.block_ids[first:last])
        return out

    def refuse_early_blends(self, output, computed: dict[str, int]) -> None:
        """The blocks of such a load fail, and vLLM computes them. The blocks before them are valid, and other requests may
        use them, so the load must not be dropped as a whole."""
        blends = [req_id for req_id in computed if (load := self.live[req_id][1].load) is not None and load.blend]
        if not blends:
            return
        writes = self.computes_in_step(output, computed)
        others = any(req_id not in computed for req_id in output.num_scheduled_tokens)
        for req_id in blends:
            tracker = self.live[req_id][1]
            held = tracker.block_ids[:tracker.load.from_block]
            if held and (others or not writes.isdisjoint(held)):
                tracker.load.blend.early = True
