# SPDX-License-Identifier: Apache-2.0
"""The manager's web page in a real browser: its content, and that it sends no request to other
hosts."""

import base64
import hashlib
import json
import re
import sys
import time
from pathlib import Path

import pytest

from browser import ANSWER_SECONDS, Page, browser, browser_process, find_chromium

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "system"))

from manager_process import Http, Manager  # noqa: E402

HOSTILE = "</script><img src=x onerror=\"document.title='run'\">&amp;<!--"
HOSTILE_STORAGE = "<script>'\"><b><!--"  # a part of URIs, which may have less
HOSTILE_MORE = ["javascript:document.title='run'", "' onmouseover='document.title=1' x='",
                "<svg onload=\"document.title='run'\">", "{{1}}${document.title='run'}`"]
SECTIONS = ["groups", "autopilot", "storages", "instances", "workers", "work", "calls"]
SPECS = [{"name": "tp0", "size": 1024}, {"name": "tp1", "size": 1024}]

if find_chromium() is None:
    pytest.skip("chromium is not installed, and the page needs a browser to be looked at",
                allow_module_level=True)


def register(api, instance):
    reply = api.call("meta", "RegisterInstance", instance_group="default", instance_id=instance,
                     block_size=4, model_deployment={"model_name": "m", "dtype": "bf16"},
                     location_spec_infos=SPECS)
    assert reply["header"]["status"]["code"] == "OK", reply


def start(api, instance, keys, seconds=30):
    return api.call("meta", "StartWriteCache", instance_id=instance, block_keys=keys,
                    write_timeout_seconds=seconds)


def store(api, instance, keys):
    started = start(api, instance, keys)
    reply = api.call("meta", "FinishWriteCache", instance_id=instance,
                     write_session_id=started["write_session_id"],
                     success_blocks={"offset": len(started["locations"])})
    assert reply["header"]["status"]["code"] == "OK", reply


def locate(api, instance, keys, query="QT_PREFIX_MATCH", **fields):
    api.call("meta", "GetCacheLocation", instance_id=instance, block_keys=keys, query_type=query,
             **fields)


@pytest.fixture(scope="module")
def manager(tmp_path_factory):
    """With two instances, one of a hostile name, an unwell storage of a hostile name, an open
    session, an error, and one that is asked until there are enough samples for the plots."""
    manager = Manager(tmp_path_factory.mktemp("manager"))
    api = Http(manager)
    reply = api.call("admin", "AddStorage", storage={
        "global_unique_name": HOSTILE_STORAGE, "is_available": True,
        "nfs": {"root_path": "/nowhere/at/all/", "key_count_per_file": 8}})
    assert reply["header"]["status"]["code"] == "OK", reply
    for name in ("plain", HOSTILE):
        register(api, name)
        store(api, name, list(range(1, 31)))
    locate(api, "plain", list(range(1, 41)))  # 30 of 40
    locate(api, "plain", [900, 1, 901, 2], "QT_BATCH_GET")  # 2 of 4
    locate(api, "plain", list(range(21, 41)), "QT_REVERSE_ROLL_SW_MATCH", sw_size=5)  # 5 of 5
    start(api, "plain", [101, 102, 103], 600)
    api.call("meta", "GetInstanceInfo", instance_id="nobody")
    register(api, "busy")
    until(lambda: locate(api, "busy", [1]) or numbers(manager)["last"] >= 3)
    yield manager
    assert manager.stop() == 0


def until(check):
    deadline = time.monotonic() + ANSWER_SECONDS
    while not check():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def numbers(manager, since=0):
    status, body = manager.get(f"/api/page?since={since}", "admin_http")
    assert status == 200
    return json.loads(body)


def address(manager):
    return f"http://127.0.0.1:{manager.ports['admin_http']}"


def load(browser, manager, **options):
    page = Page(browser, **options).open(address(manager) + "/")
    until(lambda: page.run("document.body.dataset.at !== undefined"))
    return page


def cells(page, section, row):
    """The texts of a row by its columns' heads."""
    found = page.run("""(() => { const table = document.querySelector('#%s table');
        const row = [...table.tBodies[0].rows].find(r => r.cells[0].textContent === %s);
        return row && [...table.tHead.rows[0].cells].map((head, i) =>
            [head.textContent, row.cells[i].textContent]); })()""" % (section, json.dumps(row)))
    assert found, row
    return dict(found)


