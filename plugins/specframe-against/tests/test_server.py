"""A server is tested through its endpoint: here a small one, right or wrong on purpose, in place of the network."""

import json
import math
import random
import threading

import httpx2
import pytest

from specframe.kernel.errors import InputError
from specframe_against.server import KEY, ServerProbe, probe

VOCAB = [" red", " green", " blue", "\ufffd"]
TEXT = "Colours:"


def law_after(text):
    """A distribution that depends on the last word."""
    turn = len(text) % 3
    masses = [0.5, 0.3, 0.15, 0.05]
    return dict(zip(VOCAB[turn:3] + VOCAB[:turn] + VOCAB[3:], masses, strict=True))


class Endpoint:
    """Draws as its target does, but for `spoil`, which changes the distributions that drafted tokens are drawn from."""

    def __init__(self, *, spoil=dict, report=dict, form="completions", accepts=3.0, most=20, end=0.0, first=None):
        self.spoil, self.report, self.form, self.most, self.end, self.first = spoil, report, form, most, end, first
        self.accepts, self.accepted = accepts, 0.0
        self.asked = []
        self.lock = threading.Lock()

    def __call__(self, request):
        if request.url.path == "/metrics":
            if self.accepts is None:
                return httpx2.Response(404)
            return httpx2.Response(
                200, text=f'# HELP x\nvllm:spec_decode_num_accepted_tokens_total{{a="b"}} {self.accepted}\n'
            )
        if request.url.path == "/v1/models":
            return httpx2.Response(200, json={"data": [{"id": "small"}]})
        body = json.loads(request.content)
        with self.lock:
            self.asked.append(body)
            self.accepted += self.accepts or 0
        if body["logprobs"] > self.most:
            return httpx2.Response(400, json={"error": {"message": f"at most {self.most} logprobs"}})
        return httpx2.Response(200, json=self.answer(body))

    def answer(self, body):
        dice, text, tokens, laws = random.Random(body["seed"]), body["prompt"], [], []
        for place in range(body["max_tokens"]):
            if dice.random() < self.end:
                break
            law = law_after(text)
            drawn = self.spoil(law) if place else self.first or law
            laws.append(self.report(law) if place else law)
            tokens.append(dice.choices(list(drawn), drawn.values())[0])
            text += tokens[-1]
        return {
            "choices": [{"logprobs": self.entries(tokens, laws)}],
            "usage": {"prompt_tokens": len(body["prompt"].split()) + body["prompt"].count("\ufffd")},
        }

    def entries(self, tokens, laws):
        tops = [{token: math.log(mass) for token, mass in law.items()} for law in laws]
        if self.form == "completions":
            return {"tokens": tokens, "top_logprobs": tops}
        likeliest = [[{"token": token, "logprob": value} for token, value in top.items()] for top in tops]
        return {"content": [{"token": t, "top_logprobs": top} for t, top in zip(tokens, likeliest, strict=True)]}


def probed(endpoint, samples=1500, **options):
    server = ServerProbe("http://host/v1/", transport=httpx2.MockTransport(endpoint), **options)
    return probe(server, samples, [TEXT])


@pytest.mark.parametrize("form", ["completions", "chats"])
def test_a_right_server_is_tested_at_every_position(form):
    found = probed(Endpoint(form=form))
    assert (found["tested"], found["different"]) == (True, False)
    assert (found["model"], found["samples"], found["distance"]) == ("small", 1500, 0)
    assert [place["position"] for place in found["positions"]] == [1, 2, 3, 4]
    assert all(place["samples"] == 1500 and place["freedom"] == 3 for place in found["positions"])
    assert json.loads(json.dumps(found)) == found


def test_accepting_too_much_is_noticed_after_the_first_token():
    """As a rule does that accepts a likely draft more often than by its probability."""

    def greedier(law):
        best = max(law, key=law.get)
        return {token: mass * (1.3 if token == best else 0.7) for token, mass in law.items()}

    found = probed(Endpoint(spoil=greedier))
    assert [place["refused"] for place in found["positions"]] == [False, True, True, True]
    assert found["different"]
    assert found["positions"][1]["worst"] == 1, "the likeliest token comes too often"


