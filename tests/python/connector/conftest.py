# SPDX-License-Identifier: Apache-2.0
"""For all tests of the connector."""

import logging

import pytest


@pytest.fixture(autouse=True)
def log_reaches_caplog(monkeypatch):
    """A connector that another test of this process has opened gave the log vLLM's handlers alone."""
    monkeypatch.setattr(logging.getLogger("tierce"), "propagate", True)
