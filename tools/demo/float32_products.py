# SPDX-License-Identifier: Apache-2.0
"""Products of bfloat16 on processors that have no instructions for them."""


def multiply_in_float32():
    """From now on, torch's linear computes products of bfloat16 in float32 and rounds each result to bfloat16. Does nothing on
    a processor for which oneDNN has kernels of bfloat16. Without these, torch takes many times as long, most of a minute for a
    prompt of some thousand tokens. vLLM calls this function, too."""
    import torch
    from torch.utils.weak import WeakTensorKeyDictionary

    if torch.ops.mkldnn._is_mkldnn_bf16_supported():
        return
    plain, copies = torch.nn.functional.linear, WeakTensorKeyDictionary()

    def linear(x, weight, bias=None):
        if x.dtype != torch.bfloat16:
            return plain(x, weight, bias)
        if weight not in copies:
            copies[weight] = weight.float()
        return plain(x.float(), copies[weight], None if bias is None else bias.float()).to(x.dtype)

    torch.nn.functional.linear = linear
