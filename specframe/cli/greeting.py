"""What `specframe` without arguments prints: what it is, and what to try next."""

from __future__ import annotations

import shutil
import textwrap

from specframe._version import __version__
from specframe.cli.render.columns import in_columns

TRY = {
    "specframe run falcon": "decode a published assistant (fetched once, 93 MB), and see what drafting gains",
    "specframe run suffix-recycling": "the same assistant, sped up without training",
    "specframe run suffix-recycling target.model=MODEL": "your own model: a folder, a GGUF file or a Hub name",
    "specframe show falcon": "which tokens were drafted, accepted and rejected, cycle by cycle",
    "specframe certify falcon": "prove that the output's distribution is the target's",
    "specframe recipes": "list the recipes, or copy one to change it",
    "specframe new plugin NAME": "begin a method of your own",
}
"""Commands, in the order in which a newcomer may try them."""


def greeting(columns: int | None = None) -> str:
    """The text, wrapped to a width in columns: the terminal's unless it is given."""
    columns = columns or shutil.get_terminal_size().columns
    about = f"specframe {__version__}: speculative decoding from parts, by recipe, certified lossless."
    lines = [*textwrap.wrap(about, columns), "", "Try next:", "", *in_columns(TRY.items(), columns, indent=2)]
    return "\n".join([*lines, "", *textwrap.wrap("`specframe --help` lists all commands.", columns)])
