# SPDX-License-Identifier: Apache-2.0
"""The wheel of tools/wheel: built, installed into environments that have nothing else, and used there. ccache has its compilations
from the preset rel."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
sys.path += [str(ROOT / "tools"), str(ROOT / "tests" / "system")]

from linked_libraries import OF_THE_HOST  # noqa: E402
from manager_process import Http, Manager  # noqa: E402

BUILD_S, STEP_S, SIZE_MAX = 3600, 120, 15_000_000

# A program that uses the wheel: it stores a prompt, gets the same bytes back, and prints the libraries that it has loaded.
STORE_AND_LOAD = """
import ctypes, sys
from array import array
import tierce
from tierce import _core

assert tierce.__version__ == _core.version()
for module in ("torch", "vllm", "numpy"):
    assert module not in sys.modules, module
folder, blocks, cell = sys.argv[1], 8, 512
engine = _core.Engine.open(None, {"memory.size": "16MiB", "disk.path": folder, "disk.size": "64MiB"})
view = engine.view({"weights": "aa", "model": "m", "kv_dtype": "f", "quantization": "", "layout": "l", "layer_count": 2,
                    "cell_bytes": [cell, cell], "block_tokens": 4, "chunk_blocks": 4, "algo": "sha256"})
memory = [ctypes.create_string_buffer(bytes((7 * i + k) % 251 for k in range(cell * blocks)), cell * blocks) for i in range(2)]
before = [m.raw for m in memory]
view.set_paged([ctypes.addressof(m) for m in memory], [cell, cell], blocks)
chain = view.chain()
chain.append(array("i", range(4 * blocks)))
ids = array("i", range(blocks))
assert view.store(chain, blocks, ids, 0) == (blocks, False)
assert engine.flush(60000)
for m in memory:
    ctypes.memset(m, 0, cell * blocks)
load = view.load_begin(chain, 0, blocks, ids)
for layer in range(2):
    load.layer(layer)
assert load.end() == b"\\1" * blocks
assert [m.raw for m in memory] == before
engine.close()
with open("/proc/self/maps", encoding="utf-8") as maps:
    print(*sorted({line.split()[-1] for line in maps if ".so" in line}), sep="\\n")
"""

def run(*command, cwd, code=0, **more):
    """The output of a command in an environment without variables of Python or Tierce."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "TIERCE_", "LD_", "VIRTUAL"))}
    done = subprocess.run([str(part) for part in command], cwd=cwd, env=env, stdin=subprocess.DEVNULL, text=True,
                          timeout=STEP_S, check=False, **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **more})
    assert done.returncode == code, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def has_venv(python):
    return subprocess.run([python, "-c", "import ensurepip, venv"], capture_output=True, timeout=STEP_S, check=False).returncode == 0


def build_wheel(out, *arguments):
    done = subprocess.run([sys.executable, str(ROOT / "tools" / "wheel"), "--out", str(out), *arguments], stdin=subprocess.DEVNULL,
                          capture_output=True, text=True, timeout=BUILD_S, check=False)
    assert done.returncode == 0, done.stderr
    path = Path(done.stdout.splitlines()[-1])
    assert list(out.iterdir()) == [path]
    return path


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    return build_wheel(tmp_path_factory.mktemp("wheel"))


# Debian 12 has the first one. The others must be installed, and take as long again.
@pytest.fixture(scope="module", params=["python3.11", *(pytest.param(name, marks=pytest.mark.long) for name in ("python3.12", "python3.13"))])
def bare(request, wheel, tmp_path_factory):
    """The folder of an environment of a Python with the wheel only."""
    places = [*os.environ["PATH"].split(os.pathsep), *sorted(Path.home().glob(".pyenv/versions/*/bin"))]
    python = next((found for place in places if (found := shutil.which(request.param, path=place)) and has_venv(found)), None)
    if python is None:
        pytest.skip(f"{request.param} with venv is not installed")
    folder = tmp_path_factory.mktemp("bare")
    run(python, "-m", "venv", folder, cwd="/")
    run(folder / "bin" / "python", "-m", "pip", "install", "--no-index", "--no-deps", wheel, cwd=folder)
    return folder


def package_of(bare):
    return next((bare / "lib").glob("python3*/site-packages")) / "tierce"


def test_it_is_small_and_names_its_oldest_system(wheel):
    assert wheel.stat().st_size <= SIZE_MAX
    with zipfile.ZipFile(wheel) as archive:  # which pack_wheel.py wrote
        assert archive.testzip() is None
    assert re.fullmatch(r"tierce-[0-9.]+-cp311-abi3-manylinux_2_34_(x86_64|aarch64)\.whl", wheel.name)


