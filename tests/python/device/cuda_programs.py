# SPDX-License-Identifier: Apache-2.0
"""Imports vLLM, which takes longer than most of its tests, and then forks a process for each line of standard input: a JSON
list of the file of tests that the process runs, and of its log. Answers with the exit code of each."""

import importlib
import json
import os
import sys

import pytest


def preload():
    for name in ("vllm.engine.arg_utils", "vllm.v1.request", "vllm.distributed.kv_transfer.kv_connector.v1.base",
                 "vllm.model_executor.models.llama"):
        importlib.import_module(name)
    from vllm.model_executor.models import registry

    # vLLM inspects the class of a model in another process, which would import everything again.
    registry._run_in_subprocess = lambda inspect: inspect()


def run(file, log):
    """Ends this process."""
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    os.dup2(out, 1)
    os.dup2(out, 2)
    sys.exit(pytest.main(["-q", "-p", "no:cacheprovider", file]))


def main():
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    preload()
    for line in iter(sys.stdin.readline, ""):
        pid = os.fork()
        if pid == 0:
            run(*json.loads(line))
        _, status = os.waitpid(pid, 0)
        print(os.waitstatus_to_exitcode(status), file=answers)


if __name__ == "__main__":
    main()
