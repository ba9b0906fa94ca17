# SPDX-License-Identifier: Apache-2.0
"""The commands of README and docs/using run as they are written, each page in a network of its own, with its default ports. A command
that cannot run here names the test that runs it, or the reason."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from page_commands import Page, commands_of, script

ROOT = Path(__file__).resolve().parents[3]
USING = ROOT / "docs" / "using"
sys.path.insert(0, str(ROOT / "tests" / "system"))
from manager_process import executable  # noqa: E402

PACKAGES = "tests/python/tools/test_wheel.py"
EVERYWHERE = {"pip install": PACKAGES, "make wheel": PACKAGES, "tools/setup": ".ci/run", "sudo apt-get": "tests/python/tools/test_deb.py",
            "sudoedit": "an editor", "sudo systemctl": "no systemd in tests", "sudo install": "no sudo in tests", "make build": ".ci/run"}
VLLM = "tests/system/connector/test_vllm.py"
MANAGER = "tierce manager >manager.log 2>&1 &\nready manager.log $!\n"
ADDRESS = "ip address add {}/32 dev lo\n"
STORE = {"/var/lib/tierce": "$PWD/store", "8GiB": "64MiB", "64GiB": "64MiB", "200GiB": "1GiB", "1TiB": "1GiB"}
CERTIFICATE = ("openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj /CN=localhost -keyout key.pem -out cert.pem "
               "2>/dev/null; cp cert.pem ca.pem; chmod 600 key.pem\n")
TRACE = """for i in $(seq 60); do
    echo '{"timestamp": '$((i * 60000))', "input_length": 1500, "output_length": 20, "hash_ids": [1, 2, '$((i % 7 + 3))']}'
done >trace.jsonl
"""
EVENTS = """for i in $(seq 60); do
    for n in a b c; do
        printf '{"tierce_access":1,"time_us":%d,"op":"store","namespace":"%s","blocks":"%016x"}\\n' $((i * 1000000)) $n $((i % 7))
    done
done >events.log
"""
CHAT = "sed -n '/^```python$/,/^```$/p' $ROOT/docs/using/optimizer.md | grep -v '^```' | sed 's/range(20000)/range(500)/' >chat.py\n"
LLAMA = """mkdir llama; echo '{"model_type": "llama", "architectures": ["LlamaForCausalLM"], "num_hidden_layers": 32, "hidden_size": 4096,
"num_attention_heads": 32, "num_key_value_heads": 8, "torch_dtype": "bfloat16", "max_position_embeddings": 131072}' >llama/config.json
"""
SESSION = """"'$(grep -o '[a-z0-9]\\{32\\}' answer | head -n 1)'\""""
INDEX = "tierce router-index >index.log 2>&1 &\nready index.log $!\n"
MOONCAKE = "tests/system/serve/test_router_conductor.py"

