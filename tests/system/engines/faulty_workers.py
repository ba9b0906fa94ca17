# SPDX-License-Identifier: Apache-2.0
"""A worker extension for vLLM: one of several workers that fails where the others do not."""

import os
import signal

import pp_on_cpu  # noqa: F401
from engine import Faulty
from tierce.vllm import worker


class Mortal:
    """A store in which the process dies, when the first layers have been copied."""

    def __init__(self, real):
        self.real = real

    def layer(self, layer):
        self.real.layer(layer)
        os.kill(os.getpid(), signal.SIGKILL)


class Extension:
    """Named in worker_extension_cls, so that each worker has these methods."""

    def worker_half(self):
        (half,) = worker._here.values()
        return half

    def fail_loads(self, rank):
        """From now on loads fail in this rank, over memory that holds something else."""
        if self.rank != rank:
            return
        half = self.worker_half()
        for layer in self.model_runner.kv_caches:
            layer.fill_(0.5)
        self.transfer = Faulty(None, "layer")

        def begun(real):
            self.transfer.real = real
            return self.transfer

        half.whole_view, half.view = half.view, Faulty(half.view, None, {"load_begin": begun})

    def mend_loads(self, rank):
        """Returns how many loads have failed, in the rank."""
        if self.rank != rank:
            return 0
        half = self.worker_half()
        half.view = half.whole_view
        self.transfer.real = None  # or it would keep the view busy
        return self.transfer.hits

    def die_in_store(self, rank):
        if self.rank != rank:
            return
        half, made = self.worker_half(), {"store_begin": lambda real: real and Mortal(real)}
        if hasattr(half.view, "parts"):  # of several groups, of which this rank may store states only
            for part in half.view.parts:
                part.view = Faulty(part.view, None, made)
        else:
            half.view = Faulty(half.view, None, made)
