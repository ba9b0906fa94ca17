#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks what a compiler does not: which module includes which, and how long things are.

    tools/check_layers.py [--self-test] [FILE ...]     (without files: all that git tracks)

- A source of src/ may include its own module and the modules below it; another module's
  *_private.h never. Public headers count for the module that implements them.
- A function has at most 70 lines; a file at most 1500, and above 800 it is mentioned.
- A README of src/ that has a table of files names every source of its folder there: by its name, by
  a pattern (cmd_*.c), or by that of the .c beside a .h, and names no other file; the same holds
  for folders below it without a README. MODULE.h and MODULE_private.h need no row.
- No two files of src/ and bench/ have the same name.
- A file that a Markdown page links to exists.
- A test that docs/inside/promises.md names as `file:name` exists.
- C, Python, shell and CMake-free scripts carry an SPDX line among their first five.
"""

import fnmatch
import os
import re
import subprocess
import sys

# Module -> the modules it may include, besides itself. A module is a folder with all that is below it;
# a file belongs to the longest that matches its path.
BELOW = {
    "base": set(),
    "proto": {"base"},
    "net": {"base", "proto"},
    "net/server": {"base", "net"},
    "core/key": {"base"},
    "core/policy": {"base"},
    "core/codec": {"base"},
    "core/blend": {"base", "core/codec"},
    "core/paged": {"base"},
    "core/device": {"base", "core/codec", "core/blend", "core/paged"},
    "core/chunk": {"base", "core/key", "core/paged", "core/codec"},
    "optimizer": {"base", "proto", "core/key", "core/policy", "net"},
}
CORE = {name for name in BELOW if name.startswith("core/")}
BELOW["store"] = {"base", "proto", "net"} | CORE
# Serves objects to other processes, from the loops of net/server, which libtierce.so has.
BELOW["store/transfer"] = BELOW["store"] | {"store", "net/server"}
BELOW["directory"] = {"base"}
BELOW["router"] = {"base", "proto", "net", "net/server", "directory"}
BELOW["manager"] = {"base", "core/key", "core/policy", "core/chunk", "proto", "net", "net/server", "store", "optimizer", "directory"}
BELOW["engine"] = BELOW["store"] | {"store", "store/transfer"}
BELOW["mover"] = {"base", "core/key", "core/chunk", "proto", "net", "store"}
BELOW["node"] = {"base", "core/key", "core/chunk", "proto", "net", "net/server", "store", "store/transfer", "engine", "mover"}
BELOW["nixl"] = {"base", "store"}
BELOW["proxy"] = {"base", "net", "net/server"}
BELOW["cli"] = BELOW["engine"] | BELOW["node"] | {"router", "proxy", "node", "manager", "mover", "optimizer", "directory"}
# Linked into the same executable; the CLI knows it by a row of commands.def only.
BELOW["bench"] = BELOW["cli"] | {"cli"}
# The Python extension stands on the engine, its public face, and on core/blend, whose functions work on the memory of the
# caller.
BELOW["python"] = {"base", "core/key", "core/paged", "core/blend", "engine"}

# Public header -> the module that implements it.
PUBLIC = {
    "plugin.h": "base", "plugin_policy.h": "core/policy", "plugin_codec.h": "core/codec",
    "status.h": "base", "errors.def": "base", "log.h": "base", "version.h": "base",
    "key.h": "core/key", "paged.h": "core/paged", "config.h": "engine", "engine.h": "engine",
    "stats.def": "engine", "misses.def": "engine", "why.h": "engine", "prefetch.h": "engine",
    "operate.h": "engine", "events.h": "engine", "tierce.h": "engine",
}

FUNCTION_LINES_MAX = 70
FILE_LINES_SOFT, FILE_LINES_MAX = 800, 1500
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')
SPDX = "SPDX-License-Identifier: Apache-2.0"
NEEDS_SPDX = re.compile(r"\.(c|h|def|py|sh|map|cu)$|^Makefile$|^(tools|\.ci)/[^.]+$")


def module_of(path):
    """The module of a file, or of the target of an #include; None for other files."""
    if path.startswith("python/"):
        return "python"
    folders = path.removeprefix("src/").split("/")[:-1]
    if not folders or not path.startswith(("src/", "bench/")):
        return None
    names = ["/".join(folders[:count]) for count in range(len(folders), 0, -1)]
    return next((name for name in names if name in BELOW), names[0])


