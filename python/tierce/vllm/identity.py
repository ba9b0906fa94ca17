# SPDX-License-Identifier: Apache-2.0
"""The identity of KV: the namespace of an engine and the chain root of a request.

Everything that changes the KV bytes must be included. Everything else must be left out, because otherwise engines
that could share KV do not share it."""

from __future__ import annotations

import hashlib
import json
import os
import struct

from .tracker import ChainRoot

# Fields of a model's configuration that do not affect the KV.
IRRELEVANT_FIELDS = {
    "_name_or_path", "name_or_path", "transformers_version", "architectures_source", "id2label",
    "label2id", "use_cache", "output_attentions", "output_hidden_states", "return_dict",
    "bos_token_id", "eos_token_id", "pad_token_id", "task_specific_params", "_commit_hash",
    "torchscript", "problem_type", "finetuning_task", "chunk_size_feed_forward",
}
# Formats whose weights are the ones in the model's folder.
LOAD_FORMATS = {"auto", "hf", "safetensors", "fastsafetensors", "pt", "npcache", "mistral"}
# Methods of speculative decoding: those without a model, and those whose model has KV of its own and reads the hidden
# states of the target model.
WITHOUT_DRAFTER, WITH_DRAFTER = ("ngram", "suffix"), ("eagle", "eagle3", "mtp")
ISA_FLAGS = ("amx_tile", "amx_bf16", "avx512f", "avx512_bf16", "avx2", "asimd", "sve", "bf16")


class Unsupported(Exception):
    """This engine or request cannot use the store; the message has the reason."""


class ConfigError(ValueError):
    """The configuration is invalid, or, with strict, a required resource is not available. vLLM must
    not start, because it would run without the configured cache."""


def canonical_json(value) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, default=str)


def model_folder(model_config) -> str:
    """The local folder of the weights, for the fingerprint."""
    name, revision = model_config.model, getattr(model_config, "revision", None)
    if os.path.isdir(name):
        return name
    try:
        from huggingface_hub import snapshot_download

        return snapshot_download(name, revision=revision, local_files_only=True)
    except Exception:
        raise Unsupported(f"the model {name!r} has no local folder to fingerprint") from None


def weights_of(core, model_config) -> str:
    """The fingerprint of the weights; `core` is the extension module. Raises Unsupported."""
    cache = os.path.join(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "tierce")
    return core.fingerprint(model_folder(model_config), cache)


def weights_after_reset(weights: str, era: bytes) -> str:
    """Replaces the fingerprint when the weights may have changed. `era` is a random number."""
    return hashlib.sha256((weights + era.hex()).encode()).hexdigest()


def require_known(vllm_config) -> None:
    """Raises Unsupported if the weights that determine the KV are unknown."""
    if vllm_config.model_config.runner_type != "generate":
        raise Unsupported(f"a {vllm_config.model_config.runner_type} model")
    if str(vllm_config.load_config.load_format) not in LOAD_FORMATS:
        raise Unsupported(f"weights of load format {vllm_config.load_config.load_format!r}")
    speculative = vllm_config.speculative_config
    if speculative is None:
        return
    if speculative.method not in WITHOUT_DRAFTER + WITH_DRAFTER:
        raise Unsupported(f"speculative decoding with {speculative.method!r}; supported methods: "
                          f"{', '.join(WITHOUT_DRAFTER + WITH_DRAFTER)}")
    # In this case vLLM does not read the results of a step from the earlier stages.
    if vllm_config.parallel_config.pipeline_parallel_size > 1:
        raise Unsupported("speculative decoding with pipeline parallelism")
    if has_drafter(vllm_config) and vllm_config.num_prefill_lookahead_tokens > 1:
        raise Unsupported("a drafter that reads several tokens ahead")


def has_drafter(vllm_config) -> bool:
    """Whether the KV contains that of a drafter: at each position it depends on the next token too."""
    speculative = vllm_config.speculative_config
    return speculative is not None and speculative.method in WITH_DRAFTER


def weights_of_engine(core, vllm_config) -> str:
    """The fingerprint of all weights that determine the KV. Raises Unsupported."""
    weights = weights_of(core, vllm_config.model_config)
    if not has_drafter(vllm_config):
        return weights
    drafter = weights_of(core, vllm_config.speculative_config.draft_model_config)
    return hashlib.sha256(f"{weights} {drafter}".encode()).hexdigest()


def relevant_config(config: dict) -> dict:
    def keep(value):
        if isinstance(value, dict):
            return {k: keep(v) for k, v in value.items() if k not in IRRELEVANT_FIELDS}
        if isinstance(value, (list, tuple)):
            return [keep(v) for v in value]
        return value

    return keep(config)


