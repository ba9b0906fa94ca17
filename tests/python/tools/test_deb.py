# SPDX-License-Identifier: Apache-2.0
"""The packages of tools/deb: built, clean under lintian, unpacked and used."""

import importlib.machinery
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
sys.path.append(str(ROOT / "tests" / "system"))
from manager_process import executable  # noqa: E402

BUILD_S, STEP_S = 3600, 120
NEEDED = ("dpkg-shlibdeps", "dpkg-deb", "lintian")

IN_C = """
#include <stdio.h>
#include <tierce/tierce.h>
int main(void) { return puts(tierce_version()) < 0; }
"""


def run(*command, **more):
    done = subprocess.run([str(part) for part in command], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=STEP_S,
                          check=False, **more)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def build(out, *arguments):
    """name -> file. tools/deb fails if lintian finds an error or a warning."""
    if missing := [name for name in NEEDED if shutil.which(name) is None]:
        pytest.skip(f"not installed: {', '.join(missing)}")
    temporary = out.with_name(f"{out.name}-temporary")
    temporary.mkdir()
    done = subprocess.run([sys.executable, str(ROOT / "tools" / "deb"), "--out", str(out), *arguments], stdin=subprocess.DEVNULL,
                          capture_output=True, text=True, timeout=BUILD_S, check=False,
                          env={**os.environ, "DEBEMAIL": "maintainers@packages.debian.org", "TMPDIR": str(temporary)})
    assert done.returncode == 0, done.stderr
    assert not list(temporary.iterdir())
    files = [Path(line) for line in done.stdout.splitlines()]
    return {file.name.partition("_")[0]: file for file in files}


@pytest.fixture(scope="module")
def packages(tmp_path_factory):
    """ccache has their compilations from the preset rel."""
    return build(tmp_path_factory.mktemp("deb"), "--unhardened")


@pytest.fixture(scope="module")
def system(packages, tmp_path_factory):
    """A folder with what the packages contain."""
    folder = tmp_path_factory.mktemp("system")
    for file in packages.values():
        run("dpkg-deb", "--extract", file, folder)
    return folder


def field(file, name):
    return run("dpkg-deb", "--field", file, name).strip()


def refusal(out, **environment):
    done = subprocess.run([sys.executable, str(ROOT / "tools" / "deb"), "--out", str(out)], stdin=subprocess.DEVNULL,
                          capture_output=True, text=True, timeout=STEP_S, check=False, env={**os.environ, **environment})
    assert done.returncode == 1 and done.stderr.count("\n") == 1
    return done.stderr


def test_no_maintainer_no_packages(tmp_path):
    assert "DEBEMAIL" in refusal(tmp_path, DEBEMAIL="")


def test_without_dpkg_dev(tmp_path):
    assert "install Debian's package dpkg-dev" in refusal(tmp_path, DEBEMAIL="maintainers@packages.debian.org", PATH=str(tmp_path))
    assert re.search(r"^dpkg-dev +build$", (ROOT / "tools/packages.txt").read_text(encoding="utf-8"), re.MULTILINE)


def test_the_time_of_an_unpacked_archive(tmp_path, monkeypatch):
    loader = importlib.machinery.SourceFileLoader("tools_deb", str(ROOT / "tools" / "deb"))
    deb = importlib.util.module_from_spec(importlib.util.spec_from_loader("tools_deb", loader))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    loader.exec_module(deb)
    monkeypatch.setattr(deb, "ROOT", tmp_path)
    monkeypatch.delenv("SOURCE_DATE_EPOCH", raising=False)
    (tmp_path / "CMakeLists.txt").touch()
    os.utime(tmp_path / "CMakeLists.txt", (1000, 1000))
    assert deb.time_of_source() == 1000


@pytest.mark.parametrize("service", ["node", "manager"])
def test_the_configuration_is_accepted(service):
    said = run(executable(), service, "--config", ROOT / "packaging/etc" / f"{service}.yaml", "--print-config")
    assert {"node": "/run/tierce/node.sock", "manager": "local:///var/lib/tierce-manager/registry"}[service] in said


@pytest.mark.parametrize("service", ["node", "manager"])
def test_a_wrong_configuration_is_not_started_again(service, tmp_path):
    """The status is the one for which the unit prevents a restart."""
    (tmp_path / "wrong.yaml").write_text("no.such.parameter: 1\n")
    done = subprocess.run([executable(), service, "--config", tmp_path / "wrong.yaml"], stdin=subprocess.DEVNULL, capture_output=True,
                          text=True, timeout=STEP_S, check=False)
    unit = (ROOT / "packaging" / f"tierce-{service}.service").read_text(encoding="utf-8")
    assert f"RestartPreventExitStatus={done.returncode}\n" in unit and "no.such.parameter" in done.stderr


