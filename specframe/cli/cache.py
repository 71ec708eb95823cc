"""`specframe cache`: lists packed weights in the cache, and removes them."""

from __future__ import annotations

import json
from dataclasses import asdict

import click

from specframe.cli.arguments import json_option
from specframe.cli.render import print_lines


@click.command()
@click.option("--clear", is_flag=True, help="remove all of them; processes that use them keep theirs")
@json_option("print one JSON list of them")
def cache(clear: bool, as_json: bool) -> int:
    """List or remove the packed weights that make the next start of a target faster.

    They lie in the user's cache folder, or in that of SPECFRAME_CACHE, and are made again when they are needed. Those
    that were used longest ago are removed beyond SPECFRAME_PACKED_GB gigabytes (16; 0 keeps none).
    """
    from datetime import datetime

    from specframe.neural.weights.weight_cache import clear_entries, list_entries, weights_folder

    if clear:
        print_lines([f"removed {clear_entries() / 1e6:,.0f} MB"])
        return 0
    entries = sorted(list_entries(), key=lambda entry: entry.used, reverse=True)
    if as_json:
        print(json.dumps([asdict(entry) | {"path": str(entry.path)} for entry in entries]))
        return 0
    for entry in entries:
        used = datetime.fromtimestamp(entry.used)
        size = f"{entry.bytes / 1e6:9,.0f} MB"
        print_lines([f"{size}  {used:%Y-%m-%d %H:%M}  {entry.precision or 'unreadable':10}  {entry.model}"])
    print_lines([f"{sum(entry.bytes for entry in entries) / 1e6:9,.0f} MB  in {weights_folder()}"])
    return 0
