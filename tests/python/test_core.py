# SPDX-License-Identifier: Apache-2.0
"""tierce._core against hostile arguments and threads: an exception, never a crash."""

import ctypes
import errno
import json
import os
import subprocess
import threading
import time
from array import array

import pytest

from tierce import _core as core

BLOCKS, CELL = 64, 512
IDS = array("i", range(BLOCKS))
NAMESPACE = {"weights": "aa", "model": "m", "kv_dtype": "f", "quantization": "", "layout": "l",
             "layer_count": 2, "cell_bytes": [CELL, CELL], "block_tokens": 4, "chunk_blocks": 4,
             "algo": "sha256"}


class Paged:
    """An engine's memory of two layers, and a view on it."""

    def __init__(self, engine, cell=CELL):
        self.view = engine.view({**NAMESPACE, "cell_bytes": [cell, cell]})
        self.memory = [ctypes.create_string_buffer(cell * BLOCKS) for _ in range(2)]
        self.where = [ctypes.addressof(m) for m in self.memory], [cell, cell], BLOCKS
        self.view.set_paged(*self.where)

    def chain(self, seed=0):
        chain = self.view.chain()
        chain.append(array("i", [seed] * 4 * BLOCKS))
        return chain


def open_engine(**values):
    return core.Engine.open(None, {"memory.size": "16MiB", "disk.path": "", **values})


@pytest.fixture
def engine():
    engine = open_engine()
    yield engine
    engine.close()


