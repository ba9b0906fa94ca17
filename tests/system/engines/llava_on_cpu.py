# SPDX-License-Identifier: Apache-2.0
"""vLLM's LLaVA without torchvision, which the environment of the tests does not have: vLLM's module imports the image
processor of Pixtral, which needs it. LLaVA with CLIP uses neither."""

import importlib.machinery
import sys
from contextlib import contextmanager
from types import ModuleType

import transformers.image_processing_backends  # noqa: F401  finds out that there is no torchvision

NAMES = ("torchvision", "torchvision.transforms", "torchvision.transforms.v2", "torchvision.transforms.v2.functional")


@contextmanager
def applied():
    for name in NAMES:
        sys.modules[name] = ModuleType(name)
        sys.modules[name].__spec__ = importlib.machinery.ModuleSpec(name, None)
        parent, _, last = name.rpartition(".")
        if parent:
            setattr(sys.modules[parent], last, sys.modules[name])
    try:
        import vllm.model_executor.models.llava  # noqa: F401
    finally:
        for name in NAMES:
            del sys.modules[name]
    yield
