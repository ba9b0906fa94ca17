# SPDX-License-Identifier: Apache-2.0
"""The choice of a lossy codec (docs/using/operation.md): part of the namespace, and only within a measured bound."""

from __future__ import annotations

from dataclasses import dataclass, replace

from .identity import ConfigError, Unsupported, has_drafter
from .quality import figure, nats, percent, percent_of, read_measured, require_agreement

NONE = "none"
DTYPES = ("bfloat16", "float16")
BY_TOKEN = ("cachegen",)  # codecs that treat the values of a token together


@dataclass(frozen=True)
class LossyGate:
    """The measured loss of a codec."""

    codec: str
    agreement: float  # percent, of the worst prompt
    kl: float  # nats, of the worst prompt
    date: str
    cells: str = ""  # what the codec must know of the cells

    @property
    def quantization(self) -> str:
        """In a namespace: tierce__codec_of_quantization of src/core/codec."""
        return "-".join(filter(None, ("tierce", self.codec, self.cells)))

    @property
    def words(self) -> str:
        return (f"KV that leaves memory is coded with loss by {self.codec}; measured on {self.date}: agreement with exact KV "
                f"at least {percent(self.agreement)}, divergence at most {nats(self.kl)}")


def read_lossy_gate(path: str, weights: str, kv_dtype: str, codec: str, bound: float) -> LossyGate:
    """`bound`: the least agreement in percent. Raises ConfigError if the file is no such file, and Unsupported if it has no
    measurement within the bound."""
    def parse(measured):
        rows = [(str(row["codec"]), figure(row["agreement"]), figure(row["kl"]), str(row.get("text", "")))
                for row in measured["rows"]]
        return rows, str(measured["kv_dtype"]), str(measured["date"])

    rows, dtype, date = read_measured(path, "codec.quality", "kv_quality.py", weights, parse)
    if dtype != kv_dtype:
        raise Unsupported(f"codec.quality {path!r} is of KV of {dtype}, not {kv_dtype}; measure with --kv-dtype {kv_dtype}")
    same = [row for row in rows if row[0] == codec]
    if not same:
        codecs = ", ".join(sorted({row[0] for row in rows}))
        raise Unsupported(f"codec.quality {path!r} has no measurement of {codec}; it has {codecs or 'none'}")
    worst = min(same, key=lambda row: row[1])
    require_agreement(worst[1], worst[3], "codec", path, bound, "choose another codec")
    return LossyGate(codec, worst[1], max(row[2] for row in same), date)


def choose(param, vllm_config, namespace: dict, has_states: bool, cells) -> LossyGate | None:
    """The codec of codec.lossy for an engine's namespace, or None if its KV is exact. `param` returns the value of a
    parameter; `cells` describes the cells of the engine's chunks, or raises Unsupported. Raises ConfigError: an engine must not run with exact KV whose operator counts on less, nor with a loss that
    nobody has measured."""
    codec = param("codec.lossy")
    if codec == NONE:
        return None
    try:
        if namespace["kv_dtype"] not in DTYPES:
            raise Unsupported(f"KV of {namespace['kv_dtype']}; accepted are {' and '.join(DTYPES)}")
        if has_states:
            raise Unsupported("the model has recurrent states")
        if has_drafter(vllm_config):
            raise Unsupported("the KV contains that of a drafter (EAGLE or MTP), which is not measured")
        if vllm_config.lora_config is not None:
            raise Unsupported("LoRA is enabled, and adapters are not measured")
        if param("blend.enabled") == "true":
            raise Unsupported("blend.enabled is set, and blended prompts are measured with exact KV")
        gate = read_lossy_gate(param("codec.quality"), namespace["weights"], namespace["kv_dtype"], codec,
                               percent_of(param("codec.agreement")))
        return replace(gate, cells=cells()) if codec in BY_TOKEN else gate
    except Unsupported as reason:
        raise ConfigError(f"codec.lossy {codec}: {reason}") from None
