"""Whatever an endpoint replies is an answer, or one of three refusals."""

import json
from http import HTTPStatus

from hypothesis import example, given
from hypothesis import strategies as st

from specframe.files.text import printable
from specframe_distill.dialogue import Dialogue
from specframe_distill.replies import EndpointReply, Passing, Refusal, Unusable, read_answer
from specframe_distill.store import parse_answer, parse_dropped

odd = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
choices = st.fixed_dictionaries({"message": st.fixed_dictionaries({"content": odd}) | odd, "text": odd}) | odd
replies = st.fixed_dictionaries({"choices": st.lists(choices, max_size=2) | odd}, optional={"usage": odd, "error": odd})
contents = st.binary() | (replies | odd).map(lambda value: json.dumps(value).encode())


@given(
    status=st.sampled_from([200, 200, 200, 400, 413, 418, 429, 500, 599, 999, *HTTPStatus]),
    content=contents,
    retry_after=st.text(max_size=12),
    chat=st.booleans(),
)
@example(200, b'{"choices": [{"text": "\\ud800", "finish_reason": []}]}', "", False)
@example(400, b'{"error": {"message": {"a": "\\u001b"}}}', "", True)
@example(503, b"", "\u0663", True)
def test_any_reply_is_an_answer_or_a_refusal_that_can_be_kept(status, content, retry_after, chat):
    dialogue = Dialogue(7, ("why?",), chat=chat)
    try:
        dialogue.add(read_answer(EndpointReply(int(status), content, retry_after), chat))
    except (Passing, Refusal, Unusable) as refused:
        kept = f"refused: {refused}"
        assert len(kept) < 500 and kept == printable(kept) and "\n" not in kept
        assert parse_dropped(f"7 {kept}".encode()) == (7, kept)
        assert getattr(refused, "after", None) is None or 0 <= refused.after < 1e9
    else:
        if dialogue.answers:
            line = json.dumps(dialogue.describe()).encode()
            assert b"\n" not in line and parse_answer(line)["line"] == 7
            dialogue.describe().get("text", "").encode()
