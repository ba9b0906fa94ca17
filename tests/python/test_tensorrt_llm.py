# SPDX-License-Identifier: Apache-2.0
"""The connector for TensorRT-LLM, with a stand-in of its interface, over stores of their own and over a node."""

import json
import logging
import os
import subprocess
import sys
import time
from array import array
from pathlib import Path
from types import SimpleNamespace as Thing

import pytest

torch = pytest.importorskip("torch")
sys.path.append(str(Path(__file__).resolve().parents[1] / "system"))

import tensorrt_engine  # noqa: E402
from node_process import SECONDS, Node  # noqa: E402
from tensorrt_engine import BLOCK, BLOCKS, LAYERS, MPI, VALUES, Engine, HostPool, Request, arguments  # noqa: E402
from tierce.vllm.identity import ConfigError  # noqa: E402

PROMPT = list(range(100, 100 + 6 * BLOCK + 3))  # three chunks of two blocks, and a part of a block
CHUNK = 2 * BLOCK


@pytest.fixture(scope="module")
def classes():
    before = dict(sys.modules)
    tensorrt_engine.install()
    import tierce.tensorrt_llm as package

    yield Thing(TierceScheduler=package.TierceScheduler, TierceWorker=package.TierceWorker)
    for name in set(sys.modules) - set(before):
        if name.split(".")[0] == "tensorrt_llm":
            del sys.modules[name]