@pytest.mark.parametrize("width, dark", [(1280, False), (360, True),
                                         *(pytest.param(*other, marks=pytest.mark.long)
                                           for other in ((1280, True), (360, False)))])
def test_it_loads_and_asks_nobody_else(browser, manager, width, dark):
    page = load(browser, manager, width=width, dark=dark)
    assert page.problems == []
    assert page.requests[:4] == [address(manager) + path for path in
                                 ("/", "/page.css", "/page.js", "/api/page?since=0")]
    assert all(r.startswith(address(manager) + "/api/page?since=") for r in page.requests[4:])
    assert page.run("document.documentElement.scrollWidth") <= width
    assert page.run("[...document.querySelectorAll('main > section')].map(s => s.id)") == SECTIONS
    over = page.run("""[...document.querySelectorAll('main *')].filter(e =>
        e.getBoundingClientRect().right > innerWidth + 0.5).map(e => e.outerHTML.slice(0, 90))""")
    assert over == []
    paper, ink = page.run("[getComputedStyle(document.body).backgroundColor,"
                          " getComputedStyle(document.body).color]")
    lightness = [sum(map(int, re.findall(r"\d+", color)[:3])) for color in (paper, ink)]
    assert (lightness[0] < lightness[1]) == dark


def test_every_section_has_data(browser, manager):
    page = load(browser, manager)
    plots = page.run("""[...document.querySelectorAll('.plot')].filter(p => !p.hidden).map(p => [
        p.querySelector('.caption').textContent,
        [...p.querySelectorAll('svg path.line')].length])""")
    assert [name for name, lines in plots if lines > 0] == [
        "Share of the quota in use", "Hit rate", "Reclaim and deletion, a second", "Calls a second"]
    for section in ("storages", "instances", "calls"):
        assert page.run(f"document.querySelectorAll('#{section} tbody tr').length") >= 2
    assert page.run("document.querySelectorAll('#groups .group').length") == 1
    assert page.run("document.querySelectorAll('#groups .meter').length") == 2
    axes = page.run("[...document.querySelectorAll('.plot:not([hidden]) svg')].map(s =>"
                    " [...s.querySelectorAll('text')].some(t => t.textContent.endsWith(' ago')))")
    assert all(axes)


def test_letters_are_large_enough(browser, manager):
    page = load(browser, manager, width=360)
    small = page.run("""[...document.querySelectorAll('body *')].filter(e => [...e.childNodes].some(
        n => n.nodeType === 3 && n.data.trim()) && !['SCRIPT', 'STYLE', 'NOSCRIPT'].includes(e.tagName)
        && parseFloat(getComputedStyle(e).fontSize) < 13.9).map(e => e.outerHTML.slice(0, 90))""")
    assert small == []


def metrics(manager):
    """{(name, its tags): value} of GetMetrics."""
    reply = Http(manager).call("admin", "GetMetrics")
    return {(m["metric_name"], tuple(sorted((t["tag_key"], t["tag_value"])
                                            for t in m["metric_tags"]))):
            float(m["metric_value"].get("int_value", m["metric_value"].get("float_value", 0)))
            for m in reply["metrics"]}


