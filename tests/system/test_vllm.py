# SPDX-License-Identifier: Apache-2.0
"""A real vLLM over a real store: whatever becomes of the store, the answers are those of a vLLM
without one."""

import os
import subprocess

import pytest

CHUNK = 256


def memory_store(**more):
    return {"memory.size": "256MiB", "disk.path": "", **more}


def disk_store(folder, **more):
    return {"memory.size": "256MiB", "disk.path": str(folder), "disk.size": "512MiB",
            "disk.lock_wait": "0", **more}


def total(result, what):
    return sum((r or {}).get(f"tierce.{what}_tokens", 0) for r in result["reports"])


def whole_chunks(prompts):
    """Tokens in the whole chunks of the prompts (vLLM computes at least the last token itself)."""
    return sum((len(p) - 1) // CHUNK * CHUNK for p in prompts)


def test_memory_hits_give_the_same_answers(run, prompts, expected):
    results, _ = run([prompts, prompts], memory_store())
    assert results[0]["answers"] == expected()
    assert results[1]["answers"] == expected()
    loaded = total(results[1], "memory")
    held = sum((r or {}).get("tierce.local_tokens", 0) for r in results[1]["reports"])
    assert loaded > 0 and loaded + held >= whole_chunks(prompts)
    assert total(results[1], "failed") == 0


def test_salts_separate(run, prompts):
    salted = [[{"prompt_token_ids": p, "cache_salt": salt} for p in prompts[:2]]
              for salt in ("tenant-a", "tenant-b", "tenant-a")]
    results, _ = run(salted, memory_store(),
                     options={"max_model_len": 1280, "num_gpu_blocks_override": 42})
    assert total(results[1], "memory") == 0
    assert total(results[2], "memory") > 0
    assert results[0]["answers"] == results[1]["answers"] == results[2]["answers"]


def test_disk_hits_after_kill_and_damage(run, prompts, expected, tmp_path):
    store = disk_store(tmp_path / "store")
    results, engine = run([prompts], store, stay=True)
    assert results[0]["answers"] == expected() and results[0]["durable"]
    engine.kill()

    results, engine = run([prompts], store, stay=True)
    assert results[0]["answers"] == expected()
    assert total(results[0], "disk") > 0 and total(results[0], "failed") == 0
    engine.kill()

    # A flipped byte in every 96 KiB of the data file: most chunks are hit in one cell or other.
    with open(tmp_path / "store" / "data", "r+b") as data:
        for at in range(20_000, os.path.getsize(data.name), 96 << 10):
            data.seek(at)
            byte = data.read(1)
            data.seek(at)
            data.write(bytes([byte[0] ^ 0x20]))
    results, _ = run([prompts, prompts], store)
    assert results[0]["answers"] == expected() and results[1]["answers"] == expected()
    stats = results[0]["stats"]
    assert stats["checksum_failures"] + stats["identity_failures"] > 0
    assert total(results[0], "failed") > 0
    assert total(results[1], "failed") == 0  # what was wrong is out of service, and stored anew


def test_models_that_differ_in_their_seed_never_share(run, prompts, expected, tmp_path):
    store = disk_store(tmp_path / "store")
    results, _ = run([prompts], store)
    assert results[0]["answers"] == expected()
    results, _ = run([prompts], store, seed=8)
    assert results[0]["answers"] == expected(8)
    assert total(results[0], "disk") == 0


def test_a_folder_that_is_held_means_memory_only(run, prompts, expected, tmp_path):
    from tierce import _core

    store = disk_store(tmp_path / "store")
    holder = _core.Engine.open(None, store)
    try:
        results, engine = run([prompts, prompts], store)
    finally:
        holder.close()
    assert results[0]["answers"] == expected() and results[1]["answers"] == expected()
    assert total(results[1], "memory") > 0
    assert engine.text().count("event=store_folder_refused") == 1


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 6 MiB."""
    folder = tmp_path / "small"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=6m", "tmpfs", str(folder)]
    if subprocess.run(mount, capture_output=True).returncode != 0:
        pytest.skip("cannot mount a small file system here")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_full_disk_is_no_harm(run, prompts, expected, small_disk):
    results, _ = run([prompts, prompts], disk_store(small_disk / "store"))
    assert results[0]["answers"] == expected() and results[1]["answers"] == expected()
    assert total(results[1], "memory") > 0


def test_chunked_prefill_and_many_at_once(run, prompts, expected):
    results, _ = run([prompts, prompts], memory_store(), together=True,
                     options={"max_num_batched_tokens": 320, "num_gpu_blocks_override": 140})
    assert results[0]["answers"] == expected() and results[1]["answers"] == expected()
    assert total(results[1], "memory") > 0


def test_preemption(run, prompts, expected):
    """Four requests at a time in memory for two: some are preempted and resumed."""
    results, _ = run([prompts, prompts], memory_store(), together=True, answer_tokens=8,
                     options={"num_gpu_blocks_override": 70})
    assert results[0]["answers"] == expected() and results[1]["answers"] == expected()


def test_worker_in_its_own_process_loading_beside_the_steps(run, prompts, expected, tmp_path):
    store = disk_store(tmp_path / "store", **{"load.async": "true"})
    results, _ = run([prompts, prompts], store, multiprocessing=1, together=True)
    assert results[0]["answers"] == expected() and results[1]["answers"] == expected()
    assert total(results[1], "memory") > 0 and total(results[1], "failed") == 0


def test_policy_fail_loads_what_is_pinned_only(run, prompts, expected, tmp_path):
    store = disk_store(tmp_path / "store")
    results, _ = run([prompts, prompts], store, policy="fail")
    assert results[0]["answers"] == expected() and results[1]["answers"] == expected()
    assert total(results[1], "memory") > 0
    results, _ = run([prompts], store, policy="fail")
    assert results[0]["answers"] == expected()
    assert total(results[0], "disk") == 0
