# SPDX-License-Identifier: Apache-2.0
"""tools/kv_samples.py, and how short the lossless codec makes the KV of a trained model. Without the model the
test fails: random weights are no substitute, because the ratio is a property of trained ones."""

import csv
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
TOOL = ROOT / "tools" / "kv_samples.py"
EXECUTABLE = ROOT / "build" / os.environ.get("TIERCE_TEST_BUILD", "rel") / "bin" / "tierce"
RATIO = 1.45  # of bf16, the goal of docs/inside/design/015-fewer-bytes.md


def run_tool(*args):
    return subprocess.run([sys.executable, TOOL, *map(str, args)], capture_output=True, text=True)


@pytest.mark.parametrize("args, message", [
    ((ROOT / "build" / "samples",), "is in the source tree; choose a folder outside of it"),
    (("--tokens", "40", "/nonexistent/samples"), "--tokens is 40; it must be a multiple of 16")])
def test_what_is_rejected(args, message):
    done = run_tool(*args)
    assert done.returncode == 2 and message in done.stderr, done.stderr
    assert not (ROOT / "build" / "samples").exists()


def test_a_checkpoint_of_the_user_may_have_a_file_made(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "made").write_text("on Monday")
    done = subprocess.run([sys.executable, "-c", "import sys; from pathlib import Path; sys.path.insert(0, sys.argv[1]); "
                           "from kv_samples import model_folder; print(model_folder(Path(sys.argv[2])))", TOOL.parent, tmp_path],
                          capture_output=True, text=True)
    assert done.stdout.strip() == str(tmp_path), done.stderr


# Without the rights of root, which may write everywhere.
CHECK = """
import os, sys
from pathlib import Path
from types import SimpleNamespace

sys.path.insert(0, sys.argv[1])
from kv_samples import check_result_file

if os.geteuid() == 0:
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
check_result_file(SimpleNamespace(error=sys.exit), "--quality", Path(sys.argv[2]))
"""


def check_result(path):
    return subprocess.run([sys.executable, "-c", CHECK, TOOL.parent, path], capture_output=True, text=True)


def test_results_that_cannot_be_written():
    with tempfile.TemporaryDirectory() as name:  # other users may not enter tmp_path
        folder = Path(name)
        closed, old = folder / "closed", folder / "old.json"
        closed.mkdir(mode=0)
        old.touch()
        old.chmod(0o444)
        folder.chmod(0o777)
        for path, remedy in ((closed / "q.json", f"you may not write to {closed}; name another file"),
                             (old, f"you may not write to {old}; name another file"),
                             (folder, "it is a folder; add the name of a file"),
                             (folder / "none" / "q.json", f"create the folder {folder / 'none'}")):
            done = check_result(path)
            assert done.returncode == 1 and done.stderr.startswith(f"--quality {path} cannot be written; {remedy}"), done.stderr
        assert check_result(folder / "new.json").returncode == 0
        closed.chmod(0o700)


@pytest.mark.long
def test_ratio_of_a_trained_model(tmp_path):
    done = run_tool("--tokens", "512", tmp_path)
    assert done.returncode == 0, done.stderr
    for text in "english", "code", "chat":
        path = tmp_path / f"{text}.bf16"
        assert path.stat().st_size == 512 * 30 * 2 * 3 * 64 * 2
        rows = subprocess.run([EXECUTABLE, "bench", "codec", "--csv", "--seconds", "0.01", "--kv", path],
                              capture_output=True, text=True, check=True, cwd=tmp_path).stdout
        sizes = [float(row["value"]) for row in csv.DictReader(rows.splitlines())
                 if row["case"].startswith("size of bf16")]
        assert sizes and all(100 / size >= RATIO for size in sizes), (text, sizes)
