"""No API key is ever printed, logged or written, whatever fails."""

from __future__ import annotations

import asyncio
import base64
import html
import json
import logging
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

import vf
from tests.evaluation.commands import call
from tests.inference.providers.fake import standing
from tests.inference.providers.shapes import Body, Refusal
from tests.inference.providers.table import PROVIDERS
from tests.rubrics.one_answer import answered
from vf.inference.vllm.admin import Admin
from vf.inference.wire import JsonClient
from vf.runtime.api_keys import HIDDEN, check_variable, clean_key, hide
from vf.runtime.errors import ConfigError, EngineError, ModelError, RubricError
from vf.runtime.visible import VisibleFormatter
from vf.trainer.commands.main import main

KEY = "sk-marked-0123456789abcdef"
URL_KEY = "sk-in-the-url-0123456789"
GOOD = PROVIDERS["openai"]
SIZE = ("--tasks", "2", "--output", "out")


def first_good(refusal: Refusal) -> Callable[[Body], Refusal]:
    """Return a server that answers the test request, and fails from then on."""
    script = iter([(200, GOOD.answer("Hello!"))])
    return lambda body: next(script, refusal)


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OPENAI_API_KEY", KEY)


def evaluate(capsys: Any, caplog: Any, *argv: str) -> str:
    """Evaluate, and return all that was printed, logged and written."""
    caplog.set_level(logging.DEBUG)  # those of the clients too, of which httpx logs each URL
    _, out, err = call(capsys, "reverse-text", "-m", "m", *argv, *SIZE)
    shown = [out, err, caplog.text]
    if Path("out").exists():
        main(["view", "out", "-o", "page.html"])
        shown += [file.read_text() for file in Path().rglob("*") if file.is_file()]
    return "\n".join([*shown, *capsys.readouterr()])


ECHOES: list[Refusal] = [
    (401, {"error": {"message": f"Incorrect API key provided: {KEY}"}}),
    (403, f"<html>{KEY}</html>"),
    (400, {"error": {"message": f"Bearer {KEY} is not allowed", "code": KEY}}),
    (400, {"detail": [{"msg": "no", "headers": {"Authorization": f"Bearer {KEY}"}}]}),
    (200, {"error": {"message": f"upstream said {KEY}"}}),
    (200, f"half of {KEY}"),
    (200, {"choices": None, "key": KEY}),
    (200, GOOD.answer(f"Your key is {KEY}")),
    (200, GOOD.answer("", KEY)),
    (200, GOOD.answer("", reason=KEY)),
    (200, {"choices": [{"finish_reason": "stop", "message": {"content": [{"type": KEY}]}}]}),
    (413, {"error": {"message": f"too big: {KEY}"}}),
]


@pytest.mark.parametrize(
    ("refusal", "answers_first"),
    [*((refusal, True) for refusal in ECHOES), *((refusal, False) for refusal in ECHOES[::3])],
)
def test_a_key_that_the_server_repeats_is_shown_nowhere(
    refusal: Refusal, answers_first: bool, capsys: Any, caplog: Any, fast: None
) -> None:
    handler = first_good(refusal) if answers_first else (lambda body: refusal)
    with standing(handler) as url:
        said = evaluate(capsys, caplog, "-b", url)
    assert said.strip()
    assert KEY not in said


SIGNS = 'sk-a"b\\c/d+e=f&g<h>%0123'


@pytest.mark.parametrize(
    "spelled",
    [
        SIGNS,
        json.dumps(SIGNS)[1:-1],
        json.dumps(SIGNS)[1:-1].replace("/", "\\/"),
        "".join(sign if sign.isalnum() else f"\\u{ord(sign):04X}" for sign in SIGNS),
        "".join(sign if sign.isalnum() else f"\\u{ord(sign):04x}" for sign in SIGNS),
        quote(SIGNS, safe=""),
        quote(SIGNS, safe="").lower(),
        html.escape(SIGNS),
        repr(SIGNS)[1:-1],
    ],
)
def test_a_key_is_hidden_however_its_signs_are_escaped(spelled: str) -> None:
    body = f'{{"error": {{"message": "no such key: {spelled}"}}}}'
    assert hide(body, SIGNS) == body.replace(spelled, HIDDEN)


