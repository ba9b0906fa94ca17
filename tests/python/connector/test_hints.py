# SPDX-License-Identifier: Apache-2.0
"""Hints of clients (tierce.vllm.hints): values that no client should send."""

import pytest

from tierce.vllm import hints


@pytest.mark.parametrize("options, hint", [
    ({"tierce.returns_in": 1e306}, (hints.LATER, 2**32 - 1)), ({"tierce.returns_in": 10**300}, (hints.LATER, 2**32 - 1)),
    ({"tierce.ttl": 10**400}, hints.NO_HINT), ({"tierce.returns_in": -10**400}, hints.NO_HINT),
    ({"tierce.returns_in": float("inf")}, hints.NO_HINT), ({"tierce.session": ["open"]}, hints.NO_HINT),
    ({"tierce.session": {}, "tierce.ttl": 1}, hints.NO_HINT), ({"tierce.ttl": [1]}, hints.NO_HINT)])
def test_a_request_does_not_fail_for_its_hint(options, hint):
    assert hints.read_hint(options) == hint


def test_a_wrong_hint_is_shown_in_short(caplog):
    hints.warn.cache_clear()
    assert hints.read_hint({"tierce.session": "x" * 1_000_000}) == hints.NO_HINT
    assert len(caplog.messages) == 1 and "tierce.session is 'xxx" in caplog.text and len(caplog.messages[0]) < 300
