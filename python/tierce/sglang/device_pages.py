# SPDX-License-Identifier: Apache-2.0
"""Pages of a pool on SGLang's device, for DescribedPool: as SGLang's DevicePoolEntry describes them, in the order in which the
model uses them."""

from __future__ import annotations

from array import array

KINDS = {"cpu": "host", "cuda": "cuda"}  # by the type of torch's device


class DevicePool:
    """The places of a page are the buffers of the entry, layer by layer, because a load moves its places in order. Buffers that
    belong to no layer come last."""

    layout = "device"

    def __init__(self, entry, layers: int, kv_pool=None):
        """`layers`: of the whole group; `kv_pool`: knows the layers of the pipeline rank."""
        self.entry, self.page_size = entry, int(entry.page_size)
        first = entry.kv_buffer[0]
        self.device, self.dtype = first.device, first.dtype
        self.kind = KINDS.get(self.device.type)
        self.size = min(buffer.shape[0] for buffer in entry.kv_buffer) // entry._row_span * self.page_size
        self.start_layer, self.end_layer = getattr(kv_pool, "start_layer", None), getattr(kv_pool, "end_layer", None)
        starts, count = [], 0  # of components
        for component in entry.components:
            starts.append(count)
            count += len(component)
        self.order, self.ends = [], []  # of places; per layer, how many places belong to it and to those before it
        for layer in range(layers):
            mapped = entry.layer_mapping.get(layer, ())
            for start in starts:
                self.order += [start + buffer for buffer in ((mapped,) if isinstance(mapped, int) else mapped)]
            self.ends.append(len(self.order))
        self.order += sorted(set(range(count)) - set(self.order))
        self.ends[-1] = len(self.order)
        # The sizes of the places do not tell two such pools apart.
        self.storage_format_tag = (f"{type(entry.device_pool).__name__}, {entry._row_span} rows, buffers "
                                   f"{[len(component) for component in entry.components]} in the order {self.order}")

    def get_page_buffer_meta(self, indices):
        places = len(self.order)
        return tuple([flat[page + place] for page in range(0, len(flat), places) for place in self.order]
                     for flat in self.entry.get_page_buffer_meta(indices))


class PageLoads:
    """Loads of pages of one pool, layer by layer. One thread."""

    def __init__(self, pages, ends: list[int], stream: int):
        """`pages`: a PageView; `ends`: of DevicePool; `stream`: of the device, 0 for memory of the host."""
        self.pages, self.ends, self.stream, self.loads = pages, ends, stream, []

    def begin(self, names, numbers) -> None:
        chain = self.pages.view.chain()
        for name, number in zip(names, numbers):
            chain.reset()
            chain.append_hashes(name)
            self.loads.append(self.pages.view.load_begin(chain, 0, 1, array("i", [number]), stream=self.stream))

    def layer(self, index: int) -> None:
        for place in range(self.ends[index - 1] if index else 0, self.ends[index]):
            for load in self.loads:
                load.layer(place)

    def end(self) -> bool:
        """Whether all pages were loaded and verified."""
        loads, self.loads = self.loads, []
        return all([load.end()[0] != 0 for load in loads])

    def abort(self) -> None:
        loads, self.loads = self.loads, []
        for load in loads:
            load.abort()
