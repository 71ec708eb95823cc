"""Token Recycling: what a cycle's scores teach, and both drafters that propose it."""

from __future__ import annotations

import pytest
import torch

from specframe.components.drafters.recycling import Recycling, top_ids
from specframe.components.drafters.suffix_recycling import SuffixRecycling
from specframe.components.drafters.trie import Trie, as_tree
from specframe.components.targets.table import TableTarget
from specframe.kernel.errors import CompositionError, InputError
from specframe.kernel.types import Committed, Cycle, Scores, Verdict
from specframe.testing import check_drafter
from tests.components.sessions import CONTEXT, first, later

VOCAB = 8


def cycle(paths: list[list[int]], likeliest: list[int], accepted: list[int], bonus: int) -> Cycle:
    """A cycle of one row with root 1: the paths drafted, each node's likeliest token, the accepted nodes."""
    trie = Trie(1)
    for path in paths:
        trie.add_path(path)
    tree = as_tree(torch.tensor([1]), [trie])
    logits = torch.zeros(1, len(trie), VOCAB)
    logits[0, range(len(trie)), likeliest] = 2.0
    logits[0, range(len(trie)), [(token + 1) % VOCAB for token in likeliest]] = 1.0
    path = torch.tensor([accepted + [-1] * (tree.levels - len(accepted))])
    verdict = Verdict(path, torch.tensor([len(accepted)]), torch.tensor([bonus]))
    tokens = [trie.tokens[node] for node in accepted] + [bonus]
    return Cycle(tree, Scores(logits, {}), verdict, later([tokens]))


def proposed(recycler: Recycling, root: int) -> list[int]:
    """The successors of a token, as the children of a root."""
    trie = Trie(root)
    recycler.fill([trie])
    return [token for token, parent in zip(trie.tokens, trie.parents, strict=True) if parent == 0]


def recycler(scored: str) -> Recycling:
    made = Recycling(nodes=99, ranks=2, floor=0.01, scored=scored, prompt=False)  # type: ignore[arg-type]
    made.open(2, 16)
    made.commit(first([[0, 1]]))
    return made


# Nodes: 0 root 1; 1: 5, 2: 3 below the root; 3: 5 below 3; 4: 3 below 5 at node 3. Node 2 is accepted, then 3.
DRAFT = [[5], [3, 5, 3]]


def test_every_scored_node_teaches_and_the_accepted_path_counts() -> None:
    made = recycler("all")
    made.observe(cycle(DRAFT, [0, 1, 2, 3, 4], accepted=[2], bonus=6))
    assert proposed(made, 1) == [0, 1]
    assert proposed(made, 5) == [1, 2], "of two rejected nodes the shallower one"
    assert proposed(made, 3) == [2, 3], "the accepted node, not the deeper one"
    made.observe(cycle(DRAFT, [0, 1, 2, 3, 4], accepted=[2, 3, 4], bonus=6))
    assert proposed(made, 5) == [3, 4], "the accepted node, though another is shallower"
    assert proposed(made, 3) == [4, 5], "of two accepted nodes the later one"


def test_the_path_alone_teaches_if_so_wished() -> None:
    made = recycler("path")
    made.observe(cycle(DRAFT, [0, 1, 2, 3, 4], accepted=[2], bonus=6))
    assert proposed(made, 3) == [2, 3]
    assert proposed(made, 5) == []


def test_padding_teaches_nothing() -> None:
    made = Recycling(nodes=99, ranks=2, floor=0.01, scored="all", prompt=False)
    made.open(2, 16)
    made.commit(first([[4, 1], [4, 1]]))
    tries = [Trie(1), Trie(1)]
    tries[0].add_path([5, 6])
    tree = as_tree(torch.tensor([1, 1]), tries)
    verdict = Verdict(torch.full((2, 2), -1), torch.zeros(2, dtype=torch.int64), torch.tensor([7, 7]))
    made.observe(Cycle(tree, Scores(torch.rand(2, 3, VOCAB), {}), verdict, later([[7], [7]])))
    made.keep(torch.tensor([1]))
    assert proposed(made, 1)
    assert proposed(made, 0) == proposed(made, 5) == []


def test_the_prompts_scores_are_read() -> None:
    target = TableTarget(vocab=4)
    made = Recycling(nodes=9, ranks=3, floor=0.01, scored="all", prompt=True)
    made.bind(target)
    made.open(2, 16)
    prompt = torch.tensor([[0, 1, 2, 1, 3]])
    teacher = target.teach(prompt, prompt > -1)
    plain = first([[0, 1, 2, 1, 3, 0]])
    made.commit(Committed(plain.tokens, plain.count, teacher.features, plain.root, prompt=plain.prompt))
    ranked = teacher.logits.topk(3).indices[0].tolist()
    for token, place in {0: 0, 1: 3, 2: 2, 3: 4}.items():  # the last place where each token stands
        assert proposed(made, token)[:3] == ranked[place]


@pytest.mark.parametrize("vocab", [3, 100, 4096, 4097, 8192])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_largest_logits_of_any_vocabulary(vocab: int, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    logits = torch.randn(2, 5, vocab).to(dtype)
    found = top_ids(logits, 3)
    assert torch.equal(logits.gather(-1, found), logits.topk(3).values)
    assert (found.sort(-1).values.diff() > 0).all(), "an id twice"


class NoHead:
    vocab_size = 4


def test_a_target_without_a_head_is_refused_unless_the_prompt_is_left_out() -> None:
    with pytest.raises(CompositionError, match="needs a target with an LM head; set `prompt: false`"):
        Recycling().bind(NoHead())  # type: ignore[arg-type]
    Recycling(prompt=False).bind(NoHead())  # type: ignore[arg-type]


@pytest.mark.parametrize("scored", ["all", "path"])
@pytest.mark.parametrize("prompt", [True, False])
def test_conformance(scored: str, prompt: bool) -> None:
    check_drafter(lambda: Recycling(nodes=5, ranks=2, scored=scored, prompt=prompt))  # type: ignore[arg-type]
    check_drafter(lambda: SuffixRecycling(cap=2, nodes=5, ranks=2, scored=scored, prompt=prompt))  # type: ignore[arg-type]


def test_the_copy_comes_first_and_is_filled_up() -> None:
    drafter = SuffixRecycling(nodes=6, ranks=2, prompt=False)
    drafter.bind(TableTarget(vocab=VOCAB))
    drafter.open(1, 99)
    drafter.commit(first([[2, 7, 1, 4, 2, 7, 1]]))
    drafter.observe(cycle([], [3], accepted=[], bonus=1))  # 3 and 4 follow 1
    tree = drafter.propose(torch.tensor([1]), None, CONTEXT)
    assert tree.tokens.tolist() == [[1, 4, 2, 7, 1, 3]]
    assert tree.parent.tolist() == [[-1, 0, 1, 2, 3, 0]]


def test_options_are_checked() -> None:
    with pytest.raises(InputError, match="ranks must be 1 to 8, not 9"):
        Recycling(ranks=9)
    with pytest.raises(InputError, match="recycling needs nodes of at least 1 and floor above 0"):
        SuffixRecycling(floor=0.0)
    assert SuffixRecycling(cap=3, nodes=11).promise.nodes == 11
    assert SuffixRecycling(cap=15, nodes=11).promise.nodes == 16
