"""The successors of tokens, the draft they fill, and the trie it grows in."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from specframe.components.drafters.recycling import PRIOR, TRUST, Successors
from specframe.components.drafters.trie import Trie, as_tree
from specframe.kernel.costs import Costs
from specframe.kernel.types import Draw
from tests.components.path_drafter import assert_sound
from tests.tiers import examples

KNOWN = st.dictionaries(st.integers(0, 5), st.permutations(range(6)).map(lambda p: p[:3]), max_size=6)


def paths(trie: Trie) -> list[tuple[int, ...]]:
    """Every node's path below the root, in index order."""
    found: list[tuple[int, ...]] = [()]
    for token, parent in zip(trie.tokens[1:], trie.parents[1:], strict=True):
        found.append((*found[parent], token))
    return found


def literal(known: dict[int, list[int]], chain: list[int], nodes: int, floor: float) -> set[tuple[int, ...]]:
    """The paths of the filled draft: all paths that reach `floor` ranked by probability, as many as fit."""
    chosen = {tuple(chain[:length]) for length in range(len(chain) + 1)}
    ranked = []
    level = [((), 1.0)]
    for _ in range(20):
        level = [
            ((*path, token), probability * PRIOR[rank])
            for path, probability in level
            for rank, token in enumerate(known.get(path[-1] if path else 0, []))
            if probability * PRIOR[rank] >= floor
        ]
        ranked += level
    for path, _ in sorted(ranked, key=lambda item: -item[1]):
        if len(chosen) >= nodes:
            break
        chosen.add(path)
    return chosen


@examples(2)
@given(
    known=KNOWN,
    chain=st.lists(st.integers(0, 5), max_size=5),
    nodes=st.integers(1, 12),
    floor=st.sampled_from([0.004, 0.03, 0.1]),
)
def test_a_fill_takes_the_likeliest_paths(
    known: dict[int, list[int]], chain: list[int], nodes: int, floor: float
) -> None:
    successors = Successors(3)
    successors.replace(list(known), list(known.values()))
    trie = Trie(0)
    trie.add_path(chain)
    successors.fill(trie, nodes=nodes, floor=floor)
    found = paths(trie)
    assert len(set(found)) == len(found), "equal siblings"
    assert found[: len(chain) + 1] == [tuple(chain[:length]) for length in range(len(chain) + 1)], "the chain first"
    expected = literal(known, chain, nodes, floor)
    assert len(found) == len(expected)
    reached = [sorted(_probability(known, path, chain) for path in those) for those in (found, expected)]
    assert reached[0] == reached[1], "of paths with equal probability either may be taken, and no other"


def _probability(known: dict[int, list[int]], path: tuple[int, ...], chain: list[int]) -> float:
    if path == tuple(chain[: len(path)]):
        return 1.0
    probability, before = 1.0, 0
    for token in path:
        probability *= PRIOR[known[before].index(token)]
        before = token
    return probability


def test_ranks_are_learned() -> None:
    successors = Successors(3)
    successors.replace([1, 2, 1], [[9, 9, 9], [3, 4, 5], [2, 3, 4]])
    assert successors[1] == [2, 3, 4] and successors[7] == []
    successors.judge([1, 3, 1, 2, 6])  # ranks 1, unknown token 3, 0, none
    asked = TRUST + 3
    expected = [(right + TRUST * prior) / asked for right, prior in zip([1, 1, 0], PRIOR, strict=False)]
    assert successors.frequencies() == expected


def test_without_successors_nothing_is_added() -> None:
    trie = Trie(3)
    Successors().fill(trie, nodes=9, floor=0.0)
    assert len(trie) == 1


def test_tries_of_unequal_rows_make_a_sound_tree() -> None:
    tries = [Trie(1), Trie(2), Trie(3)]
    tries[0].add_path([4, 5])
    tries[0].add_path([4, 6])
    tries[0].add_path([4, 5])
    tries[2].add_path([7])
    tree = as_tree(torch.tensor([1, 2, 3]), tries)
    assert_sound(tree, levels=2)
    assert tree.tokens.tolist() == [[1, 4, 5, 6], [2, 0, 0, 0], [3, 7, 0, 0]]
    assert tree.parent[0].tolist() == [-1, 0, 1, 1]
    assert tree.valid.sum(1).tolist() == [4, 1, 2]
    assert (tree.draw == Draw.TOP).all()
    assert as_tree(torch.tensor([1, 2]), [Trie(1), Trie(2)]).tokens.tolist() == [[1], [2]]


def test_a_trie_keeps_what_is_worth_its_costs():
    trie = Trie(9)
    one, two = trie.add(0, 1, 0.8), trie.add(0, 2, 0.3)
    trie.add(one, 3, 0.6), trie.add(two, 4, 0.1)
    assert trie.add(0, 2, 0.2) == two and trie.chances == [1.0, 0.8, 0.3, 0.6, 0.1]
    kept = trie.best(2)
    assert (kept.tokens, kept.parents, kept.chances) == ([9, 1, 3], [-1, 0, 1], [1.0, 0.8, 0.6])

    def drafted(costs):
        return int(as_tree(torch.tensor([9]), [trie], costs).valid.sum()) - 1

    assert drafted(Costs.of({1: 1.0, 5: 3.0})) == 2  # half a token a node
    assert drafted(Costs.of({1: 1.0, 5: 5.0})) == 0 and drafted(Costs.of({1: 1.0, 2: 1.0})) == 4


def test_of_two_chances_the_higher_counts():
    trie = Trie(9)
    node = trie.add(0, 1, 0.2)
    assert trie.add(0, 1, 0.7) == node and trie.chances[node] == 0.7
