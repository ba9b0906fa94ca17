# SPDX-License-Identifier: Apache-2.0
"""A node of a pool dies: blocks that lie on two nodes are found, and lie on two nodes again."""

from fleet_world import CHUNK_BYTES, CHUNKS, GROUP, Engine, Fleet, NodePool, code
from manager_process import wait_until

NODES = ("n1", "n2", "n3")


def ask_for_replicas(fleet):
    group = fleet.api.call("admin", "GetInstanceGroup", name=GROUP)["instance_group"]
    version = int(group["version"])
    group.update(version=version + 1)
    group["quota"]["quota_config"] = [{"storage_type": "ST_TIERCE", "capacity": 64 << 20, "replicas": 2}]
    changed = fleet.api.call("admin", "UpdateInstanceGroup", instance_group=group, current_version=version)
    assert code(changed) == "OK", changed


def read(fleet, content):
    """By an engine that has nothing of its own."""
    reader = Engine(fleet.url)
    found, loaded = reader.found(), reader.load()
    reader.close()
    return found == CHUNKS and loaded == content


def test_a_node_is_killed(tmp_path):
    pool = NodePool(tmp_path, NODES, fixed=True)
    fleet = Fleet(tmp_path, [pool])
    content = bytes(range(256)) * (CHUNKS * CHUNK_BYTES // 256)
    try:
        ask_for_replicas(fleet)
        writer = Engine(fleet.url)
        writer.store(content)
        writer.close()
        wait_until(lambda: pool.objects() == 2 * CHUNKS)  # a mover of a node has made the copies
        held = {node: int(node.metric("node_pool_objects")) for node in pool.nodes}
        victim = max(held, key=held.get)
        others = [node for node in pool.nodes if node is not victim]
        name = f"{pool.name}.{NODES[pool.nodes.index(victim)]}"
        victim.kill()
        # It starts again with nothing, and gets no blocks, so the third node has to take the copies.
        assert code(fleet.api.call("admin", "DisableStorage", storage_unique_name=name)) == "OK"
        victim.start()
        assert read(fleet, content)
        wait_until(lambda: sum(int(node.metric("node_pool_objects")) for node in others) == 2 * CHUNKS)
        assert victim.metric("node_pool_objects") == 0
        assert read(fleet, content)
    finally:
        fleet.stop()
