"""The conformance check of targets."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from specframe.decoding.requests import as_prompts
from specframe.kernel.errors import SpecframeError
from specframe.kernel.interfaces import NeuralTarget, Target, text_of
from specframe.kernel.types import Committed, GreedyScores, Prompts, Scores, TokenTree, Verdict
from specframe.sampling.greedy import follow_argmax
from specframe.sampling.laws import first_argmax
from specframe.testing.sessions import GrowingTree

LENGTHS = (5, 1, 3)
CYCLES = 4
LEAVING = 2
"""The cycle after which a row has finished, and the others change places."""
ROOM = 64
LAST = "last"


def check_target(make: Callable[[], Target], *, close: float = 1e-5) -> None:
    """Raises AssertionError unless the target keeps its contract.

    Ragged prompts are continued by drafts of several shapes and made-up verdicts. Everything on the way is compared, to
    within `close`, with a fresh admission of the text so far, one row alone: the logits of every node, which sees the
    committed tokens and its ancestors and nothing else; the commits, each token with the feature of the one before it;
    the rows that stay when others leave; and a row that joins later. A `NeuralTarget`'s head, embedding and teachers
    must be those of its own forward. The target needs a vocabulary of three tokens or more.
    """
    target, literal = make(), make()
    assert target.vocab_size >= 3, "the check needs three tokens"
    assert target.context >= max(LENGTHS) + ROOM, f"the check needs a context of {max(LENGTHS) + ROOM}"
    try:
        target.request(frozenset({"no such tap"}))
    except SpecframeError:
        pass
    else:
        raise AssertionError("a tap that the target does not have must be refused")
    taps = _request(target), _request(literal)
    assert taps[0] == taps[1], "two targets of one make have different taps"
    for _ in range(2):  # a session starts as if it were the first
        check_session(target, literal, taps[0], close)
    if isinstance(target, NeuralTarget):
        check_sharing(target, literal, close)


def check_session(target: Target, literal: Target, taps: frozenset[str], close: float) -> None:
    """One session, against admissions of its texts alone."""
    texts = [[(3 * row + place) % target.vocab_size for place in range(n)] for row, n in enumerate(LENGTHS)]
    target.open(len(texts) + 1, max(LENGTHS) + ROOM)
    draft, scores = target.admit(as_prompts(texts))
    assert draft.tokens.tolist() == [text[-1:] for text in texts], "an admission starts with the last prompt tokens"
    assert scores.logits.shape == (len(texts), 1, target.vocab_size), "logits of an admission are [A, 1, V]"
    check_scores(draft, scores, literal, texts, close)
    verdict = Verdict(draft.tokens[:, :0], torch.zeros(len(texts), dtype=torch.int64), _tokens(target, len(texts)))
    committed = target.commit(draft, verdict)
    assert committed.prompt is not None, "the commit of an admission comes with its prompts"
    check_committed(committed, literal, texts, verdict.bonus[:, None].tolist(), taps, close)
    for cycle in range(CYCLES):
        if cycle == LEAVING:
            rows = torch.tensor([2, 0])
            target.keep(rows)
            texts = [texts[row] for row in rows.tolist()]
            texts += join(target, literal, taps, close)
        tree, paths = _grown(torch.tensor([text[-1] for text in texts]), target.vocab_size, cycle)
        draft = tree.tree
        check_scores(draft, scores := target.score(draft), literal, texts, close)
        if (choose := text_of(target).choose) != target.score:
            check_chosen(draft, choose(draft), scores)
        length = torch.tensor([(row + cycle) % (draft.levels + 1) for row in range(len(texts))])
        path = torch.full((len(texts), draft.levels), -1)
        for row, count in enumerate(length.tolist()):
            path[row, :count] = torch.tensor(paths[(row + cycle) % len(paths)][:count])
        verdict = Verdict(path, length, _tokens(target, len(texts), cycle))
        emitted = verdict.emitted(draft).tolist()
        added = [tokens[:count] for tokens, count in zip(emitted, verdict.count.tolist(), strict=True)]
        committed = target.commit(draft, verdict)
        assert committed.prompt is None, "later commits come without a prompt"
        check_committed(committed, literal, texts, added, taps, close)


def join(target: Target, literal: Target, taps: frozenset[str], close: float) -> list[list[int]]:
    """Admits another row while others run; its text."""
    texts = [[2 % target.vocab_size, 0, 1, 1]]
    draft, scores = target.admit(as_prompts(texts))
    check_scores(draft, scores, literal, texts, close)
    verdict = Verdict(draft.tokens[:, :0], torch.zeros(1, dtype=torch.int64), _tokens(target, 1))
    committed = target.commit(draft, verdict)
    assert committed.prompt is not None, "the commit of an admission comes with its prompts"
    check_committed(committed, literal, texts, verdict.bonus[:, None].tolist(), taps, close)
    return texts


def check_scores(draft: TokenTree, scores: Scores, literal: Target, texts: list[list[int]], close: float) -> None:
    """Checks that every node's logits are those after the row's text and the node's path."""
    for row, text in enumerate(texts):
        parents, tokens = draft.parent[row].tolist(), draft.tokens[row].tolist()
        paths: list[list[int]] = [[]]
        for node in range(1, len(tokens)):
            paths.append([*paths[parents[node]], tokens[node]])
        for node, path in enumerate(paths):
            _, alone = after(literal, text + path)
            _same(scores.logits[row, node], alone.logits[0, 0], close, f"the logits of node {node} of row {row}")


