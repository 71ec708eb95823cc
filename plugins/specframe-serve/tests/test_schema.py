"""`/openapi.json`: the routes that are there, and bodies as they are validated."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from serving import QUESTION, Serving


def test_it_describes_the_routes_that_are_there(pipeline):
    with Serving(pipeline, keys={"": "secret"}) as serving:
        found = serving.get("/openapi.json").json()
        routes = {route.path for route in serving.server.app._app.routes}
        assert found["paths"].keys() == {path for path in routes if "{" not in path} and len(routes) > 12
        assert found["security"] == [{"key": []}]
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


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of the tool's own dependencies
def test_no_request_that_is_made_of_the_description_makes_the_server_fail(pipeline):
    """Schemathesis: bodies that the description allows, and others; answers are of the server's kind."""
    schemathesis = pytest.importorskip("schemathesis", reason="pip install schemathesis")
    with Serving(pipeline, context=60, queue=8) as serving:
        described = schemathesis.openapi.from_dict(serving.get("/openapi.json").json())
        counted = dict.fromkeys(serving.get("/openapi.json").json()["paths"], 0)

        @settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
        @given(data=st.data())
        def ask(data):
            for operation in operations:
                case = data.draw(operation.as_strategy())
                reply = serving.request(**case.as_transport_kwargs())
                assert reply.status_code < 500, (case.as_curl_command(), reply.text)
                counted[operation.path] += 1

        operations = [found.ok() for found in described.get_all_operations()]
        ask()
    assert min(counted.values()) > 100
