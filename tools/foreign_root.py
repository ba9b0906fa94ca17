# SPDX-License-Identifier: Apache-2.0
"""A folder with Debian packages of another architecture, for cross-compilers and emulators.

The packages come from the package sources of this machine. They are only unpacked: no script of theirs runs, and the packages of
this machine stay as they are. The folder has a database of packages, which `dpkg-query --admindir` reads.
"""

import hashlib
import os
import re
import shutil
import subprocess
from pathlib import Path

TIMEOUT_S = 600  # of each command


def admin_folder(root):
    return root / "var" / "lib" / "dpkg"


def ask(*command):
    return subprocess.run([str(part) for part in command], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True,
                          timeout=TIMEOUT_S, check=True).stdout


def download(work, architecture, packages):
    """The archives of packages, and of those that they depend on."""
    for folder in ("lists/partial", "archives/partial"):
        (work / folder).mkdir(parents=True)
    (work / "status").touch()  # as if nothing were installed
    apt = ["apt-get", "--quiet", "--yes", *(f"--option={option}" for option in (
        f"APT::Architecture={architecture}", f"APT::Architectures={architecture}", "APT::Install-Recommends=false",
        "APT::Sandbox::User=root", "Acquire::Languages=none", f"Dir::State={work}", f"Dir::State::status={work}/status",
        f"Dir::State::lists={work}/lists", f"Dir::Cache={work}", f"Dir::Cache::archives={work}/archives"))]
    ask(*apt, "update")
    ask(*apt, "--download-only", "install", *packages)
    return sorted((work / "archives").glob("*.deb"))


def unpack(root, archive, architecture):
    data = subprocess.run(["dpkg-deb", "--fsys-tarfile", str(archive)], stdout=subprocess.PIPE, timeout=TIMEOUT_S, check=True).stdout
    said = subprocess.run(["tar", "--extract", "--verbose", "--keep-directory-symlink", "--no-same-owner", "--exclude=./dev",
                           "--directory", str(root)], input=data, stdout=subprocess.PIPE, timeout=TIMEOUT_S, check=True).stdout
    admin = admin_folder(root)
    names = [name.removeprefix(".").rstrip("/") or "/." for name in said.decode().splitlines()]
    control = ask("dpkg-deb", "--field", archive)
    package, = re.findall(r"^Package: (.+)$", control, re.MULTILINE)
    suffix = f":{architecture}" if re.search("^Multi-Arch: same$", control, re.MULTILINE) else ""  # as dpkg names these files
    (admin / "info" / f"{package}{suffix}.list").write_text("".join(f"{name}\n" for name in names))
    with open(admin / "status", "a", encoding="utf-8") as status:
        status.write(f"{control}Status: install ok unpacked\n\n")


def make_links_relative(root):
    """A link to /lib/x is one to the file of this folder."""
    for folder, folders, files in os.walk(root):
        for path in (Path(folder, name) for name in (*folders, *files)):
            if path.is_symlink() and (target := os.readlink(path)).startswith("/"):
                path.unlink()
                path.symlink_to(os.path.relpath(root / target[1:], folder))


def make_root(root, architecture, packages):
    """Makes the folder, unless it is there with these packages."""
    stamp, wanted = root / ".packages", hashlib.sha256(" ".join([architecture, *sorted(packages)]).encode()).hexdigest()
    if stamp.exists() and stamp.read_text() == wanted:
        return
    shutil.rmtree(root, ignore_errors=True)
    work = root.with_name(f"{root.name}-archives")
    shutil.rmtree(work, ignore_errors=True)
    for name in ("bin", "sbin", "lib"):  # /usr merged: archives have files in both
        (root / "usr" / name).mkdir(parents=True)
        (root / name).symlink_to(f"usr/{name}")
    (admin_folder(root) / "info").mkdir(parents=True)
    (admin_folder(root) / "info" / "format").write_text("1\n")
    (admin_folder(root) / "arch").write_text(f"{architecture}\n")
    for archive in download(work.resolve(), architecture, packages):
        unpack(root, archive, architecture)
    make_links_relative(root)
    shutil.rmtree(work)
    stamp.write_text(wanted)
