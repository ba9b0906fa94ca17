# SPDX-License-Identifier: Apache-2.0
"""What `make run` asks: questions over long documents, or the head of a Mooncake trace.

A workload is a list of sessions, each a list of turns; a turn is the token ids that are appended
to what the session has said so far. The answer is appended too, so the second turn's prompt
begins with the first turn's prompt. Everything depends on the repository's files or the trace.
"""

import json
import random
from pathlib import Path

SYSTEM = (
    "You are a careful assistant that answers questions about the source code and the "
    "documents of a storage system for the attention state of language models. Read the "
    "document first, then the question after it. Answer in one short sentence, quote the line "
    "that you rely on, and say so when the document does not hold the answer. Never invent "
    "names of functions or files. Units are bytes, milliseconds and tokens unless the document "
    "says otherwise. The document begins after the next line.\n"
    "----------------------------------------------------------------------\n"
)
QUESTIONS = [
    ("What is the main promise that this part makes to its callers, and who has to keep it?",
     "And what happens when that promise cannot be kept, for example because memory is short?"),
    ("Which limits does the text name, and in which units are they given to the reader?",
     "Which of these limits would you raise first on a machine with four times the memory?"),
    ("Who owns the buffers that are mentioned here, and until when may they be used?",
     "What would go wrong if a second thread released one of those buffers too early?"),
    ("Which errors can be returned, and which of them are worth another try by the caller?",
     "Name one of the errors that must never reach the user, and say why that is so."),
]
TURN_END = 258  # the byte tokenizer's turn mark

DOCUMENT_BYTES = 2700
SOURCES = ["*.md", "LICENSE", "docs/**/*.md", "include/**/*.h", "src/**/*.md", "src/**/*.h",
           "src/**/*.c", "python/**/*.py", "tests/**/*.c", "tools/**/*.py"]


def project_text(root, needed):
    """At least `needed` bytes of the project's own documents and sources, in a fixed order."""
    root = Path(root)
    text = bytearray()
    seen = set()
    for pattern in SOURCES:
        for path in sorted(root.glob(pattern)):
            name = path.relative_to(root)
            if name in seen or name.parts[0] in ("build", ".venv", ".cache", "run"):
                continue
            seen.add(name)
            text += f"\n==> {name} <==\n".encode() + path.read_bytes()
            if len(text) >= needed:
                return bytes(text)
    raise SystemExit(f"the project holds only {len(text)} bytes of text, {needed} are needed")


def question_sessions(root, sessions=12):
    text = project_text(root, sessions * DOCUMENT_BYTES)
    out = []
    for i in range(sessions):
        document = text[i * DOCUMENT_BYTES:(i + 1) * DOCUMENT_BYTES]
        first, second = QUESTIONS[i % len(QUESTIONS)]
        out.append([
            [*SYSTEM.encode(), *document, *f"\nQuestion: {first}".encode(), TURN_END],
            [TURN_END, *f"Question: {second}".encode(), TURN_END],
        ])
    return out


def trace_sessions(path, scale, token_budget, prompt_max):
    """One single-turn session a request: each block id stands for `scale` fixed tokens. Ends
    before the prompts hold more than `token_budget` tokens together."""
    out, used = [], 0
    try:
        file = open(path, encoding="utf-8", errors="replace")
    except OSError as error:
        raise SystemExit(f"make run: the trace cannot be read: {error}")
    with file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                ids = [int(i) for i in json.loads(line)["hash_ids"]]
            except (ValueError, KeyError, TypeError):
                raise SystemExit(f"make run: {path}:{number} is not a record of a Mooncake trace: it "
                                 'must be a JSON object with "hash_ids", a list of numbers')
            prompt = []
            for block in ids[:prompt_max // scale]:
                draw = random.Random(block)
                prompt += [draw.randrange(256) for _ in range(scale)]
            if not prompt:
                continue
            used += len(prompt)
            if used > token_budget and out:
                break
            out.append([prompt])
    if not out:
        raise SystemExit(f"make run: {path}: no request in it")
    return out


def round_robin(sessions):
    """(session, turn) pairs: everyone's first turn, then everyone's second, and so on."""
    for turn in range(max(map(len, sessions))):
        for session, turns in enumerate(sessions):
            if turn < len(turns):
                yield session, turn
