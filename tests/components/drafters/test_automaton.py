"""The suffix automaton against a literal search through the text."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from specframe.components.drafters.automaton import NOTHING, Copied, SuffixAutomaton
from tests.tiers import examples

TEXT = st.lists(st.integers(0, 2), min_size=1, max_size=40)


def occurrences(text: list[int], part: list[int]) -> list[int]:
    """The ends of a substring's occurrences in the text."""
    return [end for end in range(len(part), len(text) + 1) if text[end - len(part) : end] == part]


def literal_suffixes(text: list[int], depth: int) -> list[tuple[int, int]]:
    """(count, length) of every repeated suffix of at most `depth` tokens that is the longest with its occurrences."""
    found: list[tuple[int, int]] = []
    for length in range(min(depth, len(text)), 0, -1):
        count = len(occurrences(text, text[-length:]))
        if count > 1 and (not found or found[-1][0] != count):
            found.append((count, length))
    return found


def literal_suffixes_after(text: list[int], later: list[int], depth: int) -> list[tuple[int, int]]:
    """(count, length) of every suffix of the text and more tokens that stands in the text, as above."""
    whole = [*text, *later]
    found: list[tuple[int, int]] = []
    for length in range(min(depth, len(whole)), 0, -1):
        count = len(occurrences(text, whole[-length:]))
        if count and (not found or found[-1][0] != count):
            found.append((count, length))
    return found


def literal_copy(
    text: list[int], cap: int, doubt: float, least: float, depth: int, later: list[int] | None = None
) -> Copied:
    """The best copy over all repeated suffixes, each followed by counting substrings."""
    best = NOTHING
    whole = [*text, *(later or [])]
    suffixes = literal_suffixes_after(text, later, depth) if later else literal_suffixes(text, depth)
    for many, match in suffixes:
        shortest = min(length for length in range(1, match + 1) if len(occurrences(text, whole[-length:])) == many)
        part, probability = whole[-match:], 1.0
        tokens: list[int] = []
        probabilities: list[float] = []
        while len(tokens) < min(cap, depth - shortest):
            after = [text[end] for end in occurrences(text, part) if end < len(text)]
            if not after:
                break
            token = max(dict.fromkeys(after), key=after.count)  # of equal ones the first seen
            seen = len(occurrences(text, part)) - (not tokens and len(text) in occurrences(text, part))
            probability *= after.count(token) / (seen + doubt / len(part))
            if probability < least:
                break
            tokens.append(token)
            probabilities.append(probability)
            part = [*part, token]
        if sum(probabilities) > best.score:
            best = Copied(tokens, probabilities, match)
    return best


@examples(3)
@given(text=TEXT, depth=st.sampled_from([2, 3, 5, 64]))
def test_repeated_suffixes_and_their_counts(text: list[int], depth: int) -> None:
    automaton = SuffixAutomaton(depth=depth)
    for end, token in enumerate(text, 1):
        automaton.extend([token])
        found = [(automaton.count(state), length) for state, length in automaton.suffixes()]
        assert found == literal_suffixes(text[:end], depth)


@examples(3)
@given(
    text=TEXT,
    cap=st.integers(1, 8),
    doubt=st.sampled_from([0.5, 1.0, 2.0]),
    least=st.sampled_from([0.0, 0.1, 0.3]),
    depth=st.sampled_from([4, 64]),
)
def test_a_copy_is_the_best_over_all_suffixes(
    text: list[int], cap: int, doubt: float, least: float, depth: int
) -> None:
    found = SuffixAutomaton(text, depth).copy(cap=cap, doubt=doubt, least=least, tries=len(text))
    assert found == literal_copy(text, cap, doubt, least, depth)


@examples(3)
@given(
    text=TEXT,
    later=st.lists(st.integers(0, 3), min_size=1, max_size=6),
    cap=st.integers(1, 8),
    least=st.sampled_from([0.0, 0.1, 0.3]),
    depth=st.sampled_from([3, 5, 64]),
)
def test_a_copy_after_tokens_that_are_not_in_the_text(
    text: list[int], later: list[int], cap: int, least: float, depth: int
) -> None:
    automaton = SuffixAutomaton(text, depth)
    found = [(automaton.count(state), length) for state, length in automaton.suffixes(later)]
    assert found == literal_suffixes_after(text, later, depth)
    copied = automaton.copy(later, cap=cap, doubt=2.0, least=least, tries=len(text))
    assert copied == literal_copy(text, cap, 2.0, least, depth, later)
    assert automaton.copy() == SuffixAutomaton(text, depth).copy(), "asking changes nothing"


def test_a_longer_match_is_used_sooner() -> None:
    found = SuffixAutomaton([7, 1, 2, 8, 7, 1]).copy(cap=2, doubt=2.0)
    assert found == Copied([2, 8], [1 / 2, 1 / 2 / (1 + 2 / 3)], 2)


def test_a_text_of_one_token_and_an_empty_one_have_nothing_to_copy() -> None:
    assert SuffixAutomaton([3]).copy() == SuffixAutomaton().copy() == NOTHING


def test_a_match_longer_than_what_is_counted_is_still_copied() -> None:
    text = list(range(200))
    assert SuffixAutomaton([*text, *text[:100]]).copy(cap=15).tokens == text[100:115]


def test_the_work_on_a_periodic_text_is_bounded() -> None:
    """Every suffix of a text of one token is repeated; only `depth` of them are counted and offered."""
    automaton = SuffixAutomaton([1] * 5000, depth=32)
    assert [length for _, length in automaton.suffixes()] == list(range(32, 0, -1))
    assert automaton.copy(cap=15).tokens == [1] * 15
