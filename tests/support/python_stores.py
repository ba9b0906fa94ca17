# SPDX-License-Identifier: Apache-2.0
"""Stores in Python for tests of python://: one that reads objects whole, and one that does what an object's name says."""

import errno
import os
import time

from folder_store import FolderStore  # of examples/plugin_python, which PYTHONPATH names


class WholeStore(FolderStore):
    ranges = False
    length = None

    def get(self, name, buffer):
        try:
            with open(self.path(name), "rb", buffering=0) as file:
                length = os.fstat(file.fileno()).st_size
                return length if length > len(buffer) else super().get(name, buffer, 0)
        except FileNotFoundError:
            return None


class Named:
    """`get` does what the name says."""

    ranges = True

    def __init__(self, options):
        self.options, self.kept = options, None

    def exists(self, names):
        return {b"more": len(names) + 1, b"none": None}.get(names[0], 0)

    def get(self, name, buffer, offset):
        return getattr(self, name.decode())(buffer)

    def put(self, name, buffer):
        buffer[0] = 1

    def delete(self, name):
        raise ConnectionError("the server has\nclosed\tit")

    def length(self, name):
        return {b"seven": 7, b"negative": -3}.get(name)

    def miss(self, buffer):
        return None

    def well(self, buffer):
        buffer[:] = b"w" * len(buffer)
        return len(buffer)

    def short(self, buffer):
        return len(buffer) - 1

    def raises(self, buffer):
        raise KeyError("nothing\x1bhere" + 300 * "x")

    def full(self, buffer):
        raise OSError(errno.ENOSPC, "no room")

    def rejected(self, buffer):
        raise PermissionError("not for you")

    def late(self, buffer):
        raise TimeoutError

    def text(self, buffer):
        return "many"

    def options_are(self, buffer):
        return len(buffer) if self.options == {"secret": "a b=c", "empty": ""} else 0

    def keeps_view(self, buffer):
        self.kept = buffer  # cannot be used any more
        return len(buffer)

    def keeps_part(self, buffer):
        self.kept = buffer[3:5]
        return len(buffer)

    def keeps_user(self, buffer):
        self.kept = (lambda part: lambda: part)(memoryview(buffer))
        return len(buffer)

    def cycle(self, buffer):
        loop = [buffer[1:2]]
        loop.append(loop)
        return len(buffer)

    def dies(self, buffer):
        os._exit(3)

    def hangs(self, buffer):
        time.sleep(1000)

    def exits(self, buffer):
        raise SystemExit(1)


class Unsized(Named):
    """Without lengths, a lookup asks `exists`."""

    length = None

    def exists(self, names):
        if names[0] == b"fails":
            raise PermissionError("not for you")
        return super().exists(names)


class Raises(Named):
    def __init__(self, options):
        raise RuntimeError("the parameter server is missing")


class Short:
    exists = get = put = None

    def __init__(self, options):
        pass


not_a_class = 3
