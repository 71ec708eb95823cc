"""A hook of the site's build: the header names the release that the pages describe."""

from __future__ import annotations

from typing import Any

from specframe import __version__


def on_config(config: Any, **_: Any) -> Any:
    """Returns MkDocs' settings with the version in the site's name."""
    config["site_name"] = f"{config['site_name']} {__version__}"
    return config