def together(count, work):
    threads = [threading.Thread(target=work) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


@pytest.mark.parametrize("key", NAMESPACE)
def test_a_namespace_says_everything(engine, key):
    with pytest.raises(KeyError, match=key):
        engine.view({k: v for k, v in NAMESPACE.items() if k != key})


@pytest.mark.parametrize("changes, error", [
    ({"modle": "x"}, KeyError), ({"model": "a\0b"}, ValueError), ({"weights": "aa\0b"}, ValueError),
    ({"model": 5}, TypeError), ({"algo": "sha256\0"}, ValueError), ({"algo": "md5"}, ValueError),
    ({"cell_bytes": [CELL, 2**32 + CELL]}, OverflowError), ({"cell_bytes": [CELL, "x"]}, TypeError),
    ({"cell_bytes": [CELL]}, ValueError), ({"cell_bytes": (CELL, CELL)}, ValueError),
    ({"layer_count": -1}, OverflowError), ({"chunk_blocks": 2**32 + 4}, OverflowError),
    ({"block_tokens": 2**32 + 4}, OverflowError),
    ({"layer_count": 0, "cell_bytes": []}, core.Error)])
def test_a_namespace_is_not_cut_to_fit(engine, changes, error):
    with pytest.raises(error):
        engine.view({**NAMESPACE, **changes})


@pytest.mark.parametrize("shard", [(65536, 1, 0, 1), (-1, 65535, 0, 1), (0, 65537, 0, 1)])
def test_a_shard_is_not_cut_to_fit(engine, shard):
    with pytest.raises(OverflowError):
        engine.view(NAMESPACE, shard)


NOTE = ("cmpl-1", 2**64 - 1, 1, 2, 3, 4, 5, 6, 7, 8)


@pytest.mark.parametrize("at, value, error", [
    (0, "", core.Error), (0, "x" * 129, core.Error), (0, "a\0b", ValueError), (0, b"x", TypeError),
    (1, "x", TypeError), (9, 12, core.Error), (9, -1, core.Error), (9, 2**40, OverflowError)])
def test_a_note_of_a_request_is_checked(engine, at, value, error):
    assert engine.note_request(*NOTE) is None
    with pytest.raises(error):
        engine.note_request(*NOTE[:at], value, *NOTE[at + 1:])


def test_a_setting_has_no_hidden_end(engine):
    with pytest.raises(ValueError):
        open_engine(**{"memory.size": "4MiB\0junk"})
    with pytest.raises(ValueError):
        engine.param("memory.size\0")
    with pytest.raises(ValueError):
        core.fingerprint("/tmp\0/x")


def test_a_fingerprint_that_fails_names_the_folder(tmp_path):
    for folder in (tmp_path, tmp_path / "none"):
        with pytest.raises(core.Error, match=rf"^{folder}: No such file or directory; pass a folder with weights: ") as error:
            core.fingerprint(str(folder))
        assert error.value.status == -errno.ENOENT


def test_store_and_load(engine):
    paged = Paged(engine)
    for memory in paged.memory:
        memory.raw = os.urandom(len(memory))
    chain = paged.chain()
    store = paged.view.store_begin(chain, 32, IDS)
    for layer in range(2):
        store.layer(layer)
    assert store.end() == 32
    with pytest.raises(ValueError, match="closed"):
        store.end()
    assert paged.view.lookup(chain, 0, 32, 0, 0) == (32, 32, False)
    load = paged.view.load_begin(chain, 0, 32, array("i", range(32, 64)))
    for layer in range(2):
        load.layer(layer)
    assert load.end() == b"\1" * 32
    for memory in paged.memory:
        assert memory.raw[32 * CELL:] == memory.raw[:32 * CELL]


def test_a_store_at_once(engine):
    paged = Paged(engine)
    for memory in paged.memory:
        memory.raw = os.urandom(len(memory))
    chain = paged.chain()
    assert paged.view.store(chain, 32, IDS, 0) == (32, False)
    assert paged.view.store(chain, 32, IDS, 0) == (0, False)
    load = paged.view.load_begin(chain, 0, 32, array("i", range(32, 64)))
    load.layer(0)
    load.layer(1)
    assert load.end() == b"\1" * 32
    assert all(memory.raw[32 * CELL:] == memory.raw[:32 * CELL] for memory in paged.memory)
    with pytest.raises(ValueError, match="fewer block ids"):
        paged.view.store(chain, BLOCKS + 1, IDS, 0)
    wide = Paged(engine, 1 << 18)  # a chunk of 2 MiB
    held = [wide.view.store_begin(wide.chain(seed), 4, IDS) for seed in range(8)]
    assert wide.view.store(wide.chain(8), 4, IDS, 0) == (0, True)
    del held
    assert wide.view.store(wide.chain(8), 4, IDS, 0) == (4, False)


def test_a_namespace_is_cleared(engine):
    paged, other = Paged(engine), Paged(engine, CELL // 2)
    for each in (paged, other):
        store = each.view.store_begin(each.chain(), 32, IDS)
        store.layer(0)
        store.layer(1)
        assert store.end() == 32
    assert paged.view.clear() == 8
    assert paged.view.lookup(paged.chain(), 0, 32, 0, 0)[0] == 0
    assert other.view.lookup(other.chain(), 0, 32, 0, 0)[0] == 32
    assert paged.view.clear() == 0
    engine.close()
    with pytest.raises(ValueError, match="closed"):
        paged.view.clear()


def store_on_disk(cell, disk):
    """32 blocks. The engine ends with the last object that refers to it."""
    engine = open_engine(**disk)
    paged = Paged(engine, cell)
    store = paged.view.store_begin(paged.chain(), 32, IDS)
    for layer in range(2):
        store.layer(layer)
    assert store.end() == 32
    assert engine.flush(60000)


def test_layers_with_the_same_address_require_memory_for_all_chunks(tmp_path):
    cell, disk = 1 << 15, {"disk.path": str(tmp_path / "store")}
    store_on_disk(cell, disk)
    engine = open_engine(**{"memory.size": "1MiB"}, **disk)
    paged = Paged(engine, cell)
    chain = paged.chain()
    assert paged.view.lookup(chain, 0, 32, 0, 0)[0] == 32
    paged.view.set_paged(paged.where[0][:1] * 2, [cell, cell], BLOCKS)
    load = paged.view.load_begin(chain, 0, 32, IDS)
    with pytest.raises(core.Error, match="same address"):
        load.layer(0)
    load.abort()
    engine.close()


ROTATION = "bfloat16", 64, '{"rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0, \
"high_freq_factor": 4.0, "original_max_position_embeddings": 8192}', True, -77


def test_keys_of_a_load_are_rotated(engine):
    paged = Paged(engine)
    for memory in paged.memory:
        memory.raw = os.urandom(len(memory))
    load = paged.view.load_begin(paged.chain(), 0, 4, IDS)
    for memory, address in zip(paged.memory, paged.where[0]):
        rotated = bytearray(memory.raw)
        core.rotate_keys(rotated, *ROTATION)
        load.rotate_keys(address, len(memory) // 128, *ROTATION)
        assert memory.raw == rotated
        load.rotate_keys(address, 0, *ROTATION)
    for address, count in ((0, 1), (8, 2**63)):
        with pytest.raises(core.Error):
            load.rotate_keys(address, count, *ROTATION)
    with pytest.raises(core.Error, match="longrope"):
        load.rotate_keys(8, 1, "bfloat16", 64, '{"rope_type": "longrope"}', True, 1)
    with pytest.raises(ValueError, match="fp8"):
        load.rotate_keys(8, 1, "fp8", *ROTATION[1:])
    load.abort()
    with pytest.raises(ValueError, match="closed"):
        load.rotate_keys(paged.where[0][0], 1, *ROTATION)


def test_keys_of_a_load_are_compared(engine):
    paged = Paged(engine)
    load = paged.view.load_begin(paged.chain(), 0, 4, IDS)
    keys = array("f", [0, 0, 5, 5, 1, 1, 9, 9]), array("f", [0, 0, 0, 5, 1, 3, 0, 0])
    distances = array("f", [7] * 5)
    places = distances.buffer_info()[0], *(each.buffer_info()[0] for each in keys)
    load.key_distances(*places, 4, "float32", 2)
    assert distances.tolist() == [0, 25, 4, 162, 7]
    load.key_distances(*places, 1, "float32", 8)
    assert distances[:2].tolist() == [191, 25]
    load.key_distances(0, 0, 0, 0, "bfloat16", 2)
    for args in ((0, *places[1:], 1, "float32", 2), (places[0], 0, places[2], 1, "float32", 2),
                 (*places[:2], 0, 1, "float32", 2), (places[0] + 2, *places[1:], 1, "float32", 2),
                 (*places, 1, "float32", 0), (*places, 1, "float32", (1 << 20) + 1), (*places, 1 << 63, "float32", 2)):
        with pytest.raises(core.Error):
            load.key_distances(*args)
    with pytest.raises(ValueError, match="fp8"):
        load.key_distances(*places, 1, "fp8", 2)
    load.abort()
    with pytest.raises(ValueError, match="closed"):
        load.key_distances(*places, 1, "float32", 2)


def test_a_prompt_is_handed_over_by_tls(tmp_path):
    """A self-signed certificate is its own CA. The word of the offer alone changes nothing."""
    pem, token = tmp_path / "own.pem", "0123456789abcdef" * 2
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2",
                    "-keyout", pem, "-out", tmp_path / "cert", "-subj", "/CN=own", "-addext", "subjectAltName=IP:127.0.0.1"],
                   check=True, capture_output=True)
    pem.write_text(pem.read_text() + (tmp_path / "cert").read_text())
    prefiller = open_engine(**{"peers.certificate": str(pem), "peers.key": str(pem), "peers.ca": str(pem)})
    decoder, plain = open_engine(**{"peers.ca": str(pem), "memory.size": "17MiB"}), open_engine(**{"memory.size": "18MiB"})
    with pytest.raises(core.Error, match="is not for 127.0.0.2"):
        prefiller.handover_start("127.0.0.2", 0)
    port, paged = prefiller.handover_start("127.0.0.1", 0), Paged(prefiller)
    chain = paged.chain()
    store = paged.view.store_begin(chain, BLOCKS, IDS)
    for layer in range(2):
        store.layer(layer)
    assert store.end() == BLOCKS
    prefiller.handover_expect(token, 60000)
    assert paged.view.handover_pin(chain, BLOCKS, token) == BLOCKS
    prefiller.handover_open(token, BLOCKS)
    for engine, tls, blocks, why in ((plain, True, 0, "requires TLS"), (decoder, False, 0, "does not use TLS"), (decoder, True, BLOCKS, "")):
        reader = Paged(engine)
        source = reader.view.handover_source("127.0.0.1", port, token, 1, 0, 30000, None, tls)
        got, _, said = reader.view.handover_read(source, reader.chain(), 0, BLOCKS)
        assert got == blocks and why in said and bool(said) == bool(why)
        source.give_up()
        assert reader.view.handover_read(source, reader.chain(9), 0, BLOCKS)[2] == "the request has ended"
        assert source.end() == (0, 0)
        source.give_up()  # it has ended
        reader.view.unpin(1)
    for engine in (plain, decoder, prefiller):
        engine.close()


def test_a_group_of_layers(engine):
    """A window of 16 tokens: the last four blocks are enough to continue."""
    group = {"group": "window", "window": 16, "layers": [1, 2]}
    paged = Paged(engine)
    view = engine.view({**NAMESPACE, **group})
    view.set_paged(*paged.where)
    assert view.namespace.endswith("\ngroup=window\nwindow=16\nlayers=1-2\n")
    assert [view.needs(blocks) for blocks in (0, 3, 4, 32)] == [0, 0, 0, 28]
    chain = paged.chain()
    store = view.store_begin(chain, 32, IDS, from_block=26)
    for layer in range(2):
        store.layer(layer)
    assert store.end() == 4
    assert view.lookup(chain, 0, 32, 1, 9) == (32, 32, False)
    assert view.lookup(chain, 0, 28, 1, 9) == (0, 0, False)


@pytest.mark.parametrize("changes, error", [
    ({"group": "all"}, ValueError), ({"group": "windows"}, ValueError), ({"group": 2}, TypeError),
    ({"window": 0}, core.Error), ({"window": -1}, OverflowError), ({"layers": [1]}, ValueError),
    ({"layers": None}, ValueError), ({"layers": [1, 65536]}, core.Error), ({"group": "full"}, core.Error),
    ({"group": "state", "window": 0}, core.Error), ({"windows": 3}, KeyError)])
def test_a_group_is_not_cut_to_fit(engine, changes, error):
    with pytest.raises(error):
        engine.view({**NAMESPACE, "group": "window", "window": 16, "layers": [1, 2], **changes})


def test_a_group_is_described_in_full(engine):
    with pytest.raises(KeyError, match="window"):
        engine.view({**NAMESPACE, "group": "full", "layers": [1, 2]})


def test_tags_reach_the_access_log(tmp_path):
    path = tmp_path / "access"
    engine = open_engine(**{"access_log.path": str(path)})
    paged = Paged(engine)
    chain = paged.chain()
    paged.view.lookup(chain, 0, 32, 0, 0)
    paged.view.lookup(chain, 0, 32, 0, 0, "asks")
    with pytest.raises(TypeError):
        paged.view.lookup(chain, 0, 32, 0, 0, 7)
    store = paged.view.store_begin(chain, 32, IDS, tag="stores")
    for layer in range(2):
        store.layer(layer)
    assert store.end() == 32
    del store
    paged.view = None
    engine.close()
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line.get("tag") for line in lines] == [None, "asks", "stores"]


