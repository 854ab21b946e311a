"""The axes of ``benchmarks/growth.py``: what is done at each size, and how it is measured."""

from __future__ import annotations

import asyncio
import itertools
import json
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from growth_meter import Meter

import vf
from vf.inference.completions import Completion
from vf.inference.model import Sampling

if TYPE_CHECKING:
    from vf.inference.embedded.embedded_engine import EmbeddedEngine
    from vf.inference.models.token_model import TokenModel
    from vf.inference.rendering.renderer import Renderer
    from vf.trainer.run.plan import Plan

CALLS = 512  # of an episode: what begins it is measured by itself
STEEP = "*"  # ends the name of a curve that cannot be level


class Talk(vf.Environment):
    """Every turn is answered with a text of one length, until the turns are over."""

    def __init__(self, turns: int = 4, words: int = 16) -> None:
        self.max_turns, self.words = turns, words
        self.rubric = vf.Rubric(outcome=lambda trace: float(trace.seed % 2))

    def tasks(self, split: vf.Split) -> Iterator[vf.Task]:
        for number in range(4096):
            yield vf.Task(f"{split}-{number}", f"{number}: " + "word " * self.words)

    async def step(self, reply: vf.Message) -> vf.Step:
        return vf.Step([vf.Message("user", "word " * self.words)])


class Instant:
    """Answers at once, with so many tokens of an answer."""

    def __init__(self, renderer: Renderer, tokens: int) -> None:
        [word] = renderer.tokenizer.encode("a", add_special_tokens=False)
        self.ids = [word] * (tokens - 1) + [renderer.closer_id]
        self.logprobs = [-0.5] * tokens

    async def complete(
        self, prompt_ids: list[int], sampling: Sampling, stops: list[int], conversation: str = ""
    ) -> Completion:
        return Completion([*self.ids], [*self.logprobs], [0] * len(self.ids), "stop")


def _renderer() -> Renderer:
    from vf.inference.model_files import resolve_model
    from vf.inference.rendering.renderer import Renderer
    from vf.runtime.command import quiet_transformers

    quiet_transformers()
    return Renderer.from_pretrained(resolve_model("tiny"))


def _model(tokens: int = 16) -> TokenModel:
    from vf.inference.models.token_model import TokenModel

    renderer = _renderer()
    return TokenModel(Instant(renderer, tokens), renderer, max_seq_len=1 << 20)


def rollouts(meter: Meter, size: int) -> None:
    """Collect a step of so many rollouts in groups of 16, and make a batch of it."""
    from vf.inference.leases import Member, Router, Slot
    from vf.inference.serving import Serving
    from vf.traces.store import TraceStore
    from vf.traces.writer import TraceWriter
    from vf.trainer.collecting.orchestrator import Orchestrator
    from vf.trainer.collecting.runners import Ended, InProcess
    from vf.trainer.learning.batches.batch import build_samples
    from vf.trainer.learning.batches.packing import pack
    from vf.trainer.run.group import Group
    from vf.trainer.run.run_environment import RunEnvironment
    from vf.trainer.settings.config import TrainerArgs
    from vf.trainer.settings.environments import EnvConfig
    from vf.trainer.watching.metrics import step_metrics

    environment, model = Talk(), _model()
    args = TrainerArgs(batch_size=size, rollouts_per_example=16, max_steps=1, max_concurrent=size)
    member = RunEnvironment(
        "talk", EnvConfig(id="talk"), environment, args, [*environment.tasks("train")]
    )

    async def step(store: TraceStore) -> list[Group]:
        writer = TraceWriter()

        def write(step: int, ended: Ended) -> None:
            writer.append(store, *ended)

        work = Orchestrator(
            [member],
            InProcess({"talk": (environment, model)}),
            args=args,
            leases=Router([Slot(Member("http://127.0.0.1:1/v1"), Serving("m"))]),
            ahead=0,
            on_trace=write,
        )
        await work.open(1, version=0)
        groups = []
        while (group := await work.next_group(1)) is not None:
            groups.append(group)
        writer.close(store)
        writer.stop()
        return groups

    def collect() -> list[Group]:
        with tempfile.TemporaryDirectory() as folder:
            return asyncio.run(step(TraceStore(Path(folder) / "traces.jsonl")))

    def samples() -> list[Any]:
        return [*itertools.chain(*build_samples(groups, args))]

    groups = meter("collect and write", "rollout", size, collect)
    built = meter("advantages and samples", "rollout", size, samples)
    meter("pack", "rollout", size, lambda: pack(built, 8192))
    times = {"train": 1.0, "total": 1.0}
    meter(
        "metrics", "rollout", size, lambda: step_metrics(1, groups, [], times, args, {"talk": args})
    )


