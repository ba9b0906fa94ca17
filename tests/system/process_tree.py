# SPDX-License-Identifier: Apache-2.0
"""The processes that a process has started, directly or not."""

import os
from contextlib import suppress


def descendants(pid):
    out = []
    for task in os.listdir(f"/proc/{pid}/task"):
        with suppress(FileNotFoundError), open(f"/proc/{pid}/task/{task}/children", encoding="ascii") as file:
            for child in map(int, file.read().split()):
                out += [child, *descendants(child)]
    return out
