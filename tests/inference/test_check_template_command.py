"""`vf-rl check-template` as an author meets it, and what preflight makes of the verdicts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import vf
from docs.make_template_table import templates, tokenizer
from tests.inference.chat_templates import HIDES_TOOLS
from vf.environments.environment import Split
from vf.inference.commands.check_template import main as check
from vf.runtime.errors import ConfigError
from vf.trainer.commands.main import main
from vf.trainer.preflight import preflight
from vf.trainer.settings.load_config import load_config
from vf.trainer.watching.plan_text import describe

TOML = """
model = "tiny"
[env]
id = "{env}"
[trainer.args]
max_steps = 2
batch_size = 8
rollouts_per_example = 4
max_tokens = 32
max_prompt_len = 1000
max_seq_len = 1024
eval_strategy = "no"
"""


def test_a_template_that_grows_is_all_right(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check-template", "tiny"]) == 0
    said = capsys.readouterr().out
    assert "reasoning and tools" in said
    assert said.splitlines()[-1] == "increasing"


def test_a_folder_is_checked_and_a_refusal_fails(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tokenizer("gemma3").save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "gemma2"}', encoding="utf-8")
    assert check([str(tmp_path)]) == 1
    said = capsys.readouterr().out
    assert "refused: tools, parallel calls" in said
    assert "Conversation roles" in said


def test_a_template_of_a_file_is_checked_in_its_place(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "mine.jinja"
    file.write_text(templates()["qwen3"], encoding="utf-8")
    assert check(["tiny", "--chat-template", str(file)]) == 0
    said = capsys.readouterr().out
    assert "bridged: rewrites history in" in said
    assert " became " in said.replace("\n", " ")


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["./nowhere"], "there is no such folder"),
        (["tiny", "--chat-template", "nowhere.jinja"], "'nowhere.jinja' is neither a file nor"),
    ],
)
def test_bad_usage_is_reported(
    argv: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert check(argv) == 2
    assert said in capsys.readouterr().err


def planned(tmp_path: Path, env: str, template: str | None, *settings: str) -> str:
    path = tmp_path / "run.toml"
    path.write_text(TOML.format(env=env), encoding="utf-8")
    file = tmp_path / "mine.jinja"
    file.write_text(template or "", encoding="utf-8")
    named = [] if template is None else [f"inference.chat_template={file}"]
    config, _ = load_config(path, [*named, *settings])
    return dict(describe(preflight(config)))["template"]


def test_the_plan_has_the_verdicts_in_one_line(tmp_path: Path) -> None:
    assert planned(tmp_path, "calculator", None) == "increasing"
    bridged = planned(tmp_path, "calculator", templates()["qwen3"])
    assert bridged.startswith("bridged: rewrites history in ")


def test_a_run_that_its_template_cannot_express_does_not_start(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"kind \(tools\); it says: Conversation roles must"):
        planned(tmp_path, "calculator", templates()["gemma3"])
    without_system = templates()["cohere"]
    assert planned(tmp_path, "guess-number", without_system).startswith("refused: tools")


@pytest.mark.slow
def test_a_run_whose_template_hides_the_tools_does_not_start(tmp_path: Path) -> None:
    for hides in (HIDES_TOOLS, templates()["phi3"]):  # the second leaves out results, too
        with pytest.raises(ConfigError, match=r'Set chat_template to a .*, or tool_style = "text"'):
            planned(tmp_path, "calculator", hides)
        assert planned(tmp_path, "guess-number", hides)
        in_text = planned(tmp_path, "calculator", hides, "inference.tool_style=text")
        assert "refused" not in in_text
        assert "does not tell" not in in_text
    assert planned(tmp_path, "calculator", None, "inference.chat_template=chatml") == "increasing"


def test_tools_that_only_reset_gives_are_expected_of_the_template(tmp_path: Path) -> None:
    def shout(text: str) -> str:
        """Shout."""
        return text.upper()

    class Given(vf.Environment):
        def tasks(self, split: Split) -> Iterator[vf.Task]:
            yield vf.Task(f"{split}-0", "Hello.")

        def reset(self, task: vf.Task) -> str:
            self.tools = [shout]
            return "Hello."

    vf.register("test-given-in-reset", Given)
    with pytest.raises(ConfigError, match=r"kind \(tools\); it says: Conversation roles must"):
        planned(tmp_path, "test-given-in-reset", templates()["gemma3"])
