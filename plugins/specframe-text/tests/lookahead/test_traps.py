"""Mistakes in lookahead decoding: noise shared with the verifier, a pool shared by rows, misplaced windows."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from specframe import compose
from specframe.certify.compositions.enumeration import enumerate_outcomes
from specframe.components.targets.table import TableTarget
from specframe.kernel.types import Committed
from specframe_text.lookahead.lookahead import Lookahead, NgramPool, Window
from tests.certify.traps.instances import P, without

CELLS = 10
"""P is a law of tenths: a uniform number is one of ten cells."""


def of_cell(cell: Tensor) -> Tensor:
    """The token that a uniform number, given as its cell [B], draws from P."""
    ends = (P * CELLS).cumsum(0).round()
    return (cell[:, None] >= ends).sum(1)


def emitted(*, shared: bool, match: bool) -> dict[int, float]:
    """The law of the first token, where a window's guess was drawn from the target's law and is then verified.

    The window's number decides the guess, and where it is `shared` the acceptance, too: by `match`, or by the authors'
    rule for guesses at a temperature, which accepts with P(guess) and draws from the others on refusal.
    """

    def program(random: Any, rows: int) -> Tensor:
        cells = torch.full((rows, CELLS), 1 / CELLS, dtype=torch.float64)
        window = random.categorical(cells)
        guess = of_cell(window)
        fresh = window if shared else random.categorical(cells)
        if match:
            return of_cell(fresh)[:, None]
        accepted = (fresh + 0.5) / CELLS < P[guess]
        other = random.categorical(without(P.expand(rows, -1), guess[:, None]))
        return guess.where(accepted, other)[:, None]

    found = enumerate_outcomes(program, rows=4096)
    assert found.exhausted
    return {outcome[0]: mass for outcome, mass in found.law.items()}


def distance(law: dict[int, float]) -> float:
    return sum(abs(law.get(token, 0.0) - float(P[token])) for token in range(len(P))) / 2


def test_a_window_that_is_sampled_with_the_verifiers_noise_is_caught() -> None:
    law = emitted(shared=True, match=False)
    # Cells 0 and 1 accept their tokens 0 and 1. Cell 2 refuses token 1, cells 3 to 5 refuse 2, cells 6 to 9 refuse 3.
    refused = {1: 0.1, 2: 0.3, 3: 0.4}
    for token, accepted in {0: 0.1, 1: 0.1, 2: 0.0, 3: 0.0}.items():
        others = sum(mass * float(P[token] / (1 - P[guess])) for guess, mass in refused.items() if guess != token)
        assert law.get(token, 0.0) == pytest.approx(accepted + others)
    assert distance(law) > 0.1


@pytest.mark.parametrize(("shared", "match"), [(False, False), (False, True), (True, True)])
def test_noise_of_its_own_is_exact_and_under_match_shared_noise_is_harmless(shared: bool, match: bool) -> None:
    assert distance(emitted(shared=shared, match=match)) < 1e-12


class Silent:
    """Randomness that must not be asked for."""

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"the drafter drew noise: {name}")


def test_lookahead_draws_no_noise() -> None:
    """The paper fills its first window at random; a fill from the verifier's stream would be the trap above."""
    made = compose(target=TableTarget(vocab=6), drafter=Lookahead())
    drafter = made.parts.drafter
    propose = drafter.propose

    def silent(root: Tensor, tree: Any, context: Any) -> Any:
        return propose(root, tree, type(context)(context.sampling, Silent()))

    drafter.propose = silent  # type: ignore[method-assign]
    assert made.generate([[0, 1, 2]], max_new_tokens=20).acceptance.cycles > 0


class OnePool(Lookahead):
    """All rows have one pool of n-grams."""

    def commit(self, committed: Committed) -> None:
        """As before, in one pool."""
        pool = self._pools[0] if self._pools else NgramPool(self.ngram, self.guesses)
        super().commit(committed)
        if committed.prompt is not None:
            self._pools = [pool] * len(self._pools)


PROMPTS = [[0, 1, 2, 0, 1], [3, 3, 1], [2, 4, 5, 2]]


def decoded(drafter: Lookahead, verifier: str, prompts: list[list[int]], row: int = 0) -> tuple[list[int], float]:
    """A row's tokens and the tau of all."""
    made = compose(
        target=TableTarget(vocab=6, sharpness=1.5),
        drafter=drafter,
        verifier=verifier,
        sampling={"temperature": 0.8},
        run={"batch": len(prompts)},
    )
    found = made.generate(prompts, max_new_tokens=40, seed=3)
    return found.tokens[row], found.acceptance.tau


def test_a_pool_that_rows_share_changes_drafts_and_under_match_no_text() -> None:
    plain = compose(target=TableTarget(vocab=6, sharpness=1.5), sampling={"temperature": 0.8})
    wanted = plain.generate(PROMPTS, max_new_tokens=40, seed=3).tokens
    taus = set()
    for drafter in (Lookahead, OnePool):
        for row in range(len(PROMPTS)):
            text, tau = decoded(drafter(), "match", PROMPTS, row)
            assert text == wanted[row]
            taus.add(tau)
    assert len(taus) == 2, "the drafts are others"


class Flat(Window):
    """A window whose columns all hang from the root: every guess is scored at a position too early."""

    def paths(self) -> list[list[int]]:
        """Of each column its own guesses alone."""
        return [path[column:] for column, path in enumerate(super().paths())]


def test_a_window_at_the_wrong_positions_finds_other_ngrams() -> None:
    """It stays lossless and drafts worse, so only a comparison with the authors' window can find it."""

    def after(path: list[int]) -> int:
        return len(path)  # this target's tokens are their positions after the last cycle's root

    found = {}
    for kind in (Window, Flat):
        window = kind([9], ngram=3, width=3)
        for root in range(4):
            ngrams = window.advance(root, [after([root, *path]) for path in window.paths()])
        found[kind] = [later[-1] for _, later in ngrams]
    assert found == {Window: [2, 3, 4], Flat: [2, 2, 2]}, "column i of the newest generation guesses token i + 2"
