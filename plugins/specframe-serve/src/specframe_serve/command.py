"""`specframe serve RECIPE`: an OpenAI-compatible endpoint over one session."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from specframe import recipe_command

if TYPE_CHECKING:
    from specframe.plugin import Plan

KEY = "SPECFRAME_SERVE_KEY"
"""The environment variable whose value clients must send as bearer token."""

LEVELS = ["debug", "info", "warning", "error"]


@recipe_command
@click.option("--host", default="127.0.0.1", metavar="HOST", help="the address to listen on")
@click.option("--port", default=8000, metavar="N", help="the port; 0 takes a free one")
@click.option(
    "--name",
    metavar="NAME",
    help="what clients call the model (default: the recipe's name, or the given model's)",
)
@click.option("--slots", default=8, metavar="N", help="rows decoded together")
@click.option("--queue", default=64, metavar="N", help="rows that may wait; further ones get status 429")
@click.option("--context", default=4096, metavar="N", help="tokens of a row, prompt and answer together")
@click.option("--prefill", default=512, metavar="N", help="prompt tokens to process between two cycles")
@click.option("--piece", default=None, type=int, metavar="N", help="of a longer prompt (default: 64 on a CPU)")
@click.option("--cache", default=512, metavar="MB", help="texts kept so that their beginnings need not be read again")
@click.option("--timeout", default=600.0, metavar="S", help="seconds that a request may take")
@click.option("--body", default=1 << 20, metavar="BYTES", help="size of a request's body, at most")
@click.option("--drain", default=60.0, metavar="S", help="seconds to finish running requests at shutdown")
@click.option("--connections", default=256, metavar="N", help="connections that are open at a time")
@click.option("--keys", type=click.Path(path_type=Path), metavar="FILE", help="keys of clients, `NAME KEY` a line")
@click.option("--prompt-details", is_flag=True, help="report the prompt tokens that came from the prefix cache")
@click.option("--strict-schemas", is_flag=True, help="refuse JSON schemas with keywords that would be ignored")
@click.option("--log-level", type=click.Choice(LEVELS), default="warning", help="info: a line for each request")
@click.option("--log-format", type=click.Choice(["text", "json"]), default="text", help="form of the log's lines")
@click.option(
    "--allowed-origins", default="", metavar="URL,...", help="origins of web pages that may send requests, `*` for any"
)
def serve(
    plan: Plan,
    host: str,
    port: int,
    name: str | None,
    slots: int,
    queue: int,
    context: int,
    prefill: int,
    piece: int | None,
    cache: int,
    timeout: float,
    body: int,
    drain: float,
    connections: int,
    keys: Path | None,
    prompt_details: bool,
    strict_schemas: bool,
    log_level: str,
    log_format: str,
    allowed_origins: str,
) -> int:
    """Answer OpenAI clients over HTTP: completions and chat, streamed or not, requests decoded together.

    It serves until SIGTERM or Ctrl-C; requests that are being answered then are finished.
    """
    from specframe import Pipeline
    from specframe_serve.app import Server
    from specframe_serve.settings import ServeSettings
    from specframe_serve.web.access import hosts_for, read_keys
    from specframe_serve.web.listener import listen, run, warn_if_open
    from specframe_serve.web.records import log_to_stderr

    key, named = os.environ.get(KEY) or None, {} if keys is None else read_keys(keys)
    settings = ServeSettings(
        name=name or find_name(plan),
        slots=slots,
        queue=queue,
        context=context,
        to_end="max_new_tokens" not in (plan.recipe.data.get("sampling") or {}),
        prefill=prefill,
        piece=piece,
        cache=cache,
        strict_schemas=strict_schemas,
        timeout=timeout,
        body=body,
        key=key,
        keys=named,
        prompt_details=prompt_details,
        connections=connections,
        drain=drain,
        hosts=hosts_for(host, key or next(iter(named.values()), None)),
        origins=tuple(filter(None, allowed_origins.split(","))),
    )
    log_to_stderr(log_level, log_format)
    warn_if_open(host, settings)
    with listen(host, port) as listener:
        server = Server(Pipeline.build(plan), settings)
        address, number = listener.getsockname()[:2]
        shown = f"[{address}]" if ":" in address else address
        locked = "; clients need the key" if settings.key or settings.keys else ""
        run(server, listener, f"{settings.name} at http://{shown}:{number}/v1, {slots} rows at a time{locked}")
    return 0


def find_name(plan: Plan) -> str:
    """Returns the model's name for clients: the recipe's, or that of the model that was given in place of a recipe."""
    asked = click.get_current_context().params.get("recipe")
    model = plan.parts["target"].options.get("model")
    return str(model) if asked is not None and asked == model else plan.recipe.path.stem
