"""The description of the server in OpenAPI's form, made from the models that validate its requests."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import version
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

REFERENCE = "#/components/schemas/{model}"


def describe(gets: Mapping[str, str], posts: Mapping[str, type[BaseModel]], locked: bool) -> dict[str, Any]:
    """The description of routes without a body, by path, with a summary, and of those with one, by the body's model.

    `locked`: clients need a key.
    """
    schemas, components = models_json_schema([(kind, "validation") for kind in posts.values()], ref_template=REFERENCE)
    reply = {"200": {"description": "the reply"}, "default": {"description": "an error, as {'error': ...}"}}
    paths: dict[str, Any] = {path: {"get": {"summary": text, "responses": reply}} for path, text in gets.items()}
    for path, kind in posts.items():
        body = {"required": True, "content": {"application/json": {"schema": schemas[kind, "validation"]}}}
        summary = (kind.__doc__ or "").partition("\n")[0]
        paths[path] = {"post": {"summary": summary, "requestBody": body, "responses": reply}}
    security = {"key": {"type": "http", "scheme": "bearer"}} if locked else {}
    return {
        "openapi": "3.1.0",
        "info": {"title": "specframe serve", "version": version("specframe-serve")},
        "paths": paths,
        "components": {"schemas": components["$defs"], "securitySchemes": security},
        "security": [{name: []} for name in security],
    }