def test_the_numbers_are_those_of_the_metrics(browser, manager):
    page = load(browser, manager)
    told = metrics(manager)
    for instance in ("plain", HOSTILE):
        shown = cells(page, "instances", instance)
        tags = (("instance_group", "default"), ("instance_id", instance))
        name = "cache_manager_instance."
        found, asked = (int(told[name + f"{what}_key_count", tags]) for what in ("found", "asked"))
        assert int(shown["Blocks"]) == told[name + "key_count", tags] == 30
        assert shown["Keys found"] == (f"{found} of {asked}" if asked else "0")
        assert told[name + "byte_size", tags] == 30 * 2048
        assert shown["Bytes"] == "60\xa0KiB"
    assert cells(page, "instances", "plain")["Hit rate"] == f"{100 * 37 / 49:.1f}\xa0%"
    assert cells(page, "instances", HOSTILE)["Hit rate"] == "\u2013"
    for call in ("StartWriteCache", "GetCacheLocation", "GetInstanceInfo"):
        shown = cells(page, "calls", call)
        values = {name: value for (name, tags), value in told.items()
                  if ("api_name", call) in tags and value > 0}
        assert int(shown["Calls"]) == values["service.query_counter"]
        assert int(shown["Errors"]) == values.get("service.error_counter", 0)
    group = (("instance_group", "default"),)
    text = page.run("document.querySelector('#groups').textContent")
    assert told["cache_manager_group.serving_bytes", group] == 120 * 1024
    assert told["cache_manager_group.writing_bytes", group] == 6 * 1024
    assert "serving 120\xa0KiB" in text and "writing 6\xa0KiB" in text
    assert "1 open, 0 expired" in text
    shown = next(g for g in numbers(manager)["groups"] if g["name"] == "default")["curve"]
    assert 0 < shown["hit_ratio"] < 1 and shown["next_gib_hit_ratio"] == 0  # all of it fits
    assert re.search(r"another GiB\+0\.0\xa0% to \d+\.\d\xa0% of tokens", text), text
    assert "126\xa0KiB of 9.31\xa0GiB" in text  # of the kind's own quota


def test_storages_say_how_they_are(browser, manager):
    until(lambda: all(s["probe_age_ms"] is not None for s in numbers(manager)["storages"]))
    until(lambda: [s["is_well"] for s in numbers(manager)["storages"]].count(False) == 1)
    page = load(browser, manager)
    well, unwell = cells(page, "storages", "nfs_01"), cells(page, "storages", HOSTILE_STORAGE)
    assert "\u25cf" not in well["Health"] and well["Health"] == "well"
    assert well["Last probe"].endswith("s") and "ago" in well["Last probe"]
    assert well["Medium used"].endswith("%") and well["Serving"] == "120\xa0KiB"
    assert unwell["Health"].startswith("unwell ") and "No such file" in unwell["Health"]
    assert unwell["Medium used"] == "\u2013"


def test_workers_of_the_directory(browser, manager):
    api = Http(manager)
    name = f"w{HOSTILE}"
    joined = api.call("meta", "JoinDirectory", worker=name, instance_group="default", transfer_address="h:1",
                      transfer_tls=True)
    worker = {"instance_group": "default", "session": joined["session"], "slot": joined.get("slot", 0)}
    keys = [1, 2, 3, 4]
    for kind, more in (("RK_BEGIN", {}), ("RK_CONTENTS", {"keys": keys, "tiers": [0, 1]}), ("RK_END", {"first": 0})):
        sent = api.call("meta", "ReportChunks", kind=kind, sending=1, load=250, models="m", **worker, **more)
        assert sent["answer"] == "RA_DONE"
    shown = cells(load(browser, manager), "workers", name)
    assert (shown["Group"], shown["Models"], shown["Contents"]) == ("default", "m", "complete")
    assert (shown["Chunks"], shown["In tiers"]) == ("2", "memory 1, disk 1")
    assert shown["Serves at"] == "h:1 (TLS)" and shown["Load"].startswith("25") and shown["Last report"].endswith("ago")
    api.call("meta", "LeaveDirectory", **worker)
    assert "No engine or node" in load(browser, manager).run("document.querySelector('#workers').textContent")


def test_reports_of_bad_places_are_counted(browser, manager):
    api = Http(manager)
    bad = {"block_key": 1, "location_spec_name": "tp0", "uri": "file://nfs_01/none", "reason": "RR_SHORT"}
    before = numbers(manager)["reports"]
    assert set(before) == {"missing", "short", "damaged", "identity", "retracted"}
    reply = api.call("meta", "ReportCache", instance_id="plain", reports=[bad, bad])
    assert (reply["dropped_locations"], reply["absent_reports"]) == ("0", "2"), reply
    assert numbers(manager)["reports"] == {**before, "short": before["short"] + 2}
    page = load(browser, manager)
    assert f"short{before['short'] + 2}" in page.run("document.querySelector('#work .pairs').textContent")


