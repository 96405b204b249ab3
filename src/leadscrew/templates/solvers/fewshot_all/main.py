"""Asks a model which label fits, shown the names of the labels, the labelled texts of train, and the text.

Parts of a prompt, their words as constants, the list PARTS, and a solver that puts the parts in order and asks.
"""

from __future__ import annotations

import copy
import itertools
import json
import re
from typing import Any

INSTRUCTIONS = """Which label fits the last text best?
Texts that have their right label already stand before it.
Answer with exactly one label of the list.
Write the label and nothing else.
"""
LABELS_HEAD = "Labels: "
TEXT_HEAD = "Text: "
LABEL_HEAD = "Label:"
MAX_QUESTION_CHARS = 1500
MAX_SHOWN_CHARS = 5000
MAX_SHOWN_TEXT_CHARS = 240


def shortened(text: str, size: float) -> str:
    """Return a text on one line, cut where it is longer than `size` characters."""
    line = " ".join(text.split())
    return line if len(line) <= size else line[: int(size)].rstrip() + " ..."


class Instructions:
    """What is to be done."""

    place = 1.0

    def learn(self, texts: list[str], labels: list[str]) -> None:
        """Learn nothing."""

    def show(self, text: str) -> str:
        return INSTRUCTIONS


class LabelList:
    """The names of all labels."""

    place = 2.0

    def learn(self, texts: list[str], labels: list[str]) -> None:
        """Collect the names."""
        self.line = LABELS_HEAD + ", ".join(sorted(set(labels))) + "\n"

    def show(self, text: str) -> str:
        return self.line


class Demonstrations:
    """Labelled texts of train, as many as fit into MAX_SHOWN_CHARS: every label has one before any has a second.

    They stand in the order of learning and are the same for every question, so that a model server reads them once.
    """

    place = 3.0

    def learn(self, texts: list[str], labels: list[str]) -> None:
        """Choose what is shown. A text that does not fit any more is left out."""
        of_label: dict[str, list[int]] = {label: [] for label in sorted(set(labels))}
        for number, label in enumerate(labels):
            of_label[label].append(number)
        left: float = MAX_SHOWN_CHARS
        shown: dict[int, str] = {}
        for number in itertools.chain.from_iterable(itertools.zip_longest(*of_label.values())):
            if number is None:
                continue
            text = shortened(texts[number], MAX_SHOWN_TEXT_CHARS)
            lines = f"{TEXT_HEAD}{text}\n{LABEL_HEAD} {labels[number]}\n"
            if len(lines) < left:
                shown[number] = lines
                left -= len(lines) + 1
        self.lines = "\n".join(shown[number] for number in sorted(shown))

    def show(self, text: str) -> str:
        return self.lines


class Question:
    """The text whose label is wanted."""

    place = 4.0

    def learn(self, texts: list[str], labels: list[str]) -> None:
        """Learn nothing."""

    def show(self, text: str) -> str:
        return f"{TEXT_HEAD}{shortened(text, MAX_QUESTION_CHARS)}\n{LABEL_HEAD}"


PARTS = [Instructions(), LabelList(), Demonstrations(), Question()]
ONLY_LABELS = True
MAX_REPLY_TOKENS = 24


def text_of(value: Any) -> str:
    """Return the text of an input: the text itself, or all texts inside a mapping or list."""
    if isinstance(value, str):
        return value
    if isinstance(value, dict):
        return " ".join(text_of(part) for part in value.values())
    if isinstance(value, list):
        return " ".join(text_of(part) for part in value)
    return "" if value is None else str(value)


def label_in(reply: str, labels: list[str]) -> str:
    """Return the label that a reply names; where it names none, the reply itself, which is then a wrong answer.

    The whole reply counts first, then the whole reply in any case and without marks around it, then the label that
    comes first in it: of two that begin together, the longer one.
    """
    said = reply.strip()
    if said in labels:
        return said
    bare = said.strip(" \t\r\n.,:;!?\"'`*()[]<>").casefold()
    for label in labels:
        if label.casefold() == bare:
            return label
    found = []
    for label in labels:
        named = re.search(rf"(?<![A-Za-z0-9]){re.escape(label.casefold())}(?![A-Za-z0-9])", said.casefold())
        if label and named:
            found.append((named.start(), -len(label), label))
    return min(found)[2] if found else said[:200]


class Solver:
    """Asks the model once for each text. `llm(prompt, **options)` is the model."""

    def __init__(self, llm: Any) -> None:
        self.llm = llm
        self.parts: list[Any] = sorted(copy.deepcopy(PARTS), key=lambda part: part.place)
        self.texts: list[str] = []
        self.labels: list[str] = []
        self.known: list[str] = []

    def learn_from_batch(self, batch: list[dict[str, Any]]) -> None:
        for item in batch:
            self.texts.append(text_of(item["input"]))
            self.labels.append(item["ground_truth"])
        self.learn()

    def learn(self) -> None:
        self.known = sorted(set(self.labels))
        for part in self.parts:
            part.learn(self.texts, self.labels)

    def predict(self, input: Any) -> str:
        # Before anything was learned there is no label to choose, so nothing to ask.
        if not self.known:
            return ""
        prompt = "\n".join(part.show(text_of(input)) for part in self.parts)
        # With `labels` a model that can do so chooses the likeliest of them; others ignore it.
        only = {"labels": self.known} if ONLY_LABELS else {}
        return label_in(self.llm(prompt, max_tokens=int(MAX_REPLY_TOKENS), **only), self.known)

    def get_state(self) -> str:
        return json.dumps([self.texts, self.labels])

    def set_state(self, state: str) -> None:
        self.texts, self.labels = json.loads(state)
        self.learn()
