"""A model that sees, measured through an API: what it gets, and what is kept of it."""

from __future__ import annotations

import asyncio
import base64
import io
import re
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from PIL import Image as Pillow

import vf
from tests.evaluation.commands import call, results
from tests.viewer.test_live import served
from vf.environments.bundled.read_picture import COLOURS, SHOWN, ReadPicture, _tile
from vf.evaluation.rescore import rescore_files
from vf.testing import FakeServer, Request, Response
from vf.traces.view.sources import find_sources
from vf.traces.view.write_page import write_page
from vf.viewer.live import LiveServer

vf.register("test-pictures", ReadPicture)


def pictures(message: dict[str, Any]) -> list[Any]:
    """Return the pictures of a message as a model that sees has them."""
    urls = [part["image_url"]["url"] for part in message["content"] if part["type"] != "text"]
    data = [base64.b64decode(url.partition(",")[2]) for url in urls]
    return [Pillow.open(io.BytesIO(each)).convert("RGB") for each in data]


def sees(request: Request) -> Any:
    """Answer as a model that sees: find the tile by its colour, enlarge it, read its digits."""
    asked, *zoomed = (each for each in request.body["messages"] if each["role"] == "user")
    if asked["content"][0] == {"type": "text", "text": "Say hello."}:  # it is tried first
        return "Hello."
    name = asked["content"][-1]["text"].split()[-2]
    if zoomed:
        [tile] = pictures(zoomed[0])
        read = (n for n in range(100, 1000) if _tile(name, n).tobytes() == tile.tobytes())
        return f"Answer: {next(read)}"
    [picture] = pictures(asked)
    row, column = next(
        (y // SHOWN + 1, x // SHOWN + 1)
        for y in range(1, picture.height, SHOWN)
        for x in range(1, picture.width, SHOWN)
        if picture.getpixel((x, y)) == COLOURS[name]
    )
    return {"zoom": {"row": row, "column": column}}


def test_a_model_that_sees_is_measured_and_its_record_travels(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "out"
    with FakeServer(sees) as server:
        argv = ["test-pictures", "-m", "fake", "-b", server.base_url, "--output", str(folder)]
        assert call(capsys, *argv, "-n", "1")[0] == 0
        assert call(capsys, *argv, "-n", "2")[0] == 0  # resumes it
        rounds = [body for body in server.bodies if "image_url" in str(body)]
        assert len(rounds) == 2 * (1 + 2)
    assert results(folder)["reward"]["mean"] == 1.0
    [file] = folder.rglob("traces.jsonl")
    assert "base64" not in file.read_text()
    traces = list(vf.TraceStore(file))
    names = {image.name for trace in traces for image in trace.images}
    assert len(names) == 4
    assert {path.name for path in (file.parent / "images").iterdir()} == names

    rescore_files(file, ReadPicture().rubric, tmp_path / "again" / "traces.jsonl")
    assert {path.name for path in (tmp_path / "again" / "images").iterdir()} == names

    page = tmp_path / "page.html"
    write_page(find_sources([folder, tmp_path / "again"]), page, title="Pictures")
    ids = re.findall(r'id="i-([^"]+)"', page.read_text())
    assert sorted(ids) == sorted(names)  # each once, though two files have it

    async def check(live: LiveServer, session: aiohttp.ClientSession) -> None:
        async with session.get(f"{live.url}traces") as answer:
            assert 'id="i-' not in await answer.text()
        name = min(names)
        async with session.get(f"{live.url}images/{name}") as answer:
            assert answer.content_type == "image/png"
            assert await answer.read() == (file.parent / "images" / name).read_bytes()
        for wrong in ("..%2Ftraces.jsonl", "0" * 64 + ".png", "traces.jsonl"):
            async with session.get(f"{live.url}images/{wrong}") as answer:
                assert answer.status == 404

    scratch = tmp_path / "scratch"
    scratch.mkdir()
    served([folder], scratch, check)


def test_a_local_model_that_sees_is_measured_on_the_embedded_engine(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("torch")
    from tests.inference.vision_models import save_family

    save_family("qwen3_vl", tmp_path / "model")
    argv = ["test-pictures", "-m", str(tmp_path / "model"), "--output", str(tmp_path / "out")]
    code, _, said = call(capsys, *argv, "-n", "2", "--max-tokens", "8")
    assert code == 0, said
    [file] = (tmp_path / "out").rglob("traces.jsonl")
    traces = list(vf.TraceStore(file))
    assert [trace.error for trace in traces] == [None, None]
    for trace in traces:
        [branch] = trace.branches
        [image] = branch.images
        [asked] = trace.images
        assert image.read() == asked.read()
        # 96 x 96 pixels are scaled to 64 x 64, of which each feature is 16 x 16.
        token = branch.token_ids[image.at]
        placeholders = [i for i, each in enumerate(branch.token_ids) if each == token]
        assert placeholders == list(range(image.at, image.at + 16))


def reads_text_only(request: Request) -> Any:
    """Answer as vLLM does with a model that has no eyes."""
    if "image_url" in str(request.body):
        error = {"message": "tiny is not a multimodal model", "code": 400}
        return Response({"error": error}, status=400)
    return "Hello."


def test_a_model_that_reads_text_only_is_refused_before_the_first_rollout(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["test-pictures", "--output", str(tmp_path / "out"), "-n", "2"]
    code, _, said = call(capsys, *argv, "-m", "tiny", "--engine", "vllm")
    assert code == 2
    assert "tiny' is of the type llama, of which no images are read by a vLLM server" in said
    code, _, said = call(capsys, *argv, "-m", "tiny")
    assert code == 2
    assert (
        "tiny' is of the type llama, of which no images are read by vf-rl's embedded engine" in said
    )

    with FakeServer(reads_text_only) as server:
        code, _, said = call(capsys, *argv, "-m", "fake", "-b", server.base_url)
        assert len(server.bodies) == 2
    assert code == 2
    assert "holds an image, and 'fake' at http://127.0.0.1" in said
    assert "takes none" in said
    assert "tiny is not a multimodal model" in said


def test_a_judge_that_sees_is_shown_the_images_that_it_is_given() -> None:
    from tests.rubrics.scripted_judge import judge_at, saying, verdicts

    environment = ReadPicture(num_eval=1)
    [task] = environment.tasks("eval")
    trace = asyncio.run(vf.rollout(environment, task, vf.ScriptedModel(environment.oracle(task))))

    async def judged(**settings: Any) -> list[Any]:
        async with FakeServer(saying(*verdicts("right"))) as server:
            judge = judge_at(server.base_url, **settings)
            assert await judge(trace) == 1.0
            await judge.close()
            content = server.bodies[0]["messages"][1]["content"]
        return [part["type"] for part in content] if isinstance(content, list) else [content[:8]]

    assert asyncio.run(judged()) == ["QUESTION"]
    seen = asyncio.run(judged(images=lambda trace: list(trace.images)))
    assert seen == ["image_url", "image_url", "text"]
