"""Laws of tau in training tokens and parameters, and the choice among them by held-out points."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import least_squares

from specframe_scaling.points import Array
from specframe_scaling.resampling import Sums

STEPS = 30
RIDGE = 1e-2
"""Prior of a logit's coefficients, so weak that it matters only if no cycle reached a depth."""


@dataclass(frozen=True)
class Regressors:
    """Regressors of a law: 1, log10 of tokens and, if sizes differ, log10 of parameters, relative to their means."""

    middle: tuple[float, float]
    sized: bool

    @classmethod
    def of(cls, sums: Sums) -> Regressors:
        """Returns the regressors for these points."""
        middle = float(np.log10(sums.tokens).mean()), float(np.log10(sums.parameters).mean())
        return cls(middle, len(set(sums.parameters.tolist())) > 1)

    def design(self, tokens: Array, parameters: Array) -> Array:
        """[M, K] regressors."""
        columns = [np.ones(len(tokens)), np.log10(tokens) - self.middle[0], np.log10(parameters) - self.middle[1]]
        return np.stack(columns[: 3 if self.sized else 2], 1)

    def words(self, coefficients: Array) -> str:
        """Formats a sum of coefficients and regressors, for a law that is not relative to the means."""
        slopes = coefficients[1:]
        start = coefficients[0] - sum(slope * middle for slope, middle in zip(slopes, self.middle, strict=False))
        names = ("log10(tokens)", "log10(parameters)")
        return f"{start:.3g}" + "".join(f" {b:+.3g} {name}" for b, name in zip(slopes, names, strict=False))


@dataclass(frozen=True)
class Logit:
    """Acceptance by depth: logit(alpha_d) = a + b log10(tokens) + c log10(parameters), which stays between 0 and 1."""

    terms: Regressors
    coefficients: Array  # [R, D, K]
    name: str = "logit"

    @classmethod
    def fit(cls, sums: Sums) -> Logit:
        """Maximises the likelihood of the acceptances at each depth by Newton's method."""
        terms = Regressors.of(sums)
        x = terms.design(sums.tokens, sums.parameters)
        trials = np.concatenate([sums.cycles[..., None], sums.reached[..., :-1]], -1)
        tried = np.moveaxis(trials * sums.weights[..., None], -1, 1)  # [R, D, N]
        right = np.moveaxis(sums.reached * sums.weights[..., None], -1, 1)
        found = np.zeros((*tried.shape[:2], x.shape[1]))
        prior = RIDGE * np.eye(x.shape[1])
        for _ in range(STEPS):
            alpha = _expit(found @ x.T)  # [R, D, N]
            slope = (right - tried * alpha) @ x - found @ prior
            curve = np.einsum("rdn,nk,nl->rdkl", tried * alpha * (1 - alpha), x, x) + prior
            step = np.linalg.solve(curve, slope[..., None])[..., 0]
            found = found + np.clip(step, -2, 2)
            if np.abs(step).max() < 1e-9:
                break
        return cls(terms, found)

    def alpha(self, tokens: Array, parameters: Array) -> Array:
        """Returns the acceptance at each depth among the cycles that reached it: [R, D, M]."""
        return _expit(self.coefficients @ self.terms.design(tokens, parameters).T)

    def depths(self, tokens: Array, parameters: Array) -> Array:
        """Returns tau of the tree cut below each depth: [R, D, M]."""
        found: Array = 1 + self.alpha(tokens, parameters).cumprod(1).cumsum(1)
        return found

    def tau(self, tokens: Array, parameters: Array) -> Array:
        """Returns tau by the product over depths: [R, M]."""
        last: Array = self.depths(tokens, parameters)[:, -1]
        return last

    def words(self) -> str:
        """Returns the formula of the first depth."""
        return f"logit(alpha_1) = {self.terms.words(self.coefficients[0, 0])}"


@dataclass(frozen=True)
class Linear:
    """The form of Scylla's Theorems 1.1 and 1.2: tau = a + b log10(tokens) + c log10(parameters)."""

    terms: Regressors
    coefficients: Array  # [R, K]
    name: str = "linear"

    @classmethod
    def fit(cls, sums: Sums) -> Linear:
        """Fits by least squares."""
        terms = Regressors.of(sums)
        x = terms.design(sums.tokens, sums.parameters)
        square = np.einsum("rn,nk,nl->rkl", sums.weights, x, x) + 1e-12 * np.eye(x.shape[1])
        found = np.linalg.solve(square, ((sums.weights * sums.tau) @ x)[..., None])[..., 0]
        return cls(terms, found)

    def tau(self, tokens: Array, parameters: Array) -> Array:
        """Returns tau at these places: [R, M]."""
        found: Array = self.coefficients @ self.terms.design(tokens, parameters).T
        return found

    def words(self) -> str:
        """Returns the formula."""
        return f"tau = {self.terms.words(self.coefficients[0])}"


