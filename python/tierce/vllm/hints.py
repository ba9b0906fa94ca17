# SPDX-License-Identifier: Apache-2.0
"""Hints of clients about the next request of a conversation, in `kv_transfer_params`, or in the payload of an action of
the type `tierce.hint`, version 1, in vLLM's `KvHintsEnvelope`:

- `tierce.session`: "closed" if there is none, "open" if there is one;
- `tierce.returns_in`: seconds until it comes, as far as the client knows;
- `tierce.ttl`: seconds after which it does not come any more.

A request has one hint. The more exact one is taken: closed, then returns_in, then open, then ttl. The envelope is read if
`kv_transfer_params` have no hint. The numbers are those of tierce_session_hint."""

import functools
import logging
import math
from reprlib import repr as shown  # short: clients choose the values

log = logging.getLogger(__name__)

NONE, CLOSED, OPEN, SOON, LATER, TTL = range(6)
SESSION, RETURNS_IN, TIME_TO_LIVE = "tierce.session", "tierce.returns_in", "tierce.ttl"
SOON_S = 60
NO_HINT = NONE, 0
RETURNS_MS_MAX = 2**32 - 1
ACTION, ACTION_VERSION = "tierce.hint", "1"


def seconds(options: dict, name: str) -> float | None:
    """None: not given. Raises ValueError."""
    value = options.get(name)
    if value is None:
        return None
    try:
        is_time = not isinstance(value, bool) and isinstance(value, (int, float)) and math.isfinite(value) and value >= 0
    except OverflowError:  # a whole number beyond all floats
        is_time = False
    if not is_time:
        raise ValueError(f"{name} is {shown(value)}: it must be a number of seconds, at least 0")
    return value


def session_hint(options: dict) -> tuple[int, int]:
    session = options.get(SESSION)
    if session not in (None, "open", "closed"):
        raise ValueError(f'{SESSION} is {shown(session)}: it must be "open" or "closed"')
    returns, lives = seconds(options, RETURNS_IN), seconds(options, TIME_TO_LIVE)
    if session == "closed" or lives == 0:
        return CLOSED, 0
    if returns is not None:
        return SOON if returns <= SOON_S else LATER, int(min(returns * 1000, RETURNS_MS_MAX))
    if session == "open":
        return OPEN, 0
    return TTL if lives is not None else NONE, 0


def envelope_hint(envelope) -> tuple[int, int]:
    """Actions of other types are for other components."""
    for action in envelope.actions if envelope is not None else ():
        if action.action_type != ACTION:
            continue
        if action.action_version != ACTION_VERSION:
            raise ValueError(f"the action {ACTION} has the version {shown(action.action_version)}: it must be {ACTION_VERSION!r}")
        if not isinstance(action.payload, dict):
            raise ValueError(f"the payload of the action {ACTION} is {shown(action.payload)}: it must be an object")
        return session_hint(action.payload)
    return NO_HINT


def read_hint(options: dict, envelope=None) -> tuple[int, int]:
    """The hint of a request, and the time until the next one in ms, 0 if it is not known; none if it is invalid, because a
    request must not fail for it. envelope: a KvHintsEnvelope."""
    try:
        hint = session_hint(options)
        return hint if hint != NO_HINT else envelope_hint(envelope)
    except ValueError as error:
        warn(str(error))
        return NO_HINT


@functools.lru_cache(maxsize=64)  # once for each text
def warn(text: str) -> None:
    log.warning("a request has an invalid hint, which is ignored: %s", text)


@functools.cache
def log_no_hints() -> None:
    log.info("the hints of requests are ignored: the node is of an older version, which has none")
