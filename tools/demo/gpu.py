#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A small Llama on plain torch with paged KV on a GPU, without Tierce and with it: the time to the first token.

    gpu.py [--device cuda|cpu] [--size demo|test | --model FOLDER] [--prompt-tokens N]

Each prompt is computed and stored (a miss), then loaded from memory, then loaded from disk by a new engine whose
memory is empty. The KV is described, ordered and moved by the classes that the vLLM connector uses. All of a load is
verified before the rest of the prompt is computed. The exit code is 0 only if each hit loaded all of its chunks from
the expected tier, and all answers of a prompt are equal.

A prompt is computed in pieces of one chunk, so the last piece has the same shape with and without a hit, and the
answers can be compared bit by bit.
"""

import argparse
import hashlib
import json
import math
import statistics
import sys
import tempfile
import time
from array import array
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "python"), str(Path(__file__).resolve().parent)]

import torch  # noqa: E402
from make_model import SIZES, VOCAB, weights as random_weights  # noqa: E402

BLOCK_TOKENS = 16
CHUNK_TOKENS = 256
TAIL_TOKENS = 17  # behind the last chunk; a hit computes them
FLUSH_MS = 60_000
PINNING_S = 120.0
PIN = 1  # a flag of View.lookup
ORIGINS = {"memory": 1, "disk": 2}
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


class Failed(Exception):
    """Shown to the user; the exit code is 1."""


# ---- the model


@dataclass
class Shape:
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    theta: float
    epsilon: float
    vocab: int

    @classmethod
    def of_config(cls, config):
        """config: a checkpoint's config.json. Raises Failed."""
        rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
        kind = rope.get("rope_type", rope.get("type", "default"))
        if config.get("architectures") != ["LlamaForCausalLM"]:
            raise Failed(f"architectures {config.get('architectures')}: only LlamaForCausalLM is implemented")
        if kind != "default" or config.get("attention_bias") or config.get("mlp_bias"):
            raise Failed(f"rotary embedding {kind!r}, or layers with a bias: not implemented")
        heads = config["num_attention_heads"]
        return cls(config["num_hidden_layers"], config["hidden_size"], heads, config.get("num_key_value_heads", heads),
                   config.get("head_dim") or config["hidden_size"] // heads,
                   config.get("rope_theta") or rope.get("rope_theta", 10000.0), config["rms_norm_eps"],
                   config["vocab_size"])

    @classmethod
    def of_size(cls, name):
        size = SIZES[name]
        return cls(size["layers"], size["hidden"], size["heads"], size["kv_heads"], size["head_dim"], 10000.0, 1e-5,
                   VOCAB)


