# SPDX-License-Identifier: Apache-2.0
"""tools/docs: the whole site of this repository, and broken links in a copy of it."""

import json
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

import pytest

ROOT = Path(__file__).resolve().parents[3]
PROJECT = ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md")


def run_docs(out, root=ROOT):
    return subprocess.run([sys.executable, ROOT / "tools" / "docs", "--out", out, "--root", root], text=True,
                          stdin=subprocess.DEVNULL, capture_output=True, timeout=120, check=False)


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    out = tmp_path_factory.mktemp("site")
    done = run_docs(out)
    assert done.returncode == 0, done.stderr
    return out


@pytest.fixture
def tree(tmp_path):
    """A copy of the documentation, in which the files that it links to are those of the repository."""
    root = tmp_path / "tree"
    shutil.copytree(ROOT / "docs", root / "docs")
    for name in PROJECT:
        shutil.copyfile(ROOT / name, root / name)
    for path in ROOT.iterdir():
        if not (root / path.name).exists() and path.name != ".git":
            (root / path.name).symlink_to(path)
    return root


def sources():
    """Page of the repository -> where the site has it."""
    found = {name: f"project/{name[:-3].lower()}.html" for name in PROJECT}
    for path in (ROOT / "docs").rglob("*.md"):
        below = path.relative_to(ROOT / "docs")
        found[f"docs/{below}"] = "index.html" if str(below) == "README.md" else str(below.with_suffix(".html"))
    return found


def headings(source):
    """The headings of a page, without marks, by another way than the tool's: lines that begin with #."""
    fence, found = False, []
    for line in (ROOT / source).read_text(encoding="utf-8").splitlines():
        fence ^= line.startswith("```")
        match = None if fence else re.match(r"#{1,6} +(.*?) *$", line)
        if match:
            found.append(re.sub(r"[`*]|\[([^]]*)\]\([^)]*\)", r"\1", match[1]))
    return found


class Collector(HTMLParser):
    """The ids of a page, and the addresses in it."""

    def __init__(self, text):
        super().__init__()
        self.ids, self.links, self.loaded = set(), [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        attrs = dict(attrs)
        self.ids.add(attrs.get("id"))
        if tag == "a":
            self.links.append(attrs["href"])
        elif "src" in attrs or "href" in attrs:
            self.loaded.append(attrs.get("src") or attrs["href"])


def test_every_page_is_there_and_found_by_its_headings(site):
    text = (site / "search-index.js").read_text(encoding="utf-8")
    index = json.loads(re.fullmatch(r"tierceIndex = (.*);\n", text)[1])
    pages = [page[0] for page in index["pages"]]
    expected = sources()
    assert sorted(pages) == sorted(expected.values())
    for source, place in expected.items():
        assert (site / place).is_file()
        found = [s[1] for s in index["sections"] if pages[s[0]] == place]
        assert found == headings(source), source
    words = {s[1]: s[3] for s in index["sections"] if pages[s[0]] == "using/remote.html"}
    assert "s3+nixl://" in words["NIXL"] and "POSIX" in words["NIXL"]  # code, and a cell of a table
    assert index["pages"][1][2] == "Using Tierce"


def test_links_lead_to_something_and_nothing_is_loaded_from_other_sites(site):
    pages = {path: Collector(path.read_text(encoding="utf-8")) for path in site.rglob("*.html")}
    checked = 0
    for path, page in pages.items():
        for address in page.loaded:
            assert address == "data:," or (path.parent / address).is_file(), f"{path}: {address}"
        for address in page.links:
            if re.match(r"https?:", address):
                continue
            where, _, anchor = unquote(address).partition("#")
            target = (path.parent / where).resolve() if where else path
            assert target.is_file(), f"{path}: {address}"
            assert not anchor or anchor in pages[target].ids, f"{path}: {address}"
            checked += 1
    assert checked > 3000


BROKEN = [
    ("docs/using/node.md", "[a page](nowhere.md)", "broken link nowhere.md: there is no docs/using/nowhere.md"),
    ("docs/using/node.md", "[a part](peers.md#nowhere)",
     "broken link peers.md#nowhere: docs/using/peers.md has no heading with the anchor nowhere"),
    ("docs/inside/scale.md", "[here](#nowhere)",
     "broken link #nowhere: docs/inside/scale.md has no heading with the anchor nowhere"),
    ("README.md", "![a picture](docs/pictures/none.png)", "broken link docs/pictures/none.png: there is no "),
    ("README.md", "![a picture](https://example.com/a.png)", "a picture of another site is not permitted"),
    ("docs/README.md", "| a | table |\n|---|---|\n| [x](../../etc) | y |", "broken link ../../etc: it leaves the repository"),
    ("CHANGELOG.md", "- a list\n  [of](src)", "broken link src: a folder has no page"),
    ("docs/using/vllm.md", "[a file](../../LICENSE#2)", "broken link ../../LICENSE#2: only pages have anchors"),
    ("docs/using/vllm.md", "tierce --token=<TOKEN>", "HTML is not permitted, quote it: <TOKEN>"),
]


def test_broken_links_end_the_build_with_their_places(tree, tmp_path):
    expected = []
    for source, text, message in BROKEN:
        path = tree / source
        before = path.read_text(encoding="utf-8").rstrip("\n") + "\n"
        path.write_text(f"{before}\n{text}\n", encoding="utf-8")
        expected.append((f"{source}:{len(path.read_text(encoding='utf-8').splitlines())}: ", message))
    (tree / "docs" / "using" / "lost.md").write_text("# Lost\n", encoding="utf-8")
    expected.append(("docs/using/lost.md:1: ", "docs/README.md has no link to it"))
    done = run_docs(tmp_path / "out", tree)
    assert done.returncode == 1
    said = done.stderr.splitlines()
    for place, message in expected:
        assert any(line.startswith(place) and message in line for line in said), (place, message, said)
    assert len(said) == len(expected)
    assert not (tmp_path / "out").exists()


def test_a_folder_with_other_files_is_left_alone(tmp_path):
    (tmp_path / "mine").write_text("", encoding="utf-8")
    done = run_docs(tmp_path)
    assert done.returncode == 1 and "is not empty" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_a_site_that_is_built_again_keeps_no_old_pages(tmp_path):
    (tmp_path / "using").mkdir()
    for name in ("search-index.js", "using/old.html"):
        (tmp_path / name).write_text("", encoding="utf-8")
    assert run_docs(tmp_path).returncode == 0
    assert (tmp_path / "using" / "node.html").exists() and not (tmp_path / "using" / "old.html").exists()
