# SPDX-License-Identifier: Apache-2.0
"""tools/bench/policy_traces.py on one small trace: its table, its exit status, and its seed."""

import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
sys.path.append(str(ROOT / "tests" / "system"))
sys.path.append(str(ROOT / "tools" / "bench"))
import policy_traces  # noqa: E402
from manager_process import executable  # noqa: E402

ROW = re.compile(r"\| small \| ([\d,]+) \| (.+) \|")
CELL = re.compile(r"(\d\.\d{4}) → (\d\.\d{4})")
LAST = re.compile(r"The lowest difference is ([+-]\d\.\d{4}): small, (\d+) blocks\.")


def small(r):
    """Documents in use, each with a new question."""
    documents = [r.make(r.tail(4, 1.2, 40)) for _ in range(40)]
    for _ in range(400):
        r.ask(documents[r.rank(len(documents), 0.9)] + r.make(1))


@pytest.fixture
def run(monkeypatch, capsys):
    """Runs the tool on the small trace; returns its exit status and its output."""
    monkeypatch.setitem(policy_traces.TRACES, "small", small)

    def run_with(*options):
        monkeypatch.setattr(sys, "argv", ["policy_traces.py", "--tierce", str(executable()), "--names", "small", *options])
        status = policy_traces.main()
        return status, capsys.readouterr().out
    return run_with


def test_a_table_with_a_row_for_each_trace(run):
    status, output = run()
    head, line, row, empty, last = output.splitlines()
    assert head == "| trace | distinct blocks | 2% | 6% | 15% | 40% |"
    assert line == "|---|---|---|---|---|---|"
    assert empty == ""
    blocks, cells = ROW.fullmatch(row).groups()
    rates = [tuple(map(float, CELL.fullmatch(cell).groups())) for cell in cells.split(" | ")]
    assert len(rates) == len(policy_traces.SHARES)
    assert [lru for lru, _ in rates] == sorted(lru for lru, _ in rates), "lru has more hits in a larger memory"
    lowest, capacity = LAST.fullmatch(last).groups()
    assert float(lowest) == pytest.approx(min(hazard - lru for lru, hazard in rates), abs=1.1e-4)
    capacities = [max(16, int(int(blocks.replace(",", "")) * share)) for share in policy_traces.SHARES]
    assert int(capacity) in capacities
    assert status == (1 if float(lowest) < -policy_traces.LIMIT else 0)


@pytest.mark.parametrize(("loss", "expected"), ((0.009, 0), (0.011, 1)))
def test_the_status_is_1_if_hazard_is_worse_by_more_than_the_limit(run, monkeypatch, loss, expected):
    measured = policy_traces.optimize

    def worse(tierce, path, policies, capacities):
        rates = measured(tierce, path, policies, capacities)
        return {(policy, capacity): rates["lru", capacity] - (loss if policy == "hazard" else 0) for policy, capacity in rates}
    monkeypatch.setattr(policy_traces, "optimize", worse)
    status, output = run()
    assert status == expected
    assert float(LAST.search(output)[1]) == -loss


def test_a_seed_repeats_its_trace_and_its_table(run, tmp_path):
    for name, seed in (("first", 7), ("again", 7), ("other", 8)):
        policy_traces.write(tmp_path / name, "zipf 1.0", seed)
    assert (tmp_path / "first").read_bytes() == (tmp_path / "again").read_bytes()
    assert (tmp_path / "first").read_bytes() != (tmp_path / "other").read_bytes()
    assert run("--seed", "7") == run("--seed", "7")
    assert run("--seed", "7") != run("--seed", "8")
