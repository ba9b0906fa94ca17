# SPDX-License-Identifier: Apache-2.0
"""A class of a user as the client for bridge.py, which is read before this file."""

import ctypes
import errno
import gc
import importlib
import os
import sys
import types

FAILED, MISSING, FULL, REFUSED, LATE, KEPT = -1, -2, -3, -4, -5, -6  # as in python_store.c
RANGES, LENGTHS = 1, 2
METHODS = ("exists", "get", "put", "delete")
NO_ROOM = (errno.ENOSPC, errno.EDQUOT)


def load(options):
    if "module" in options:
        return importlib.import_module(options["module"])
    # No loader: it would also take code from __pycache__, where other users may have put it.
    path = options["file"]
    module = types.ModuleType(os.path.basename(path).removesuffix(".py"))
    module.__file__ = path
    sys.modules[module.__name__] = module
    with open(path, "rb") as file:
        exec(compile(file.read(), path, "exec"), module.__dict__)
    return module


def explain(where, error):
    text = str(error)
    return f"{where}: {type(error).__name__}" + (f": {text}" if text else "")


def status_of(error):
    if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno in NO_ROOM):
        return FULL
    if isinstance(error, PermissionError):
        return REFUSED
    if isinstance(error, TimeoutError):
        return LATE
    return FAILED


def nothing(_):
    return 0


def count(value):
    if not 0 <= int(value) < 1 << 63:
        raise ValueError(f"{value} was returned")
    return int(value)


def count_or_miss(value):
    return MISSING if value is None else count(value)


class PythonStore:
    def __init__(self, options, pool):
        self.pool, name = pool, options["class"]
        source = options.get("module", options.get("file"))
        try:
            module = load(options)
        except BaseException as error:
            raise RuntimeError(explain(source, error)) from error
        found = getattr(module, name, None)
        if not isinstance(found, type):
            raise RuntimeError(f"{source} has no class {name}")
        missing = [method for method in METHODS if not callable(getattr(found, method, None))]
        if missing:
            raise RuntimeError(f"class {name} has no method {missing[0]}")
        try:
            self.store = found(options["options"])
        except BaseException as error:
            raise RuntimeError(explain(name, error)) from error
        self.has_ranges = bool(getattr(self.store, "ranges", False))

    def abilities(self):
        return RANGES * self.has_ranges | LENGTHS * callable(getattr(self.store, "length", None))

    def call(self, method, take, *arguments):
        """A result, or an error with its text. No frame of the method outlives the call."""
        try:
            return take(getattr(self.store, method)(*arguments))
        except Exception as error:
            print_traceback()  # noqa: F821
            return status_of(error), explain(method, error)

    def on_memory(self, place, length, is_read_only, use):
        """use(view), after which nobody may have the view or a part of it: the memory is reused."""
        owner = (ctypes.c_char * length).from_buffer(self.pool, place)
        view = memoryview(owner).cast("B")
        if is_read_only:
            view = view.toreadonly()
        result = use(view)
        for collects in (False, True):
            if collects:
                gc.collect()  # views in cycles, of a traceback for instance
            try:
                view.release()
            except BufferError:
                continue
            if sys.getrefcount(owner) <= 2:
                return result
        return KEPT, "get or put has kept its buffer; the process was ended"

    def exists(self, names):
        return self.call("exists", count, names)

    def get(self, name, place, offset, length):
        more = (offset,) if self.has_ranges else ()
        return self.on_memory(
            place, length, False, lambda view: self.call("get", count_or_miss, name, view, *more)
        )

    def put(self, name, place, length):
        return self.on_memory(
            place, length, True, lambda view: self.call("put", nothing, name, view)
        )

    def delete(self, name):
        return self.call("delete", nothing, name)

    def length(self, name):
        return self.call("length", count_or_miss, name)

    def close(self):
        if callable(getattr(self.store, "close", None)):
            self.call("close", nothing)


main(PythonStore)  # noqa: F821
