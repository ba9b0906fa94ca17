# SPDX-License-Identifier: Apache-2.0
"""A headless Chromium, driven over its DevTools protocol through two pipes."""

import base64
import json
import os
import select
import shutil
import subprocess
import time

import pytest

ANSWER_SECONDS = 60  # of a busy machine
NAMES = ("chromium", "chromium-browser", "google-chrome")


def find_chromium():
    """The path of a browser, or None."""
    return next((p for p in map(shutil.which, NAMES) if p), None)


class Browser:
    """One browser with a profile of its own; `with` ends it."""

    def __init__(self, folder):
        commands, self._to = os.pipe()
        self._from, answers = os.pipe()
        # The browser reads from 3 and writes to 4. (dash knows no descriptors above 9.)
        script = f'exec "$0" "$@" 3<&{commands} 4>&{answers}'
        self._process = subprocess.Popen(
            ["/bin/bash", "-c", script, find_chromium(), "--headless=new", "--no-sandbox",
             "--disable-gpu", "--disable-dev-shm-usage", "--disable-background-networking",
             "--no-first-run", "--hide-scrollbars", f"--user-data-dir={folder}",
             "--remote-debugging-pipe", "about:blank"],
            pass_fds=(commands, answers), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL, start_new_session=True)
        os.close(commands)
        os.close(answers)
        self._waiting, self._last, self.events = b"", 0, []
        self._targets = []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        try:
            self.call("Browser.close")
            self._process.wait(10)
        except (OSError, EOFError, TimeoutError, subprocess.TimeoutExpired):
            os.killpg(self._process.pid, 9)
            self._process.wait()
        os.close(self._to)
        os.close(self._from)

    def open_tab(self):
        """The id of a new tab."""
        self._targets.append(self.call("Target.createTarget", url="about:blank")["targetId"])
        return self._targets[-1]

    def close_tabs(self):
        """A tab that stays open keeps polling: the manager's page fetches updates."""
        while self._targets:
            self.call("Target.closeTarget", targetId=self._targets.pop())
        self.events.clear()

    def _message(self, deadline):
        while b"\0" not in self._waiting:
            if not select.select([self._from], [], [], max(0, deadline - time.monotonic()))[0]:
                raise TimeoutError("the browser does not answer")
            part = os.read(self._from, 1 << 20)
            if not part:
                raise EOFError("the browser has ended")
            self._waiting += part
        text, self._waiting = self._waiting.split(b"\0", 1)
        return json.loads(text)

    def call(self, method, session=None, **params):
        """The result of a method; events that come before it are kept."""
        self._last += 1
        message = {"id": self._last, "method": method, "params": params}
        if session is not None:
            message["sessionId"] = session
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self._to, data):]
        return self._until(lambda m: m.get("id") == self._last)

    def _until(self, matches):
        deadline = time.monotonic() + ANSWER_SECONDS
        while True:
            message = self._message(deadline)
            if "method" in message:
                self.events.append(message)
            if matches(message):
                if "error" in message:
                    raise RuntimeError(message["error"]["message"])
                return message.get("result", message)

    def wait_for(self, method, session):
        """The first event of that name, of those that came already or are to come."""
        def matches(event):
            return event.get("method") == method and event.get("sessionId") == session
        found = next((e for e in self.events if matches(e)), None)
        return found or self._until(matches)


class Page:
    """A tab. `problems` are errors of the console and exceptions, `requests` all addresses that
    it asked for, `blocked` how many of these the page's own policy stopped."""

    def __init__(self, browser, width=1280, height=900, dark=False, scripts=True):
        self._browser = browser
        self._session = browser.call("Target.attachToTarget", targetId=browser.open_tab(),
                                     flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")
        self.resize(width, height)
        self.call("Emulation.setEmulatedMedia", features=[
            {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}])
        self.call("Emulation.setScriptExecutionDisabled", value=not scripts)

    def call(self, method, **params):
        return self._browser.call(method, session=self._session, **params)

    def resize(self, width, height=900):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height,
                  deviceScaleFactor=1, mobile=width < 600)

    def open(self, where):
        """Loads a file, or an address of HTTP."""
        where = str(where)
        self._browser.events.clear()
        self.call("Page.navigate", url=where if where.startswith("http://")
                  else f"file://{os.path.abspath(where)}")
        self._browser.wait_for("Page.loadEventFired", self._session)
        return self

    def run(self, expression):
        """The value of a JavaScript expression."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True,
                           awaitPromise=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(json.dumps(answer["exceptionDetails"]))
        return answer["result"].get("value")

    def html(self):
        """The document as it stands, without a script's help."""
        root = self.call("DOM.getDocument", depth=0)["root"]["nodeId"]
        return self.call("DOM.getOuterHTML", nodeId=root)["outerHTML"]

    def _events(self, method):
        return [e["params"] for e in self._browser.events
                if e["method"] == method and e.get("sessionId") == self._session]

    @property
    def problems(self):
        logged = [e["entry"]["text"] for e in self._events("Log.entryAdded")
                  if e["entry"]["level"] in ("error", "warning")]
        thrown = [e["exceptionDetails"]["text"] for e in self._events("Runtime.exceptionThrown")]
        said = [e["type"] for e in self._events("Runtime.consoleAPICalled")]
        return logged + thrown + said

    @property
    def requests(self):
        return [e["request"]["url"] for e in self._events("Network.requestWillBeSent")]

    @property
    def blocked(self):
        return sum(e.get("blockedReason") == "csp" for e in self._events("Network.loadingFailed"))

    def picture(self, path, clip=None):
        """A PNG of the page, or of the element that a selector names."""
        options = {"format": "png", "captureBeyondViewport": True}
        box = self.run(f"(() => {{ const b = document.querySelector({json.dumps(clip or 'html')})"
                       ".getBoundingClientRect(); return [b.left + scrollX, b.top + scrollY,"
                       " b.width, b.height]; })()")
        options["clip"] = dict(zip(("x", "y", "width", "height"), box), scale=1)
        with open(path, "wb") as file:
            file.write(base64.b64decode(self.call("Page.captureScreenshot", **options)["data"]))


@pytest.fixture(scope="module")
def browser_process(tmp_path_factory):
    with Browser(tmp_path_factory.mktemp("profile")) as made:
        yield made


@pytest.fixture
def browser(browser_process):
    """The module's browser. Tabs that a test opens are closed at its end."""
    yield browser_process
    browser_process.close_tabs()