IN_URLS: dict[str, Callable[[str], str]] = {
    "password": lambda url: url.replace("://", f"://me:{URL_KEY}@"),
    "user": lambda url: url.replace("://", f"://{URL_KEY}@"),
    "escaped": lambda url: url.replace("://", f"://me:%73{URL_KEY[1:]}@"),
    "parameter": lambda url: f"{url}?api_key={URL_KEY}",
}


@pytest.mark.parametrize("form", IN_URLS)
@pytest.mark.parametrize("refusal", [ECHOES[0], None], ids=str)
def test_a_key_in_the_url_of_the_api_is_shown_nowhere(
    form: str, refusal: Refusal | None, capsys: Any, caplog: Any, fast: None
) -> None:
    """Neither as it is written there, nor where a server repeats it."""
    if refusal is None:
        said = evaluate(capsys, caplog, "-b", IN_URLS[form]("http://127.0.0.1:9/v1"))
        assert "no server answers" in said
    else:
        status, body = refusal
        echo = json.loads(json.dumps(body).replace(KEY, URL_KEY))
        with standing(first_good((status, echo))) as url:
            said = evaluate(capsys, caplog, "-b", IN_URLS[form](url))
    assert URL_KEY[1:] not in said
    assert KEY not in said


def test_a_password_is_hidden_as_the_client_sends_it(capsys: Any, caplog: Any, fast: None) -> None:
    sent = base64.b64encode(f"me:{URL_KEY}".encode()).decode()
    refusal = 401, {"error": {"message": f"Basic {sent} is wrong"}}
    with standing(lambda body: refusal) as url:
        said = evaluate(capsys, caplog, "-b", IN_URLS["password"](url))
    assert "[API key]" in said
    assert sent.rstrip("=") not in said


@pytest.mark.parametrize("form", IN_URLS)
def test_the_clients_of_engines_and_judges_hide_a_key_in_their_url(form: str) -> None:
    url = IN_URLS[form]("http://127.0.0.1:9/v1")

    async def post() -> str:
        client = JsonClient(url, max_retries=0)
        with pytest.raises(ModelError) as caught:
            await client.post("/completions", {})
        await client.close()
        return "".join(traceback.format_exception(caught.value))

    async def judge() -> str:
        with pytest.raises(RubricError) as caught:
            await vf.Judge("m", base_url=url, max_retries=0, retries=0)(answered("4", "4"))
        return "".join(traceback.format_exception(caught.value))

    admin = Admin(url)
    with pytest.raises(EngineError) as caught:
        admin.get("/v1/models")
    admin.close()
    said = ["".join(traceback.format_exception(caught.value)), asyncio.run(post())]
    assert URL_KEY[1:] not in "".join([*said, asyncio.run(judge())])


@pytest.mark.parametrize("form", IN_URLS)
def test_a_line_of_a_log_shows_no_key_of_a_url(form: str) -> None:
    url = IN_URLS[form]("http://127.0.0.1:9/v1")
    record = logging.LogRecord("vf", logging.INFO, "", 0, "%s is silent: '%s'", (url, url), None)
    said = VisibleFormatter().format(record)
    assert URL_KEY[1:] not in said
    assert said.count("127.0.0.1:9/v1") == 2


@pytest.fixture
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    """Repeat what fails without a pause."""
    monkeypatch.setattr("vf.inference.patience.pause", lambda backoff, attempt: 0.0)


