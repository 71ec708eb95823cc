"""Reports of benches and pages of traces; importing this package imports no torch."""

from __future__ import annotations

from specframe.plugin import Register, hookimpl


@hookimpl
def specframe_register(register: Register) -> None:
    """Registers the reporter of `specframe bench`, and the page of `specframe show`."""
    register(
        "extension",
        "report",
        "specframe_report.reporter:BenchReporter",
        summary="figures, tables, plots and comparisons of `specframe bench`",
    )
    register(
        "extension",
        "trace-page",
        "specframe_report.trace_page:render",
        summary="the page of `specframe show --html`: every cycle's tree",
    )
