# SPDX-License-Identifier: Apache-2.0
"""Blended prompts in a real vLLM: documents that were stored after a lead are reused at other positions. With all tokens
recomputed, the KV is that of the full computation; what was blended is never given to another request, and never stored."""

import json
import random

import pytest

from tierce import _core

from conftest import answers, loaded, why

BLOCK, CHECK_LAYER = 32, 1
SOURCE = random.Random(20261129)
LEAD, SEPARATOR, QUESTION = ([SOURCE.randrange(256) for _ in range(count)] for count in (45, 5, 70))
DOCUMENTS = [[SOURCE.randrange(256) for _ in range(count)] for count in (300, 200, 330)]


def blended_prompt(order=(2, 0, 1)):
    tokens, segments = list(LEAD), []
    for at in order:
        tokens += SEPARATOR if segments else []
        segments.append([len(tokens), len(tokens) + len(DOCUMENTS[at])])
        tokens += DOCUMENTS[at]
    return tokens + QUESTION, segments


def whole(tokens):
    return (len(LEAD) + tokens) // BLOCK * BLOCK - len(LEAD)


@pytest.fixture(scope="module")
def blending_store(models, tmp_path_factory):
    """A configuration whose gate has a measurement of this share."""
    def store(share):
        path = tmp_path_factory.mktemp("quality") / "quality.json"
        path.write_text(json.dumps({
            "tierce_blend_quality": 1, "weights": _core.fingerprint(models()), "check_layer": CHECK_LAYER,
            "date": "2026-11-29", "rows": [{"share": share, "agreement": 90, "kl": 0.1}]}))
        return {"memory.size": "256MiB", "disk.path": "", "blend.enabled": "true", "blend.quality": str(path)}

    return store


@pytest.fixture(scope="module")
def blending(module_engine, blending_store):
    return module_engine(blending_store(15))


def store_documents(host, salt):
    """By requests that begin with the lead and a document."""
    host.generate(prompts=[LEAD + document for document in DOCUMENTS], tokens=1, salts=[salt] * len(DOCUMENTS))
    assert host.forget()


def test_blended_prompts(blending, expected):
    prompt, segments = blended_prompt()
    store_documents(blending, "a")
    for share, nearest, farthest in ((1.0, 0, 1e-4), (0.15, 1e-3, 0.5), (0.0, 1e-3, 0.5)):
        out, distance = blending.blend(prompt=prompt, segments=segments, share=share, salt="a")
        assert nearest <= distance < farthest, (share, distance)
        # The first document is exact: its chain is the beginning of the prompt.
        exact = (len(LEAD) + len(DOCUMENTS[2])) // BLOCK * BLOCK
        assert loaded([out], "memory") == [exact] and loaded([out], "failed") == [0]
        assert loaded([out], "blended") == [segments[2][0] + whole(len(DOCUMENTS[1])) - exact]
        said = why(blending.process.pid, out)
        assert (said["limit"], said["loaded_tokens"], said["stored_tokens"]) == ("blended", exact, 0)
        assert blending.forget()
    # Neither vLLM's cache nor the store has anything that was blended.
    out = blending.blend(prompt=prompt, segments=segments, share=0.15, salt="a")[0]
    (plain,) = blending.generate(prompts=[prompt], salts=["a"])
    assert loaded([plain], "local")[0] + loaded([plain], "memory")[0] == exact
    assert answers([plain]) == expected([prompt])


def test_a_blend_that_fails_is_computed(blending, expected):
    prompt, segments = blended_prompt((1, 2, 0))
    store_documents(blending, "b")
    blending.break_call(part="worker", name="begin_segments")
    outputs = blending.generate(prompts=[prompt], salts=["b"], wishes={"tierce.segments": segments})
    assert blending.mend_call() == 1
    assert answers(outputs) == expected([prompt])
    assert loaded(outputs, "failed")[0] > 0 and loaded(outputs, "blended") == [0]


def test_without_a_measurement_nothing_is_blended(engine, blending_store, expected):
    host = engine(blending_store(30))
    prompt, segments = blended_prompt()
    store_documents(host, "c")
    outputs = host.generate(prompts=[prompt], salts=["c"], wishes={"tierce.segments": segments})
    assert answers(outputs) == expected([prompt]) and loaded(outputs, "blended") == [0]
    assert "Tierce does not blend prompts: blend.quality" in host.text()
    assert "has no measurement of blend.share 15%; it has 30%" in host.text()
    assert why(host.process.pid, outputs[0])["limit"] == "unblended"
