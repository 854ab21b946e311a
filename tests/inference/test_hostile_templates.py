"""A chat template is a program of whoever made the model: it takes neither all time nor memory."""

from __future__ import annotations

import subprocess
import sys
from contextlib import suppress

import pytest

from tests.inference.chat_templates import tokenizer
from vf.inference.rendering import bounded
from vf.inference.rendering.renderer import Renderer
from vf.runtime.errors import ConfigError
from vf.traces.messages import Message

FINE = tokenizer().chat_template
ENDLESS = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
DOUBLING = (
    "{% set all = namespace(text='x') %}{% for a in range(40) %}"
    "{% set all.text = all.text ~ all.text %}{% endfor %}"
)


def load(template: str) -> Renderer:
    made = tokenizer()
    made.chat_template = template
    return Renderer(made)


@pytest.mark.parametrize(
    ("more", "why"),
    [
        (ENDLESS, "a short conversation takes more than 1 s"),
        ("{{ 'x'.center(2000000000) }}", "takes more than 1 GiB"),
        (DOUBLING, "takes more than 1 GiB"),
        ("{{ 'x' * 20000000000 }}", "line 1 multiplies by more than 10,000"),
        ("{{ 20000000000 * 'x' }}", "line 1 multiplies by more than 10,000"),
        ("{{ 10 ** 10 ** 10 }}", "line 1 multiplies by more than 10,000"),
        ("{{ ('x' * 9999) * 2000 }}", "writes 19,99"),
    ],
)
def test_a_template_that_takes_too_much_is_refused(
    more: str, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if more == ENDLESS:
        monkeypatch.setattr(bounded, "TRIAL_SECONDS", 1)
    with pytest.raises(ConfigError, match=why):
        load(more + FINE)


def test_a_template_that_one_message_makes_endless_refuses_that_conversation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bounded, "SECONDS", 0.2)
    trap = "{% if messages[0]['content'] == 'now' %}" + ENDLESS + "{% endif %}"
    renderer = load(trap + FINE)
    with pytest.raises(ConfigError, match="does not end within"):
        renderer.prompt([Message("user", "now")], [])


def test_nothing_is_raised_after_the_template_has_ended() -> None:
    for _ in range(1000):
        with suppress(bounded.TooMuch), bounded._interrupted(0.0):
            pass
        assert bounded.render(lambda: "text", 0) == "text"


FORKED = """\
import os
from vf.inference.rendering import bounded

bounded.render(str, 0)  # now a thread waits, which a fork does not have
if os.fork():
    raise SystemExit(os.waitstatus_to_exitcode(os.wait()[1]))
bounded.SECONDS = 0.1
try:
    bounded.render(lambda: "".join(x for x in iter(str, None)), 0)
except bounded.TooMuch:
    os._exit(7)
"""


def test_a_process_that_was_forked_has_a_timer_as_well() -> None:
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", FORKED], check=False, timeout=60)
    assert done.returncode == 7