PAGES = {
    "README": Page(replaces={'"…"': SESSION}, elsewhere={"make run": "tests/python/tools/test_demo.py", "vllm serve": VLLM}),
    "autopilot": Page(
        setup=MANAGER + """tierce group show default --json | sed 's/"name": *"default"/"name": "chat"/' >new.json
tierce group create new.json
""", replaces={"tierce group update": """sed -i 's/"version":"1"/"version":"2"/' chat.json; tierce group update"""}),
    "backup": Page(
        setup="mkdir backups registry\nprintf 'registry:\\n  uri: local://%s/registry/r\\n' $PWD >manager.yaml\n"
              "tierce manager --config manager.yaml >manager.log 2>&1 &\nready manager.log $!\nservers[manager]=$!\n",
        replaces={"/backups": "$PWD/backups", "tierce manager restore": "stop manager; rm registry/r; tierce manager restore"},
        elsewhere={"tierce storage adopt": "tests/system/manager/test_manager_backup.py"}),
    "blending": Page(elsewhere={"tools/kv_blend.py": "tests/python/tools/test_kv_blend.py"}),
    "comparison": Page(elsewhere={name: "tests/python/tools/test_compare.py" for name in
                                  ("git clone", "TIERCE_PYTHON", "echo SITE", "build/lmcache")}),
    "fleet": Page(setup="redis-server --save '' >redis.log &\nuntil redis-cli ping >pong && grep -q PONG pong; do sleep 0.05; done\nmkdir kv old\n",
                  replaces={"/mnt/kv": "HERE/kv", "64GiB": "64MiB", "1GiB": "64MiB",
                            "tierce storage drain nfs_01   ": """tierce storage add '{"global_unique_name":"old","nfs":{"root_path":"HERE/old/"}}'
tierce storage drain old""", "nfs_01": "old", "tierce storage remove": """until tierce storage drain old show | grep drained; do sleep 0.1; done
tierce storage remove"""}),
    "getting-started": Page(
        setup="mkdir store\ntierce node --disk.path=store --memory.size=64MiB >node.log 2>&1 &\nready node.log $!\n", replaces=STORE, elsewhere={"vllm serve": VLLM}),
    "kubernetes": Page(elsewhere={**{name: "tests/python/deploy/test_kubernetes.py" for name in ("docker", "helm", "kubectl")},
                                "sudo tools/image": "tests/python/deploy/test_image.py"}),
    "kv-events": Page(setup=INDEX, replaces=STORE),
    "lmcache": Page(elsewhere={"lmcache server": "tests/system/lmcache/test_lmcache_native.py"}),
    "manager": Page(
        setup="mkdir kv registry\n", replaces={
            '"b3uf…"': SESSION, "/mnt/kv": "HERE/kv",
            # A new storage gets its mark with the first probe.
            "tierce storage scrub NAME start            #": "until tierce storage scrub NAME start; do sleep 0.05; done  #",
            "tierce storage scrub NAME start --repair": "until ! tierce storage scrub NAME | grep 'ended_us: 0'; do sleep 0.05; done\n"
                                                        "tierce storage scrub NAME start --repair", "NAME": "nfs_01",
            "tierce manager": "tierce manager --registry.uri=local://HERE/registry/r"},
        elsewhere={"tierce storage adopt": "tests/system/manager/test_manager_marks.py", "tierce storage remove": "its page fleet.md",
                   "tierce directory": "tests/system/manager/test_manager_directory.py",
                   "tierce instance invalidate": "tests/system/manager/test_manager_invalidate.py"}),
    "migrate": Page(setup="printf 'chunk_size: 256\\nlocal_cpu: true\\nmax_local_cpu_size: 1\\n' >lmcache.yaml\n"
                          "echo LMCACHE_CHUNK_SIZE=256 >lmcache.env\n", elsewhere={"TIERCE_CONFIG=tierce.yaml vllm": VLLM}),
    "nixl": Page(elsewhere={name: "tests/system/node/test_nixl_plugin.py" for name in ("pip install", "mkdir plugins", "export NIXL", "tierce node")}),
    "node": Page(replaces={**STORE, " ...": "", "/mem --pool": "/mem --memory.size=64MiB --pool", "kill -HUP %1": "kill -HUP $!"},
                 ),
    "operation": Page(
        setup="mkdir store keys\ntierce node --control.socket=$PWD/control >first.log 2>&1 &\nready first.log $!\nservers[node]=$!\n",
        replaces={**STORE, "/run/user/1000/tierce/4711-0.sock": "$PWD/control", "/etc/tierce": "$PWD/keys", "sudo ": "",
                  "10GiB": "64MiB", "2GiB": "64MiB"}),
    "optimizer": Page(setup=TRACE + EVENTS + CHAT,
                      elsewhere={"tierce bench": "tests/unit/cli/test_cli_bench.py",
                   "tierce optimize trace.jsonl --model llama-3.1-8b --gpu h100 --cost-tier": "tests/unit/cli/test_cli_optimize_money.py",
                   "tierce optimize --live": "tests/system/manager/test_live.py"}),
    "peers": Page(setup=ADDRESS.format("10.0.0.1")),
    "policies": Page(setup=TRACE + "cc -shared -fPIC -I$ROOT/include -o mypolicy.so $ROOT/examples/plugin_policy/plugin_policy.c\n", replaces={"/usr/lib/tierce": "HERE"}),
    "prefill-decode": Page(elsewhere={"vllm serve": "tests/system/connector/test_handover.py"}, fails=("curl",)),
    "proxy": Page(setup=CERTIFICATE + "ENGINE_TOKEN=e INDEX_TOKEN=i\n", fails=("curl",)),
    "python": Page(elsewhere={"python examples": "tests/python/tools/test_transformers_example.py"}),
    "remote": Page(elsewhere={name: "tests/system/node/test_nixl_plugin.py" for name in ("pip install", "python -c")}),
    "router-index": Page(setup="mkdir keys\n", replaces={"/etc/tierce": "$PWD/keys"}, elsewhere={"vllm serve": VLLM, "python cache_aware": MOONCAKE}),
    "scenarios": Page(elsewhere={name: "tests/python/tools/test_scenarios.py" for name in ("vllm serve", "tools/demo", "tierce proxy ┤")}),
    "sglang": Page(setup="mkdir run\n", replaces={**STORE, "/run/tierce": "$PWD/run"}, elsewhere={
        "python -m sglang": "tests/python/test_sglang_storage.py", "… --hicache": "tests/python/test_sglang_storage.py"}),
    "sizing": Page(setup=LLAMA, replaces={"/models/Llama-3.1-8B-Instruct": "llama"}),
    "tensorrt-llm": Page(setup="mkdir run\n", replaces={**STORE, "/run/tierce": "$PWD/run"}, elsewhere={
        "TIERCE_MEMORY_SIZE": "tests/python/test_tensorrt_llm.py", "TIERCE_NODE_SOCKET": "tests/python/test_tensorrt_llm.py"}),
    "tiering": Page(elsewhere={"vllm serve": "tests/system/connector/test_tiering.py"}),
    "vllm": Page(replaces=STORE, elsewhere={"vllm serve": VLLM, "tools/demo/gpu.py": "tests/python/tools/test_demo.py",
                                            "LMCACHE_CONFIG_FILE": "tests/system/lmcache"}),
    "why": Page(elsewhere={"tierce why": "tests/python/test_why_text.py"}),
}


