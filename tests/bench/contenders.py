"""Contestants that a plugin might bring, some of them broken."""

import time
from itertools import count

import torch

from specframe.plugin import Outcome


class Honest:
    """Greedy decoding by hand: one forward over everything, a token at a time."""

    name = "honest"
    lossless = True

    def prepare(self, target, sampling, batch):
        self.target, self.budget = target, sampling.max_new_tokens

    def decode(self, rows, seed):
        tokens, arrivals = [], []
        for row in rows:
            new, times = [], []
            while len(new) < self.budget and not (new and new[-1] in self.target.ends):
                with torch.inference_mode():
                    new.append(int(self.target.model(torch.tensor([[*row, *new]])).logits[0, -1].argmax()))
                times.append(time.perf_counter())
            tokens.append(new)
            arrivals.append(times)
        return self.outcome(tokens, arrivals)

    def outcome(self, tokens, arrivals):
        return Outcome(tokens, arrivals)


class Deviant(Honest):
    """Gives other tokens than the target."""

    name = "deviant"

    def outcome(self, tokens, arrivals):
        return Outcome([[*row[:-1], (row[-1] + 3) % 60 + 2] for row in tokens], arrivals)


class Faller(Honest):
    """Fails at its third decoding."""

    name = "faller"

    def __init__(self):
        self.calls = count(1)

    def decode(self, rows, seed):
        if next(self.calls) == 3:
            raise ValueError("the logits are NaN\nat layer 2")
        return super().decode(rows, seed)


class Outsider(Honest):
    """Gives a token that the vocabulary has not."""

    name = "outsider"

    def outcome(self, tokens, arrivals):
        return Outcome([[10_000] * len(row) for row in tokens], arrivals)


class Sulker(Honest):
    """Decodes well, but fails to report its figures."""

    name = "sulker"

    def outcome(self, tokens, arrivals):
        return Outcome(tokens, arrivals, lambda: 1 / 0)


class Hoarder(Honest):
    """Reports figures that JSON cannot hold."""

    name = "hoarder"

    def outcome(self, tokens, arrivals):
        return Outcome(tokens, arrivals, lambda: [{"logits": torch.zeros(2)} for _ in tokens])
