# SPDX-License-Identifier: Apache-2.0
"""A vLLM whose operator has chosen a lossy codec: it starts only with a measurement, finds its own KV after a restart, and
shares nothing with a vLLM with exact KV on the same folder."""

import json
import subprocess

import pytest

from tierce import _core

from conftest import ROOT, HostError, loaded
from test_vllm import disk_store, held_and_loaded, whole_blocks

pytestmark = pytest.mark.long  # bfloat16 is slow on processors without instructions for it
OPTIONS = {"dtype": "bfloat16"}


@pytest.fixture
def lossy_store(models, tmp_path):
    def store(agreement=99.5, codec="int8"):
        path = tmp_path / f"quality-{codec}-{agreement}.json"
        path.write_text(json.dumps({
            "tierce_codec_quality": 1, "weights": _core.fingerprint(models()), "kv_dtype": "bfloat16", "date": "2026-11-30",
            "rows": [{"codec": codec, "agreement": agreement, "kl": 0.0002}]}))
        return disk_store(tmp_path / "store", **{"codec.lossy": codec, "codec.quality": str(path)})

    return store


@pytest.mark.parametrize("codec", ["int8", "cachegen"])
def test_a_restart_finds_lossy_kv(engine, lossy_store, prompts, tmp_path, codec):
    asked = prompts[:2]
    host = engine(lossy_store(codec=codec), **OPTIONS)
    assert f"coded with loss by {codec}; measured on 2026-11-30: agreement with exact KV at least 99.50 %" in host.text()
    assert loaded(host.generate(prompts=asked), "disk") == [0, 0]
    assert host.flush()
    host.stop()
    exact = engine(disk_store(tmp_path / "store"), **OPTIONS)
    assert loaded(exact.generate(prompts=asked), "disk") == [0, 0]
    exact.stop()
    host = engine(lossy_store(codec=codec), **OPTIONS)
    outputs = host.generate(prompts=asked)
    assert held_and_loaded(outputs, "disk") == whole_blocks(asked)
    assert loaded(outputs, "failed") == [0, 0]
    host.stop()
    tierce = next((ROOT / "build").glob("*/bin/tierce"), None)
    if tierce is not None:
        listed = subprocess.run([tierce, "inspect", tmp_path / "store", "--verify"], capture_output=True, text=True)
        assert listed.returncode == 0, listed.stdout
        assert f"lossy    {codec}" in listed.stdout and f"compressed by {codec} (lossy) as bf16" in listed.stdout


def test_without_a_measurement_vllm_does_not_start(engine, lossy_store):
    for store, reason in ((lossy_store(98), "the agreement of 98.00 % in codec.quality"),
                          ({**lossy_store(), "codec.quality": ""}, "codec.quality is empty")):
        with pytest.raises(HostError, match=reason):
            engine(store, **OPTIONS)
