# SPDX-License-Identifier: Apache-2.0
"""Files of measured quality: what KV that is not exact costs a model. Such KV is used only for a model that was measured."""

from __future__ import annotations

import json
from math import ceil, floor, isfinite

from .identity import ConfigError, Unsupported

FORMAT = 1


def percent(measured: float) -> str:
    """Never more than was measured, so that a value below a bound does not look like the bound."""
    return f"{floor(100 * measured + 1e-6) / 100:.2f} %"


def nats(measured: float) -> str:
    """Never less than was measured."""
    return f"{ceil(10000 * measured - 1e-6) / 10000:.4f}"


def percent_of(share: str) -> float:
    """Of the value of a parameter that is a share: 0.5 or 50%."""
    return float(share.removesuffix("%")) if share.endswith("%") else round(100 * float(share), 9)


def figure(measured) -> float:
    """Of a file. Raises ValueError for a NaN, which would be below no bound, and TypeError."""
    number = float(measured)
    if not isfinite(number):
        raise ValueError("a figure is not a number")
    return number


def require_agreement(agreement: float, text: str, area: str, path: str, bound: float, remedy: str) -> None:
    """agreement: the worst one in the file at `path`, in percent, measured with `text` if it has a name. Raises Unsupported
    if it is below `bound`, which an operator has set. area: of the parameters, blend or codec."""
    if agreement < bound:
        where = f" with {text}" if text else ""
        raise Unsupported(f"the agreement{where} is {percent(agreement)} ({area}.quality {path!r}), below {area}.agreement, "
                          f"{bound:g} %; {remedy}, or lower the bound")


def read_measured(path: str, parameter: str, tool: str, weights: str, parse):
    """The measurement of these weights in the file of a parameter, which a program of tools/ has written. `parse` turns the
    content into the result. Raises ConfigError if the file is no such file, and Unsupported if it is of other weights."""
    if not path:
        raise Unsupported(f"{parameter} is empty; measure the model with tools/{tool} --quality FILE and name the file")
    try:
        with open(path, encoding="utf-8") as file:
            measured = json.load(file)
        version, of = measured["tierce_" + parameter.replace(".", "_")], str(measured["weights"])
        result = parse(measured)
    except OSError as error:
        raise ConfigError(f"{parameter} {path!r} cannot be read: {error.strerror}") from None
    except (ValueError, KeyError, TypeError):
        raise ConfigError(f"{parameter} {path!r} is not a file of tools/{tool} --quality") from None
    if version != FORMAT:
        raise ConfigError(f"{parameter} {path!r} has format {version!r}; this version reads {FORMAT}")
    if of != weights:
        raise Unsupported(f"{parameter} {path!r} is of other weights ({of[:12]}, not {weights[:12]}); measure this model")
    return result