@dataclass(frozen=True)
class Saturating:
    """A power law that approaches a limit: tau = limit - A tokens^-b parameters^-c."""

    terms: Regressors
    coefficients: Array  # [R, 1 + K]: the limit, then the coefficients of the natural logarithm of the remainder
    name: str = "saturating"

    @classmethod
    def fit(cls, sums: Sums) -> Saturating:
        """Fits by least squares, starting from a fit whose limit is the length of the longest path."""
        terms = Regressors.of(sums)
        x = terms.design(sums.tokens, sums.parameters)
        most = 1 + sums.reached.shape[-1]
        found = []
        start: Array | None = None
        for tau, weights in zip(sums.tau, sums.weights, strict=True):
            root = np.sqrt(weights)
            if start is None:
                missing = np.log(np.maximum(most - tau, 1e-6))
                start = np.array([most - 1e-3, *np.linalg.lstsq(x, missing, rcond=None)[0]])

            def misfit(guess: Array, tau: Array = tau, root: Array = root) -> Array:
                found: Array = root * (guess[0] - np.exp(np.clip(x @ guess[1:], -50, 50)) - tau)
                return found

            bounds = ([1.0, *[-np.inf] * x.shape[1]], [float(most), *[np.inf] * x.shape[1]])
            found.append(least_squares(misfit, start, bounds=bounds, max_nfev=400).x)
            start = np.clip(found[0], [1.001, *[-np.inf] * x.shape[1]], [most - 1e-3, *[np.inf] * x.shape[1]])
        return cls(terms, np.array(found))

    def tau(self, tokens: Array, parameters: Array) -> Array:
        """Returns tau at these places: [R, M]."""
        power = self.coefficients[:, 1:] @ self.terms.design(tokens, parameters).T
        found: Array = self.coefficients[:, :1] - np.exp(np.clip(power, -50, 50))
        return found

    def words(self) -> str:
        """Returns the formula."""
        limit, *rest = self.coefficients[0].tolist()
        start = np.exp(rest[0] - sum(b * middle for b, middle in zip(rest[1:], self.terms.middle, strict=False)))
        pairs = zip(rest[1:], ("tokens", "parameters"), strict=False)
        powers = " ".join(f"{name}^{b / np.log(10):.3g}" for b, name in pairs)
        return f"tau = {limit:.3g} - {start:.3g} {powers}"


TauLaw = Logit | Linear | Saturating
"""A fitted law."""

LAWS: Sequence[Callable[[Sums], TauLaw]] = (Logit.fit, Linear.fit, Saturating.fit)


@dataclass(frozen=True)
class Judged:
    """A law fitted to all points, and its error at the points with the most tokens when fitted without them."""

    law: TauLaw
    held_out: float
    """Mean relative error at the points with the most tokens."""
    largest: float
    """Relative error at the largest size among them, averaged over seeds."""


def judge(sums: Sums) -> list[Judged]:
    """Returns the laws, that with the least error at held-out points first."""
    most = sums.tokens > 0.9 * sums.tokens.max()
    seen, held_out = sums.only(~most), sums.only(most)
    measured = Sums(seen.tokens, seen.parameters, seen.cycles[:1], seen.reached[:1], seen.weights[:1])
    largest = held_out.parameters == held_out.parameters.max()
    found = []
    for fit in LAWS:
        off = fit(measured).tau(held_out.tokens, held_out.parameters)[0] / held_out.tau[0] - 1
        top = held_out.tau[0][largest].mean()
        error = fit(measured).tau(held_out.tokens[largest][:1], held_out.parameters[largest][:1])[0, 0] / top - 1
        found.append(Judged(fit(sums), float(np.abs(off).mean()), abs(float(error))))
    return sorted(found, key=lambda judged: judged.held_out)


def _expit(x: Array) -> Array:
    found: Array = 1 / (1 + np.exp(-np.clip(x, -50, 50)))
    return found