def test_it_has_the_connectors_and_the_types(wheel):
    with zipfile.ZipFile(wheel) as archive:
        assert {"tierce/_core.pyi", "tierce/py.typed", "tierce/vllm/connector.py", "tierce/sglang/hicache.py",
                "tierce/tensorrt_llm/__init__.py", "tierce/tensorrt_llm/kv_connector.py"} <= set(archive.namelist())


def test_each_library_has_its_notice(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        libraries = [name for name in names if name.startswith("tierce.libs/lib")]
        notices = [name for name in names if re.search(r"dist-info/licenses/[^/]+/copyright$", name)]
        record, bill = (next(archive.read(name).decode() for name in names if name.endswith(end))
                        for end in (".dist-info/RECORD", ".dist-info/sboms/tierce.cdx.json"))
    assert any("libcurl" in name for name in libraries) and any("libzmq" in name for name in libraries)
    assert any("/libcurl4/" in name for name in notices) and any("/librocksdb" in name for name in notices)
    assert all(f"{name}," in record for name in notices)
    assert {"libcurl4", "librocksdb-dev"} <= {component["name"] for component in json.loads(bill)["components"]}
    assert not [name for name in names if "test" in name.lower() or "torch" in name]


def test_the_command(bare):
    """The executable, with what follows from the signals that Python ignores, and without itself."""
    tierce = bare / "bin" / "tierce"
    version, = run(bare / "bin" / "pip", "list", "--format=freeze", "--exclude", "pip", "--exclude", "setuptools",
                   cwd=bare).split()
    assert run(tierce, "--version", cwd=bare).splitlines()[0] == version.replace("==", " ")
    assert "disk.path" in run(tierce, "config", "--markdown", cwd=bare)
    assert run(tierce, "optimize", "--no-such-flag", cwd=bare, code=2) == ""
    reader, writer = os.pipe()
    os.close(reader)
    run(tierce, "config", "--markdown", cwd=bare, code=-signal.SIGPIPE, stdout=writer)
    os.close(writer)
    executable = package_of(bare) / "bin" / "tierce"
    executable.rename(executable.with_name("away"))
    try:
        run(tierce, "--version", cwd=bare, code=127)
    finally:
        executable.with_name("away").rename(executable)


def test_a_prompt_is_stored_and_loaded_with_its_own_libraries(bare, tmp_path):
    loaded = run(bare / "bin" / "python", "-c", STORE_AND_LOAD, tmp_path / "store", cwd=tmp_path).splitlines()
    package = package_of(bare)
    ours = [path for path in loaded if path.startswith(str(package))]
    assert any("libcurl" in path for path in ours) and any("_core" in path for path in ours)
    folders = (str(package), "/usr/lib/python", str(Path(sys.base_prefix).parent))
    others = [path for path in loaded if not path.startswith(folders) and not OF_THE_HOST.match(Path(path).name)]
    # What Python's own modules load.
    assert not [path for path in others if not re.search(r"/lib(ffi|python|expat|crypto|ssl|bz2|lzma)|lib-dynload", path)], others


def test_the_executable_has_all_its_libraries(bare, tmp_path):
    said = run("ldd", package_of(bare) / "bin" / "tierce", cwd=tmp_path)
    found = dict(re.findall(r"^\s*(\S+) => (\S+)", said, re.MULTILINE))
    outside = {name for name, path in found.items() if not path.startswith(str(bare))}
    assert all(OF_THE_HOST.match(name) for name in outside), said
    assert "not found" not in said


def test_a_manager_with_rocksdb(bare, tmp_path, monkeypatch):
    """It is linked into the executable."""
    monkeypatch.delenv("PYTHONPATH", raising=False)  # of the tests, with the sources of the package
    startup = Manager.usual_startup(storage=tmp_path / "nfs")
    startup["instance_group"]["cache_config"]["meta_indexer_config"]["meta_storage_backend_config"] = {
        "storage_type": "rocksdb", "storage_uri": str(tmp_path / "index")}
    manager = Manager(tmp_path / "manager", startup=startup, program=bare / "bin" / "tierce")
    status, answer = Http(manager).raw(manager.ports["http"], "/api/registerInstance", json.dumps({
        "instance_group": "default", "instance_id": "one", "block_size": 16, "model_deployment": {"model_name": "m", "dtype": "bf16"},
        "location_spec_infos": [{"name": "tp0", "size": 1024}]}))
    assert manager.stop() == 0
    assert status == 200, answer
    assert list((tmp_path / "index").rglob("CURRENT"))