@pytest.mark.parametrize("file", [ROOT / "README.md", *sorted(USING.glob("*.md"))], ids=lambda path: path.stem)
def test_every_command_of_a_page_runs(file, tmp_path):
    commands = commands_of(file.read_text(encoding="utf-8"))
    page = PAGES.get(file.stem, Page())
    for begin, where in page.elsewhere.items():
        assert any(command.startswith(begin) for command in commands), f"no command of {file.name} begins with {begin}"
        assert "/" not in where or (ROOT / where.split("::")[0]).exists(), where
    page.elsewhere = {**EVERYWHERE, **page.elsewhere}
    text = script(page, commands).replace("HERE", str(tmp_path))
    if "\necho '+ " not in text:
        return
    (tmp_path / "commands").write_text(text)
    if subprocess.run(["unshare", "--net", "--pid", "--fork", "ip", "link", "set", "lo", "up"], capture_output=True, check=False).returncode != 0:
        pytest.skip("no network namespaces")
    env = {**{n: v for n, v in os.environ.items() if not n.startswith("TIERCE_")}, "HOME": str(tmp_path), "ROOT": str(ROOT),
           "PATH": f"{executable().parent}:{Path(sys.executable).parent}:{os.environ['PATH']}"}
    done = subprocess.run(["unshare", "--net", "--pid", "--fork", "--kill-child", "bash", "commands"], cwd=tmp_path, env=env, text=True,
                          stdin=subprocess.DEVNULL, capture_output=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