def effective_model(vllm_config) -> str:
    """The model's configuration as vLLM uses it, overrides included. Fields that are not set add
    nothing, so that namespaces stay valid when a field is added here."""
    model_config = vllm_config.model_config
    return canonical_json({
        "config": relevant_config(model_config.hf_config.to_dict()),
        "dtype": str(model_config.dtype),
        "impl": str(getattr(model_config, "model_impl", "auto")),
        "quantization": str(model_config.quantization),
        "scales": bool(getattr(vllm_config.cache_config, "calculate_kv_scales", False)),
        **length_dependent(model_config), **options_of_inputs(model_config), **drafter(vllm_config),
        **{name: str(value) for name in ("quantization_config", "model_class_overrides")
           if (value := getattr(model_config, name, None))},
    })


def drafter(vllm_config) -> dict:
    if not has_drafter(vllm_config):
        return {}
    speculative = vllm_config.speculative_config
    model_config = speculative.draft_model_config
    return {"drafter": {"method": speculative.method, "dtype": str(model_config.dtype),
                        "quantization": str(model_config.quantization),
                        "config": relevant_config(model_config.hf_config.to_dict())}}


def configs_below(config: dict):
    """A model's configuration and those of its parts."""
    yield config
    for value in config.values():
        if isinstance(value, dict):
            yield from configs_below(value)


def length_dependent(model_config) -> dict:
    """Settings that vLLM derives from max_model_len and that change the KV of every position: the
    choice of LongRoPE's factors, and the attention scaling of Llama 4."""
    out = {}
    every = list(configs_below(model_config.hf_config.to_dict()))
    originals = [c["original_max_position_embeddings"] for c in every
                 if c.get("original_max_position_embeddings")]
    if any((c.get("rope_type") or c.get("type")) in ("longrope", "su") for c in every):
        out["long_rope"] = [model_config.max_model_len > each for each in originals]
    if any(str(c.get("model_type", "")).startswith("llama4") for c in every):
        generation = {**model_config.try_get_generation_config(),
                      **(model_config.override_generation_config or {})}
        out["attn_temperature_tuning"] = generation.get("attn_temperature_tuning",
                                                        model_config.max_model_len > 32768)
    return out


def options_of_inputs(model_config) -> dict:
    """Options of vLLM that change how images and similar inputs become tokens, and that vLLM's hashes of
    the content leave out."""
    multimodal = getattr(model_config, "multimodal_config", None)
    names = ("mm_processor_kwargs", "media_io_kwargs", "video_pruning_rate", "video_pruning_method",
             "mm_encoder_attn_dtype")
    given = {name: str(value) for name in names
             if (value := getattr(multimodal, name, None))}
    return {"inputs": given} if given else {}


def kv_dtype(vllm_config) -> str:
    text = str(vllm_config.cache_config.cache_dtype)
    if text == "auto":
        text = str(vllm_config.model_config.dtype)
    return text.removeprefix("torch.")


def cpu_isa() -> str:
    """The instruction sets that decide how the CPU backend packs keys and values."""
    try:
        with open("/proc/cpuinfo", encoding="ascii", errors="replace") as file:
            for line in file:
                if line.lower().startswith(("flags", "features")):
                    flags = set(line.split(":", 1)[1].split())
                    return "+".join(f for f in ISA_FLAGS if f in flags)
    except OSError:
        pass
    return "unknown"


def layout(vllm_version: str, backend: str, block_shape, block_strides, dtype, block_tokens,
           ranks=None, replicas=1, memory="host") -> str:
    """The text of the engine's memory layout: how it arranges the bytes of a block, and with
    several workers the order of layers. The model of a GPU and its host do not change the bytes."""
    several = {} if ranks is None or ranks.count == 1 else {
        "ranks": {"tp": ranks.tp_size, "pp": ranks.pp_size, "order": "stage, tensor rank, layer",
                  **({"replicas": replicas} if replicas > 1 else {})}}
    platform = {"platform": memory} if memory != "host" else {
        "platform": "cpu", "machine": os.uname().machine, "isa": cpu_isa()}
    return canonical_json({
        "engine": f"vllm {vllm_version}", **platform, "backend": backend, "block_shape": list(block_shape),
        "block_strides": list(block_strides), "dtype": str(dtype).removeprefix("torch."),
        "block_tokens": block_tokens, **several,
    })


