# SPDX-License-Identifier: Apache-2.0
"""Many clients of a node that store, find, remove and expire the same few names at once, with little room."""

import os
import random
import threading

import pytest

from node_process import Node, command

SEED = int(os.environ.get("TIERCE_TEST_SEED") or random.randrange(1 << 32))
CLIENTS, ROUNDS, AT_ONCE = 6, 60 * int(os.environ.get("TIERCE_TEST_SCALE", "1")), 24
SIZES = (1, 60, 200, 1000, 5000, 20_000, 20_000, 700_000)


def make_value(name, writer, version, size):
    """The value states its own parameters, from which every byte follows."""
    head = b"%s %d %d %d " % (name, writer, version, size)
    return head + random.Random(head).randbytes(size)


class Refused(Exception):
    """An answer."""


class Client(threading.Thread):
    """Each value found was stored completely under that name; and no writer's value is older than
    one already seen, or than its own last store."""

    def __init__(self, node, number, names, dice):
        super().__init__()
        self.sock, self.number, self.names, self.dice = node.connect(node.resp), number, names, dice
        self.answers, self.failure = self.sock.makefile("rb"), None
        self.seen, self.last, self.version = {}, {}, 0
        self.found = self.missed = self.refused = 0

    def choose(self):
        """A command, and the name whose value it answers."""
        name, dice = self.dice.choice(self.names), self.dice.random()
        if dice < 0.45:
            return ("GET", name), [name]
        if dice < 0.5:
            names = [name, self.dice.choice(self.names)]
            return ("MGET", *names), names
        if dice < 0.56:
            return ("DEL", name), []
        if dice < 0.6:
            return ("PEXPIRE", name, self.dice.choice((-1, 1, 50, 100_000))), []
        if dice < 0.62:
            return ("PERSIST", name), []
        if dice < 0.7 and name in self.last:
            return ("SET", name, self.last[name]), []  # the same again
        self.version += 1
        size = self.dice.randrange(self.dice.choice(SIZES)) + 1
        self.last[name] = make_value(name, self.number, self.version, size)
        if dice < 0.75:
            return ("SET", name, self.last[name], "GET"), [name]
        if dice < 0.8:
            return ("SET", name, self.last[name], "PX", self.dice.choice((1, 20, 100_000))), []
        return ("SET", name, self.last[name]), []

    def take_answer(self):
        line = self.answers.readline()
        assert line.endswith(b"\r\n"), line
        kind, rest = line[:1], line[1:-2]
        if kind == b"*":
            return [self.take_answer() for _ in range(int(rest))]
        if kind == b"$":
            return self.answers.read(int(rest) + 2)[:-2] if rest != b"-1" else None
        return Refused(rest) if kind == b"-" else rest

    def check(self, name, value):
        if value is None:
            self.missed += 1
            return
        self.found += 1
        of, writer, version, size, _ = value.split(b" ", 4)
        writer, version, size = int(writer), int(version), int(size)
        assert of == name and value == make_value(name, writer, version, size), (name, value[:50], len(value))
        assert version >= self.seen.get((name, writer), 0), (name, value[:50], self.seen[name, writer])
        self.seen[name, writer] = version

    def turn(self):
        asked = [self.choose() for _ in range(AT_ONCE)]
        bytes_out = b"".join(command(*words) for words, _ in asked)
        sender = threading.Thread(target=self.sock.sendall, args=(bytes_out,))
        sender.start()
        for words, names in asked:
            answer = self.take_answer()
            if isinstance(answer, Refused):
                assert answer.args[0].startswith(b"OOM"), answer
                self.refused += 1
                continue
            answers = answer if isinstance(answer, list) else [answer]
            for name, value in zip(names, answers if names else [], strict=True):
                self.check(name, value)
            if words[0] == "SET" and answer == b"OK":
                self.seen[words[1], self.number] = int(words[2].split(b" ", 3)[2])
        sender.join()

    def run(self):
        try:
            for _ in range(ROUNDS):
                self.turn()
        except Exception as e:  # told by the test's own thread
            self.failure = e
        self.sock.close()


@pytest.mark.parametrize("arguments", [[], ["--memory.policy=ttl", "--memory.ttl=1s"],
                                       ["--disk.path=store", "--disk.size=16MiB", "--disk.flush_interval=10ms"]],
                         ids=["memory", "ttl", "disk"])
def test_whatever_is_found_was_stored_and_is_not_older(tmp_path, arguments):
    print(f"TIERCE_TEST_SEED={SEED}")
    dice = random.Random(SEED)
    arguments = [a.replace("=store", f"={tmp_path / 'store'}") for a in arguments]
    node = Node(tmp_path, "--memory.size=4MiB", "--serve.loops=3", *arguments)
    names = [b"name-%d" % i for i in range(12)] + [b"n" * 1024] + [b"rare-%d" % i for i in range(300)]
    names = names[:13] * 12 + names[13:]
    clients = [Client(node, i, names, random.Random(dice.random())) for i in range(CLIENTS)]
    for client in clients:
        client.start()
    for client in clients:
        client.join()
    failures = [client.failure for client in clients if client.failure is not None]
    found, missed, refused = (sum(getattr(c, what) for c in clients) for what in ("found", "missed", "refused"))
    print(f"found {found}, missed {missed}, refused {refused}")
    node.end()
    assert not failures, failures
    assert found > missed / 10 and refused < found / 10
