"""A vote of the five most similar train texts, by TF-IDF character n-grams.

One voter with its features and constants, the list VOTERS, and a classifier that sums what voters say.
"""

from __future__ import annotations

import copy
import heapq
import json
import math
import re
from array import array
from collections import Counter
from itertools import accumulate, chain
from typing import Any

CHAR_NEIGHBOURS_WEIGHT = 1.0
CHAR_NEIGHBOURS_K = 5
CHAR_NEIGHBOURS_SHORTEST = 2
CHAR_NEIGHBOURS_LONGEST = 5
CHAR_NEIGHBOURS_MIN_TEXTS = 2
CHAR_NEIGHBOURS_MAX_SHARE = 0.3


def char_neighbours_features(text: str) -> list[str]:
    """Return the character n-grams inside each word, the word's edges marked by a blank."""
    grams: list[str] = []
    for word in re.findall(r"\w+", text.lower()):
        edged = f" {word} "
        for size in range(CHAR_NEIGHBOURS_SHORTEST, CHAR_NEIGHBOURS_LONGEST + 1):
            if len(edged) <= size:
                grams.append(edged)
                break
            grams.extend([edged[i : i + size] for i in range(len(edged) - size + 1)])
    return grams


class CharNeighbours:
    """K nearest neighbours by character n-grams."""

    weight = CHAR_NEIGHBOURS_WEIGHT

    def learn(self, texts: list[str], labels: list[str]) -> None:
        """Index the texts: for every feature, which texts hold it and with which weight."""
        spread = Counter(feature for text in texts for feature in set(char_neighbours_features(text)))
        most = max(CHAR_NEIGHBOURS_MIN_TEXTS, CHAR_NEIGHBOURS_MAX_SHARE * len(texts))
        kept = [feature for feature, count in spread.items() if CHAR_NEIGHBOURS_MIN_TEXTS <= count <= most]
        self.numbers = {feature: number for number, feature in enumerate(kept)}
        self.idf = array("f", (math.log((1 + len(texts)) / (1 + spread[f])) + 1.0 for f in kept))
        holders = [array("I") for _ in kept]
        weights = [array("f") for _ in kept]
        for text_number, text in enumerate(texts):
            for number, value in self.vector(text).items():
                holders[number].append(text_number)
                weights[number].append(value)
        # Flat, because a fork copies every page that holds an object which is looked at.
        self.starts = array("I", accumulate(map(len, holders), initial=0))
        self.holders = array("I", chain.from_iterable(holders))
        self.weights = array("f", chain.from_iterable(weights))
        self.labels = list(labels)

    def vector(self, text: str) -> dict[int, float]:
        """Return the unit TF-IDF vector of a text over the known features."""
        counts = Counter(char_neighbours_features(text))
        vector: dict[int, float] = {}
        for feature, count in counts.items():
            number = self.numbers.get(feature)
            if number is not None:
                vector[number] = (1.0 + math.log(count)) * self.idf[number]
        length = math.sqrt(sum(value * value for value in vector.values())) or 1.0
        return {number: value / length for number, value in vector.items()}

    def similarities(self, text: str) -> list[float]:
        """Return the cosine of the angle to every train text, in their order."""
        found = [0.0] * len(self.labels)
        for number, value in self.vector(text).items():
            part = slice(self.starts[number], self.starts[number + 1])
            for text_number, weight in zip(self.holders[part], self.weights[part], strict=True):
                found[text_number] += value * weight
        return found

    def scores(self, text: str) -> dict[str, float]:
        """Return for each label the summed similarity of its texts among the K nearest."""
        found = self.similarities(text)
        votes: dict[str, float] = {}
        for text_number in heapq.nlargest(CHAR_NEIGHBOURS_K, range(len(found)), key=found.__getitem__):
            label = self.labels[text_number]
            votes[label] = votes.get(label, 0.0) + found[text_number]
        return votes


VOTERS = [CharNeighbours()]
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
