"""`specframe serve RECIPE`: an OpenAI-compatible endpoint over one session."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, get_args, get_type_hints

import click

from specframe import recipe_command
from specframe_serve.settings import ServeSettings

if TYPE_CHECKING:
    from specframe.plugin import Plan

KEY = "SPECFRAME_SERVE_KEY"
"""The environment variable whose value clients must send as bearer token."""

Callback = TypeVar("Callback", bound=Callable[..., int])
LEVELS = ["debug", "info", "warning", "error"]


def limits(command: Callback) -> Callback:
    """Adds the limits of a server to a command as options."""
    for each in reversed(fields(ServeSettings)):
        if each.metadata:
            name, kind = each.name.replace("_", "-"), get_type_hints(ServeSettings)[each.name]
            kind = next(iter(get_args(kind)), kind)
            shown = {"is_flag": kind is bool, "callback": _note, "expose_value": False} | each.metadata
            command = click.option(f"--{name}", default=each.default, type=kind, **shown)(command)
    return command


def _note(context: click.Context, parameter: click.Parameter, value: Any) -> None:
    context.meta.setdefault(__name__, {})[parameter.name] = value


@recipe_command
@click.option("--host", default="127.0.0.1", metavar="HOST", help="the address to listen on")
@click.option("--port", default=8000, metavar="N", help="the port; 0 takes a free one")
@click.option(
    "--name", metavar="NAME", help="what clients call the model (default: the recipe's name, or the given model's)"
)
@limits
@click.option("--keys", type=click.Path(path_type=Path), metavar="FILE", help="keys of clients, `NAME KEY` a line")
@click.option("--log-level", type=click.Choice(LEVELS), default="info", help="info: a line for each request")
@click.option("--log-format", type=click.Choice(["text", "json"]), default="text", help="form of the log's lines")
@click.option(
    "--allowed-origins", default="", metavar="URL,...", help="origins of web pages that may send requests, `*` for any"
)
def serve(
    plan: Plan,
    host: str,
    port: int,
    name: str | None,
    keys: Path | None,
    log_level: str,
    log_format: str,
    allowed_origins: str,
) -> int:
    """Answer OpenAI clients over HTTP: completions and chat, streamed or not, requests decoded together.

    It serves until SIGTERM or Ctrl-C; requests that are being answered then are finished.
    """
    from specframe import Pipeline
    from specframe_serve.app import Server
    from specframe_serve.web.access import hosts_for, read_keys
    from specframe_serve.web.listener import listen, run, warn_if_open
    from specframe_serve.web.records import log_to_stderr

    key = os.environ.get(KEY)
    known = ({"": key} if key else {}) | (read_keys(keys) if keys is not None else {})
    settings = ServeSettings(
        name=name or find_name(plan),
        to_end="max_new_tokens" not in (plan.recipe.data.get("sampling") or {}),
        keys=known,
        hosts=hosts_for(host, bool(known)),
        origins=tuple(filter(None, allowed_origins.split(","))),
        **click.get_current_context().meta[__name__],
    )
    warn_if_open(host, settings)
    with listen(host, port) as listener:
        log_to_stderr(log_level, log_format)
        server = Server(Pipeline.build(plan), settings)
        address, number = listener.getsockname()[:2]
        shown = f"[{address}]" if ":" in address else address
        locked = "; clients need the key" if settings.keys else ""
        run(server, listener, f"{settings.name} at http://{shown}:{number}/v1, {settings.slots} rows at a time{locked}")
    return 0


def find_name(plan: Plan) -> str:
    """Returns the model's name for clients: the recipe's, or the name of the model given in place of a recipe."""
    asked = click.get_current_context().params.get("recipe")
    model = plan.parts["target"].options.get("model")
    return str(model) if asked is not None and asked == model else plan.recipe.path.stem
