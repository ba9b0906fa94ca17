# SPDX-License-Identifier: Apache-2.0
"""The installed tree: the exported symbols of the library, a program built against it, and its
removal."""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

BUILD, SOURCE = (os.path.abspath(sys.argv.pop(1)) for _ in range(2))

CONSUMER = """
#include <stdio.h>
#include <string.h>
#include <tierce/tierce.h>
#include <tierce/version.h>

int main(void)
{
    struct tierce_config *config;
    if (tierce_config_create(&config) != 0)
        return 1;
    int same = strcmp(tierce_version(), TIERCE_VERSION) == 0;
    printf("%s\\n", tierce_config_get(config, "memory.size"));
    tierce_config_destroy(config);
    return same ? 0 : 1;
}
"""


def run(*command, **more):
    environment = {**os.environ, **more.pop("env", {})}
    result = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                            timeout=120, check=False, env=environment, **more)
    assert result.returncode == 0, (command, result.stdout, result.stderr)
    return result.stdout


class Install(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def files(self):
        return sorted(os.path.relpath(os.path.join(at, name), self.folder)
                      for at, _, names in os.walk(self.folder) for name in names)

    def install(self, prefix, destdir=""):
        run("cmake", "--install", BUILD, "--prefix", prefix, env={"DESTDIR": destdir})

    def library(self):
        return next(os.path.join(self.folder, name) for name in self.files()
                    if name.endswith("/libtierce.so"))

    def test_only_public_names_leave_the_library(self):
        self.install(self.folder)
        symbols = run("nm", "-D", "--defined-only", self.library())
        names = [line.split()[2].split("@")[0] for line in symbols.splitlines()]
        self.assertIn("tierce_version", names)
        wrong = [n for n in names if n != "TIERCE_0" and not re.match(r"tierce_[a-z]", n)]
        self.assertEqual(wrong, [])
        self.assertRegex(run("readelf", "-d", self.library()), r"SONAME.*\[libtierce\.so\.0\]")

    def test_every_declared_function_is_exported(self):
        self.install(self.folder)
        symbols = run("nm", "-D", "--defined-only", self.library())
        include = os.path.join(self.folder, "include", "tierce")
        for name in sorted(os.listdir(include)):
            if name.startswith("plugin"):  # what a plug-in defines
                continue
            with open(os.path.join(include, name), encoding="utf-8") as file:
                text = re.sub(r"/\*.*?\*/", "", file.read(), flags=re.S)
            for function in re.findall(r"TIERCE_API[^;]*?\b(tierce_\w+)\(", text):
                self.assertRegex(symbols, rf"\b{function}@@TIERCE_0\b", name)

    def test_a_program_is_built_and_runs(self):
        self.install(self.folder)
        source = os.path.join(self.folder, "x.c")
        with open(source, "w", encoding="utf-8") as file:
            file.write(CONSUMER)
        libdir = os.path.dirname(self.library())
        path = {"PKG_CONFIG_PATH": os.path.join(libdir, "pkgconfig")}
        flags = run("pkg-config", "--cflags", "--libs", "tierce", env=path).split()
        program = os.path.join(self.folder, "x")
        run("cc", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-std=c11", source, "-o", program,
            *flags)
        self.assertEqual(run(program, env={"LD_LIBRARY_PATH": libdir}), "1GiB\n")
        version = run("pkg-config", "--modversion", "tierce", env=path).strip()
        executable = os.path.join(self.folder, "bin", "tierce")
        self.assertEqual(run(executable, "--version"), f"tierce {version}\n")

    def test_units_dashboards_and_manual_pages(self):
        self.install(self.folder)
        names = self.files()
        for board in ("tierce", "tierce-manager"):
            self.assertIn(f"share/tierce/grafana/{board}.json", names)
        self.assertIn("share/tierce/prometheus/tierce.rules.yaml", names)
        for unit in ("tierce-manager", "tierce-node"):
            self.assertIn(f"lib/systemd/system/{unit}.service", names)
        for name in names:
            if name.endswith(".service"):
                with open(os.path.join(self.folder, name), encoding="utf-8") as file:
                    text = file.read()
                starts = re.findall(r"^ExecStart=(\S+)", text, re.M)
                self.assertEqual(starts, [os.path.join(self.folder, "bin", "tierce")], name)
                self.assertRegex(text, r"(?m)^StateDirectory=tierce", name)
                if shutil.which("systemd-analyze"):
                    run("systemd-analyze", "verify", os.path.join(self.folder, name))
        executable = os.path.join(self.folder, "bin", "tierce")
        commands = re.findall(r"^  ([\w-]+) ", run(executable, "help"), re.M)
        pages = {f"share/man/man1/tierce-{c}.1" for c in commands if c != "help"}
        pages.add("share/man/man1/tierce.1")
        self.assertEqual({n for n in names if n.startswith("share/man/")}, pages)
        for page in sorted(pages):
            path = os.path.join(self.folder, page)
            with open(path, encoding="utf-8") as file:
                self.assertIn("\n.SH SYNOPSIS\n", file.read())
            if shutil.which("mandoc"):
                run("mandoc", "-Tlint", "-Wwarning", path)

    def test_uninstall_removes_what_was_installed_and_nothing_else(self):
        other = os.path.join(self.folder, "usr", "include", "tierce", "other.h")
        os.makedirs(os.path.dirname(other))
        with open(other, "w", encoding="utf-8"):
            pass
        self.install("/usr", self.folder)
        self.assertGreater(len(self.files()), 10)
        self.assertTrue(all(name.startswith("usr/") for name in self.files()))
        script = os.path.join(SOURCE, "cmake", "uninstall.sh")
        manifest = os.path.join(BUILD, "install_manifest.txt")
        run("sh", script, manifest, env={"DESTDIR": self.folder})
        self.assertEqual(self.files(), ["usr/include/tierce/other.h"])


if __name__ == "__main__":
    unittest.main()
