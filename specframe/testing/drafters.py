"""The conformance check of drafters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import cast

import torch

from specframe.certify.compositions.emission import Emission
from specframe.components.drafters.none import NoDrafter
from specframe.components.targets.hf import HFTarget
from specframe.components.targets.table import TableTarget
from specframe.components.targets.tiny import tiny_llama
from specframe.components.trees.fixed import Chain
from specframe.components.trees.recording import RecordingTree
from specframe.components.verifiers.match import Match
from specframe.components.verifiers.recursive import Recursive
from specframe.decoding.requests import Request, as_prompts
from specframe.decoding.session import Parts, Session
from specframe.kernel.capabilities import Needs
from specframe.kernel.errors import SpecframeError
from specframe.kernel.interfaces import Drafter, Target, TextDrafter, TreePolicy, Verifier, drafting_ahead
from specframe.kernel.types import Committed, Context, Cycle, Draw, TokenTree
from specframe.sampling.laws import Sampling
from specframe.sampling.lazy import AllLaws
from specframe.sampling.random import SeededRandom, row_seed
from specframe.testing.cycles import audit, chosen, objections, replay, take_in
from specframe.testing.trees import check_shape, same_draft

PROMPTS = [[0, 1, 2, 0, 1], [2], [1, 1, 0, 2, 1, 1, 0], [0, 2]]
VOCAB = 3
LENGTH = 9
EXACT = 1e-9


class MatchByCycle(Match):
    """The rule `match` with noise by cycle, so that the output depends on the draft."""

    needs = Needs()


def check_drafter(
    make: Callable[[], Drafter],
    tree: Callable[[], TreePolicy] | None = None,
    *,
    target: Callable[[], Target] | None = None,
) -> None:
    """Raises AssertionError unless the drafter keeps its contract.

    `make` gives a fresh drafter for a vocabulary of three tokens (one that takes a target's shape as it is
    bound does); `tree` the policy it grows, by default a chain of two; `target` what it is bound to, by
    default a table or, for drafters that need layers, a tiny random Llama.

    Checked: well-formed drafts within what is declared, and proposals of the declared number of levels; greedy output
    equal to plain decoding, batches of ragged prompts included; a row drafted the same whatever its neighbours, if that
    is promised, and with a verifier that draws by position continued the same in any case; drafting that leaves no
    trace: drafting twice, or having drafted what was rejected, equals drafting fresh; sessions that start afresh; a
    drafter that has `rewind` drafts as a fresh one once the tokens are committed again; and the law of all output,
    enumerated, with recorded laws audited where it samples.
    """
    models = target or _suitable(make)
    policies = [Draw.TOP, Draw.WITHOUT_REPLACEMENT] if tree is None and not make().promise.complete else [None]
    for draw in policies:

        def grown(draw: Draw | None = draw) -> TreePolicy | None:
            if draw is not None:
                return Chain(depth=2, draw=draw)
            return tree() if tree is not None and not make().promise.complete else None

        def parts(verifier: Verifier | None = None, grown: Callable[[], TreePolicy | None] = grown) -> Parts:
            drafter, model = make(), models()
            drafter.bind(model)
            return Parts(model, drafter, grown(), verifier or MatchByCycle())

        check_protocol(parts)
        check_greedy(parts)
        check_traces(parts)
        if hasattr(type(parts().drafter), "rewind"):
            check_rewind(parts)
        check_neighbours(parts) if parts().promise.row_independent else check_among_others(parts)
        check_law(parts, make, models, grown())


def check_protocol(parts: Callable[[], Parts]) -> None:
    """Attributes, and the shape of drafts through a session."""
    made = parts()
    drafter = made.drafter
    assert isinstance(drafter.taps, frozenset), "`taps` must be a frozenset of names"
    whole, parts_of_it = drafter.promise.complete, (drafter.promise.draws, drafter.promise.nodes)
    assert whole or parts_of_it == (None, None), "a drafter promises both `draws` and `nodes`, or grows a tree policy"
    assert whole or made.tree is not None, "the drafter grows a tree policy"
    promise, tree = made.promise, None if made.tree is None else RecordingTree(made.tree)
    for draft, _ in drafts(replace(made, tree=tree), PROMPTS, Sampling(temperature=1.0)):
        check_shape(draft, vocab=VOCAB, nodes=promise.nodes, draws=promise.draws)
        assert tree is None or tree.levels <= {promise.block}, f"proposals of other than {promise.block} levels"


def check_greedy(parts: Callable[[], Parts]) -> None:
    """Checks that the output at temperature 0 is plain decoding's."""
    made = parts()
    plain = Parts(made.target, NoDrafter(), None, Match())
    wanted = generate(plain, PROMPTS)
    assert generate(made, PROMPTS) == wanted, "greedy output differs from plain decoding"
    assert generate(made, PROMPTS[:1]) == wanted[:1], "a second session is not like the first"


