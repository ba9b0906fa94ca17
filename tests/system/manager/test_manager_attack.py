# SPDX-License-Identifier: Apache-2.0
"""Hostile and unlucky clients of the manager: none crashes it, bypasses a rule, or receives a
location with another block's bytes."""

import os
import shutil
import subprocess
import time

import pytest

from manager_process import Http, Manager, wait_until

pytest.importorskip("grpc_tools")


@pytest.fixture(scope="module")
def api(tmp_path_factory):
    manager = Manager(tmp_path_factory.mktemp("attack"))
    yield Http(manager)
    assert manager.stop() == 0


def code(reply):
    return reply["header"]["status"]["code"]


def register(api, instance, specs):
    return api.call("meta", "RegisterInstance", trace_id="r", instance_group="default",
                    instance_id=instance, block_size=4,
                    model_deployment={"model_name": "m", "dtype": "bf16"},
                    location_spec_infos=specs)


def start(api, instance, keys):
    reply = api.call("meta", "StartWriteCache", instance_id=instance, block_keys=keys,
                     write_timeout_seconds=30)
    assert code(reply) == "OK", reply
    return reply


def files(reply):
    return {spec["uri"].split("?")[0] for location in reply["locations"]
            for spec in location["location_specs"]}


def test_an_instance_registered_again_has_other_files(api):
    """A late writer, or a slow reader, of the one that was removed is not in the new one's."""
    specs = [{"name": "tp0", "size": 1024}]
    assert code(register(api, "again", specs)) == "OK"
    old = files(start(api, "again", [1, 2, 3]))
    assert code(api.call("admin", "RemoveInstance", instance_group="default",
                         instance_id="again")) == "OK"
    assert code(register(api, "again", specs)) == "OK"
    assert not old & files(start(api, "again", [1, 2, 3]))


def test_sizes_whose_sum_overflows_are_refused(api):
    """Four times 2^62 is 0: it would pass every quota."""
    specs = [{"name": f"s{i}", "size": 2 ** 62} for i in range(4)]
    assert code(register(api, "sum", specs)) == "INVALID_ARGUMENT"
    assert code(register(api, "sum", [{"name": "s", "size": 2 ** 63 - 1}])) == "INVALID_ARGUMENT"
    assert code(register(api, "sum", [{"name": "s", "size": 2 ** 40}])) == "OK"


def test_many_parts(api):
    """Work and memory grow with the parts, not with their square."""
    specs = [{"name": "p" * 400 + str(i), "size": 1} for i in range(4000)]
    assert code(register(api, "parts", specs)) == "OK"
    assert len(start(api, "parts", list(range(20)))["locations"][19]["location_specs"]) == 4000


def test_a_session_with_few_keys_is_finished(api):
    """It has moved to a smaller place."""
    assert code(register(api, "few", [{"name": "tp0", "size": 1}])) == "OK"
    first = start(api, "few", list(range(100)))
    reply = start(api, "few", list(range(102)))
    assert len(reply["locations"]) == 2
    for session, count in ((first, 100), (reply, 2)):
        assert code(api.call("meta", "FinishWriteCache", instance_id="few",
                             write_session_id=session["write_session_id"],
                             success_blocks={"offset": count})) == "OK"
    found = api.call("meta", "GetCacheLocation", instance_id="few", query_type=1,
                     block_keys=list(range(102)))
    assert len([x for x in found["locations"] if x["location_specs"]]) == 102


def test_a_call_of_too_many_parts_is_refused(api):
    """Some bytes of keys times some bytes of names would be an answer of any size."""
    assert code(register(api, "wide", [{"name": f"p{i}", "size": 1} for i in range(5000)])) == "OK"
    keys = list(range(1000))
    assert code(api.call("meta", "GetCacheLocation", instance_id="wide", block_keys=keys,
                         query_type="QT_BATCH_GET")) == "INVALID_ARGUMENT"
    assert code(api.call("meta", "StartWriteCache", instance_id="wide", block_keys=keys,
                         write_timeout_seconds=30)) == "INVALID_ARGUMENT"
    assert code(api.call("meta", "GetCacheMeta", instance_id="wide",
                         block_keys=keys)) == "INVALID_ARGUMENT"


def test_blocks_without_bytes_are_claimed_to_a_limit(tmp_path):
    """No quota counts them."""
    startup = Manager.usual_startup(storage=tmp_path)
    startup["instance_group"]["cache_config"]["meta_indexer_config"]["max_key_count"] = 10 ** 9
    manager = Manager(tmp_path, startup=startup)
    api = Http(manager)
    assert code(register(api, "empty", [{"name": "tp0", "size": 0}])) == "OK"
    for i in range(17):
        reply = api.call("meta", "StartWriteCache", instance_id="empty", write_timeout_seconds=600,
                         block_keys=list(range(i * 65535, (i + 1) * 65535)))
        if code(reply) != "OK":
            break
    assert code(reply) == "INTERNAL_ERROR"
    assert "at a time" in reply["header"]["status"]["message"]
    assert manager.stop() == 0


@pytest.mark.parametrize("name", ["x" * 512, "é" * 256, "/" * 512, "x" * 255, "~" * 90],
                         ids=["x", "utf8", "slashes", "short", "tildes"])
def test_long_names_have_folders(api, name):
    """A name of 512 bytes, whatever it is made of, is written, read and deleted."""
    name = name.encode()[:512].decode(errors="ignore")
    specs = [{"name": name, "size": 8}, {"name": name[:-2] + "é", "size": 8}]
    assert code(register(api, name, specs)) == "OK"
    started = start(api, name, [1, 2])
    paths = [path.split("//nfs_01")[1] for path in files(started)]
    assert len({os.path.dirname(path) for path in paths}) == 2
    for path in paths:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as file:
            file.write(b"x" * 64)
    assert code(api.call("meta", "FinishWriteCache", instance_id=name,
                         write_session_id=started["write_session_id"],
                         success_blocks={"offset": 2})) == "OK"
    assert code(api.call("admin", "RemoveInstance", instance_group="default",
                         instance_id=name)) == "OK"
    assert not [path for path in paths if os.path.exists(path)]


