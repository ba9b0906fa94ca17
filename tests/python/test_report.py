# SPDX-License-Identifier: Apache-2.0
"""The page of `tierce optimize --html` in a real browser: what it shows, and that it asks for
nothing."""

import csv
import json
import os
import random
import re
import subprocess
from pathlib import Path

import pytest

from browser import Browser, Page, find_chromium

ROOT = Path(__file__).resolve().parents[2]
EXECUTABLE = ROOT / "build" / os.environ.get("TIERCE_TEST_BUILD", "rel") / "bin" / "tierce"
HOSTILE = "</script><img src=x onerror=\"document.title='run'\">&amp;<!--"

if find_chromium() is None and os.environ.get("CI") != "true":
    pytest.skip("chromium is not installed, and the page needs a browser to be looked at",
                allow_module_level=True)


def sessions(requests, seed=11):
    """Chains that grow and are asked for again, over a few minutes."""
    draw, chains, fresh, lines = random.Random(seed), [], 1, []
    for at in range(requests):
        if not chains or draw.random() < 0.2:
            chains.append([0, 1 + draw.randrange(3)])
            fresh = max(fresh, 10)
        chain = draw.choice(chains[-30:])
        grown = draw.randrange(1, 5)
        chain.extend(range(fresh, fresh + grown))
        fresh += grown
        lines.append({"timestamp": at * 250, "input_length": 16 * len(chain),
                      "output_length": 7, "hash_ids": list(chain)})
    return "".join(json.dumps(line) + "\n" for line in lines)


def instances(names):
    """Turns of several instances, whose names may be anything."""
    lines = [{"instance_id": names[i % len(names)], "trace_id": f"t{i}", "timestamp_us": i * 1000,
              "tokens": [], "keys": [1 + i % 5, 100 + i % 5], "query_type": "prefix_match",
              "block_mask": [], "sw_size": 0, "location_spec_names": []} for i in range(60)]
    return "".join(json.dumps(line) + "\n" for line in lines)


