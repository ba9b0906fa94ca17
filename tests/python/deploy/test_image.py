# SPDX-License-Identifier: Apache-2.0
"""The image of deploy/Containerfile, built by tools/image."""

import json
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
BUILD_S, STEP_S = 3600, 60


def image(*arguments, limit=STEP_S):
    return subprocess.run([str(ROOT / "tools" / "image"), *map(str, arguments)], stdin=subprocess.DEVNULL, capture_output=True, text=True,
                          timeout=limit, check=False)


@pytest.mark.parametrize(("arguments", "message"), [([], "image: usage: "), (["no.whl"], "image: there is no no.whl; make wheel builds one")])
def test_a_wrong_call(arguments, message):
    said = image(*arguments)
    assert said.returncode == 1 and said.stderr.startswith(message) and said.stdout == ""


# It requires programs that no other test needs, and downloads a Debian.
@pytest.mark.long
def test_it_is_built_and_runs_the_command(tmp_path):
    """tools/image runs the command as another user than root."""
    if missing := [name for name in ("buildah", "debootstrap") if shutil.which(name) is None]:
        pytest.skip(f"not installed: {', '.join(missing)}")
    if os.getuid() != 0:
        pytest.skip("only root can make the base")
    made = subprocess.run([sys.executable, str(ROOT / "tools" / "wheel"), "--out", str(tmp_path)], stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, text=True, timeout=BUILD_S, check=True)
    said = image(made.stdout.splitlines()[-1], tmp_path / "image.tar", limit=BUILD_S)
    assert said.returncode == 0, said.stderr
    assert said.stdout.splitlines()[-1] == str(tmp_path / "image.tar") and "\ntierce 0." in said.stdout
    with tarfile.open(tmp_path / "image.tar") as archive:
        manifest, = json.load(archive.extractfile("manifest.json"))
        config = json.load(archive.extractfile(manifest["Config"]))["config"]
    assert manifest["RepoTags"][0].startswith("localhost/tierce:") and config["Entrypoint"] == ["tierce"]
    assert not (ROOT / "build" / "image").exists()
