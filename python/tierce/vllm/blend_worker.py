# SPDX-License-Identifier: Apache-2.0
"""Blended prompts in the worker half: the checks of the setup, and the blend of a prompt before vLLM's forward pass."""

from __future__ import annotations

import logging
from array import array
from contextlib import ExitStack
from dataclasses import replace

from .blend import Gate, read_gate
from .device import HOST
from .identity import ConfigError, Unsupported, has_drafter
from .quality import percent_of
from .tracker import ReqMeta, int32
from .transfer import ORIGIN_FAILED

log = logging.getLogger(__name__)

ORIGIN_BLENDED = 255  # of a block; the store has other numbers
LOAD_FAILED = "a segment could not be loaded"


class BlendsPrompts:
    """A part of the worker half."""

    blend_layers = None  # of blend_layers.py; None: nothing is blended
    gate: Gate | None = None
    separator: list[int] = []
    unblended = False  # although blend.enabled is set
    blend_view = None

    # ---- the setup

    def prepare_blend(self) -> None:
        """Raises ConfigError. A setup that is not supported is logged."""
        if self.engine.param("blend.enabled") != "true":
            return
        try:
            self.require_blendable()
            param = self.engine.param
            self.gate = read_gate(param("blend.quality"), self.weights, percent_of(param("blend.share")) / 100,
                                  percent_of(param("blend.agreement")))
            self.separator = self.separator_tokens(self.engine.param("blend.separator"))
            self.blend_layers = self.open_layers()
            self.blend_view = self.view_of(range(self.part.layer_count))
            log.info("Tierce blends prompts: %s", self.gate.words)
        except Unsupported as reason:
            self.refuse_blends(str(reason))
        except ConfigError:
            raise
        except Exception as error:
            log.exception("Tierce does not blend prompts, because of a defect")
            self.refuse_blends(repr(error))

    def refuse_blends(self, reason: str) -> None:
        self.blend_layers, self.unblended = None, True
        log.warning("Tierce does not blend prompts: %s", reason)

    def require_blendable(self) -> None:
        """Raises Unsupported."""
        config = self.vllm_config
        if self.memory.kind != HOST:
            raise Unsupported("KV in the memory of a GPU")
        if self.ranks.count > 1:
            raise Unsupported("several workers")
        if self.hashed:
            raise Unsupported("chunks have the hashes of vLLM; set chunk.hash to sha256")
        if has_drafter(config):
            raise Unsupported("the KV contains that of a drafter")
        if config.lora_config is not None:
            raise Unsupported("LoRA is enabled")
        if config.kv_transfer_config.kv_load_failure_policy != "recompute":
            raise Unsupported("kv_load_failure_policy must be 'recompute'")

    def separator_tokens(self, text: str) -> list[int]:
        """Raises Unsupported."""
        if not text:
            return []
        if self.vllm_config.model_config.skip_tokenizer_init:
            raise Unsupported("blend.separator requires the tokenizer, which skip_tokenizer_init leaves out")
        from vllm.tokenizers import cached_tokenizer_from_config

        tokenizer = cached_tokenizer_from_config(self.vllm_config.model_config)
        tokens = tokenizer.encode(text, add_special_tokens=False)
        if not tokens:
            raise Unsupported(f"blend.separator {text!r} has no tokens")
        return list(tokens)

    def open_layers(self):
        from .blend_layers import Layers

        return Layers(self.vllm_config, self.vllm_config.compilation_config.static_forward_context, self.kv_caches)

    def blend_facts(self) -> dict:
        return {} if self.blend_layers is None else {"separator": self.separator}

    # ---- a step

    def blend_prompts(self) -> None:
        """After the step's other loads have begun. vLLM's cache may have given a blended prompt blocks that another request
        of the step loads, also the exact blocks of another blended prompt. So all loads end before the first blend."""
        requests = [r for r in self.requests if r.load is not None and r.load.blend is not None]
        if requests:
            for transfer in self.loads:
                transfer.advance(self.numbering.count)
            self.end_loads()  # now self.taint has the blocks that failed
        loaded = []
        for request in requests:
            exact, count = self.load_exact(request), request.load.blend.exact_block - request.load.from_block
            if not self.may_blend(request) or len(exact) < count or ORIGIN_FAILED in exact:
                self.count_load(request, exact)
            else:
                loaded.append((request, exact))
        for request, exact in loaded:
            self.count_load(request, self.blend_prompt(request, exact))

    def may_blend(self, request: ReqMeta) -> bool:
        return (request.load.allowed and not request.load.blend.early and not self.suspended
                and self.blend_layers is not None)

    def blend_prompt(self, request: ReqMeta, exact: bytes) -> bytes:
        """exact: the origins of its exact blocks. Returns those of all blocks, without those that failed at the end."""
        load = request.load
        # vLLM keeps blocks after a failed one if another request loaded that one, because it takes them for loaded KV.
        if not self.taint.blocks.isdisjoint(int32(request.block_ids)[:load.from_block]):
            return exact
        try:
            self.blend_rest(request)
            return exact + bytes([ORIGIN_BLENDED]) * (load.to_block - load.blend.exact_block)
        except Exception as error:
            log.warning("the prompt of request %s could not be blended: %r; vLLM computes it", request.req_id, error)
            return exact

    def load_exact(self, request: ReqMeta) -> bytes:
        """The origins of the blocks between those that vLLM has and the blended ones; none if they failed."""
        load = replace(request.load, to_block=request.load.blend.exact_block, lacks=0, blend=None)
        if load.blocks == 0 or not self.may_blend(request):
            return b""
        transfer = self.begin_load(replace(request, load=load))
        if transfer is None:
            return b""
        transfer.advance(self.numbering.count)
        try:
            return b"" if transfer.failed else transfer.handle.end()
        except Exception as error:
            log.warning("a load for request %s failed: %s; vLLM computes its blocks", request.req_id, error)
            return b""

    def blend_rest(self, request: ReqMeta) -> None:
        """Raises if anything of it failed."""
        import torch

        blend, size = request.load.blend, self.namespace["block_tokens"]
        block_ids = torch.tensor(list(int32(request.block_ids)), dtype=torch.long)
        tokens = torch.tensor(list(int32(blend.tokens)), dtype=torch.long)
        with ExitStack() as ended:
            reused = self.begin_segments(blend, size, ended)
            kept = self.blend_layers.blend(tokens, blend.exact_block * size, block_ids, reused, self.gate.share,
                                     self.gate.check_layer, lambda name: self.numbering.of(name).start)
            for part in reused:
                if ORIGIN_FAILED in part.load.end():
                    raise RuntimeError(LOAD_FAILED)
        log.debug("request %s: %d tokens blended after %d exact ones, %d of them recomputed", request.req_id,
                  len(tokens) - blend.exact_block * size, blend.exact_block * size, kept)

    def begin_segments(self, blend, size: int, ended: ExitStack) -> list:
        """The loads of all segments, into memory for one layer of them."""
        from .blend_layers import Reused

        extents = [(at // size, -(-(at + end - start) // size)) for start, end, _, at in blend.reused]
        count = sum(last - first for first, last in extents)
        memory = self.kv_caches[self.blend_layers.names[0]].new_empty((count, *self.blend_layers.caches[0].shape[1:]))
        layers, stride = self.part.layer_count, memory.stride(0) * memory.element_size()
        self.blend_view.set_paged([memory.data_ptr()] * layers, [stride] * layers, count, HOST)
        reused, begin = [], 0
        for (start, end, session, at), (first, last) in zip(blend.reused, extents):
            ids = array("i", [0] * first + list(range(begin, begin + last - first)))
            with self.using_chain(session, None) as (_, chain):
                load = self.blend_view.load_begin(chain, first, last, ids, session, 0)
            ended.callback(load.abort)
            reused.append(Reused(start, end, at, load, memory[begin:begin + last - first], first * size))
            begin += last - first
        return reused
