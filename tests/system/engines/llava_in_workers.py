# SPDX-License-Identifier: Apache-2.0
"""llava_on_cpu for the workers of an engine, which are processes of their own: vLLM imports the module of a worker's extension
before it loads the model."""

import llava_on_cpu

with llava_on_cpu.applied():
    pass


class Extension:
    pass