def test_prefetch(tmp_path):
    engine = open_engine(**{"disk.path": str(tmp_path / "store")})
    paged = Paged(engine)
    chain = paged.chain()
    store = paged.view.store_begin(chain, 32, IDS)
    for layer in range(2):
        store.layer(layer)
    assert store.end() == 32 and engine.flush(60000)
    del store
    paged.view = None
    engine.close()
    engine = open_engine(**{"disk.path": str(tmp_path / "store")})
    paged = Paged(engine)
    assert paged.view.lookup(chain, 0, 32, 0, 0) == (32, 0, False)
    prefetch = paged.view.prefetch_begin(chain, 0, 32, 7)
    give_up = time.monotonic() + 60
    while not prefetch.poll()[0]:
        assert time.monotonic() < give_up
        time.sleep(0.001)
    assert prefetch.poll() == (True, 32, 32, False)
    prefetch.end()
    prefetch.end()
    with pytest.raises(ValueError, match="closed"):
        prefetch.poll()
    assert paged.view.lookup(chain, 0, 32, 0, 0) == (32, 32, False)
    assert engine.stats()["sessions_now"] == 1
    with pytest.raises(core.Error):
        paged.view.prefetch_begin(chain, 0, 32, 0)
    with pytest.raises(TypeError):
        paged.view.prefetch_begin(None, 0, 32, 7)
    paged.view.prefetch_begin(chain, 0, 32, 8)  # abandoned
    engine.close()


