"""Reports of benches, as a specframe plugin; importing this imports no torch."""

from __future__ import annotations

from specframe.plugin import Register, hookimpl


@hookimpl
def specframe_register(register: Register) -> None:
    """Registers the reporter of `specframe bench`."""
    register(
        "extension",
        "report",
        "specframe_report.reporter:BenchReporter",
        summary="figures, tables, plots and comparisons of `specframe bench`",
    )
