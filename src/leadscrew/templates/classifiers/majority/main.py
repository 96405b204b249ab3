"""The most frequent label, whatever the text says.

One voter with its features and constants, the list VOTERS, and a classifier that sums what voters say.
"""

from __future__ import annotations

import copy
import json
import math
from collections import Counter
from typing import Any

MAJORITY_WEIGHT = 1.0


class Majority:
    """Scores labels by how often they occur in train."""

    weight = MAJORITY_WEIGHT

    def learn(self, texts: list[str], labels: list[str]) -> None:
        """Count the labels."""
        self.counts = Counter(labels)

    def scores(self, text: str) -> dict[str, float]:
        """Return each label's share of the train texts."""
        whole = sum(self.counts.values())
        return {label: count / whole for label, count in self.counts.items()}


VOTERS = [Majority()]
TOP_SHOWN = 3
GROWTH = 1.05


def text_of(value: Any) -> str:
    """Return the text of an input: the text itself, or all texts inside a mapping or list."""
    if isinstance(value, str):
        return value
    if isinstance(value, dict):
        return " ".join(text_of(part) for part in value.values())
    if isinstance(value, list):
        return " ".join(text_of(part) for part in value)
    return "" if value is None else str(value)


class Classifier:
    """Adds up the standardised scores of the voters; the label with the highest sum is the answer."""

    def __init__(self) -> None:
        self.voters: list[Any] = copy.deepcopy(VOTERS)
        self.texts: list[str] = []
        self.labels: list[str] = []
        self.known: list[str] = []
        self.learnt = 0

    def learn_from_batch(self, batch: list[dict[str, Any]]) -> None:
        for item in batch:
            self.texts.append(text_of(item["input"]))
            self.labels.append(item["ground_truth"])
        # Items that come one by one are taken in a few at a time: learning anew after each would be too slow.
        if len(batch) > 1 or len(self.texts) >= GROWTH * self.learnt:
            self.learn()

    def learn(self) -> None:
        self.learnt = len(self.texts)
        self.known = sorted(set(self.labels))
        for voter in self.voters:
            voter.learn(self.texts, self.labels)

    def predict(self, input: Any) -> tuple[str, dict[str, Any]]:
        if not self.known:
            return "", {"scores": []}
        text = text_of(input)
        totals = dict.fromkeys(self.known, 0.0)
        for voter in self.voters:
            scores = voter.scores(text)
            values = [scores.get(label, 0.0) for label in self.known]
            mean = sum(values) / len(values)
            spread = math.sqrt(sum((value - mean) ** 2 for value in values) / len(values)) or 1.0
            for label, value in zip(self.known, values, strict=True):
                totals[label] += voter.weight * (value - mean) / spread
        best = sorted(totals, key=totals.__getitem__, reverse=True)[:TOP_SHOWN]
        return best[0], {"scores": [[label, round(totals[label], 3)] for label in best]}

    def get_state(self) -> str:
        return json.dumps([self.texts, self.labels])

    def set_state(self, state: str) -> None:
        self.texts, self.labels = json.loads(state)
        self.learn()