@pytest.mark.parametrize("number", [-1, 2**64, 2**64 + 1])
def test_block_numbers_are_not_cut_to_fit(engine, number):
    paged = Paged(engine)
    chain = paged.chain()
    for call in (lambda: paged.view.store_begin(chain, number, IDS),
                 lambda: paged.view.load_begin(chain, 0, number, IDS),
                 lambda: paged.view.load_begin(chain, number, 4, IDS),
                 lambda: paged.view.lookup(chain, 0, number, 0, 0),
                 lambda: paged.view.lookup(chain, 0, 4, number, 0),
                 lambda: paged.view.set_paged(*paged.where[:2], number),
                 lambda: paged.view.load_begin(chain, 0, 4, IDS, 0, number),
                 lambda: engine.flush(number),
                 lambda: paged.view.unpin(number),
                 lambda: paged.view.prefetch_begin(chain, 0, number, 7),
                 lambda: paged.view.prefetch_begin(chain, 0, 4, 7, number),
                 lambda: paged.view.computed(number, 1),
                 lambda: paged.view.computed(1, number),
                 lambda: chain.append(array("i"), [(number, b"x")])):
        with pytest.raises(OverflowError):
            call()


def test_32_bits_are_not_cut_to_fit(engine):
    paged = Paged(engine)
    chain = paged.chain()
    store = paged.view.store_begin(chain, BLOCKS, IDS)
    for call in (lambda: store.layer(2**32), lambda: paged.view.lookup(chain, 0, 4, 2**32, 0),
                 lambda: paged.view.set_paged(*paged.where[:2], 2**32 + BLOCKS),
                 lambda: paged.view.load_begin(chain, 0, 4, IDS, 0, 2**32),
                 lambda: engine.flush(2**32)):
        with pytest.raises(OverflowError):
            call()
    store.layer(0)


