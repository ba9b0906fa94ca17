# SPDX-License-Identifier: Apache-2.0
"""A remote store in Python: a file per object in a folder that several hosts may mount.

    remote.urls: "python:///absolute/path/folder_store.py:FolderStore?folder=/mnt/kv"

Copy it, and replace the files with your store's client. README.md has the contract.
"""

import hashlib
import os


class FolderStore:
    # get is also asked for a part of an object. Without this line it has no `offset`, and is asked for whole objects.
    ranges = True

    def __init__(self, options):
        """`options` are the parameters of the URL. Runs when Tierce opens the store: a mistake should be noticed now, but a
        store that cannot be reached at the moment is no mistake."""
        self.folder = options.pop("folder", None)
        if self.folder is None:
            raise ValueError("the parameter folder is missing")
        if options:
            raise ValueError(f"unknown parameter {next(iter(options))}")

    def path(self, name):
        """A name has up to 512 bytes and may have any but NUL, so it is no name of a file."""
        return os.path.join(self.folder, hashlib.sha256(name).hexdigest())

    def exists(self, names):
        """How many of the names, counted from the first, are stored."""
        for count, name in enumerate(names):
            if not os.path.exists(self.path(name)):
                return count
        return len(names)

    def get(self, name, buffer, offset):
        """Copies the bytes from `offset` on into `buffer`. Returns how many, or None if there is no such object."""
        try:
            with open(self.path(name), "rb", buffering=0) as file:
                file.seek(offset)
                done = 0
                while done < len(buffer) and (read := file.readinto(buffer[done:])):
                    done += read
                return done
        except FileNotFoundError:
            return None

    def put(self, name, buffer):
        """Stores the bytes. Others find the old object or the new one, never a part."""
        os.makedirs(self.folder, exist_ok=True)
        path = os.path.join(self.folder, f".{os.urandom(16).hex()}")
        try:
            with open(path, "wb", buffering=0) as file:
                done = 0
                while done < len(buffer):
                    done += file.write(buffer[done:])
            os.replace(path, self.path(name))
        except OSError:
            if os.path.exists(path):
                os.unlink(path)
            raise

    def delete(self, name):
        """Deletes an object, if it is there."""
        try:
            os.unlink(self.path(name))
        except FileNotFoundError:
            pass

    def length(self, name):
        """Optional: the length of an object in bytes, or None if there is no such object."""
        try:
            return os.stat(self.path(name)).st_size
        except FileNotFoundError:
            return None

    def close(self):
        """Optional: runs at the end of the process, if it ends in peace."""
