# SPDX-License-Identifier: Apache-2.0
"""The outward interfaces are still those of tests/frozen. New parameters, metrics, flags and symbols are
allowed; `tests/frozen/interfaces.py NAME` adds them to the list. A removed or changed part fails."""

import sys
from collections import Counter
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "frozen"))

import interfaces  # noqa: E402


def lost(name):
    """The frozen lines that are no longer there."""
    old = Counter(interfaces.frozen(name))
    assert len(old) > 10
    return list((old - Counter(interfaces.ALL[name]())).elements())


@pytest.mark.parametrize("name", ["symbols", "metrics", "control"])
def test_nothing_is_lost(name):
    assert lost(name) == []


def test_parameters_keep_their_defaults():
    """Choices may be added."""
    new = {tuple(line.split(" | ")[:2]): line.split(" | ") for line in interfaces.parameters()}
    old = [line.split(" | ") for line in interfaces.frozen("parameters")]
    assert len(old) > 100
    for process, name, kind, default, values in old:
        assert (process, name) in new, f"{process} has lost {name}"
        now = new[process, name]
        assert now[2:4] == [kind, default], f"{process} {name}"
        if kind == "choice":
            assert set(values.split(", ")) <= set(now[4].split(", ")), f"{process} {name}"
        else:
            assert values == now[4], f"{process} {name}"


def test_commands_keep_their_flags():
    new = dict(line.split(": ", 1) for line in interfaces.commands())
    old = [line.split(": ", 1) for line in interfaces.frozen("commands")]
    assert len(old) > 15
    for name, words in old:
        assert name in new, f"tierce {name} is gone"
        assert set(words.split()) <= set(new[name].split()), f"tierce {name}"


@pytest.mark.parametrize("name", ["kvcm", "resp", "lm", "manager_http"])
def test_answers_are_the_same_bytes(name):
    assert interfaces.ALL[name]() == interfaces.frozen(name)
