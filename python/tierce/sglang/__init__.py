# SPDX-License-Identifier: Apache-2.0
"""Tierce for SGLang: `--hicache-storage-backend dynamic` with `"module_path": "tierce.sglang", "class_name":
"TierceStorage"`. See docs/using/sglang.md."""

__all__ = ["TierceStorage"]


def __getattr__(name):
    # Only hicache.py requires SGLang.
    if name == "TierceStorage":
        from .hicache import TierceStorage

        return TierceStorage
    raise AttributeError(name)
