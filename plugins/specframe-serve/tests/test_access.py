"""Who is answered, and what web pages may do."""

import pytest
from serving import QUESTION, Serving

from specframe import InputError
from specframe_serve.web.access import hosts_for, read_keys


@pytest.mark.parametrize("key", ["secret", "schlüssel", "鍵"])
def test_with_a_key_only_those_who_have_it_are_answered(pipeline, key):
    with Serving(pipeline, keys={"": key}) as serving:
        for given in (None, "Bearer wrong", key, f"Basic {key}", "Bearer", ""):
            headers = {} if given is None else {b"Authorization": given.encode()}
            reply = serving.get("/v1/models", headers=headers)
            assert reply.status_code == 401 and key not in reply.text
        assert serving.chat().status_code == 401
        for scheme in ("Bearer", "bearer", "BEARER"):
            headers = {b"Authorization": f"{scheme} {key}".encode()}
            assert serving.get("/v1/models", headers=headers).status_code == 200
        assert serving.get("/health").status_code == serving.get("/metrics").status_code == 200


def test_clients_with_keys_of_their_own_have_prefix_caches_of_their_own(pipeline, tmp_path):
    file = tmp_path / "keys"
    file.write_text("ann secret-a\n\nbob secret-b\n")
    for wrong in ("ann", "ann a\nann b", ""):
        (tmp_path / "wrong").write_text(wrong)
        with pytest.raises(InputError, match="a name and a key a line"):
            read_keys(tmp_path / "wrong")
    prompt = [3 + place % 50 for place in range(60)]
    with Serving(pipeline, keys=read_keys(file)) as serving:

        def cached(key, **fields):
            headers = {"Authorization": f"Bearer secret-{key}"}
            body = {"prompt": prompt, "max_tokens": 2, "ignore_eos": True} | fields
            usage = serving.post("/v1/completions", json=body, headers=headers).json()["usage"]
            return usage["prompt_tokens_details"]["cached_tokens"]

        assert [cached(key) for key in "aabb"] == [0, 59, 0, 59]
        assert [cached("a", cache_salt=salt) for salt in "xxy"] == [0, 59, 0]
        assert serving.complete().status_code == 401
    with Serving(pipeline, prompt_details=False) as serving:
        assert "prompt_tokens_details" not in serving.complete().json()["usage"]


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1:8000", 200),
        ("localhost", 200),
        ("LOCALHOST:1", 200),
        ("[::1]:8000", 200),
        ("evil.example", 403),
        ("localhost.evil.example:8000", 403),
        ("[fe80::1]", 403),
    ],
)
def test_names_that_are_not_this_machines_are_refused(pipeline, host, status):
    with Serving(pipeline, hosts=hosts_for("127.0.0.1", locked=False)) as serving:
        reply = serving.get("/v1/models", headers={"Host": host})
        assert reply.status_code == status and (status == 200) == ("error" not in reply.json())


@pytest.mark.parametrize(("host", "locked"), [("127.0.0.1", True), ("0.0.0.0", False), ("models.example", False)])
def test_with_a_key_or_another_address_every_name_is_answered(host, locked):
    assert hosts_for(host, locked) is None


def test_web_pages_of_allowed_origins_alone_may_read_answers(pipeline):
    page = {"Origin": "https://chat.example"}
    asking = page | {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "content-type"}
    path, body = "/v1/chat/completions", {"messages": QUESTION}
    with Serving(pipeline) as serving:
        assert "access-control-allow-origin" not in serving.post(path, json=body, headers=page).headers
        assert serving.options(path, headers=asking).status_code == 405
    with Serving(pipeline, origins=("https://chat.example",), keys={"": "secret"}) as serving:
        allowed = serving.options(path, headers=asking)
        assert allowed.status_code == 200 and allowed.headers["access-control-allow-origin"] == "https://chat.example"
        keyed = page | {"Authorization": "Bearer secret"}
        reply = serving.post(path, json=body, headers=keyed)
        assert reply.status_code == 200 and reply.headers["access-control-allow-origin"] == "https://chat.example"
        other = serving.post(path, json=body, headers=keyed | {"Origin": "https://evil.example"})
        assert "access-control-allow-origin" not in other.headers


def test_addresses_that_are_almost_right_get_a_hint_and_no_redirection(serving):
    for path in ("/chat/completions", "/completions", "/models"):
        reply = serving.post(path, json={})
        assert reply.status_code == 404 and "ends in /v1" in reply.json()["error"]["message"]
    reply = serving.post("/v1/chat/completions/", json={}, follow_redirects=False)
    assert reply.status_code == 404 and reply.json()["error"]["message"]
