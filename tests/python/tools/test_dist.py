# SPDX-License-Identifier: Apache-2.0
"""The archive and the bill of materials of tools/dist."""

import json
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
LIMIT_S = 300

if not (ROOT / ".git").exists() or shutil.which("dpkg-query") is None:
    pytest.skip("no clone, or no Debian", allow_module_level=True)


def ask(*command):
    return subprocess.run(command, cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=LIMIT_S,
                          check=True).stdout


def make(folder, **environment):
    done = subprocess.run([sys.executable, str(ROOT / "tools" / "dist"), "--out", str(folder)], stdin=subprocess.DEVNULL,
                          capture_output=True, text=True, timeout=LIMIT_S, check=False, env={**os.environ, **environment})
    assert done.returncode == 0, done.stderr
    return Path(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def archive(tmp_path_factory):
    return make(tmp_path_factory.mktemp("dist"))


def test_two_runs_write_the_same(archive, tmp_path):
    again = make(tmp_path / "again", TZ="Asia/Tokyo", LC_ALL="C", SOURCE_DATE_EPOCH="1", GIT_CONFIG_COUNT="1", GIT_CONFIG_KEY_0="tar.umask",
                 GIT_CONFIG_VALUE_0="0077")
    assert sorted(file.name for file in again.parent.iterdir()) == sorted(file.name for file in archive.parent.iterdir())
    for file in archive.parent.iterdir():
        assert (again.parent / file.name).read_bytes() == file.read_bytes(), file.name


def test_the_archive_is_the_commit(archive):
    with tarfile.open(archive) as tar:
        members = tar.getmembers()
        top, = {member.name.partition("/")[0] for member in members}
        files = {member.name.removeprefix(f"{top}/"): member for member in members if not member.isdir()}
        license_text = tar.extractfile(files["LICENSE"]).read()
    assert archive.name == f"{top}.tar.gz"
    assert set(files) == set(ask("git", "ls-tree", "-r", "--name-only", "HEAD").splitlines())
    assert {member.mtime for member in members} == {int(ask("git", "log", "-1", "--format=%ct"))}
    assert license_text == ask("git", "show", "HEAD:LICENSE").encode()
    assert files["tools/setup"].mode & 0o111 and not files["LICENSE"].mode & 0o111


def test_the_bill_of_materials(archive):
    bill = json.loads(archive.with_name(archive.name.replace(".tar.gz", ".cdx.json")).read_text(encoding="utf-8"))
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.5")
    parts = {part["bom-ref"]: part for part in bill["components"]}
    assert len(parts) == len(bill["components"])
    by_name = {part["name"]: part for part in parts.values()}
    for package, module in {"libcurl4": "libcurl", "libfyaml0": "libfyaml", "libzmq5": "libzmq"}.items():
        assert by_name[package]["version"] == ask("pkg-config", "--modversion", module).strip()
    version = ask("dpkg-query", "--show", "--showformat=${Version}", "libkrb5-3")  # that of libcurl
    assert by_name["libkrb5-3"]["version"] == version.rpartition("-")[0]
    architecture = ask("dpkg", "--print-architecture").strip()
    release = ask("sh", "-c", '. /etc/os-release; echo "$ID-$VERSION_ID"').strip()
    assert all(part["purl"].endswith(f"?arch={architecture}&distro={release}") for part in parts.values())
    own, = bill["dependencies"]
    assert own["ref"] == bill["metadata"]["component"]["bom-ref"]
    assert set(own["dependsOn"]) < set(parts)
    direct = {parts[ref]["name"] for ref in own["dependsOn"]}
    assert {"libcurl4", "libssl3", "librocksdb7.8", "liburing2"} <= direct and "libkrb5-3" not in direct