@pytest.mark.parametrize("extras", [5, [5], [(0,)], [(0, "text")], ((0, b"x"),)])
def test_extras_of_a_wrong_shape(engine, extras):
    with pytest.raises(TypeError):
        Paged(engine).view.chain().append(array("i", [1]), extras)


def test_the_description_stays_while_it_is_used(engine):
    paged = Paged(engine)
    store = paged.view.store_begin(paged.chain(), BLOCKS, IDS)
    load = paged.view.load_begin(paged.chain(1), 0, BLOCKS, IDS)
    for transfer in (store, load):
        with pytest.raises(RuntimeError, match="in progress"):
            paged.view.set_paged(*paged.where[:2], 8)
        transfer.layer(0)
        transfer.abort()
    paged.view.set_paged(*paged.where[:2], 8)
    with pytest.raises(core.Error):  # a load that cannot begin does not keep it
        paged.view.load_begin(paged.chain(), 5, 4, IDS)
    paged.view.set_paged(*paged.where)
    store = paged.view.store_begin(paged.chain(), BLOCKS, IDS)
    del store  # forgotten, not ended
    paged.view.set_paged(*paged.where)


def test_without_a_node_layers_are_told_to_nobody(engine):
    paged = Paged(engine)
    store = paged.view.store_begin(paged.chain(), BLOCKS, IDS)
    store.tell_layers()
    store.layer(0)
    store.tell_layers()
    store.abort()
    with pytest.raises(ValueError, match="closed"):
        store.tell_layers()


def test_a_wrong_description_changes_nothing(engine):
    paged = Paged(engine)
    for wrong in ([1, "x"], [CELL, CELL]), ([1, 1], [8, -1]):
        with pytest.raises((TypeError, OverflowError)):
            paged.view.set_paged(*wrong, BLOCKS)
    store = paged.view.store_begin(paged.chain(), BLOCKS, IDS)
    store.layer(0)
    store.layer(1)
    assert store.end() == BLOCKS