def check_traces(parts: Callable[[], Parts]) -> None:
    """Drafting leaves no trace: twins that drafted more, less or in between draft the same.

    Of a drafter that drafts ahead the twins draft once or twice in every cycle, and what it drew at random is left out:
    it is drawn under other noise then.
    """
    sampling, promise = Sampling(temperature=1.0), parts().promise
    if promise.overlaps_scoring and promise.sampled:
        return
    cycles = [cycle for _, cycle in drafts(parts(), PROMPTS, sampling)]
    for count in range(1, len(cycles) + 1):
        busy, idle = opened(parts()), opened(parts())
        for index, cycle in enumerate(cycles[:count]):
            replay(busy, cycle)
            replay(idle, cycle)
            if index + 1 < count:
                propose(busy, cycle.committed.root, sampling, seed=index)  # this draft is as good as rejected
                for each in (busy, idle) if promise.overlaps_scoring else ():
                    propose(each, cycle.committed.root, sampling, seed=index)
        root = cycles[count - 1].committed.root
        first = propose(busy, root, sampling, seed=99)
        again = propose(busy, root, sampling, seed=99)
        fresh = propose(idle, root, sampling, seed=99)
        for row in range(len(PROMPTS)):
            assert same_draft(first, row, again, row), "drafting twice after one commit gives two drafts"
            assert same_draft(first, row, fresh, row), "a rejected draft has left a trace in the next one"


def check_rewind(parts: Callable[[], Parts]) -> None:
    """Checks that tokens that are rewound leave no trace: others in their place, and then themselves, are committed.

    Rows rewind by different numbers of tokens.
    """
    sampling = Sampling(temperature=1.0)
    cycles = [cycle for _, cycle in drafts(parts(), PROMPTS, sampling)]
    rewound, fresh = opened(parts()), opened(parts())
    texts = [list(prompt) for prompt in PROMPTS]
    for index, cycle in enumerate(cycles):
        replay(rewound, cycle)
        replay(fresh, cycle)
        root = cycle.committed.root
        for row, (tokens, count) in enumerate(zip(cycle.committed.tokens, cycle.committed.count.tolist(), strict=True)):
            texts[row] += tokens[:count].tolist() if index else [int(root[row])]
        stay = [max(1, len(text) - 1 - (row + index) % 4) for row, text in enumerate(texts)]
        again = [text[keep:] for text, keep in zip(texts, stay, strict=True)]
        for added in ([[(token + 1) % VOCAB for token in tokens] for tokens in again], again):
            given, last = as_prompts(added), torch.tensor([tokens[-1] for tokens in added])
            cast("TextDrafter", rewound.drafter).rewind(torch.tensor(stay))
            rewound.drafter.commit(Committed(given.tokens, given.count, {}, last))
            propose(rewound, last, sampling, seed=index)  # reads them
        one, other = (propose(made, root, sampling, seed=99) for made in (rewound, fresh))
        for row in range(len(PROMPTS)):
            assert same_draft(one, row, other, row), "tokens that were rewound and committed again draft differently"


def check_neighbours(parts: Callable[[], Parts]) -> None:
    """A row of a batch drafts as it does alone: after others have left, and when it joined others."""
    sampling = Sampling(temperature=1.0)
    cycles = [cycle for _, cycle in drafts(parts(), PROMPTS, sampling)]
    rows = torch.tensor([2, 0])
    whole, part = opened(parts()), opened(parts())
    for index, cycle in enumerate(cycles):
        replay(whole, cycle)
        replay(part, cycle if index == 0 else chosen(cycle, rows))
        if index == 0:
            part.target.keep(rows)
            part.drafter.keep(rows)
        root = cycle.committed.root
        together = propose(whole, root, sampling, seed=5)
        few = propose(part, root[rows], sampling, seed=5, rows=rows, batch=len(PROMPTS))
        for place, row in enumerate(rows.tolist()):
            assert same_draft(together, row, few, place), "a row drafts differently once its neighbours have left"
    among = generate(parts(), PROMPTS, sampling)
    for row, prompt in enumerate(PROMPTS):
        only = generate(parts(), [prompt], sampling, rows=[row])
        assert only[0] == among[row], f"row {row} is continued differently among neighbours than alone"
    assert generate(parts(), PROMPTS, sampling, slots=2) == among, (
        "rows that join others are continued differently: a commit with a prompt brings new rows, after those at hand"
    )


