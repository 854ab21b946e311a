"""Every command in a block of README and docs is run: here, by another test, or by CI.

What needs something that CI has not is listed with the reason. So a new command on a page fails
this test until it is run, or somebody says why it cannot be.
"""

from __future__ import annotations

import re
import shlex
import shutil
import sys
from pathlib import Path

import pytest

import vf
from tests.docs.blocks import PAGES, ROOT, blocks, lines_of_commands
from vf.environments import registry
from vf.trainer.commands.main import main

COMMAND = re.compile(r"(\.venv/bin/)?(vf-rl|make|pip|uv|python|bash)\s")
FIRST_NIGHT = "scripts/first_night.py"
BUILT = r"(guide-authoring|tutorial)\.md: "  # pages on which a package is written first
FEW = ["-n", "2", "-r", "1", "--max-tokens", "8"]
SHORT = ["--set", "max_steps=30"]  # where the scene's runs are already
# Run here, in a folder with what the pages speak of: with these arguments more, to be done soon.
HERE = {
    r"vf-rl eval calculator -m (tiny|runs/run-1/\S+)": FEW,
    r"vf-rl eval (\./(my_env|products|my_agent)\.py|evals\.toml)": FEW,
    r"vf-rl eval (gym|reasoning-gym:leg_counting|textarena:GuessTheNumber-v0) ": FEW,
    r"vf-rl eval --validate \./": ["-n", "2"],
    r"vf-rl eval --compare evals/a evals/b": [],
    r"vf-rl export (?!runs/sums)": [],
    r"vf-rl doctor": [],
    r"vf-rl configs/several-environments\.toml --dry-run": [],
    r"vf-rl run\.toml( --dry-run| --set max_steps=20)?$": SHORT,
    r"vf-rl --resume (?!runs/self-play)": SHORT,
}
# Run by another test, or by CI. What needs the files of a page is run for this page only, by name.
ELSEWHERE = {
    r"make (quickstart)$": "scripts/first_night.py",
    r"make (test|test-parts|test-all|check|parts|gpu-check)$": ".ci/run",
    r"make vllm-cpu$": "scripts/install_parts.sh",
    r"pip install ": "scripts/bare_user.py",
    rf"{BUILT}(vf-rl init|vf-rl eval (heavy-coin|sums))": FIRST_NIGHT,
    rf"{BUILT}pip install -e '[\w-]+\[test\]'": FIRST_NIGHT,
    r"README\.md: vf-rl (run\.toml|--resume|export|eval)": FIRST_NIGHT,
    r"\.venv/bin/python -m pytest tests/trainer$": ".ci/run",
    rf"{BUILT}python -m pytest (heavy-coin|sums)": FIRST_NIGHT,
    rf"{BUILT}vf-rl eval --compare evals/before evals/after": FIRST_NIGHT,
    rf"{BUILT}vf-rl (sums/sums\.toml|eval --validate sums|export runs/sums-1)": FIRST_NIGHT,
    r"vf-rl eval guess-number -m qwen3-8b": "scripts/first_night.py",
    r"vf-rl serve runs/(run-1|quickstart-1)": "tests/trainer/commands/test_serve.py",
    r"vf-rl serve tiny --train$": "tests/trainer/commands/test_serve.py",
    r"(vf-rl serve Qwen/|python -m tinker_cookbook\.recipes)": (
        "tests/trainer/tinker_api/test_recipes.py"
    ),
    r"vf-rl configs/quickstart\.toml --set trainer\.backend=tinker": (
        "tests/trainer/tinker_backend/test_runs.py"
    ),
    r"vf-rl run\.toml --tmux": "tests/trainer/processes/test_tmux.py",
    r"vf-rl run\.toml --set 'cluster": "tests/trainer/commands/test_on_cluster.py",
    r"vf-rl run\.toml --set model=": "tests/trainer/sft/test_sft_command.py",
    r"vf-rl configs/several-environments\.toml --set": "tests/trainer/test_several_environments.py",
    r"vf-rl eval --validate read-picture": "tests/evaluation/validation/test_bundled.py",
    r"vf-rl eval read-picture -m": "tests/evaluation/test_images.py",
    r"vf-rl eval --validate support-desk": "tests/environments/test_support_desk.py",
    r"vf-rl configs/quickstart\.toml --profile": "tests/trainer/test_profile.py",
    r"vf-rl (sft) ": "tests/trainer/sft/test_sft_command.py",
    r"vf-rl (configs/self-play\.toml|eval kuhn-poker)": "tests/trainer/test_self_play.py",
    r"vf-rl --resume runs/self-play": "tests/trainer/test_self_play.py",
    r"vf-rl view ": "tests/trainer/commands/test_view.py",
    r"vf-rl mismatch ": "tests/trainer/watching/test_mismatch.py",
    r"vf-rl cluster ": "tests/trainer/commands/test_cluster.py",
    r"vf-rl sandbox ": "tests/sandbox/test_sandbox_command.py",
    r"vf-rl search ": "tests/tools/search/test_search_command.py",
    r"verifiers\.md: vf-rl eval verifiers:spell-out": "tests/docs/test_walkthroughs.py",
    r"coming-from\.md: vf-rl eval verifiers:digits-v0": "tests/docs/test_walkthroughs.py",
    r"vf-rl eval (--validate )?swe:": "tests/bridges/swe",
    r"vf-rl eval (--validate )?harbor:": "tests/bridges/harbor",
    r"vf-rl eval openenv:": "tests/bridges/openenv",
}
# Run nowhere: what it needs.
NOWHERE = {
    r"vf-rl (eval calculator -m|check-template|serve) Qwen/": "the model hub",
    r"vf-rl eval geo-qa -m qwen3-8b|vf-rl eval my-env -m gpt-5-mini": "a served model of its own",
    r"vf-rl eval (booking|support-desk) -m gpt-5-mini": "served models of its own",
    r"vf-rl eval textarena:ConnectFour-v0": "a release of TextArena with the game's words",
    r"vf-rl (eval calculator -m|serve) models/smollm2": "SmolLM2, from the model hub",
    r"(\.venv/bin/)?(python|vf-rl) (scripts/prepare_smollm2|configs/smollm2)": (
        "SmolLM2, from the model hub"
    ),
    r"python benchmarks/self_play\.py": "half an hour",
    r"uv ": "a checkout of prime-rl or verifiers, with a Python environment of its own",
}


