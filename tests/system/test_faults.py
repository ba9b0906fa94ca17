# SPDX-License-Identifier: Apache-2.0
"""Whatever is wrong with the store, the outputs are right."""

import json
import os
import random
import shutil
import subprocess
import sys
from contextlib import contextmanager

import pytest

from conftest import ROOT, answers, environment, loaded, prompt

PROMPTS = [prompt(100 + i, 1024) for i in range(3)]
LOADABLE = 1024 - 32


def damage(store, every):
    """Flips one bit in every `every` bytes of what was written."""
    draw = random.Random(5)
    flips = 0
    with open(os.path.join(store["disk.path"], "data"), "r+b", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        for start in range(0, size - every, every):
            at = start + draw.randrange(every)
            byte = os.pread(file.fileno(), 1, at)[0]
            os.pwrite(file.fileno(), bytes([byte ^ 1 << draw.randrange(8)]), at)
            flips += 1
    return flips


@pytest.mark.parametrize("mode", ["sync", "async"])
@pytest.mark.parametrize("every", [1 << 20, 64 << 10], ids=["some-chunks", "every-chunk"])
def test_damaged_chunks(engine, expect, store, mode, every):
    expected = expect(PROMPTS)
    settings = {**store, "load.async": mode == "async"}
    host = engine(settings)
    host.generate(prompts=PROMPTS)
    host.stop()
    assert damage(store, every)
    host = engine(settings)
    outputs = host.generate(prompts=PROMPTS)
    assert answers(outputs) == expected
    assert sum(loaded(outputs, "failed")) > 0
    stats = host.store_stats(store=settings)
    assert stats["checksum_failures"] + stats["identity_failures"] > 0
    # What was computed instead has replaced the damaged chunks.
    assert host.forget()
    outputs = host.generate(prompts=PROMPTS)
    assert answers(outputs) == expected
    assert loaded(outputs, "failed") == [0, 0, 0]
    assert loaded(outputs, "memory") == [LOADABLE] * 3


def test_policy_fail_loads_from_memory_only(engine, expect, store):
    """There a failed load would end the request, so what lies on disk is not promised."""
    expected = expect(PROMPTS)
    host = engine(store, policy="fail")
    host.generate(prompts=PROMPTS)
    assert host.forget()
    outputs = host.generate(prompts=PROMPTS)
    assert answers(outputs) == expected
    assert loaded(outputs, "memory") == [LOADABLE] * 3
    host.stop()
    damage(store, 64 << 10)
    host = engine(store, policy="fail")
    outputs = host.generate(prompts=PROMPTS)
    assert answers(outputs) == expected
    assert loaded(outputs, "disk") == [0, 0, 0]
    assert {o["end"] for o in outputs} == {"length"}
    warnings = [line for line in host.log_text().splitlines()
                if "kv_load_failure_policy is 'fail'" in line]
    assert len(warnings) == 2  # one for each engine


@contextmanager
def small_disk(folder, size):
    folder.mkdir()
    mount = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)],
                           capture_output=True)
    if mount.returncode != 0:
        pytest.skip("this user cannot mount a small disk")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.mark.parametrize("size", ["3m", "16k"])
def test_disk_full(engine, expect, store, tmp_path, size):
    expected = expect(PROMPTS)
    with small_disk(tmp_path / "disk", size) as folder:
        settings = {**store, "disk.path": str(folder / "store")}
        host = engine(settings)
        for _ in range(2):
            outputs = host.generate(prompts=PROMPTS)
            assert answers(outputs) == expected
            assert host.forget()
        assert loaded(outputs, "memory") == [LOADABLE] * 3
        host.flush(store=settings)
        host.stop()
        host = engine(settings)
        outputs = host.generate(prompts=PROMPTS)
        assert answers(outputs) == expected
        host.stop()


HOLDER = """
import json, sys
from tierce import _core
engine = _core.Engine.open(None, json.loads(sys.argv[1]))
print(engine.stats()["disk_open_status"], flush=True)
sys.stdin.read()
"""


def test_store_folder_held_by_another_process(engine, expect, store):
    expected = expect(PROMPTS)
    settings = {**store, "disk.lock_wait": "100ms"}
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, json.dumps(
            {k: str(v) for k, v in settings.items()})],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment(), text=True, cwd=ROOT)
    try:
        assert holder.stdout.readline().strip() == "0"
        host = engine(settings)
        before = len(host.log_text())
        for _ in range(2):
            outputs = host.generate(prompts=PROMPTS)
            assert answers(outputs) == expected
            assert host.forget()
        assert loaded(outputs, "memory") == [LOADABLE] * 3
        assert host.store_stats(store=settings)["disk_open_status"] != 0
        lines = [line for line in host.log_text()[:before].splitlines()
                 if "the store folder cannot be used" in line]
        assert len(lines) == 1
    finally:
        holder.stdin.close()
        holder.wait(timeout=20)


def test_store_folder_vanishes(engine, expect, store):
    expected = expect(PROMPTS)
    host = engine(store)
    host.generate(prompts=PROMPTS[:1])
    shutil.rmtree(store["disk.path"])
    for _ in range(2):
        outputs = host.generate(prompts=PROMPTS)
        assert answers(outputs) == expected
        assert host.forget()


def test_a_configuration_error_switches_tierce_off(engine, expect, store):
    expected = expect(PROMPTS[:1])
    host = engine({**store, "chunk.tokens": 48})
    outputs = host.generate(prompts=PROMPTS[:1])
    assert answers(outputs) == expected
    assert outputs[0]["report"] is None
    assert "Tierce is off: chunk.tokens 48 is not a multiple" in host.log_text()


def test_memory_smaller_than_a_prompt(engine, expect, store):
    expected = expect(PROMPTS)
    host = engine({**store, "memory.size": "2MiB"})
    for _ in range(2):
        outputs = host.generate(prompts=PROMPTS, together=False)
        assert answers(outputs) == expected
        assert host.forget()