def check_among_others(parts: Callable[..., Parts]) -> None:
    """Checks that, under a rule that draws by position, rows that join and leave do not change another row's text."""
    sampling = Sampling(temperature=1.0)
    alone = [generate(parts(Match()), [prompt], sampling, rows=[row])[0] for row, prompt in enumerate(PROMPTS)]
    for slots in (len(PROMPTS), 2):
        together = generate(parts(Match()), PROMPTS, sampling, slots=slots)
        assert together == alone, "under `match` a row's text depends on what the drafter made of its neighbours"


def check_law(
    parts: Callable[..., Parts], make: Callable[[], Drafter], models: Callable[[], Target], tree: TreePolicy | None
) -> None:
    """The law of the output, enumerated; recorded laws audited first, so that the guilty slot is named."""
    made = parts()
    verifiers: list[Verifier] = [Match()]
    if made.promise.sampled and made.promise.exact:
        with objections():
            found = audit(make, tree, target=models)
        assert found.passed, f"a recorded distribution is wrong: {found.findings[0]}"
        verifiers.append(Recursive())
    for verifier in verifiers:
        composed = parts(verifier)
        emission = Emission("", lambda composed=composed: composed, Sampling(temperature=1.0), 3, tuple(PROMPTS[0]))  # type: ignore[misc]
        with objections():
            comparison = emission.compare(budget=50_000)
        assert comparison.tv < EXACT, (
            f"not lossless under {type(verifier).__name__}: total variation {comparison.tv:.4g}; "
            f"{list(comparison.worst)} has probability {comparison.got:.6f} instead of {comparison.wanted:.6f}"
        )


def generate(
    parts: Parts,
    prompts: Sequence[Sequence[int]],
    sampling: Sampling | None = None,
    rows: list[int] | None = None,
    slots: int | None = None,
) -> list[list[int]]:
    """New tokens of each prompt; `rows` are the numbers of the random streams."""
    requests = [
        Request(tokens=prompt, sampling=sampling or Sampling(), seed=row_seed(11, row), max_new_tokens=LENGTH)
        for row, prompt in zip(rows or range(len(prompts)), prompts, strict=True)
    ]
    return [entry.tokens for entry in Session(parts, slots or len(prompts), _room(parts)).run(requests)]


def drafts(
    parts: Parts, prompts: Sequence[Sequence[int]], sampling: Sampling, cycles: int = 3
) -> list[tuple[TokenTree, Cycle]]:
    """The drafts of a session's first cycles, each with the cycle before it; all rows go on."""
    random = SeededRandom(11, len(prompts))
    opened(parts)
    draft, scores = parts.target.admit(as_prompts(prompts))
    found = []
    for _ in range(cycles):
        verdict = parts.verifier.verify(draft, AllLaws(sampling.law(scores.logits, draft)), random.verify)
        committed = parts.target.commit(draft, verdict)
        random.advance(verdict.count, draft.levels + 1)
        cycle = Cycle(draft, scores, verdict, committed)
        take_in(parts.drafter, cycle)
        draft = _propose(parts, committed.root, Context(sampling, random.draft))
        found.append((draft, cycle))
        scores = parts.target.score(draft)
    return found


def opened(parts: Parts) -> Parts:
    """The parts, their target and drafter in a new session."""
    parts.target.open(len(PROMPTS), _room(parts))
    parts.drafter.open(len(PROMPTS), _room(parts))
    return parts


def propose(
    parts: Parts,
    root: torch.Tensor,
    sampling: Sampling,
    *,
    seed: int,
    rows: torch.Tensor | None = None,
    batch: int | None = None,
) -> TokenTree:
    """A draft below the roots, by the streams of `rows` among `batch`."""
    random = SeededRandom(seed, batch or len(root))
    if rows is not None:
        random.keep(rows)
    return _propose(parts, root, Context(sampling, random.draft))


def _propose(parts: Parts, root: torch.Tensor, context: Context) -> TokenTree:
    """A draft, after which a drafter that drafts ahead goes on, as it does while the target scores."""
    draft = parts.drafter.propose(root, parts.tree, context)
    if (run_ahead := drafting_ahead(parts.drafter)) is not None:
        run_ahead(draft, context)
    return draft


def _room(parts: Parts) -> int:
    return max(map(len, PROMPTS)) + LENGTH * (parts.nodes + 1)


def _suitable(make: Callable[[], Drafter]) -> Callable[[], Target]:
    def table() -> Target:
        return TableTarget(vocab=VOCAB)

    try:
        make().bind(table())
    except SpecframeError:
        return lambda: HFTarget.from_model(tiny_llama(VOCAB, 0))
    return table