class Llama:
    def __init__(self, shape, weights, device, dtype):
        self.shape, self.device = shape, device
        self.weights = {name: tensor.to(device, dtype) for name, tensor in weights.items()}
        self.weights.setdefault("lm_head.weight", self.weights["model.embed_tokens.weight"])
        steps = torch.arange(0, shape.head_dim, 2, dtype=torch.float32) / shape.head_dim
        self.frequencies = (shape.theta ** -steps).to(device)

    def norm(self, x, name):
        wide = x.float()
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.shape.epsilon)
        return wide.to(x.dtype) * self.weights[name]

    def rotate(self, x, first):
        """x: [tokens, heads, head_dim], the first token at position `first`."""
        positions = torch.arange(first, first + x.shape[0], device=self.device, dtype=torch.float32)
        angles = torch.outer(positions, self.frequencies)[:, None]
        low, high = x.float().chunk(2, -1)
        return torch.cat([low * angles.cos() - high * angles.sin(), high * angles.cos() + low * angles.sin()],
                         -1).to(x.dtype)

    def attend(self, x, layer, first, table, kv):
        shape, name, count = self.shape, f"model.layers.{layer}.self_attn.", x.shape[0]
        query, key, value = (torch.nn.functional.linear(x, self.weights[f"{name}{part}_proj.weight"]).view(
            count, -1, shape.head_dim) for part in "qkv")
        kv.write(layer, table, first, self.rotate(key, first), value)
        keys, values = kv.read(layer, table, first + count)
        every = shape.heads // shape.kv_heads
        seen = torch.ones(count, first + count, dtype=torch.bool, device=self.device).tril(first)
        out = torch.nn.functional.scaled_dot_product_attention(
            self.rotate(query, first).transpose(0, 1), keys.transpose(0, 1).repeat_interleave(every, 0),
            values.transpose(0, 1).repeat_interleave(every, 0), attn_mask=seen)
        return torch.nn.functional.linear(out.transpose(0, 1).reshape(count, -1), self.weights[name + "o_proj.weight"])

    def expand(self, x, layer):
        linear, name = torch.nn.functional.linear, f"model.layers.{layer}.mlp."
        gate = torch.nn.functional.silu(linear(x, self.weights[name + "gate_proj.weight"]))
        return linear(gate * linear(x, self.weights[name + "up_proj.weight"]),
                      self.weights[name + "down_proj.weight"])

    @torch.inference_mode()
    def forward(self, tokens, first, table, kv, layer_done=lambda layer: None):
        """Computes tokens from position `first` on; returns the token that follows. `layer_done` is called when
        the KV of a layer has been computed, or enqueued."""
        x = self.weights["model.embed_tokens.weight"][torch.tensor(tokens, device=self.device)]
        for layer in range(self.shape.layers):
            name = f"model.layers.{layer}."
            x = x + self.attend(self.norm(x, name + "input_layernorm.weight"), layer, first, table, kv)
            x = x + self.expand(self.norm(x, name + "post_attention_layernorm.weight"), layer)
            layer_done(layer)
        last = self.norm(x[-1:], "model.norm.weight")
        return int(torch.nn.functional.linear(last, self.weights["lm_head.weight"]).argmax())


# ---- the memory


