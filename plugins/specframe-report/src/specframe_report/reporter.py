"""The reporter of benches, with the interface that the core uses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from specframe_report import page
from specframe_report.comparison import compare, print_comparison
from specframe_report.summary import summarise
from specframe_report.tables import overall_table, print_table, require_columns


class BenchReporter:
    """Summaries of a bench's results, and their presentation."""

    def __init__(self, columns: Sequence[str] = ()) -> None:
        """Creates a reporter whose tables for papers have these columns, or the default ones.

        Raises InputError for an unknown column.
        """
        require_columns(columns)
        self._columns = columns

    def summarise(self, results: Mapping[str, Any]) -> dict[str, Any]:
        """See `summary.summarise`."""
        return summarise(results)

    def write(self, results: Mapping[str, Any], summary: Mapping[str, Any], folder: Path) -> str | None:
        """Writes the report; returns why there are no plots, or None."""
        page.write_report(results, summary, folder, self._columns)
        return None if page.can_draw() else page.NO_PLOTS

    def table(self, summary: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
        """See `tables.overall_table`."""
        return overall_table(summary, columns=self._columns)

    def show(self, summary: Mapping[str, Any]) -> None:
        """See `tables.print_table`."""
        print_table(summary)

    def show_comparison(self, old: Mapping[str, Any], new: Mapping[str, Any]) -> None:
        """See `comparison.compare`."""
        print_comparison(compare(old, new))
