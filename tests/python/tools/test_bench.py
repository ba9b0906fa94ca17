# SPDX-License-Identifier: Apache-2.0
"""The benchmarks written in Python still run; their measurements are not tested."""

import csv
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "tools" / "bench"))

import python_call  # noqa: E402


def test_calls_are_measured(monkeypatch, capsys):
    monkeypatch.setattr(python_call, "CALLS", 100)
    monkeypatch.setattr(python_call, "ROUNDS", 2)
    python_call.main()
    rows = list(csv.DictReader(capsys.readouterr().out.splitlines()))
    assert len(rows) == 4
    assert all(float(row["value"]) > 0 for row in rows)
