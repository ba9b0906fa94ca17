# SPDX-License-Identifier: Apache-2.0
"""The site of tools/docs in a real browser, opened as files: search, other widths, and no requests to anywhere."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from browser import Page, browser, browser_process, find_chromium

ROOT = Path(__file__).resolve().parents[3]

if find_chromium() is None and os.environ.get("CI") != "true":
    pytest.skip("chromium is not installed, and the site needs a browser to be looked at", allow_module_level=True)

# Types a query, and gives the addresses of the answers once they are there.
SEARCH = """(async (query) => {
    const field = document.querySelector("header input"), results = document.getElementById("results");
    field.focus();
    field.value = query;
    field.dispatchEvent(new Event("input"));
    while (!document.querySelector("script[src$='search-index.js']") || index.length === 0)
        await new Promise((done) => setTimeout(done, 5));
    return [...results.querySelectorAll("a")].map((a) => a.getAttribute("href"));
})"""


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    out = tmp_path_factory.mktemp("site")
    subprocess.run([sys.executable, ROOT / "tools" / "docs", "--out", out], check=True, timeout=120,
                   stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    return out


def test_search(browser, site):
    page = Page(browser).open(site / "using" / "ref" / "node.html")
    found = page.run(f'{SEARCH}("which engine is read from")')
    assert found[0] == "../../using/peers.html#which-engine-is-read-from"
    assert page.run(f'{SEARCH}("s3+nixl")')[0] == "../../using/remote.html#nixl"
    assert page.run(f'{SEARCH}("no page has <b>this</b>")') == []
    assert page.run("document.getElementById('results').textContent") == "Nothing was found."
    assert page.run(f'{SEARCH}("cufile")')
    assert page.run("document.querySelectorAll('#results mark').length") > 0
    assert page.problems == []
    assert [url for url in page.requests if not url.startswith(("file://", "data:,"))] == []


def test_an_answer_opens_its_section(browser, site):
    page = Page(browser).open(site / "index.html")
    page.run(f'{SEARCH}("Which engine is read from")')
    browser.events.clear()
    page.run("document.querySelector('form').requestSubmit()")
    browser.wait_for("Page.loadEventFired", page._session)
    assert page.run("location.href").endswith("/using/peers.html#which-engine-is-read-from")
    # 52 px are the bar at the top.
    assert 52 <= page.run("document.querySelector(location.hash).getBoundingClientRect().top") < 300


@pytest.mark.parametrize("width", [360, 800, 1280])
@pytest.mark.parametrize("name", ["index", "using/remote", "using/ref/config", "inside/benchmarks", "project/readme"])
def test_no_page_is_wider_than_the_screen(browser, site, width, name):
    page = Page(browser, width=width).open(site / f"{name}.html")
    assert page.run("document.documentElement.scrollWidth") <= width


def test_pages_on_a_phone(browser, site):
    page = Page(browser, width=390).open(site / "using" / "peers.html")
    shown = "getComputedStyle(document.querySelector('nav')).display"
    assert page.run(shown) == "none"
    page.run("document.querySelector('label.menu').click()")
    assert page.run(shown) == "block"


def test_dark(browser, site):
    colour = "getComputedStyle(document.body).backgroundColor"
    assert Page(browser).open(site / "index.html").run(colour) == "rgb(255, 255, 255)"
    assert Page(browser, dark=True).open(site / "index.html").run(colour) == "rgb(22, 23, 25)"


def test_without_scripts(browser, site):
    page = Page(browser, scripts=False).open(site / "using" / "node.html")
    assert "<form role=\"search\" hidden" in page.html()
