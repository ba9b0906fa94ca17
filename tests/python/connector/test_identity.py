# SPDX-License-Identifier: Apache-2.0
"""Data that separates requests and engines, and data that must not."""

import os
from types import SimpleNamespace as Thing

import pytest

from tierce import _core as core
from tierce.vllm import identity
from tierce.vllm.identity import AdapterDigests, Unsupported, block_extras, chain_root, hashes_with_media, layout
from tierce.vllm.media import Span
from tierce.vllm.tracker import ChainRoot
from tierce.vllm.worker import int32

BLOCK = 32
CAT, DOG = b"cat" * 10, b"dog" * 10


def request(**changes):
    return Thing(**{"prompt_embeds": None, "prompt_token_ids": [1, 2], "mm_features": [],
                    "lora_request": None, "cache_salt": None, **changes})


def image(content, offset, length=40):
    return Span(offset, offset + length, content)


# ---- images and the like


def hashes(*images, tokens=8 * BLOCK):
    """Block hashes of a prompt of equal tokens that holds these images."""
    engine = core.Engine.open(None, {"memory.size": "1MiB", "disk.path": ""})
    view = engine.view({
        "weights": "00", "model": "{}", "kv_dtype": "float32", "quantization": "", "layout": "l",
        "layer_count": 1, "cell_bytes": [64], "block_tokens": BLOCK, "chunk_blocks": 1,
        "algo": "sha256"})
    chain = view.chain()
    blocks = tokens // BLOCK
    chain.append(int32(b"\5\0\0\0" * tokens), block_extras(images, BLOCK, 0, blocks))
    engine.close()
    return [chain.hash(i) for i in range(blocks)]


def common(a, b):
    """The number of leading blocks that two prompts share."""
    return next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), len(a))


def test_images_separate_from_their_first_block_on():
    plain = hashes()
    assert hashes(image(CAT, 70)) == hashes(image(CAT, 70))
    assert common(plain, hashes(image(CAT, 70))) == 2
    assert common(hashes(image(CAT, 70)), hashes(image(DOG, 70))) == 2
    assert common(hashes(image(CAT, 70), image(CAT, 130)),
                  hashes(image(CAT, 70), image(DOG, 130))) == 4


def test_the_place_of_an_image_counts():
    assert common(hashes(image(CAT, 70)), hashes(image(CAT, 71))) == 2
    assert common(hashes(image(CAT, 0, 10), image(DOG, 10, 10)),
                  hashes(image(DOG, 0, 10), image(CAT, 10, 10))) == 0


def test_every_block_of_an_image_names_it():
    named = block_extras([image(CAT, 40, 100)], BLOCK, 0, 8)
    assert [block for block, _ in named] == [1, 2, 3, 4]
    # Parts of a chain that are sent one after the other give the same hashes.
    assert named == [*block_extras([image(CAT, 40, 100)], BLOCK, 0, 3),
                     *block_extras([image(CAT, 40, 100)], BLOCK, 3, 8)]
    assert block_extras([], BLOCK, 0, 8) is None
    assert block_extras([image(CAT, 40, 100)], BLOCK, 5, 8) is None


def test_hashes_of_vllm_get_the_contents():
    """From the first image on, and however the hashes are divided."""
    hashes = [bytes([i]) * 32 for i in range(8)]
    cat, dog = ([image(CAT, 70), image(each, 130)] for each in (CAT, DOG))
    with_cat, with_dog = (hashes_with_media(hashes, each, BLOCK, 0) for each in (cat, dog))
    assert hashes_with_media(hashes, [], BLOCK, 0) == hashes
    assert common(hashes, with_cat) == 2 and common(with_cat, with_dog) == 4
    assert not set(with_cat[4:]) & set(with_dog[4:]) and not set(with_cat[2:]) & set(hashes)
    assert [*hashes_with_media(hashes[:3], cat, BLOCK, 0), *hashes_with_media(hashes[3:], cat, BLOCK, 3 * BLOCK)] == with_cat
    assert common(with_cat, hashes_with_media(hashes, [image(CAT, 71), cat[1]], BLOCK, 0)) == 2


@pytest.mark.parametrize("cache_gb, prefix_caching, hashed", [
    (4, True, True), (4, False, True), (0, True, True), (0, False, False)])
