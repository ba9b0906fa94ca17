# SPDX-License-Identifier: Apache-2.0
"""Tierce for SGLang: `--hicache-storage-backend dynamic` with `"module_path": "tierce.sglang", "class_name":
"TierceStorage"`, and `--unified-cache-external-linker-backend dynamic` with `TierceLinker`. See docs/using/sglang.md."""

__all__ = ["TierceLinker", "TierceStorage"]


def __getattr__(name):
    # Only hicache.py and linker.py require SGLang.
    if name == "TierceLinker":
        from .linker import TierceLinker

        return TierceLinker
    if name == "TierceStorage":
        from .hicache import TierceStorage

        return TierceStorage
    raise AttributeError(name)
