# SPDX-License-Identifier: Apache-2.0
"""Tierce for vLLM: `kv_connector="TierceConnector", kv_connector_module_path="tierce.vllm"`, or as a tier
of vLLM's own offloading: `"type": "TierceTier", "module_path": "tierce.vllm"`."""

__all__ = ["TierceConnector", "TierceTier"]


def __getattr__(name):
    # vLLM is imported only by what needs it: the rules in tracker.py stand without it.
    if name == "TierceConnector":
        from .connector import TierceConnector

        return TierceConnector
    if name == "TierceTier":
        from .tier import TierceTier

        return TierceTier
    raise AttributeError(name)
