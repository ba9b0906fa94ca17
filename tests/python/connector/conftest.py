# SPDX-License-Identifier: Apache-2.0
"""For all tests of the connector."""

import logging
import sys

import pytest


@pytest.fixture(scope="session", autouse=True)
def models_are_inspected_here():
    """vLLM inspects the class of a model in another process, unless its cache knows it, which would import everything again."""
    registry = sys.modules.get("vllm.model_executor.models.registry")
    if registry is not None:
        registry._run_in_subprocess = lambda inspect: inspect()


@pytest.fixture(autouse=True)
def log_reaches_caplog(monkeypatch):
    """A connector that another test of this process has opened gave the log vLLM's handlers alone."""
    monkeypatch.setattr(logging.getLogger("tierce"), "propagate", True)
