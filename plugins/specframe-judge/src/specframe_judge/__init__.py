"""Judge decoding as a specframe plugin; importing this package imports no torch."""

from __future__ import annotations

from specframe.plugin import Register, hookimpl


@hookimpl
def specframe_register(register: Register) -> None:
    """Registers the verifiers `judge`, `surprise` and `divergence`, the command `judge`, and a head."""
    register(
        "verifier",
        "judge",
        "specframe_judge.judge:Judge",
        summary="lossy: accepts what a linear head on the target's features calls harmless (judge decoding)",
    )
    register(
        "command",
        "judge",
        "specframe_judge.command:judge",
        summary="mine labels for a judge, fit its head and store it",
    )
    register(
        "verifier",
        "divergence",
        "specframe_judge.divergence:BoundedDivergence",
        summary="lossy: accepts where drafter and target nearly agree, by KL(q || p): judge decoding without training",
    )
    register(
        "model",
        "judge",
        "specframe_judge.shipped:qwen",
        summary="a judge's head for Qwen2.5-Coder-0.5B-Instruct, mined on sums",
    )
    register(
        "verifier",
        "surprise",
        "specframe_judge.surprise:Surprise",
        summary="lossy: accepts a token of which the target is not surprised: judge decoding without training",
    )
