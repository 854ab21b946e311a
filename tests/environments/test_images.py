"""Images in episodes: of tasks, of tools, and those that cannot be shown."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from aiohttp import web
from PIL import Image as Pillow

import vf
from tests.pictures import BLUE, image_url, png, text
from vf.environments.bundled.read_picture import COLOURS, SHOWN, ReadPicture
from vf.environments.contexts import DropToolResults
from vf.environments.text_only import check_text_only
from vf.testing.fake_server import listening


class Pictures(vf.Environment):
    """Tools that show pictures, whole and broken."""

    rubric = vf.Rubric(outcome=lambda trace: 1.0)

    def __init__(self, prompt: Any = "Look.") -> None:
        self.prompt = prompt

    def tasks(self, split: str) -> list[vf.Task]:
        return [vf.Task("t", self.prompt)]

    @vf.tool
    def show(self, what: str) -> object:
        """Show something.

        Args:
            what: It.
        """
        return {
            "one": Pillow.new("RGB", (4, 2)),
            "between": ["before ", vf.Image.of(png(BLUE)), {"type": "text", "text": " after"}, 3],
            "part": image_url(png()),
            "broken": {"type": "image", "data": "AAAA", "mimeType": "image/png"},
            "large": Pillow.new("1", (9_000, 9_000)),
        }[what]


def played(environment: vf.Environment, *lines: Any) -> vf.Trace:
    [task] = environment.tasks("eval")
    return asyncio.run(vf.rollout(environment, task, vf.ScriptedModel([*lines, "Done."])))


def test_a_tool_shows_pictures_and_what_cannot_be_shown_is_an_error_to_the_model() -> None:
    names = ("one", "between", "part", "broken", "large")
    trace = played(Pictures(), *({"show": {"what": name}} for name in names))
    assert trace.reward == 1.0
    one, between, part, broken, large = (m for m in trace.messages if m.role == "tool")
    assert ([image.width for image in one.images], one.content) == ([4], "")
    assert [each if isinstance(each, str) else each.read() for each in between.parts] == [
        "before ",
        png(BLUE),
        " after3",
    ]
    assert part.images[0].read() == png()
    assert broken.content.startswith("Error: the result of show cannot be shown: an image is not")
    assert "9000 x 9000 pixels" in large.content
    assert [event.kind for event in trace.tool_events] == [*["ok"] * 3, *["rejected"] * 2]


@pytest.mark.parametrize(
    ("part", "problem"),
    [
        ({"type": "image", "data": "AAAA"}, "task 't': an image is not PNG"),
        (
            {"type": "image_url", "image_url": {"url": "http://127.0.0.1:9/a.png"}},
            "task 't': the image .* is not fetched: .* fetch_images = True",
        ),
    ],
)
def test_an_image_of_a_task_that_cannot_be_read_names_the_task(part: Any, problem: str) -> None:
    with pytest.raises(vf.ConfigError, match=problem):
        played(Pictures([{"role": "user", "content": [part]}]))


def test_images_are_fetched_where_the_environment_says_so() -> None:
    async def picture(request: web.Request) -> web.Response:
        return web.Response(body=png(), status=200 if "good" in request.path else 404)

    async def run() -> list[vf.Trace]:
        app = web.Application()
        app.router.add_get("/{name}", picture)
        traces = []
        async with listening(app) as port:
            for name in ("good", "gone"):
                url = f"http://127.0.0.1:{port}/{name}.png"
                part = {"type": "image_url", "image_url": {"url": url}}
                environment = Pictures([{"role": "user", "content": [part, text("?")]}])
                environment.fetch_images = True
                [task] = environment.tasks("eval")
                traces.append(await vf.rollout(environment, task, vf.ScriptedModel(["Red."])))
        return traces

    good, gone = asyncio.run(run())
    assert good.messages[0].images[0].read() == png()
    assert good.task.prompt == [{"role": "user", "content": [image_url(png()), text("?")]}]
    assert gone.error is not None
    assert "task 't': the image 'http://127.0.0.1" in gone.error.message
    assert "404" in gone.error.message


def test_dropped_tool_results_drop_their_images() -> None:
    environment = Pictures()
    environment.context = DropToolResults(tokens=600, keep=0, at=0.1)
    trace = played(environment, {"show": {"what": "one"}}, {"show": {"what": "part"}})
    assert [fork.kind for fork in trace.forks][:1] == ["dropped"]
    first = next(m for m in trace.lineages[-1].messages if m.role == "tool")
    assert (first.content, first.images) == (DropToolResults().note, [])


def test_read_picture_is_solved_by_who_sees() -> None:
    environment = ReadPicture(num_train=2, num_eval=2)
    for task in environment.tasks("eval"):
        trace = asyncio.run(
            vf.rollout(environment, task, vf.ScriptedModel(environment.oracle(task)))
        )
        assert trace.reward == 1.0
        asked = next(message for message in trace.messages if message.images)
        colour = asked.content.split()[-2]
        [picture] = asked.images
        [call] = (call for message in trace.messages for call in message.tool_calls)
        row, column = (int(c) - 1 for c in call.arguments if c.isdigit())
        corner = (column * SHOWN + 1, row * SHOWN + 1)
        assert opened(picture).getpixel(corner) == COLOURS[colour]
        zoomed = next(message for message in trace.messages if message.role == "tool").images[0]
        assert opened(zoomed).getpixel((1, 1)) == COLOURS[colour]
    trace = played_first(environment, {"zoom": {"row": 4, "column": 1}}, "Answer: 1")
    assert (trace.reward, trace.tool_events[0].kind) == (0.0, "rejected")
    with pytest.raises(vf.ConfigError, match="size must be 1 to 3, got 4"):
        ReadPicture(size=4)


def opened(image: vf.Image) -> Any:
    import io

    return Pillow.open(io.BytesIO(image.read())).convert("RGB")


def played_first(environment: ReadPicture, *lines: Any) -> vf.Trace:
    task = next(iter(environment.tasks("eval")))
    return asyncio.run(vf.rollout(environment, task, vf.ScriptedModel(lines)))


def test_an_environment_with_images_is_refused_by_name_where_text_is_read() -> None:
    for environment, what in (
        (ReadPicture(num_train=1), "task 'picture-"),
        (Pictures([{"role": "user", "content": [image_url(png())]}]), "task 't' holds one"),
    ):
        environment.id = "pictures"
        with pytest.raises(vf.ConfigError, match=rf"'pictures' has images \(.*{what}.*: see"):
            check_text_only(environment, list(environment.tasks("train")), "it", "see")
    with pytest.raises(vf.ConfigError, match="the tool zoom returns images"):
        check_text_only(ReadPicture(), [vf.Task("t", "text")], "it", "see")
    check_text_only(Pictures(), [vf.Task("t", "text")], "it", "see")