def test_a_store_in_the_hands_of_many_threads():
    paged = Paged(open_engine(**{"memory.size": "256MiB"}), 1 << 20)
    for seed in range(10):
        store = paged.view.store_begin(paged.chain(seed), BLOCKS, IDS)

        def work():
            for call in (lambda: store.layer(0), store.end, store.abort):
                try:
                    call()
                except (RuntimeError, ValueError, core.Error):
                    pass
        together(4, work)


def test_a_chain_that_is_read_is_not_changed(engine):
    paged = Paged(engine)
    chain = paged.view.chain()
    end = threading.Event()

    def write():
        while not end.is_set():
            try:
                chain.append(array("i", range(4000)))
                if chain.blocks > 50000:
                    chain.reset()
            except RuntimeError as error:
                assert "another thread" in str(error)

    writer = threading.Thread(target=write)
    writer.start()
    for _ in range(2000):
        try:
            paged.view.lookup(chain, 0, chain.blocks, 0, 0)
        except core.Error:
            pass
    end.set()
    writer.join()


def test_an_engine_is_closed_under_a_flush(tmp_path):
    for seed in range(10):
        engine = open_engine(**{"disk.path": str(tmp_path / "s"), "disk.size": "32MiB"})
        paged = Paged(engine)
        store = paged.view.store_begin(paged.chain(seed), BLOCKS, IDS)
        store.layer(0)
        store.layer(1)
        store.end()
        del paged, store

        def flush():
            try:
                engine.flush(1000)
            except ValueError as error:
                assert "closed" in str(error)

        threads = [threading.Thread(target=flush) for _ in range(3)]
        for thread in threads:
            thread.start()
        engine.close()
        for thread in threads:
            thread.join()


def test_a_forked_child_lets_go(tmp_path):
    engine = open_engine(**{"disk.path": str(tmp_path / "s"), "disk.size": "32MiB"})
    paged = Paged(engine)
    child = os.fork()
    if child == 0:
        engine.close()
        del paged
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert engine.flush(60000)


JOBS = dict(threads=2, blocks_max=1000, timeout_ms=60000, lookups=100, ask_ms=60000, answer_ms=60000, failed_ms=60000)
ROW = {**NAMESPACE, "layer_count": 1, "cell_bytes": [CELL], "chunk_blocks": 1}


def block_key(number, view=0):
    return bytes([number]) * 32 + view.to_bytes(4, "big")


def open_jobs(engine, region, **changes):
    return core.BlockJobs.open([engine.view(ROW), None], region, CELL, **{**JOBS, **changes})


def finished(jobs):
    until = time.monotonic() + 60
    while (job := jobs.poll()) is None:
        assert time.monotonic() < until
    return job


def test_block_jobs(engine):
    region = bytearray(os.urandom(4 * CELL))
    kept = bytes(region)
    jobs = open_jobs(engine, region)
    assert jobs.poll() is None and jobs.lookup(block_key(1)) in (0, 2)
    assert jobs.store(2**64 - 1, [block_key(n) for n in range(4)], array("q", range(4)))
    job = finished(jobs)
    assert job[:3] == (2**64 - 1, False, b"\1\1\1\1") and job[3] >= 0
    region[:] = bytes(len(region))
    assert jobs.load(7, [block_key(2), block_key(9), block_key(0)], array("q", [0, 1, 2]))
    assert finished(jobs)[:3] == (7, True, b"\1\0\1")
    assert region[:CELL] == kept[2 * CELL:3 * CELL] and region[2 * CELL:3 * CELL] == kept[:CELL]
    assert jobs.lookup(block_key(9)) == 0 and jobs.lookup(block_key(1, 1)) == 0  # no such view
    assert jobs.state() == {"blocks": 0, "jobs_refused": 0, "lookups_crowded": 0}
    jobs.close()
    region.clear()  # nothing holds it


