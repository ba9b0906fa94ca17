# SPDX-License-Identifier: Apache-2.0
"""Images as vLLM's scheduler sees them, without a processor: data of our own under a name."""

import torch
from vllm.multimodal.inputs import (
    MultiModalBatchedField, MultiModalFeatureSpec, MultiModalFieldElem, MultiModalKwargsItem, PlaceholderRange)


def item(**fields):
    return MultiModalKwargsItem({name: MultiModalFieldElem(data=value, field=MultiModalBatchedField())
                                 for name, value in fields.items()})


def pixels(seed, count=100):
    return item(pixel_values=torch.randn(count, generator=torch.Generator().manual_seed(seed)))


def feature(name, data, first=40, length=100, mask=None, **more):
    return MultiModalFeatureSpec(data=data, modality="image", identifier=name,
                                 mm_position=PlaceholderRange(offset=first, length=length, is_embed=mask), **more)
