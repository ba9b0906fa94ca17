# SPDX-License-Identifier: Apache-2.0
"""Tierce: a tiered KV-cache store for LLM engines.

``tierce.open`` opens a store for programs of your own; ``tierce.vllm.TierceConnector`` is the connector for vLLM, and
``tierce.sglang`` the storage for SGLang, and ``tierce.tensorrt_llm`` the connector for TensorRT-LLM. ``tierce._core`` is the
library itself, for all of these.
"""

from tierce._core import Error, fingerprint, version
from tierce.prefetch import Prefetch
from tierce.store import Cache, Found, Loaded, Store, open

__all__ = ["Cache", "Error", "Found", "Loaded", "Prefetch", "Store", "fingerprint", "open", "version"]
__version__ = version()
