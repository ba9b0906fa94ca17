# SPDX-License-Identifier: Apache-2.0
"""The identity of images: their data, and not vLLM's name for it."""

from types import SimpleNamespace as Thing

import numpy
import pytest

pytest.importorskip("vllm")
import torch  # noqa: E402

from media_items import feature, item, pixels  # noqa: E402
from tierce.vllm import media as ours  # noqa: E402
from tierce.vllm.identity import Unsupported  # noqa: E402
from tierce.vllm.media import Media, content_of  # noqa: E402

CAT = "ca" * 32  # looks like a hash of content


def request(*features, lora=None):
    return Thing(mm_features=list(features), lora_request=lora)


def contents(media, *features, **more):
    return [span.content for span in media.spans(request(*features, **more))]


def digest(**fields):
    return content_of(feature("x", item(**fields)))


def test_equal_data_are_one_content():
    grid = torch.arange(12.0).reshape(3, 4)
    assert digest(a=grid) == digest(a=grid.t().contiguous().t()) == digest(a=grid.clone())
    assert digest(a=grid, b=[grid, 1]) == digest(b=[grid, 1], a=grid)
    assert contents(Media(), feature(CAT, pixels(1))) == contents(Media(), feature("my cat", pixels(1)))


def test_other_data_are_another_content():
    grid = torch.arange(12.0).reshape(3, 4)
    turned = grid.clone()
    turned[2, 3] = 11.5
    array = numpy.arange(4, dtype=numpy.int32)
    values = [grid, turned, grid.reshape(4, 3), grid.reshape(12), grid.to(torch.bfloat16), grid.to(torch.int32), grid[:0],
              grid[0], torch.tensor(1), torch.tensor(True), 1, 1.0, True, "1", b"1", [], [1], [[1]], [1, 1], [grid, grid], [grid],
              {"a": 1}, {"b": 1}, {}, array, array.astype(numpy.int64), array.reshape(2, 2)]
    seen = {digest(a=value) for value in values} | {digest(b=grid), digest(a=grid, b=grid)}
    assert len(seen) == len(values) + 2
    sound = feature("x", item(a=grid))
    sound.modality = "audio"
    assert content_of(sound) not in seen


def test_tokens_without_an_embedding_count():
    masks = [None, torch.tensor([True, False]), torch.tensor([False, True])]
    assert len({contents(Media(), feature("x", pixels(1), mask=mask))[0] for mask in masks}) == 3


def test_spans_are_those_of_the_prompt():
    media = Media()
    two = media.spans(request(feature("b", pixels(2), 200, 10), feature("a", pixels(1), 3, 20)))
    assert [(span.first, span.last) for span in two] == [(3, 23), (200, 210)]
    assert media.spans(request()) == []


@pytest.mark.parametrize("name", [CAT, "my photo"])
def test_a_name_that_gets_another_content_is_served_no_more(name):
    """vLLM's own caches go by names: it may compute the one with the other."""
    media, first = Media(), feature(name, pixels(1))
    assert contents(media, first) == contents(media, feature(name, pixels(1))) and media.known(name)
    for data in (pixels(2), pixels(2), pixels(1)):
        with pytest.raises(Unsupported, match="another content"):
            media.spans(request(feature("other", pixels(3)), feature(name, data)))
    assert media.known(name) is None
    assert contents(media, feature("other", pixels(3))) == contents(media, feature("another", pixels(3)))


def test_all_images_of_a_request_are_seen():
    """Also behind an image that cannot be served."""
    media = Media()
    with pytest.raises(Unsupported, match="without its data"):
        media.spans(request(feature("a", None), feature("b", pixels(1))))
    with pytest.raises(Unsupported, match="another content"):
        media.spans(request(feature("b", pixels(2))))


def test_images_without_data_are_those_that_were_seen():
    media = Media()
    assert contents(media, feature(CAT, pixels(1))) == contents(media, feature(CAT, None))


@pytest.mark.parametrize("data, said", [
    (item(address=1, monotonic_id=2, signature=[3]), "cache-type lru"), (item(), "has no data"),
    (item(pixel_values=None), "has no data"), (item(a=[object()]), "type object"), (item(a=numpy.array([object()])), "type ndarray"),
    (item(a=[None]), "type NoneType")])
def test_data_without_a_digest_are_not_served(data, said):
    with pytest.raises(Unsupported, match=said):
        Media().spans(request(feature(CAT, data)))


def test_a_digest_is_computed_once(monkeypatch):
    media, computed = Media(), []
    monkeypatch.setattr(ours, "content_of", lambda each: computed.append(each) or content_of(each))
    data = pixels(1)
    assert contents(media, feature(CAT, data)) == contents(media, feature(CAT, data)) and len(computed) == 1
    contents(media, feature(CAT, pixels(1)))
    assert len(computed) == 2


def test_names_are_bounded(monkeypatch):
    """The least recently used name is forgotten."""
    monkeypatch.setattr(ours, "NAMES_MAX", 2)
    media = Media()
    for seed, name in enumerate("abac"):
        media.spans(request(feature(name, pixels(seed % 2))))
    assert list(media.seen) == ["a", "c"]


def test_an_adapter_of_the_encoder_separates():
    """vLLM puts its name before that of the image. Another adapter under this name, or none, is another output."""
    def adapted(path, name=f"style:{CAT}"):
        return request(feature(name, pixels(1), mm_hash=CAT), lora=Thing(lora_name="style", lora_path=path))

    media = Media()
    assert media.spans(adapted("/a")) == media.spans(adapted("/a"))
    with pytest.raises(Unsupported, match="another content"):
        media.spans(adapted("/b"))
    media = Media()
    assert media.spans(request(feature(f"style:{CAT}", pixels(1), mm_hash=f"style:{CAT}")))
    with pytest.raises(Unsupported, match="another content"):
        media.spans(adapted("/a"))
    media = Media()  # an adapter of the language model only
    assert media.spans(adapted("/a", CAT)) == media.spans(adapted("/b", CAT))
