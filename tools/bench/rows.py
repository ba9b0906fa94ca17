# SPDX-License-Identifier: Apache-2.0
"""Rows as `tierce bench --csv` prints them."""

HEADER = "bench,case,unit,value,limit,ratio,goal,peer,peer_value,value_min,value_max," \
         "limit_min,limit_max"


def number(value):
    return "" if value is None else f"{value:.4g}"


def row(bench, case, unit, value, limit, goal=None, peer="", peer_value=None):
    """A row in which a smaller value is better: the ratio is limit to value."""
    ratio = limit / value if limit is not None else None
    return ",".join([bench, case, unit, number(value), number(limit), number(ratio), number(goal),
                     peer, number(peer_value), "", "", "", ""])
