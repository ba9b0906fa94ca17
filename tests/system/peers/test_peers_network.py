# SPDX-License-Identifier: Apache-2.0
"""Engines that read each other's chunks and push them to each other, as processes on hosts of their own, between which the
network fails: nothing wrong is returned, every wait is bounded, and no pin is left."""

import json
import random
import select
import signal
import subprocess
import time

import pytest
from manager_process import executable, wait_until
from network import Network
from serve_process import PROGRAMS

BLOCKS, CHUNKS = 16, 4  # of a prompt
SMALL_CELL, LARGE_CELL = 16384, 131072  # bytes: prompts of 1 MiB; of 8 MiB, whose chunks of 2 MiB are read in RANGES
RANGES = 4
TIMEOUT_MS, LONG_MS = 400, 20000  # of loads during a fault, and of others
BOUND_SECONDS = 30  # of a load, on a slow machine
DEFAULT_LOAD_MS, MARGIN_MS = 10000, 1000  # timeout.load; for a process that has to wait for a processor
PROMPTS = 2
QUICK = ["memory.size=8MiB", "timeout.lookup=2s", "timeout.close=5s", "breaker.retry=100ms"]


class Engine:
    """peer_engine.c. It compares each byte that it loads."""

    def __init__(self, host, folder, zone, cell, settings):
        self.host, self.folder, self.zone, self.cell, self.settings = host, folder, zone, cell, settings
        self.start()

    def start(self):
        self.log = (self.folder / f"engine{self.host.number}.log").open("a")
        before = self.host.own_boot_id(self.folder) if self.zone else []
        self.process = self.host.start(
            *before, PROGRAMS.absolute() / "peer_engine", self.cell, *self.settings, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=self.log, text=True, bufsize=1)

    def begin(self, *words):
        self.process.stdin.write(" ".join(map(str, words)) + "\n")

    def end(self, seconds=BOUND_SECONDS):
        assert select.select([self.process.stdout], [], [], seconds)[0], "no answer in time"
        line = self.process.stdout.readline()
        assert line, f"the engine ended with {self.process.wait()}"
        return line

    def has_answered(self):
        return bool(select.select([self.process.stdout], [], [], 0)[0])

    def ask(self, *words):
        self.begin(*words)
        return self.end()

    def store(self, prompt):
        assert self.ask("store", prompt) == f"stored {BLOCKS}\n"

    def find(self, prompt):
        """The blocks that a request of vLLM finds; None: the time of its lookups is over before the answer is there, for
        instance on a busy machine."""
        _, blocks, _, state = self.ask("find", prompt).split()
        return int(blocks) if state == "answered" else None

    def load(self, prompt, timeout_ms):
        """0: as long as timeout.load."""
        return int(self.ask("load", prompt, timeout_ms).split()[1])

    def loads_all(self, prompt):
        """Of the others: it has nothing itself."""
        self.ask("forget")
        return self.load(prompt, LONG_MS) == BLOCKS

    def accept(self, other):
        """Where another engine may push a prompt to: host, port and ticket."""
        _, port, ticket = self.ask("accept", self.host.address, other.host.address).split()
        return self.host.address, port, ticket

    def push(self, prompt, place):
        """The chunks that arrived, and why the others did not."""
        self.begin("push", prompt, *place, LONG_MS)
        return self.pushed()

    def pushed(self):
        _, chunks, _, why = self.end().split(" ", 3)
        return int(chunks), why.strip()

    def peers(self):
        return json.loads(self.ask("status"))["peers"]

    def stats(self):
        return json.loads(self.ask("status"))["stats"]

    def has_no_pin(self):
        """Nor memory for chunks that are arriving, nor a request that waits for them."""
        status = json.loads(self.ask("status"))
        return status["stats"]["leases_now"] == status["peers"]["leases"] == status["peers"]["disk_reads"] == 0 and self.has_none_coming(status)

    def has_none_coming(self, status=None):
        """Of pushes. Chunks that have arrived stay pinned for their request."""
        inbox = (status or json.loads(self.ask("status"))).get("inbox", {})
        return all(inbox.get(name, 0) == 0 for name in ("incoming_now", "incoming_bytes_now", "waits_now"))

    def kill(self):
        self.process.kill()
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()
        self.log.close()

    def stop(self):
        self.process.stdin.close()
        code = self.process.wait(60)
        self.process.stdout.close()
        self.log.close()
        assert code == 0, f"the engine ended with {code}"