def test_log_probabilities_of_a_drafter_are_noticed():
    """Tokens may follow what the server states, and that may not be the target's."""

    def sharper(law):
        total = sum(mass**2 for mass in law.values())
        return {token: mass**2 / total for token, mass in law.items()}

    found = probed(Endpoint(spoil=sharper, report=sharper))
    assert not any(place["refused"] for place in found["positions"])
    assert found["distance"] > 0.1 and found["different"]


def test_a_server_that_accepts_no_draft_shows_nothing():
    assert not probed(Endpoint(accepts=0.0), 200)["tested"]


def test_a_server_without_metrics_is_tested():
    found = probed(Endpoint(accepts=None), 200)
    assert found["accepted"] is None and found["tested"]


def test_texts_that_end_early_show_nothing():
    """An end is a draw that is not listed: a test of the others would be one of another distribution."""
    found = probed(Endpoint(end=0.05), 400)
    assert found["ended"] > 20 and not found["tested"]


def test_fewer_alternatives_are_taken_where_a_server_grants_no_more():
    endpoint = Endpoint(most=5)
    assert probed(endpoint, 200)["tested"]
    assert [body["logprobs"] for body in endpoint.asked[:3]] == [20, 5, 5]


def test_a_drawn_token_that_is_added_to_the_likeliest_is_none_of_them():
    """It is there whenever it was drawn, so its probability would be far below its share."""
    masses = {f" word{i}": 0.12 for i in range(5)} | {f" rare{i}": 0.04 for i in range(10)}

    class Adding(Endpoint):
        def entries(self, tokens, laws):
            tops = [dict(list(masses.items())[:5]) | {token: masses[token]} for token in tokens]
            return {"tokens": tokens, "top_logprobs": [{t: math.log(p) for t, p in top.items()} for top in tops]}

    found = probed(Adding(most=5, spoil=lambda law: masses, first=masses))
    assert not found["different"] and all(place["freedom"] == 4 for place in found["positions"])


def test_every_request_has_its_own_seed_and_the_fields_that_were_given():
    endpoint = Endpoint()
    probed(endpoint, 200, body={"top_k": -1})
    assert {body["top_k"] for body in endpoint.asked} == {-1}
    assert len({body["seed"] for body in endpoint.asked if body["max_tokens"] == 4}) == 200


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        (httpx2.Response(401, text="bad key"), f"answers HTTP 401: bad key; set {KEY}"),
        (httpx2.Response(200, text="<html>"), "answers no JSON"),
        (httpx2.Response(200, json={"data": []}), "lists no model"),
        (httpx2.Response(200, json={"data": [{"id": "x"}], "choices": [{"text": "a"}]}), "gives no `logprobs`"),
        (httpx2.Response(200, json={"data": [{"id": "x"}], "choices": [{"logprobs": None}]}), "gives no `logprobs`"),
    ],
)
def test_a_server_that_cannot_be_tested_has_one_line(reply, reason):
    with pytest.raises(InputError, match="^http://host/v1 .*" + reason.replace("(", r"\(")):
        probed(lambda request: reply, 200)


def test_a_server_that_is_not_there_has_one_line():
    def refuse(request):
        raise httpx2.ConnectError("connection refused")

    with pytest.raises(InputError, match="cannot be reached: ConnectError: connection refused"):
        probed(refuse, 200)


def test_the_key_is_sent_as_a_bearer_token(monkeypatch):
    seen = []

    def listen(request):
        seen.append(request.headers.get("Authorization"))
        return httpx2.Response(200, json={"data": [{"id": "x"}]})

    monkeypatch.setenv(KEY, " sk-1\n")
    ServerProbe("http://host/v1", transport=httpx2.MockTransport(listen))
    assert seen == ["Bearer sk-1"]
