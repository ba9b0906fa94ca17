# SPDX-License-Identifier: Apache-2.0
"""Hostile and unlucky clients of the manager: none crashes it, gets past a rule, or is told a place
whose bytes are another block's."""

import pytest

from manager_process import Http, Manager

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