def test_when_vllm_hashes_media(cache_gb, prefix_caching, hashed):
    config = Thing(model_config=Thing(multimodal_config=Thing(mm_processor_cache_gb=cache_gb)),
                   cache_config=Thing(enable_prefix_caching=prefix_caching))
    assert identity.media_are_hashed(config) == hashed
    config.model_config.multimodal_config = None
    assert identity.media_are_hashed(config)


# ---- embeddings, salts


def test_prompts_without_token_ids_are_left_alone():
    for changes in ({"prompt_embeds": object()}, {"prompt_token_ids": None}):
        with pytest.raises(Unsupported, match="embeddings"):
            chain_root(request(**changes), AdapterDigests())


def test_salts_separate():
    roots = [chain_root(request(cache_salt=s), AdapterDigests()) for s in (None, "a", "b")]
    assert len(set(roots)) == 3
    assert chain_root(request(cache_salt=""), AdapterDigests()) == roots[0]


# ---- adapters


def adapter(folder, weights=b"weights", config=b"{}"):
    folder.mkdir(exist_ok=True)
    (folder / "adapter_model.safetensors").write_bytes(weights)
    (folder / "adapter_config.json").write_bytes(config)
    return str(folder)


def test_adapters_are_known_by_their_content(tmp_path):
    digests = AdapterDigests()
    one = digests.digest(adapter(tmp_path / "one"))
    assert digests.digest(adapter(tmp_path / "copy")) == one
    assert digests.digest(adapter(tmp_path / "two", weights=b"others")) != one
    assert digests.digest(adapter(tmp_path / "three", config=b'{"r": 8}')) != one
    lora = Thing(lora_path=str(tmp_path / "one"))
    assert chain_root(request(lora_request=lora), digests) == ChainRoot(lora=one)


def test_adapters_that_cannot_be_known_are_left_alone(tmp_path):
    digests = AdapterDigests()
    (tmp_path / "empty").mkdir()
    for path in (tmp_path / "missing", tmp_path / "empty"):
        with pytest.raises(Unsupported):
            digests.digest(str(path))


def test_an_adapter_that_changes_is_left_alone_from_then_on(tmp_path):
    """vLLM may still use the previous content, or may have read the new content."""
    digests = AdapterDigests()
    path = adapter(tmp_path / "one")
    first = digests.digest(path)
    os.utime(tmp_path / "one" / "adapter_config.json", ns=(1, 1))
    assert digests.digest(path) == first  # only touched
    adapter(tmp_path / "one", weights=b"others!")
    with pytest.raises(Unsupported, match="changed"):
        digests.digest(path)
    adapter(tmp_path / "one")
    with pytest.raises(Unsupported, match="changed"):
        digests.digest(path)


# ---- engines


def test_a_model_is_the_same_wherever_it_lies():
    keep = identity.relevant_config
    config = {"hidden_size": 8, "_name_or_path": "/a", "text_config": {"use_cache": True, "x": [1]}}
    assert keep(config) == keep({**config, "_name_or_path": "/b"})
    assert keep(config) == {"hidden_size": 8, "text_config": {"x": [1]}}
    assert keep(config) != keep({**config, "hidden_size": 9})


def test_a_layout_says_all_that_packs_a_block():
    same = dict(vllm_version="0.32.0", backend="CPU_ATTN", block_shape=(2, 32, 128),
                block_strides=(4096, 128, 1), dtype="torch.float32", block_tokens=32)
    texts = {layout(**{**same, **change}) for change in (
        {}, {"vllm_version": "0.32.1"}, {"backend": "FLASH_ATTN"}, {"block_shape": (4, 32, 64)},
        {"block_strides": (128, 256, 1)}, {"dtype": "torch.bfloat16"}, {"block_tokens": 64})}
    assert len(texts) == 7
    assert layout(**same) == layout(**same)


@pytest.mark.parametrize("algo, seed, constant", [
    ("sha256_cbor", None, True), ("sha256_cbor", "0", False), ("sha256", None, False),
    ("xxhash_cbor", None, False), ("xxhash", None, False)])
def test_whose_hashes_mean_the_same_everywhere(monkeypatch, algo, seed, constant):
    monkeypatch.delenv("PYTHONHASHSEED", raising=False)
    if seed is not None:
        monkeypatch.setenv("PYTHONHASHSEED", seed)
    assert identity.engine_hashes_are_constant(algo) == constant