class PagedKv:
    """Each layer's keys and values in blocks of BLOCK_TOKENS tokens."""

    def __init__(self, shape, blocks, device, dtype):
        self.blocks, self.device = blocks, device
        self.layers = [torch.zeros(blocks, 2, BLOCK_TOKENS, shape.kv_heads, shape.head_dim, device=device, dtype=dtype)
                       for _ in range(shape.layers)]

    def tensors(self):
        return {f"model.layers.{layer}.attn": tensor for layer, tensor in enumerate(self.layers)}

    def write(self, layer, table, first, keys, values):
        places = range(first, first + keys.shape[0])
        ids = torch.tensor([table[place // BLOCK_TOKENS] for place in places], device=self.device)
        offsets = torch.tensor([place % BLOCK_TOKENS for place in places], device=self.device)
        self.layers[layer][ids, 0, offsets] = keys
        self.layers[layer][ids, 1, offsets] = values

    def read(self, layer, table, count):
        ids = torch.tensor(table[:math.ceil(count / BLOCK_TOKENS)], device=self.device)
        halves = self.layers[layer][ids].transpose(0, 1).flatten(1, 2)
        return halves[0, :count], halves[1, :count]

    def spoil(self, table):
        """No answer can come from old bytes of these blocks."""
        ids = torch.tensor(table, device=self.device)
        for tensor in self.layers:
            tensor[ids] = float("nan")


class Machine:
    """The memory of a GPU or, with device cpu, of the host."""

    def __init__(self, device):
        from tierce.vllm.device import CudaMemory, HostMemory

        self.device = torch.device(device)
        if self.device.type == "cuda":
            self.device = torch.device("cuda", torch.cuda.current_device())
            self.memory = CudaMemory(self.device, stores_behind=True)
        else:
            self.memory = HostMemory()

    def describe(self):
        if self.device.type == "cuda":
            return f"{torch.cuda.get_device_name(self.device)}, torch {torch.__version__}"
        return f"memory of the host, torch {torch.__version__}"

    def paged(self, shape, blocks, dtype):
        return PagedKv(shape, blocks, self.device, dtype)

    def synchronize(self):
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def copy_seconds(self, count):
        """The shortest of some plain copies of so many bytes to the device, from pinned memory if it is a GPU."""
        source = torch.ones(count, dtype=torch.uint8, pin_memory=self.device.type == "cuda")
        target, times = torch.empty(count, dtype=torch.uint8, device=self.device), []
        for _ in range(5):
            self.synchronize()
            begin = time.perf_counter()
            target.copy_(source, non_blocking=True)
            self.synchronize()
            times.append(time.perf_counter() - begin)
        return min(times)


# ---- the cache


class Cache:
    """An engine of Tierce, and a view of the paged KV."""

    def __init__(self, machine, kv, namespace, settings):
        from tierce import _core
        from tierce.vllm.geometry import Geometry

        self.kv, self.memory = kv, machine.memory
        geometry = Geometry.of(kv.tensors(), kv.blocks)
        self.layers = len(geometry.bases)
        self.engine = _core.Engine.open(None, settings)
        view = self.engine.view({**namespace, "layer_count": self.layers, "cell_bytes": geometry.cell_bytes})
        view.set_paged(geometry.bases, geometry.strides, geometry.block_count, self.memory.kind)
        self.view = self.memory.view(view)
        self.prepare(view)

    def prepare(self, view):
        give_up = time.monotonic() + PINNING_S
        while not self.memory.prepare([view]):
            if time.monotonic() > give_up:
                raise Failed(f"the memory was not pinned for the GPU within {PINNING_S:.0f} s; see the log above")
            time.sleep(0.01)

    def chain(self, tokens):
        out = self.view.chain()
        out.append(array("i", tokens))
        return out

    def store_begin(self, tokens, table):
        blocks = len(tokens) // BLOCK_TOKENS
        store = self.view.store_begin(self.chain(tokens), blocks, array("i", table[:blocks]))
        if store is None:
            raise Failed("a prompt that should be a miss is in the cache already")
        return store

    def load(self, tokens, table, session, tier):
        """All of the tokens, verified. Raises Failed if they do not come from this tier."""
        chain, blocks = self.chain(tokens), len(tokens) // BLOCK_TOKENS
        found = self.view.lookup(chain, 0, blocks, PIN, session)[0]
        if found != blocks:
            raise Failed(f"a hit from {tier}: {found} of {blocks} blocks were found")
        self.memory.order_loads()
        load = self.view.load_begin(chain, 0, blocks, array("i", table[:blocks]), session)
        for layer in range(self.layers):
            load.layer(layer)
        origins = load.end()
        if origins != bytes([ORIGINS[tier]]) * blocks:
            raise Failed(f"a hit from {tier}: the blocks came from {sorted(set(origins))} "
                         "(0: failed, 1: memory, 2: disk, 3: a remote store)")
        self.memory.order_behind_loads()

    def close(self):
        """All that was stored is on disk. Memory is empty when the next one opens."""
        if not self.engine.flush(FLUSH_MS):
            raise Failed(f"the chunks were not on disk after {FLUSH_MS // 1000} s")
        self.engine.close()
        self.view = self.engine = None


# ---- the demonstration


@dataclass
class Row:
    what: str
    seconds: list = field(default_factory=list)
    answers: list = field(default_factory=list)


class Demo:
    def __init__(self, machine, model, dtype, options):
        shape = model.shape
        self.machine, self.model, self.options = machine, model, options
        self.held = options.prompt_tokens // CHUNK_TOKENS * CHUNK_TOKENS  # tokens of a hit
        self.length = self.held + TAIL_TOKENS
        blocks = math.ceil((self.length + options.answer_tokens) / BLOCK_TOKENS)
        self.kv = machine.paged(shape, 2 * blocks + 1, dtype)
        self.tables = [list(range(1, blocks + 1)), list(range(2 * blocks, blocks, -1))]  # of a miss, of a hit
        self.bytes = self.held * shape.layers * 2 * shape.kv_heads * shape.head_dim * dtype.itemsize
        generator = torch.Generator().manual_seed(options.seed)
        self.prompts = torch.randint(0, min(256, shape.vocab), (options.prompts + 1, self.length),
                                     generator=generator).tolist()

    def compute(self, prompt, table, first=0, store=None):
        """Returns the first token of the answer. The layers of the last piece are stored as they are computed: by
        then, all earlier tokens are."""
        token = None
        for at in range(first, self.length, CHUNK_TOKENS):
            last = at + CHUNK_TOKENS >= self.length
            told = {"layer_done": store.layer} if store is not None and last else {}
            token = self.model.forward(prompt[at:at + CHUNK_TOKENS], at, table, self.kv, **told)
        return token

    def answer(self, token, table):
        tokens = [token]
        while len(tokens) < self.options.answer_tokens:
            tokens.append(self.model.forward(tokens[-1:], self.length + len(tokens) - 1, table, self.kv))
        return tokens

    def miss(self, cache, prompt, row):
        table = self.tables[0]
        self.machine.synchronize()
        begin = time.perf_counter()
        store = cache.store_begin(prompt[:self.held], table)
        token = self.compute(prompt, table, store=store)
        row.seconds.append(time.perf_counter() - begin)
        stored = store.end()
        if stored * BLOCK_TOKENS != self.held:
            raise Failed(f"{stored * BLOCK_TOKENS} of {self.held} tokens were stored")
        row.answers.append(self.answer(token, table))

    def hit(self, cache, prompt, row, session, tier):
        table = self.tables[1]
        self.kv.spoil(table)
        self.machine.synchronize()
        begin = time.perf_counter()
        cache.load(prompt[:self.held], table, session, tier)
        token = self.compute(prompt, table, first=self.held)
        row.seconds.append(time.perf_counter() - begin)
        row.answers.append(self.answer(token, table))

    def run(self, namespace, settings):
        miss, memory, disk = rows = [Row("miss"), Row("hit from memory"), Row("hit from disk")]
        warm, *prompts = self.prompts
        self.compute(warm, self.tables[0])  # the first calls of kernels take longer
        cache = Cache(self.machine, self.kv, namespace, settings)
        for session, prompt in enumerate(prompts, 1):
            self.miss(cache, prompt, miss)
            self.hit(cache, prompt, memory, session, "memory")
        cache.close()
        cache = Cache(self.machine, self.kv, namespace, settings)
        for session, prompt in enumerate(prompts, 1):
            self.hit(cache, prompt, disk, session, "disk")
        cache.close()
        return rows


def print_rows(demo, rows, copy_s):
    size = demo.bytes / 2 ** 20
    print(f"{'':<17}{'TTFT':>12}{'computed':>11}{'loaded':>9}{'bytes of KV':>23}   answers")
    for row in rows:
        is_miss = row is rows[0]
        computed, loaded = (demo.length, 0) if is_miss else (TAIL_TOKENS, demo.held)
        moved = f"{size:,.1f} MiB {'stored' if is_miss else 'loaded'}"
        equal = "" if is_miss else "equal" if row.answers == rows[0].answers else "DIFFERENT"
        print(f"{row.what:<17}{1e3 * statistics.median(row.seconds):>9,.1f} ms{computed:>11,}{loaded:>9,}{moved:>23}"
              f"   {equal}")
    what = "pinned copy to the GPU" if demo.machine.memory.kind == "cuda" else "copy"
    print(f"\none plain {what} of {size:,.1f} MiB: {1e3 * copy_s:,.1f} ms, {demo.bytes / copy_s / 1e9:,.1f} GB/s")


def check_answers(rows):
    for row in rows[1:]:
        for number, (got, wanted) in enumerate(zip(row.answers, rows[0].answers, strict=True), 1):
            if got != wanted:
                raise Failed(f"{row.what}, prompt {number}: the answer differs from that of the miss: "
                             f"{got} instead of {wanted}")


# ---- the command


def options_of(arguments):
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--device", choices=["cuda", "cpu"], help="cpu: KV in the memory of the host; without this "
                        "option, the first GPU of torch")
    parser.add_argument("--model", metavar="FOLDER", help="a checkpoint of a Llama, with safetensors")
    parser.add_argument("--size", choices=[name for name in SIZES if "latent" not in SIZES[name]], default="demo",
                        help="of the model with random weights")
    parser.add_argument("--dtype", choices=DTYPES, help="default: bfloat16 on a GPU, float32 on the host")
    parser.add_argument("--prompt-tokens", type=int, default=2048, metavar="N")
    parser.add_argument("--answer-tokens", type=int, default=16, metavar="N")
    parser.add_argument("--prompts", type=int, default=3, metavar="N", help="the table has the medians")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--disk", metavar="FOLDER", help="where chunks are stored; default: a temporary folder")
    options = parser.parse_args(arguments)
    if options.prompt_tokens < CHUNK_TOKENS or options.answer_tokens < 1 or options.prompts < 1:
        parser.error(f"--prompt-tokens must be {CHUNK_TOKENS} or more, --answer-tokens and --prompts 1 or more")
    return options


def read_model(options):
    """Shape, weights, and their identity. Raises Failed."""
    if options.model is None:
        name = f"random weights, size {options.size}, seed {options.seed}"
        return (Shape.of_size(options.size), random_weights(SIZES[options.size], options.seed), name,
                hashlib.sha256(name.encode()).hexdigest())
    from safetensors.torch import load_file
    from tierce import _core

    folder = Path(options.model)
    files = sorted(folder.glob("*.safetensors"))
    if not files or not (folder / "config.json").exists():
        raise Failed(f"{folder} has no config.json or no *.safetensors")
    shape = Shape.of_config(json.loads((folder / "config.json").read_text()))
    found = {name: tensor for file in files for name, tensor in load_file(file).items()}
    return shape, found, str(folder), _core.fingerprint(str(folder))


def run(options, machine):
    shape, found, name, identity = read_model(options)
    dtype = DTYPES[options.dtype or ("bfloat16" if machine.device.type == "cuda" else "float32")]
    demo = Demo(machine, Llama(shape, found, machine.device, dtype), dtype, options)
    print(f"{machine.describe()}; {name}; {str(dtype).removeprefix('torch.')}\n"
          f"{options.prompts} prompts of {demo.length:,} tokens, {shape.layers} layers, "
          f"{demo.bytes // demo.held / 1024:g} KiB of KV per token\n", flush=True)
    namespace = {"weights": identity, "model": name, "kv_dtype": str(dtype), "quantization": "",
                 "layout": f"tools/demo/gpu.py {machine.memory.kind}", "block_tokens": BLOCK_TOKENS,
                 "chunk_blocks": CHUNK_TOKENS // BLOCK_TOKENS, "algo": "sha256"}
    with tempfile.TemporaryDirectory(prefix="tierce-gpu-", dir=options.disk) as folder:
        room = 2 * options.prompts * demo.bytes + (256 << 20)  # with headers, and room for what is read from disk
        rows = demo.run(namespace, {"memory.size": str(room), "disk.path": folder, "disk.size": str(room)})
    print_rows(demo, rows, machine.copy_seconds(demo.bytes))
    check_answers(rows)


def main(arguments=None, make_machine=Machine):
    options = options_of(arguments)
    device = options.device or "cuda"
    if device == "cuda" and not torch.cuda.is_available():
        print("gpu.py: torch finds no GPU (torch.cuda.is_available() is false); --device cpu keeps the KV in the "
              "memory of the host", file=sys.stderr)
        return 1
    try:
        run(options, make_machine(device))
    except Failed as error:
        print(f"gpu.py: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
