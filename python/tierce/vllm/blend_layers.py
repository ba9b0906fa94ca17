# SPDX-License-Identifier: Apache-2.0
"""The layers of a model in vLLM on CPUs, run for some tokens of a prompt: the computation of a blended prompt.

vLLM computes consecutive tokens only, and a blended prompt has gaps (docs/inside/design/017-blending.md). So this file
calls the modules of vLLM's model, layer by layer, with attention of its own over the keys and values of the whole
prompt. It runs on the worker's main thread, before vLLM's forward pass."""

from __future__ import annotations

import gc
import json
from dataclasses import dataclass

import torch
from torch.nn.functional import scaled_dot_product_attention

from .cell_layout import CellLayout
from .identity import Unsupported

MODELS = {"LlamaForCausalLM": "LlamaDecoderLayer", "Qwen2ForCausalLM": "Qwen2DecoderLayer",
          "Qwen3ForCausalLM": "Qwen3DecoderLayer"}
QUERY_ROWS = 256  # of one call of the attention: keys after the last of them are left out
PROBED_TOKENS, PROBED_ERROR = 4, 0.02
PROBED_DELTAS = 77, 4096  # kinds of scaling differ by 2 % at the first; beyond the second a model's own angles are inexact


def model_of(attention):
    """The model that has this attention module. Raises Unsupported. vLLM gives a connector no reference to the model."""
    for each in gc.get_objects():
        if type(each).__name__ in MODELS and isinstance(each, torch.nn.Module):
            layers = getattr(getattr(each, "model", None), "layers", ())
            if any(getattr(layer.self_attn, "attn", None) is attention for layer in layers if hasattr(layer, "self_attn")):
                return each
    raise Unsupported(f"only models of these classes of vLLM are blended: {', '.join(MODELS)}")


def require_plain(layer, wanted: str) -> None:
    """Raises Unsupported if the layer computes anything that Layers does not."""
    if type(layer).__name__ != wanted:
        raise Unsupported(f"a layer is a {type(layer).__name__} instead of a {wanted}")
    attention = layer.self_attn.attn
    impl = attention.impl
    if type(attention).__name__ != "Attention" or type(impl).__name__ != "CPUAttentionBackendImpl":
        raise Unsupported(f"a layer has {type(attention).__name__} with {type(impl).__name__}, not full attention on CPUs")
    if (impl.sliding_window != -1 or impl.logits_soft_cap or impl.alibi_slopes is not None or impl.sinks is not None
            or impl.is_fp8_kv_cache or impl.attn_type != "decoder"):
        raise Unsupported("attention with a window, a soft cap, ALiBi, sinks or fp8 KV")


def bytes_of(tensor):
    """The bytes of a contiguous tensor, which are its memory."""
    return tensor.view(torch.uint8).numpy()


@dataclass
class Reused:
    """Tokens [start, end) of a prompt have the KV that a load brings, computed at position `at`."""

    start: int
    end: int
    at: int
    load: object  # .layer(number) moves a layer to `blocks`; .rotate_keys and .key_distances work in the same memory
    blocks: object  # [block][...] of one layer; the first one begins at the position `first`
    first: int