# Every file is compiled for it, in three minutes of processor time: no other build has Debian's flags.
@pytest.mark.long
def test_the_packages_are_hardened(tmp_path):
    system = tmp_path / "system"
    for file in build(tmp_path / "deb").values():
        run("dpkg-deb", "--extract", file, system)
    for program in (system / "usr/bin/tierce", next(system.rglob("libtierce.so.0.*"))):
        symbols, dynamic = run("objdump", "-T", program), run("objdump", "-p", program)
        # Others of these are in the executable without the flags, from what it links statically.
        assert {"__stack_chk_fail", "__fprintf_chk", "__realpath_chk"} <= set(re.findall(r"__\w+_chk\w*", symbols))
        assert "RELRO" in dynamic and re.search(r"^ +FLAGS +0x0*8$|BIND_NOW", dynamic, re.MULTILINE)


def test_upgrade_and_removal(packages, tmp_path):
    run("dpkg-deb", "--control", packages["tierce"], tmp_path / "control")
    assert (tmp_path / "control/conffiles").read_text().split() == ["/etc/tierce/manager.yaml", "/etc/tierce/node.yaml"]
    for name, argument in {"postinst": "configure", "prerm": "remove", "postrm": "remove"}.items():
        script = tmp_path / "control" / name
        assert os.access(script, os.X_OK) and "[ -d /run/systemd/system ]" in script.read_text()
        if not Path("/run/systemd/system").exists():  # else it would change this host
            run(script, argument, "0.0.1")


def test_the_packages_depend_on_what_they_load(packages):
    assert {"tierce", "libtierce0", "libtierce-dev"} <= set(packages)
    for name in ("tierce", "libtierce0"):
        assert {"libcurl4", "libssl3", "libfyaml0"} <= set(re.findall(r"[a-z][a-z0-9.+-]+", field(packages[name], "Depends")))
    assert "librocksdb" in field(packages["tierce"], "Depends") and "librocksdb" not in field(packages["libtierce0"], "Depends")
    assert "libcairo2" in field(packages["tierce"], "Recommends")
    assert field(packages["libtierce-dev"], "Depends") == f"libtierce0 (= {field(packages['libtierce0'], 'Version')})"


def test_the_command_with_its_pages_and_services(system):
    tierce = system / "usr/bin/tierce"
    assert run(tierce, "--version").split()[0] == "tierce"
    commands = re.findall(r"^  ([a-z-]+) +[a-z]", run(tierce, "help"), re.MULTILINE)
    pages = {page.name for page in (system / "usr/share/man/man1").iterdir()}
    assert {f"tierce-{name}.1.gz" for name in commands if name != "help"} | {"tierce.1.gz"} <= pages
    for service in ("node", "manager"):
        unit = (system / f"lib/systemd/system/tierce-{service}.service").read_text(encoding="utf-8")
        assert f"ExecStart=/usr/bin/tierce {service} " in unit
    assert list((system / "usr/share/tierce/grafana").glob("*.json")) and list((system / "usr/share/tierce").rglob("*.rules.yaml"))


def complete(system, *words):
    script = system / "usr/share/bash-completion/completions/tierce"
    return run("bash", "-c", 'source "$0"; COMP_WORDS=("$@"); COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); _tierce; printf "%s\\n" '
               '"${COMPREPLY[@]}"', script, *words, env={**os.environ, "PATH": f"{system}/usr/bin:{os.environ['PATH']}"}).split()


def test_completion(system):
    assert complete(system, "tierce", "opt") == ["optimize"]
    assert {"node", "manager", "config", "--version"} <= set(complete(system, "tierce", ""))
    assert "--listen.native_users=" in complete(system, "tierce", "node", "--listen.native")
    assert "--svg" in complete(system, "tierce", "optimize", "--s")


def test_a_c_program(system, tmp_path):
    (tmp_path / "app.c").write_text(IN_C)
    folder, = (file.parent for file in system.rglob("libtierce.so.0"))
    env = {**os.environ, "PKG_CONFIG_SYSROOT_DIR": str(system), "PKG_CONFIG_PATH": str(folder / "pkgconfig")}
    flags = run("pkg-config", "--cflags", "--libs", "tierce", env=env).split()
    run("cc", "app.c", "-o", "app", *flags, cwd=tmp_path)
    assert run(tmp_path / "app", env={**os.environ, "LD_LIBRARY_PATH": str(folder)}).strip() in run(system / "usr/bin/tierce", "--version")
