"""Complement naive Bayes on words and word pairs.

One voter with its features and constants, the list VOTERS, and a classifier that sums what voters say.
"""

from __future__ import annotations

import copy
import itertools
import json
import math
import re
from array import array
from collections import Counter
from itertools import accumulate, chain
from typing import Any

COMPLEMENT_BAYES_WEIGHT = 1.0
COMPLEMENT_BAYES_ALPHA = 0.3


def complement_bayes_features(text: str) -> list[str]:
    """Return the words of a text in lower case, and each pair of neighbouring words."""
    words = re.findall(r"[^\W\d_]+|\d+", text.lower())
    return words + [f"{first} {second}" for first, second in itertools.pairwise(words)]


class ComplementBayes:
    """Complement naive Bayes (Rennie et al. 2003, section 3.1): judges a label by the words of all the others."""

    weight = COMPLEMENT_BAYES_WEIGHT

    def learn(self, texts: list[str], labels: list[str]) -> None:
        """Count per label; keep for every feature the labels that hold it and what it adds."""
        counts: dict[str, Counter[str]] = {label: Counter() for label in sorted(set(labels))}
        for text, label in zip(texts, labels, strict=True):
            counts[label].update(complement_bayes_features(text))
        totals: Counter[str] = Counter()
        for count in counts.values():
            totals.update(count)
        whole = sum(totals.values())
        self.labels = list(counts)
        self.numbers = {feature: number for number, feature in enumerate(totals)}
        holders = [array("I") for _ in totals]
        gains = [array("f") for _ in totals]
        self.sizes = array("d")
        for label_number, count in enumerate(counts.values()):
            self.sizes.append(math.log(whole - sum(count.values()) + COMPLEMENT_BAYES_ALPHA * len(totals)))
            for feature, times in count.items():
                total = totals[feature]
                number = self.numbers[feature]
                holders[number].append(label_number)
                others = total - times
                gains[number].append(math.log((total + COMPLEMENT_BAYES_ALPHA) / (others + COMPLEMENT_BAYES_ALPHA)))
        # Flat, because a fork copies every page that holds an object which is looked at.
        self.starts = array("I", accumulate(map(len, holders), initial=0))
        self.holders = array("I", chain.from_iterable(holders))
        self.gains = array("f", chain.from_iterable(gains))

    def scores(self, text: str) -> dict[str, float]:
        """Return how unlikely the text is under the other labels' words, up to a constant."""
        found = [0.0] * len(self.labels)
        known = 0
        for feature in complement_bayes_features(text):
            number = self.numbers.get(feature)
            if number is None:
                continue
            known += 1
            part = slice(self.starts[number], self.starts[number + 1])
            for label_number, gain in zip(self.holders[part], self.gains[part], strict=True):
                found[label_number] += gain
        return {label: found[i] + known * self.sizes[i] for i, label in enumerate(self.labels)}


VOTERS = [ComplementBayes()]
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
