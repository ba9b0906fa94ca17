# SPDX-License-Identifier: Apache-2.0
"""What the system tests share: a small model, prompts, and vLLM engines as child processes."""

import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools" / "demo"))

START_SECONDS = 400  # an engine's whole life on a busy machine


def pytest_configure(config):
    config.addinivalue_line("markers", "long: takes minutes; left out of `make test`")


class Engine:
    """A child process with a vLLM in it; see engine.py."""

    def __init__(self, job):
        environment = {k: v for k, v in os.environ.items() if not k.startswith("TIERCE_")}
        environment["PYTHONPATH"] = os.pathsep.join(
            p for p in (str(ROOT / "python"), environment.get("PYTHONPATH")) if p)
        self.log = open(job.pop("log"), "w+b")
        self.process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("engine.py"))], env=environment,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.log, text=True,
            start_new_session=True)
        self.process.stdin.write(json.dumps(job) + "\n")
        self.process.stdin.flush()

    def rounds(self):
        """The results of all rounds; the process lives on if the job told it to stay."""
        results = []
        for line in self.process.stdout:
            if line.strip() == '"done"':
                return results
            results.append(json.loads(line))
        raise AssertionError("the engine died:\n" + self.text()[-4000:])

    def text(self):
        self.log.seek(0)
        return self.log.read().decode(errors="replace")

    def kill(self):
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.process.wait()

    def finish(self):
        self.process.wait(timeout=START_SECONDS)
        self.kill()


@pytest.fixture(scope="session")
def models(tmp_path_factory):
    """model(seed) -> folder of the small test model with weights of that seed."""
    from make_model import make_model

    made = {}

    def model(seed=7):
        if seed not in made:
            folder = tmp_path_factory.mktemp(f"model{seed}")
            make_model(str(folder), "test", seed)
            made[seed] = str(folder)
        return made[seed]

    return model


@pytest.fixture(scope="session")
def prompts():
    """Five prompts of 700 to 1,000 tokens that share their first 300."""
    source = random.Random(20261121)
    shared = [source.randrange(256) for _ in range(300)]
    return [shared + [source.randrange(256) for _ in range(400 + 75 * i)] for i in range(5)]


@pytest.fixture
def run(models, tmp_path):
    """run(rounds, store, **job) -> (results, engine). Ends every engine it started."""
    engines = []

    def start(rounds, store, seed=7, **job):
        job = {"model": models(seed), "rounds": [[{"prompt_token_ids": p} if isinstance(p, list)
                                                  else p for p in r] for r in rounds],
               "store": store, "log": str(tmp_path / f"engine{len(engines)}.log"), **job}
        engine = Engine(job)
        engines.append(engine)
        results = engine.rounds()
        if not job.get("stay"):
            engine.finish()
        return results, engine

    yield start
    for engine in engines:
        engine.kill()
        engine.log.close()


@pytest.fixture(scope="session")
def expected(models, prompts, tmp_path_factory):
    """The answers of a vLLM without a connector, by seed of the weights."""
    known = {}

    def answers(seed=7):
        if seed not in known:
            engine = Engine({"model": models(seed), "store": None, "rounds": [
                [{"prompt_token_ids": p} for p in prompts]],
                "log": str(tmp_path_factory.mktemp("expected") / "log")})
            known[seed] = engine.rounds()[0]["answers"]
            engine.finish()
            assert len({tuple(a) for a in known[seed]}) > 1, "the model answers alike to everything"
        return known[seed]

    return answers
