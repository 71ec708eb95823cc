"""`/openapi.json`: the routes that are there, and bodies as they are validated."""

import pytest
from serving import QUESTION, Serving

from specframe_serve.app import GETS, POSTS


def test_it_describes_the_routes_that_are_there(pipeline):
    with Serving(pipeline, key="secret") as serving:
        found = serving.get("/openapi.json").json()
        assert found["paths"].keys() == GETS.keys() | POSTS.keys() and found["security"] == [{"key": []}]
        serving.headers["Authorization"] = "Bearer secret"
        for path, methods in found["paths"].items():
            (method,) = methods
            assert serving.request(method, path, **({"json": {}} if method == "post" else {})).status_code in (200, 422)


def test_bodies_are_described_as_they_are_validated(serving):
    jsonschema = pytest.importorskip("jsonschema", reason="pip install jsonschema")
    found = serving.get("/openapi.json").json()
    for path, body in (
        ("/v1/chat/completions", {"messages": QUESTION}),
        ("/v1/completions", {"prompt": "a", "stop": ["b"]}),
        ("/v1/responses", {"input": "a", "tools": []}),
        ("/api/chat", {"model": "small", "messages": QUESTION, "options": {"num_predict": 3}}),
    ):
        schema = found["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]
        validator = jsonschema.Draft202012Validator({**schema, "components": found["components"]})
        wrong = body | {"nonsense": 1}
        assert validator.is_valid(body) and not validator.is_valid(wrong)
        assert serving.post(path, json=body).status_code == 200 and serving.post(path, json=wrong).status_code == 422
