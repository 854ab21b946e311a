"""`vf-rl` itself: its help, its subcommands, its typing errors, and its name."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from collections.abc import Iterable, Mapping
from importlib.metadata import distributions
from pathlib import Path

import pytest

import vf
from tests.bare import run_bare
from tests.trainer.conftest import VfRl
from vf.trainer.commands.main import COMMANDS

ROOT = Path(__file__).parents[3]
OURS = "vf-rl"
HEAVY = ("torch", "transformers", "pydantic", "rich", "aiohttp", "openai", "docker")


HELP = f"""
import os, sys
from vf.trainer.commands.main import COMMANDS, main

for argv in ["--help"], *([name, "--help"] for name in COMMANDS):
    if child := os.fork():
        assert os.wait() == (child, 0), argv
        continue
    try:
        main(argv)
    finally:
        heavy = [name for name in {HEAVY} if name in sys.modules]
        print(argv[0], *heavy, file=sys.stderr, flush=True)
"""


def test_help_loads_nothing_that_it_does_not_need() -> None:
    """Each command is asked in a fork of one interpreter that has loaded none of them."""
    done = subprocess.run([sys.executable, "-c", HELP], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    loaded = dict(line.partition(" ")[::2] for line in done.stderr.splitlines())
    assert loaded.keys() == {"--help", *COMMANDS}
    assert "torch" not in loaded.pop("sandbox") + loaded.pop("view")  # these load their own rooms
    assert not any(loaded.values()), loaded


def test_the_help_fits_one_screen_and_has_a_line_for_each_command(
    vf_rl: VfRl, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    code, out, _ = vf_rl("--help")
    lines = out.splitlines()
    assert code == 0
    assert len(lines) <= 24
    assert max(map(len, lines)) <= 80
    for name, (_, text) in COMMANDS.items():
        assert [line.split(None, 1) for line in lines].count([name, text]) == 1
    assert "example: vf-rl configs/quickstart.toml" in out
    files = {str(path.relative_to(ROOT)) for path in ROOT.glob("*/commands/*.py")}
    no_commands = {f"trainer/commands/{name}.py" for name in ("main", "train", "on_cluster")}
    registered = {
        f"{room}/commands/{name.replace('-', '_')}.py" for name, (room, _) in COMMANDS.items()
    }
    assert registered == {file for file in files if "__init__" not in file} - no_commands


def test_the_version_is_the_packages(vf_rl: VfRl) -> None:
    stated = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert vf_rl("--version")[:2] == (0, f"vf-rl {stated}\n")
    assert vf.__version__ == stated


@pytest.mark.parametrize("name", COMMANDS)
def test_a_subcommand_is_called_as_it_is_typed_and_shows_an_example(name: str, vf_rl: VfRl) -> None:
    code, out, _ = vf_rl(name, "--help")
    assert code == 0
    assert out.startswith(f"usage: vf-rl {name} ")
    assert f"examples:\n  vf-rl {name} " in out


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        ("evl calculator -m tiny", "there is no command 'evl'. Did you mean 'eval'"),
        ("check_template tiny", "Did you mean 'check-template'"),
        ("nonsense", "there is no command 'nonsense'. Commands: eval, init,"),
        ("nowhere.toml", "there is no file nowhere.toml"),
        ("a.toml --dryrun", "unrecognized arguments: --dryrun. Did you mean '--dry-run'"),
        ("a.toml --resme=x", "Did you mean '--resume'"),
        ("eval calculator --rollout 3", "Did you mean '--rollouts-per-example'"),
        ("search build a.jsonl -o x --overwite", "Did you mean '--overwrite'"),
        ("search biuld", "there is no command 'biuld'. Did you mean 'build'"),
        ("sandbox check", "there is no command 'check'. Did you mean 'self-check'"),
        ("cluster up", "there is no command 'up'. Commands: slurm, kuberay"),
        ("eval x --agent orcle", "argument --agent: unknown value 'orcle'. Did you mean 'oracle'"),
        ("eval x -n many", "argument -n/--tasks: must be a whole number, not 'many'"),
        ("eval x --temperature hot", "argument --temperature: must be a number, not 'hot'"),
        ("serve tiny --port x", "argument --port: must be a whole number, not 'x'"),
        ("search query x y -k 1.5", "argument -k: must be a whole number, not '1.5'"),
        ("sandbox self-check --paitence 3", "Did you mean '--patience'"),
        ("a.toml --res x", "unrecognized arguments: --res"),  # no abbreviations
        ("", "name either a config or, with --resume, the folder of a run"),
        ("a.toml --resume x", "name either"),
        ("--resume x --dry-run", "--dry-run starts no run"),
        ("a.toml --allow-changes", "--allow-changes needs --resume"),
        ("a.toml --tmux --dry-run", "cannot be combined with --tmux"),
        ("--resume x --profile", "--profile starts its own run"),
        ("a.toml --dry-run --profile", "--profile starts its own run"),
        ("sft", "name either a config or"),
        ("check-template", "the following arguments are required: model"),
        ("check-template tiny two", "unrecognized arguments: two"),
        ("cluster slurm", "CONFIG.toml"),
        ("cluster pbs a.toml", "there is no command 'pbs'"),
        ("cluster slurm a.toml --gpus-per-node all", "'all' is not a whole number"),
        ("cluster slurm a.toml --image x", "unrecognized arguments: --image"),
        ("doctor a.toml --gpu-memory much", "'much' is not a size in GB"),
        ("doctor --gpu-memory 24", "--gpu-memory needs a CONFIG.toml"),
        ("serve tiny --port 99999", "--port 99999: must be"),
        ("serve tiny --max-seq-len 0", "--max-seq-len 0: must be"),
        ("view x --port 70000", "--port 70000"),
        ("view x --plain --open", "--plain cannot be combined"),
        ("view x --port 80 -o page.html", "--output writes a file"),
        ("view x --min-reward 1", "need --export"),
        ("view x --export a.jsonl --open", "--export cannot be combined"),
        ("view x --export a.jsonl --stop-reason tired", "unknown value 'tired'"),
        ("export", "the following arguments are required: RUN"),
    ],
)
def test_a_typing_error_is_bad_usage_and_gets_a_suggestion(
    argv: str, words: str, vf_rl: VfRl
) -> None:
    code, out, err = vf_rl(*argv.split())
    assert (code, out) == (2, "")
    assert words in err


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        ("{toml} --set max_stepz=3", "Did you mean 'max_steps'"),
        ("{toml} --set env.id=calculater", "Did you mean 'calculator'"),
        ("--resume nowhere", "there is no folder nowhere"),
        ("doctor {toml} --set max_stepz=3", "Did you mean 'max_steps'"),
        ("cluster slurm {toml} --set max_stepz=3", "Did you mean 'max_steps'"),
        ("mismatch {toml} --set max_stepz=3", "Did you mean 'max_steps'"),
        ("sft {toml} --set lerning_rate=1", "Did you mean 'learning_rate'"),
        ("sft --resume nowhere", "there is no folder nowhere"),
        ("export nowhere", "there is no folder nowhere"),
        ("serve tiny --port 0 --set max_request=3", "max_request: unknown key"),
        ("view nowhere.jsonl --plain", "there is no nowhere.jsonl"),
    ],
)
def test_what_a_loader_refuses_is_printed_before_anything_is_made(
    argv: str, words: str, config: Path, vf_rl: VfRl
) -> None:
    code, _, err = vf_rl(*argv.format(toml=config).split())
    assert code == 2
    assert words in err
    assert "Traceback" not in err
    assert not (config.parent / "runs").exists()


@pytest.mark.slow
def test_nothing_but_training_and_export_needs_an_extra(tmp_path: Path) -> None:
    code = "from vf.trainer.commands.main import main; sys.exit(main(sys.argv[1:]))"

    def run(*argv: str) -> tuple[int, str]:
        done = run_bare(code, *argv, cwd=tmp_path)
        return done.returncode, done.stdout

    assert run("eval", "--validate", "calculator", "-n", "4")[0] == 0
    assert run("init", "word-count")[0] == 0
    (tmp_path / "traces.jsonl").touch()
    ended, text = run("view", "traces.jsonl", "-o", "page.html")
    assert (ended, text[:40]) == (1, "vf-rl view: there are no traces to show.")
    assert run("sandbox", "self-check", "--list")[0] == 0
    assert "is not an index" in run("search", "info", ".")[1]
    run_toml = tmp_path / "run.toml"
    run_toml.write_text('model = "tiny"\n[env]\nid = "calculator"\n')
    assert run("run.toml") == (
        2,
        "vf-rl: this needs the package 'transformers': pip install 'vf-rl[train]'\n",
    )


def taken(scripts: Mapping[str, Iterable[str]]) -> list[str]:
    """Return our scripts that another distribution installs, too."""
    own = set(scripts[OURS])
    return [
        f"{name} of {other}"
        for other, names in scripts.items()
        if other != OURS
        for name in sorted(own.intersection(names))
    ]


def test_none_of_our_scripts_belongs_to_another_distribution() -> None:
    """Among all that is installed: `make test` installs every extra except vllm and deepspeed."""
    scripts: dict[str, set[str]] = {}
    for found in distributions():
        names = {each.name for each in found.entry_points if each.group == "console_scripts"}
        scripts.setdefault(found.name, set()).update(names)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    scripts[OURS] = set(project["scripts"])
    assert set(project["scripts"]) == {"vf-rl"}
    assert sum(map(len, scripts.values())) > 20, "hardly anything is installed to compare with"
    assert taken(scripts) == []


def test_a_name_that_two_distributions_install_is_seen() -> None:
    scripts = {"vf-rl": ["vf-rl", "vf-eval"], "verifiers": ["vf-eval", "vf-init"], "pip": ["pip"]}
    assert taken(scripts) == ["vf-eval of verifiers"]
