# SPDX-License-Identifier: Apache-2.0
"""The connector's configuration: kv_connector_extra_config of vLLM."""

from __future__ import annotations

import os
from dataclasses import dataclass, field

from .. import programs
from .handover import HANDOVER_NAMES, Handover
from .identity import ConfigError


@dataclass
class Settings:
    """The connector's part of the configuration; the rest goes to the store as it is."""

    config_path: str | None = None
    values: dict[str, str] = field(default_factory=dict)
    handover: Handover = field(default_factory=Handover)

    @classmethod
    def from_extra_config(cls, extra: dict) -> "Settings":
        def text(value):
            return str(value).lower() if isinstance(value, bool) else str(value)

        values = {k: text(v) for k, v in extra.items() if k != "config" and k not in HANDOVER_NAMES}
        return cls(extra.get("config") or os.getenv("TIERCE_CONFIG") or None, values,
                   Handover.from_extra_config(extra))

    def check(self, where: str = "kv_connector_extra_config") -> bool:
        """Whether the start is strict. Raises ConfigError if the configuration cannot be used;
        `where`: its position in vLLM's configuration."""
        try:
            from tierce import _core

            return _core.Engine.setting(self.config_path, dict(self.values), "strict") == "true"
        except ImportError as error:
            raise ConfigError(f"the extension module tierce._core cannot be loaded: {error}") from None
        except Exception as error:  # an unknown name, an invalid value, a missing file
            raise ConfigError(f"{where}: {error}") from None

    def programs(self) -> tuple[list[list[str]], dict[str, str]]:
        """The commands of plugins.start, and what programs may know of the configuration. Raises ConfigError."""
        from tierce import _core

        try:
            paths, values = _core.Engine.programs(self.config_path, dict(self.values))
            return [programs.command_of(path) for path in paths], values
        except (_core.Error, programs.WrongProgram) as error:
            raise ConfigError(str(error)) from None


def open_view(engine, namespace: dict, *part, lower: str = ""):
    """The library's view of the engine. Raises ConfigError if memory.size is smaller than one chunk. `lower` names the
    value to lower then; empty if the chunk cannot be smaller."""
    from tierce import _core

    try:
        return engine.view(namespace, *part)
    except _core.Error as error:
        if error.name != "TIERCE_E_LIMIT":
            raise
        size = namespace["chunk_blocks"] * sum(namespace["cell_bytes"])
        tokens = namespace["chunk_blocks"] * namespace["block_tokens"]
        raise ConfigError(f"{error}: a chunk of {tokens:,} tokens requires more than {size:,} bytes of memory; raise "
                          f"memory.size{f' or lower {lower}' if lower else ''}") from None