def check_include(path, module, kind, target):
    """The error message for one include, or None."""
    if kind == "<":
        if not target.startswith("tierce/"):
            return None
        name = target[len("tierce/"):]
        owner = PUBLIC.get(name)
        if owner is None:
            return f"includes <{target}>, which tools/check_layers.py does not know: add it there"
    else:
        if "/" not in target:
            return f'includes "{target}": write the module\'s folder too'
        owner = module_of(target if target.startswith("bench/") else f"src/{target}")
        if owner not in BELOW:
            return f'includes "{target}", which is of no module'
    if owner == module:
        return None
    if target.endswith("_private.h"):
        return f'includes "{target}", which is private to {owner}'
    if module == "python" and kind == '"' and owner not in ("engine", "core/blend"):
        return f'includes "{target}": the extension may include only the public headers, the engine and core/blend'
    if owner not in BELOW[module]:
        return f"includes {target} of {owner}, which does not lie below {module}"
    return None


def check_includes(path, lines):
    module = module_of(path)
    if module is None:
        return
    if module not in BELOW:
        yield 1, f"src/{module} is a module that tools/check_layers.py does not know"
        return
    for number, line in enumerate(lines, 1):
        match = INCLUDE.match(line)
        complaint = match and check_include(path, module, match[1], match[2])
        if complaint:
            yield number, complaint


def functions(lines):
    """(first, last) line of each body. A function begins and ends with a brace in column one, as
    .clang-format requires."""
    start = None
    for number, line in enumerate(lines, 1):
        if line.rstrip() == "{":
            start = number
        elif line.startswith("}") and start is not None:
            yield start, number
            start = None


def check_functions(lines):
    for start, end in functions(lines):
        length = end - start + 1
        if length > FUNCTION_LINES_MAX:
            yield start, f"a function of {length} lines; {FUNCTION_LINES_MAX} at most"


def check_file(path, text):
    """Yields (line, complaint, is_error)."""
    lines = text.split("\n")
    if text.endswith("\n"):
        lines.pop()
    if NEEDS_SPDX.search(path) and not any(SPDX in line for line in lines[:5]):
        yield 1, f"no line \"{SPDX}\" among the first five", True
    if not path.endswith((".c", ".h", ".py", ".cu")):
        return
    if len(lines) > FILE_LINES_SOFT:
        yield len(lines), f"{len(lines)} lines; split it above {FILE_LINES_SOFT}", \
            len(lines) > FILE_LINES_MAX
    if path.endswith((".c", ".h", ".cu")):
        for number, complaint in check_includes(path, lines):
            yield number, complaint, True
        for number, complaint in check_functions(lines):
            yield number, complaint, True


def check_readme(path, text, paths):
    """Yields (line, complaint). A table of files has `file` or `files` above its first column."""
    folder = path[:-len("README.md")]
    # Of a folder with a README of its own, that one speaks.
    others = [p[:-len("README.md")] for p in paths if p.startswith(folder) and p != path
              and p.endswith("/README.md")]
    files = [p.rsplit("/", 1)[1] for p in paths if p.startswith(folder)
             and not p.startswith(tuple(others)) and p.endswith((".c", ".h", ".def"))]
    named, in_table = [], False
    for number, line in enumerate(text.split("\n"), 1):
        cell = line.split("|")[1] if line.startswith("|") and line.count("|") > 1 else None
        in_table = cell is not None and (in_table or cell.strip() in ("file", "files"))
        if in_table:
            named += [(number, word) for word in re.findall(r"[\w*]+\.(?:c|h|def)\b", cell)]
    for number, word in named:
        if not fnmatch.filter(files, word):
            yield number, f"there is no file {word} here"
    module = path.split("/")[-2]
    words = [word for _, word in named] + [f"{module}.h", f"{module}_private.h"] * bool(named)
    for name in files if words else []:
        also = name[:-2] + ".c" if name.endswith(".h") else name
        if not any(fnmatch.fnmatch(name, w) or fnmatch.fnmatch(also, w) for w in words):
            yield 1, f"{name} is not in the table of files"


def check_names(paths):
    """Yields (path, complaint): one name, one file."""
    first = {}
    for path in paths:
        name = path.rsplit("/", 1)[-1]
        if not path.startswith(("src/", "bench/")) or name in ("README.md", "CMakeLists.txt"):
            continue
        if first.setdefault(name, path) != path:
            yield path, f"{first[name]} has the same name"


def check_promises(text, read):
    """Yields (line, complaint). read(path): a file's text, or None."""
    for number, line in enumerate(text.split("\n"), 1):
        for path, name in re.findall(r"`(tests/[\w/.]+\.(?:c|py)):(\w+)`", line):
            source = read(path)
            begin = f"START_TEST({name})" if path.endswith(".c") else f"def {name}("
            if source is None or begin not in source:
                yield number, f"there is no test {path}:{name}"


def check_links(path, text, exists=os.path.exists):
    """Yields (line, complaint) for each relative link of a page to a file that does not exist."""
    for number, line in enumerate(text.split("\n"), 1):
        for target in re.findall(r"\]\(([^)\s#]+)[^)]*\)", line):
            linked = os.path.normpath(os.path.join(os.path.dirname(path), target))
            if not re.match(r"[a-z]+:", target) and not exists(linked):
                yield number, f"the link {target} leads nowhere"


