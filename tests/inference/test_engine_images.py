"""Images in prompts of the embedded engine, against the models' and processors' own code."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image as Pillow
from transformers import ProcessorMixin

import vf
from tests.inference.tiny_serving import generate_all, running_engine
from tests.inference.vision_models import FAMILIES, picture, save_family
from vf.inference.embedded.embedded_engine import EmbeddedEngine
from vf.inference.embedded.embedded_server import EmbeddedServer
from vf.inference.model import Conversation, Sampling
from vf.inference.model_files import Checkpoint
from vf.inference.models.local_model import load_renderer
from vf.inference.models.token_model import TokenModel
from vf.inference.rendering.renderer import Renderer
from vf.inference.rendering.text_tools import in_text
from vf.inference.rendering.vision import Vision
from vf.inference.settings import EmbeddedArgs, EmbeddedSettings
from vf.runtime.errors import ConfigError, EngineError
from vf.traces.images import Image
from vf.traces.messages import Message, ToolCall
from vf.traces.trace import Branch

NEVER = [-1]
FIRST, SECOND, THIRD = picture(1), picture(2, 56, 40), picture(3, 24, 64)
SAME_SIZE = picture(4)
TOOL = {
    "type": "function",
    "function": {"name": "look", "parameters": {"type": "object", "properties": {}}},
}


@pytest.fixture(scope="module", params=FAMILIES)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a family's model; its name is the family's."""
    path: Path = tmp_path_factory.mktemp("seeing") / request.param
    if request.param == "smolvlm":
        pytest.importorskip("num2words")  # its processor asks for it
    save_family(request.param, path)
    return path


def render(folder: Path) -> Renderer:
    return load_renderer(Checkpoint.find(str(folder)), EmbeddedSettings(), sees=True)


def seeing(renderer: Renderer) -> Vision:
    assert renderer.vision is not None
    return renderer.vision


def opened(image: Image) -> Any:
    return Pillow.open(io.BytesIO(image.read()))


def by_processor(
    renderer: Renderer, messages: list[Message], tools: list[Any] | None = None
) -> list[int]:
    """Return the ids that the model's own processor makes of a conversation."""
    shaped = []
    for message in messages:
        parts = [
            {"type": "text", "text": part}
            if isinstance(part, str)
            else {"type": "image", "image": opened(part)}
            for part in message.parts
        ]
        calls = [{"function": {"name": c.name, "arguments": {}}} for c in message.tool_calls]
        shaped.append({"role": message.role, "content": parts, "tool_calls": calls})
    ids = ProcessorMixin.apply_chat_template(  # SmolVLM's own asks for what videos need
        seeing(renderer).processor,
        shaped,
        chat_template=renderer.tokenizer.chat_template,
        tools=tools,
        tokenize=True,
        add_generation_prompt=messages[-1].role != "assistant",
    )
    return list(ids[0])


def uncached(model: Any, renderer: Renderer, ids: list[int], images: list[Image]) -> torch.Tensor:
    """Return log-probabilities by a plain pass over all tokens and all images, ``[T, V]``."""
    vision = seeing(renderer)
    pixels = vision.processor(
        images=[opened(image).convert("RGB") for image in images],
        text=[" ".join([vision.mark] * len(images))],
        return_tensors="pt",
    )
    inputs = {
        name: pixels[name]
        for name in ("pixel_values", "image_grid_thw", "pixel_attention_mask")
        if name in pixels
    }
    kinds = (torch.tensor([ids]) == vision.token_id).int()
    types = {"gemma3": "token_type_ids", "idefics3": None, "smolvlm": None}.get(
        model.config.model_type, "mm_token_type_ids"
    )
    if types is not None:
        inputs[types] = kinds
    with torch.no_grad():
        output = model(input_ids=torch.tensor([ids]), use_cache=False, **inputs)
    scores: torch.Tensor = output.logits[0].log_softmax(-1)
    return scores


def of_sampled(scores: torch.Tensor, branch: Branch) -> tuple[list[float], list[float]]:
    """Return the engine's log-probabilities of the sampled tokens, and those of a plain pass."""
    places = [i for i, sampled in enumerate(branch.loss_mask) if sampled]
    return (
        [branch.logprobs[i] for i in places],
        [float(scores[i - 1, branch.token_ids[i]]) for i in places],
    )


@contextmanager
def serving(
    folder: Path, renderer: Renderer, **settings: Any
) -> Iterator[tuple[TokenModel, EmbeddedServer]]:
    """Give a model on an engine of its own."""
    module = Checkpoint.find(str(folder)).load(sees=True).to(torch.float32).cpu()
    args = EmbeddedArgs(max_requests=4, **settings)
    server = EmbeddedServer(EmbeddedSettings(args=args), module, renderer, "m", max_seq_len=1024)
    server.start(lambda _: None)
    server.publish(0)
    try:
        yield TokenModel(server.sampler(60.0), renderer, max_seq_len=1024), server
    finally:
        server.stop()


