# SPDX-License-Identifier: Apache-2.0
"""Tierce for TensorRT-LLM: a KV cache connector, with `connector_module: tierce.tensorrt_llm`, `connector_scheduler_class:
TierceScheduler` and `connector_worker_class: TierceWorker`. It was never run with TensorRT-LLM: see
docs/using/tensorrt-llm.md."""

__all__ = ["TierceScheduler", "TierceWorker"]


def __getattr__(name):
    # Only kv_connector.py requires TensorRT-LLM.
    if name in __all__:
        from . import kv_connector

        return getattr(kv_connector, name)
    raise AttributeError(name)
