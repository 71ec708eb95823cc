"""The reporter of benches, as the core asks for it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from specframe_report import page
from specframe_report.comparison import compare, print_comparison
from specframe_report.summary import summarise
from specframe_report.tables import overall_table, print_table


class BenchReporter:
    """Figures of a bench's results, and what people read of them."""

    def summarise(self, results: Mapping[str, Any]) -> dict[str, Any]:
        """See `summary.summarise`."""
        return summarise(results)

    def write(self, results: Mapping[str, Any], summary: Mapping[str, Any], folder: Path) -> str | None:
        """Writes the report; returns why there are no plots, or None."""
        page.write_report(results, summary, folder)
        return None if page.can_draw() else page.NO_PLOTS

    def table(self, summary: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
        """See `tables.overall_table`."""
        return overall_table(summary)

    def show(self, summary: Mapping[str, Any]) -> None:
        """See `tables.print_table`."""
        print_table(summary)

    def show_comparison(self, old: Mapping[str, Any], new: Mapping[str, Any]) -> None:
        """See `comparison.compare`."""
        print_comparison(compare(old, new))