class World:
    """A manager and engines. has_defaults: without parameters but those that name addresses, and with large chunks."""

    def __init__(self, folder, engines, seed, links=1, zones=None, has_defaults=False):
        self.network = Network(1 + engines, seed, links)
        self.random, self.folder, self.has_defaults = random.Random(seed), folder, has_defaults
        hosts = self.network.hosts[1:]
        self.start_manager()
        self.engines = [Engine(host, folder, zone, LARGE_CELL if has_defaults else SMALL_CELL, self.settings(host, zone))
                        for host, zone in zip(hosts, zones or engines * [""], strict=True)]
        self.holders, self.reader = self.engines[:-1], self.engines[-1]
        self.prompts, self.stored = [], 0

    def settings(self, host, zone):
        url = f"remote.urls=peers://{self.network.hosts[0].address}:6381"
        if self.has_defaults:
            return [url]
        return [f"{url}?connections=4", f"peers.listen={','.join(host.addresses)}", f"peers.zone={zone}", *QUICK]

    def start_manager(self):
        host, silence = self.network.hosts[0], [] if self.has_defaults else ["--directory.silence=2s"]
        with (self.folder / "manager.log").open("a") as log:
            self.manager = host.start(executable().absolute(), "manager", f"--listen.host={host.address}", "--listen.insecure=true",
                                      "--listen.grpc_port=6381", *silence, cwd=self.folder, stdout=log, stderr=log)

    def kill_manager(self):
        self.manager.kill()
        self.manager.wait()

    def renew(self):
        """New prompts, each with one of the holders."""
        self.prompts = range(self.stored + 1, self.stored + 1 + PROMPTS)
        self.stored += PROMPTS
        for prompt in self.prompts:
            self.holders[prompt % len(self.holders)].store(prompt)

    def is_as_before(self):
        return all(self.reader.loads_all(prompt) for prompt in self.prompts)

    def stop(self):
        for engine in self.engines:
            if engine.process.poll() is None:
                engine.kill()
        self.kill_manager()
        self.network.close()


@pytest.fixture
def world(request, tmp_path):
    world = World(tmp_path, *request.param)  # engines, seed, links and zones
    yield world
    world.stop()


@pytest.fixture
def defaults(tmp_path):
    world = World(tmp_path, 2, 11, has_defaults=True)
    world.network.delay = 0.0005
    yield world
    world.stop()


def cut_within(world, holder):
    """The transfer is cut between two of its bytes."""
    world.network.cut_after(holder.host, world.reader.host, world.random.randrange(1, 1 << 20))


def damage_some(world, holder):
    world.network.damaged = 0.05


def lose_and_reorder(world, holder):
    world.network.lost, world.network.reordered, world.network.delay = 0.01, 0.05, 0.001


def cut_off_holder(world, holder):
    world.network.cut_off(holder.host)


def cut_off_manager(world, holder):
    world.network.cut_off(world.network.hosts[0])


def freeze_holder(world, holder):
    holder.process.send_signal(signal.SIGSTOP)


FAULTS = [cut_within, damage_some, lose_and_reorder, cut_off_holder, cut_off_manager, freeze_holder]


def meets(world, fault, holder):
    """The reader loads during the fault. Afterwards, all is as before."""
    world.reader.ask("forget")
    fault(world, holder)
    for prompt in world.prompts:
        world.reader.load(prompt, TIMEOUT_MS)
    holder.process.send_signal(signal.SIGCONT)
    world.network.heal()
    if fault is damage_some:  # what was damaged is not asked for again
        world.renew()
    wait_until(world.is_as_before)
    wait_until(lambda: all(engine.has_no_pin() for engine in world.engines))


@pytest.mark.parametrize("world", [(2, 1)], indirect=True)
def test_a_network_that_fails(world):
    (holder,), reader = world.holders, world.reader
    world.renew()
    wait_until(world.is_as_before)
    assert reader.peers()["read_bytes"] > PROMPTS << 20
    meets(world, cut_within, holder)
    assert reader.peers()["read_late"] > 0
    meets(world, lose_and_reorder, holder)
    meets(world, damage_some, holder)
    assert reader.stats()["checksum_failures"] > 0
    # Killed in the middle of a transfer.
    reader.ask("forget")
    world.network.cut_after(holder.host, reader.host, 300_000)
    reader.begin("load", world.prompts[0], TIMEOUT_MS)
    wait_until(lambda: world.network.has_cut(holder.host, reader.host))
    holder.kill()
    assert int(reader.end().split()[1]) < BLOCKS
    world.network.heal()
    wait_until(reader.has_no_pin)
    reader.stop()


