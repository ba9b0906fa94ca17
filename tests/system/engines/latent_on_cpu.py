# SPDX-License-Identifier: Apache-2.0
"""A model like Kimi-Linear for vLLM on a CPU: latent attention (MLA) beside layers with recurrent states. vLLM's own classes
of such models need kernels for GPUs. This class joins two of vLLM's that run on CPUs: the layers with states of Qwen3-Next,
and the latent attention of DeepSeek."""

from contextlib import contextmanager
from unittest import mock

from vllm.config import get_current_vllm_config
from vllm.model_executor.models import ModelRegistry, qwen3_next
from vllm.model_executor.models.deepseek_v2 import DeepseekV2MLAAttention
from vllm.platforms.cpu import CpuPlatform
from vllm.v1.attention.backends.mla.cpu_mla import CPUMLABackend

KERNEL_BLOCK = 16  # tokens


class LatentAttention(DeepseekV2MLAAttention):
    def __init__(self, config, model_config, cache_config, quant_config, reduce_results, prefix):
        super().__init__(
            get_current_vllm_config(), config, config.hidden_size, config.num_attention_heads, config.qk_nope_head_dim,
            config.qk_rope_head_dim, config.v_head_dim, config.q_lora_rank, config.kv_lora_rank,
            config.max_position_embeddings, cache_config, quant_config, prefix, reduce_results=reduce_results)

    def forward(self, hidden_states, positions):
        return super().forward(positions, hidden_states, None)


class LatentHybridForCausalLM(qwen3_next.Qwen3NextForCausalLM):
    def __init__(self, *, vllm_config, prefix=""):
        with mock.patch.object(qwen3_next, "Qwen3NextAttention", LatentAttention):
            super().__init__(vllm_config=vllm_config, prefix=prefix)


@contextmanager
def applied():
    """vLLM on CPUs switches its prefix cache and chunked prefill off for latent attention, and without the prefix cache it
    keeps no states. It also wants blocks of the size of its kernel's, although its tables serve larger ones."""
    ModelRegistry.register_model("LatentHybridForCausalLM", LatentHybridForCausalLM)
    check = CpuPlatform.check_and_update_config

    def keep(_, vllm_config):
        kept = vllm_config.cache_config.enable_prefix_caching, vllm_config.scheduler_config.enable_chunked_prefill
        tokens = vllm_config.scheduler_config.max_num_batched_tokens
        check(vllm_config)
        vllm_config.cache_config.enable_prefix_caching, vllm_config.scheduler_config.enable_chunked_prefill = kept
        vllm_config.scheduler_config.max_num_batched_tokens = tokens

    def supports(block_size):
        return block_size is None or block_size % KERNEL_BLOCK == 0

    with (mock.patch.object(CpuPlatform, "check_and_update_config", keep),
          mock.patch.object(CPUMLABackend, "supports_block_size", supports)):
        yield
