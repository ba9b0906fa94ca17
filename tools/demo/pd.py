#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`make run PD=1`: the same workload through one vLLM, and through a prefiller and a decoder behind `tierce proxy`.

    (a) vLLM alone            (b) tierce proxy: the prefiller computes prompts, the decoder answers

The decoder reads the KV of each prompt from the prefiller's memory, and computes one token of it. The exit code is 0 only if
the conditions at the end of this file hold.
"""

import argparse
import fcntl
import signal
import socket
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from make_model import make_model  # noqa: E402
from run import (ANSWER_TOKENS, BLOCK_TOKENS, CHUNK_TOKENS, KV_BLOCKS, PROMPT_MAX, Failed, Screen,  # noqa: E402
                 percentile, play)
from service import Service, VllmServer, ask, metric, stream  # noqa: E402
from workload import ByteSpeech, question_sessions, round_robin  # noqa: E402

MODEL = "model"
COMPUTED = {"source": "local_compute"}
WARM_UP_TOKENS = BLOCK_TOKENS - 1


def free_ports(count):
    """Ports that were free just now."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


def start_pair(root, work, model):
    """A prefiller and a decoder that are ready, in this order."""
    options = ["--model", model, "--served-model-name", MODEL, "--dtype", "float32", "--seed", "0", "--enforce-eager",
               "--block-size", str(BLOCK_TOKENS), "--max-model-len", str(PROMPT_MAX),
               "--max-num-batched-tokens", str(PROMPT_MAX), "--max-num-seqs", "4",
               "--num-gpu-blocks-override", str(KV_BLOCKS["random"])]
    stores = {"prefiller": {"handover.listen": "127.0.0.1"}, "decoder": {"handover.allow": "127.0.0.1"}}
    servers = []
    try:
        for (name, store), port in zip(stores.items(), free_ports(2)):
            servers.append(VllmServer(root, str(work / f"vllm-pd-{name}.log"), port, options, {
                **store, "memory.size": "1GiB", "chunk.tokens": CHUNK_TOKENS}))
        for server in servers:
            server.wait()
            # The first steps of a process pay for what is made once.
            ask(server.port, "POST", "/v1/completions", completion([1] * WARM_UP_TOKENS, 1))
    except BaseException:
        for server in servers:
            server.end()
        raise
    return servers


def completion(prompt, tokens):
    return {"model": MODEL, "prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": True}


def counters(proxy, prefiller, decoder):
    own = metric(proxy.port, "tierce_proxy_inbox_queries")  # the proxy's requests of one token, for pushes
    return {"prefilled": metric(prefiller.port, "vllm:prompt_tokens_by_source", **COMPUTED),
            "computed": metric(decoder.port, "vllm:prompt_tokens_by_source", **COMPUTED) - own,
            "bytes": metric(decoder.port, "vllm:tierce_handover_bytes"),
            "seconds": metric(decoder.port, "vllm:tierce_handover_seconds"),
            "early": metric(decoder.port, "vllm:tierce_handovers_ended_early")}


def play_pair(screen, proxy, prefiller, decoder, asked):
    """Sends the requests of (a) through the proxy. Returns the row of (b)."""
    before, times, equal = counters(proxy, prefiller, decoder), [], 0
    for number, request in enumerate(asked):
        first, answer = stream(proxy.port, completion(request["prompt"], len(request["answer"])))
        times.append(first)
        equal += answer == request["answer"]
        screen.progress("b", number + 1, len(asked), first)
    screen.clear()
    after = counters(proxy, prefiller, decoder)
    row = {name: after[name] - before[name] for name in after}
    return {**row, "requests": len(asked), "prompt": sum(len(r["prompt"]) for r in asked),
            "p50": percentile(times, 0.5), "equal": equal}


def row_of_one(asked):
    prompt = sum(len(r["prompt"]) for r in asked)
    return {"requests": len(asked), "prompt": prompt, "computed": prompt - sum(r["cached"] for r in asked),
            "p50": percentile([r["ttft"] for r in asked], 0.5), "equal": len(asked)}


def print_table(one, pair):
    def cells(name, row):
        return (name, str(row["requests"]), f"{row['prompt']:,}",
                f"{row['prefilled']:,.0f}" if "prefilled" in row else "-", f"{row['computed']:,.0f}",
                f"{row['bytes'] / 1e6:,.1f} MB" if "bytes" in row else "-",
                f"{row['bytes'] / row['seconds'] / 1e6:,.0f} MB/s" if row.get("seconds") else "-",
                f"{row['p50']:.2f} s", f"{row['equal']}/{row['requests']}")

    lines = [("pass", "requests", "prompt", "prefiller", "computed by the one that answers", "transferred", "speed", "TTFT p50",
              "equal to (a)"), cells("(a) vLLM alone", one), cells("(b) prefill and decode", pair)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    for number, line in enumerate(lines):
        print("  ".join(c.ljust(w) if i == 0 else c.rjust(w) for i, (c, w) in enumerate(zip(line, widths))))
        if number == 0:
            print("  ".join("-" * w for w in widths))


def judge(row):
    """The conditions of the exit code; returns those that failed, in words."""
    failed = []
    if row["equal"] != row["requests"]:
        failed.append(f"(b): {row['requests'] - row['equal']} outputs differ from (a)")
    if row["computed"] != row["requests"]:
        failed.append(f"(b): the decoder computed {row['computed']:,.0f} prompt tokens of {row['requests']} requests, "
                      "not one of each")
    if row["early"] or not row["bytes"]:
        failed.append(f"(b): {row['early']:.0f} offers were not read to their end, and {row['bytes']:,.0f} bytes were read")
    return failed


def run(root, work, sessions_count):
    screen = Screen()
    screen.say("making the model with random weights")
    model = make_model(str(work / "model"))
    sessions = question_sessions(root, ByteSpeech(), sessions_count)
    job = dict(model=model, sessions=sessions, order=list(round_robin(sessions)), block_tokens=BLOCK_TOKENS,
               prompt_max=PROMPT_MAX, kv_blocks=KV_BLOCKS["random"], answer_tokens=ANSWER_TOKENS["random"],
               store=None, log=str(work / "vllm-pd-a.log"))
    asked = play(screen, root, job, ["a"])["a"]
    screen.say("starting the prefiller and the decoder")
    servers, proxy = start_pair(root, work, model), None
    try:
        urls = [f"http://127.0.0.1:{server.port}" for server in servers]
        proxy = Service(root, "proxy", work / "proxy-pd.log", [
            "--listen.port=0", f"--prefill.urls={urls[0]}", f"--decode.urls={urls[1]}"])
        pair = play_pair(screen, proxy, *servers, asked)
    finally:
        if proxy is not None:
            proxy.end()
        for server in servers:
            server.end()
    print()
    print_table(row_of_one(asked), pair)
    print()
    return judge(pair)


def main():
    root = Path(__file__).resolve().parents[2]
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--sessions", type=int, default=6)
    parser.add_argument("--work", type=Path, default=root / "run", help="model and logs")
    arguments = parser.parse_args()
    arguments.work.mkdir(parents=True, exist_ok=True)
    held = open(arguments.work / "lock", "w")  # closed by the end of this process, whatever that is
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise Failed(f"another run is using {arguments.work}; wait for its end, or name a folder with --work")
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
