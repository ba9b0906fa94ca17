# SPDX-License-Identifier: Apache-2.0
"""Prints vectors.h: block and chunk hashes as Python, vLLM and LMCache compute them.

usage: make_vectors.py VLLM_FOLDER | clang-format-14 > vectors.h

VLLM_FOLDER is the `vllm` package of an unpacked wheel (0.32.0 was used); its own sha256_cbor and
hash_block_tokens run here, torch is not needed. Wants cbor2, xxhash and a 64-bit CPython >= 3.8.
"""

import ast
import hashlib
import importlib.util
import pathlib
import struct
import sys


def load_vllm(folder):
    path = pathlib.Path(folder)
    spec = importlib.util.spec_from_file_location("hashing", path / "utils/hashing.py")
    hashing = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(hashing)
    tree = ast.parse((path / "v1/core/kv_cache_utils.py").read_text())
    wanted = [
        node
        for node in tree.body
        if (isinstance(node, ast.FunctionDef) and node.name == "hash_block_tokens")
        or (isinstance(node, ast.Assign) and node.targets[0].id == "DEFAULT_NONE_HASH_SEED")
    ]
    scope = {"BlockHash": bytes}
    header = ast.parse("from __future__ import annotations").body
    exec(compile(ast.Module(header + wanted, []), "kv_cache_utils", "exec"), scope)
    scope["NONE_HASH"] = hashing.sha256_cbor(scope["DEFAULT_NONE_HASH_SEED"])
    return hashing.sha256_cbor, scope["hash_block_tokens"], scope["NONE_HASH"]


def token(i):
    """The tokens that the tests use; every length of a CBOR number is among them."""
    edges = [0, 1, 23, 24, 255, 256, 65535, 65536, 2**31 - 1, 2**31, 2**32 - 1]
    return edges[i] if i < len(edges) else (i * 7919) % 151936


def c_array(kind, name, values):
    print(f"static const {kind} {name}[] = {{{', '.join(values)}}};")


def c_hashes(name, hashes):
    c_array("char *const", name, [f'"{h.hex()}"' for h in hashes])


def vllm_chain(hash_block, hash_fn, block, count, extras):
    parent, out = None, []
    for b in range(count):
        tokens = [token(i) for i in range(b * block, (b + 1) * block)]
        parent = hash_block(hash_fn, parent, tokens, extras.get(b))
        out.append(parent)
    return out


def lmcache_chain(hash_fn, chunk, count, prefix, unfull):
    out, tokens = [], [token(i) for i in range(count)]
    for start in range(0, count, chunk):
        part = tuple(tokens[start : start + chunk])
        if len(part) < chunk and not unfull:
            break
        prefix = hash_fn((prefix, part, ()))
        if isinstance(prefix, bytes):
            prefix = int.from_bytes(prefix[:8], "big")
        out.append(prefix)
    return out


def own_root(algo, lora=b"", salt=b"", other=b""):
    message = b"tierce-chain-root-1\0"
    for part in (algo, lora, salt, other):
        message += struct.pack("<Q", len(part)) + part
    return hashlib.sha256(message).digest()


def own_chain(hash_fn, root, block, count, extras):
    parent, out = root, []
    for b in range(count):
        tokens = [token(i) for i in range(b * block, (b + 1) * block)]
        extra = extras.get(b, b"")
        message = struct.pack(f"<{block}I", *tokens) + extra + parent
        parent = hash_fn(message + struct.pack("<II", block, len(extra)))
        out.append(parent)
    return out


def own_vectors(vllm_16):
    import xxhash

    rooted = dict(lora=b"adapter", salt=b"tenant")
    functions = {
        "sha256": lambda m: hashlib.sha256(m).digest(),
        "xxh3": lambda m: xxhash.xxh3_128_digest(m) + bytes(16),
    }
    names = {"sha256": b"sha256", "xxh3": b"xxh3-128"}
    for short, fn in functions.items():
        root = own_root(names[short])
        for block in (1, 16, 32, 300):
            c_hashes(f"{short}_block_{block}", own_chain(fn, root, block, 5, {}))
        root = own_root(names[short], **rooted)
        chain = own_chain(fn, root, 16, 5, {1: b"picture", 3: b"x" * 100})
        c_hashes(f"{short}_rooted_extras", [root] + chain)
    root = own_root(b"vllm-sha256-cbor", **rooted)
    domain = b"tierce-chain-fold-1".ljust(32, b"\0")
    folded = [hashlib.sha256(domain + root + h).digest() for h in vllm_16]
    c_hashes("vllm_rooted_16", [root] + folded)


def c_ints(name, values):
    items = [f"{{0x{abs(v):x}ULL, {'true' if v < 0 else 'false'}}}" for v in values]
    c_array("struct tierce__lmcache_int", name, items)


def main():
    import cbor2

    sha256_cbor, hash_block, none_hash = load_vllm(sys.argv[1])
    print("/* SPDX-License-Identifier: Apache-2.0 */")
    print("/* Written by make_vectors.py; do not edit. */")
    c_hashes("vllm_none_hash", [none_hash])
    for block in (1, 16, 32, 300):
        chain = vllm_chain(hash_block, sha256_cbor, block, 5, {})
        c_hashes(f"vllm_block_{block}", chain)
    extras = {1: (("mm", "picture-1", -3), "lora"), 3: ("salt",)}
    c_hashes("vllm_extras", vllm_chain(hash_block, sha256_cbor, 16, 5, extras))
    for b, keys in extras.items():
        item = cbor2.dumps(keys, canonical=True)
        c_array("uint8_t", f"vllm_extra_{b}", [f"0x{x:02x}" for x in item])

    own_vectors(vllm_chain(hash_block, sha256_cbor, 16, 5, {}))

    folded_none = int.from_bytes(none_hash[:8], "big")
    c_ints("lmcache_none_hash", [folded_none])
    for name, fn in (("builtin", hash), ("cbor", sha256_cbor)):
        for tag, prefix in (("zero", 0), ("none", folded_none), ("negative", -(2**63))):
            chain = lmcache_chain(fn, 256, 1000, prefix, True)
            c_ints(f"lmcache_{name}_{tag}", chain)
    numbers = [0, 1, -1, -2, 2**61 - 2, 2**61 - 1, 2**61, -(2**61 - 1), -(2**61), 2**63 - 1]
    numbers += [-(2**63), 2**64 - 1]
    c_ints("python_ints", numbers)
    c_array("int64_t", "python_int_hashes", [f"{hash(n)}" for n in numbers])
    tuples = [tuple(range(n)) for n in range(5)]
    c_array("int64_t", "python_tuple_hashes", [f"{hash(t)}" for t in tuples])


if __name__ == "__main__":
    main()
