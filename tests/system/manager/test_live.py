# SPDX-License-Identifier: Apache-2.0
"""`tierce optimize --live` follows the events of a running `tierce manager`."""

import re
import signal
import subprocess
import threading

import pytest

from manager_process import Http, Manager, executable, wait_until

PATIENCE = 60  # seconds until a test gives up
PROBE = 999    # a key that nobody stores


class Follower:
    """Prints a line as soon as it has something new."""

    def __init__(self, url):
        self.process = subprocess.Popen(
            [str(executable()), "optimize", "--live", url, "--every", "10ms", "--capacity", "2,10"],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.lines = []
        self.reader = threading.Thread(target=lambda: self.lines.extend(self.read()))
        self.reader.start()

    def read(self):
        for line in self.process.stdout:
            self.lines.append(line)
        return ()

    def counts(self):
        """Of the last line: requests, blocks, different ones, and the hit rates by capacity."""
        found = re.search(r"requests=(\d+) blocks=(\d+) different=(\d+)", self.lines[-1])
        rates = re.findall(r"lru\[(\d+)\]=([\d.]+)%", self.lines[-1])
        return (*map(int, found.groups()), {int(c): float(rate) / 100 for c, rate in rates})

    def wait_for_different(self, count):
        wait_until(lambda: self.lines and self.counts()[2] >= count, PATIENCE)
        return self.counts()

    def end(self):
        self.process.send_signal(signal.SIGINT)
        self.process.wait(timeout=PATIENCE)
        self.reader.join()
        error = self.process.stderr.read()
        self.process.stdout.close()
        self.process.stderr.close()
        return self.process.returncode, "".join(self.lines), error


@pytest.fixture
def manager(tmp_path):
    manager = Manager(tmp_path)
    yield manager
    manager.stop()


@pytest.fixture
def follower(manager):
    follower = Follower(f"http://127.0.0.1:{manager.ports['admin_http']}/events")
    yield follower
    if follower.process.poll() is None:
        follower.process.kill()
        follower.end()


def locate(api, keys):
    reply = api.call("meta", "GetCacheLocation", instance_id="i", block_keys=keys,
                     query_type="QT_PREFIX_MATCH")
    assert reply["header"]["status"]["code"] == "OK", reply
    return len(reply["locations"])


def store(api, keys):
    started = api.call("meta", "StartWriteCache", instance_id="i", block_keys=keys,
                       write_timeout_seconds=30)
    reply = api.call("meta", "FinishWriteCache", instance_id="i",
                     write_session_id=started["write_session_id"],
                     success_blocks={"offset": len(started["locations"])})
    assert reply["header"]["status"]["code"] == "OK", reply


def register(api):
    reply = api.call("meta", "RegisterInstance", instance_group="default", instance_id="i",
                     block_size=4, model_deployment={"model_name": "m", "dtype": "bf16"},
                     location_spec_infos=[{"name": "tp0", "size": 1024}])
    assert reply["header"]["status"]["code"] == "OK", reply


def connect(api, follower):
    """Only what comes once it listens is seen: the same lookup until it was, then another key, whose
    line stands behind all of these. Returns the counts so far."""
    while not follower.lines:
        assert locate(api, [PROBE]) == 0
    assert locate(api, [PROBE + 1]) == 0
    return follower.wait_for_different(2)


def test_the_curve_is_that_of_the_managers_lookups(manager, follower):
    """What the manager finds is what a cache that is large enough hits."""
    api = Http(manager)
    register(api)
    requests, blocks, _, before = connect(api, follower)
    found = []
    for keys in ([1, 2, 3], [1, 2, 3], [1, 4], [1, 2, 3]):
        found.append(locate(api, keys))
        if found[-1] < len(keys):
            store(api, keys)
    assert locate(api, [PROBE + 2]) == 0
    assert found == [0, 3, 1, 3]
    after = follower.wait_for_different(2 + 4 + 1)
    looked_up, written = 3 + 3 + 2 + 3 + 1, 3 + 2
    assert after[:3] == (requests + 5 + 2, blocks + looked_up + written, 7)
    # With the last blocks touched first a cache of two keeps 1, 2 and then 1, 4.
    for capacity, hits in ((2, 0 + 2 + 1 + 1), (10, sum(found))):
        rate = (before[capacity] * blocks + hits) / (blocks + looked_up)
        assert after[3][capacity] == pytest.approx(rate, abs=2e-4)
    manager.stop()
    code, out, error = follower.end()
    assert code == 0, error
    assert f"{after[0]} requests" in out and "lookups are assumed to store" in out
