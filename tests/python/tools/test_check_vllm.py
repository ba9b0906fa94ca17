# SPDX-License-Identifier: Apache-2.0
"""tools/check_vllm.py: the installed vLLM fits, and each kind of difference is named."""

import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

TOOL = Path(__file__).resolve().parents[3] / "tools" / "check_vllm.py"
BASE = "distributed/kv_transfer/kv_connector/v1/base.py"
TIER = "v1/kv_offload/tiering/base.py"


def installed():
    found = find_spec("vllm")
    if found is None:
        pytest.skip("vLLM is not installed")
    return Path(found.origin).parent


def check(folder):
    done = subprocess.run([sys.executable, TOOL, folder], capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    """The sources of the installed vLLM that tests change."""
    folder = tmp_path_factory.mktemp("sources")
    shutil.copytree(installed(), folder / "vllm", symlinks=True,
                    ignore=lambda at, names: [n for n in names if not n.endswith(".py") and "." in n])
    return folder


def test_the_installed_version_fits():
    assert check(installed().parent) == (0, "0 differences\n")


@pytest.mark.parametrize("file, old, new, words", [
    (BASE, "def get_num_new_matched_tokens(", "def get_matched_tokens(", None),
    (BASE, "def start_load_kv(self, ", "def start_load_kv(self, turn, ", "TierceConnector.start_load_kv"),
    (BASE, "class KVConnectorBase_V1(", "class KVConnectorBase_V2(", "has no KVConnectorBase_V1"),
    (TIER, "    successful_keys:", "    keys_that_succeeded:", "JobResult has no successful_keys"),
])
def test_differences_are_named(copy, file, old, new, words):
    path = copy / "vllm" / file
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new), encoding="utf-8")
    try:
        status, out = check(copy)
    finally:
        path.write_text(text, encoding="utf-8")
    assert status == 1 and (words or "get_matched_tokens is abstract") in out


def test_imports_in_folders_are_checked(copy):
    path = copy / "vllm" / "v1" / "kv_cache_interface.py"
    path.rename(moved := path.with_name("moved.py"))
    try:
        status, out = check(copy)
    finally:
        moved.rename(path)
    assert status == 1 and "groups/group_table.py: vllm.v1 has no kv_cache_interface" in out


def test_a_folder_without_vllm(tmp_path):
    status, out = check(tmp_path)
    assert status == 2 and "vllm/__init__.py" in out
