"""The drafter of any specframe recipe inside vLLM; importing this package imports neither torch nor vLLM."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from specframe.plugin import Register, hookimpl

if TYPE_CHECKING:
    from specframe_vllm.proposer import Proposer as Proposer


@hookimpl
def specframe_register(register: Register) -> None:
    """Registers the class that vLLM's arguments name, so that it is listed as installed."""
    register(
        "extension",
        "vllm",
        "specframe_vllm.proposer:Proposer",
        summary="the drafters of recipes within vLLM, as `specframe_vllm.Proposer`",
    )
    for form in ("vllm", "speculators"):
        register(
            "extension",
            f"check-{form}",
            "specframe_vllm.engine:run",
            summary=f"vLLM with an exported drafter, for `specframe export --to {form} --check`",
        )


def __getattr__(name: str) -> Any:
    """Imports `Proposer`, the class that `speculative_config` names, on first use."""
    if name != "Proposer":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from specframe_vllm.proposer import Proposer

    return Proposer
