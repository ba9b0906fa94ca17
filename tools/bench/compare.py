#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Benchmarks of others against a vLLM on CPU without offloading, with Tierce and with LMCache, in turns.

    PYTHON tools/bench/compare.py --multi-turn FOLDER [--rounds N] [--setups NAME,...] [--json FILE]

PYTHON is the interpreter of an environment with vLLM, LMCache and pandas; FOLDER is benchmarks/multi_turn of vLLM's source.
`docs/using/comparison.md` says how to make both, and explains the table that is printed.

In each round, each setup has a new server of vLLM, with the same options and an empty store. Two loads run against it: `lmcache
bench engine` with its workload long-doc-qa, and benchmark_serving_multi_turn.py. The order of the setups rotates with the rounds.
The exit code is 0 only if all answers of the multi-turn benchmark, whose requests are sent one by one, are equal in all setups
and rounds.
"""

import argparse
import csv
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools" / "demo"))

from run import percentile  # noqa: E402
from service import Failed, VllmServer, ask, metric  # noqa: E402
from trained_model import make_trained_model  # noqa: E402
from vllm_hit import CHUNK_TOKENS, ENVIRONMENT, LMCacheServer, free_port  # noqa: E402

MODEL = "model"
BLOCK_TOKENS = 32
PROMPT_MAX = 1024
KV_BLOCKS = PROMPT_MAX // BLOCK_TOKENS + 2  # about half of the tokens of a load
MEMORY_GIB, MEMORY_ABOVE_DISK_GIB, DISK_GIB = 1, 0.0625, 2  # less than a load stores
DOCUMENTS, DOCUMENT_TOKENS, DOCUMENT_ANSWER_TOKENS = 3, 700, 8
CONVERSATIONS, TURNS, FIRST_TOKENS, TURN_TOKENS, ANSWER_TOKENS = 3, 6, 500, 80, 8
SETUPS = ("none", "tierce", "lmcache", "tierce-disk", "lmcache-disk")
# The benchmark ends with the first conversation that ends while no other one is left to begin.
REQUESTS = CONVERSATIONS * (TURNS // 2 - 1) + 1
LOADS = ("lmcache bench engine", "multi-turn")
LOAD_S = 900
SOURCES = {"computed": "local_compute", "own": "local_cache_hit", "loaded": "external_kv_transfer"}


# ---- setups ----------------------------------------------------------------------------------


def memory_gib(setup):
    return MEMORY_ABOVE_DISK_GIB if setup.endswith("-disk") else MEMORY_GIB


def tierce_store(setup, folder):
    store = {"memory.size": f"{int(memory_gib(setup) * 1024)}MiB", "chunk.tokens": CHUNK_TOKENS}
    if setup.endswith("-disk"):
        store |= {"disk.path": str(folder / "disk"), "disk.size": f"{DISK_GIB}GiB"}
    return store


def lmcache_options(setup, folder):
    # Memory that grows on demand begins with whole GiB.
    options = ["--l1-size-gb", str(memory_gib(setup)), "--no-l1-use-lazy", "--disable-observability"]
    if setup.endswith("-disk"):
        disk = folder / "disk"
        disk.mkdir()
        options += ["--l2-adapter", json.dumps({
            "type": "fs_native", "base_path": str(disk), "max_capacity_gb": DISK_GIB, "eviction": {"eviction_policy": "LRU"}})]
    return options


def server_options(model):
    return ["--model", model, "--served-model-name", MODEL, "--dtype", "float32", "--seed", "0", "--enforce-eager",
            "--block-size", str(BLOCK_TOKENS), "--max-model-len", str(PROMPT_MAX), "--max-num-batched-tokens", str(PROMPT_MAX),
            "--max-num-seqs", "2", "--num-gpu-blocks-override", str(KV_BLOCKS),
            # The multi-turn benchmark names no temperature.
            "--override-generation-config", '{"temperature": 0}']


@contextmanager
def running(setup, model, folder):
    """The port of a vLLM that answers."""
    options, store, cache = server_options(model), None, None
    port = free_port()
    try:
        if setup.startswith("tierce"):
            store = tierce_store(setup, folder)
        elif setup.startswith("lmcache"):
            cache = LMCacheServer(sys.executable, str(folder / "lmcache.log"), lmcache_options(setup, folder))
            options += ["--kv-transfer-config", json.dumps({
                "kv_connector": "LMCacheServerOnCpu", "kv_connector_module_path": "lmcache_on_cpu", "kv_role": "kv_both",
                "kv_connector_extra_config": {"lmcache.mp.host": "tcp://127.0.0.1", "lmcache.mp.port": cache.port}})]
        server = VllmServer(ROOT, str(folder / "vllm.log"), port, options, store)
        try:
            server.wait()
            # The first step of a process pays for what is made once.
            ask(port, "POST", "/v1/completions", {"model": MODEL, "prompt": [1] * (BLOCK_TOKENS - 1), "max_tokens": 2})
            yield port
        finally:
            server.end()
    finally:
        if cache is not None:
            cache.stop()
        shutil.rmtree(folder / "disk", ignore_errors=True)


# ---- loads -----------------------------------------------------------------------------------


def run_load(command, log, folder):
    with open(log, "wb") as out:
        done = subprocess.run([sys.executable, *command], stdout=out, stderr=out, cwd=folder, timeout=LOAD_S, check=False)
    if done.returncode != 0:
        raise Failed(f"{command[0]} ended with {done.returncode} (log: {log})")


def bytes_per_token(model):
    config = json.loads((Path(model) / "config.json").read_text())
    head = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    float32, keys_and_values = 4, 2
    return keys_and_values * config["num_hidden_layers"] * config["num_key_value_heads"] * head * float32


def engine_bench(port, model, folder):
    """Each document once, unmeasured, then two questions on each: milliseconds to the first tokens, prompt tokens a second."""
    tokens_per_gib = 2**30 // bytes_per_token(model)
    volume = (DOCUMENTS + 0.5) * DOCUMENT_TOKENS / tokens_per_gib
    run_load([str(Path(sys.executable).with_name("lmcache")), "bench", "engine", "--no-interactive", "--quiet", "--json", "--engine-url",
              f"http://127.0.0.1:{port}", "--model", MODEL, "--workload", "long-doc-qa", "--kv-cache-volume", str(volume),
              "--tokens-per-gb-kvcache", str(tokens_per_gib), "--ldqa-document-length", str(DOCUMENT_TOKENS),
              "--ldqa-num-inflight-requests", "2", "--ldqa-max-output-length", str(DOCUMENT_ANSWER_TOKENS), "--ignore-eos",
              "--output-dir", str(folder)], folder / "engine-bench.log", folder)
    return read_engine_bench(folder)


def read_engine_bench(folder):
    with open(folder / "bench_results.csv", newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    failed = [row["request_id"] for row in rows if row["successful"] != "True"]
    if failed or not rows:
        raise Failed(f"lmcache bench engine: {len(failed)} of {len(rows)} requests failed (in {folder})")
    summary = json.loads((folder / "bench_summary.json").read_text())["results"]
    return {"ttft": [1000 * float(row["ttft"]) for row in rows], "rate": summary["input_throughput"], "answers": None}


def multi_turn_input(folder):
    """A description of conversations, and the text that they are cut from: this repository's."""
    def always(value):
        return {"distribution": "constant", "value": value}

    text = folder / "text.txt"
    text.write_text("\n".join((ROOT / name).read_text() for name in ("ARCHITECTURE.md", "CONTRIBUTING.md", "README.md")))
    path = folder / "conversations.json"
    path.write_text(json.dumps({
        "filetype": "generate_conversations", "num_conversations": CONVERSATIONS, "text_files": [str(text)], "print_stats": False,
        "prompt_input": {"num_turns": always(TURNS), "common_prefix_num_tokens": always(0),
                         "prefix_num_tokens": always(FIRST_TOKENS), "num_tokens": always(TURN_TOKENS)},
        "prompt_output": {"num_tokens": always(ANSWER_TOKENS)}}))
    return path


