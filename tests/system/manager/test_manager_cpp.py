# SPDX-License-Identifier: Apache-2.0
"""A client in C++, with grpc++: what engines link."""

import os
import subprocess
from pathlib import Path

import pytest

from manager_process import Manager

CLIENT = Path(__file__).resolve().parents[3] / "build" / "dev" / "bin" / "manager_client"


@pytest.mark.parametrize("index", ["local", "rocksdb"])
def test_a_client_in_cpp(tmp_path, index):
    if not CLIENT.exists() and not os.environ.get("CI"):
        pytest.skip("needs grpc++ (libgrpc++-dev, protobuf-compiler-grpc, g++)")
    startup = Manager.usual_startup(storage=tmp_path / "nfs")
    startup["instance_group"]["cache_config"]["meta_indexer_config"]["meta_storage_backend_config"] \
        = {"storage_type": index, "storage_uri": "" if index == "local" else f"{tmp_path}/meta"}
    manager = Manager(tmp_path / "manager", startup=startup)
    ports = [f"127.0.0.1:{manager.ports[p]}" for p in ("grpc", "admin_grpc")]
    done = subprocess.run([CLIENT, *ports], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert manager.stop() == 0
