# SPDX-License-Identifier: Apache-2.0
"""A real vLLM with a model that sees images (LLaVA), over a language model with one group and over one with windows beside
full attention. The KV of an image's tokens, and of all after them, belongs to the content of the image: another image of the
same size is no hit, and the same image is one in every request and process, whatever a client calls it. The answers are those
of a vLLM without a cache."""

from copy import copy
from functools import cache

import pytest

from conftest import answers, loaded
from fleet_world import STORAGES, Fleet
from image_models import IMAGE, IMAGE_TOKENS, make_llava
from test_vllm import BLOCK, disk_store, memory_store

KINDS = ("llama", "gemma3")
BEFORE, AFTER = 100, 30  # tokens before the first image and after the last; after many, an image is forgotten
NAME = "ab" * 32  # that a client gives an image; it looks like vLLM's hash of the content
OPTIONS = {"patch": "llava_on_cpu", "skip_tokenizer_init": False, "limit_mm_per_prompt": {"image": 2}}


class Prompt:
    """Text around images, each of which is a seed."""

    def __init__(self, text, *images):
        parts = [text[:BEFORE], *(text[BEFORE + 50 * i:BEFORE + 50 * (i + 1)] for i in range(len(images) - 1)),
                 text[-AFTER:]]
        self.tokens = parts[0] + [token for part in parts[1:] for token in [IMAGE, *part]]
        self.images = [(seed, None) for seed in images]
        self.length = len(self.tokens) + (IMAGE_TOKENS - 1) * len(images)

    def called(self, name):
        """The same, with a name for its images."""
        other = copy(self)
        other.images = [(seed, name) for seed, _ in self.images]
        return other

    @property
    def whole(self):
        """Tokens of its hit if everything is found."""
        return (self.length - 1) // BLOCK * BLOCK


def ask(host, *prompts, **more):
    return host.generate(prompts=[p.tokens for p in prompts], images=[p.images for p in prompts], **more)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """model(kind) -> the folder of a model."""
    return cache(lambda kind: make_llava(tmp_path_factory.mktemp("llava") / kind, kind))


@pytest.fixture(scope="module")
def asked(prompts):
    """The same text with one image or the other; with both, in both orders; and with other text after the first image."""
    text = prompts[0]
    return {"one": Prompt(text, 1), "other": Prompt(text, 2), "both": Prompt(text, 1, 2), "turned": Prompt(text, 2, 1),
            "goes on": Prompt(text[:BEFORE] + prompts[1], 1)}


@pytest.fixture(scope="module")
def plain(without_cache, model, asked):
    """plain(kind) -> the answers of a vLLM without a cache, by name. They depend on the images."""
    def answer(host):
        right = dict(zip(asked, answers(ask(host, *asked.values()))))
        assert right["one"] != right["other"], right
        return right

    return without_cache(lambda kind: {"model": model(kind), **OPTIONS}, answer)


@pytest.mark.parametrize("kind", KINDS)
def test_hits(engine, model, asked, plain, tmp_path, kind):
    store, right = disk_store(tmp_path / "store", **{"timeout.lookup": "5s"}), plain(kind)
    host = engine(store, model=model(kind), **OPTIONS)

    def check(name, where="memory", called=None):
        """Tokens loaded for a prompt that vLLM itself does not hold."""
        assert host.forget()
        outputs = ask(host, asked[name].called(called))
        assert answers(outputs) == [right[name]], name
        assert loaded(outputs, "failed") == [0]
        return loaded(outputs, where)[0]

    before, first_image = BEFORE // BLOCK * BLOCK, (BEFORE + IMAGE_TOKENS) // BLOCK * BLOCK
    assert check("one", called=NAME) == 0
    # The same text, and as many tokens of another image: no more than the text before it. A window's chunk is loaded whole.
    assert 0 < check("other") <= before
    assert 0 < check("turned") <= asked["other"].whole
    assert before < check("goes on") <= first_image
    for name in asked:
        check(name)
    for name, prompt in asked.items():
        assert check(name) == prompt.whole
    assert host.flush()
    host.kill()
    # In another process, the same images have the same contents, and vLLM has not seen them. The first one's name is given to
    # the other.
    host = engine(store, model=model(kind), **OPTIONS)
    assert check("other", "disk", NAME) == asked["other"].whole
    outputs = ask(host, *asked.values(), together=True)
    assert answers(outputs) == list(right.values()) and loaded(outputs, "failed") == [0] * len(asked)
    assert "Tierce is off" not in host.text(host.mark) and "Tierce failed in" not in host.text(host.mark)


def test_a_name_that_is_given_to_two_images_in_one_process(engine, model, asked, plain):
    """vLLM's own caches go by names, so that KV of the second one is not trusted; and of the first one, from then on."""
    host = engine(memory_store(), model=model("llama"), mm_processor_cache_gb=0, **OPTIONS)
    before = BEFORE // BLOCK * BLOCK

    def check(name, called="image"):
        assert host.forget_images()
        outputs = ask(host, asked[name].called(called))
        assert answers(outputs) == [plain("llama")[name]]
        return loaded(outputs, "memory")[0]

    assert check("one") == 0 and check("one") == asked["one"].whole
    stored = host.stats()["chunks_stored"]
    assert stored > 0
    for name in ("other", "other", "one"):
        assert check(name) == 0 and host.stats()["chunks_stored"] == stored
    assert check("other", "another") <= before and check("other", "third") == asked["other"].whole
    assert check("one", "fourth") == asked["one"].whole


def test_through_a_pool(engine, model, asked, plain, tmp_path):
    """What one engine computed another loads from a storage that a manager governs. The first image's name is given to
    the other one."""
    fleet = Fleet(tmp_path, [STORAGES["file"](tmp_path)])
    store = {"memory.size": "256MiB", "disk.path": "", "remote.urls": fleet.url, "cost.check": "false",
             "chunk.tokens": str(BLOCK), "timeout.lookup": "5s"}
    try:
        first = engine(store, model=model("llama"), **OPTIONS)
        outputs = ask(first, *(asked[name].called(NAME if name == "one" else None) for name in asked))
        assert answers(outputs) == list(plain("llama").values())
        assert first.flush() and fleet.storages[0].objects() > 0
        second = engine(store, model=model("llama"), **OPTIONS)
        outputs = ask(second, asked["other"].called(NAME))
        assert answers(outputs) == [plain("llama")["other"]]
        assert loaded(outputs, "remote") == [asked["other"].whole]
    finally:
        fleet.stop()
