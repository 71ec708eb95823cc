"""Verifiers that judge several siblings together, as a specframe plugin; importing this package imports no torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from specframe.plugin import hookimpl

if TYPE_CHECKING:
    from specframe.plugin import Register


@hookimpl
def specframe_register(register: Register) -> None:
    """Registers the verifiers `kseq` and `transport`."""
    register(
        "verifier",
        "kseq",
        "specframe_spectr.kseq:KSeq",
        summary="SpecTr's K-SEQ: independent siblings against one common test",
    )
    register(
        "verifier",
        "transport",
        "specframe_spectr.transport:Transport",
        summary="siblings by twos, accepted almost as often as can be",
    )
