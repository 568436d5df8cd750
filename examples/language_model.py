"""A language model: a GRU over words, trained on the docstrings of Python's standard library.

    gpu-engine run --set task.use=examples/language_model.py:Words --set devices.pick=1 \\
        --set train.epochs=5 --set train.lr=3e-3

It shows a dataset that is read example by example, a `collate` that pads sequences of different
lengths, and a loss and a metric that are means over words, not over examples.
"""

from __future__ import annotations

import ast
import re
import sysconfig
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence

from gpu_engine import Bounds, Task

PADDING, UNKNOWN, START, END = range(4)


@dataclass
class Words(Task):
    """Predicts the next word of a sentence.

    Shapes: B sentences, the longest of T words; batch = words (B, T + 1) int64, padded with 0;
    logits (B, T, vocabulary).
    """

    width: Annotated[int, Bounds(ge=1)] = 96
    "Size of the vector that stands for each word."
    hidden: Annotated[int, Bounds(ge=1)] = 192
    "Units of the GRU."
    vocabulary: Annotated[int, Bounds(ge=10)] = 2000
    "How many of the most frequent words are known; all others count as one unknown word."
    longest: Annotated[int, Bounds(ge=1)] = 24
    "The most words of a sentence that are read."
    files: Annotated[int, Bounds(ge=1)] = 150
    "Source files of the standard library to read."

    def __post_init__(self):
        self._parts = None

    def model(self) -> nn.Module:
        return WordModel(self.vocabulary, self.width, self.hidden)

    def train_data(self):
        return self._sentences()[0]

    def eval_data(self):
        return self._sentences()[1]

    def collate(self, examples):
        return pad_sequence(examples, batch_first=True, padding_value=PADDING)

    def loss(self, model, batch):
        # Batches differ in their number of words. With a sum and its count each word weighs the
        # same in a step, however the sentences are spread over devices and backward passes.
        target = batch[:, 1:].flatten()
        logits = model(batch[:, :-1]).float().flatten(0, 1)
        return (F.cross_entropy(logits, target, ignore_index=PADDING, reduction="sum"),
                (target != PADDING).sum())

    def metrics(self, model, batch):
        target = batch[:, 1:].flatten()
        logits = model(batch[:, :-1]).float().flatten(0, 1)
        real = target != PADDING
        return {"loss": F.cross_entropy(logits, target, ignore_index=PADDING, reduction="sum"),
                "accuracy": ((logits.argmax(1) == target) & real).sum(), "count": real.sum()}

    def _sentences(self):
        if self._parts is None:
            texts = list(sentences(self.files))
            counts = Counter(word for text in texts for word in text)
            # By frequency, then alphabetically: the same on every rank and machine.
            words = sorted(counts, key=lambda w: (-counts[w], w))[: self.vocabulary - 4]
            number = {word: i + 4 for i, word in enumerate(words)}
            coded = [torch.tensor([START, *(number.get(w, UNKNOWN) for w in t[: self.longest]),
                                   END]) for t in texts]
            held_out = coded[::20]
            del coded[::20]
            self._parts = coded, held_out
        return self._parts


class WordModel(nn.Module):
    """Words (B, T) → logits (B, T, vocabulary)."""

    def __init__(self, vocabulary: int, width: int, hidden: int) -> None:
        super().__init__()
        self.word = nn.Embedding(vocabulary, width, padding_idx=PADDING)
        self.memory = nn.GRU(width, hidden, batch_first=True)
        self.head = nn.Linear(hidden, vocabulary)

    def forward(self, words):
        return self.head(self.memory(self.word(words))[0])


def sentences(files: int):
    """The first sentence of each docstring, as lower-case words."""
    for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))[:files]:
        try:
            tree = ast.parse(path.read_text(encoding="utf-8", errors="replace"))
        except SyntaxError:
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Module):
                text = re.split(r"\.\s", ast.get_docstring(node) or "", maxsplit=1)[0]
                words = re.findall(r"[a-z0-9_]+", text.lower())
                if len(words) > 2:
                    yield words
