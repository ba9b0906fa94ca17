# SPDX-License-Identifier: Apache-2.0
"""The shared libraries that programs load, and the Debian packages that they come from."""

import json
import os
import re
import subprocess
from pathlib import Path
from urllib.parse import quote

from foreign_root import admin_folder

TIMEOUT_S = 120  # of each question to ldd or dpkg

# Those that every distribution has, so that a wheel may use them (PEP 600, auditwheel's policies).
OF_THE_HOST = re.compile(r"linux-vdso\.so|ld-linux|lib(c|m|dl|rt|pthread|util|resolv|anl|nsl|gcc_s|stdc\+\+|atomic|z)\.so\.")


def ask(*command):
    """The output of a command, which must succeed."""
    return subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, timeout=TIMEOUT_S,
                          check=True).stdout


def library_folders(root):
    """Those that the loader of a foreign root (foreign_root.py) searches."""
    return sorted(folder for folder in (root / "usr" / "lib").glob("*-linux-gnu") if folder.is_dir())


def linked_by(files, root=None):
    """soname -> path of every library that the files load, and that theirs load. root: where they would run, else this machine."""
    if root is not None:
        return linked_in(root, files)
    out = {}
    for file in files:
        for name, path in re.findall(r"^\s*(\S+) => (\S+)", ask("ldd", str(file)), re.MULTILINE):
            if path == "not":
                raise FileNotFoundError(f"{file} requires {name}, which is not installed")
            out[name] = Path(path)
    return out


def linked_in(root, files):
    """The same without ldd, which runs the files' loader."""
    out, todo = {}, needed_by(files)
    while todo:
        name = todo.pop()
        found = next((path for folder in library_folders(root) if (path := folder / name).exists()), None)
        if found is None:
            raise FileNotFoundError(f"{name} is required, and is not in {root}")
        out[name] = found
        todo |= needed_by([found]) - out.keys()
    return out


def needed_by(files):
    """The sonames that the files themselves name."""
    return {name for file in files
            for name in re.findall(r"\(NEEDED\).*\[(\S+)\]", ask("readelf", "--dynamic", "--wide", str(file)))}


def query(root, *arguments):
    return ["dpkg-query", *([f"--admindir={admin_folder(root)}"] if root else []), *arguments]


def packages_of(paths, root=None):
    """path -> name and version of the Debian package that a file comes from. Raises LookupError."""
    names, prefix = {}, os.path.realpath(root) if root else ""
    for path in paths:
        real = os.path.realpath(path).removeprefix(prefix)
        # Packages name files as they were before /lib became a link to /usr/lib.
        names |= {name: path for name in (str(path).removeprefix(prefix), real, real.removeprefix("/usr"))}
    # It fails if one of the names is in no package.
    found = subprocess.run(query(root, "--search", *names), stdin=subprocess.DEVNULL, capture_output=True, text=True,
                           timeout=TIMEOUT_S, check=False).stdout
    out = {}
    for owners, name in re.findall(r"^(\S.*?): (/.*)$", found, re.MULTILINE):
        if name in names:
            out[names[name]] = owners.partition(",")[0].partition(":")[0]
    if missing := [str(path) for path in paths if path not in out]:
        raise LookupError(f"no Debian package has {', '.join(missing)}")
    shown = ask(*query(root, "--show", "--showformat=${Package} ${Version}\n", *sorted(set(out.values()))))
    versions = dict(line.split() for line in shown.splitlines())
    return {path: (package, versions[package]) for path, package in out.items()}


def bill_of_materials(version, libraries, direct, root=None):
    """A CycloneDX document of this version of Tierce. libraries: path -> version, or None for that of its package. direct:
    those that Tierce itself links. The document has neither a date nor a number, so equal input gives equal text."""
    system = dict(re.findall(r'^(\w+)="?([^"\n]*)', Path("/etc/os-release").read_text(encoding="utf-8"), re.MULTILINE))
    release = system.get("VERSION_ID") or system.get("VERSION_CODENAME", "")
    architecture = (admin_folder(root) / "arch").read_text() if root else ask("dpkg", "--print-architecture")
    qualifiers = f"arch={architecture.strip()}&distro={system['ID']}-{release}".rstrip("-")
    components, packages, owners = [], {}, packages_of(libraries, root)
    for path, known in libraries.items():
        package, package_version = owners[path]
        packages[path] = f"pkg:deb/{system['ID']}/{package}@{quote(package_version, safe='')}?{qualifiers}"
        upstream = package_version.partition(":")[2] or package_version
        components.append({"type": "library", "bom-ref": packages[path], "name": package,
                           "version": known or upstream.rpartition("-")[0] or upstream, "purl": packages[path]})
    components = list({each["purl"]: each for each in components}.values())
    own = f"pkg:generic/tierce@{version}"
    return json.dumps({
        "bomFormat": "CycloneDX", "specVersion": "1.5", "version": 1,
        "metadata": {"component": {"type": "application", "bom-ref": own, "name": "tierce", "version": version, "purl": own,
                                   "licenses": [{"license": {"id": "Apache-2.0"}}]}},
        "components": sorted(components, key=lambda each: each["name"]),
        "dependencies": [{"ref": own, "dependsOn": sorted({packages[path] for path in direct})}],
    }, indent=1) + "\n"
