# SPDX-License-Identifier: Apache-2.0
"""The encoder cache's counters in the form that vLLM logs and exports."""

from __future__ import annotations

from dataclasses import dataclass

from vllm.distributed.ec_transfer.ec_connector.metrics import ECConnectorPromMetrics, ECConnectorStats

METRICS = {
    "lookups": ("tierce_encoder_lookups", "Multimodal items whose encoder output was looked up."),
    "hits": ("tierce_encoder_hits", "Encoder outputs that were loaded instead of computed."),
    "unused": ("tierce_encoder_unused", "Encoder outputs that were loaded, while vLLM had them itself or ended the request."),
    "stored": ("tierce_encoder_stored", "Encoder outputs that were stored."),
    "stored before": ("tierce_encoder_stored_before", "Computed encoder outputs that the store had already."),
    "stored bytes": ("tierce_encoder_stored_bytes", "Bytes of the encoder outputs that were stored."),
}
# Counters "PREFIX: REASON" -> one metric with a label.
REASONS = {
    "miss": ("tierce_encoder_misses", "Encoder outputs that were not loaded, by reason."),
    "not stored": ("tierce_encoder_not_stored", "Computed encoder outputs that were not stored, by reason."),
}


@dataclass
class EncoderStats(ECConnectorStats):
    """`data` maps the counters' names to their growth since the last interval."""

    def reset(self):
        self.data = {}

    def aggregate(self, other):
        for name, value in other.data.items():
            self.data[name] = self.data.get(name, 0) + value
        return self

    def reduce(self) -> dict[str, int | float]:
        return {f"Tierce encoder {name}": value for name, value in self.data.items()}

    def is_empty(self) -> bool:
        return not self.data


class EncoderProm(ECConnectorPromMetrics):
    def __init__(self, vllm_config, metric_types, labelnames, per_engine_labelvalues):
        super().__init__(vllm_config, metric_types, labelnames, per_engine_labelvalues)
        self.counters = {name: self._counter_cls(name=f"vllm:{metric}", documentation=text, labelnames=labelnames)
                         for name, (metric, text) in METRICS.items()}
        self.reasons = {
            prefix: self._counter_cls(name=f"vllm:{metric}", documentation=text, labelnames=[*labelnames, "reason"])
            for prefix, (metric, text) in REASONS.items()}

    def observe(self, transfer_stats_data, engine_idx: int = 0):
        labels = self.per_engine_labelvalues[engine_idx]
        for name, value in transfer_stats_data.items():
            prefix, _, reason = name.partition(": ")
            if name in self.counters:
                self.counters[name].labels(*labels).inc(value)
            elif prefix in self.reasons:
                self.reasons[prefix].labels(*labels, reason).inc(value)
