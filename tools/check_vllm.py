#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares python/tierce/vllm with the sources of a version of vLLM, which need not be installed.

    tools/check_vllm.py FOLDER      (FOLDER/vllm/__init__.py exists, as in a source distribution)

Checked:
- each name that python/tierce/vllm imports from vLLM exists;
- each method of TierceConnector, TierceECConnector and TierceTier that overrides one of vLLM accepts the same calls, and each
  abstract method of vLLM is overridden;
- the fields of vLLM's classes that the tier constructs exist.
Attributes of vLLM's objects that the connector only reads are not checked, and neither is what a call means.

Nothing of vLLM is executed. The exit status is 0 if nothing differs, 1 if something does, 2 if FOLDER has no vLLM.
"""

from __future__ import annotations

import ast
import sys
from pathlib import Path

OURS = Path(__file__).resolve().parents[1] / "python" / "tierce" / "vllm"
CONNECTOR_BASE = "vllm.distributed.kv_transfer.kv_connector.v1.base"
TIER_BASE = "vllm.v1.kv_offload.tiering.base"
# Our file and class -> vLLM's module and classes that it derives from
OVERRIDES = {("connector.py", "TierceConnector"): (CONNECTOR_BASE, ("KVConnectorBase_V1", "SupportsHMA")),
             ("tier.py", "TierceTier"): (TIER_BASE, ("SecondaryTierManager",)),
             ("encoder.py", "TierceECConnector"): ("vllm.distributed.ec_transfer.ec_connector.base", ("ECConnectorBase",)),
             ("encoder_stats.py", "EncoderStats"): (
                 "vllm.distributed.ec_transfer.ec_connector.metrics", ("ECConnectorStats",)),
             ("encoder_stats.py", "EncoderProm"): (
                 "vllm.distributed.ec_transfer.ec_connector.metrics", ("ECConnectorPromMetrics",)),
             ("stats.py", "TierceStats"): ("vllm.distributed.kv_transfer.kv_connector.v1.metrics", ("KVConnectorStats",)),
             ("stats.py", "TierceProm"): (
                 "vllm.distributed.kv_transfer.kv_connector.v1.metrics", ("KVConnectorPromMetrics",))}
FIELDS = {(TIER_BASE, "JobResult"): ("job_id", "success", "successful_keys", "transfer_time", "transfer_bytes"),
          (TIER_BASE, "TransferJob"): ("job_id", "keys", "chunk_ids"),
          ("vllm.v1.kv_offload.config", "OffloadingConfig"): (
              "groups", "worker_kv_bytes_per_block", "engine_id", "model", "cache", "parallel", "kv_cache_layout",
              "canonical_layout", "replicated_layout"),
          ("vllm.v1.kv_offload.config", "OffloadingGroupConfig"): ("group_id", "tokens_per_block", "layer_names"),
          ("vllm.v1.kv_offload.config", "OffloadingCacheConfig"): ("blocks_per_chunk", "tokens_per_hash"),
          ("vllm.v1.core.sched.output", "KVConnectorBlockState"): ("get_block_ids", "boundary_state_offloads")}


class Sources:
    def __init__(self, folder: Path):
        self.folder = folder

    def tree(self, module: str) -> ast.Module | None:
        path = self.folder.joinpath(*module.split("."))
        for file in (path.with_suffix(".py"), path / "__init__.py"):
            if file.is_file():
                return ast.parse(file.read_text(encoding="utf-8"))
        return None

    def has(self, module: str, name: str) -> bool:
        tree = self.tree(module)
        return tree is not None and (name in names_of(tree) or self.tree(f"{module}.{name}") is not None)

    def class_of(self, module: str, name: str) -> ast.ClassDef | None:
        tree = self.tree(module)
        return next((n for n in ast.walk(tree) if isinstance(n, ast.ClassDef) and n.name == name), None) if tree else None


def names_of(tree: ast.Module) -> set[str]:
    """The names of a module, also those that are defined under a condition."""
    out = set()
    for node in ast.walk(tree):
        if isinstance(node, (ast.ClassDef, ast.FunctionDef)):
            out.add(node.name)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            out.update(alias.asname or alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            out.add(node.id)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            out.add(node.value)  # names that a package loads later, by a table
    return out


def methods_of(found: ast.ClassDef) -> dict[str, ast.FunctionDef]:
    return {node.name: node for node in found.body if isinstance(node, ast.FunctionDef)}


def fields_of(found: ast.ClassDef) -> set[str]:
    return {node.target.id for node in found.body
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)} | set(methods_of(found))


def is_abstract(method: ast.FunctionDef) -> bool:
    return any(isinstance(d, ast.Name) and d.id == "abstractmethod" for d in method.decorator_list)


def refused(theirs: ast.FunctionDef, ours: ast.FunctionDef) -> str | None:
    """Why `ours` does not accept each call that is valid for `theirs`; None: it does."""
    a, b = theirs.args, ours.args
    wanted = [each.arg for each in a.posonlyargs + a.args]
    has = [each.arg for each in b.posonlyargs + b.args]
    if len(has) < len(wanted) and b.vararg is None:
        return f"takes {has} instead of {wanted}"
    required = len(has) - len(b.defaults)
    if required > len(wanted) - len(a.defaults):
        return f"requires {has[:required]}, and vLLM may pass only {wanted[:len(wanted) - len(a.defaults)]}"
    if b.kwarg is not None:
        return None
    keywords = [*wanted[1:], *(each.arg for each in a.kwonlyargs)]
    if missing := [name for name in keywords if name not in [*has, *(each.arg for each in b.kwonlyargs)]]:
        return f"does not take {missing} by name"
    return "does not take any keyword" if a.kwarg is not None else None


def imports(sources: Sources):
    for path in sorted(OURS.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.ImportFrom) or node.level or (node.module or "").split(".")[0] != "vllm":
                continue
            for alias in node.names:
                if not sources.has(node.module, alias.name):
                    yield f"{path.relative_to(OURS)}: {node.module} has no {alias.name}"


def overrides(sources: Sources):
    for (file, name), (module, bases) in OVERRIDES.items():
        mine = next(n for n in ast.parse((OURS / file).read_text(encoding="utf-8")).body
                    if isinstance(n, ast.ClassDef) and n.name == name)
        own = methods_of(mine)
        for base in bases:
            found = sources.class_of(module, base)
            if found is None:
                yield f"{file}: {module} has no class {base}"
                continue
            for method, theirs in methods_of(found).items():
                if method not in own and is_abstract(theirs):
                    yield f"{name}: {base}.{method} is abstract and is not overridden"
                elif method in own and (why := refused(theirs, own[method])):
                    yield f"{name}.{method} {why}"


def fields(sources: Sources):
    for (module, name), wanted in FIELDS.items():
        found = sources.class_of(module, name)
        if found is None:
            yield f"{module} has no class {name}"
        elif missing := [field for field in wanted if field not in fields_of(found)]:
            yield f"{module}.{name} has no {', '.join(missing)}"


def compare(folder: Path) -> list[str]:
    sources = Sources(folder)
    return [*imports(sources), *overrides(sources), *fields(sources)]


def main() -> int:
    if len(sys.argv) != 2 or not Path(sys.argv[1], "vllm", "__init__.py").is_file():
        print("usage: check_vllm.py FOLDER, which has vllm/__init__.py", file=sys.stderr)
        return 2
    differences = compare(Path(sys.argv[1]))
    for line in differences:
        print(f"differs: {line}")
    print(f"{len(differences)} differences")
    return 1 if differences else 0


if __name__ == "__main__":
    sys.exit(main())