async def talk(model: TokenModel, conversation: Conversation, *turns: list[Message]) -> None:
    for number, new in enumerate(turns):
        conversation.messages += new
        reply = await model.respond(conversation, Sampling(max_tokens=6, seed=number))
        conversation.messages.append(reply.message)
        conversation.turn += 1


TURNS = [
    [Message.of("user", [FIRST, "What is this, and ", SECOND, " this?"])],
    [Message("user", "And now?")],
    [Message.of("user", ["Look: ", THIRD, FIRST])],
]


def test_prompts_have_the_ids_of_the_models_own_processor(folder: Path) -> None:
    renderer = render(folder)
    messages = [
        Message.of("user", [FIRST, "What is this, and ", SECOND, " this?"]),
        Message("assistant", "Two pictures."),
        Message.of("user", ["Look: ", THIRD, FIRST, SAME_SIZE]),
    ]
    for count in (1, 3):
        assert renderer.prompt(messages[:count], []) == by_processor(renderer, messages[:count])
    # The same, turn by turn, behind an answer that was sampled.
    first = renderer.prompt(messages[:1], [])
    said = [*renderer.template.encode_after("Two pictures."), renderer.closer_id]
    if folder.name in ("idefics3", "smolvlm"):  # its template writes a space before the words
        said = [*renderer.template.encode_after(" Two pictures."), renderer.closer_id]
    bridge = renderer.bridge(messages[1], messages[2:], [], said[-1])
    assert first + said + bridge == by_processor(renderer, messages)


@pytest.mark.parametrize("name", ["qwen2_5_vl", "qwen3_vl"])
def test_images_of_tools_are_where_their_results_are(name: str, tmp_path: Path) -> None:
    save_family(name, tmp_path)
    renderer = render(tmp_path)
    calls = [ToolCall("a", "look", "{}"), ToolCall("b", "look", "{}")]
    messages = [
        Message.of("user", ["See ", FIRST]),
        Message("assistant", "", tool_calls=calls),
        Message.of("tool", [SECOND, "a tile <|image_pad|>"], tool_call_id="a", name="look"),
        Message.of("tool", [THIRD], tool_call_id="b", name="look"),
    ]
    ids = renderer.prompt(messages, [TOOL])
    shown = [*messages]
    shown[2] = Message.of("tool", [SECOND, "a tile <\u200b|image_pad|>"], name="look")
    assert ids == by_processor(renderer, shown, [TOOL])
    before = by_processor(renderer, messages[:2], [TOOL])
    [*_, end] = (i for i, token in enumerate(before) if token == renderer.closer_id)
    bridge = renderer.bridge(messages[1], messages[2:], [TOOL], renderer.closer_id)
    assert before[: end + 1] + bridge == ids
    placed = seeing(renderer).placed(ids, [FIRST, SECOND, THIRD], 0)
    assert [ids[image.at] for image in placed] == [seeing(renderer).token_id] * 3
    assert [image.sha256 for image in placed] == [i.sha256 for i in (FIRST, SECOND, THIRD)]


def test_images_of_tools_are_shown_in_text_where_the_template_knows_no_tools(
    tmp_path: Path,
) -> None:
    save_family("gemma3", tmp_path)
    settings = EmbeddedSettings(tool_style="text")
    renderer = load_renderer(Checkpoint.find(str(tmp_path)), settings, sees=True)
    messages = [
        Message.of("user", ["See ", FIRST]),
        Message("assistant", "", tool_calls=[ToolCall("a", "look", "{}")]),
        Message.of("tool", [SECOND, "a tile"], tool_call_id="a", name="look"),
    ]
    shown = in_text(messages, [TOOL], system_role=False)
    ids = renderer.prompt(messages, [TOOL])
    assert ids == by_processor(renderer, shown)
    before = by_processor(renderer, shown[:2])
    [*_, end] = (i for i, token in enumerate(before) if token == renderer.closer_id)
    bridge = renderer.bridge(messages[1], messages[2:], [TOOL], renderer.closer_id)
    assert before[: end + 1] + bridge == ids


@pytest.mark.parametrize("batch", [1024, 9])
def test_a_conversation_is_as_an_uncached_pass_has_it(folder: Path, batch: int) -> None:
    renderer = render(folder)
    conversation = Conversation()
    with serving(folder, renderer, max_batch_tokens=batch) as (model, server):
        asyncio.run(talk(model, conversation, *TURNS))
        [branch] = conversation.branches
        images = [FIRST, SECOND, THIRD, FIRST]
        with server.engine.paused():
            scores = uncached(server.engine.model, renderer, branch.token_ids, images)
    assert conversation.forks == []
    engine, plain = of_sampled(scores, branch)
    assert len(engine) > 6
    assert engine == pytest.approx(plain, abs=1e-4)
    token = seeing(renderer).token_id
    placeholders = [i for i, value in enumerate(branch.token_ids) if value == token]
    assert not any(branch.loss_mask[i] for i in placeholders)
    assert [image.sha256 for image in branch.images] == [image.sha256 for image in images]
    assert {image.at for image in branch.images} <= {*placeholders}