def optimize(*args):
    done = subprocess.run([EXECUTABLE, "optimize", *map(str, args)], stdin=subprocess.DEVNULL,
                          capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    with Browser(tmp_path_factory.mktemp("profile")) as made:
        yield made


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """(page, rows of the CSV) of a report with everything in it."""
    folder = tmp_path_factory.mktemp("report")
    trace, page, table = folder / "trace.jsonl", folder / "report.html", folder / "table.csv"
    trace.write_text(sessions(800))
    optimize(trace, *EVERYTHING, "--html", page, "--csv", table)
    with open(table, encoding="utf-8") as file:
        return page, list(csv.DictReader(file))


EVERYTHING = ("--match", "prefix,any", "--order", "rev,fwd", "--block-bytes", "2MiB",
              "--policy", "lru,lfu,sieve,infinite,belady")
SECTIONS = ["rates", "limits"]


@pytest.mark.parametrize("width", [1280, 360])
@pytest.mark.parametrize("dark", [False, True])
def test_it_loads_and_asks_for_nothing(browser, report, width, dark):
    page = Page(browser, width, dark=dark).open(report[0])
    assert page.problems == []
    assert page.requests == [f"file://{report[0]}"]
    assert page.run("document.documentElement.scrollWidth") <= width
    assert page.run("[...document.querySelectorAll('main > section')].map(s => s.id)") == SECTIONS
    paper, ink = page.run("[getComputedStyle(document.body).backgroundColor,"
                          " getComputedStyle(document.body).color]")
    lightness = [sum(map(int, re.findall(r"\d+", color)[:3])) for color in (paper, ink)]
    assert (lightness[0] < lightness[1]) == dark


def test_letters_and_targets_are_large_enough(browser, report):
    page = Page(browser, 360).open(report[0])
    page.run("document.querySelectorAll('details').forEach(d => { d.open = true; })")
    assert page.run("document.documentElement.scrollWidth") <= 360
    small = page.run("""[...document.querySelectorAll('body *')].filter(e => [...e.childNodes].some(
        n => n.nodeType === 3 && n.data.trim()) && !['SCRIPT', 'STYLE', 'NOSCRIPT'].includes(e.tagName)
        && parseFloat(getComputedStyle(e).fontSize) < 13.9).map(e => e.outerHTML.slice(0, 90))""")
    assert small == []
    low = page.run("""[...document.querySelectorAll('input, summary, button, nav a')].filter(
        e => e.getBoundingClientRect().height < 32).map(e => e.outerHTML.slice(0, 90))""")
    assert low == []


def test_the_numbers_are_those_of_the_csv(browser, report):
    page = Page(browser).open(report[0])
    tables = page.run("""[...document.querySelectorAll('table.rates')].map(t => ({
        match: t.dataset.match,
        heads: [...t.querySelectorAll('thead th')].map(c => c.textContent),
        rows: [...t.querySelectorAll('tbody tr')].map(r => [r.dataset.capacity,
            ...[...r.children].map(c => c.textContent)])}))""")
    shown = {}
    for table in tables:
        for row in table["rows"]:
            for head, cell in list(zip(table["heads"], row[1:]))[2:]:
                shown[table["match"], head, row[0]] = cell.replace("\xa0%", "")
    assert {t["match"] for t in tables} == {"prefix", "any"}
    both = {"lru", "lfu", "sieve"}
    for row in report[1]:
        label = row["policy"] + (f"/{row['order']}" if row["policy"] in both else "")
        capacity = row["capacity"]
        if capacity == "unlimited":  # the same in every line
            capacity = next(c for m, h, c in shown if (m, h) == (row["match"], label))
        said = shown[row["match"], label, capacity]
        assert float(said) == pytest.approx(100 * float(row["hit_rate"]), abs=0.0051), row
    capacities = {r["capacity"] for r in report[1]} - {"unlimited"}
    assert {c for _, _, c in shown} == capacities


def test_the_read_out_follows_keys_and_pointer(browser, report):
    page = Page(browser).open(report[0])

    def where():
        return page.run("document.querySelector('.readout .where').textContent")

    smallest = min(int(r["capacity"]) for r in report[1] if r["capacity"] != "unlimited")
    page.run("document.querySelector('#rates .chart').focus()")
    for key in ("Home", "ArrowRight", "ArrowLeft"):
        page.call("Input.dispatchKeyEvent", type="keyDown", key=key)
    assert where().startswith(f"At {smallest:,} block")
    hits = page.run("[...document.querySelectorAll('.readout tbody tr')].map(r =>"
                    " [r.cells[0].textContent, r.cells[r.cells.length - 1].textContent])")
    want = {r["policy"] + (f"/{r['order']}" if r["order"] != "-" else ""): int(r["hits"])
            for r in report[1] if r["match"] == "prefix" and
            (r["capacity"] == str(smallest) or r["policy"] == "infinite")}
    assert {name: int(n.replace(",", "")) for name, n in hits} == want
    box = page.run("(() => { const b = document.querySelector('#rates .chart svg')"
                   ".getBoundingClientRect(); return [b.right - 15, b.top + 100]; })()")
    page.call("Input.dispatchMouseEvent", type="mouseMoved", x=box[0], y=box[1])
    largest = max(int(r["capacity"]) for r in report[1] if r["capacity"] != "unlimited")
    assert where().startswith(f"At {largest:,} blocks, ")


def test_the_axis_can_be_switched(browser, report):
    page = Page(browser).open(report[0])

    def title():
        return page.run("[...document.querySelectorAll('#rates .chart text')].map(t =>"
                        " t.textContent).find(t => t.startsWith('capacity in'))")

    def click(value):
        page.run(f"document.querySelector('#rates input[value=\"{value}\"]').click()")

    assert title() == "capacity in blocks"
    before = page.run("document.querySelector('#rates .line').getAttribute('d')")
    click("bytes")
    assert title() == "capacity in GiB"
    assert page.run("document.querySelector('#rates .line').getAttribute('d')") == before
    click("linear")
    assert page.run("document.querySelector('#rates .line').getAttribute('d')") != before
    click("any")
    assert page.run("[...document.querySelectorAll('table.rates')].filter(t =>"
                    " t.offsetParent !== null).map(t => t.dataset.match)") == ["any"]
    assert page.problems == []


def test_without_a_script_the_tables_are_there(browser, report):
    page = Page(browser, scripts=False).open(report[0])
    html = page.html()
    assert 'data-match="prefix"' in html and "Without JavaScript" in html
    assert "<section id=\"limits\"" not in html  # no script ran
    rate = next(r for r in report[1] if r["policy"] == "belady")["hit_rate"]
    assert f"<td>{100 * float(rate):.2f}&nbsp;%</td>" in html


@pytest.mark.parametrize("name", ["<img src=x onerror=document.title='run'>&\"'.jsonl",
                                  "\u2028\udcff<b>.jsonl"])
def test_names_of_files_are_only_text(browser, tmp_path, name):
    trace, page = tmp_path / name, tmp_path / "report.html"
    trace.write_text(sessions(50))
    optimize(trace, "--html", page)
    opened = Page(browser).open(page)
    assert opened.problems == [] and opened.requests == [f"file://{page}"]
    assert opened.run("document.querySelectorAll('img, h1 *').length") == 0
    said = re.sub(r"[\u2028\udcff\ufffd]", "?", name.removesuffix(".jsonl")).replace('"', "_")
    assert re.sub(r"[\u2028\ufffd]", "?", opened.run(
        "document.querySelector('h1').textContent")) == said
    assert opened.run("document.title").endswith(" \u2013 tierce optimize")


def test_names_of_instances_are_only_text(browser, tmp_path):
    trace, page = tmp_path / "trace.jsonl", tmp_path / "report.html"
    trace.write_text(instances([HOSTILE, "b"]))
    optimize(trace, "--format", "kvcm-schema", "--html", page)
    opened = Page(browser).open(page)
    assert opened.problems == [] and opened.requests == [f"file://{page}"]
    assert opened.run("document.querySelectorAll('img').length") == 0
    assert opened.run("document.title") == "trace \u2013 tierce optimize"
    assert HOSTILE in opened.run("document.querySelector('#simulated').textContent")


def test_what_got_into_the_page_could_not_run(browser, report, tmp_path):
    """Even if a text got further than it should: the page runs its own script and no other."""
    text = report[0].read_text(encoding="utf-8")
    broken = tmp_path / "broken.html"
    broken.write_text(text.replace("<main", "<img src=x onerror=\"document.title='run'\">"
                                   "<script>document.title = 'run'</script><main"),
                      encoding="utf-8")
    page = Page(browser).open(broken)
    assert page.run("document.title") != "run"
    assert page.run("document.querySelectorAll('main > section').length") == len(SECTIONS)
    assert len(page.requests) == 1 + page.blocked


def test_it_can_be_printed(browser, report):
    page = Page(browser).open(report[0])
    printed = page.call("Page.printToPDF", paperWidth=8.27, paperHeight=11.69)["data"]
    assert len(printed) > 10000
    page.call("Emulation.setEmulatedMedia", media="print")
    assert page.run("getComputedStyle(document.querySelector('.controls')).display") == "none"


def test_what_is_equal_is_written_equally(report, tmp_path):
    """The same again, byte for byte; and small."""
    trace = report[0].parent / "trace.jsonl"
    again = tmp_path / "again.html"
    optimize(trace, *EVERYTHING, "--html", again)
    assert again.read_bytes() == report[0].read_bytes()
    assert again.stat().st_size < 1 << 20