def read_or_none(path):
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except OSError:
        return None


def self_test():
    """Each rule must be able to fail."""
    head = f"/* {SPDX} */\n"
    long = "int f(void)\n{\n" + "    x();\n" * 70 + "}\n"
    bad = {
        "src/base/a.c": '#include "core/key/key.h"\n',
        "src/core/key/a.c": "#include <tierce/engine.h>\n",
        "src/engine/a.c": '#include "store/disk/disk_private.h"\n',
        "src/core/chunk/a.c": '#include "header.h"\n',
        "src/core/policy/a.c": '#include "core/key/key.h"\n',
        "src/nowhere/a.c": "\n",
        "src/store/disk/a.c": '#include "engine/engine_config.h"\n',
        "src/net/redis/a.c": '#include "net/server/serve.h"\n',
        "src/cli/d.c": '#include "bench/bench.h"\n',
        "python/core/a.c": '#include "store/tier.h"\n',
        "src/cli/a.c": "#include <tierce/unknown.h>\n",
        "src/cli/b.c": long,
        "src/cli/c.c": "\n" * 1600,
    }
    good = {
        "src/store/a.c": '#include "core/chunk/pool.h"\n#include <tierce/key.h>\n#include <stdio.h>\n',
        "src/store/disk/b.c": '#include "store/disk/disk_private.h"\n' + long.replace("    x();\n", "", 2),
        "src/cli/a.c": '#include "engine/engine_config.h"\n',
        "bench/a.c": '#include "cli/cli.h"\n#include "bench/bench.h"\n',
        "python/core/a.c": "#include <tierce/engine.h>\n",
        "tests/a.c": '#include "check_main.h"\n',
    }
    for path, text in bad.items():
        assert any(error for _, _, error in check_file(path, head + text)), path
    for path, text in good.items():
        assert not list(check_file(path, head + text)), (path, list(check_file(path, head + text)))
    assert list(check_file("tools/x", "#!/bin/sh\n"))
    table = "| files | what |\n|---|---|\n| `a.c`, `b_*.c` | x |\n| `c.def` | like `d.c` |\n"
    paths = ["src/x/a.c", "src/x/a.h", "src/x/x.h", "src/x/x_private.h", "src/x/y/b_1.c", "src/x/c.def",
             "src/x/z/README.md", "src/x/z/z.c"]
    assert not list(check_readme("src/x/README.md", table, paths))
    assert not list(check_readme("src/x/README.md", "no table\n", paths))
    assert list(check_readme("src/x/README.md", table, paths + ["src/x/e.h"]))
    assert list(check_readme("src/x/README.md", table, paths[:5]))
    assert list(check_names(["src/a/x.c", "bench/x.c"]))
    assert not list(check_names(["src/a/x.c", "src/a/x.h", "src/b/README.md", "src/README.md"]))
    sources = {"tests/a.c": "START_TEST(x)\n", "tests/b/c.py": "def test_y():\n"}
    assert not list(check_promises("`tests/a.c:x`, `tests/b/c.py:test_y`", sources.get))
    assert len(list(check_promises("`tests/a.c:y` `tests/b/c.py:y`\n`tests/d.c:x`", sources.get))) == 3
    there = {"docs/a.md", "x.h"}.__contains__
    assert not list(check_links("docs/b.md", "[a](a.md#b) [x](../x.h) [w](https://w.org/) [here](#here)", there))
    assert len(list(check_links("docs/b.md", "[a](b/a.md)\n![x](x.h)", there))) == 2
    print("self test passed")


def main(args):
    if args == ["--self-test"]:
        self_test()
        return 0
    # Whose files they are does not matter: in a container the clone is often another user's.
    paths = args or subprocess.run(["git", "-c", "safe.directory=*", "ls-files"], check=True,
                                   capture_output=True, text=True).stdout.split("\n")
    errors = 0
    for path, complaint in check_names(filter(None, paths)):
        print(f"{path}:1: {complaint}")
        errors += 1
    for path in filter(None, paths):
        try:
            with open(path, encoding="utf-8") as file:
                text = file.read()
        except (UnicodeDecodeError, FileNotFoundError, IsADirectoryError):
            continue
        if re.fullmatch(r"src/[\w/]+/README\.md", path) and not args:
            for number, complaint in check_readme(path, text, paths):
                print(f"{path}:{number}: {complaint}")
                errors += 1
        if path.endswith(".md"):
            for number, complaint in check_links(path, text):
                print(f"{path}:{number}: {complaint}")
                errors += 1
        if path == "docs/inside/promises.md":
            for number, complaint in check_promises(text, read_or_none):
                print(f"{path}:{number}: {complaint}")
                errors += 1
        for number, complaint, is_error in check_file(path, text):
            print(f"{path}:{number}: {'' if is_error else 'note: '}{complaint}")
            errors += is_error
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
