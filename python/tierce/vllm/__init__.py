# SPDX-License-Identifier: Apache-2.0
"""Tierce for vLLM: `kv_connector="TierceConnector", kv_connector_module_path="tierce.vllm"`, or as a tier
of vLLM's own offloading: `"type": "TierceTier", "module_path": "tierce.vllm"`. For outputs of multimodal encoders:
`ec_connector="TierceECConnector", ec_connector_module_path="tierce.vllm"`."""

__all__ = ["TierceConnector", "TierceECConnector", "TierceTier"]


def __getattr__(name):
    # Only the modules that require vLLM import it: tracker.py works without vLLM.
    if name == "TierceConnector":
        from .connector import TierceConnector

        return TierceConnector
    if name == "TierceTier":
        from .tier import TierceTier

        return TierceTier
    if name == "TierceECConnector":
        from .encoder import TierceECConnector

        return TierceECConnector
    raise AttributeError(name)