def test_a_storage_that_is_unmanaged_is_not_called_well(browser, manager):
    api = Http(manager)
    moon = {"global_unique_name": "moon", "mooncake": {"local_hostname": "h"}}
    assert api.call("admin", "AddStorage", storage=moon)["header"]["status"]["code"] == "OK"
    try:
        page = load(browser, manager)
        shown = cells(page, "storages", "moon")
        assert shown["Health"] == "unmanaged only its clients reach it: neither probed nor deleted in"
        assert (shown["Last probe"], shown["Medium used"], shown["Capacity"]) == ("\u2013",) * 3
        assert "1 unmanaged, " in page.run("document.querySelector('[data-fact=well]').textContent")
        limited = {**moon, "capacity_bytes": 1000, "watermark_percent": 70}
        assert api.call("admin", "UpdateStorage", storage=limited)["header"]["status"]["code"] == "OK"
        page = load(browser, manager)
        shown = cells(page, "storages", "moon")
        assert "limits an unmanaged storage" in shown["Health"]
        assert shown["Capacity"] == "1,000\xa0B reclaimed above 700\xa0B"
        drained = api.call("admin", "DrainStorage", storage_unique_name="moon", action="DRAIN_START")
        assert drained["state"] == "drained"
        assert cells(load(browser, manager), "storages", "moon")["Health"].endswith("empty: it can be removed")
    finally:
        assert api.call("admin", "RemoveStorage", storage_unique_name="moon")["header"]["status"]["code"] == "OK"


def test_names_are_text(browser, manager):
    page = load(browser, manager)
    assert page.run("document.title").endswith("tierce manager")
    assert page.run("document.querySelectorAll('main img, main b, main script').length") == 0
    assert page.run("document.querySelectorAll('script').length") == 1
    assert page.problems == [] and page.blocked == 0


def test_hostile_names_do_nothing(browser, tmp_path):
    """Of groups, storages, instances and the node, over phone and desk, moved over and focused."""
    manager = Manager(tmp_path, f"--elector.node_id={HOSTILE_MORE[2]}")
    api = Http(manager)
    for name in (HOSTILE, *HOSTILE_MORE):
        group = {**Manager.usual_startup(tmp_path / "nfs")["instance_group"], "name": name,
                 "quota": {"capacity": 1000000}}
        config = group["cache_config"]
        config["data_storage_strategy"] = config.pop("cache_prefer_strategy")
        reply = api.call("admin", "CreateInstanceGroup", instance_group=group)
        assert reply["header"]["status"]["code"] == "OK", reply
        reply = api.call("meta", "RegisterInstance", instance_group=name, instance_id=f"i{name}",
                         block_size=4, model_deployment={"model_name": name, "dtype": "bf16"},
                         location_spec_infos=SPECS)
        assert reply["header"]["status"]["code"] == "OK", reply
        api.call("admin", "AddStorage", storage={
            "global_unique_name": name, "nfs": {"root_path": f"/nowhere/{name}/",
                                                "key_count_per_file": 8}})
    for width in (360, 1280):
        page = load(browser, manager, width=width)
        text = page.run("document.body.textContent")
        for name in (HOSTILE, *HOSTILE_MORE):
            assert text.count(name) >= 2, name  # the group's, the instance's
        for event in ("mouseover", "click", "focus", "load", "error"):
            page.run("document.querySelectorAll('body *').forEach(e => e.dispatchEvent("
                     f"new Event('{event}', {{bubbles: true}})))")
        assert page.run("document.title").endswith("tierce manager")
        assert page.run("document.querySelectorAll('main img, main b, main script, [onmouseover],"
                        " [onload], [onerror], a[href]').length") == 0
        assert page.problems == [] and page.blocked == 0
    assert manager.stop() == 0


def test_it_follows_what_happens(browser, manager):
    page = load(browser, manager)
    api = Http(manager)
    register(api, "later")
    store(api, "later", list(range(1, 8)))
    until(lambda: "later" in page.run("document.querySelector('#instances').textContent"))
    assert cells(page, "instances", "later")["Blocks"] == "7"
    api.call("meta", "RemoveCache", instance_id="later", block_keys=list(range(1, 8)))
    until(lambda: cells(page, "instances", "later")["Blocks"] == "0")


