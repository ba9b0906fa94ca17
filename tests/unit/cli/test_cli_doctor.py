# SPDX-License-Identifier: Apache-2.0
"""tierce doctor on every kind of source."""

import hashlib
import json
import os
import shutil
import unittest

from cli_case import EXECUTABLE, CliCase

MODEL = {"rope_theta": 10000, "layers": [1, 2], "rope_scaling": {"factor": 2.0}, "name": "small"}
FIELDS = {
    "tierce-namespace": "1",
    "weights": "aabb",
    "model": json.dumps(MODEL),
    "kv_dtype": "bfloat16",
    "quantization": "",
    "layout": "vllm 0.32 cpu",
    "layer_count": "3",
    "cell_bytes": "4096x2,8192x1",
    "block_tokens": "32",
    "chunk_blocks": "8",
    "algo": "sha256",
}
DESCRIPTION = """
weights: aabb
model: {model}
kv_dtype: bfloat16
quantization: ""
layout: vllm 0.32 cpu
cell_bytes: [4096, 4096, 8192]
block_tokens: 32
chunk_tokens: 256
hash: sha256
"""


def text(**changes):
    return "".join(f"{k}={v}\n" for k, v in {**FIELDS, **changes}.items())


class Doctor(CliCase):
    def store(self, name, *texts):
        os.makedirs(os.path.join(self.folder, name, "ns"))
        for content in texts:
            digest = hashlib.sha256(content.encode()).hexdigest()
            self.write(f"{name}/ns/{digest}", content)
        return os.path.join(self.folder, name)

    def test_equal_namespaces_share(self):
        a, b = self.store("a", text()), self.write("b", text())
        self.check(0, "doctor", a, b, out=["They can share: every field"])
        self.check(0, "doctor", b, a, out=["They can share: every field"])

    def test_engines_of_two_kinds_never_share(self):
        layouts = [json.dumps({"dtype": "bfloat16", "engine": f"{engine} 0.5.23"}, separators=(",", ":"))
                   for engine in ("vllm", "sglang")]
        a, b = self.store("a", text(layout=layouts[0])), self.write("b", text(layout=layouts[1]))
        self.check(1, "doctor", a, b, out=["A is of vllm and B of sglang: they name their blocks by hashes"])
        other = self.write("c", text(layout=layouts[0].replace("0.5.23", "0.5.24")))
        self.assertNotIn("no setting", self.check(1, "doctor", a, other).stdout)

    def test_a_type_that_codecs_do_not_know_is_reported(self):
        a, b = self.store("a", text(kv_dtype="float32")), self.write("b", text(kv_dtype="float32"))
        self.check(0, "doctor", a, b, out=["store chunks of kv_dtype float32 unchanged"])

    def test_a_lossy_codec_is_reported(self):
        a, b = self.store("a", text()), self.write("b", text(quantization="tierce-int8"))
        lossy = "KV on disk and in remote stores is lossy: codec int8 (codec.lossy)."
        self.check(1, "doctor", a, b, out=["quantization\n    A: (empty)\n    B: tierce-int8", "B: " + lossy])
        self.check(1, "doctor", b, a, out=["A: " + lossy])
        self.check(0, "doctor", b, b, out=["They can share", "\n" + lossy])
        self.assertNotIn("lossy", self.check(0, "doctor", a, a).stdout)

    def test_lossy_codecs_of_configurations_are_compared(self):
        gate = "codec.quality: /q.json\n"
        exact, quantized, cells = text(), text(quantization="x"), text(quantization="tierce-cachegen-30-thkc64")
        a = {name: self.write(f"{name}.yaml", f"codec.lossy: {name}\n{gate if name != 'none' else ''}")
             for name in ("none", "int8", "int4", "cachegen")}
        silent = self.write("silent.yaml", "chunk.tokens: 256\n")
        lossy = "KV on disk and in remote stores is lossy: codec int8 (codec.lossy)."
        self.check(1, "doctor", a["int8"], a["int4"], out=["quantization\n    A: tierce-int8\n    B: tierce-int4", "A: " + lossy])
        for here in (a["none"], silent):
            self.check(1, "doctor", here, a["int8"], out=["quantization\n    A: (empty)\n    B: tierce-int8", "B: " + lossy])
            self.assertNotIn("lossy", self.check(0, "doctor", here, a["none"]).stdout)
        self.check(0, "doctor", a["int8"], a["int8"], out=["as far as these sources show", "A: " + lossy])
        # A namespace states more than a configuration.
        for content, same in ((text(quantization="tierce-int8"), "int8"), (cells, "cachegen"), (exact, "none"), (quantized, "none")):
            ns = self.write("ns", content)
            for name, path in a.items():
                self.check(int(name != same), "doctor", path, ns, out=[] if name == same else ["  quantization\n"])
                self.check(int(name != same), "doctor", ns, path)

    def test_a_configuration_with_nixl_is_checked_on_this_machine(self):
        a = self.write("a.yaml", "remote.urls: nixl:///s?read_only=true&library=/nothing/libnixl_capi.so&codec=none\n")
        b = self.write("b.yaml", "remote.urls: file:///s\n")
        self.check(0, "doctor", a, b, out=["A: nixl:// cannot be used on this machine: NIXL's library "
                                           "/nothing/libnixl_capi.so: No such file",
                                           "A: Tierce uses NIXL's plug-ins POSIX (nixl://) and OBJ (s3+nixl://) only."])
        self.check(0, "doctor", b, a, out=["B: nixl:// cannot be used on this machine",
                                           "(HF3FS) and RDMA (UCX) through NIXL are not used"])
        self.assertNotIn("NIXL", self.check(0, "doctor", b, b).stdout)
        c = self.write("c.yaml", "remote.urls: s3+nixl://AKID:hidden@bucket?library=/nothing/libnixl_capi.so\n")
        done = self.check(0, "doctor", c, b, out=["A: s3+nixl:// cannot be used on this machine: NIXL's library "])
        self.assertNotIn("hidden", done.stdout + done.stderr)

    def test_a_configuration_with_gpu_direct_is_checked_on_this_machine(self):
        a = self.write("a.yaml", "disk.gpu_direct: 1GiB\n")
        b = self.write("b.yaml", "chunk.tokens: 256\n")
        done = self.check(0, "doctor", a, b, out=["A: disk.gpu_direct"])
        self.assertRegex(done.stdout, "libcufile.so.0 is present|libcufile.so.0: .*; install libcufile .*LD_LIBRARY_PATH\n")
        self.assertNotIn("B: disk.gpu_direct", done.stdout)

    def test_policies_and_codecs_in_shared_objects_are_loaded(self):
        for name in ("policy", "codec"):
            built = os.path.join(os.path.dirname(EXECUTABLE), "..", "lib", f"libplugin_{name}.so")
            shutil.copy(built, os.path.join(self.folder, f"{name}.so"))
        a = self.write("a.yaml", f"memory.policy: plugin://{self.folder}/policy.so?uses=2\n"
                                 f"disk.codec: plugin://{self.folder}/codec.so\n"
                                 f"remote.codec: plugin://{self.folder}/policy.so\n")
        b = self.write("b.yaml", "disk.policy: plugin:///nothing/is/here.so\n")
        done = self.check(0, "doctor", a, b, out=[
            "A: memory.policy can be used on this machine: the plug-in has the policy fifo_reinsertion.\n",
            "A: disk.codec can be used on this machine: the plug-in has the codec planes_zstd.\n",
            "policy.so: exports no function tierce_plugin_codec\n",
            "B: disk.policy cannot be used on this machine: plug-in /nothing/is/here.so: No such file or directory\n"])
        self.assertNotIn("disk.policy can be", done.stdout)

    def test_each_field_alone_keeps_apart(self):
        a = self.write("a", text())
        changes = {"weights": "aabc", "kv_dtype": "float32", "quantization": "x",
                   "layout": "other", "layer_count": "4", "cell_bytes": "4096x3",
                   "algo": "xxh3-128", "tierce-namespace": "2"}
        for name, value in changes.items():
            b = self.write("b", text(**{name: value}))
            self.check(1, "doctor", a, b, out=[
                "They cannot share: 1 field differs.", f"  {name}\n", f"B: {value}\n"])
        b = self.write("b", text(chunk_blocks="16"))
        self.check(1, "doctor", a, b, out=["chunk_tokens\n    A: 256\n    B: 512"])
        b = self.write("b", text(future="1"))
        self.check(1, "doctor", a, b, out=["future\n    A: (missing)\n    B: 1"])

    def test_models_are_compared_value_by_value(self):
        a = self.write("a", text())
        other = {**MODEL, "rope_theta": 500000, "rope_scaling": {"factor": 4}, "layers": [1, 3],
                 "more": None}
        b = self.write("b", text(model=json.dumps(other)))
        self.check(1, "doctor", a, b, out=[
            "1 field differs", "model.rope_theta\n    A: 10000\n    B: 500000",
            "model.rope_scaling.factor\n    A: 2.0\n    B: 4",
            "model.layers.1\n    A: 2\n    B: 3", "model.more\n    A: (missing)\n    B: null"])
        b = self.write("b", text(model=json.dumps(dict(reversed(MODEL.items())))))
        self.check(1, "doctor", a, b, out=["the same values, written differently"])
        b = self.write("b", text(model="not json"))
        self.check(1, "doctor", a, b, out=["B: not json"])
        b = self.write("b", text(model=json.dumps({f"k{i}": i for i in range(100)})))
        self.check(1, "doctor", a, b, out=["and 84 more values"])
        b = self.write("b", text(model="[" * 1000 + "]" * 1000))
        self.check(1, "doctor", a, b, out=["cannot share"])

    def test_a_description_is_compared_with_a_namespace(self):
        ns = self.write("ns", text())
        a = self.write("a.yaml", DESCRIPTION.format(model=json.dumps(MODEL)))
        self.check(0, "doctor", a, ns, out=["as far as these sources show"])
        a = self.write("a.yaml", DESCRIPTION.format(model="'" + json.dumps(MODEL) + "'"))
        self.check(0, "doctor", ns, a)
        self.write("model/config.json", json.dumps(MODEL, indent=2))
        for path in ("model", "model/config.json"):
            a = self.write("a.yaml", DESCRIPTION.format(model=path))
            self.check(0, "doctor", ns, a)
        self.write("model/config.json", json.dumps({**MODEL, "name": "big"}))
        self.check(1, "doctor", ns, a, out=["model.name\n    A: \"small\"\n    B: \"big\""])
        a = self.write("a.yaml", "cell_bytes: 4096\nlayer_count: 3\n")
        self.check(1, "doctor", ns, a, out=["cell_bytes\n    A: 4096x2,8192x1\n    B: 4096x3",
                                            "do not contain it", "weights (missing in B)"])

    def test_a_models_own_file_is_compared_with_what_an_engine_made_of_it(self):
        effective = {"config": {**MODEL, "default": 1}, "dtype": "torch.bfloat16"}
        ns = self.write("ns", text(model=json.dumps(effective)))
        self.write("m/config.json", json.dumps({**MODEL, "unused": True}))
        a = self.write("a.yaml", "model: m\n")
        self.check(0, "doctor", a, ns, out=["Only the fields in the model's own file"])
        self.check(0, "doctor", ns, a, out=["Only the fields in the model's own file"])
        self.write("m/config.json", json.dumps({**MODEL, "rope_theta": 1}))
        self.check(1, "doctor", ns, a, out=["model.rope_theta\n    A: 10000\n    B: 1\n"])

    def test_configurations_are_compared_as_far_as_they_go(self):
        a = self.write("a.yaml", "chunk: {tokens: 512, hash: sha256}\nmemory.size: 1GiB\n")
        b = self.write("b.yaml", "chunk.tokens: 512\nmodel: m.json\n")
        self.write("m.json", json.dumps(MODEL))
        self.check(0, "doctor", a, b, out=["do not contain it", "algo (missing in B)",
                                           "model (missing in A)"])
        ns = self.write("ns", text())
        self.check(1, "doctor", a, ns, out=["chunk_tokens\n    A: 512\n    B: 256"])
        a = self.write("a.yaml", "chunk: {hash: xxh3-128}\n")
        self.check(1, "doctor", a, ns, out=["algo\n    A: xxh3-128\n    B: sha256"])

    def test_of_several_namespaces_the_best_match_is_taken(self):
        near, far = text(kv_dtype="float32"), text(kv_dtype="float32", weights="cc", layout="x")
        a = self.store("a", near)
        b = self.store("b", far, text())
        self.check(1, "doctor", a, b, out=["1 field differs"])
        c = self.store("c", near, far, text(weights="dd"))
        self.check(0, "doctor", a, c, out=["They can share"])
        self.check(0, "doctor", c, a, out=["1 of 3 namespaces of A can be shared with B."])

    def test_a_model_is_shared_if_all_of_its_groups_are(self):
        full = text(group="full", layers="0-2")
        window, other = (text(group="window", window=n, layers="3-5", layout="w") for n in ("65", "33"))
        a, b = self.store("a", full, window), self.store("b", window, full)
        said = self.check(0, "doctor", a, b, out=["2 of 2 namespaces of A can be shared with B."])
        self.assertNotIn("cannot", said.stdout)
        c = self.store("c", full, other)
        for here, there in ((a, c), (c, a)):
            self.check(1, "doctor", here, there, out=[
                "1 field differs", "  window\n", "1 of 2 namespaces of A can be shared with B.",
                "cannot be used, because the same model's group of layers 3-5 (window) cannot be shared"])
        # Two variants of the window group, one of them shared; and a model whose layers are all in one group.
        d = self.store("d", full, other, window)
        self.check(0, "doctor", a, d)
        self.check(0, "doctor", d, a, out=["2 of 3 namespaces of A"])
        e = self.store("e", full, window, text(weights="cc"))
        f = self.store("f", full, other, text(weights="cc"))
        self.check(0, "doctor", e, f, out=["2 of 3 namespaces of A", "cannot be used"])

    def test_a_group_names_its_field(self):
        full = self.write("a", text(group="full", layers="0-2"))
        for change in ({"layers": "0-1,3"}, {"group": "chunked", "window": "64"}):
            other = self.write("b", text(**{"group": "full", **change, "layers": change.get("layers", "0-2")}))
            self.check(1, "doctor", full, other, out=[f"  {name}\n" for name in change])
        plain = self.write("b", text())
        self.check(1, "doctor", full, plain, out=["group\n    A: full\n    B: (missing)"])

    def test_what_is_no_source_is_refused(self):
        good = self.write("good", text())
        empty = self.store("empty")
        plain = os.path.join(self.folder, "plain")
        os.makedirs(plain)
        damaged = self.store("damaged")
        self.write("damaged/ns/" + "0" * 64, text())
        cases = [
            ("/nowhere", "/nowhere: No such file"),
            (empty, "holds no namespaces yet"),
            (plain, "is not a store folder"),
            (damaged, "its digest is not its name"),
            ("/dev/null", "/dev/null: is neither a file nor a folder"),
            ("", '"" is neither a file nor a folder'),
        ]
        for path, says in cases:
            self.check(1, "doctor", path, good, err=[says])
            self.check(1, "doctor", good, path, err=[says])

    def test_hostile_files(self):
        good = self.write("good", text())
        cases = [
            (text()[:-1], "damaged namespace text"),
            ("tierce-namespace=1\nx", "damaged namespace text"),
            (b"tierce-namespace=1\n\0=\n", "x: holds a NUL byte"),
            ("weigths: aa\nkv_dtype: y\n", 'the nearest name is "weights"'),
            ("weights: aa\nweights: bb\n", "weights is given twice"),
            ("weights: [a]\n", "requires a single value"),
            ("weights: &a b\nlayout: *a\n", "requires a single value"),
            ("model: {a: &a 1, b: *a}\n", "JSON cannot represent"),
            ("model: {a: 1, a: 2}\n", "a key is given twice"),
            ("model: '{'\nlayout: x\n", "is not JSON"),
            ("model: /nowhere\nlayout: x\n", "No such file"),
            ("cell_bytes: 4096\n", "give layer_count too"),
            ("cell_bytes: [1, x]\n", "one for each layer"),
            ("cell_bytes: []\n", "one for each layer"),
            ("cell_bytes: [" + "1," * 5000 + "]\n", "one for each layer"),
            ("cell_bytes: [" + "1,2," * 2000 + "]\n", None),
            ("block_tokens: 0\n", "whole number >= 1"),
            ("hash: md5\nlayout: x\n", "sha256"),
            ("disk.pth: /x\n", 'nearest name is "disk.path"'),
            ("a: [\n", "is not valid YAML"),
            ("model: " + "{a: " * 63 + "}" * 63, "not valid YAML"),
            ("layout: x\nmodel: " + "x" * 5000, "model: "),
            ("tierce-namespace=1\n" + "".join(f"k{i}=\n" for i in range(500)), "damaged"),
            ("#" * (257 << 10), "is larger than 256 KiB, the limit for a YAML file"),
            ("x" * (9 << 20), "File too large"),
        ]
        for content, says in cases:
            path = self.write("x", content)
            if says is None:
                self.check(1, "doctor", path, good, out=["cannot share"])
            else:
                self.check(1, "doctor", path, good, err=[says])
                self.check(1, "doctor", good, path, err=[says])

    def test_wrong_arguments(self):
        self.check(2, "doctor", err=["requires two sources"])
        self.check(1, "doctor", "1", "2", err=[
            "tierce doctor: 1: No such file or directory; A and B are each a store folder, a file of "
            "STORE/ns, or YAML (see tierce help doctor)\n"])
        self.check(2, "doctor", "a", err=["requires two sources"])
        self.check(2, "doctor", "a", "b", "c", err=["requires two sources"])
        self.check(2, "doctor", "--fast", "a", "b", err=['no option "--fast"'])


if __name__ == "__main__":
    unittest.main()
