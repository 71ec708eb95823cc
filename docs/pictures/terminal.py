"""Draws rows that `specframe bench` prints, from the bench's results: docs/generate.py writes terminal.svg."""

from __future__ import annotations

import io
import re

from benches import read_benches
from pictures.chart import BENCH
from rich.console import Console
from rich.table import Table
from rich.terminal_theme import MONOKAI

from specframe_report.format import format_figure

SHOWN = ("suffix", "suffix-recycling", "eagle-suffix", "eagle3", "falcon", "plain")
COLUMNS = 60
WIDTH = 600  # pixels
"""A phone shows all of them, and the letters remain legible."""


def render_terminal() -> str:
    """A terminal with the command and the contestants' figures, as SVG."""
    measured = next(bench.measured for bench in read_benches() if bench.name == BENCH)
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True, highlight=False)
    console.print("$ specframe bench suffix eagle3 falcon ...\n", style="bold")
    table = Table(box=None, padding=(0, 2, 0, 0))
    table.add_column("contestant")
    for name in ("tau", "vs plain"):
        table.add_column(name, justify="right")
    for name in SHOWN:
        figures = measured[name]["overall"]
        table.add_row(name, format_figure(figures["tau"]), format_figure(figures["speedup"], unit="x"))
    console.print(table)
    drawn = console.export_svg(title="SmolLM2-135M-Instruct, two cores", theme=MONOKAI, unique_id="specframe")
    drawn = drawn.replace("viewBox=", f'width="{WIDTH}" viewBox=', 1)
    return re.sub(r"@font-face \{.*?\}\s*", "", drawn, flags=re.DOTALL)  # nothing is fetched from elsewhere