def shown(path: Path) -> list[str]:
    """Return the commands of a page's blocks, without prompts and comments."""
    lines = [line for line in lines_of_commands(path) if COMMAND.match(line)]
    return [re.sub(r"\s+#.*$", "", line).removesuffix(" \\").strip() for line in lines]


SHOWN = [(path.name, command) for path in PAGES for command in dict.fromkeys(shown(path))]
# Once, whichever pages show it.
RUN = {
    command: more
    for page, command in SHOWN
    for pattern, more in HERE.items()
    if re.match(pattern, command)
    and not any(re.match(rule, command) for rule in NOWHERE)
    and not any(re.match(rule, f"{page}: {command}") for rule in ELSEWHERE)
}


def test_every_command_is_run_or_it_says_why_not() -> None:
    rules = [*HERE, *ELSEWHERE, *NOWHERE]

    def covers(rule: str, page: str, command: str) -> bool:
        return bool(re.match(rule, command) or re.match(rule, f"{page}: {command}"))

    assert [each for each in SHOWN if not any(covers(rule, *each) for rule in rules)] == []
    unused = [rule for rule in rules if not any(covers(rule, *each) for each in SHOWN)]
    assert unused == [], "a rule for a command that no page shows"
    assert [place for place in ELSEWHERE.values() if not (ROOT / place).exists()] == []


RUN_TOML = """\
model = "tiny"

[env]
id = "calculator"

[trainer.args]
max_steps = 30
batch_size = 8
rollouts_per_example = 4
max_tokens = 16
max_prompt_len = 256
max_seq_len = 384
save_steps = 10
save_total_limit = 5
eval_strategy = "no"
"""
EVALS = '[[environments]]\nid = "calculator"\n\n[[models]]\nmodel = "tiny"\n'


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the files, runs and results that the pages speak of."""
    folder = tmp_path_factory.mktemp("scene")
    pages = {path.name: [b.text for b in blocks(path) if b.kind == "python"] for path in PAGES}
    (folder / "my_env.py").write_text(pages["README.md"][0])
    (folder / "products.py").write_text(pages["guide-authoring.md"][0])
    (folder / "my_agent.py").write_text(pages["agents.md"][0])
    (folder / "run.toml").write_text(RUN_TOML)
    (folder / "evals.toml").write_text(EVALS)
    shutil.copytree(ROOT / "configs", folder / "configs")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        vf.train("run.toml", ["run_name=quickstart-1"], quiet=True)
        shutil.copytree("runs/quickstart-1", "runs/run-1", symlinks=True)
        for name, seed in (("a", "0"), ("b", "1")):
            assert main(["eval", "calculator", *FEW, "--seed", seed, "-o", f"evals/{name}"]) == 0
    return folder


@pytest.fixture(autouse=True)
def _own_registrations(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_registered", {})


@pytest.mark.slow
@pytest.mark.parametrize(("command", "more"), RUN.items(), ids=RUN)
def test_it_runs(
    command: str, more: list[str], scene: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(scene, tmp_path / "scene", symlinks=True)
    monkeypatch.chdir(tmp_path / "scene")
    for name in ("my_env", "products", "my_agent"):  # of another test's scene
        monkeypatch.delitem(sys.modules, name, raising=False)
    code = main([*shlex.split(command)[1:], *more])
    # A doctor says 1 where something is missing, and a validation where it has found something.
    finds = command.startswith("vf-rl doctor") or "--validate" in command
    assert code == 0 or (code == 1 and finds)
