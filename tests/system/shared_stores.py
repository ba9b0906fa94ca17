# SPDX-License-Identifier: Apache-2.0
"""Stores that several engines share: a Redis, a server of S3 and a folder, each of a test's own. `uri` is for
remote.urls, `spoil` flips a byte in the middle of each object."""

import importlib.util
import os
import shutil
import socket
import subprocess
import sys

import pytest

from manager_process import Redis as RedisServer
from manager_process import free_port, wait_until


def flip(path):
    with open(path, "r+b", buffering=0) as file:
        at = os.fstat(file.fileno()).st_size // 2
        byte = os.pread(file.fileno(), 1, at)[0]
        os.pwrite(file.fileno(), bytes([byte ^ 1]), at)


class Folder:
    def __init__(self, folder):
        self.folder = folder
        self.uri = f"file://{folder}"

    def objects(self):
        return [path for path in self.folder.rglob("*") if path.is_file() and path.stat().st_size > 4096]

    def spoil(self):
        found = self.objects()
        for path in found:
            flip(path)
        return len(found)

    def stop(self):
        shutil.rmtree(self.folder, ignore_errors=True)


class Redis(RedisServer):
    def spoil(self):
        import redis

        with redis.Redis(port=self.port) as client:
            names = client.keys()
            for name in names:
                at = client.strlen(name) // 2
                client.setrange(name, at, bytes([client.getrange(name, at, at)[0] ^ 1]))
        return len(names)


class S3:
    """nanio, which checks signatures and keeps each object as a file."""

    def __init__(self, folder):
        if importlib.util.find_spec("nanio") is None:
            if os.environ.get("CI"):
                raise RuntimeError("nanio is missing: see tools/requirements-test.txt")
            pytest.skip("needs nanio")
        bucket = folder / "kv-cache"
        bucket.mkdir(parents=True)
        port = free_port()
        self.kept = Folder(bucket / "tierce")
        self.uri = f"s3://someone:something@kv-cache/tierce?endpoint=http://127.0.0.1:{port}"
        self.process = subprocess.Popen(
            [sys.executable, "-m", "nanio", "serve", "--data-dir", str(folder), "--host", "127.0.0.1",
             "--port", str(port), "--no-access-log", "--log-level", "warning"],
            env={**os.environ, "NANIO_ACCESS_KEY": "someone", "NANIO_SECRET_KEY": "something"})

        def answers():
            with socket.socket() as s:
                return s.connect_ex(("127.0.0.1", port)) == 0

        wait_until(answers)

    def spoil(self):
        return self.kept.spoil()

    def stop(self):
        self.process.kill()
        self.process.wait()


STORES = {"redis": Redis, "s3": S3, "file": Folder}
