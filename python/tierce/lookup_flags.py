# SPDX-License-Identifier: Apache-2.0
"""Flags of `View.lookup`: those of TIERCE_LOOKUP_* in include/tierce/engine.h."""

LOOKUP_PIN, LOOKUP_MEMORY_ONLY, LOOKUP_NO_WAIT, LOOKUP_AGAIN = 1, 2, 4, 8