@pytest.mark.parametrize("root", ["relative/x", "/tmp/../etc", "/tmp/a?b", "/tmp/" + "x" * 256,
                                  "/tmp" + "/x" * 1024, ""],
                         ids=["relative", "up", "query", "name", "path", "empty"])
def test_roots_that_are_none_are_refused(api, root):
    reply = api.call("admin", "AddStorage", storage={
        "global_unique_name": "bad", "nfs": {"root_path": root, "key_count_per_file": 4}})
    assert code(reply) == "INVALID_ARGUMENT" and "root_path" in reply["header"]["status"]["message"]


def test_a_write_lasts_a_day_at_most(api):
    assert code(register(api, "day", [{"name": "tp0", "size": 1}])) == "OK"
    reply = api.call("meta", "StartWriteCache", instance_id="day", block_keys=[1],
                     write_timeout_seconds=2 ** 31 - 1)
    assert code(reply) == "OK"


def test_an_instance_goes_at_once_though_its_deletions_are_delayed(tmp_path):
    startup = Manager.usual_startup(storage=tmp_path / "nfs", quota={
        "capacity": 10_000, "quota_config": [{"storage_type": "file", "capacity": 10_000}]})
    startup["instance_group"]["cache_config"]["reclaim_strategy"].update(
        delay_before_delete_ms=3_600_000, trigger_strategy={"used_size": 0, "used_percentage": 0.1})
    (tmp_path / "nfs").mkdir()
    manager = Manager(tmp_path, startup=startup)
    api = Http(manager)
    assert code(register(api, "late", [{"name": "tp0", "size": 1000}])) == "OK"
    reply = start(api, "late", list(range(5)))
    assert code(api.call("meta", "FinishWriteCache", instance_id="late",
                         write_session_id=reply["write_session_id"],
                         success_blocks={"offset": 5})) == "OK"
    wait_until(lambda: "CLS_DELETING" in str(api.call(
        "meta", "GetCacheMeta", instance_id="late", block_keys=list(range(5)))["metas"]))
    began = time.monotonic()
    reply = api.call("admin", "RemoveInstance", instance_group="default", instance_id="late")
    assert code(reply) == "OK", reply
    assert time.monotonic() - began < 9  # it does not wait for the delayed call
    assert manager.stop() == 0


CLOCK = r"""
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
int clock_gettime(clockid_t clock, struct timespec *out)
{
    char text[32] = "";
    int rc = (int)syscall(SYS_clock_gettime, clock, out);
    if (clock != CLOCK_REALTIME)
        return rc;
    int fd = open(getenv("CLOCK_OFFSET_FILE"), O_RDONLY);
    if (fd >= 0 && read(fd, text, sizeof(text) - 1) > 0)
        out->tv_sec += atol(text);
    if (fd >= 0)
        close(fd);
    return rc;
}
"""


@pytest.mark.parametrize("jump", [-30 * 86400, 30 * 86400])
def test_a_wall_clock_that_jumps_changes_no_session(tmp_path, monkeypatch, jump):
    """It neither ends the one that has time, nor keeps the one whose time is over."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("needs a C compiler")
    (tmp_path / "clock.c").write_text(CLOCK)
    subprocess.run([compiler, "-shared", "-fPIC", "-o", tmp_path / "clock.so",
                    tmp_path / "clock.c"], check=True)
    monkeypatch.setenv("CLOCK_OFFSET_FILE", str(tmp_path / "offset"))
    monkeypatch.setenv("LD_PRELOAD", str(tmp_path / "clock.so"))
    monkeypatch.setenv("ASAN_OPTIONS", "verify_asan_link_order=0")
    manager = Manager(tmp_path / "m")
    monkeypatch.delenv("LD_PRELOAD")
    api = Http(manager)
    assert code(register(api, "clock", [{"name": "tp0", "size": 1}])) == "OK"
    long = start(api, "clock", [1])
    short = api.call("meta", "StartWriteCache", instance_id="clock", block_keys=[2],
                     write_timeout_seconds=1)
    (tmp_path / "offset").write_text(str(jump))

    def finish(session):
        return code(api.call("meta", "FinishWriteCache", instance_id="clock",
                             write_session_id=session["write_session_id"],
                             success_blocks={"offset": 1}))

    wait_until(lambda: "CLS_WRITING" not in str(api.call(
        "meta", "GetCacheMeta", instance_id="clock", block_keys=[2])["metas"]))
    assert finish(short) != "OK"
    assert finish(long) == "OK"
    assert manager.stop() == 0


def test_a_limit_on_files_ends_nothing(tmp_path):
    """Where `ulimit -f` is reached the signal's default would be the end of the process."""
    resource = pytest.importorskip("resource")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (16384, before[1]))
    try:
        manager = Manager(tmp_path, f"--registry.uri=local://{tmp_path}/registry", "--log.folder=")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    api = Http(manager)
    codes = [code(register(api, f"{i}" + "x" * 400, [{"name": "tp0", "size": 1}]))
             for i in range(40)]
    kept = codes.count("OK")
    assert codes == ["OK"] * kept + ["INTERNAL_ERROR"] * (40 - kept) and 0 < kept < 40
    shown = api.call("admin", "ListInstanceInfo", instance_group_name="default")
    assert len(shown["instance_info"]) == kept
    assert manager.stop() == 0
