"""Decoding of one prompt with a record of every cycle."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from torch import Tensor

from specframe.decoding.encoding import Prompt, sole
from specframe.decoding.pipeline import Pipeline
from specframe.decoding.settings import SamplingSettings
from specframe.decoding.stats import Acceptance
from specframe.inspect.detokenise import REACH, Wording
from specframe.inspect.recorder import (
    Bonus,
    DrawName,
    Path,
    Recorder,
    Trace,
    TracedCycle,
    TracedNode,
    TracedToken,
    token_paths,
)
from specframe.kernel.types import Cycle, Draw
from specframe.sampling.laws import Sampling

DRAW_NAMES: dict[int, DrawName] = {Draw.TOP: "top", Draw.IID: "iid", Draw.WITHOUT_REPLACEMENT: "without_replacement"}


def trace(pipeline: Pipeline, prompt: Prompt | Sequence[Prompt]) -> Trace:
    """Decodes the prompt and returns its trace; tokens equal those of `generate` for this prompt alone.

    Raises InputError for an empty prompt, one that fills the context, or several prompts.
    """
    prompt = sole(prompt)
    settings = pipeline.sampling
    reading = reading_law(settings)
    recorder = Recorder(reading)
    recorded = replace(pipeline, parts=recorder.attach(pipeline.parts))
    row = pipeline.encode(prompt)
    requests = recorded.requests([row])
    wording, acceptance = Wording(pipeline.tokenizer), Acceptance()
    cycles: list[TracedCycle] = []
    sources: list[tuple[int, int]] = []  # each token's cycle and its position within that cycle
    with recorded.open(requests) as session:
        entry = session.admit(requests)[0]
        sources += [(0, place) for place in range(len(entry.tokens))]
        while session.live:
            recorder.forget()
            cycle = session.step()
            before = len(sources)
            count = len(entry.tokens) - before
            number = len(cycles) + 1
            sources += [(number, place) for place in range(count)]
            acceptance.add(cycle)
            context = [*row, *entry.tokens[:before]][-REACH - 1 :]
            law = recorder.p(cycle.draft)
            cycles.append(traced_cycle(number, cycle, law, recorder.q, count, wording, context))
    acceptance.settle()
    texts = wording.pieces(row, entry.tokens)
    lengths = [0, *(len(cycle.path) for cycle in cycles)]
    return Trace(
        recipe=pipeline.plan.recipe.path.name if pipeline.plan else "",
        parts={kind: part.entry.name for kind, part in pipeline.plan.parts.items()} if pipeline.plan else {},
        prompt=prompt if isinstance(prompt, str) else pipeline.decode(row),
        temperature=settings.temperature,
        read_at=reading.temperature,
        lossless=pipeline.lossless,
        ended=entry.ended or "",
        tau=acceptance.tau,
        alpha=tuple(acceptance.alpha),
        reached=tuple(acceptance.by_depth),
        drafted=acceptance.drafted,
        accepted=acceptance.accepted,
        cycles=tuple(cycles),
        pieces=tuple(
            TracedToken(token, text, "draft" if place < lengths[number] else "bonus", number)
            for token, text, (number, place) in zip(entry.tokens, texts, sources, strict=True)
        ),
    )


def reading_law(settings: SamplingSettings) -> Sampling:
    """Returns the sampling that probabilities are read with: the recipe's, or temperature 1 if the recipe is greedy."""
    if settings.temperature == 0:
        return Sampling(temperature=1.0)
    return settings.law()


def traced_cycle(
    number: int,
    cycle: Cycle,
    law: Tensor,
    known: Callable[[Path], float | None],
    count: int,
    wording: Wording,
    context: Sequence[int],
) -> TracedCycle:
    """Converts a cycle of one row to plain data.

    `law` [N, V] is the target's after every node, `known` returns the drafter's probability of a node if it was
    recorded, and `context` has the last committed tokens before the cycle, ending with the root.
    """
    tree, verdict = cycle.draft, cycle.verdict
    parents = tree.parent[0].clamp(min=0)
    p = law[parents, tree.tokens.where(tree.valid, 0)[0]].tolist()  # values at the root and at padding are meaningless
    q = _recorded_q(cycle)
    path = verdict.path[0, : int(verdict.length[0])].tolist()
    paths = token_paths(tree)
    rows = zip(*(x[0].tolist() for x in (tree.parent, tree.depth, tree.tokens, tree.valid, tree.draw)), strict=True)
    nodes = []
    for index, (parent, depth, token, valid, draw) in enumerate(rows):
        if not valid:
            continue
        before = context[:-1] if not index else [*context, *paths[index][:-1]]
        drafted = known(paths[index])
        nodes.append(
            TracedNode(
                index=index,
                parent=parent,
                depth=depth,
                token=token,
                text=wording.after(before, token),
                p=p[index] if index else None,
                q=drafted if drafted is not None else q[index],
                draw=DRAW_NAMES[draw] if index else None,
                verdict="accepted" if index in path else "rejected" if index else "root",
            )
        )
    end = path[-1] if path else 0
    token = int(verdict.bonus[0])
    bonus = Bonus(token, wording.after([*context, *paths[end]], token), float(law[end, token]))
    return TracedCycle(number, tuple(nodes), tuple(path), bonus, count)


def _recorded_q(cycle: Cycle) -> list[float | None]:
    """Returns, by node, the recorded probability of nodes that a drafter sampled into its own tree; None for others."""
    tree = cycle.draft.whole(cycle.scores.logits.shape[-1])
    if tree.q is None or tree.q_row is None:
        return [None] * tree.tokens.shape[1]
    q: Tensor = tree.q[0][tree.q_row[0].clamp(min=0), tree.tokens.where(tree.valid, 0)[0]]
    sampled = (tree.draw[0] != Draw.TOP).tolist()
    return [
        value if drawn and index else None for index, (value, drawn) in enumerate(zip(q.tolist(), sampled, strict=True))
    ]
