"""A suffix automaton of one growing text: where its suffixes occurred before, how often, and their continuations."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Copied:
    """A continuation copied from the text itself, and how probable it is."""

    tokens: list[int]
    probabilities: list[float]
    """The path probability at each token: the product of count ratios from the first token on."""
    match: int
    """The length of the suffix whose occurrences were followed."""

    @property
    def score(self) -> float:
        """Expected number of accepted tokens if the count ratios are the true probabilities."""
        return sum(self.probabilities)


NOTHING = Copied([], [], 0)


class SuffixAutomaton:
    """All substrings of a text in at most two states a token, with the number of their occurrences.

    A state represents the substrings with the same set of end positions; all are suffixes of the longest one.
    Appending a token takes amortised constant time (Blumer et al. 1985). Occurrences are counted for substrings of
    at most `depth` tokens, which bounds the time for periodic texts.
    """

    def __init__(self, tokens: Iterable[int] = (), depth: int = 64) -> None:
        self.depth = depth
        self._next: list[dict[int, int]] = [{}]  # state -> token -> state
        self._link = [-1]  # state -> the state of its longest suffix that also ends elsewhere
        self._length = [0]  # state -> the tokens of its longest substring
        self._count = [0]  # state -> occurrences; exact where the shortest substring has at most `depth` tokens
        self._last = 0  # the state of the whole text
        self._cursor = 0  # the state of the text's last `_window` tokens
        self._window = 0
        self.extend(tokens)

    def extend(self, tokens: Iterable[int]) -> None:
        """Appends tokens to the text."""
        for token in tokens:
            self._append(token)
            self._advance(token)

    def suffixes(self, later: Sequence[int] = ()) -> list[tuple[int, int]]:
        """Repeated suffixes of the text, of at most `depth` tokens, as (state, length), the longest first.

        Each set of occurrences is represented by its longest suffix. With tokens `later` after the text, the suffixes
        of both together that occur in the text.
        """
        found = []
        state, length = self._cursor, self._window
        for token in later:
            state, length = self._step(state, length, token)
        if self._count[state] < 2 and not later:  # the last tokens occur only once
            state = self._link[state]
            length = self._length[state] if state > 0 else 0
        while state > 0:
            found.append((state, length))
            state = self._link[state]
            length = self._length[state]
        return found

    def count(self, state: int) -> int:
        """Returns the number of occurrences of the state's substrings in the text, its own end included."""
        return self._count[state]

    def copy(
        self, later: Sequence[int] = (), *, cap: int = 15, doubt: float = 2.0, least: float = 0.1, tries: int = 16
    ) -> Copied:
        """The continuation with the best score over the text's `tries` longest repeated suffixes.

        A suffix is continued with the most frequent next token for at most `cap` tokens, while the path probability is
        at least `least`. After a match of m tokens, a token that followed c of n times has probability
        c / (n + doubt / m), so that long matches are used at once and short ones after several occurrences. Ties go
        to the longer suffix. With tokens `later` after the text, returns the copy for the text and these tokens.

        Source: SuffixDecoding (Oliaro et al. 2024), section 3, with an automaton instead of a tree. In the paper the
        match length bounds the draft's length and does not affect the probability.
        """
        best = NOTHING
        highest = 0.0
        ends = {state for state, _ in self.suffixes()} if later else None
        for state, match in self.suffixes(later)[:tries]:
            shortest = self._length[self._link[state]] + 1  # with the same occurrences
            most = min(cap, self.depth - shortest)
            if most > highest:  # no probability is above 1
                seen = self._count[state] - (ends is None or state in ends)  # the text's end has no next token
                found = self._follow(state, match, seen, most, doubt, least)
                score = sum(found[1])
                if score > highest:
                    best, highest = Copied(*found, match), score
        return best

    def _follow(
        self, state: int, match: int, seen: int, most: int, doubt: float, least: float
    ) -> tuple[list[int], list[float]]:
        """Returns at most `most` of the most frequent tokens after a state, and their path probabilities."""
        count = self._count
        probability = 1.0
        tokens: list[int] = []
        probabilities: list[float] = []
        while len(tokens) < most and (after := self._next[state]):
            if len(after) == 1:
                ((token, child),) = after.items()
            else:
                token, child = max(after.items(), key=lambda item: count[item[1]])  # ties: the first seen
            probability *= count[child] / (seen + doubt / match)
            if probability < least:
                break
            tokens.append(token)
            probabilities.append(probability)
            state, seen, match = child, count[child], match + 1
        return tokens, probabilities

    def _step(self, state: int, length: int, token: int) -> tuple[int, int]:
        """The state and length of the longest suffix of a state's substring plus a token that occurs in the text."""
        while state >= 0 and token not in self._next[state]:
            state = self._link[state]
            length = self._length[state] if state > 0 else 0
        if state < 0:
            return 0, 0
        state, length = self._next[state][token], min(length + 1, self.depth)
        while self._length[self._link[state]] >= length:
            state = self._link[state]
        return state, length

    def _append(self, token: int) -> None:
        """Adds the text's new suffixes to the automaton."""
        following, link, length = self._next, self._link, self._length
        state = len(following)
        following.append({})
        length.append(length[self._last] + 1)
        link.append(0)
        self._count.append(0)
        ancestor = self._last
        while ancestor >= 0 and token not in following[ancestor]:
            following[ancestor][token] = state
            ancestor = link[ancestor]
        if ancestor >= 0:
            found = following[ancestor][token]
            link[state] = found if length[found] == length[ancestor] + 1 else self._split(ancestor, token, found)
        self._last = state

    def _split(self, ancestor: int, token: int, found: int) -> int:
        """A new state for the substrings of `found` that are also suffixes of the new text."""
        following, link, length = self._next, self._link, self._length
        part = len(following)
        following.append(dict(following[found]))
        length.append(length[ancestor] + 1)
        link.append(link[found])
        self._count.append(self._count[found])
        link[found] = part
        while ancestor >= 0 and following[ancestor].get(token) == found:
            following[ancestor][token] = part
            ancestor = link[ancestor]
        return part

    def _advance(self, token: int) -> None:
        """Moves the cursor to the new text's last tokens and counts them."""
        link, length, count = self._link, self._length, self._count
        state, window = self._cursor, self._window
        while length[link[state]] >= window > 0:  # the state was split: the window belongs to the shorter part
            state = link[state]
        if window == self.depth:
            window -= 1
            if length[link[state]] == window:
                state = link[state]
        state = self._next[state][token]
        window += 1
        while length[link[state]] >= window:
            state = link[state]
        self._cursor, self._window = state, window
        while state > 0:
            count[state] += 1
            state = link[state]