class AdapterDigests:
    """Content digests of LoRA adapters, cached as long as their files do not change."""

    NAMES = ("adapter_config.json",)
    SUFFIXES = (".safetensors", ".bin", ".pt")

    def __init__(self):
        # Path -> state of its files, and digest: None if the content changed in the meantime.
        self.known: dict[str, tuple[tuple, bytes | None]] = {}

    def digest(self, path: str) -> bytes:
        """Raises Unsupported if the content cannot be read, or has changed: vLLM may use the old
        or the new content."""
        try:
            files = self.files(path)
            state = tuple((name, *self.identity(full)) for name, full in files)
            if path not in self.known:
                self.known[path] = state, self.read(files)
            before, digest = self.known[path]
            if digest is not None and state != before and self.read(files) != digest:
                digest = None
            self.known[path] = state, digest
        except OSError as error:
            raise Unsupported(f"the LoRA adapter in {path!r} cannot be read: {error}") from None
        if digest is None:
            raise Unsupported(f"the LoRA adapter in {path!r} was changed while it was in use")
        return digest

    def files(self, path):
        if not os.path.isdir(path):
            raise Unsupported(f"the LoRA adapter {path!r} is not a local folder")
        names = sorted(n for n in os.listdir(path)
                       if n in self.NAMES or n.endswith(self.SUFFIXES))
        if not any(n.endswith(self.SUFFIXES) for n in names):
            raise Unsupported(f"the LoRA adapter {path!r} holds no weights")
        return [(n, os.path.join(path, n)) for n in names]

    @staticmethod
    def identity(path):
        s = os.stat(path)
        return s.st_dev, s.st_ino, s.st_size, s.st_mtime_ns, s.st_ctime_ns

    @staticmethod
    def read(files) -> bytes:
        digest = hashlib.sha256()
        for name, full in files:
            with open(full, "rb") as file:
                content = hashlib.file_digest(file, "sha256").digest()
            digest.update(struct.pack("<I", len(name)) + name.encode() + content)
        return digest.digest()


def media_are_hashed(vllm_config) -> bool:
    """Whether vLLM hashes images and similar inputs: with both of its caches off it numbers them."""
    settings = vllm_config.model_config.multimodal_config
    return (settings is None or settings.mm_processor_cache_gb > 0
            or bool(vllm_config.cache_config.enable_prefix_caching))


def chain_root(request, adapters: AdapterDigests) -> ChainRoot:
    """Raises Unsupported if the identity of this request's inputs is unknown. media.py identifies images."""
    if request.prompt_embeds is not None or request.prompt_token_ids is None:
        raise Unsupported("the prompt holds embeddings")
    lora = getattr(request, "lora_request", None)
    return ChainRoot(
        lora=b"" if lora is None else adapters.digest(lora.lora_path),
        salt=(request.cache_salt or "").encode(),
    )


def block_extras(spans, block_tokens: int, from_block: int, to_block: int):
    """The multimodal items in each block of [from_block, to_block): their contents and where they begin relative to the
    block. `spans`: sorted, of media.py."""
    out = []
    for block in range(from_block, to_block) if spans else ():
        start, end = block * block_tokens, (block + 1) * block_tokens
        text = b"".join(struct.pack("<Iq", len(content), first - start) + content
                        for first, last, content in spans if first < end and last > start)
        if text:
            out.append((block, text))
    return out or None


def hashes_with_media(hashes, spans, hash_tokens: int, start: int) -> list[bytes]:
    """vLLM's hashes of blocks of `hash_tokens` tokens, from token `start` on, which name multimodal items but do not have their
    contents: from the first item on they are hashed with the contents so far."""
    out = []
    for index, each in enumerate(hashes):
        end = start + (index + 1) * hash_tokens
        contents = b"".join(struct.pack("<q", first) + content for first, _, content in spans if first < end)
        out.append(hashlib.sha256(each + contents).digest() if contents else each)
    return out


def joined_extras(parts: list[bytes], tokens: int) -> bytes:
    """The text of a block whose parts of `tokens` tokens have these texts: the same as block_extras makes for the block."""
    spans = set()
    for index, text in enumerate(parts):
        at = 0
        while at < len(text):
            size, first = struct.unpack_from("<Iq", text, at)
            at += struct.calcsize("<Iq") + size
            spans.add((first + index * tokens, text[at - size:at]))
    return b"".join(struct.pack("<Iq", len(name), first) + name for first, name in sorted(spans))


def engine_hashes_are_constant(hash_algo: str) -> bool:
    """Whether every vLLM process computes the same block hashes."""
    return hash_algo == "sha256_cbor" and os.getenv("PYTHONHASHSEED") is None