def multi_turn(port, model, folder, benchmark):
    stats, answers = folder / "multi-turn.json", folder / "multi-turn-answers.json"
    run_load([str(benchmark / "benchmark_serving_multi_turn.py"), "--model", model, "--served-model-name", MODEL, "--url",
              f"http://127.0.0.1:{port}", "--input-file", str(multi_turn_input(folder)), "--num-clients", "1",
              "--max-active-conversations", str(CONVERSATIONS), "--no-early-stop", "--seed", "0",
              "--stats-json-output", str(stats), "--output-file", str(answers)], folder / "multi-turn.log", folder)
    return read_multi_turn(stats, answers)


def read_multi_turn(stats, answers):
    requests = json.loads(stats.read_text())
    if len(requests) != REQUESTS:
        raise Failed(f"multi-turn: {len(requests)} requests, not {REQUESTS} (in {stats.parent})")
    began = min(r["start_time_ms"] for r in requests)
    seconds = (max(r["start_time_ms"] + r["latency_ms"] for r in requests) - began) / 1000
    return {"ttft": [r["ttft_ms"] for r in requests], "rate": sum(r["input_num_tokens"] for r in requests) / seconds,
            "answers": json.loads(answers.read_text())}


# ---- rounds ----------------------------------------------------------------------------------


def sources(port):
    return {name: metric(port, "vllm:prompt_tokens_by_source", source=source) for name, source in SOURCES.items()}


