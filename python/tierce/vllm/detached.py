# SPDX-License-Identifier: Apache-2.0
"""A script that starts a node for own_node.py, so that the node is no descendant of vLLM's processes.

    python -S detached.py LINK RECORD COMMAND...

When vLLM ends, it kills all descendants of its processes. So the process that vLLM's worker started forks and exits, and
its child, which then has a parent outside of vLLM, runs COMMAND.

LINK is the descriptor of a socket (SOCK_SEQPACKET) that connects this script and the worker. The script writes the process
id of COMMAND, or the negative error number if COMMAND cannot be run. If the worker then writes anything, the script waits
for the end of COMMAND and writes its exit status. When the worker closes the socket or ends, the script exits, and COMMAND
runs on. COMMAND inherits RECORD, the descriptor with the record lock."""

import os
import sys


def run(link: int, record: int, command: list) -> None:
    os.set_inheritable(link, False)
    try:
        pid = os.posix_spawn(command[0], command, os.environ)
    except OSError as error:
        os.write(link, b"%d" % -error.errno)
        return
    # The worker takes the end of the lines, and other workers take a free record lock, for the end of the node.
    os.close(record)
    os.dup2(0, 2)
    os.write(link, b"%d" % pid)
    if os.read(link, 1):
        os.write(link, b"%d" % os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))


if __name__ == "__main__":
    if os.fork() > 0:
        os._exit(0)  # without Python's clean-up: until it has exited, the child is a descendant of the worker
    run(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])
