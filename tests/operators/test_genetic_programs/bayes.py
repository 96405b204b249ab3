"""Complement naive Bayes over words and pairs."""

from __future__ import annotations

import itertools
import math
import re
from collections import Counter, defaultdict

BAYES_ALPHA = 0.3
BAYES_PAIRS = True


def standardised(scores):
    """Shift to mean 0 and scale to deviation 1."""
    if not scores:
        return {}
    mean = sum(scores.values()) / len(scores)
    spread = math.sqrt(sum((s - mean) ** 2 for s in scores.values()) / len(scores)) or 1.0
    return {label: (s - mean) / spread for label, s in scores.items()}


def words(text):
    return re.findall(r"[a-z0-9_]+", text.lower())


def pairs(tokens):
    return [f"{a} {b}" for a, b in itertools.pairwise(tokens)]


class BayesVoter:
    """What a text would cost under all other labels."""

    def features(self, text):
        tokens = words(text)
        return tokens + pairs(tokens) if BAYES_PAIRS else tokens

    def learn(self, texts, labels):
        self.counts = defaultdict(Counter)
        for text, label in zip(texts, labels, strict=False):
            self.counts[label].update(self.features(text))
        self.total = sum(self.counts.values(), Counter())
        self.size = sum(self.total.values())

    def scores(self, text):
        tokens = self.features(text)
        out = {}
        for label, counts in self.counts.items():
            rest = self.size - sum(counts.values()) + BAYES_ALPHA * len(self.total)
            out[label] = -sum(math.log((self.total[t] - counts[t] + BAYES_ALPHA) / rest) for t in tokens)
        return out


VOTERS = [BayesVoter]


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
