#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`make run PEERS=1`: the same workload through two vLLMs, of which the second reads what the first has computed.

    (a) vLLM alone            (b) engine 1 with Tierce, empty            (c) engine 2 with Tierce, empty, beside engine 1

A manager tells engine 2 which chunks engine 1 holds (peers:// in remote.urls); the bytes come from engine 1's memory. The exit
code is 0 only if the conditions at the end of this file hold.
"""

import argparse
import signal
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from daemon import Failed, Service  # noqa: E402
from make_model import make_model  # noqa: E402
from run import (ANSWER_TOKENS, BLOCK_TOKENS, CHUNK_TOKENS, KV_BLOCKS, PROMPT_MAX, EngineProcess,  # noqa: E402
                 Screen, StoredBlocks, hold_folder, percentile, print_lines)
from workload import ByteSpeech, question_sessions, round_robin  # noqa: E402

PASSES = {"a": "vLLM alone", "b": "engine 1, empty store", "c": "engine 2, beside engine 1"}
FROM_PEER_MIN = 0.90


def play(screen, engine, name, total):
    """Plays one pass in an engine, which keeps running. Returns its reports of requests."""
    rows = []
    for report in engine.reports():
        if report["kind"] == "ready":
            screen.say(f"the engine of ({name}) is ready")
        elif report["kind"] == "request":
            rows.append(report)
            screen.progress(name, len(rows), total, report["ttft"])
    screen.clear()
    return rows


def summarise(name, rows, reference, stored):
    """One row of the table. `stored`: what engine 1 has."""
    row = dict(name=name, requests=len(rows), prompt=0, held=0, own=0, peer=0, wanted=0, got=0)
    for request in rows:
        prompt, tierce = request["prompt"], request["tierce"] or {}
        held = tierce.get("tierce.local_tokens", request["cached"] if name == "a" else 0)
        own = sum(tierce.get(f"tierce.{tier}_tokens", 0) for tier in ("memory", "disk"))
        peer = tierce.get("tierce.remote_tokens", 0)
        wanted = max(0, stored.held_tokens(prompt) - held - own)
        row["prompt"] += len(prompt)
        row["held"] += held
        row["own"] += own
        row["peer"] += peer
        row["wanted"] += wanted
        row["got"] += min(wanted, peer)
    row["computed"] = row["prompt"] - row["held"] - row["own"] - row["peer"]
    row["p50"] = percentile([r["ttft"] for r in rows], 0.5)
    row["equal"] = sum(r["answer"] == reference[i]["answer"] for i, r in enumerate(rows))
    return row


def print_table(rows):
    lines = [("pass", "requests", "prompt", "from the peer", "own store", "vLLM held", "computed", "TTFT p50", "equal to (a)")]
    for r in rows:
        lines.append((f"({r['name']}) {PASSES[r['name']]}", str(r["requests"]),
                      *(f"{r[k]:,}" for k in ("prompt", "peer", "own", "held", "computed")),
                      f"{r['p50']:.2f} s", f"{r['equal']}/{r['requests']}"))
    print_lines(lines)


def judge(row):
    """The conditions of the exit code; returns those that failed, in words."""
    failed = []
    share = row["got"] / row["wanted"] if row["wanted"] else 0.0
    print(f"\n(c) read {share:.1%} of the {row['wanted']:,} tokens that engine 1 had stored and that engine 2 had not, from engine 1")
    if row["equal"] != row["requests"]:
        failed.append(f"(c): {row['requests'] - row['equal']} outputs differ from (a)")
    if share < FROM_PEER_MIN:
        failed.append(f"(c): {share:.1%} came from the peer, less than {FROM_PEER_MIN:.0%}")
    return failed


def run(root, work, sessions_count):
    screen = Screen()
    screen.say("making the model with random weights")
    model = make_model(str(work / "model"))
    sessions = question_sessions(root, ByteSpeech(), sessions_count)
    order = list(round_robin(sessions))
    job = dict(model=model, sessions=sessions, order=order, block_tokens=BLOCK_TOKENS, prompt_max=PROMPT_MAX,
               kv_blocks=KV_BLOCKS["random"], answer_tokens=ANSWER_TOKENS["random"])
    manager = Service(root, "manager", work / "manager.log",
                      [*(f"--listen.{kind}_port=0" for kind in ("grpc", "http", "admin_grpc", "admin_http")), "--log.folder="])
    store = {"memory.size": "1GiB", "chunk.tokens": CHUNK_TOKENS, "remote.urls": f"peers://127.0.0.1:{manager.ports['gRPC']}"}
    engines, results, stored = [], {}, StoredBlocks()
    try:
        for name in PASSES:
            engines.append(EngineProcess({**job, "passes": [name], "store": None if name == "a" else store,
                                          "log": str(work / f"vllm-peers-{name}.log")}, root))
            results[name] = play(screen, engines[-1], name, len(order))
            if name == "a":
                engines.pop().kill()
            if name == "b":
                for request in results[name]:
                    stored.add(request["prompt"])
    finally:
        for engine in engines:
            engine.kill()
        manager.end()
    rows = {name: summarise(name, results[name], results["a"], stored if name == "c" else StoredBlocks())
            for name in PASSES}
    print()
    print_table(rows.values())
    return judge(rows["c"])


def main():
    root = Path(__file__).resolve().parents[2]
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--sessions", type=int, default=6)
    parser.add_argument("--work", type=Path, default=root / "run", help="model and logs")
    arguments = parser.parse_args()
    with hold_folder(arguments.work):
        failed = run(root, arguments.work, arguments.sessions)
    for reason in failed:
        print(f"FAILED {reason}")
    print("FAILED" if failed else "all conditions hold")
    return 1 if failed else 0


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("make run: ended by SIGTERM"))
    try:
        sys.exit(main())
    except Failed as failure:
        sys.exit(f"make run: {failure}")
    except KeyboardInterrupt:
        sys.exit("make run: interrupted; the engines were killed")
