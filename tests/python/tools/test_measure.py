# SPDX-License-Identifier: Apache-2.0
"""tools/measure: the figures of a small tree that are known by counting."""

import importlib.machinery
import importlib.util
import json
import shutil
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
LICENCE = "/* SPDX-License-Identifier: Apache-2.0 */\n"

# 15 code lines: two includes, struct node (3), add() (4), struct other, walk() without assertions (5).
# 3 assertions count; those of NULL and of the magic number do not.
A_C = LICENCE + r'''
#include "base/a.h"
#include "core/key/key.h"

/* A comment
 * of two lines with struct tag { in it. */
struct node {
    int next; /* behind code */
};

static int add(int a, int b)
{
    // Don't count "this"
    return a + b; // "
}

struct other;

const char *walk(struct handle *h,
                 int count)
{
    TIERCE_CHECK_MAGIC(h, 7);
    TIERCE_ASSERT(h != NULL);
    TIERCE_ASSERT(count > 0 && count <
                                   add(1, 2));
    TIERCE_DASSERT(h->list == NULL || strcmp(h->name, ");") == 0);
    tierce__lock_assert_held(&h->lock);
    return "/* no comment */" "//";
}
'''
# 5 comment lines and 5 code lines.
A_H = LICENCE + '''#ifndef A_H
#define A_H

/*
 * What it is.
 *
 * How it is used.
 */
struct handle;
#define TIERCE_DASSERT(cond) TIERCE_ASSERT(cond) /* a macro, not an assertion */

/* Says nothing new.
   Twice. */
#endif
'''
B_C = LICENCE + '''struct node {
    int slot;
};
_Static_assert(sizeof(struct node) == 4, "small");
'''
TEST_C = '''START_TEST(test_add)
{
    struct node {
        int x;
    };
    ck_assert(1);

    ck_assert(2);
}
END_TEST
'''
PYTHON = '''"""Docstring
of two lines."""

# A comment.
TEXT = """a string

is code"""


def f():
    """No code."""
    return TEXT  # behind code
'''
TREE = {
    "src/base/a.c": A_C, "src/core/key/b.c": B_C, "src/core/key/a.c": "int x;\n", "src/core/key/README.md": "",
    "src/base/README.md": "", "include/tierce/a.h": A_H, "python/tierce/f.py": PYTHON,
    "tests/helper.h": "int y; /* y */\n\n", "tests/support/more.c": "int z;\nint w;\n",
    "tests/unit/test_add.c": TEST_C, "tools/ignored.py": "x = 1\n",
}


@pytest.fixture(scope="module")
def measure():
    loader = importlib.machinery.SourceFileLoader("measure", str(ROOT / "tools" / "measure"))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("measure", loader))
    loader.exec_module(module)
    return module


@pytest.fixture
def root(tmp_path):
    for path, text in TREE.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text, encoding="utf-8")
    return tmp_path


def test_code_lines_are_without_blanks_comments_and_assertions(measure, root):
    modules = measure.measure(root)["modules"]
    lines = {name: of["code_lines"] for name, of in modules.items()}
    assert lines == {
        "src/base": 15, "src/core": 4, "include": 5, "python": 5, "tests/support": 3,
        "tests/unit": 9, "**src, include, bench, tests/support**": 27, "**product**": 29,
        "**tests**": 12}
    assert modules["tests/support"]["files"] == 2 and "tools" not in modules


def test_assertions_count_without_null_and_magic(measure, root):
    modules = measure.measure(root)["modules"]
    assert modules["src/base"]["functions"] == 2
    assert modules["src/base"]["assertions_per_function"] == 1.5
    assert modules["include"]["assertions_per_function"] == 0  # the macro is a definition
    assert modules["**product**"]["assertions_per_function"] == 2  # with key's static assertion


def test_lengths_of_functions(measure, root):
    measured = measure.measure(root)
    assert measured["longest"] == [[9, "walk", "src/base/a.c"], [4, "add", "src/base/a.c"]]
    assert measured["functions"]["product"] == {
        "count": 2, "p50": 4, "p90": 9, "p99": 9, "max": 9}
    assert measured["functions"]["tests"]["max"] == 8


@pytest.mark.parametrize("head, name", [
    ("START_TEST(test_add)\n", "test_add"), ("int f(void (*g)(int),\n      int x)\n", "f"),
    ('__attribute__((target("avx2"))) static int wide(int x)\n', "wide"),
    ("static struct very_long *\nmake(int x)\n", "make"), ("int g(int x)\n", "g")])
def test_names_of_functions(measure, head, name):
    file = measure.File("src/base/x.c", "int before(int);\n\n" + head + "{\n}\n")
    assert file.functions == [(2, name)]


def test_percentiles_are_nearest_ranks(measure):
    values = list(range(200, 0, -1))
    assert [measure.percentile(values, p) for p in (50, 90, 99, 100)] == [100, 180, 198, 200]


def test_names_and_tags_that_several_files_have(measure, root):
    measured = measure.measure(root)
    assert measured["same_names"] == {"a.c": ["src/base/a.c", "src/core/key/a.c"]}
    assert measured["same_structs"] == {"node": ["src/base/a.c", "src/core/key/b.c"]}


def test_folders(measure, root):
    assert measure.measure(root)["folders_too_large"] == 0
    for i in range(24):
        (root / f"src/core/key/more{i}.c").write_text("", encoding="utf-8")
    measured = measure.measure(root)
    assert measured["folders"]["src/core/key"] == 26 and measured["folders_too_large"] == 1