def first_answer(reader, prompt):
    found = []
    wait_until(lambda: found.append(reader.find(prompt)) or found[-1] is not None)
    return found[-1]


def test_the_defaults_over_a_network_with_a_delay(defaults):
    """The first lookup and load of an engine find everything, and so do the later ones."""
    (holder,), reader = defaults.holders, defaults.reader
    for prompt in (1, 2, 3):  # meanwhile the reports arrive
        holder.store(prompt)
    wait_until(lambda: reader.find(2) == BLOCKS)  # reports are in the order of the stores
    reader.stop()
    reader.start()
    for prompt in (1, 2):
        assert first_answer(reader, prompt) == BLOCKS
        assert reader.load(prompt, 0) == BLOCKS
    read = reader.peers()
    assert read["read_chunks"] == 2 * CHUNKS and read["read_served"] >= RANGES * read["read_chunks"]
    for engine in defaults.engines:
        wait_until(engine.has_no_pin)
        engine.stop()


def load_while(world, prompt, timeout_ms, fail):
    """A load that is cut off within its chunks, and what happens then. Returns its blocks."""
    (holder,), reader, network = world.holders, world.reader, world.network
    network.cut_after(holder.host, reader.host, world.random.randrange(9 << 19, 12 << 19))  # more than half of a prompt
    reader.begin("load", prompt, timeout_ms)
    wait_until(lambda: network.has_cut(holder.host, reader.host) or reader.has_answered())
    fail()
    _, blocks, us = reader.end().split()
    print(f"{blocks} blocks after {us} us")
    assert int(us) / 1000 < (timeout_ms or DEFAULT_LOAD_MS) + MARGIN_MS
    wait_until(reader.has_no_pin)
    network.heal()
    return int(blocks)


@pytest.mark.parametrize("timeout_ms", [500, pytest.param(0, marks=pytest.mark.long)])
def test_a_holder_fails_within_chunks_of_several_ranges(defaults, timeout_ms):
    """It is cut off, and killed then. The load ends within its own timeout, or within timeout.load."""
    (holder,), reader = defaults.holders, defaults.reader
    holder.host.send_little_ahead()
    for prompt in (1, 2, 3):  # meanwhile the reports arrive
        holder.store(prompt)
    wait_until(lambda: reader.find(1) == reader.find(2) == BLOCKS)
    assert load_while(defaults, 1, timeout_ms, lambda: None) < BLOCKS
    wait_until(lambda: reader.loads_all(1))
    wait_until(holder.has_no_pin)

    def kill():
        defaults.network.heal()  # its host rejects what comes for the process
        holder.kill()

    before = reader.peers()["read_served"]
    assert load_while(defaults, 2, timeout_ms and 4000, kill) < BLOCKS
    assert before < reader.peers()["read_served"] < before + CHUNKS * RANGES
    reader.stop()


def is_reading(world, prompt):
    """Begins a load. False: it ended before anybody looked."""
    reader, before = world.reader, world.network.carried[0]
    reader.ask("forget")
    reader.begin("load", prompt, LONG_MS)
    wait_until(lambda: world.network.carried[0] > before + 100_000 or reader.has_answered())
    if reader.has_answered():
        reader.end()
        return False
    return True


@pytest.mark.parametrize("world", [(2, 13)], indirect=True)
def test_the_manager_is_killed_while_chunks_are_read(world):
    """A load whose holder is known goes on, and others miss. When the manager is back, all chunks are found again."""
    (holder,), reader, network = world.holders, world.reader, world.network
    for prompt in (1, 2):
        holder.store(prompt)
    wait_until(lambda: reader.loads_all(1))
    network.delay = 0.05
    wait_until(lambda: is_reading(world, 1))
    world.kill_manager()
    assert int(reader.end().split()[1]) == BLOCKS
    assert reader.load(2, TIMEOUT_MS) == 0
    network.heal()
    world.start_manager()
    holder.store(3)
    for prompt in (1, 2, 3):
        wait_until(lambda prompt=prompt: reader.loads_all(prompt))
    for engine in world.engines:
        wait_until(engine.has_no_pin)
        engine.stop()


