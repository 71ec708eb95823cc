"""`specframe serve RECIPE`: an OpenAI-compatible endpoint over one session."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from specframe import add_recipe_arguments, read_plan

KEY = "SPECFRAME_SERVE_KEY"
"""The environment variable whose value clients must send as bearer token."""


class Serve:
    """Answers OpenAI clients over HTTP: completions and chat, streamed or not, requests decoded together."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Adds the command's arguments."""
        add_recipe_arguments(parser)
        add = parser.add_argument
        add("--host", default="127.0.0.1", help="the address to listen on (default: this machine alone)")
        add("--port", type=int, default=8000, help="the port (default: 8000; 0 takes a free one)")
        add("--name", help="what clients call the model (default: the recipe's name)")
        add("--slots", type=int, default=8, metavar="N", help="rows decoded together (default: 8)")
        add(
            "--queue",
            type=int,
            default=64,
            metavar="N",
            help="rows that may wait; further ones get status 429 (default: 64)",
        )
        add(
            "--context",
            type=int,
            default=4096,
            metavar="N",
            help="tokens of a row, prompt and answer together (default: 4096)",
        )
        add(
            "--prefill",
            type=int,
            default=512,
            metavar="N",
            help="prompt tokens to process between two cycles (default: 512)",
        )
        add("--timeout", type=float, default=600.0, metavar="S", help="seconds that a request may take (default: 600)")
        add(
            "--body",
            type=int,
            default=1 << 20,
            metavar="BYTES",
            help="size of a request's body, at most (default: 1 MiB)",
        )
        add(
            "--drain",
            type=float,
            default=60.0,
            metavar="S",
            help="seconds to finish running requests at shutdown (default: 60)",
        )
        add(
            "--connections",
            type=int,
            default=256,
            metavar="N",
            help="connections that are open at a time (default: 256)",
        )
        add(
            "--allowed-origins",
            default="",
            metavar="URL,...",
            help="origins of web pages that may send requests, `*` for any (default: none)",
        )

    def execute(self, options: argparse.Namespace) -> int:
        """Serves until SIGTERM or Ctrl-C; requests that are being answered then are finished."""
        plan = read_plan(options)

        from specframe import Pipeline
        from specframe_serve.app import Server
        from specframe_serve.settings import ServeSettings
        from specframe_serve.web.access import hosts_for
        from specframe_serve.web.listener import listen, run, warn_if_open

        key = os.environ.get(KEY) or None
        settings = ServeSettings(
            name=options.name or Path(options.recipe).stem,
            slots=options.slots,
            queue=options.queue,
            context=options.context,
            prefill=options.prefill,
            timeout=options.timeout,
            body=options.body,
            key=key,
            connections=options.connections,
            drain=options.drain,
            hosts=hosts_for(options.host, key),
            origins=tuple(filter(None, options.allowed_origins.split(","))),
        )
        warn_if_open(options.host, settings)
        with listen(options.host, options.port) as listener:
            server = Server(Pipeline.build(plan), settings)
            host, port = listener.getsockname()[:2]
            shown = f"[{host}]" if ":" in host else host
            locked = "; clients need the key" if settings.key else ""
            greeting = f"{settings.name} at http://{shown}:{port}/v1, {settings.slots} rows at a time{locked}"
            run(server, listener, greeting)
        return 0