def test_share_of_comments(measure, root):
    measured = measure.measure(root)
    assert measured["comment_share"] == {"a.h": 50.0} and measured["comment_share_all"] == 50.0
    assert measure.File("a.h", "/* x */\nint a;\nint b;\nint c; /* c */\n").comment_lines == 2


def test_upward_includes(measure, root):
    upward = measure.measure(root)["upward_includes"]
    assert len(upward) == 1 and upward[0].startswith("src/base/a.c:4: includes core/key/key.h")


OWNERS = [
    ("hash table", "at = (at + 1) & (t->size - 1);", "ring->first = (ring->first + 1) & mask;"),
    ("hash table", "return &x->bins[spread(key) % BINS];", "if (hashes.len % HASH_BYTES == 0)"),
    ("hash table", "(n * UINT64_C(0x9e3779b97f4a7c15) >> 32) &\n    (count - 1);", "x = a % count;"),
    ("mixing constant", "x * 0x9E3779B97F4A7C15ULL", "x = 0x9e3779b185ebca87ULL; /* xxHash */"),
    ("JSON read", "json_tokener_parse_ex(t, x, 1);", "json_object_get(x);"),
    ("JSON read", "tierce__json_start(&json, x, n);", "tierce__json_end(&json);"),
    ("JSON escaped or serialised", r'printf("\\u%04x", c);', r'printf("%04x", c);'),
    ("JSON written as text", r'put("{\"id\":");', 'put("{id}");'),
    ("UTF-8 decoded", "c = c << 6 | (p[i] & 0x3f);", "c = c << 8 | (p[i] & 0xff);"),
    ("libcurl handle", "x = curl_easy_init();", "curl_easy_perform(x);"),
    ("HTTP server", 'printf("HTTP/1.1 %s\\r\\n", status);', 'puts("GET / HTTP/1.1");'),
    ("event loop", "fd = epoll_create1(0);", "poll(&one, 1, 5);"),
    ("event loop", "ppoll(link->polled, n, t, NULL);", "v->ops->poll(f->inner, 1);"),
    ("thread started", "pthread_create(&t, NULL, f, x);", "pthread_join(t, NULL);"),
    ("thread pool", "pthread_create(&p->threads[i], NULL, f, x);", "pthread_create(&t, NULL, f, x[1]);"),
    ("socket connected", "connect(fd, address, n);", "redis_connect(fd, 1);"),
    ("TLS context", "x = SSL_CTX_new(m);", "x = SSL_new(c);"),
    ("branch for an engine behind a node", "if (view->engine->client != NULL)",
     "if (client != NULL)"),
]


@pytest.mark.parametrize("idea, owner, other", OWNERS)
def test_ideas_find_their_owners(measure, idea, owner, other):
    files = [measure.File("src/base/owner.c", owner), measure.File("src/base/other.c", other),
             measure.File("src/base/comment.c", f"/* {owner.replace('/*', '')} */")]
    assert list(measure.measure_ideas(files)[idea]) == ["src/base/owner.c"]


def test_each_idea_has_an_example(measure):
    assert {idea for idea, _, _ in OWNERS} == set(measure.IDEAS)


def test_sizes_of_what_is_built(measure, tmp_path):
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib/libtierce.so.0").write_bytes(b"no ELF")
    (tmp_path / "lib/libtierce.so").symlink_to("libtierce.so.0")
    assert measure.measure_sizes(tmp_path) == {"libtierce.so.0": 6}
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/tierce").write_bytes(Path(sys.executable).read_bytes())
    sizes = measure.measure_sizes(tmp_path)
    assert sizes["tierce"] == Path(sys.executable).stat().st_size
    assert not shutil.which("strip") or 0 < sizes["tierce, stripped"] <= sizes["tierce"]


def test_compare_prints_what_differs(measure, root, tmp_path, monkeypatch, capsys):
    before = measure.measure(root)
    (root / "src/core/key/a.c").write_text("struct node {\n};\n", encoding="utf-8")
    after = measure.measure(root)
    monkeypatch.setattr(measure, "measure", lambda tree: before)
    measure.main(["--json"])
    saved = tmp_path / "before.json"
    saved.write_text(capsys.readouterr().out, encoding="utf-8")
    assert json.loads(saved.read_text(encoding="utf-8")) == before
    monkeypatch.setattr(measure, "measure", lambda tree: after)
    measure.main(["--compare", str(saved)])
    rows = capsys.readouterr().out.splitlines()[2:]
    assert "| modules / src/core / code_lines | 4 | 5 | 1.250 |" in rows
    assert "| same_structs | 1 | 1 | 1.000 |" not in rows
    assert len(rows) == 3  # the module, and the two sums with it


def test_tables_have_every_figure(measure, root, capsys, monkeypatch):
    measured = measure.measure(root)
    monkeypatch.setattr(measure, "measure", lambda tree: measured)
    measure.main([])
    told = capsys.readouterr().out
    assert "| src/base | 1 | 15 | 2 | 1.5 |" in told
    assert "| product | 2 | 4 | 9 | 9 | 9 |" in told
    assert "walk 9 (src/base/a.c)" in told and "a.c (2)" in told
    assert "**node** base/a.c core/key/b.c" in told and "a.h 50.0" in told
