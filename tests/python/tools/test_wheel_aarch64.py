# SPDX-License-Identifier: Apache-2.0
"""The wheel for aarch64 of tools/wheel: built on another machine, installed beside Debian's Python for arm64, and used there in an
emulator of processes. Such a process can start no other one, so the tests run the executable itself, not pip's command for it."""

import os
import platform
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

# It downloads Debian packages, 450 MB unpacked, and compiles every file: no other build has compilations for aarch64.
pytestmark = pytest.mark.long
ROOT = Path(__file__).resolve().parents[3]
sys.path.append(str(ROOT / "tools"))

from foreign_root import make_root  # noqa: E402
from test_wheel import BUILD_S, SIZE_MAX, STEP_S, build_wheel  # noqa: E402

# It stores a prompt on disk, opens the store again, and has the same bytes.
STORE_AND_LOAD = """
import platform, sys
import numpy, tierce
assert platform.machine() == "aarch64", platform.machine()
layers = [numpy.random.default_rng(i).standard_normal((64, 2, 16, 2, 8)).astype("float16") for i in range(3)]
before = [layer[:16].copy() for layer in layers]
tokens, blocks = list(range(256)), list(range(16))

def use(call):
    with tierce.open({"memory.size": "16MiB", "disk.path": sys.argv[1], "disk.size": "64MiB", "timeout.lookup": "60s",
                      "timeout.load": "60s"}) as store:
        cache = store.cache(layers, model="a model", weights="aa", layout="kv, token, head, dim", block_tokens=16)
        call(store, cache)
        cache.close()

def put(store, cache):
    assert cache.store(tokens, blocks) == 256
    assert store.durable(60)

def get(store, cache):
    loaded = cache.load(tokens, blocks)
    print(loaded.tokens, *set(loaded.origins))

use(put)
for layer in layers:
    layer[:] = 0
use(get)
assert all((layer[:16] == kept).all() for layer, kept in zip(layers, before))
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    if platform.machine() == "aarch64":
        pytest.skip("test_wheel.py builds the wheel of this machine")
    for program in ("aarch64-linux-gnu-gcc", "qemu-aarch64", "apt-get"):
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed (tools/setup packages test)")
    return build_wheel(tmp_path_factory.mktemp("wheel"), "--arch", "aarch64")


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    """A folder with the package, as pip installs it on a machine that the wheel's tag fits."""
    folder = tmp_path_factory.mktemp("installed")
    done = subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--target", folder, "--python-version",
                           "3.11", "--abi=abi3", "--platform=manylinux_2_34_aarch64", "--only-binary=:all:", wheel],
                          stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=STEP_S, check=False)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="module")
def root():
    """A small Debian for arm64, without any library of the wheel."""
    folder = ROOT / "build" / "root-aarch64-python"
    make_root(folder, "arm64", ["python3", "python3-numpy", "libstdc++6"])
    assert not list(folder.rglob("libcurl*.so*")) + list(folder.rglob("libzmq*.so*"))
    return folder


def emulate(root, *command, code=0, **variables):
    """The output of a program in the emulator, which finds all files of its loader below root."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "TIERCE_", "LD_", "QEMU_"))}
    done = subprocess.run(["qemu-aarch64", "-L", str(root), *(str(part) for part in command)], env=env | variables,
                          stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=STEP_S, check=False)
    assert done.returncode == code, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def emulate_python(root, installed, *arguments):
    # Debian's maintainer scripts, which have not run, would set links to these.
    libraries = os.pathsep.join(str(root / "usr" / "lib" / "aarch64-linux-gnu" / name) for name in ("blas", "lapack"))
    return emulate(root, root / "usr" / "bin" / "python3.11", *arguments, PYTHONPATH=str(installed),
                   QEMU_SET_ENV=f"LD_LIBRARY_PATH={libraries}")


def test_it_is_small_and_names_its_oldest_system(wheel):
    assert wheel.stat().st_size <= SIZE_MAX
    assert re.fullmatch(r"tierce-[0-9.]+-cp311-abi3-manylinux_2_34_aarch64\.whl", wheel.name)


def test_everything_in_it_is_for_aarch64(wheel):
    with zipfile.ZipFile(wheel) as archive:
        programs = {name: data for name in archive.namelist() if (data := archive.read(name))[:4] == b"\x7fELF"}
    assert any(name.endswith("_core.abi3.so") for name in programs) and "tierce/bin/tierce" in programs
    assert {data[18:20] for data in programs.values()} == {b"\xb7\0"}  # EM_AARCH64
    # The names of glibc's versions in a file are those that it requires.
    versions = {tuple(map(int, found)) for data in programs.values() for found in re.findall(rb"\0GLIBC_(\d+)\.(\d+)(?=\0)", data)}
    assert max(versions) <= (2, 34)


def test_each_library_has_its_notice(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        bill, = (archive.read(name).decode() for name in names if name.endswith("/sboms/tierce.cdx.json"))
    assert sum(name.startswith("tierce.libs/lib") for name in names) >= 20
    assert any("/libcurl4/copyright" in name for name in names) and any("/librocksdb-dev/copyright" in name for name in names)
    assert "arch=arm64" in bill and "arch=amd64" not in bill


def test_the_command(root, installed):
    about, = installed.glob("tierce-*.dist-info")
    version = about.name.removeprefix("tierce-").removesuffix(".dist-info")
    tierce = installed / "tierce" / "bin" / "tierce"
    assert emulate(root, tierce, "--version").splitlines()[0] == f"tierce {version}"
    assert "disk.path" in emulate(root, tierce, "config", "--markdown")
    assert emulate_python(root, installed, "-c", "import tierce; print(tierce.__version__)").strip() == version


def test_a_prompt_is_stored_and_loaded(root, installed, tmp_path):
    assert emulate_python(root, installed, "-c", STORE_AND_LOAD, tmp_path / "store").split() == ["256", "disk"]
    said = emulate(root, installed / "tierce" / "bin" / "tierce", "doctor", tmp_path / "store", tmp_path / "store")
    assert "differ" not in said.partition("\n")[0], said