@pytest.mark.parametrize("call, error", [
    (lambda j: j.lookup("x"), TypeError), (lambda j: j.lookup(b"1234"), ValueError),
    (lambda j: j.lookup(bytes(37)), ValueError), (lambda j: j.store(-1, [block_key(1)], array("q", [1])), OverflowError),
    (lambda j: j.store(1, (block_key(1),), array("q", [1])), TypeError),
    (lambda j: j.store(1, [block_key(1)], array("i", [1])), TypeError),
    (lambda j: j.store(1, [block_key(1)], array("q", [1, 2])), TypeError),
    (lambda j: j.store(1, [block_key(1)], [1]), TypeError), (lambda j: j.load(1, [5], array("q", [1])), TypeError),
    (lambda j: j.load(1, [block_key(1)], array("q", [-1])), ValueError),
    (lambda j: j.load(1, [block_key(1)], array("q", [4])), ValueError),
    (lambda j: j.load(1, [block_key(1, 1)], array("q", [1])), core.Error),
    (lambda j: j.load(1, [block_key(1, 2**32 - 1)], array("q", [1])), core.Error),
    (lambda j: j.load(1, [], array("q")), core.Error), (lambda j: j.drain(-1), OverflowError)])
def test_block_jobs_with_wrong_arguments(engine, call, error):
    jobs = open_jobs(engine, bytearray(4 * CELL))
    with pytest.raises(error):
        call(jobs)
    assert jobs.poll() is None and jobs.drain(0)


@pytest.mark.parametrize("changes, error", [
    ({"region": bytes(CELL)}, BufferError), ({"region": 5}, TypeError), ({"views": [5]}, TypeError),
    ({"views": [None]}, core.Error), ({"views": []}, core.Error), ({"block_bytes": CELL + 1}, core.Error),
    ({"block_bytes": 0}, core.Error), ({"threads": 0}, core.Error), ({"threads": 2**32}, OverflowError),
    ({"lookups": 0}, core.Error), ({"blocks_max": 0}, core.Error)])
def test_block_jobs_are_not_opened(engine, changes, error):
    options = {"views": [engine.view(ROW)], "region": bytearray(CELL), "block_bytes": CELL, **JOBS, **changes}
    with pytest.raises(error):
        core.BlockJobs.open(**options)
    assert not isinstance(options["region"], bytearray) or options["region"].clear() is None


def test_block_jobs_outlive_their_engine_and_views():
    engine = open_engine()
    jobs = open_jobs(engine, bytearray(4 * CELL))
    engine.close()
    del engine
    assert jobs.store(1, [block_key(1)], array("q", [1])) and finished(jobs)[2] == b"\1"
    jobs.close()
    jobs.close()
    for call in (lambda: jobs.lookup(block_key(1)), jobs.poll, jobs.state, lambda: jobs.drain(1),
                 lambda: jobs.store(1, [block_key(1)], array("q", [1]))):
        with pytest.raises(ValueError, match="the job queue is closed"):
            call()


def test_block_jobs_in_the_hands_of_many_threads(engine):
    region = bytearray(8 * CELL)
    jobs, ids = open_jobs(engine, region), iter(range(1000))

    def work():
        for n in range(8):
            assert jobs.store(next(ids), [block_key(n)], array("q", [n]))
            jobs.lookup(block_key(n))
            assert jobs.drain(60000)

    together(8, work)
    seen = {jobs.poll()[0] for _ in range(64)}
    assert len(seen) == 64 and jobs.poll() is None


def test_block_jobs_in_a_forked_child(engine):
    jobs = open_jobs(engine, bytearray(4 * CELL))
    child = os.fork()
    if child == 0:
        quiet = jobs.lookup(block_key(1)) == 0 and jobs.poll() is None and jobs.drain(1000)
        jobs.close()
        os._exit(0 if quiet else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert jobs.store(1, [block_key(1)], array("q", [1])) and finished(jobs)[2] == b"\1"


def test_a_hint_is_a_small_number_of_a_session():
    view = Paged(open_engine()).view
    assert all(view.hint(1, kind) is True for kind in range(6))
    for arguments, error in [((1, 6), ValueError), ((1, -1), OverflowError), ((1,), TypeError), ((0, 1), core.Error)]:
        with pytest.raises(error):
            view.hint(*arguments)
