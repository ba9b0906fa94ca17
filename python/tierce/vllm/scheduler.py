# SPDX-License-Identifier: Apache-2.0
"""The scheduler half: decides what is loaded and what is saved, and instructs the worker half."""

from __future__ import annotations

import itertools
import logging
import secrets
from array import array
from dataclasses import replace

from ..lookup_flags import LOOKUP_MEMORY_ONLY, LOOKUP_PIN
from . import handover, identity, prompt_end, push
from .blend import BlendsRequests
from .hints import read_hint
from .identity import Unsupported
from .kv_events import blocks_of
from .link import (
    IDLE, PREFETCH, RESET_BYTES, RESET_NUMBER_BYTES, VERIFY, Facts, FromStart,
    Later, LinkError, NotReady, Pending)
from .media import Media
from .tracker import (
    LIMIT_FAILED, LIMIT_LOCAL, LIMIT_MINIMUM, LIMIT_NONE, LIMIT_NOT_READY, LIMIT_OPTION,
    LIMIT_SHORT, LIMIT_UNBLENDED, LIMIT_UNSUPPORTED, ChainPart, LoadResult, ReqMeta, RequestTracker, Rules, Served, request_name)

log = logging.getLogger(__name__)

SKIP_LOAD, SKIP_SAVE, REPORT = "tierce.skip_load", "tierce.skip_save", "tierce.report"
TAG, TAG_CHARACTERS_MAX = "tierce.tag", 64


def read_tag(value) -> str:
    """A request's tag, in the form of the access log."""
    if not isinstance(value, str):
        return ""
    return value.encode("ascii", "replace").decode("ascii")[:TAG_CHARACTERS_MAX]


