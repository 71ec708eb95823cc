"""A drafter of another vocabulary, kept in step with a session in the target's tokens."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from torch import Tensor

from specframe import CompositionError
from specframe.plugin import (
    Committed,
    Context,
    Drafter,
    Expand,
    Prompts,
    Target,
    Teacher,
    TextDrafter,
    TokenTree,
    TreePolicy,
    text_of,
)
from specframe_models.vocabularies.lexicon import Prefix
from specframe_models.vocabularies.reading import Reading
from specframe_models.vocabularies.teaching import Translated, Translation
from specframe_models.vocabularies.vocabulary import Vocabulary

Pair = tuple[Vocabulary, Vocabulary]
"""The drafter's vocabulary and the target's."""


@dataclass(frozen=True)
class View:
    """The target as seen by a drafter of another vocabulary: a target of the drafter's own tokens."""

    vocab_size: int
    device: Any


class Grown:
    """A wrapper of a tree policy that replaces its expand and gives it the roots [B] in the target's tokens."""

    def __init__(self, tree: TreePolicy, translate: Callable[[Expand], Expand], root: Tensor) -> None:
        self.promise = tree.promise
        self._tree = tree
        self._translate = translate
        self._root = root

    def grow(self, expand: Expand, root: Tensor, context: Context) -> TokenTree:
        """Returns the other policy's tree below the target's roots."""
        return self._tree.grow(self._translate(expand), self._root, context)


class Translator:
    """Passes the committed text to a drafter, in the drafter's tokens."""

    def __init__(self, drafter: Drafter, replace: Mapping[str, str] | None, given: Pair | None) -> None:
        """Wraps a drafter; `given` are vocabularies that replace those of the tokenizers.

        Raises CompositionError for a drafter that cannot have another vocabulary.
        """
        if drafter.promise.complete or drafter.taps or not hasattr(type(drafter), "rewind"):
            raise CompositionError(
                "only a drafter that reads tokens alone and grows a tree policy can have another vocabulary than the "
                "target: take `model`"
            )
        self.drafter = cast(TextDrafter, drafter)
        self.replace = dict(replace or {})
        self.given = given
        self.rows: list[Reading] = []
        self.roots = torch.zeros(0, dtype=torch.int64)
        """The last token of each row, [B], in the drafter's vocabulary."""

    def bind(self, target: Target) -> Pair:
        """Binds the drafter and returns both vocabularies. Raises CompositionError if a tokenizer is missing."""
        if self.given is None:
            tokenizers = self.drafter.tokenizer, text_of(target).tokenizer
            if None in tokenizers:
                raise CompositionError("translating between vocabularies needs the tokenizers of target and drafter")
            sizes = self.drafter.vocab_size, target.vocab_size
            own, other = (Vocabulary.of(*each) for each in zip(tokenizers, sizes, strict=True))
        else:
            own, other = self.given
            if len(other.pieces) != target.vocab_size:
                raise CompositionError(
                    f"the vocabulary given has {len(other.pieces)} tokens, and the target {target.vocab_size}"
                )
        device = text_of(target).device or torch.device("cpu")
        self.drafter.bind(cast(Target, View(self.drafter.vocab_size, device)))
        self.own, self.other = own, other
        self._translation = Translation(own, other, self.replace)
        return own, other

    def open(self, slots: int, room: int) -> None:
        """Starts a session without rows."""
        self.rows = []
        self.roots = self.roots[:0]
        self.drafter.open(slots, room)

    def commit(self, committed: Committed) -> None:
        """Reads the committed tokens; rows with a prompt are added after the others."""
        device = committed.tokens.device
        texts = committed.texts
        if (prompts := committed.prompt) is not None:
            pairs = zip(prompts.tokens.tolist(), prompts.count.tolist(), strict=True)
            new = [Reading(self.own, self.other, row[:count], self.replace) for row, count in pairs]
            for row, text in zip(new, texts, strict=True):
                row.write(text[-1:])  # an admission commits the prompt, shifted by one
            self.rows += new
            whole = [row.tokens for row in new]
            before = Prompts(*_padded([text[:-1] for text in whole], device))
            self._pass_on([text[1:] for text in whole], device, before)
            return
        stay = [row.write(text) for row, text in zip(self.rows, texts, strict=True)]
        whole = [row.tokens for row in self.rows]
        stay = [min(same, len(text) - 1) for same, text in zip(stay, whole, strict=True)]  # a commit has a token
        self.drafter.rewind(torch.tensor(stay, device=device))
        self._pass_on([text[same:] for same, text in zip(stay, whole, strict=True)], device)

    def keep(self, rows: Tensor) -> None:
        """Keeps these rows, int64 [R], in this order."""
        self.rows = [self.rows[row] for row in rows.tolist()]
        self.roots = self.roots[rows]
        self.drafter.keep(rows)

    def propose(
        self, root: Tensor, tree: TreePolicy, context: Context, translate: Callable[[Expand], Expand]
    ) -> TokenTree:
        """Returns a draft in the target's tokens below root [B]: the tree policy grown with the translated expand.

        A row whose text ends within a character has no draft.
        """
        draft = self.drafter.propose(self.roots, Grown(tree, translate, root), context)
        if draft.levels == 0:
            return TokenTree.root_only(root)
        return self.complete_rows(draft)

    def complete_rows(self, draft: TokenTree) -> TokenTree:
        """Returns the draft without the nodes of rows whose text ends within a character."""
        complete = [row.complete for row in self.rows]
        if all(complete):
            return draft
        inside = torch.tensor(complete, device=draft.tokens.device)[:, None]
        return replace(draft, valid=draft.valid & (inside | (draft.parent < 0)))

    def translate(self, teacher: Teacher, answers: Tensor, ngrams: Mapping[int, Prefix]) -> Translated:
        """Returns the target's answers to texts in the drafter's tokens: see `Translation`."""
        return self._translation(teacher, answers, ngrams)

    def _pass_on(self, rows: list[list[int]], device: torch.device, prompt: Prompts | None = None) -> None:
        tokens, count = _padded(rows, device)
        root = torch.tensor([row[-1] for row in rows], device=device)
        self.drafter.commit(Committed(tokens, count, {}, root, prompt))
        self.roots = root if prompt is None else torch.cat([self.roots.to(device), root])


def require_tree(tree: TreePolicy | None, name: str) -> TreePolicy:
    """Returns the tree policy. Raises CompositionError if there is none."""
    if tree is None:
        raise CompositionError(f"{name} grows a tree policy's tree, and there is none; try `chain`")
    return tree


def _padded(rows: Sequence[Sequence[int]], device: torch.device) -> tuple[Tensor, Tensor]:
    width = max(map(len, rows))
    tokens = torch.tensor([[*row, *[0] * (width - len(row))] for row in rows], device=device)
    return tokens, torch.tensor([len(row) for row in rows], device=device)
