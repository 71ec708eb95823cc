"""Draws rows that `specframe bench` prints, from the bench's results: docs/generate.py writes terminal.svg."""

from __future__ import annotations

import io
import re

from benches import read_benches
from pictures.chart import BENCH
from rich.console import Console
from rich.table import Table
from rich.terminal_theme import MONOKAI

from specframe_report.format import format_figure, format_value

SHOWN = ("suffix", "suffix-recycling", "eagle-suffix", "eagle3", "falcon", "plain")
COLUMNS = 92


def render_terminal() -> str:
    """A terminal with the command and the contestants' figures, as SVG."""
    measured = next(bench.measured for bench in read_benches() if bench.name == BENCH)
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True, highlight=False)
    console.print(f"$ specframe bench {' '.join(SHOWN)} ... hf:generate\n", style="bold")
    table = Table(box=None, padding=(0, 2, 0, 0))
    table.add_column("contestant")
    for name in ("tau", "tokens/s", "vs plain", "vs HF"):
        table.add_column(name, justify="right")
    for name in SHOWN:
        figures = measured[name]["overall"]
        gains = (format_figure(figures[each], unit="x") for each in ("speedup", "speedup_hf"))
        table.add_row(name, format_figure(figures["tau"]), format_value(figures["tokens_per_second"], 1), *gains)
    console.print(table)
    drawn = console.export_svg(title="SmolLM2-135M-Instruct, two cores", theme=MONOKAI, unique_id="specframe")
    return re.sub(r"@font-face \{.*?\}\s*", "", drawn, flags=re.DOTALL)  # nothing is fetched from elsewhere
