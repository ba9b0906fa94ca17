# SPDX-License-Identifier: Apache-2.0
"""Keeps the KV of prompts of a plain transformers model in Tierce, in memory and on disk: an example of the Python API.

    python examples/transformers_prompt_cache.py MODEL_FOLDER STORE_FOLDER "a long prompt"

The second run of the same command loads the prompt's KV from disk. For models whose layers all have full attention, on the
CPU, and one prompt at a time.
"""

import sys
import time

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, DynamicCache
from transformers.cache_utils import DynamicLayer

import tierce

BLOCK = 16  # tokens


class PromptCache:
    """The KV of prompts and answers of one model. `tokens`: of the longest sequence that is kept; longer ones are cut."""

    def __init__(self, store: tierce.Store, model, weights: str, tokens: int = 8192):
        config = model.config.get_text_config()
        heads = config.num_key_value_heads
        head_size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        if not all(type(layer) is DynamicLayer for layer in DynamicCache(config=config).layers):
            raise ValueError("a layer of the model has no full attention: its KV depends on more than the tokens before it")
        if scaled := {getattr(part, "rope_type", "") for part in model.modules()} & {"dynamic", "longrope"}:
            raise ValueError(f"positions are encoded with {scaled}: keys depend on the length of the whole prompt")
        self.model, self.blocks = model, tokens // BLOCK
        self.kv = [torch.zeros(self.blocks, 2, heads, BLOCK, head_size, dtype=model.dtype)
                   for _ in range(config.num_hidden_layers)]
        attention = config._attn_implementation  # another one computes slightly different KV
        self.cache = store.cache(self.kv, model=type(model).__name__, weights=weights, block_tokens=BLOCK,
                                 layout=f"transformers {attention}: key and value, head, token, dim")

    def generate(self, prompt: torch.Tensor, **arguments) -> tuple[torch.Tensor, int]:
        """As `model.generate` for a prompt of shape (1, tokens); returns also the number of tokens that were not computed."""
        past = DynamicCache(config=self.model.config)
        loaded = self.load(prompt[0], past)
        output = self.model.generate(prompt, past_key_values=past, **arguments)
        self.store(output[0], past)
        return output, loaded

    def load(self, tokens: torch.Tensor, past: DynamicCache) -> int:
        wanted = min((len(tokens) - 1) // BLOCK, self.blocks)  # the model computes the last token, for its logits
        count = self.cache.load(tokens[:wanted * BLOCK], range(wanted)).tokens // BLOCK
        for index, layer in enumerate(self.kv):
            for_heads = layer[:count].permute(1, 2, 0, 3, 4).flatten(2, 3)  # 2, heads, tokens, head_size
            if count:
                past.update(for_heads[0][None].clone(), for_heads[1][None].clone(), index)
        return count * BLOCK

    def store(self, tokens: torch.Tensor, past: DynamicCache) -> int:
        count = min(past.get_seq_length() // BLOCK, self.blocks)
        for layer, computed in zip(self.kv, past.layers):
            both = torch.cat([computed.keys, computed.values])[:, :, :count * BLOCK]  # 2, heads, tokens, head_size
            layer[:count] = both.unflatten(2, (count, BLOCK)).permute(2, 0, 1, 3, 4)
        return self.cache.store(tokens[:count * BLOCK], range(count))


def main(model_folder: str, store_folder: str, text: str) -> None:
    model = AutoModelForCausalLM.from_pretrained(model_folder).eval()
    tokenizer = AutoTokenizer.from_pretrained(model_folder)
    prompt = tokenizer(text, return_tensors="pt").input_ids
    with tierce.open({"memory.size": "1GiB", "disk.path": store_folder}) as store:
        cache = PromptCache(store, model, tierce.fingerprint(model_folder))
        began = time.monotonic()
        output, loaded = cache.generate(prompt, max_new_tokens=32, do_sample=False)
        print(tokenizer.decode(output[0, prompt.shape[1]:]))
        print(f"{prompt.shape[1]} tokens, {loaded} of them loaded; {time.monotonic() - began:.2f} s")
        store.durable()


if __name__ == "__main__":
    main(*sys.argv[1:])
