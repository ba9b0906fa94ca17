# SPDX-License-Identifier: Apache-2.0
"""LLaVA of random weights, saved as a checkpoint with its tokenizer and its image processor, for the system tests. An image
of 224 pixels in each direction becomes 256 tokens."""

import json
import os

from engine import IMAGE_PIXELS
from hybrid_models import SIZES, VOCAB, gemma3, save_random

IMAGE = VOCAB  # the token that stands for an image, behind all others
IMAGE_TOKENS = 256
PATCH = 14


def llama():
    from transformers import LlamaConfig

    return LlamaConfig(**{**SIZES, "vocab_size": VOCAB + 1, "num_hidden_layers": 4, "num_key_value_heads": 2, "head_dim": 64})


def text_of(kind):
    """The configuration of the language model: one group, or windows beside full attention."""
    return llama() if kind == "llama" else gemma3(vocab_size=VOCAB + 1)[1]


def save_tokenizer(folder):
    """One token for each byte, as in the other test models, and one for an image."""
    from make_model import tokenizer_files

    for name, content in tokenizer_files():
        if name == "tokenizer.json":
            content["added_tokens"].append({**content["added_tokens"][0], "id": IMAGE, "content": "<image>"})
        with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
            json.dump(content, file)


def save_processor(folder):
    from transformers import CLIPImageProcessorPil, LlavaProcessor, PreTrainedTokenizerFast

    pixels = {"height": IMAGE_PIXELS, "width": IMAGE_PIXELS}
    images = CLIPImageProcessorPil(size={"shortest_edge": IMAGE_PIXELS}, crop_size=pixels)
    LlavaProcessor(images, PreTrainedTokenizerFast.from_pretrained(folder), patch_size=PATCH,
                   vision_feature_select_strategy="default", num_additional_image_tokens=1).save_pretrained(folder)


def name_as_published(folder):
    """vLLM 0.32 knows the names of the published checkpoints; transformers 5 writes others."""
    from safetensors.torch import load_file, save_file

    path = os.path.join(folder, "model.safetensors")
    weights = {name.replace("vision_tower.", "vision_tower.vision_model.").replace("vision_model.vision_model.", "vision_model."):
               tensor for name, tensor in load_file(path).items()}
    save_file(weights, path, metadata={"format": "pt"})


def make_llava(folder, kind):
    """Returns the folder."""
    from transformers import CLIPVisionConfig, LlavaConfig, LlavaForConditionalGeneration

    vision = CLIPVisionConfig(hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=2,
                              image_size=IMAGE_PIXELS, patch_size=PATCH, projection_dim=64)
    text = text_of(kind)
    config = LlavaConfig(vision_config=vision, text_config=text, image_token_index=IMAGE, vision_feature_layer=-1,
                         tie_word_embeddings=text.tie_word_embeddings)
    save_random(folder, LlavaForConditionalGeneration(config))
    name_as_published(folder)
    save_tokenizer(folder)
    save_processor(folder)
    return str(folder)