@pytest.mark.parametrize("before", ["", " ", "\ufeff", "\n\t"])
@pytest.mark.parametrize("after", ["\n", " ", "\r\n", "\u00a0", ""])
def test_what_copying_leaves_around_a_key_is_left_out(before: str, after: str) -> None:
    assert clean_key(f"{before}{KEY}{after}", "it") == KEY


@pytest.mark.parametrize("key", [f"{KEY}\nmore", f"{KEY} more", f"{KEY}\u200bmore", f"ключ{KEY}"])
def test_a_key_that_no_header_can_hold_is_named_and_not_shown(
    key: str, monkeypatch: pytest.MonkeyPatch, capsys: Any, caplog: Any
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", key)
    said = evaluate(capsys, caplog, "-b", "http://127.0.0.1:9/v1")
    assert "model m: the variable OPENAI_API_KEY holds a key with a blank" in said
    assert "sk-marked" not in said
    with pytest.raises(ConfigError, match="OPENAI_API_KEY holds a key"):
        vf.Judge("m", base_url="http://127.0.0.1:9/v1")
    with pytest.raises(ConfigError, match="api_key holds a key"):
        vf.ChatModel("m", api_key=key)


def test_a_key_in_place_of_its_variable_is_not_shown(capsys: Any, caplog: Any) -> None:
    said = evaluate(capsys, caplog, "--api-key-env", KEY)
    assert "api_key_env: must be the name of an environment variable" in said
    assert "sk-marked" not in said
    with pytest.raises(ConfigError) as caught:
        vf.Judge("m", api_key_env=KEY)
    assert "sk-marked" not in str(caught.value)
    for key in ("gsk_4f9vHrTq8mZ1yCwE", "hf_AbCdEfGhIjKlMnOp12", "0123456789abcdef"):
        with pytest.raises(ValueError, match="looks like a key"):
            check_variable(key)
    for name in ("OPENAI_API_KEY", "MY_KEY_2", "key"):
        assert check_variable(name) == name


@pytest.mark.parametrize("refusal", ECHOES)
def test_a_judge_and_a_simulated_user_tell_nothing(refusal: Refusal, fast: None) -> None:
    async def judged(url: str) -> str:
        judge = vf.Judge("m", base_url=url, max_retries=1, retries=0)
        environment = vf.Environment()
        environment.rubric = vf.Rubric(outcome=judge)
        trace = await vf.rollout(environment, vf.Task("t", "Hi"), vf.ScriptedModel(["Hello"]))
        with pytest.raises(RubricError) as caught:
            await judge(answered("4", "4"))
        return str(caught.value) + trace.to_json().decode()

    async def played(url: str) -> str:
        user = vf.SimulatedUser({"model": "m", "base_url": url, "max_retries": 1})

        class Talk(vf.Environment):
            def reset(self, task: vf.Task) -> Any:
                self.talk = user.begin(self, goal="x", said=task.prompt)
                return self.first_messages(task)

            async def step(self, reply: vf.Message) -> vf.Step:
                return await self.talk.answer(reply)

        trace = await vf.rollout(Talk(), vf.Task("t", "Hi"), vf.ScriptedModel(["Hello"] * 20))
        return trace.to_json().decode()

    with standing(lambda body: refusal) as url:
        for of in (judged, played):
            found = asyncio.run(of(url))
            assert KEY not in found
            assert json.dumps(KEY)[1:-1] not in found


def test_the_clients_of_engines_tell_nothing() -> None:
    async def asked(url: str) -> None:
        client = JsonClient(url, api_key=f"{KEY}\n", max_retries=0)
        with pytest.raises(ModelError, match="Incorrect API key") as caught:
            await client.post("/completions", {})
        await client.close()
        assert KEY not in str(caught.value)

    with standing(lambda body: ECHOES[0]) as url:
        asyncio.run(asked(url))
        admin = Admin(url, KEY)
        with pytest.raises(EngineError, match="Incorrect API key") as caught:
            admin.post("/tokenize", {})
        admin.close()
        assert KEY not in str(caught.value)