def test_samples_are_asked_for_once(manager):
    whole = numbers(manager)
    assert len(whole["samples"]) == whole["last"]
    assert numbers(manager, since=whole["last"] - 1)["samples"][:1] == whole["samples"][-1:]
    assert [s["at_us"] for s in whole["samples"]] == sorted(s["at_us"] for s in whole["samples"])
    assert all(len(s["groups"]) == 1 for s in whole["samples"][1:])


def test_the_cursor_follows_keys(browser, manager):
    page = load(browser, manager)
    page.run("document.querySelector('#calls .chart').focus()")
    for key in ("End", "ArrowLeft", "ArrowRight"):
        page.call("Input.dispatchKeyEvent", type="keyDown", key=key)
    said = page.run("document.querySelector('#calls .said').textContent")
    assert re.fullmatch(r"\d\d:\d\d:\d\d: calls [\d.,]+; errors [\d.,]+", said), said


def test_it_says_when_the_manager_is_gone(browser, tmp_path):
    manager = Manager(tmp_path)
    page = load(browser, manager)
    assert manager.stop() == 0
    until(lambda: "does not answer" in page.run("document.getElementById('state').textContent"))


def test_nothing_may_be_loaded_from_elsewhere(browser, manager):
    page = load(browser, manager)
    page.run("""(() => { const image = document.createElement('img');
        image.src = 'http://127.0.0.1:9/x.png'; document.body.append(image); })()""")
    until(lambda: page.run("1") and page.blocked == 1)


def test_with_authentication(browser, tmp_path):
    tokens = tmp_path / "tokens"
    digest = hashlib.sha256(b"secret-a").hexdigest()
    team = hashlib.sha256(b"secret-b").hexdigest()
    tokens.write_text(f"admin ops {digest}\nread team {team} default\n")
    tokens.chmod(0o600)
    manager = Manager(tmp_path, "--auth.required=true", f"--auth.token_file={tokens}")
    assert manager.get("/api/page", "admin_http")[0] == 401
    reply = Http(manager, {"Authorization": "Bearer secret-a"}).call(
        "admin", "AddAccount", user_name="jürgen", password="pässword", role="ROLE_USER")
    assert reply["header"]["status"]["code"] == "OK", reply

    def shown(page, what):
        return page.run(f"!document.getElementById('{what}').hidden")

    def sign_in(page, kind, **fields):
        page.run(f"document.querySelector('#kind input[value={kind}]').click()")
        for name, value in fields.items():
            page.run(f"document.getElementById('{name}').value = {json.dumps(value)}")
        page.run("document.querySelector('#login button').click()")

    page = Page(browser, width=360).open(address(manager) + "/")
    until(lambda: shown(page, "login"))
    assert not shown(page, "main")
    sign_in(page, "token", token="wrong")
    until(lambda: "not accepted" in page.run("document.getElementById('refused').textContent"))
    sign_in(page, "token", token="secret-a")
    until(lambda: shown(page, "main"))
    assert not shown(page, "login")
    assert page.run("document.cookie + localStorage.length + sessionStorage.length") == "00"
    page.open(address(manager) + "/")  # what was typed is gone with the page
    until(lambda: shown(page, "login"))
    sign_in(page, "name", name="jürgen", password="pässword")
    until(lambda: shown(page, "main"))
    assert base64.b64encode("jürgen:pässword".encode()).decode() not in page.html()
    # An account of one group: its group and storage, and no numbers of all groups.
    page.open(address(manager) + "/")
    until(lambda: shown(page, "login"))
    sign_in(page, "token", token="secret-b")
    until(lambda: shown(page, "main") and page.run("document.querySelectorAll('.group').length") == 1)
    assert page.run("document.querySelector('.group').dataset.group") == "default"
    assert cells(page, "storages", "nfs_01")["Serving"] == "\u2013"
    for section in ("calls", "work"):
        until(lambda: "Shown to accounts of all groups." in page.run(
            f"document.getElementById('{section}').textContent"))
    assert page.run("document.querySelector('[data-fact=calls]')") is None
    assert manager.stop() == 0