def play(setup, model, folder, benchmark):
    """load -> its figures, with the prompt tokens of each source"""
    figures = {}
    with running(setup, model, folder) as port:
        for load in LOADS:
            before = sources(port)
            figures[load] = (engine_bench(port, model, folder) if load == LOADS[0] else
                             multi_turn(port, model, folder, benchmark))
            after = sources(port)
            figures[load]["sources"] = {name: after[name] - before[name] for name in after}
    return figures


def orders(setups, rounds):
    """The setups of each round: another one begins each time."""
    return [setups[shift % len(setups):] + setups[:shift % len(setups)] for shift in range(rounds)]


# ---- the report ------------------------------------------------------------------------------


def spread(values, form):
    low, middle, high = (form(f(values)) for f in (min, statistics.median, max))
    return middle if len(values) == 1 else f"{middle} ({low} to {high})"


def rows_of(results, load):
    """A row a setup: the times of all rounds together; ratios by round, as the load of the machine changes between rounds."""
    for setup in dict.fromkeys(r["setup"] for r in results):
        mine = {r["round"]: r["figures"][load] for r in results if r["setup"] == setup}
        alone = {r["round"]: r["figures"][load] for r in results if r["setup"] == "none"}
        times = [t for figures in mine.values() for t in figures["ttft"]]
        found = [1 - f["sources"]["computed"] / sum(f["sources"].values()) for f in mine.values()]
        ratios = [statistics.median(f["ttft"]) / statistics.median(alone[n]["ttft"]) for n, f in mine.items() if n in alone]
        rates = [f["rate"] / alone[n]["rate"] for n, f in mine.items() if n in alone]
        yield (setup, str(len(times)), *(f"{t:,.0f}" for t in (statistics.mean(times), percentile(times, 0.5), percentile(times, 0.99))),
               spread(ratios, "{:.2f}".format) if ratios else "-", spread(found, "{:.0%}".format),
               spread([f["rate"] for f in mine.values()], "{:,.0f}".format), spread(rates, "{:.2f}".format) if rates else "-")


def print_tables(results):
    head = ("setup", "requests", "TTFT mean, ms", "p50", "p99", "p50 : without", "tokens not computed", "prompt tokens/s",
            "tokens/s : without")
    for load in LOADS:
        print(f"\n{load}\n")
        print("| " + " | ".join(head) + " |")
        print("|---|" + "--:|" * (len(head) - 1))
        for row in rows_of(results, load):
            print("| " + " | ".join(row) + " |")


def different_answers(results):
    """(round, setup) of the runs whose answers are not those of the first run."""
    first = results[0]["figures"][LOADS[1]]["answers"]
    return [(r["round"], r["setup"]) for r in results if r["figures"][LOADS[1]]["answers"] != first]


def prepare_environment():
    # Threads that compute a layer together wait for the one that other processes of a busy machine delay.
    one_thread = {"OMP_NUM_THREADS": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
    for name, value in {**ENVIRONMENT, **one_thread}.items():
        os.environ.setdefault(name, value)
    engines = str(ROOT / "tests" / "system" / "engines")  # the connector `lmcache_on_cpu`
    os.environ["PYTHONPATH"] = os.pathsep.join(p for p in (engines, os.environ.get("PYTHONPATH")) if p)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--multi-turn", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--setups", type=lambda text: text.split(","), default=list(SETUPS))
    parser.add_argument("--model", metavar="FOLDER", default=str(ROOT / "build" / "compare-model"))
    parser.add_argument("--json", type=Path, metavar="FILE", help="every figure, for another look")
    args = parser.parse_args()
    if unknown := set(args.setups) - set(SETUPS):
        parser.error(f"--setups: {', '.join(sorted(unknown))}: must be of {', '.join(SETUPS)}")
    prepare_environment()
    model = make_trained_model(Path(args.model).resolve())
    work = Path(tempfile.mkdtemp(prefix="tierce-compare-", dir=ROOT / "build"))
    print(f"logs: {work}", file=sys.stderr)
    results = []
    for number, order in enumerate(orders(args.setups, args.rounds), 1):
        for setup in order:
            folder = work / f"{number}-{setup}"
            folder.mkdir()
            began = time.monotonic()
            figures = play(setup, model, folder, args.multi_turn.resolve())
            print(f"round {number}, {setup}: {time.monotonic() - began:.0f} s, load {os.getloadavg()[0]:.1f}", file=sys.stderr)
            results.append({"round": number, "setup": setup, "figures": figures})
            if args.json:
                args.json.write_text(json.dumps(results))
    print_tables(results)
    different = different_answers(results)
    print(f"\nmulti-turn: answers of {len(results) - len(different)} of {len(results)} runs are equal")
    if different:
        sys.exit("other answers than the first run: " + ", ".join(f"round {n}, {setup}" for n, setup in different))


if __name__ == "__main__":
    try:
        main()
    except Failed as error:
        sys.exit(f"compare.py: {error}")
