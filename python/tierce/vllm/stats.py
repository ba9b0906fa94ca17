# SPDX-License-Identifier: Apache-2.0
"""The connector's counters in the form that vLLM logs and exports."""

from __future__ import annotations

from dataclasses import dataclass

from vllm.distributed.kv_transfer.kv_connector.v1.metrics import (
    KVConnectorPromMetrics,
    KVConnectorStats,
)

# Counter of the connector -> metric and its text
METRICS = {
    "lookup_tokens": ("tierce_lookup_tokens", "Prompt tokens looked up, beyond vLLM's own hits."),
    "hit_tokens": ("tierce_hit_tokens", "Prompt tokens that lookups promised."),
    "memory_tokens": ("tierce_loaded_memory_tokens", "Tokens loaded from memory."),
    "disk_tokens": ("tierce_loaded_disk_tokens", "Tokens loaded from disk."),
    "remote_tokens": ("tierce_loaded_remote_tokens", "Tokens loaded from remote stores."),
    "blended_tokens": ("tierce_blended_tokens", "Prompt tokens whose KV was blended, not computed by vLLM."),
    "failed_tokens": ("tierce_load_failed_tokens", "Promised tokens that could not be loaded."),
    "saved_tokens": ("tierce_saved_tokens", "Tokens whose KV was stored."),
    "loads": ("tierce_loads", "Loads."),
    "offers": ("tierce_offers", "Prompts that were offered to decoders."),
    "handovers": ("tierce_handovers", "Offers of prefillers that were read."),
    "handover_bytes": ("tierce_handover_bytes", "Bytes that were read from prefillers."),
    "handover_pushed_bytes": ("tierce_handover_pushed_bytes", "Bytes that prefillers had pushed when their offers were read."),
    "handover_seconds": ("tierce_handover_seconds", "Time that the reads of offers took."),
    "handovers_ended_early": ("tierce_handovers_ended_early", "Offers that were not read, or not to their end; the rest is computed."),
    "pushes": ("tierce_pushes", "Prompts that were pushed to decoders."),
    "pushed_chunks": ("tierce_pushed_chunks", "Chunks that decoders have verified."),
    "push_bytes": ("tierce_push_bytes", "Bytes of these chunks."),
    "push_left_out_chunks": ("tierce_push_left_out_chunks", "Chunks that were to be pushed and were not; they are read or computed."),
    "push_tail_seconds": ("tierce_push_tail_seconds", "Time from the last layer computed to the last chunk verified by the decoder."),
    "push_tail_bytes": ("tierce_push_tail_bytes", "Bytes of all chunks of the pushes in tierce_push_tail_seconds."),
    "errors": ("tierce_connector_errors", "Faults in the connector that became misses."),
}

GROUP_BLOCKS = "group_blocks of "  # a counter for each KV cache group; a label of one metric
GROUP_METRIC = ("tierce_loaded_group_blocks", "Blocks loaded, by KV cache group. A state is one block.")


NODE = "node_connected"  # not a counter: of several ranks, the least counts
NODE_METRIC = ("tierce_node_connected", "Whether the node is connected and answers; without a node, no value.")


def group_counter(index: int, kind: str) -> str:
    """index: of vLLM's group; kind: with its window."""
    return f"{GROUP_BLOCKS}{index} {kind}"


@dataclass
class TierceStats(KVConnectorStats):
    """`data` maps the counters' names to their growth since the last interval."""

    def reset(self):
        self.data = {}

    def aggregate(self, other: KVConnectorStats) -> KVConnectorStats:
        for name, value in other.data.items():
            if name == NODE:
                self.data[name] = min(self.data.get(name, value), value)
            else:
                self.data[name] = self.data.get(name, 0) + value
        return self

    def reduce(self) -> dict[str, int | float]:
        shown = {f"Tierce {name.replace('_', ' ')}": value for name, value in self.data.items() if name != NODE or not value}
        if asked := self.data.get("lookup_tokens", 0):
            hits = self.data.get("hit_tokens", 0) - self.data.get("failed_tokens", 0)
            shown["Tierce hit rate %"] = round(100 * max(hits, 0) / asked, 1)
        return shown

    def is_empty(self) -> bool:
        return not self.data


class TierceProm(KVConnectorPromMetrics):
    def __init__(self, vllm_config, metric_types, labelnames, per_engine_labelvalues):
        super().__init__(vllm_config, metric_types, labelnames, per_engine_labelvalues)
        self.counters = {}
        self.groups = self._counter_cls(name=f"vllm:{GROUP_METRIC[0]}", documentation=GROUP_METRIC[1],
                                        labelnames=[*labelnames, "group"])
        self.node = self._gauge_cls(name=f"vllm:{NODE_METRIC[0]}", documentation=NODE_METRIC[1], labelnames=labelnames,
                                    multiprocess_mode="mostrecent")
        for name, (metric, text) in METRICS.items():
            counter = self._counter_cls(name=f"vllm:{metric}", documentation=text,
                                        labelnames=labelnames)
            self.counters[name] = {
                engine: counter.labels(*values)
                for engine, values in per_engine_labelvalues.items()
            }

    def observe(self, transfer_stats_data, engine_idx: int = 0):
        for name, value in transfer_stats_data.items():
            if name in self.counters:
                self.counters[name][engine_idx].inc(value)
            elif name == NODE:
                self.node.labels(*self.per_engine_labelvalues[engine_idx]).set(value)
            elif name.startswith(GROUP_BLOCKS):
                group = name.removeprefix(GROUP_BLOCKS)
                self.groups.labels(*self.per_engine_labelvalues[engine_idx], group).inc(value)