def check_chosen(tree: TokenTree, chosen: Scores | GreedyScores, scores: Scores) -> None:
    """The scores for greedy decoding are those of `score`, likeliest tokens and their path those of their logits."""
    assert torch.equal(chosen.logits, scores.logits), "`choose` gives other logits than `score`"
    assert set(chosen.features) == set(scores.features), "`choose` gives other features than `score`"
    for tap, values in scores.features.items():
        assert torch.equal(chosen.features[tap], values), f"`choose` gives other features of {tap} than `score`"
    if isinstance(chosen, GreedyScores):
        assert torch.equal(chosen.best, first_argmax(scores.logits)), "`best` is not the first of the largest logits"
        wanted, found = follow_argmax(tree, chosen.best), chosen.verdict
        same = found is None or torch.equal(found.packed(tree), wanted.packed(tree))
        assert same, "`choose` gives another verdict than that of the likeliest tokens"


def check_committed(
    committed: Committed,
    literal: Target,
    texts: list[list[int]],
    emitted: list[list[int]],
    taps: frozenset[str],
    close: float,
) -> None:
    """A commit holds the tokens emitted, or the prompt shifted by one and its first token; `texts` grow by them."""
    missing = taps - set(committed.features)
    assert not missing, f"requested features are missing: {', '.join(missing)}"
    for row, (text, more) in enumerate(zip(texts, emitted, strict=True)):
        tokens = text[1:] + more if committed.prompt is not None else more
        count = int(committed.count[row])
        assert committed.tokens[row, :count].tolist() == tokens, f"row {row}: the tokens {tokens} were not committed"
        assert int(committed.root[row]) == more[-1], "the next root is the last committed token"
        text += more
        _, alone = after(literal, text)
        for tap in taps:
            wanted = alone.features[tap][0, len(text) - 1 - count : len(text) - 1]
            found = committed.features[tap][row, :count]
            _same(found, wanted, close, f"the feature with each committed token of row {row}")


def check_sharing(target: NeuralTarget, literal: Target, close: float) -> None:
    """Checks that the parts shared with drafters are those that its own forward uses."""
    text = [place % target.vocab_size for place in range(max(LENGTHS))]
    tokens = torch.tensor([text, text[::-1]], device=target.device)
    mask = torch.ones_like(tokens, dtype=torch.bool)
    teacher = target.teach(tokens, mask)
    features = teacher.features[LAST]
    assert not features.requires_grad and not teacher.logits.requires_grad, "a teacher comes without gradients"
    assert features.shape == (*tokens.shape, target.config.hidden_size), "features are [B, L, D]"
    assert target.embed(tokens).shape == features.shape, "embeddings are [B, L, D]"
    _same(target.head(features), teacher.logits, close, "the head's logits of the teacher's features")
    for row, line in enumerate(tokens.tolist()):
        for end in range(1, len(line) + 1):
            _, alone = after(literal, line[:end])
            _same(
                teacher.logits[row, end - 1],
                alone.logits[0, 0],
                close,
                f"the teacher's distribution after {end} tokens",
            )
    again = features.clone().requires_grad_()
    (grad,) = torch.autograd.grad(target.head(again).logsumexp(-1).sum(), again)
    assert bool(grad.any()), "gradients must pass the head"


def admitted(target: Target, prompts: Prompts, room: int = 64) -> tuple[TokenTree, Scores]:
    """The admission of prompts as the first rows of a session with `room` positions beyond the longest."""
    target.open(len(prompts.count), prompts.tokens.shape[1] + room)
    return target.admit(prompts)


def after(target: Target, text: list[int]) -> tuple[TokenTree, Scores]:
    """The admission of a text alone."""
    return admitted(target, as_prompts([text]), 0)


def _request(target: Target) -> frozenset[str]:
    """The taps that there are to check."""
    try:
        target.request(frozenset({LAST}))
    except SpecframeError:
        return frozenset()
    return frozenset({LAST})


def _grown(root: Tensor, vocab: int, seed: int) -> tuple[GrowingTree, list[list[int]]]:
    """A tree with branches of three, two and one level, and each one's path."""
    tree = GrowingTree(root, vocab, seed)
    first, second = tree.add(0), tree.add(0)
    deeper = tree.add(second)
    ends = [tree.add(tree.add(first)), tree.add(deeper)]
    tree.add(0)
    return tree, [tree.path(end) for end in ends]


def _tokens(target: Target, rows: int, seed: int = 0) -> Tensor:
    """A token for each row, whatever the target thinks of it."""
    return (torch.arange(rows) + seed) % target.vocab_size


def _same(found: Tensor, wanted: Tensor, close: float, what: str) -> None:
    assert found.shape == wanted.shape, f"{what}: {tuple(found.shape)} instead of {tuple(wanted.shape)}"
    off = float((found.double() - wanted.double()).abs().max()) if found.numel() else 0.0
    assert off <= close, f"{what}: off by {off:.3g} from a fresh forward pass over the text"
