# SPDX-License-Identifier: Apache-2.0
"""Tierce below LMCache: `"type": "native_plugin", "module_path": "tierce.lmcache", "class_name": "TierceClient"`. See
docs/using/lmcache.md."""

from .native_client import TierceClient

__all__ = ["TierceClient"]