@pytest.mark.parametrize("world", [(2, 3)], indirect=True)
def test_a_decoder_is_killed_while_chunks_are_pushed_to_it(world):
    """The prefiller ends the push within its bound, whether or not the decoder's host still answers, and pushes to the next
    decoder."""
    (prefiller,), decoder = world.holders, world.reader
    assert prefiller.push(1, decoder.accept(prefiller)) == (CHUNKS, "")
    assert decoder.load(1, LONG_MS) == BLOCKS  # it compares the bytes
    for prompt, heals in ((2, False), (3, True)):
        place = decoder.accept(prefiller)
        world.network.cut_after(prefiller.host, decoder.host, world.random.randrange(1, 900_000))
        prefiller.begin("push", prompt, *place, LONG_MS if heals else TIMEOUT_MS)
        wait_until(lambda: world.network.has_cut(prefiller.host, decoder.host) or prefiller.has_answered())
        decoder.kill()
        if heals:  # its host rejects what comes for the process
            world.network.heal()
        chunks, why = prefiller.pushed()
        assert chunks < CHUNKS and why
        world.network.heal()
        wait_until(prefiller.has_no_pin)
        decoder.start()
        wait_until(lambda: decoder.loads_all(prompt))  # the prefiller serves it as a peer
    assert prefiller.push(4, decoder.accept(prefiller)) == (CHUNKS, "")
    # The prefiller is killed in the middle of a push: the decoder keeps no room for the rest.
    place = decoder.accept(prefiller)
    world.network.cut_after(prefiller.host, decoder.host, 300_000)
    prefiller.begin("push", 5, *place, LONG_MS)
    wait_until(lambda: world.network.has_cut(prefiller.host, decoder.host) and not decoder.has_none_coming())
    prefiller.kill()
    world.network.heal()
    wait_until(decoder.has_none_coming)
    assert decoder.load(4, LONG_MS) == BLOCKS  # of its own memory
    decoder.stop()


@pytest.mark.parametrize("world", [(3, 5, 1, ["eu/row-1/rack-1", "eu/row-2/rack-1", "eu/row-2/rack-2"])], indirect=True)
def test_the_nearest_of_two_holders_is_read(world):
    """And the other one when it fails. Both hold the same chunks in memory."""
    far, near = world.holders
    for holder, later in ((far, 2), (near, 3)):
        holder.store(1)
        holder.store(later)
    for later in (2, 3):  # reports are in the order of the stores
        wait_until(lambda later=later: world.reader.loads_all(later))
    before = far.peers()["answered_memory"], near.peers()["answered_memory"]
    assert world.reader.loads_all(1)
    assert far.peers()["answered_memory"] == before[0] and near.peers()["answered_memory"] >= before[1] + CHUNKS
    cut_off_holder(world, near)
    wait_until(lambda: world.reader.loads_all(1))  # from the far one
    assert far.peers()["answered_memory"] > before[0]
    world.network.heal()
    for engine in world.engines:
        wait_until(engine.has_no_pin)
        engine.stop()


@pytest.mark.parametrize("world", [(2, 7, 2)], indirect=True)
def test_one_of_two_links_fails(world):
    """Both carry the chunks; afterwards one of them does."""
    reader, network = world.reader, world.network
    world.renew()
    wait_until(world.is_as_before)
    assert min(network.carried) > 200_000
    network.links_off = {1}
    wait_until(lambda: world.is_as_before() and reader.peers()["links_paused"] == 1)
    assert reader.peers()["paused"] == 0
    network.links_off = set()
    wait_until(lambda: world.is_as_before() and reader.peers()["links_paused"] == 0)
    for engine in world.engines:
        assert engine.has_no_pin()
        engine.stop()


@pytest.mark.long
@pytest.mark.parametrize("world", [(3, seed) for seed in range(2, 7)], indirect=True)
def test_a_network_that_fails_in_many_ways(world):
    world.renew()
    wait_until(world.is_as_before)
    until = time.monotonic() + 60
    while time.monotonic() < until:
        meets(world, world.random.choice(FAULTS), world.random.choice(world.holders))
    for engine in world.engines:
        engine.stop()
