"""Nearest neighbours by words."""

from __future__ import annotations

import math
import re
from collections import Counter

WORDS_NEIGHBOURS = 1


def standardised(scores):
    """Shift to mean 0 and scale to deviation 1."""
    if not scores:
        return {}
    mean = sum(scores.values()) / len(scores)
    spread = math.sqrt(sum((s - mean) ** 2 for s in scores.values()) / len(scores)) or 1.0
    return {label: (s - mean) / spread for label, s in scores.items()}


def words(text):
    return re.findall(r"[a-z0-9_]+", text.lower())


def weighted(tokens, idf):
    counts = Counter(token for token in tokens if token in idf)
    vector = {token: (1 + math.log(n)) * idf[token] for token, n in counts.items()}
    norm = math.sqrt(sum(v * v for v in vector.values())) or 1.0
    return {token: v / norm for token, v in vector.items()}


def inverse_frequencies(documents):
    seen = Counter(token for document in documents for token in set(document))
    return {token: math.log((1 + len(documents)) / (1 + n)) + 1 for token, n in seen.items()}


class WordsVoter:
    """Similarity to the nearest training texts."""

    def learn(self, texts, labels):
        documents = [words(text) for text in texts]
        self.idf = inverse_frequencies(documents)
        self.rows = [weighted(document, self.idf) for document in documents]
        self.labels = list(labels)

    def scores(self, text):
        query = weighted(words(text), self.idf)
        near = [
            (sum(v * row.get(t, 0.0) for t, v in query.items()), y)
            for row, y in zip(self.rows, self.labels, strict=False)
        ]
        near.sort(reverse=True)
        totals = dict.fromkeys(self.labels, 0.0)
        for similarity, label in near[:WORDS_NEIGHBOURS]:
            totals[label] += similarity
        return totals


VOTERS = [WordsVoter]


class Classifier:
    """Sums the standardised scores of all voters."""

    def __init__(self):
        self.voters = [voter() for voter in VOTERS]

    def learn_from_batch(self, batch):
        texts = [item["input"] for item in batch]
        labels = [item["ground_truth"] for item in batch]
        for voter in self.voters:
            voter.learn(texts, labels)

    def predict(self, text):
        totals = {}
        for voter in self.voters:
            for label, score in standardised(voter.scores(text)).items():
                totals[label] = totals.get(label, 0.0) + score
        return max(sorted(totals), key=lambda label: totals[label]) if totals else ""
