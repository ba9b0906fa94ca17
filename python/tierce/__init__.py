# SPDX-License-Identifier: Apache-2.0
"""Tierce: a tiered KV-cache store for LLM engines.

``tierce.vllm.TierceConnector`` is the connector for vLLM; ``tierce._core`` is the library itself.
"""

from tierce._core import Error, version

__all__ = ["Error", "version"]
__version__ = version()
