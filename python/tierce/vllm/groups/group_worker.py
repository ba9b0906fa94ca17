# SPDX-License-Identifier: Apache-2.0
"""The worker half for models with windows, states or several KV cache groups.

All loads are asynchronous: vLLM accepts failures of such models by request only, and only before
the request is computed. No other request has used the blocks of a load that fails, so no computed KV can be wrong,
and no block is tainted."""

from __future__ import annotations

import logging
from dataclasses import replace

from .. import identity, own_node
from ..geometry import Geometry, Measures, Numbering
from ..identity import Unsupported
from ...lookup_flags import LOOKUP_MEMORY_ONLY, LOOKUP_PIN
from ..link import Facts
from ..ranks import Part
from ..settings import open_view
from ..tracker import LoadResult, ReqMeta, int32
from ..transfer import ORIGIN_DISK, ORIGIN_FAILED, ORIGIN_MEMORY
from ..worker import WorkerHalf, require_one_host
from .group_part import GroupPart
from .group_ranks import GroupLayers, GroupMeasures
from .group_table import STATE, Group, GroupTable
from .group_view import GroupViews

log = logging.getLogger(__name__)


class GroupWorkerHalf(WorkerHalf):
    def __init__(self, vllm_config, settings, engine_version: str, table: GroupTable):
        super().__init__(vllm_config, settings, engine_version)
        self.table = table
        self.hashes_per_block = table.hashes_per_unit
        # In the order of the table. None: this worker has no layer of the group.
        self.geometries: list[Geometry | None] = []
        self.layers: list[GroupLayers] = []
        self.failed: set[str] = set()  # requests whose load failed

    # ---- opening

    def measure_groups(self, kv_caches: dict, block_count: int, backend_name) -> Measures:
        measures = []
        for group in self.table.groups:
            missing = [name for name in group.layer_names if name not in kv_caches]
            if missing:
                raise Unsupported(f"no memory for layer {missing[0]} of a KV cache group")
            layers = {name: kv_caches[name] for name in group.layer_names}
            geometry = Geometry.of(layers, block_count) if layers else None
            self.geometries.append(geometry)
            measures.append(GroupMeasures() if geometry is None else GroupMeasures.of(
                geometry, group.content or backend_name(layers)))
        place = own_node.place(self.settings, self.vllm_config.parallel_config.world_size)
        return Measures([], "", (), (), "", place=place, groups=tuple(measures))

    def register(self, ranks, measures) -> None:
        self.ranks = ranks
        require_one_host(measures)
        self.layers = [GroupLayers.join(ranks, list(each))
                       for each in zip(*(m.groups for m in measures))]
        self.open_engine()
        chunk_tokens = self.table.chunk_tokens(int(self.engine.param("chunk.tokens")))
        unit = self.table.unit_tokens
        self.begin({**self.common_namespace(), "block_tokens": unit,
                    "chunk_blocks": chunk_tokens // unit})
        self.serve_offers()
        self.prepare_blend()

    def require_blendable(self) -> None:
        raise Unsupported("several KV cache groups, windows or states")

    def has_states(self) -> bool:
        return any(group.kind == STATE for group in self.table.groups)

    def cells(self) -> str:
        raise Unsupported("several KV cache groups")

    def loads_are_async(self) -> bool:
        return True

    def facts(self) -> Facts:
        facts = super().facts()
        if facts.off is not None:
            return facts
        chunk_tokens = self.namespace["chunk_blocks"] * self.namespace["block_tokens"]
        return replace(facts, chunk_blocks=self.table.save_units(chunk_tokens),
                       longest_chunk=self.namespace["chunk_blocks"])

    def describe(self) -> str:
        return (f"{super().describe()}, groups: {', '.join(g.text for g in self.table.groups)}, "
                f"hits of multiples of {self.table.unit_tokens} tokens")

    def open_view(self) -> None:
        parts = [self.part_of_group(*each) for each in
                 zip(self.table.groups, self.geometries, self.layers)]
        views = GroupViews(self.table, parts)
        self.number_layers(views)
        self.use_view(views)

    def part_of_group(self, group: Group, geometry: Geometry | None, layers: GroupLayers) -> GroupPart:
        size = group.block_tokens
        chunk_tokens = self.namespace["chunk_blocks"] * self.namespace["block_tokens"]
        view = self.view_of_group(group, geometry, layers, {
            "block_tokens": size, "chunk_blocks": group.chunk_blocks(chunk_tokens), "group": group.kind,
            "window": group.window})
        inside = None
        if self.table.may_end_inside(group):
            inside = self.view_of_group(group, geometry, layers, {
                "block_tokens": self.table.unit_tokens, "chunk_blocks": 1, "group": STATE, "window": 0})
        return GroupPart(group, geometry, view, self.table, inside)

    def view_of_group(self, group: Group, geometry: Geometry | None, layers: GroupLayers, chunks: dict):
        sample, part = layers.sample, layers.part
        view = open_view(self.engine, {
            **self.namespace, **chunks,
            "layout": identity.layout(self.engine_version, sample.backend, sample.block_shape,
                                      sample.block_strides, sample.dtype, group.block_tokens, self.ranks,
                                      memory=sample.kind),
            "layer_count": len(layers.numbers), "cell_bytes": layers.cell_bytes, "layers": layers.numbers},
            (0, 1, 0, 1), (0, 0, 0, 0) if part is None else (
                part.first_layer, part.layer_count, part.index, part.count),
            lower="" if chunks["group"] == STATE else "chunk.tokens")
        if geometry is None:
            return view
        view.set_paged(geometry.bases, geometry.strides, geometry.block_count, self.memory.kind)
        return self.memory.view(view)

    def views(self) -> list:
        return [view for part in self.view.parts if part.geometry is not None for view in part.views]

    def number_layers(self, views: GroupViews) -> None:
        """The layers as the other half of this class counts them: GroupViews.order."""
        numbers = {key: index for index, key in enumerate(views.saved_order)}
        layer_of = {name: numbers[at, cell]
                    for at, part in enumerate(views.parts) if part.group.kind != STATE
                    for name, cell in part.layer_of.items()}
        self.numbering = Numbering(layer_of, len(views.order))
        self.part = Part(0, len(views.order), [], range(len(views.saved_order)))

    # ---- lookups and transfers

    def held_by_memory(self, view, chain, from_block, total, memory, session) -> int:
        """Memory may hold parts of the groups that do not restore a common point."""
        if memory == total:
            return total
        return view.lookup(chain, from_block, total, LOOKUP_PIN | LOOKUP_MEMORY_ONLY, session)[0]

    def load_handle(self, view, chain, request: ReqMeta):
        load = request.load
        return view.load_begin(chain, load.from_block, load.to_block,
                               [int32(ids) for ids in request.tables], request.firsts,
                               request.session)

    def store_handle(self, view, chain, request: ReqMeta):
        save = request.save
        return view.store_begin(chain, save.to_block, [int32(ids) for ids in request.tables],
                                save.tail, request.session, request.tag, request.write)

    def end_step(self) -> None:
        """vLLM does not call the connector for layers with states. Their states are final after the step."""
        requests = self.requests
        super().end_step()
        for request in requests:
            if request.states:
                self.save_states(request)

    def save_states(self, request: ReqMeta) -> None:
        try:
            with self.using_chain(request.session, request.chain) as (view, chain):
                self.offer_blocks(chain, request)
                for state in request.states if view is self.step_view else ():
                    view.store_state(chain, state, request.session, request.tag,
                                     lambda store: self.push_state(request.session, store))
        except Exception as error:
            log.warning("a state of request %s could not be stored: %r", request.req_id, error)

    # ---- KV events

    def chain_of(self, chain):
        return chain.chains.get

    def event_groups(self) -> list[tuple[int, int, int]]:
        """States and blocks at points inside blocks have no hash of vLLM's blocks, and are left out."""
        chunk_tokens = self.namespace["chunk_blocks"] * self.namespace["block_tokens"]
        return [(group.index, group.chunk_blocks(chunk_tokens), group.block_tokens) for group in self.table.groups]

    def event_namespaces(self) -> list[str] | None:
        return [part.view.namespace for part in self.view.parts] if self.view is not None else None

    # ---- what became of loads

    def count_load(self, request: ReqMeta, origins: bytes) -> None:
        """One byte per unit of the load. A unit that failed makes the whole load fail."""
        load = request.load
        if len(origins) != load.blocks or ORIGIN_FAILED in origins:
            self.lose(request)
            return
        memory, disk = origins.count(ORIGIN_MEMORY), origins.count(ORIGIN_DISK)
        self.results[request.req_id] = LoadResult(memory, disk, load.blocks - memory - disk)

    def lose(self, request: ReqMeta) -> None:
        self.failed.add(request.req_id)
        self.results[request.req_id] = LoadResult(failed=request.load.blocks)

    def take_failed(self) -> set[str]:
        failed, self.failed = self.failed, set()
        return failed
