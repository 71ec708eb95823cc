"""Speedups predicted from measured times or from weights read: CORAL's estimates (Weng et al. 2025, Eqs. 5, 6)."""

from __future__ import annotations

from specframe import InputError


def predicted_speedup(
    tau: float, *, target_seconds: float, scoring_seconds: float, drafter_seconds: float, steps: float
) -> float:
    """Returns the speedup over plain decoding given by the models' latencies, with all other costs zero.

    `tau` is the number of tokens committed per cycle, bonus included; `target_seconds` the target's forward pass over
    one token, `scoring_seconds` its pass over a whole draft, `drafter_seconds` one pass of the drafter, and `steps` the
    number of those in a cycle (gamma). Times may be in any unit. Drafters without a forward pass have 0 steps. Raises
    InputError for a cycle that takes no time, or for negative values.

    CORAL, Eq. (1): SR = tau * L_t / (gamma * L_d + L_t'), where L_t' is the latency of the forward pass over many
    tokens. The printed equation has the prime above the fraction's line; the paper's own example (0.6 + 31/26 = 1.8 for
    Llama3-8B, Section 5.3) has it below, as it must be for a cycle.
    """
    _require(tau=tau, target_seconds=target_seconds, drafter_seconds=drafter_seconds, steps=steps)
    cycle = steps * drafter_seconds + scoring_seconds
    if not cycle > 0 or scoring_seconds < 0:
        raise InputError(f"a cycle of {cycle} seconds has no speed; give the measured latencies")
    return tau * target_seconds / cycle


def predicted_speedup_by_weights(tau: float, *, target_weights: int, drafter_weights: int, steps: float) -> float:
    """Returns the speedup predicted by sizes alone if memory bandwidth limits both models.

    Weights are numbers of parameters in matrix products: an embedding does not count, an LM head does, tied or not.
    Raises InputError for a target without weights, or for negative values.

    CORAL, Eq. (6): SR = tau * W_t / (gamma * W_d + W_t), by Eq. (5), L_d / L_t = W_d / W_t.
    """
    _require(tau=tau, drafter_weights=drafter_weights, steps=steps)
    if not target_weights > 0:
        raise InputError(f"a target of {target_weights} weights has no speed")
    return tau * target_weights / (steps * drafter_weights + target_weights)


def _require(**figures: float) -> None:
    for name, value in figures.items():
        if not value >= 0:  # NaN included
            raise InputError(f"{name} is {value}; it must be 0 or more")
