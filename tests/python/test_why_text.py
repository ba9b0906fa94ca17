# SPDX-License-Identifier: Apache-2.0
"""tierce why --text: a prompt as text, tokenized by the model's tokenizer, of a running engine."""

import os
import subprocess
import sys
from array import array
from pathlib import Path

import pytest

tokenizers = pytest.importorskip("tokenizers")

from tierce import _core as core  # noqa: E402

EXECUTABLE = Path(__file__).parents[2] / "build/rel/bin/tierce"
BLOCKS, CELL = 64, 512
NAMESPACE = {"weights": "aa", "model": "m", "kv_dtype": "f", "quantization": "", "layout": "l",
             "layer_count": 1, "cell_bytes": [CELL], "block_tokens": 4, "chunk_blocks": 4,
             "algo": "sha256"}
SYSTEM = "you are a helpful assistant who answers in few words and never guesses . " * 3


def prompt(when):
    return f"{SYSTEM}It is {when} , größer . " + "the tools are listed below in any order . " * 3


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A tokenizer of words and single characters."""
    made = tokenizers.Tokenizer(tokenizers.models.BPE(unk_token="?"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    made.train_from_iterator(
        [SYSTEM, "the tools are listed below in any order It is größer"] * 10,
        tokenizers.trainers.BpeTrainer(special_tokens=["?", "<s>"],
                                       initial_alphabet=list("0123456789-:,.")))
    made.post_processor = tokenizers.processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", made.token_to_id("<s>"))])
    path = tmp_path_factory.mktemp("model")
    made.save(str(path / "tokenizer.json"))
    return path


@pytest.fixture
def why(tmp_path, folder):
    """Runs `tierce why --text` on an engine that holds the same prompt with another time."""
    os.mkdir(tmp_path / "run", 0o700)
    socket = tmp_path / "run/socket"
    engine = core.Engine.open(None, {"memory.size": "16MiB", "disk.path": "",
                                     "control.socket": str(socket)})
    view = engine.view(NAMESPACE)
    memory = array("b", bytes(CELL * BLOCKS))
    view.set_paged([memory.buffer_info()[0]], [CELL], BLOCKS)
    ids = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json")).encode(
        prompt("2026-11-27 10:15")).ids
    chain = view.chain()
    chain.append(array("i", ids))
    blocks = len(ids) // 4
    store = view.store_begin(chain, blocks, array("i", range(blocks)))
    store.layer(0)
    store.end()

    def run(text, *more, python=sys.executable):
        (tmp_path / "prompt").write_text(text, encoding="utf-8")
        return subprocess.run(
            [EXECUTABLE, "why", socket, "--text", tmp_path / "prompt", "--tokenizer", folder, *more],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=60, check=False,
            env={**os.environ, "TIERCE_PYTHON": python})

    yield run
    engine.close()


def test_what_is_stored_is_found(why):
    done = why(prompt("2026-11-27 10:15"))
    assert (done.returncode, done.stderr) == (0, "")
    assert "missing    nothing" in done.stdout and "text " not in done.stdout


def test_the_time_in_a_prompt_is_named(why):
    done = why(prompt("2026-11-28 11:20"))
    assert done.returncode == 1 and "reason     never_stored" in done.stdout
    lines = dict(line.split(maxsplit=1) for line in done.stdout.splitlines()[-2:])
    assert lines["suspect"] == '"2026-11-28", a date or time: it may differ in each request'
    shown = lines["text"].strip('"').removesuffix('..."')
    assert shown in prompt("2026-11-28 11:20") and len(shown) > 3


CAUSES = {
    "timestamp": ("It is 2026-11-28 11:20 ,", "It is 2026-11-27 10:15 ,",
                  'a timestamp: "2026-11-28 11:20" here, "2026-11-27 10:15" there'),
    "weekday": ("It is Friday noon", "It is Monday noon", 'a timestamp: "Friday" here, "Monday" there'),
    "seconds": ("now 1795820156 :", "now 1795820199 :",
                'a timestamp or an id: "1795820156" here, "1795820199" there'),
    "uuid": ("id 123e4567-e89b-12d3-a456-426614174000 .", "id 123e4567-e89b-12d3-a456-426614174fff .",
             'a random id (UUID): "123e4567-e89b-12d3-a456-426614174000" here, '
             '"123e4567-e89b-12d3-a456-426614174fff" there'),
    "hex": ("trace 0af7651916cd43dd8448 .", "trace 4bf92f3577b34da6a3ce .",
            'a random id (hexadecimal): "0af7651916cd43dd8448" here, "4bf92f3577b34da6a3ce" there'),
    "tools": ('[{"name": "get", "parameters": {}}]', '[{"name": "put", "parameters": {}}]',
              "a changed list of tools"),
    "template": ("<|im_start|>user hello", "<|start_header_id|>user hello", "a changed chat template"),
    "system": ("<|im_start|>system be kind <|im_end|>", "<|im_start|>system be brief <|im_end|>",
               "a changed system prompt"),
    "question": ("<|im_start|>system be kind <|im_end|> <|im_start|>user how are you",
                 "<|im_start|>system be kind <|im_end|> <|im_start|>user who are you", None)}


@pytest.mark.parametrize("case", CAUSES)
def test_the_likely_cause_of_a_difference(why, tmp_path, folder, case):
    here, there, cause = CAUSES[case]
    (tmp_path / "other").write_text(f"{SYSTEM} {there} {SYSTEM}")
    text = f"{SYSTEM} {here} {SYSTEM}"
    done = why(text, "--against", tmp_path / "other")
    assert (done.returncode, done.stderr) == (1, "")
    made = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    pairs = list(zip(made.encode(text).ids, made.encode(f"{SYSTEM} {there} {SYSTEM}").ids))
    at = next(i for i, (a, b) in enumerate(pairs) if a != b)
    assert f"against    differs at token {at}\n" in done.stdout
    lines = dict(line.split(maxsplit=1) for line in done.stdout.splitlines() if line[0] != " ")
    assert lines.get("cause") == cause
    assert here[-8:] in lines["here"] and there[-8:] in lines["there"] and "suspect" not in lines


def test_special_tokens_are_not_added_to_a_chat(why):
    done = why(prompt("2026-11-27 10:15"), "--chat")
    assert done.returncode == 1 and "held       0 tokens" in done.stdout


@pytest.mark.parametrize("text, more, python, said", [
    ("x", ["--tokenizer", "/nowhere"], sys.executable, "/nowhere: "),
    ("x", [], "/nowhere/python3", "/nowhere/python3: No such file or directory; set TIERCE_PYTHON"),
    ("x", ["--tokens", "-"], sys.executable, "requires exactly one of --tokens FILE, --text FILE")])
def test_what_is_wrong_is_named(why, text, more, python, said):
    done = why(text, *more, python=python)
    assert done.returncode in (1, 2) and said in done.stderr and not done.stdout


def test_a_text_of_other_bytes_is_named(why, tmp_path):
    (tmp_path / "bytes").write_bytes(b"hello \xff")
    done = why("x", "--against", tmp_path / "bytes")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"tierce why: {tmp_path}/bytes: is not UTF-8 text: byte 6 is 0xff\n"