def turns(meter: Meter, size: int) -> None:
    """Play one rollout of so many turns, store it, and make a batch of it."""
    _one_rollout(meter, "turn", size, Talk(turns=size), _model(), size)


def context(meter: Meter, size: int) -> None:
    """Grow the context of one rollout to so many tokens in 8 turns; the same with an engine."""
    environment = Talk(turns=8, words=size // 96)
    _one_rollout(meter, "token", size, environment, _model(size // 16), None)
    engine = _engine(size + 1024, requests=2)
    prompt = [1 + number % 500 for number in range(size)]

    def read(ids: list[int]) -> list[int]:
        completion = asyncio.run(engine.generate(ids, Sampling(max_tokens=1), []))
        return ids + completion.token_ids

    def read_all() -> list[int]:
        engine.publish(engine.version + 1)  # forgets what it has read
        return read(prompt)

    def next_turn() -> None:
        known[:] = read([*known, *([7] * 31)])

    known = meter(f"engine: read a prompt{STEEP}", "token", size, read_all)
    meter(f"engine: read 32 new tokens{STEEP}", "turn", 1, next_turn)
    engine.stop()


def _one_rollout(
    meter: Meter, unit: str, size: int, environment: Talk, model: TokenModel, units: int | None
) -> None:
    from vf.trainer.learning.batches.batch import Sample
    from vf.trainer.learning.batches.packing import pack

    task = next(environment.tasks("train"))

    def play() -> vf.Trace:
        trace = asyncio.run(vf.rollout(environment, task, model))
        assert trace.error is None, trace.error
        return trace

    asyncio.run(vf.rollout(Talk(), task, model))  # imports, and the template's seams
    first = play()
    units = units or len(first.branches[0])
    trace = meter("play", unit, units, play)
    line = meter("write as JSON", unit, units, trace.to_json)
    meter("read JSON", unit, units, lambda: vf.Trace.from_json(line))
    meter("pack", unit, units, lambda: pack([Sample(trace.branches[0], 1.0)], 1 << 20))


def _engine(max_seq_len: int, requests: int) -> EmbeddedEngine:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from vf.inference.embedded.embedded_engine import EmbeddedEngine

    torch.manual_seed(0)
    torch.set_num_threads(1)
    config = LlamaConfig(
        vocab_size=512,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=max_seq_len,
    )
    module = LlamaForCausalLM(config).eval()
    engine = EmbeddedEngine(module, max_seq_len=max_seq_len, max_requests=requests)
    engine.start()
    return engine


def traces(meter: Meter, size: int) -> None:
    """Read a file of so many traces in all ways that there are."""
    from vf.evaluation.results import Cell, mark
    from vf.evaluation.tally import Tally
    from vf.traces.export.write import export_traces
    from vf.traces.view.sources import find_sources, read
    from vf.traces.view.write_page import write_page

    environment = Talk()
    task = next(environment.tasks("train"))
    trace = asyncio.run(vf.rollout(environment, task, _model()))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        cell = Cell(folder, "talk", "m")
        path = cell.store.path

        def write() -> None:
            path.unlink(missing_ok=True)
            with vf.TraceStore(path) as store:
                for number in range(size):
                    own = replace(trace, id=f"{number:032x}", info={})
                    own.task = vf.Task(f"train-{number // 4}", task.prompt)
                    mark(own, "talk", "m", number % 4)
                    store.append(own)

        def resume() -> None:
            tally = Tally("talk", "m", size // 4, 4)
            cell.keep(cell.done(4))
            for trace in cell.traces():
                tally.add(trace)
            tally.summary()

        def page() -> None:
            write_page(find_sources([path]), folder / "page.html", title="growth")

        def export(ending: str) -> None:
            output = folder / f"out{ending}"
            output.unlink(missing_ok=True)
            export_traces(
                (t for t in read(find_sources([path])[0]) if isinstance(t, vf.Trace)), output
            )

        meter("write", "trace", size, write)
        meter("resume an evaluation", "trace", size, resume)
        meter("page of the viewer", "trace", size, page)
        meter("export as chats", "trace", size, lambda: export(".jsonl"))
        meter("export as Parquet", "trace", size, lambda: export(".parquet"))


def tools(meter: Meter, size: int) -> None:
    """Offer so many tools, and call the last one in every turn."""
    from vf.inference.model import Conversation
    from vf.inference.models.token_model import TokenModel
    from vf.traces.tools import Tool

    def tool_of(number: int) -> Callable[..., Any]:
        def look_up(key: str, count: int = 1) -> str:
            """Look up a value.

            Args:
                key: The key.
                count: The number of values.
            """
            return key * count

        look_up.__name__ = f"look_up_{number}"
        return look_up

    functions = [tool_of(number) for number in range(size)]
    environment = vf.Environment()
    environment.tools = functions
    environment.max_turns = CALLS
    renderer = _renderer()
    call = json.dumps({"name": f"look_up_{size - 1}", "arguments": {"key": "a"}})
    sampler = Instant(renderer, 2)
    text = f"<tool_call>\n{call}\n</tool_call>"
    sampler.ids = [*renderer.template.encode(text), renderer.closer_id]
    sampler.logprobs = [-0.5] * len(sampler.ids)
    model = TokenModel(sampler, renderer, max_seq_len=1 << 20)
    numbers = itertools.count()

    def build() -> list[dict[str, Any]]:
        return [Tool.from_function(function).schema() for function in functions]

    def first_prompt() -> None:
        messages = [vf.Message("user", f"{next(numbers)}?")]
        model.prompt_tokens(Conversation(messages, schemas))

    def play() -> vf.Trace:
        number = next(numbers)
        return asyncio.run(vf.rollout(environment, vf.Task(f"{number}", f"{number}?"), model))

    trace = play()
    assert [event.kind for event in trace.tool_events] == ["ok"] * CALLS, trace
    schemas = meter("schemas", "tool", size, build)
    meter("begin an episode", "tool", size, lambda: environment.episode(0).toolbox.schemas())
    meter("first prompt", "tool", size, first_prompt)
    meter("a turn with a call", "call", CALLS, play)


def environments(meter: Meter, size: int) -> None:
    """Check a run of so many environments, and draw the tasks of a step from them."""
    from vf.trainer.collecting.mixture import Mixture
    from vf.trainer.preflight import preflight
    from vf.trainer.settings.load_config import parse_config

    def check() -> Plan:
        envs = [{"id": "calculator", "name": f"c{number}"} for number in range(size)]
        args = {"batch_size": 8 * 64, "rollouts_per_example": 8, "max_seq_len": 1024}
        args["max_prompt_len"] = 512
        return preflight(parse_config({"model": "tiny", "env": envs, "trainer": {"args": args}})[0])

    check()
    plan = meter("check a run", "environment", size, check)
    mixture = Mixture(plan.environments)
    meter("draw tasks", "group", 64, lambda: mixture.draws(64))


def adapters(meter: Meter, size: int) -> None:
    """Decode 64 requests at once, of so many adapters of rank 8; swap adapters in and out."""
    import torch

    from vf.inference.embedded.lora_mixture import Lora
    from vf.trainer.tinker_api.registry import Snapshots
    from vf.trainer.tinker_api.tenants import Sampler

    engine = _engine(256, requests=64)
    layers = {
        name: module
        for name, module in engine.model.named_modules()
        if isinstance(module, torch.nn.Linear) and name != "lm_head"
    }

    def adapter() -> Lora:
        shapes = {name: (m.in_features, m.out_features) for name, m in layers.items()}
        return Lora(
            {n: (torch.randn(8, i), torch.randn(o, 8)) for n, (i, o) in shapes.items()}, 1.0
        )

    loras = [adapter() for _ in range(size)]
    held: Any = None  # what is sampled with was never a checkpoint
    snapshots = Snapshots(held, torch.device("cpu"))
    samplers = [Sampler(f"{number}", "session", adapted=True) for number in range(size)]

    def publish() -> None:
        for sampler, lora in zip(samplers, loras, strict=True):
            snapshots.drop(sampler)
            snapshots.hold(sampler, lora)

    def use() -> None:
        for sampler in samplers:
            snapshots.load(sampler)

    def decode() -> None:
        async def all_requests() -> None:
            sampling = Sampling(max_tokens=32)
            work = (
                engine.generate([1 + index, 2, 3], sampling, [], loras[index % size])
                for index in range(64)
            )
            await asyncio.gather(*work)

        asyncio.run(all_requests())

    decode()
    meter(f"engine: decode 64 requests{STEEP}", "token", 64 * 32, decode)
    meter(f"publish to samplers{STEEP}", "adapter", size, publish)
    meter(f"sample in turn{STEEP}", "adapter", size, use)
    snapshots.close()
    engine.stop()


AXES = {
    axis.__name__: axis
    for axis in (rollouts, turns, context, traces, tools, environments, adapters)
}