def test_prompts_of_the_same_ids_share_nothing_of_other_pixels(folder: Path) -> None:
    renderer = render(folder)
    vision = seeing(renderer)
    module = Checkpoint.find(str(folder)).load(sees=True)
    asked = {image.sha256: [Message.of("user", [image, "?"])] for image in (FIRST, SAME_SIZE)}
    prompts = {key: renderer.prompt(messages, []) for key, messages in asked.items()}
    ids = prompts[FIRST.sha256]
    assert [*prompts.values()] == [ids, ids]
    computed: list[int] = []
    with running_engine(module, vision=vision, max_seq_len=256) as engine:
        engine.model.get_input_embeddings().register_forward_pre_hook(
            lambda _, args: computed.append(args[0].numel())
        )
        for image in (FIRST, SAME_SIZE, FIRST, SAME_SIZE):
            placed = tuple(vision.placed(ids, [image], 0))
            computed.clear()
            sampling = Sampling(2, seed=0, images=placed)
            answers = generate_all(engine, [(ids, sampling)] * 3, NEVER)
            with engine.paused():
                everything = ids + answers[0].token_ids
                scores = uncached(module, renderer, everything, [image])
            rows = scores[len(ids) - 1 :]
            plain = [float(rows[i, token]) for i, token in enumerate(answers[0].token_ids)]
            for answer in answers:
                assert answer.logprobs == pytest.approx(plain, abs=1e-4)
            most = len(ids) + 2 * len(answers) + 10
            assert sum(computed[:-1]) < most  # what they share is computed once, of each image


def test_a_placeholder_that_was_sampled_is_a_mere_token(tmp_path: Path) -> None:
    save_family("gemma3", tmp_path)
    renderer = render(tmp_path)
    vision = seeing(renderer)
    module = Checkpoint.find(str(tmp_path)).load(sees=True)
    prompt = renderer.prompt([Message.of("user", [FIRST])], [])
    placed = vision.placed(prompt, [FIRST], 0)
    ids = [*prompt, vision.token_id, 7, vision.token_id]
    with running_engine(module, vision=vision, max_seq_len=256) as engine:
        [answer] = generate_all(engine, [(ids, Sampling(3, seed=1, images=tuple(placed)))], NEVER)
    whole = torch.tensor([ids + answer.token_ids])
    first, count = placed[0].at, vision.pixels(FIRST).count
    with torch.no_grad():
        embeds = module.get_input_embeddings()(whole)
        features = module.get_image_features(vision.pixels(FIRST).inputs["pixel_values"])
        embeds[0, first : first + count] = features.pooler_output[0]
        types = torch.zeros_like(whole)
        types[0, first : first + count] = 1
        logits = module(inputs_embeds=embeds, token_type_ids=types, use_cache=False).logits
    rows = logits[0].log_softmax(-1)[len(ids) - 1 :]
    plain = [float(rows[i, token]) for i, token in enumerate(answer.token_ids)]
    assert answer.logprobs == pytest.approx(plain, abs=1e-4)


def test_what_cannot_be_read_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"tiny' is of the type llama, .* they are for gemma3,"):
        load_renderer(Checkpoint.find("tiny"), EmbeddedSettings(), sees=True)
    asked = [Message.of("user", [FIRST])]
    text = load_renderer(Checkpoint.find("tiny"), EmbeddedSettings())
    with pytest.raises(ConfigError, match="role 'user' holds an image, and this model reads text"):
        text.prompt(asked, [])

    save_family("qwen3_vl", tmp_path)
    renderer = render(tmp_path)
    with pytest.raises(ConfigError, match=r"shows 2 of 1 images: .*<\|image_pad\|> is written"):
        renderer.prompt([Message("system", "<|image_pad|>"), *asked], [])
    ids = renderer.prompt(asked, [])
    model = Checkpoint.find(str(tmp_path)).load(sees=True)
    for vision, at, problem in (
        (None, 0, "started without a processor"),
        (renderer.vision, 0, "no 4 placeholders at 0"),
        (renderer.vision, len(ids) + 1, "no 4 placeholders"),
    ):
        with running_engine(model, vision=vision) as engine:
            assert isinstance(engine, EmbeddedEngine)
            image = Image(FIRST.sha256, FIRST.media_type, at=at, data=FIRST.data)
            with pytest.raises(EngineError, match=problem):
                generate_all(engine, [(ids, Sampling(1, images=(image,)))], NEVER)


def test_a_trace_names_the_images_of_its_tokens(tmp_path: Path) -> None:
    branch = Branch()
    branch.add_context([5, 9, 9], 0, [Image(FIRST.sha256, "image/png", at=1, data=FIRST.data)])
    trace = vf.Trace(environment="e", task=vf.Task("t", "?"), seed=0, branches=[branch])
    store = vf.TraceStore(tmp_path / "traces.jsonl")
    store.append(trace)
    store.close()
    [read] = vf.TraceStore(tmp_path / "traces.jsonl")
    [image] = read.branches[0].images
    assert (image.at, image.read()) == (1, FIRST.data)
    assert read.branches == [branch]
    assert read.copy().branches[0].images[0].read() == FIRST.data
