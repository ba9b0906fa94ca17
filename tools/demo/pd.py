#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`make run PD=1`: the same workload through one vLLM, and through a prefiller and a decoder behind `tierce proxy`.

    (a) vLLM alone
    (b) pull: the prefiller computes a prompt, then the decoder reads its KV from the prefiller's memory, and answers
    (c) push: the prefiller writes the KV to the decoder's memory while it computes; then the decoder answers

Half of the sessions are played by pull and the other half by push, because both engines keep what they have computed.
The decoder computes one token of each prompt. The time after the last layer ends with the last byte
verified in the decoder's memory. With --gbit, the rate to which loopback is limited, this time is judged, too.
The exit code is 0 only if the conditions of `judge` hold.
"""

import argparse
import signal
import socket
import sys
import threading
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from daemon import Service  # noqa: E402
from make_model import make_model  # noqa: E402
from run import (ANSWER_TOKENS, BLOCK_TOKENS, CHUNK_TOKENS, KV_BLOCKS, PROMPT_MAX, Failed, Screen,  # noqa: E402
                 hold_folder, percentile, play, print_lines)
from service import VllmServer, ask, metric, stream  # noqa: E402
from workload import ByteSpeech, question_sessions, round_robin  # noqa: E402

MODEL = "model"
COMPUTED = {"source": "local_compute"}
WARM_UP_TOKENS = BLOCK_TOKENS - 1
PASSES = {"b": "pull", "c": "push"}
TAIL_SHARE_MAX = 0.2  # of the time that all bytes take
RATE_SLACK = 1.3  # a bucket lets some bytes pass at once


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
    store = {"handover.listen": "127.0.0.1", "handover.allow": "127.0.0.1", "memory.size": "1GiB", "chunk.tokens": CHUNK_TOKENS}
    servers = []
    try:
        for name, port in zip(("prefiller", "decoder"), free_ports(2)):
            servers.append(VllmServer(root, str(work / f"vllm-pd-{name}.log"), port, options, store))
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
    own = metric(proxy.ports["HTTP"], "tierce_proxy_inbox_queries")  # the proxy's requests of one token, for pushes
    return {"prefilled": metric(prefiller.port, "vllm:prompt_tokens_by_source", **COMPUTED),
            "computed": metric(decoder.port, "vllm:prompt_tokens_by_source", **COMPUTED) - own,
            "read": metric(decoder.port, "vllm:tierce_handover_bytes"),
            "pushed": metric(decoder.port, "vllm:tierce_handover_pushed_bytes"),
            "tail": metric(prefiller.port, "vllm:tierce_push_tail_seconds"),
            "tail_bytes": metric(prefiller.port, "vllm:tierce_push_tail_bytes"),
            "early": metric(decoder.port, "vllm:tierce_handovers_ended_early")}


def play_pair(screen, name, proxy, prefiller, decoder, asked):
    """Sends these requests of (a) through the proxy. Returns the row of this pass."""
    before, times, equal = counters(proxy, prefiller, decoder), [], 0
    for number, request in enumerate(asked):
        first, answer = stream(proxy.ports["HTTP"], completion(request["prompt"], len(request["answer"])))
        times.append(first)
        equal += answer == request["answer"]
        screen.progress(name, number + 1, len(asked), first)
    screen.clear()
    after = counters(proxy, prefiller, decoder)
    row = {count: after[count] - before[count] for count in after}
    return {**row, "name": name, "requests": len(asked), "prompt": sum(len(r["prompt"]) for r in asked),
            "p50": percentile(times, 0.5), "equal": equal, "alone": percentile([r["ttft"] for r in asked], 0.5)}


def row_of_one(asked):
    prompt = sum(len(r["prompt"]) for r in asked)
    return {"requests": len(asked), "prompt": prompt, "computed": prompt - sum(r["cached"] for r in asked),
            "p50": percentile([r["ttft"] for r in asked], 0.5), "equal": len(asked)}


def loopback_gbit(count=64 << 20):
    """The rate of loopback, by so many bytes over one connection."""
    server = socket.create_server(("127.0.0.1", 0))
    with server, socket.create_connection(server.getsockname()) as sender, server.accept()[0] as receiver:
        began = time.perf_counter()
        thread = threading.Thread(target=sender.sendall, args=(bytes(count),))
        thread.start()
        left = count
        while left > 0:
            left -= len(receiver.recv(1 << 20))
        thread.join()
        return 8 * count / (time.perf_counter() - began) / 1e9


def check_rate(gbit, measured):
    """At a higher rate than the operator names, the time after the last layer would be judged by too much time."""
    if measured > RATE_SLACK * gbit:
        raise Failed(f"--gbit {gbit:g}: loopback delivers {measured:.1f} Gbit/s; limit it first, for instance in a network namespace: "
                     f"ip link set lo up mtu 9000; tc qdisc add dev lo root tbf rate {gbit:g}gbit burst 2mb limit 16mb")


def seconds_at(gbit, row):
    """The time that all bytes of the pushes take whose end was timed. The last one can be missing."""
    return 8 * row["tail_bytes"] / (gbit * 1e9)


def tail_of(row, gbit):
    """The time from the last layer to the last byte verified, and, if the operator has set a rate, its share of the time
    that all bytes take at this rate."""
    if not row["tail_bytes"]:
        return "-"
    ms = f"{1000 * row['tail']:,.0f}"
    whole = seconds_at(gbit, row) if gbit else 0
    return f"{ms} of {1000 * whole:,.0f} ms ({row['tail'] / whole:.1%})" if whole else f"{ms} ms of {row['tail_bytes'] / 1e6:,.1f} MB"


def print_table(one, pairs, gbit=None):
    def cells(name, row):
        has_pair = "prefilled" in row
        return (name, str(row["requests"]), f"{row['prompt']:,}", f"{row['prefilled']:,.0f}" if has_pair else "-",
                f"{row['computed']:,.0f}", *(f"{row[way] / 1e6:,.1f} MB" if has_pair else "-" for way in ("read", "pushed")),
                tail_of(row, gbit) if has_pair else "-", f"{row['p50']:.2f} s", f"{row['alone']:.2f} s" if has_pair else "-", f"{row['equal']}/{row['requests']}")

    lines = [("pass", "requests", "prompt", "prefiller", "computed by decoder", "read", "pushed",
              f"after the last layer, of all bytes at {gbit:g} Gbit/s" if gbit else "after the last layer", "TTFT p50",
              "the same in (a)", "equal to (a)"), cells("(a) vLLM alone", one),
             *(cells(f"({row['name']}) prefill and decode, {PASSES[row['name']]}", row) for row in pairs)]
    print_lines(lines)


def judge(row, gbit=None):
    """The conditions of the exit code; returns those that failed, in words. `gbit`: the rate that the operator has set."""
    name, failed = row["name"], []
    way, other = ("read", "pushed") if PASSES[name] == "pull" else ("pushed", "read")
    if row["equal"] != row["requests"]:
        failed.append(f"({name}): {row['requests'] - row['equal']} outputs differ from (a)")
    if row["computed"] != row["requests"]:
        failed.append(f"({name}): the decoder computed {row['computed']:,.0f} prompt tokens of {row['requests']} requests, "
                      "not one of each")
    if row["early"]:
        failed.append(f"({name}): {row['early']:.0f} offers were not read to their end")
    if row[other] or not row[way]:
        failed.append(f"({name}): {row[way]:,.0f} bytes were {way}, and {row[other]:,.0f} bytes were {other}")
    if gbit and PASSES[name] == "push" and (not row["tail_bytes"] or row["tail"] > TAIL_SHARE_MAX * seconds_at(gbit, row)):
        failed.append(f"({name}): after the last layer, the pushes took {tail_of(row, gbit)}, not {TAIL_SHARE_MAX:.0%} at most"
                      if row["tail_bytes"] else f"({name}): no push was timed")
    return failed


def run(root, work, sessions_count, gbit):
    screen = Screen()
    screen.say("making the model with random weights")
    model = make_model(str(work / "model"))
    sessions = question_sessions(root, ByteSpeech(), sessions_count)
    job = dict(model=model, sessions=sessions, order=list(round_robin(sessions)), block_tokens=BLOCK_TOKENS,
               prompt_max=PROMPT_MAX, kv_blocks=KV_BLOCKS["random"], answer_tokens=ANSWER_TOKENS["random"],
               store=None, log=str(work / "vllm-pd-a.log"))
    asked = play(screen, root, job, ["a"])["a"]
    screen.say("starting the prefiller and the decoder")
    servers, pairs = start_pair(root, work, model), []
    urls = [f"http://127.0.0.1:{server.port}" for server in servers]
    try:
        for name, way in PASSES.items():
            proxy = Service(root, "proxy", work / f"proxy-pd-{way}.log", [
                "--listen.port=0", f"--prefill.urls={urls[0]}", f"--decode.urls={urls[1]}",
                f"--prefill.push={'true' if way == 'push' else 'false'}"])
            try:
                half = [request for (session, _), request in zip(job["order"], asked) if session % 2 == list(PASSES).index(name)]
                pairs.append(play_pair(screen, name, proxy, *servers, half))
            finally:
                proxy.end()
    finally:
        for server in servers:
            server.end()
    print()
    print_table(row_of_one(asked), pairs, gbit)
    print()
    return [reason for row in pairs for reason in judge(row, gbit)]


def main():
    root = Path(__file__).resolve().parents[2]
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--sessions", type=int, default=6)
    parser.add_argument("--gbit", type=float, help="the rate to which you have limited loopback: judges the time after the last layer")
    parser.add_argument("--work", type=Path, default=root / "run", help="model and logs")
    arguments = parser.parse_args()
    if arguments.sessions < 2:
        raise Failed(f"--sessions {arguments.sessions}: at least 2, one by pull and one by push")
    if arguments.gbit is not None and not 0 < arguments.gbit < float("inf"):
        raise Failed(f"--gbit {arguments.gbit:g}: the rate of loopback in Gbit/s, above 0")
    if arguments.gbit is not None:
        check_rate(arguments.gbit, loopback_gbit())
    with hold_folder(arguments.work):
        failed = run(root, arguments.work, arguments.sessions, arguments.gbit)
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
