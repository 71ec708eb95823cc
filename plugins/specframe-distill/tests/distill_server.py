"""An OpenAI-compatible endpoint on this machine that answers what a test wants."""

import json
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Lock, Thread

from specframe.decoding.settings import SamplingSettings
from specframe_distill.endpoint import Endpoint


def chat_reply(text, tokens=3, reason="stop"):
    return {
        "choices": [{"message": {"role": "assistant", "content": text}, "finish_reason": reason}],
        "usage": {"completion_tokens": tokens},
    }


def text_reply(text, tokens=3, reason="stop"):
    return {"choices": [{"text": text, "finish_reason": reason}], "usage": {"completion_tokens": tokens}}


@contextmanager
def serving(reply):
    """The endpoint's address and the requests it has received, as (path, body, headers).

    `reply(path, body)` gives a status and either an object or bytes, and perhaps further headers; the list
    of models is there without it.
    """
    captured, lock = [], Lock()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            self.answer(None)

        def do_POST(self):
            self.answer(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

        def answer(self, body):
            with lock:
                captured.append((self.path, body, dict(self.headers)))
            status, answer, *headers = (200, {"data": []}) if body is None else reply(self.path, body)
            content = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
            self.send_response(status)
            for name, value in {"Content-Length": len(content), **(headers[0] if headers else {})}.items():
                self.send_header(name, str(value))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *words): ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.handle_error = lambda request, address: None  # a client that did not wait for the answer
    thread = Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1", captured
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def make(url, sampling=None, **settings):
    """An endpoint that loses no time between attempts."""
    return Endpoint(url=url, model="m", sampling=sampling or SamplingSettings(), pause=0.01, **settings)


def answers_of(endpoint, *dialogues):
    """The endpoint's answers by the dialogues' lines."""
    return {each.line: each for each in endpoint.answer(dialogues)}
