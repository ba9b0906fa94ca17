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


class ByteSpeech:
    """Of the model with random weights: a token per byte, and answers that mean nothing."""

    document_bytes = 2700
    turn_end = 258  # the byte tokenizer's turn mark

    def first(self, document, question):
        return [*SYSTEM.encode(), *document, *f"\nQuestion: {question}".encode(), self.turn_end]

    def next(self, question):
        return [self.turn_end, *f"Question: {question}".encode(), self.turn_end]

    def text(self, answer):
        return None


class ChatSpeech:
    """Of the trained model: the marks of its chat template around the texts."""

    document_bytes = 6000
    mark_end = "<|im_end|>"

    def __init__(self, model):
        from tokenizers import Tokenizer

        self.tokenizer = Tokenizer.from_file(str(Path(model) / "tokenizer.json"))

    def turn(self, role, text):
        return f"<|im_start|>{role}\n{text}{self.mark_end}\n"

    def ids(self, text):
        return self.tokenizer.encode(text, add_special_tokens=False).ids

    def first(self, document, question):
        asked = self.turn("user", f"{document.decode(errors='replace')}\n{question}")
        return self.ids(self.turn("system", SYSTEM) + asked + "<|im_start|>assistant\n")

    def next(self, question):
        return self.ids(f"{self.mark_end}\n{self.turn('user', question)}<|im_start|>assistant\n")

    def text(self, answer):
        """The answer up to the end of the model's turn. Generation continues after it (ignore_eos)."""
        return self.tokenizer.decode(answer, skip_special_tokens=False).split(self.mark_end)[0]


def question_sessions(root, speech, sessions=12):
    size = speech.document_bytes
    text = project_text(root, sessions * size)
    out = []
    for i in range(sessions):
        first, second = QUESTIONS[i % len(QUESTIONS)]
        out.append([speech.first(text[i * size:(i + 1) * size], first), speech.next(second)])
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