class SchedulerHalf(BlendsRequests):
    """`find_link` returns the worker half, or its proxy in this process; it is called again until
    it returns one."""

    hashes_per_block = 1  # of vLLM, if they are used
    hands_ends = True  # see prompt_end.py

    def __init__(self, vllm_config, find_link):
        transfer = vllm_config.kv_transfer_config
        self.block_tokens = vllm_config.cache_config.block_size
        self.can_load = transfer.is_kv_consumer
        self.can_save = transfer.is_kv_producer
        self.memory_only = transfer.kv_load_failure_policy == "fail"
        self.find_link = find_link
        self.link = None
        self.facts: Facts | None = None
        self.rules: Rules | None = None
        self.adapters = identity.AdapterDigests()
        self.has_drafter = identity.has_drafter(vllm_config)
        self.media = Media()
        self.live: dict[str, tuple[object, RequestTracker]] = {}  # request id -> request, tracker
        self.ending: dict[str, RequestTracker] = {}  # have ended, but the step of their load has not
        self.ignored: dict[str, object] = {}  # requests that must not touch the store, by id
        self.waiting: list[str] = []  # asynchronous loads that vLLM allowed, not yet passed on
        # The numbers of other engines on the same store must differ from ours.
        self.sessions = itertools.count((secrets.randbits(31) << 32) + 1)
        # With several workers: the other workers receive with the steps the messages that the first one receives at
        # once.
        self.several = vllm_config.parallel_config.world_size > 1
        self.writes = itertools.count(secrets.randbits(31) << 32 | 1)  # see tierce_store_begin
        self.resets = itertools.count(1)
        self.era = b""  # of the last reset, see link.py
        self.over: list[int] = []  # sessions that have ended since the last step
        self.watch = False  # the worker half requires the ends of all requests, see Taint
        self.counters: dict[str, int] = {}
        self.warned: set[str] = set()

    def warn_once(self, text: str) -> None:
        if text not in self.warned and len(self.warned) < 100:
            self.warned.add(text)
            log.warning("%s", text)

    def ready(self) -> bool:
        if self.facts is None:
            self.link = self.link or self.find_link()
            if self.link is None:
                return False
            self.facts = facts = self.link.facts()
            self.rules = Rules(
                self.block_tokens, facts.chunk_blocks, self.can_load, self.can_save,
                facts.save_decode, facts.save_tail, facts.load_async, facts.load_min_tokens,
                facts.load_prefetch, self.memory_only, facts.longest_chunk)
        return self.facts.off is None

    # ---- a request's life

    def tracker(self, request) -> RequestTracker | None:
        """None if this request must not touch the store."""
        known = self.live.get(request.request_id)
        if known is not None and known[0] is request:
            return known[1]
        if known is not None:  # the request of this number before it: its end was not reported
            self.finished(known[0])
        try:
            media = self.media.spans(request)
            root = identity.chain_root(request, self.adapters)
        except Unsupported as reason:
            self.stop_saves_of_confused()
            self.warn_once(f"Tierce ignores a request: {reason}")
            self.ignored[request.request_id] = request
            return None
        self.ignored.pop(request.request_id, None)
        options = request.kv_transfer_params or {}
        tracker = RequestTracker(
            request.request_id, next(self.sessions), root, request.num_prompt_tokens,
            skip_load=options.get(SKIP_LOAD) is True, skip_save=options.get(SKIP_SAVE) is True,
            report=options.get(REPORT) is True, tag=read_tag(options.get(TAG)),
            hint=read_hint(options, getattr(request, "kv_hints", None)),
            offers=handover.is_prefill(options), source=handover.read_offer(options),
            hands_end=self.hands_ends and not self.has_drafter and not self.several)
        tracker.push, tracker.tickets = push.read_push(options), push.asked_tickets(options)
        if tracker.source is not None and (ticket := push.read_ticket(options)):
            tracker.source["ticket"] = ticket
        tracker.media, tracker.media_count = media, len(request.mm_features)
        self.live[request.request_id] = request, tracker
        return tracker

    def see_media(self, request) -> None:
        """vLLM computes the request without the store, but its own caches remember the images by name."""
        try:
            self.media.spans(request)
        except Unsupported:
            self.stop_saves_of_confused()

    def stop_saves_of_confused(self) -> None:
        """A name of an input may have got a second content. vLLM may use either for the requests in progress."""
        for request, tracker in self.live.values():
            tracker.skip_save |= any(self.media.known(f.identifier) is None for f in request.mm_features)

    def spans(self, request, tracker: RequestTracker) -> list:
        """The images of the request; a session of vLLM may have got more of them. Raises Unsupported."""
        if tracker.media_count != len(request.mm_features):
            tracker.media, tracker.media_count = None, len(request.mm_features)
            try:
                tracker.media = self.media.spans(request)
            except Unsupported as reason:
                tracker.skip_save = True
                self.stop_saves_of_confused()
                self.warn_once(f"Tierce saves no more of a request: {reason}")
        if tracker.media is None:
            raise Unsupported("a session got an image or similar input that cannot be served")
        return tracker.media

    def see_sessions(self) -> None:
        """Before the saves of a step: vLLM may compute any of its requests with the new images of another one."""
        for request, tracker in self.live.values():
            try:
                self.spans(request, tracker)
            except Unsupported:
                tracker.skip_save = True

    def chain_part(self, request, tracker: RequestTracker, start: int,
                   to_block: int) -> ChainPart | None:
        """The chain from `start`, which the worker half has, up to `to_block`."""
        size, each = self.block_tokens, self.hashes_per_block
        if start >= to_block:
            return None
        if self.facts.hashed:
            hashes = request.block_hashes[start * each:to_block * each]
            if len(hashes) != (to_block - start) * each:
                raise ValueError("vLLM has not hashed all full blocks of its tokens")
            hashes = identity.hashes_with_media(hashes, self.spans(request, tracker), size // each, start * size)
            return ChainPart(tracker.root, start, b"".join(hashes), True, tag=tracker.tag)
        tokens = array("i", request.all_token_ids[start * size:to_block * size])
        extras = identity.block_extras(self.spans(request, tracker), size, start, to_block)
        return ChainPart(tracker.root, start, tokens.tobytes(), False, extras, tracker.tag)

    def end_part(self, request, tracker: RequestTracker) -> ChainPart:
        """The second chain of the request, see prompt_end.py; without data if the worker half has it."""
        size, prompt = self.block_tokens, request.num_prompt_tokens
        whole, end = prompt // size, prompt_end.all_blocks(prompt, size)
        if tracker.sent_end:
            return ChainPart(tracker.root, end, b"", self.facts.hashed, tag=tracker.tag, ended=True)
        spans, tokens = self.spans(request, tracker), request.all_token_ids[:prompt]
        if not self.facts.hashed:
            extras = identity.block_extras(spans, size, 0, end)
            return ChainPart(tracker.root, 0, prompt_end.padded(tokens, size).tobytes(), False, extras, tracker.tag, True)
        part = self.chain_part(request, tracker, 0, whole)
        data = part.data if part is not None else b""
        if end > whole:
            data += prompt_end.end_hash(data[-prompt_end.HASH_BYTES:], tokens[whole * size:],
                                        identity.block_extras(spans, size, whole, end))
        return ChainPart(tracker.root, 0, data, True, tag=tracker.tag, ended=True)

    def matched_tokens(self, request, local_tokens: int) -> tuple[int | None, bool]:
        """None: not known yet; vLLM repeats the call."""
        if not self.ready():
            self.see_media(request)
            return 0, False
        tracker = self.tracker(request)
        if tracker is None:
            return 0, False
        tracker.load = None
        tracker.local_tokens = local_tokens
        barred = tracker.skip_load or not self.can_load or request.skip_reading_prefix_cache
        tracker.loads_end = not barred and self.may_load_end(request, tracker)
        limit = tracker.load_limit(self.rules, request.num_tokens)
        if barred or tracker.tokens_of(self.rules, limit) <= local_tokens:
            why = LIMIT_SHORT if limit == 0 else LIMIT_OPTION if barred else LIMIT_LOCAL
            tracker.note_lookup(self.rules, local_tokens, 0, 0, why)
            return 0, False
        local = self.rules.whole_blocks(local_tokens)
        self.pull(request, tracker, local)
        try:
            found, usable, in_memory, why = self.search(request, tracker, local, limit)
        except Later as reason:
            tracker.prefetched |= not isinstance(reason, Pending)
            return None, False
        exact = tracker.plan_load(self.rules, local_tokens, found, in_memory, usable)
        try:
            tokens = self.plan_blend(request, tracker, local) or exact
        except Later:
            tracker.load = None
            return None, False
        if tokens == 0 and tracker.tokens_of(self.rules, usable) > local_tokens:
            why = LIMIT_MINIMUM
        elif self.facts.unblended and why == LIMIT_NONE:
            why = LIMIT_UNBLENDED
        tracker.note_lookup(self.rules, local_tokens, limit, usable, why)
        # vLLM repeats the lookup while the request waits; only the last answer is counted.
        tracker.asked_tokens = tracker.tokens_of(self.rules, limit) - local_tokens
        tracker.hit_tokens = tokens
        if exact == 0 and found:
            self.link.release(tracker.session, True)
        return tokens, tokens > 0 and tracker.load.asynchronous

    def pull(self, request, tracker, local: int) -> None:
        """Has the worker half read a prefiller's offer, once for each request. Lookups wait for its end."""
        source, tracker.source = tracker.source, None
        if source is None:
            return
        try:
            part, end = self.whole_part(request, tracker, tracker.loads_end, request.num_tokens)
            self.link.pull(tracker.session, part, local, self.end_of_offer(tracker, source, end), source)
            tracker.note_sent(tracker.loads_end, end)
            tracker.pulls = True
        except (LinkError, Unsupported) as error:
            self.warn_once(f"the offer of a prefiller is not read: {error}")

    def end_of_offer(self, tracker, source: dict, end: int) -> int:
        """The blocks of an offer that are read. If the offer covers the last block of the prompt, which this engine cannot
        load, the prefiller's last chunk has this block too, and another name."""
        size = self.facts.chunk_blocks
        covers = source["tokens"] % self.block_tokens and not tracker.loads_end
        return end - end % size if covers and not self.rules.longest_chunk else end

    def may_load_end(self, request, tracker) -> bool:
        """Whether the last block of the prompt is looked up: before the request has first run, and if its offer covers
        the whole prompt."""
        if tracker.source is not None:
            tracker.loads_end = (tracker.hands_end and tracker.source["tokens"] == request.num_prompt_tokens)
        return tracker.loads_end and not tracker.runs and request.num_tokens == request.num_prompt_tokens

    def whole_part(self, request, tracker, ended: bool, tokens: int) -> tuple[ChainPart, int]:
        """A chain of the request for the worker half, without the beginning that it has, and how many blocks it has:
        the whole blocks of so many tokens, or, if `ended`, all blocks of the prompt."""
        if ended:
            return self.end_part(request, tracker), prompt_end.all_blocks(request.num_prompt_tokens, self.block_tokens)
        end = self.rules.whole_blocks(tokens)
        part = self.chain_part(request, tracker, min(tracker.sent_blocks, end), end) or ChainPart(
            tracker.root, end, b"", self.facts.hashed, tag=tracker.tag)
        return part, end

    def offer(self, request, tracker) -> dict | None:
        """Offers the prompt of a request that ends to a decoder; returns the fields for the decoder."""
        if (not tracker.offers or tracker.skip_save or not self.can_save or not self.facts.serves
                or not handover.has_prompt(request)):
            return None
        ended = tracker.hands_end and self.rules.save_tail
        try:
            part, end = self.whole_part(request, tracker, ended, request.num_prompt_tokens)
            if end == 0:
                return None
            tokens = request.num_prompt_tokens if ended else end * self.block_tokens
            what = handover.new_offer(self.facts.serves, tokens, self.facts.uses_tls, self.facts.ranks)
            if self.link.offer(tracker.session, part, 0, end, what) and tracker.is_pushed:
                what["ticket"] = tracker.push["ticket"]  # the decoder waits for the end of the push
            self.count("offers", 1)
        except (LinkError, Unsupported) as error:
            self.warn_once(f"a prompt is not offered to a decoder: {error}")
            return None
        return handover.answer(what)

    def tickets(self, count: int, holder: str) -> dict | None:
        """The answer to a proxy that will have prompts pushed here."""
        try:
            if self.facts is None or self.facts.off is not None or not self.facts.accepts:
                return push.tickets_answer("", [])
            return push.tickets_answer(self.facts.serves, self.link.tickets(count, holder), self.facts.uses_tls)
        except LinkError as error:
            self.warn_once(f"no tickets for pushes: {error}")
            return None

    def search(self, request, tracker, local: int, limit: int) -> tuple[int, int, int, int]:
        """The blocks that the store holds, those of them that may be loaded, and those in memory; the
        reason if nothing could be looked up, else LIMIT_NONE. Raises Later."""
        try:
            found, in_memory = self.lookup(request, tracker, local, limit)
            usable = found
            if self.has_drafter and found > local:
                usable, in_memory = self.before_end(request, tracker, local, found, in_memory)
            return found, usable, in_memory, LIMIT_NONE
        except NotReady:
            return 0, 0, 0, LIMIT_NOT_READY
        except Unsupported:
            return 0, 0, 0, LIMIT_UNSUPPORTED
        except LinkError as error:
            self.warn_once(f"a lookup is a miss: {error}")
            return 0, 0, 0, LIMIT_FAILED

    def before_end(self, request, tracker, local: int, found: int,
                   in_memory: int) -> tuple[int, int]:
        """The number of blocks that can be loaded, and how many of them are in memory, without the last found block:
        a drafter's KV at its end may come from a prompt that continues with another token."""
        return found - 1, min(in_memory, found - 1)

    def is_idle(self) -> bool:
        """Whether no request runs, as far as the connector knows."""
        return not self.ignored and not any(tracker.runs for _, tracker in self.live.values())

    def lookup(self, request, tracker, from_block: int, to_block: int) -> tuple[int, int]:
        """How many of the first `to_block` blocks can be loaded, and how many of them are in
        memory. The chain gets all whole blocks of the request, so that a chunk that ends beyond
        `to_block` is found as well; vLLM holds the chunks before `from_block` itself, so they are
        not requested."""
        flags = LOOKUP_PIN | (IDLE if tracker.pulls and self.is_idle() else 0)
        if not tracker.prefetched and self.memory_only:
            flags |= PREFETCH | VERIFY
        elif self.memory_only:
            flags |= LOOKUP_MEMORY_ONLY
        elif self.rules.load_prefetch and not tracker.prefetched:
            flags |= PREFETCH
        for _ in range(2):
            ended = tracker.loads_end
            part, end = self.whole_part(request, tracker, ended, request.num_tokens)
            try:
                answer = self.link.lookup(
                    tracker.session, part, from_block, to_block, flags)
                tracker.note_sent(ended, end)
                return answer
            except (Later, NotReady):
                tracker.note_sent(ended, end)
                raise
            except FromStart:
                tracker.sent_blocks, tracker.sent_end = 0, False
        raise LinkError("the worker half lacks the chain of a request although it was sent")

    def allocated(self, request, blocks, tokens: int) -> None:
        """`blocks`: vLLM's KVCacheBlocks."""
        known = self.live.get(request.request_id)
        if known is None:
            return
        tracker = known[1]
        self.count("lookup_tokens", tracker.asked_tokens)
        self.count("hit_tokens", min(tracker.hit_tokens, tokens))
        tracker.note_run(tokens)
        tracker.asked_tokens = tracker.hit_tokens = 0
        if tracker.allow_load(self.rules, tokens, blocks.get_block_ids()[0]):
            if tracker.load.asynchronous:
                self.waiting.append(request.request_id)
        elif tracker.load is not None and not tracker.load.allowed:
            tracker.load = None
            self.link.release(tracker.session, True)

    def load_sources(self, request) -> tuple[int, int]:
        """Tokens of the planned load in memory and in slower tiers."""
        known = self.live.get(request.request_id)
        load = known[1].load if known else None
        if load is None:
            return 0, 0
        memory, rest = (blocks * self.block_tokens for blocks in known[1].load_sources())
        return (memory, rest - load.lacks) if rest else (memory - load.lacks, 0)

    def finished(self, request) -> dict | None:
        """The request has ended. Returns the result of a query to it, if there was one."""
        known = self.live.pop(request.request_id, None)
        if known is None:
            if self.ignored.pop(request.request_id, None) is not None:
                self.note(Served(request_name(request.request_id), 0, request.num_prompt_tokens,
                                 self.block_tokens, limit=LIMIT_UNSUPPORTED))
            return None
        tracker = known[1]
        offered = self.offer(request, tracker) if self.facts is not None and self.facts.off is None else None
        if self.several:
            self.over.append(tracker.session)
        try:
            self.link.release(tracker.session, False)
            self.end_blend(tracker)
        except LinkError as error:
            log.debug("release: %s", error)
        if tracker.is_loading:
            self.ending[request.request_id] = tracker
        else:
            self.note(tracker.note_end(self.rules))
        if tracker.tickets is not None:
            offered = self.tickets(*tracker.tickets)
        if not tracker.report:
            return offered
        loaded, size = tracker.loaded, self.block_tokens
        return {**(offered or {}), "tierce.local_tokens": tracker.local_tokens,
                **{f"tierce.{name}_tokens": loaded.tokens(name, size)
                   for name in ("memory", "disk", "remote", "failed")},
                **({"tierce.blended_tokens": loaded.tokens("blended", size)} if loaded.blended else {})}

    def end_unreported(self, req_ids) -> None:
        """Ends the requests of a step's list of ended ones that vLLM has freed without a call."""
        for req_id in req_ids:
            known = self.live.get(req_id)
            request = known[0] if known is not None else self.ignored.get(req_id)
            if request is not None and request.is_finished():
                self.finished(request)

    def note_ended(self) -> None:
        """vLLM ends a request before it reports the load of the same step."""
        ending, self.ending = self.ending, {}
        for tracker in ending.values():
            self.note(tracker.note_end(self.rules))

    def note(self, served: Served) -> None:
        """For `tierce why --request`: if the note is lost, the request is unknown there."""
        try:
            self.link.note(served)
        except LinkError as error:
            log.debug("note: %s", error)

    # ---- a step

    def step(self, output) -> list[ReqMeta]:
        """The message to the worker half for the step that vLLM scheduled."""
        self.end_unreported(output.finished_req_ids)
        self.note_ended()
        if self.facts is None or self.facts.off is not None:
            return []
        computed = self.track_blocks(output)
        self.see_sessions()
        self.refuse_early_blends(output, computed)
        out = self.waiting_loads()
        for req_id, tokens in computed.items():
            self.add(out, *self.live[req_id], tokens, output.num_scheduled_tokens[req_id])
        return out

    def track_blocks(self, output) -> dict[str, int]:
        """Takes over the blocks of all requests before anything can fail for one of them. Returns the computed tokens
        of those that may touch the store."""
        computed, cached = {}, output.scheduled_cached_reqs
        for i, req_id in enumerate(cached.req_ids):
            known = self.live.get(req_id)
            if known is None:
                continue
            new_ids = cached.new_block_ids[i]
            if req_id in cached.resumed_req_ids:
                known[1].set_blocks(new_ids[0])
            elif new_ids is not None:
                known[1].append_blocks(new_ids[0])
            computed[req_id] = cached.num_computed_tokens[i]
        for new in output.scheduled_new_reqs:
            known = self.live.get(new.req_id)
            if known is not None:
                known[1].set_blocks(new.block_ids[0])
                computed[new.req_id] = new.num_computed_tokens
        return computed

    def waiting_loads(self) -> list[ReqMeta]:
        """The asynchronous loads that vLLM has allowed since the last step."""
        out: list[ReqMeta] = []
        for req_id in self.waiting:
            self.add_async_load(out, req_id)
        self.waiting.clear()
        return out

    def fail_step(self) -> None:
        """After an unexpected exception: loads that were not passed on must not begin later,
        because vLLM may have reused their blocks. The trackers may lack blocks of the step, so that a later save
        would store other blocks than it names."""
        self.waiting.clear()
        for _, tracker in self.live.values():
            tracker.load, tracker.skip_save = None, True

    def add(self, out, request, tracker: RequestTracker, computed: int, scheduled: int) -> None:
        end = min(computed + scheduled, request.num_tokens)
        load, tracker.load = tracker.load, None
        if load is not None and not load.allowed:
            load = None
        tracker.is_loading |= load is not None
        save = tracker.plan_save(self.rules, computed, end)
        if load is None and save is None and not self.watch:
            return
        try:
            part = self.step_part(request, tracker, load, save)
        except Unsupported:  # such a load fails, and vLLM computes the request
            part, save = None, None
            load = load and replace(load, allowed=False)
        write = self.next_write() if save is not None else 0
        pushed = self.place_of_push(tracker) if save is not None else None
        size = self.block_tokens
        out.append(ReqMeta(request.request_id, tracker.session, part, tracker.block_ids.tobytes(),
                           computed // size, -(-(computed + scheduled) // size), load, save,
                           tracker.tag, write, push=pushed,
                           blocks=self.event_blocks(request, tracker), hint=tracker.hint))

    def place_of_push(self, tracker: RequestTracker) -> dict | None:
        """Where a store of the request is pushed."""
        pushed = tracker.push
        # The decoder waits for a push that its request names; the worker half refuses other hosts.
        tracker.is_pushed |= pushed is not None and pushed["host"] in self.facts.allows
        return pushed

    def event_blocks(self, request, tracker: RequestTracker) -> tuple:
        """The blocks that KV events of the request's chunks name, as far as the worker half does not know them."""
        end, unit = tracker.sent_blocks, self.block_tokens
        if tracker.named_blocks is not None:
            end = min(end, tracker.named_blocks)
        if not self.facts.kv_events or end <= tracker.event_blocks:
            return ()
        start, tracker.event_blocks = self.rules.longest_chunks(tracker.event_blocks), end
        found = (blocks_of(request, start * unit // size, end * unit // size, size, hashes)
                 for size, hashes in self.event_sizes())
        return tuple(blocks for blocks in found if blocks is not None)

    def event_sizes(self) -> list[tuple[int, int]]:
        """The tokens of a block, and vLLM's hashes of one."""
        return [(self.block_tokens, 1)]

    def next_write(self) -> int:
        return next(self.writes) if self.several else 0

    def step_part(self, request, tracker: RequestTracker, load, save) -> ChainPart | None:
        """The part of the chain up to there that the workers do not have. Only the first worker receives
        lookups, and the others receive hashes with the steps; a load requires all hashes that its
        lookup used."""
        if not self.several:
            if save is None:
                return None
            if save.ended:
                part = self.end_part(request, tracker)
                tracker.note_sent(True, 0)
                return part
            part = self.chain_part(request, tracker, tracker.sent_blocks, save.to_block)
            tracker.sent_blocks = max(tracker.sent_blocks, save.to_block)
            return part
        end = save.to_block if save is not None else 0
        if load is not None:
            end = max(end, tracker.sent_blocks)
        part = self.chain_part(request, tracker, tracker.told_blocks, end)
        tracker.told_blocks = max(tracker.told_blocks, end)
        tracker.sent_blocks = max(tracker.sent_blocks, end)
        return part

    def add_async_load(self, out, req_id: str) -> None:
        known = self.live.get(req_id)
        if known is None or known[1].load is None:
            return
        request, tracker = known
        load, tracker.load = tracker.load, None
        tracker.is_loading = True
        try:
            part = self.step_part(request, tracker, load, None)
        except Unsupported:
            part, load = None, replace(load, allowed=False)
        # No tokens are computed for this request in this step.
        out.append(ReqMeta(req_id, tracker.session, part, tracker.block_ids.tobytes(),
                           load.to_block, load.to_block, load, tag=tracker.tag,
                           blocks=self.event_blocks(request, tracker), hint=tracker.hint))

    def stepped(self, results: dict[str, LoadResult], tainted: bool) -> None:
        self.watch = tainted
        for req_id, result in results.items():
            self.count_load(result)
            known = self.live.get(req_id)
            tracker = known[1] if known is not None else self.ending.get(req_id)
            if tracker is not None:
                tracker.count_loaded(result)
        self.note_ended()

    def count_load(self, result: LoadResult) -> None:
        for name in ("memory", "disk", "remote", "blended", "failed"):
            self.count(f"{name}_tokens", result.tokens(name, self.block_tokens))
        self.count("loads", 1)

    def take_over(self) -> list[int]:
        over, self.over = self.over, []
        return over

    def reset(self) -> bool:
        for request, tracker in self.live.values():
            tracker.sent_blocks = tracker.saved_blocks = tracker.told_blocks = tracker.event_blocks = 0
            tracker.sent_end = False
            # Its blocks hold KV from before the reset, including the blocks that are being loaded.
            tracker.skip_save |= request.num_computed_tokens > 0 or tracker.load is not None
        if not self.ready():
            return False
        self.era = (next(self.resets).to_bytes(RESET_NUMBER_BYTES, "big")
                    + secrets.token_bytes(RESET_BYTES - RESET_NUMBER_BYTES))
        return self.link.reset(self.era)

    def count(self, name: str, by: int) -> None:
        if by:
            self.counters[name] = self.counters.get(name, 0) + by

    def take_counters(self) -> dict[str, int]:
        counters, self.counters = self.counters, {}
        return counters
