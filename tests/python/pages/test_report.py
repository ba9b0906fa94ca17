# SPDX-License-Identifier: Apache-2.0
"""The page of `tierce optimize --html` in a real browser: its content, and that it sends no
requests."""

import csv
import json
import os
import random
import re
import subprocess
from pathlib import Path

import pytest

from browser import Page, browser, browser_process, find_chromium

ROOT = Path(__file__).resolve().parents[3]
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
def report(tmp_path_factory):
    """(page, rows of the CSV) of a report with everything in it."""
    folder = tmp_path_factory.mktemp("report")
    trace, page, table = folder / "trace.jsonl", folder / "report.html", folder / "table.csv"
    trace.write_text(sessions(800))
    optimize(trace, *EVERYTHING, "--html", page, "--csv", table)
    with open(table, encoding="utf-8") as file:
        return page, list(csv.DictReader(file))


EVERYTHING = ("--match", "prefix,any", "--order", "rev,fwd", "--policy",
              "lru,lfu,sieve,infinite,belady", "--model", "llama-3.1-8b", "--gpu", "h100",
              "--cost-tier", "nvme,price=4e5,writes=2e7", "--block-tokens", "16", "--bootstrap", "40",
              "--tier", "memory:40MiB,read=20GB/s",
              "--tier", "disk:1GiB,read=2GB/s,write=1GB/s,latency=1ms,endurance=1TB")
SECTIONS = ["rates", "time", "tiers", "savings", "waits", "life", "prefixes", "trust", "limits"]


@pytest.mark.parametrize("match, shaded", [("prefix", 1), ("window:2", 0)])
def test_headroom_is_up_to_a_bound(browser, tmp_path, match, shaded):
    """By a window Belady's line is none: others may lie above it."""
    trace, made = tmp_path / "trace.jsonl", tmp_path / "report.html"
    trace.write_text(sessions(200))
    optimize(trace, "--match", match, "--policy", "lru,belady", "--html", made)
    page = Page(browser, 1280).open(made)
    assert page.problems == []
    assert page.run("document.querySelectorAll('#rates path.headroom').length") == shaded