def write_model(folder, **config):
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps({"model_type": "llama", **config}))
    header = json.dumps({"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
    (folder / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + b"abcd")
    return folder


@pytest.fixture
def model(tmp_path, monkeypatch):
    (tmp_path / "cache").mkdir()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return write_model(tmp_path / "model")


@pytest.fixture
def settings(monkeypatch):
    def change(**values):
        for name, value in values.items():
            monkeypatch.setenv("TIERCE_" + name.upper(), str(value))

    monkeypatch.delenv("TIERCE_CONFIG", raising=False)
    change(memory_size="16MiB", disk_path="", chunk_tokens=CHUNK)
    return change


@pytest.fixture
def engine(classes, model, settings):
    """Starts engines."""
    opened = []

    def start(ranks=1, pools=None, **changes):
        opened.append(Engine(classes, lambda: arguments(model, tensor_parallel_size=ranks, **changes), ranks, pools))
        return opened[-1]

    yield start
    for each in opened:
        each.close()


@pytest.fixture
def disk(settings, tmp_path):
    settings(disk_path=tmp_path / "disk", disk_size="64MiB")
    return tmp_path / "disk"


def stored(engine, prompt=PROMPT, **properties):
    """Computes a prompt and ends its request; the KV is on disk."""
    request = Request(list(prompt), **properties)
    matched, ids = engine.prefill(request)
    engine.finish(request, ids)
    assert engine.workers[0].engine.flush(60_000)
    return matched


def test_a_prompt_comes_back_in_another_engine(engine, disk):
    first = engine()
    assert stored(first) == 0
    first.close()
    second = engine()
    request = Request(list(PROMPT))
    matched, ids = second.prefill(request)
    assert matched == 6 * BLOCK and second.is_right(request, ids)
    second.finish(request, ids)


@pytest.mark.parametrize("tail, found", [("true", 5 * BLOCK), ("false", 4 * BLOCK)])
def test_the_partial_chunk_at_the_end_of_a_prompt(engine, settings, tail, found):
    settings(chunk_tail=tail)
    it = engine()
    stored(it, PROMPT[:5 * BLOCK + 2])
    request = Request(PROMPT[:5 * BLOCK + 2])
    matched, ids = it.prefill(request)
    assert matched == found and it.is_right(request, ids)
    it.finish(request, ids)
    request = Request(list(PROMPT))  # the chunk is complete now
    matched, ids = it.prefill(request)
    assert matched == found and it.is_right(request, ids)
    it.finish(request, ids)
    assert stored(it) == 6 * BLOCK


def test_the_last_token_is_computed(engine):
    it = engine()
    prompt = PROMPT[:6 * BLOCK]
    stored(it, prompt)
    request = Request(prompt)
    matched, ids = it.prefill(request)
    assert matched == 5 * BLOCK and it.is_right(request, ids)


@pytest.mark.parametrize("counts_matched", [False, True])
@pytest.mark.parametrize("chunk", [None, BLOCK, 11])
def test_a_longer_prompt_adds_its_chunks(engine, chunk, counts_matched):
    it = engine()
    stored(it, PROMPT[:2 * CHUNK + 1])
    request = Request(list(PROMPT))
    matched, ids = it.prefill(request, chunk=chunk, counts_matched=counts_matched)
    assert matched == 2 * CHUNK and it.is_right(request, ids)
    it.finish(request, ids)
    matched, ids = it.prefill(request := Request(list(PROMPT)))
    assert matched == 3 * CHUNK and it.is_right(request, ids)


@pytest.mark.parametrize("local", [BLOCK, 2 * BLOCK, 5 * BLOCK])
def test_blocks_of_the_engines_own_cache_are_not_loaded(engine, local):
    it = engine()
    stored(it)
    request = Request(list(PROMPT))
    matched, ids = it.prefill(request, local=local)
    assert matched == 6 * BLOCK - local and it.is_right(request, ids)


def test_a_part_of_a_block_in_the_engines_cache_is_a_miss(engine):
    it = engine()
    stored(it)
    assert it.scheduler.get_num_new_matched_tokens(Request(list(PROMPT)), 3) == (0, False)


def test_another_prompt_is_not_found(engine):
    it = engine()
    stored(it)
    for prompt, tokens in ([1, *PROMPT[1:]], 0), ([*PROMPT[:CHUNK], 1, *PROMPT[CHUNK + 1:]], CHUNK):
        request = Request(prompt)
        matched, ids = it.prefill(request)
        assert matched == tokens and it.is_right(request, ids)
        it.finish(request, ids)


def test_salts_separate_requests(engine):
    it = engine()
    assert stored(it, cache_salt="a") == 0
    assert stored(it, cache_salt="b") == 0 and stored(it) == 0
    request = Request(list(PROMPT), cache_salt="a")
    matched, ids = it.prefill(request)
    assert matched == 6 * BLOCK and it.is_right(request, ids)


@pytest.mark.parametrize("properties", [{"lora_task_id": 0}, {"multimodal_hashes": [[1]]}])
def test_requests_of_unknown_identity_are_ignored(engine, properties, caplog):
    it = engine()
    with caplog.at_level(logging.WARNING, "tierce"):
        assert stored(it, **properties) == 0
    assert "is neither looked up nor stored" in caplog.text
    assert it.workers[0].engine.stats()["chunks_stored"] == 0 and stored(it) == 0


@pytest.mark.parametrize("change", [{"dtype": "bfloat16"}, {"attn_backend": "FLASHINFER"}, {"quant_config": "fp8"}])
def test_an_engine_that_computes_otherwise_finds_nothing(engine, disk, change):
    first = engine()
    stored(first)
    first.close()
    assert stored(engine(**change)) == 0


def test_other_weights_find_nothing(engine, disk, model):
    first = engine()
    stored(first)
    first.close()
    data = bytearray((model / "model.safetensors").read_bytes())
    data[-1] ^= 1
    (model / "model.safetensors").write_bytes(data)
    assert stored(engine()) == 0


@pytest.mark.parametrize("save_decode", ["false", "true"])
def test_generated_tokens_are_stored_if_it_is_set(engine, settings, save_decode):
    settings(save_decode=save_decode)
    it = engine()
    request = Request(list(PROMPT))
    _, ids = it.prefill(request)
    it.decode(request, ids, 2 * BLOCK)
    it.finish(request, ids)
    again = Request([*request.tokens, 1])
    matched, ids = it.prefill(again)
    assert matched == (8 * BLOCK if save_decode == "true" else 6 * BLOCK)
    assert all((it.pools[0].read(ids[b]) == tensorrt_engine.kv_of(request.tokens, b, 0)).all() for b in range(matched // BLOCK - 2))


def test_dummy_requests_are_ignored(engine):
    it = engine()
    stored(it)
    request = Request(list(PROMPT))
    request.is_dummy_request = True
    matched, ids = it.prefill(request)
    assert matched == 0 and not it.scheduler.live


def test_a_message_is_used_once(engine):
    """In a step without requests, TensorRT-LLM leaves the last message bound."""
    it = engine()
    stored(it)
    request = Request(list(PROMPT))
    _, ids = it.prefill(request)
    it.pools[0].write(ids[0], torch.zeros(LAYERS, 2, VALUES))
    for worker in it.workers:
        worker.start_load_kv(None)
        worker.wait_for_save(None)
    assert not it.pools[0].read(ids[0]).any()


# ---- loads that cannot be done


def damage(disk, pool, block):
    """Flips a bit in the cell of a layer of a block, in the files of the disk."""
    cell = pool.read(block)[1].numpy().tobytes()
    (file,) = [file for file in disk.rglob("*") if file.is_file() and cell in file.read_bytes()]
    content = bytearray(file.read_bytes())
    content[content.find(cell)] ^= 1
    file.write_bytes(content)


def test_a_damaged_chunk_is_not_promised(engine, disk):
    first = engine()
    stored(first)
    pool = first.pools[0]
    first.close()
    damage(disk, pool, 3)
    it = engine()
    request = Request(list(PROMPT))
    matched, ids = it.prefill(request)
    assert matched == CHUNK and it.is_right(request, ids)
    it.finish(request, ids)
    assert it.workers[0].engine.stats()["checksum_failures"] == 1
    assert stored(it) == 6 * BLOCK  # it was stored again


def fill(it, count):
    """Stores other prompts, until memory has evicted everything that is not pinned."""
    view = it.workers[0].view
    for number in range(count):
        chain = view.chain()
        chain.append(array("i", range(10_000 * (number + 1), 10_000 * (number + 1) + CHUNK)))
        view.store(chain, 2, array("i", [BLOCKS - 1, BLOCKS - 2]), 0)


def test_promised_kv_is_not_evicted_before_the_load(engine, settings):
    settings(memory_size="1MiB")
    it = engine()
    stored(it)
    it.between = lambda: fill(it, 1000)
    request = Request(list(PROMPT))
    matched, ids = it.prefill(request)
    assert matched == 6 * BLOCK and it.is_right(request, ids)
    assert it.workers[0].engine.stats()["memory_evictions"] > 0


def test_kv_that_is_gone_ends_the_engine(engine, settings):
    """Its pins have expired, for example. No step computes from wrong KV."""
    settings(memory_size="1MiB")
    it = engine()
    stored(it)
    request = Request(list(PROMPT))

    def lose():
        it.workers[0].view.unpin(it.scheduler.live[request.request_id][0].session)
        fill(it, 1000)

    it.between = lose
    with pytest.raises(RuntimeError, match="could not load KV that it had promised for the request"):
        it.prefill(request)


# ---- ranks


def until(condition):
    give_up = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < give_up


@pytest.fixture
def node(tmp_path, settings, monkeypatch):
    out = Node(tmp_path, f"--listen.native={tmp_path}/n.sock")
    for name in ("TIERCE_MEMORY_SIZE", "TIERCE_DISK_PATH"):
        monkeypatch.delenv(name)
    settings(node_socket=out.folder / "n.sock")
    yield out
    out.kill()


def connected(engine):
    for worker in engine.workers:
        until(lambda engine=worker.engine: engine.stats()["node_connected_now"] or engine.flush(1000) is None)
    return engine


def test_two_ranks_share_chunks_in_a_node(engine, node):
    first = connected(engine(ranks=2))
    assert stored(first) == 0
    second = connected(engine(ranks=2))
    request = Request(list(PROMPT))
    matched, ids = second.prefill(request)
    assert matched == 6 * BLOCK and second.is_right(request, ids)
    second.finish(request, ids)
    assert stored(connected(engine())) == 0  # one rank has other KV


def test_a_chunk_that_one_rank_did_not_store_is_not_promised(engine, node):
    first = connected(engine(ranks=2))
    first.workers[1].store = lambda request: None
    assert stored(first) == 0
    assert stored(connected(engine(ranks=2))) == 0


def test_the_end_of_the_node_after_a_promise_ends_the_engine(engine, node):
    it = connected(engine(ranks=2))
    stored(it)
    it.between = node.kill
    with pytest.raises(RuntimeError, match="could not load KV that it had promised"):
        it.prefill(Request(list(PROMPT)))
    it.between = lambda: None
    request = Request(list(PROMPT))
    matched, ids = it.prefill(request)
    assert matched == 0 and it.is_right(request, ids)


# ---- starts that are rejected


def test_the_package_names_what_it_lacks():
    code = ("import tierce.tensorrt_llm as package\nassert package.__all__ == ['TierceScheduler', 'TierceWorker']\n"
            "try:\n    package.TierceWorker\nexcept ModuleNotFoundError as error:\n    print(error.name)")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=SECONDS, check=False,
                          env={**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2] / "python")})
    assert done.stdout == "tensorrt_llm\n", done.stderr


@pytest.mark.parametrize("changes, text", [
    ({"pipeline_parallel_size": 2}, r"pipeline parallelism of TensorRT-LLM \(pipeline_parallel_size: 2\)"),
    ({"context_parallel_size": 2}, "context parallelism"),
    ({"enable_attention_dp": True}, "attention data parallelism"),
    ({"max_beam_width": 2}, "beam search"),
    ({"speculative_config": Thing(max_draft_len=3)}, "speculative decoding"),
    ({"enable_lora": True}, "LoRA adapters"),
    ({"lora_config": Thing()}, "LoRA adapters"),
    ({"sparse_attention_config": Thing()}, "sparse attention"),
    ({"cache_transceiver_config": Thing()}, "disaggregated serving"),
    ({"checkpoint_loader": Thing()}, "custom checkpoint loader"),
    ({"load_format": Thing(name="DUMMY")}, "load_format DUMMY cannot be fingerprinted; accepted: auto"),
    ({"tensor_parallel_size": 2}, "1 ranks, but tensor_parallel_size is 2"),
    ({"kv_enable_partial_reuse": True}, "reuse of partial blocks .*set it to false"),
    ({"kv_use_kv_cache_manager_v2": True}, "KVCacheManagerV2 .*set it to false"),
    ({"kv_host_cache_size": 1 << 30}, "own cache in host memory"),
    ({"kv_max_attention_window": [512]}, "windows of attention"),
    ({"kv_sink_token_length": 4}, "sink tokens"),
    ({"model": "/nonexistent"}, "no local folder to fingerprint"),
])
def test_arguments_that_are_rejected(classes, model, settings, changes, text):
    with pytest.raises(ConfigError, match=text):
        classes.TierceWorker(arguments(**{"model": model, **changes}))


def test_an_argument_that_is_missing_is_rejected(classes, model, settings):
    args = arguments(model)
    del args.kv_cache_config.enable_partial_reuse
    with pytest.raises(ConfigError, match="has no argument kv_cache_config.enable_partial_reuse"):
        classes.TierceWorker(args)


@pytest.mark.parametrize("config, text", [
    ({"kv_lora_rank": 512}, r"latent attention \(MLA\) \(kv_lora_rank in"),
    ({"sliding_window": 4096}, "windows of attention"),
    ({"text_config": {"sliding_window": 1024}}, "windows of attention"),
    ({"attention_chunk_size": 8192}, "chunked attention"),
    ({"vision_config": {"hidden_size": 8}}, "images"),
    ({"is_encoder_decoder": True}, "an encoder and a decoder"),
])
def test_models_that_are_rejected(classes, model, settings, config, text):
    write_model(model, **config)
    with pytest.raises(ConfigError, match=text):
        classes.TierceWorker(arguments(model))


def test_a_window_that_is_not_used_is_accepted(engine, model):
    write_model(model, sliding_window=4096, use_sliding_window=False)
    assert stored(engine()) == 0


@pytest.mark.parametrize("tensor, text", [
    (torch.zeros(BLOCKS, LAYERS, 1, VALUES, dtype=torch.float16), r"pool of the shape \(64, 3, 1, 64\)"),
    (torch.zeros(BLOCKS, VALUES, dtype=torch.float16), "pool of the shape"),
    (torch.zeros(BLOCKS, LAYERS, 2, VALUES, dtype=torch.uint8), "KV of type uint8 is not supported: it may have scales"),
])
def test_pools_that_are_rejected(classes, model, settings, tensor, text):
    with pytest.raises(ConfigError, match=text):
        classes.TierceWorker(arguments(model)).register_kv_caches(tensor)


def test_layouts_of_the_other_cache_manager_are_rejected(classes, model, settings):
    with pytest.raises(ConfigError, match="use_kv_cache_manager_v2 to false"):
        classes.TierceWorker(arguments(model)).register_kv_cache_layout(Thing(groups=()))


@pytest.mark.parametrize("values, text", [
    ({"chunk_tokens": 12}, "chunk.tokens 12 is not a multiple of kv_cache_config.tokens_per_block 8; set 16"),
    ({"chunk_hash": "vllm-sha256-cbor"}, "chunk.hash vllm-sha256-cbor is for vLLM only"),
    ({"memory_size": "much"}, "memory.size"),
    ({"node_start": "own"}, "node.start 'own' is for vLLM's connector only"),
])
def test_settings_that_are_rejected(engine, settings, values, text):
    settings(**values)
    with pytest.raises(ConfigError, match=text):
        engine()


def test_several_ranks_require_a_node_on_their_host(classes, model, settings, monkeypatch):
    monkeypatch.setattr(MPI, "world", 2)
    for local, text in (2, "2 ranks require node.socket"), (1, "1 of 2 ranks are on this host"):
        monkeypatch.setattr(MPI, "local", local)
        with pytest.raises(ConfigError, match=text):
            classes.TierceWorker(arguments(model, tensor_parallel_size=2))


def test_a_lookup_before_the_kv_is_registered_is_a_miss(classes, model, settings):
    args = arguments(model)
    scheduler, worker = classes.TierceScheduler(args), classes.TierceWorker(args)
    assert scheduler.get_num_new_matched_tokens(Request(list(PROMPT)), 0) == (0, False)
    assert scheduler.build_connector_meta(tensorrt_engine.SchedulerOutput()).requests == []
    worker.start_load_kv(None)
    worker.wait_for_save(None)
    with pytest.raises(ConfigError, match="twice"):
        for _ in range(2):
            worker.register_kv_caches(HostPool().tensor)
    worker.shutdown()
