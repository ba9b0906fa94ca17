# SPDX-License-Identifier: Apache-2.0
"""The shell commands of the pages in docs/using, and a script that runs those of one page in a network of its own."""

import re
import shlex
from dataclasses import dataclass, field

# Lines that are commands, in blocks whose commands have no "$ " in front.
COMMAND = re.compile(r"(tierce|make|curl|redis-cli|vllm|python3?|pip|kubectl|helm|docker|sudo|mkdir|export|printf) |tools/|\(umask |[A-Z]+=")
SERVERS = re.compile(r"\btierce (manager|node|proxy|router-index)(?! (backup|restore|--help|--print-config))\b")
SHELLS = ("", "sh", "bash", "console")


@dataclass
class Page:
    """How the commands of a page are run.

    setup: what its reader has; it runs first. replaces: text of commands -> text that is run. elsewhere: the beginning of a
    command -> the test that runs it, or why none can. fails: beginnings of commands that have no answer here, and whose exit
    status is not looked at.
    """
    setup: str = ""
    replaces: dict = field(default_factory=dict)
    elsewhere: dict = field(default_factory=dict)
    fails: tuple = ()


def is_whole(command):
    """Whether no quote, here-document or parenthesis is open, and the last line does not continue."""
    if re.search(r"\\$", command):
        return False
    here = re.search(r"<<-?'?(\w+)'?", command)
    if here:
        return re.search(rf"\n\s*{here[1]}$", command) is not None
    bare = re.sub(r" #[^\n]*", "", command)
    try:
        shlex.split(bare)
    except ValueError:
        return False
    bare = re.sub(r"'[^']*'", "", bare)
    return bare.count("(") == bare.count(")")


def blocks_of(text):
    """The lines of each code block that may have commands: fenced, or indented behind an empty line."""
    block, fence, last = [], None, ""
    for line in [*text.splitlines(), ""]:
        if line.lstrip().startswith("```"):
            if fence in SHELLS:
                yield block
            fence, block = (line.strip()[3:], []) if fence is None else (None, [])
        elif fence is not None:
            block.append(line)
        elif line.startswith("    ") and (block or last == ""):
            block.append(line[4:])
        elif block:
            yield block
            block = []
        last = line


def commands_of(text):
    """Each command of a page, with the lines that continue it. Output between commands is left out."""
    found = []
    for block in blocks_of(text):
        prompts, command = any(line.lstrip().startswith("$ ") for line in block), None
        for line in block:
            if command is not None:
                command += "\n" + line
            elif prompts and line.lstrip().startswith("$ "):
                command = line.lstrip()[2:]
            elif not prompts and COMMAND.match(line):
                command = line
            if command is not None and is_whole(command):
                found.append(command)
                command = None
        assert command is None, f"a command without an end: {command}"
    return found


PRELUDE = r"""set -e -o pipefail
ip link set lo up
declare -A servers
stop() {  # a server of this kind that the page has started in a terminal of its own
    if [ -n "${servers[$1]}" ]; then kill "${servers[$1]}"; wait "${servers[$1]}" || true; fi
    servers[$1]=
}
curl() {  # fails if a manager's answer says so; `answer` has it
    command curl -sS "$@" | tee answer
    echo
    if grep -o '"code":"[A-Z_]*"' answer | grep -qv '"OK"'; then return 1; fi
}
loads() {  # whether a manager that listens is loading its index still
    local port=$(sed -n 's/.*manager: listening on .*: gRPC [0-9]*, HTTP \([0-9]*\).*/\1/p' "$1" | tail -n 1)
    [ -n "$port" ] && command curl -s "localhost:$port/readyz" | grep -q "being loaded"
}
ready() {  # waits until the server that was started last says that it listens
    for i in $(seq 600); do
        if grep -qE 'listening|standby:' "$1" 2>/dev/null && ! loads "$1"; then return; fi
        kill -0 "$2" 2>/dev/null || break
        sleep 0.05
    done
    echo "no server: $(cat "$1")" >&2; exit 1
}
"""


def script(page, commands):
    """A script for bash that runs the commands in their order, and ends with the first one that fails."""
    lines = [PRELUDE, page.setup]
    for number, command in enumerate(commands):
        if command.startswith(tuple(page.elsewhere)):
            continue
        for old, new in page.replaces.items():
            command = command.replace(old, new)
        lines.append(f"echo {shlex.quote('+ ' + command)}")
        server = SERVERS.search(command)
        if server is None:
            lines.append(f"{{ {command}\n}} || true" if command.startswith(page.fails) else command)
            continue
        bare = re.sub(r"\s*&\s*$", "", re.sub(r"\s+#.*$", "", command))
        lines.append(f"stop {server[1]}\n{bare} >server{number} 2>&1 &\nready server{number} $!")
        if not command.rstrip().endswith("&"):  # it has a terminal of its own, until the page starts another one
            lines.append(f"servers[{server[1]}]=$!")
    return "\n".join(lines) + "\n"