@pytest.mark.parametrize("width, dark", [(1280, False), (360, True),
                                         *(pytest.param(*other, marks=pytest.mark.long)
                                           for other in ((1280, True), (360, False)))])
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
        return page.run("document.querySelector('#rates .where').textContent")

    smallest = min(int(r["capacity"]) for r in report[1] if r["capacity"] != "unlimited")
    page.run("document.querySelector('#rates .chart').focus()")
    for key in ("Home", "ArrowRight", "ArrowLeft"):
        page.call("Input.dispatchKeyEvent", type="keyDown", key=key)
    assert where().startswith(f"At {smallest:,} block")
    hits = page.run("[...document.querySelectorAll('#rates .readout tbody tr')].map(r =>"
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


def money(page):
    """The table of savings: {policy: {head: cell}}."""
    rows = page.run("""(t => [...t.querySelectorAll('tbody tr')].map(r => Object.fromEntries(
        [...r.cells].map((c, i) => [t.tHead.rows[0].cells[i].textContent, c.textContent]))))(
        document.querySelector('table.money'))""")
    return {row["Policy"]: row for row in rows}


def best(rows):
    """What the table must say: of each policy the row with the largest net, match prefix."""
    out = {}
    for row in rows:
        label = row["policy"] + (f"/{row['order']}" if row["policy"] in
                                 ("lru", "lfu", "sieve") else "")
        if row["match"] == "prefix" and row.get("net_per_hour"):
            more = float(row["net_per_hour"]) - float(out.get(label, row)["net_per_hour"])
            if label not in out or more > 1e-5 * abs(float(row["net_per_hour"])):
                out[label] = row
    return out


def dollars(cell):
    return float(cell.replace("$", "").replace("\u2212", "-").replace(",", ""))


def in_hours(cell):
    amount, unit = cell.split("\xa0")
    return float(amount) * {"d": 24, "h": 1, "min": 1 / 60, "s": 1 / 3600, "ms": 1 / 3.6e6,
                            "\u00b5s": 1 / 3.6e9}[unit]


def check_money(page, rows):
    shown, wanted = money(page), best(rows)
    assert wanted and set(wanted) == set(shown)
    for label, row in wanted.items():
        cells = shown[label]
        assert dollars(cells["Net"]) == pytest.approx(float(row["net_per_hour"]), abs=0.0051)
        assert dollars(cells["Saved"]) == pytest.approx(float(row["saved_per_hour"]), abs=0.0051)
        assert dollars(cells["Cost"]) == pytest.approx(float(row["cost_per_hour"]), abs=0.0051)
        gb_s, hours = cells["Break-even bandwidth"].split()[0], in_hours(cells["Residency"])
        assert float(gb_s) * 1e9 == pytest.approx(float(row["break_even_bandwidth"]), rel=6e-3)
        assert hours == pytest.approx(float(row["break_even_residency"]) / 3600, rel=6e-3)
        assert cells["Pays most at"].replace(",", "") == row["capacity"]


def check_read_out(page, rows, key, capacity):
    """Of the smallest capacity, where what is written wears the tier out, and of the largest, which
    is replaced when its years are over; with prices at which a cent is little."""
    page.run("document.querySelector('#savings .chart').focus()")
    page.call("Input.dispatchKeyEvent", type="keyDown", key=key)
    shown = page.run("[...document.querySelectorAll('#savings .readout tbody tr')].map(r =>"
                     " [...r.cells].map(c => c.textContent))")
    wanted = {r["policy"] + (f"/{r['order']}" if r["order"] != "-" else ""): r for r in rows
              if r["match"] == "prefix" and r["capacity"] == str(capacity)}
    assert {cells[0] for cells in shown} == set(wanted)
    for label, *cells in shown:
        for cell, column in zip(cells, ("saved_per_hour", "cost_per_hour", "net_per_hour")):
            assert dollars(cell) == pytest.approx(float(wanted[label][column]), rel=2e-5,
                                                  abs=0.0051), (label, column)


def slide(page, name, value, log=True):
    """Moves a slider as a hand would: what is shown comes from the event."""
    page.run(f"""(s => {{ s.value = {f'Math.log({value})' if log else value};
        s.dispatchEvent(new Event('input', {{bubbles: true}})); }})(
        document.querySelector('.sliders input[name={name}]'))""")


def test_sliders_compute_what_the_command_computes(browser, report, tmp_path):
    page = Page(browser).open(report[0])
    check_money(page, report[1])
    line = page.run("document.querySelector('#savings .line').getAttribute('d')")
    slide(page, "price", 7.5)
    slide(page, "mfu", 0.3, log=False)
    slide(page, "storage", 9e5)
    slide(page, "years", 2)
    table = tmp_path / "table.csv"
    given = dict(zip(EVERYTHING[::2], EVERYTHING[1::2]))
    given.update({"--gpu": "h100,price=7.5,mfu=0.3",
                  "--cost-tier": "nvme,writes=2e7,price=9e5,years=2"})
    optimize(report[0].parent / "trace.jsonl", *(x for pair in given.items() for x in pair),
             "--csv", table)
    with open(table, encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    check_money(page, rows)
    sizes = sorted(int(r["capacity"]) for r in rows if r["capacity"] != "unlimited")
    check_read_out(page, rows, "Home", sizes[0])
    check_read_out(page, rows, "End", sizes[-1])
    assert page.run("document.querySelector('#savings .line').getAttribute('d')") != line
    saved = {k: dollars(v["Saved"]) for k, v in money(page).items()}
    slide(page, "scale", 10)
    assert {k: dollars(v["Saved"]) for k, v in money(page).items()} != saved
    page.run("document.querySelector('#savings button').click()")
    check_money(page, report[1])
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


def test_what_it_points_to_is_there(browser, report):
    page = Page(browser).open(report[0])
    text = page.run("[...document.querySelectorAll('details.what')].map(d => d.textContent).join()")
    named = set(re.findall("docs/using/optimizer.md, \u201c(.*?)\u201d", text))
    assert len(named) >= 4
    document = (ROOT / "docs" / "using" / "optimizer.md").read_text(encoding="utf-8")
    assert named <= set(re.findall("^## (.*)$", document, re.MULTILINE))


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


ONE = '{"timestamp": 5, "hash_ids": [1, 2]}\n'
WRITES = "".join('{"instance_id": "i", "trace_id": "t", "timestamp_us": %d, "keys": [%d]}\n' % (i, i)
                 for i in range(20))
LITTLE = {
    "one request": (ONE, []),
    "one capacity": (sessions(40), ["--capacity", "30", "--match", "prefix,any,stream,window:2"]),
    "nothing but the infinite": (sessions(40), ["--policy", "infinite"]),
    "nothing but the unlimited": (sessions(40), ["--policy", "lru", "--capacity", "unlimited"]),
    "nothing is looked up": (WRITES, ["--format", "kvcm-schema"]),
    "all at one time": (ONE * 9, []),
    "blocks with sizes": ("time,key,size\n" + "".join(
        f"{i},{i * i % 61},{4096 + i * i % 61}\n" for i in range(400)), ["--tier", "m:64KiB"]),
    "times to live": (sessions(80), ["--policy", "ttl,lru", "--ttl", "2s,1min"]),
    "every policy": (sessions(200), ["--policy", "lru,fifo,mru,lfu,sieve,s3fifo,s3fifo-lcs,arc,"
                                     "leaf-lru,sampled-lru,kvcm-lru,infinite,belady",
                                     "--order", "rev,fwd"]),
}


@pytest.mark.parametrize("what", LITTLE)
def test_reports_of_little_and_of_much(browser, tmp_path, what):
    text, args = LITTLE[what]
    trace, page = tmp_path / "trace.jsonl", tmp_path / "report.html"
    trace.write_text(text)
    optimize(trace, *args, "--html", page)
    for width in (1280, 360):
        opened = Page(browser, width).open(page)
        assert opened.problems == []
        assert opened.run("document.documentElement.scrollWidth") <= width
        assert opened.run("document.querySelectorAll('main > section').length") >= 2
        drawn = opened.run("[...document.querySelectorAll('svg')].map(s => s.outerHTML).join('')")
        assert "NaN" not in drawn and "undefined" not in drawn and "Infinity" not in drawn
        assert "undefined" not in opened.run("document.body.innerText")
