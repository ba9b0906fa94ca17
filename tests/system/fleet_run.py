#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`make fleet`: a pool of four storages that two managers govern and two vLLMs share, while its parts are killed.

    a Redis with the managers' state        two managers, one of which leads
    storages: a Redis, a folder, S3, and    two nodes, each with the memory of one engine
    the memory of two nodes of a pool       two vLLMs, each a client of its node

Blocks of the nodes have two copies. Redis gets less room, so its cold blocks move to S3; the folder is drained in the middle;
blocks that are read again move to the nodes. The nodes of the pool copy the bytes.

The prompts are sessions of several turns: each turn begins with all that the session has said before. Every answer must equal
that of a vLLM without a cache. The exit code is 0 only if the conditions at the end of this file hold.
"""

import argparse
import collections
import random
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
for folder in (ROOT / "tests" / "system", ROOT / "tests" / "system" / "engines", ROOT / "tools" / "demo"):
    sys.path.insert(0, str(folder))

from conftest import Host, answers, forker, loaded  # noqa: E402
from fleet_world import STORAGES, Fleet  # noqa: E402
from make_model import make_model  # noqa: E402
from manager_process import wait_until  # noqa: E402
from node_process import Node  # noqa: E402

BLOCK = 32
ORIGINS = ("local", "memory", "remote")
KINDS = ("redis", "nodes", "file", "s3")  # each holds the beginning of every fourth session
LOST = ("redis",)  # in the middle of the story; one of the nodes is, too, and its blocks have copies
EMPTIED = ("file",)
REASONS = ("cold", "drain", "replica", "hot")


class Screen:
    def __init__(self, quiet):
        self.quiet, self.start = quiet, time.monotonic()

    def say(self, text):
        if not self.quiet:
            print(f"[{time.monotonic() - self.start:5.0f} s] {text}", flush=True)


def sessions_of(count, turns, tokens, seed):
    """For each session the prompts of its turns."""
    source = random.Random(seed)
    out = []
    for _ in range(count):
        said, prompts = [], []
        for _ in range(turns):
            said = said + [source.randrange(256) for _ in range(tokens)]
            prompts.append(said)
        out.append(prompts)
    return out


class Member:
    """An engine, and the node whose memory it uses."""

    def __init__(self, name, folder, model, url):
        self.name, self.folder, self.model, self.url = name, folder / name, model, url
        self.folder.mkdir()
        self.host = Host(self.folder / "vllm.log")
        self.start()

    def start(self):
        self.node = Node(self.folder, f"--listen.native={self.folder}/native", "--memory.size=192MiB",
                         f"--remote.urls={self.url}", "--cost.check=false", "--breaker.retry=1s",
                         f"--chunk.tokens={BLOCK}")
        self.host.start(model=self.model, store={"node.socket": f"{self.folder}/native", "timeout.lookup": "2s",
                                                 "chunk.tokens": str(BLOCK)})

    def restart(self):
        """The node is killed and starts again with nothing in its memory; vLLM starts anew too."""
        self.node.kill()
        self.host.stop()
        self.start()

    def flush(self):
        self.host.flush()

    def stop(self):
        self.host.kill()
        self.node.kill()


class Row:
    def __init__(self, phase, member, prompts, outputs, expected):
        self.phase, self.member, self.requests = phase, member.name, len(prompts)
        self.tokens = sum(map(len, prompts))
        self.origin = {what: sum(loaded(outputs, what)) for what in ORIGINS}
        self.failed = sum(loaded(outputs, "failed"))
        self.equal = sum(a == b for a, b in zip(answers(outputs), expected))

    @property
    def computed(self):
        return self.tokens - sum(self.origin.values())

    def cells(self):
        return (self.phase, self.member, str(self.requests), f"{self.tokens:,}", f"{self.computed:,}",
                *(f"{self.origin[what]:,}" for what in ORIGINS), f"{self.failed:,}", f"{self.equal}/{self.requests}")


def print_table(head, lines):
    lines = [head, *lines]
    widths = [max(len(line[i]) for line in lines) for i in range(len(head))]
    for number, line in enumerate(lines):
        print("  ".join(c.ljust(w) if i < 2 else c.rjust(w) for i, (c, w) in enumerate(zip(line, widths))))
        if number == 0:
            print("  ".join("-" * w for w in widths))
    print()


class Run:
    def __init__(self, folder, sessions, turns, tokens, seed, quiet=False):
        self.folder, self.screen = folder, Screen(quiet)
        self.sessions = sessions_of(sessions, turns, tokens, seed)
        self.rows, self.members, self.fleet, self.storages = [], [], None, {}
        self.located, self.moved = collections.Counter(), collections.Counter()

    # ---- parts ----

    def set_up(self):
        self.screen.say("making the model with random weights")
        self.model = make_model(str(self.folder / "model"), "test", 7)
        self.screen.say("vLLM without a cache answers all prompts")
        plain = Host(self.folder / "plain.log")
        plain.start(model=self.model, enable_prefix_caching=False)
        self.expected = {}
        for prompts in self.sessions:
            for prompt, answer in zip(prompts, answers(plain.generate(prompts=prompts))):
                self.expected[tuple(prompt)] = answer
        plain.stop()
        plain.kill()
        self.screen.say("starting Redis, a folder, S3, a pool of two nodes, two managers and two engines with their nodes")
        self.storages = {kind: STORAGES[kind](self.folder) for kind in KINDS}
        self.fleet = Fleet(self.folder, [self.storages[kind] for kind in KINDS], managers=2)
        self.members = [Member(name, self.folder, self.model, self.fleet.url) for name in ("A", "B")]

    def prefer(self, kind):
        """New blocks go to this storage, as long as it is well."""
        others = [other for other in KINDS[::-1] if other != kind]
        self.fleet.candidates([self.storages[each].name for each in (kind, *others)])

    def play(self, phase, member, turn, sessions=None):
        """One turn of some sessions, or of all."""
        prompts = [prompts[turn] for prompts in (self.sessions if sessions is None else sessions)]
        self.screen.say(f"{phase}: engine {member.name} answers turn {turn + 1} of {len(prompts)} sessions")
        outputs = member.host.generate(prompts=prompts)
        self.rows.append(Row(phase, member, prompts, outputs, [self.expected[tuple(p)] for p in prompts]))

    # ---- the story ----

    def tell(self):
        a, b = self.members
        redis, folder, pool = (self.storages[kind] for kind in ("redis", "file", "nodes"))
        self.fleet.copies("ST_TIERCE", 2)
        for i, kind in enumerate(KINDS):
            self.prefer(kind)
            self.play(f"new blocks go to {kind}", a, 0, self.sessions[i::len(KINDS)])
            a.flush()
        self.screen.say("Redis has less room from now on: its cold blocks move to S3")
        self.prefer("redis")
        self.fleet.reclaims(demote=1)
        self.fleet.squeeze(redis)
        self.play("B has seen none of it", b, 0)
        wait_until(lambda: self.fleet.moved()["cold"] > 0)
        self.screen.say("the folder is drained")
        self.prefer("s3")
        self.fleet.drain(folder.name)
        self.play("the next turn", b, 1)
        b.flush()
        wait_until(lambda: self.fleet.drained(folder.name) and pool.copied())
        self.screen.say("the leading manager is killed")
        self.note_counts()
        self.fleet.fail_over(signal.SIGKILL)
        self.play("another manager leads", a, 1)
        a.flush()
        self.screen.say("Redis, with its blocks, and a node of the pool are killed; B's node is killed and starts with nothing")
        redis.stop()
        pool.nodes[0].kill()
        wait_until(lambda: self.fleet.state_of(redis.name) == "unwell")
        pool.wait("unwell", ("n1",))
        b.restart()
        self.play("a storage is lost", b, 1)
        b.flush()
        self.screen.say("blocks that are read again move to the nodes from now on")
        self.prefer("nodes")
        self.fleet.reclaims(promote_window_seconds=3600)
        self.play("the last turn", b, 2)
        b.flush()
        self.screen.say("A's node is killed and starts with nothing")
        a.restart()
        self.play("from the other storages", a, 2)
        wait_until(lambda: self.fleet.moved()["hot"] > 0)

    def note_counts(self):
        """Places that readers were given, and blocks that moved: the manager that ends takes its counters along."""
        self.located += self.fleet.located()
        self.moved += self.fleet.moved()

    def show(self):
        print()
        print_table(("phase", "engine", "requests", "prompt", "computed", "vLLM held", "memory", "pool", "failed",
                     "equal"), [row.cells() for row in self.rows])
        print_table(("storage", "type", "blocks now", "places given to readers"),
                    [(self.storages[kind].name, kind,
                      "lost" if kind in LOST else "drained" if kind in EMPTIED else str(self.storages[kind].objects()),
                      str(self.located[self.storages[kind].name])) for kind in KINDS])
        print_table(("reason", "", "blocks moved"), [(reason, "", str(self.moved[reason])) for reason in REASONS])

    def judge(self):
        """The conditions of the exit code; returns those that failed, in words."""
        failed = []
        by_phase = {row.phase: row for row in self.rows}
        for row in self.rows:
            if row.equal != row.requests:
                failed.append(f"{row.phase}: {row.requests - row.equal} answers differ from those without a cache")
        first = sum((len(prompts[0]) - 1) // BLOCK * BLOCK for prompts in self.sessions)
        kept = sum((len(prompts[1]) - 1) // BLOCK * BLOCK
                   for i, prompts in enumerate(self.sessions) if KINDS[i % len(KINDS)] not in LOST)
        for phase, wanted in (("B has seen none of it", first), ("another manager leads", 2 * first),
                              ("a storage is lost", kept)):
            row = by_phase[phase]
            got = sum(row.origin.values())
            if got < 0.9 * wanted:
                failed.append(f"{phase}: {got:,} tokens came from caches, less than 90 % of {wanted:,}")
        if any(self.storages[kind].objects() == 0 for kind in KINDS if kind not in LOST + EMPTIED):
            failed.append("a storage has no block")
        failed += [f"no block has moved by the rule {reason}" for reason in REASONS if self.moved[reason] == 0]
        return failed

    def stop(self):
        for member in self.members:
            member.stop()
        if self.fleet is not None:
            self.fleet.stop()


def run(folder, sessions=4, turns=3, tokens=256, seed=20261128, quiet=False):
    """Returns the conditions that failed, and the rows."""
    play = Run(Path(folder), sessions, turns, tokens, seed, quiet)
    try:
        play.set_up()
        play.tell()
        play.note_counts()
        if not quiet:
            play.show()
        return play.judge(), play.rows
    finally:
        play.stop()


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--sessions", type=int, default=12)
    parser.add_argument("--tokens", type=int, default=512, help="of a turn; three turns fit in 2,000")
    parser.add_argument("--seed", type=int, default=20261128)
    arguments = parser.parse_args()
    if not 64 <= arguments.tokens <= 660 or not 4 <= arguments.sessions <= 64:
        parser.error("--tokens must be 64 to 660, --sessions 4 to 64")
    folder = Path(tempfile.mkdtemp(prefix="tierce-fleet-"))
    failed = None
    try:
        failed, _ = run(folder, arguments.sessions, 3, arguments.tokens, arguments.seed)
    except KeyboardInterrupt:
        pass
    except BaseException:
        print(f"make fleet: logs are in {folder}", file=sys.stderr)
        raise
    finally:
        forker.end()
    if failed is None:
        shutil.rmtree(folder, ignore_errors=True)
        return "make fleet: interrupted; the engines, managers, nodes and stores were killed, their logs removed"
    for reason in failed:
        print(f"FAILED {reason}")
    print("FAILED" if failed else "all conditions hold")
    if failed:
        print(f"logs are in {folder}")
    else:
        shutil.rmtree(folder, ignore_errors=True)
    return 1 if failed else 0


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("make fleet: ended by SIGTERM"))
    sys.exit(main())
