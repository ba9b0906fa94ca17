# SPDX-License-Identifier: Apache-2.0
"""A worker extension for pipeline parallelism on a CPU with vLLM 0.32. A stage receives into buffers that a warm-up
allocates, and the CPU worker omits this warm-up if nothing is compiled."""

from vllm.v1.worker.gpu_model_runner import GPUModelRunner

real = GPUModelRunner.sync_and_gather_intermediate_tensors


def with_buffers(self, num_tokens, *args, **kwargs):
    if self.intermediate_tensors is None:
        self.intermediate_tensors = self.model.make_empty_intermediate_tensors(
            batch_size=self.max_num_tokens, dtype=self.model_config.dtype, device=self.device)
    return real(self, num_tokens, *args, **kwargs)


GPUModelRunner.sync_and_gather_intermediate_tensors = with_buffers


class Extension:
    """Named in worker_extension_cls, so that each worker imports this module."""