class Layers:
    """Raises Unsupported if the model cannot be blended."""

    def __init__(self, vllm_config, attentions: dict, kv_caches: dict):
        """attentions: vLLM's modules by name; kv_caches: their paged memory."""
        names = [name for name in attentions if name in kv_caches]
        self.model = model_of(attentions[names[0]])
        self.layers = list(self.model.model.layers)
        for layer in self.layers:
            require_plain(layer, MODELS[type(self.model).__name__])
        self.names = [layer.self_attn.attn.layer_name for layer in self.layers]
        if sorted(self.names) != sorted(kv_caches):
            raise Unsupported("the model has KV in other layers than these")
        self.caches = [kv_caches[name] for name in self.names]
        self.dtype, self.device = self.caches[0].dtype, self.caches[0].device
        if self.dtype != vllm_config.model_config.dtype:
            raise Unsupported(f"KV of {self.dtype} in a model of {vllm_config.model_config.dtype}")
        self.rows = vllm_config.scheduler_config.max_num_batched_tokens  # for which vLLM has measured its memory
        self.type_name = str(self.dtype).removeprefix("torch.")
        self.rope = json.dumps(getattr(vllm_config.model_config.hf_text_config, "rope_parameters", None))
        self.cells: CellLayout | None = None  # vLLM chooses the kernels after it has registered the paged memory
        self.require_rotation()

    # ---- rotation

    def rotation(self, keys, delta: int) -> tuple:
        """The last arguments of rotate_keys, for keys [...][channel]."""
        return self.type_name, keys.shape[-1], self.rope, self.layers[0].self_attn.rotary_emb.is_neox_style, delta

    def rotate(self, load, keys, delta: int) -> None:
        """Contiguous keys of a load, in place: on the GPU if they are in its memory, behind the load's copies."""
        load.rotate_keys(keys.data_ptr(), keys.numel() // keys.shape[-1], *self.rotation(keys, delta))

    def require_rotation(self) -> None:
        """Compares our rotation with the model's. Raises Unsupported if they differ."""
        from tierce import _core

        attention = self.layers[0].self_attn
        keys = torch.linspace(-1, 1, PROBED_TOKENS * attention.kv_size).sin().view(PROBED_TOKENS, -1).to(self.dtype)
        longest = len(attention.rotary_emb.cos_sin_cache) - PROBED_TOKENS
        for delta in (min(each, longest) for each in PROBED_DELTAS):
            before, after = (self.rotated_by_model(attention, keys, torch.arange(PROBED_TOKENS) + at) for at in (0, delta))
            try:
                _core.rotate_keys(bytes_of(before), *self.rotation(before, delta))
            except _core.Error as error:
                raise Unsupported(f"its keys cannot be rotated: {error}") from None
            if (before.float() - after.float()).norm() > PROBED_ERROR * after.float().norm():
                raise Unsupported("its rotary embedding differs from its rope_parameters")

    @staticmethod
    def rotated_by_model(attention, keys, positions):
        queries = keys.new_zeros(len(keys), attention.q_size)
        _, out = attention.rotary_emb(positions, queries, keys.clone())
        return out.reshape(len(keys), -1, attention.head_dim).contiguous()

    # ---- one layer

    def project(self, layer, hidden, positions):
        """Queries, keys and values [token][head][channel]."""
        attention = layer.self_attn
        qkv, _ = attention.qkv_proj(hidden)
        q, k, v = qkv.split([attention.q_size, attention.kv_size, attention.kv_size], dim=-1)
        if getattr(attention, "qk_norm", hasattr(attention, "q_norm")):
            q, k = (norm(x.reshape(len(x), -1, attention.head_dim)).reshape(x.shape)
                    for norm, x in ((attention.q_norm, q), (attention.k_norm, k)))
        q, k = attention.rotary_emb(positions, q.contiguous(), k.contiguous())
        return (x.reshape(len(hidden), -1, attention.head_dim) for x in (q, k, v))

    def attend(self, layer, queries, positions, keys, values):
        """Each token attends to all tokens up to itself. Returns [token][head * channel]."""
        out = []
        for at in range(0, len(positions), QUERY_ROWS):
            some = positions[at:at + QUERY_ROWS]
            end = int(some[-1]) + 1
            k, v = (x[:end].transpose(0, 1)[None] for x in (keys, values))
            mask = torch.arange(end, device=self.device)[None, :] <= some[:, None]
            out.append(scaled_dot_product_attention(
                queries[at:at + QUERY_ROWS].transpose(0, 1)[None], k, v, attn_mask=mask,
                scale=layer.self_attn.attn.impl.scale, enable_gqa=True)[0].transpose(0, 1).flatten(1))
        return torch.cat(out)

    # ---- a prompt

    def blend(self, tokens, exact: int, block_ids, reused: list[Reused], share: float, check_layer: int, number_of) -> int:
        """Writes the KV of tokens [exact, len(tokens)) to the paged memory of `block_ids`, which has that of the tokens
        before. number_of(name): the number of a layer in the loads. Returns how many reused tokens were recomputed."""
        if self.cells is None:
            attention = self.layers[0].self_attn.attn
            self.cells = CellLayout(attention, self.caches[0].shape[1:], self.dtype, device=self.device)
        size = self.cells.shape[0]
        tokens, block_ids = tokens.to(self.device), block_ids.to(self.device)
        positions = torch.arange(exact, len(tokens), device=self.device)
        slots = block_ids[positions // size] * size + positions % size
        is_reused = torch.zeros(len(positions), dtype=torch.bool, device=self.device)
        for part in reused:
            is_reused[part.start - exact:part.end - exact] = True
        kept = 0
        hidden, residual, active = self.model.model.embed_tokens(tokens[exact:]), None, positions
        for number, layer in enumerate(self.layers):
            keys, values = self.stored(number, len(tokens), exact, block_ids, reused, number_of)
            if len(active):
                hidden, residual = self.normed(layer, hidden, residual)
                q, k, v = self.project(layer, hidden, active)
                if number == check_layer:
                    rows = self.chosen(reused[0].load, active, k, keys, is_reused, share)
                    kept = int(is_reused[rows].sum())
                    residual, q, k, v, active = (x[rows] for x in (residual, q, k, v, active))
                keys[active], values[active] = k, v
            attention = layer.self_attn.attn
            attention.impl.do_kv_cache_update(attention, keys[exact:], values[exact:], self.caches[number], slots)
            if len(active) and number + 1 < len(self.layers):  # the output of the last layer is not used
                out, _ = layer.self_attn.o_proj(self.attend(layer, q, active, keys, values))
                hidden, residual = layer.post_attention_layernorm(out, residual)
                hidden = torch.cat([layer.mlp(some) for some in hidden.split(self.rows)])
        return kept

    @staticmethod
    def normed(layer, hidden, residual):
        if residual is None:
            return layer.input_layernorm(hidden), hidden
        return layer.input_layernorm(hidden, residual)

    def stored(self, number: int, tokens: int, exact: int, block_ids, reused: list[Reused], number_of):
        """The keys and values [token][head][channel] of a prompt, as far as they are there."""
        size = self.cells.shape[0]
        keys, values = (torch.zeros((tokens, *self.cells.shape[1:]), dtype=self.dtype, device=self.device) for _ in range(2))
        if exact:
            blocks = self.caches[number][block_ids[:-(-exact // size)]]
            keys[:exact], values[:exact] = (self.cells.read(blocks, half)[:exact] for half in range(2))
        for part in reused:
            part.load.layer(number_of(self.names[number]))
            at, end = part.at - part.first, part.at - part.first + part.end - part.start
            moved = self.cells.read(part.blocks, 0)[at:end].contiguous()
            self.rotate(part.load, moved, part.start - part.at)
            keys[part.start:part.end], values[part.start:part.end] = moved, self.cells.read(part.blocks, 1)[at:end]
        return keys, values

    def chosen(self, load, active, computed, keys, is_reused, share: float):
        """The rows of the tokens that are computed from the check layer on: all that are not reused, and those of the
        share whose keys differ most."""
        from tierce import _core

        rows = is_reused.nonzero()[:, 0]
        pair = computed[rows].contiguous(), keys[active[rows]].contiguous()
        distances = torch.empty(len(rows), dtype=torch.float32, device=self.device)
        load.key_distances(distances.data_ptr(), *(each.data_ptr() for each in pair), len(rows), self.type_name,
                           computed[0].numel())
        most = _core.greatest_distances(bytes_of(distances.cpu()), share)
        is_kept = ~is_reused
        is_kept[rows[torch.tensor(most, dtype=torch.long, device=self.device)]] = True
        return is_kept.nonzero()[:, 0]
