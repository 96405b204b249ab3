"""Character centroids."""

from __future__ import annotations

import math
from collections import Counter, defaultdict

CENTROID_RANGE = (2, 4)


def standardised(scores):
    """Shift to mean 0 and scale to deviation 1."""
    if not scores:
        return {}
    mean = sum(scores.values()) / len(scores)
    spread = math.sqrt(sum((s - mean) ** 2 for s in scores.values()) / len(scores)) or 1.0
    return {label: (s - mean) / spread for label, s in scores.items()}


def grams(text, low, high):
    """Pieces of words, 2 to 5 characters long."""
    out = []
    for word in text.lower().split():
        word = f" {word} "
        for size in range(low, high + 1):
            out += [word[i : i + size] for i in range(len(word) - size + 1)]
    return out


def weighted(tokens, idf):
    counts = Counter(token for token in tokens if token in idf)
    vector = {token: (1 + math.log(n)) * idf[token] for token, n in counts.items()}
    norm = math.sqrt(sum(v * v for v in vector.values())) or 1.0
    return {token: v / norm for token, v in vector.items()}


def inverse_frequencies(documents):
    seen = Counter(token for document in documents for token in set(document))
    return {token: math.log((1 + len(documents)) / (1 + n)) + 1 for token, n in seen.items()}


class CentroidVoter:
    """Similarity to the mean of each label."""

    def learn(self, texts, labels):
        documents = [grams(text, *CENTROID_RANGE) for text in texts]
        self.idf = inverse_frequencies(documents)
        self.centres = defaultdict(Counter)
        for document, label in zip(documents, labels, strict=False):
            for token, value in weighted(document, self.idf).items():
                self.centres[label][token] += value

    def scores(self, text):
        query = weighted(grams(text, *CENTROID_RANGE), self.idf)
        out = {}
        for label, centre in self.centres.items():
            norm = math.sqrt(sum(v * v for v in centre.values())) or 1.0
            out[label] = sum(v * centre.get(t, 0.0) for t, v in query.items()) / norm
        return out


VOTERS = [CentroidVoter]


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
