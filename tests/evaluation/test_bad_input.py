"""What is wrong is found before anything starts, and said."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.evaluation.commands import call, results
from tests.evaluation.stand_in import MODEL, standing

Capsys = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with standing(models=[MODEL, "stand-in-large"]) as (base, _):
        yield base


def refused(capsys: Capsys, *argv: str) -> str:
    """Run a command that must be refused with nothing measured; return what it says."""
    code, out, err = call(capsys, *argv)
    assert (code, out) == (2, ""), err
    assert list(Path().glob("evals/**/traces.jsonl")) == []
    return err


@pytest.mark.slow
def test_an_endpoint_that_is_not_there(capsys: Capsys) -> None:
    with socket.socket() as taken:  # bound, but not listening
        taken.bind(("127.0.0.1", 0))
        base = f"http://127.0.0.1:{taken.getsockname()[1]}/v1"
        said = refused(capsys, "reverse-text", "-m", "m", "-b", base)
    assert f"no server answers at {base}" in said
    assert "Is it running, and is the address right, up to and including /v1?" in said


@pytest.mark.parametrize("path", ["", "/v2"])
def test_an_endpoint_that_is_something_else(capsys: Capsys, url: str, path: str) -> None:
    wrong = url.removesuffix("/v1") + path
    said = refused(capsys, "reverse-text", "-m", MODEL, "-b", wrong)
    assert f"{wrong} is not an OpenAI-compatible API" in said
    assert "up to and including /v1" in said


def test_a_model_that_the_server_does_not_know(capsys: Capsys, url: str) -> None:
    said = refused(capsys, "reverse-text", "-m", "standin", "-b", url)
    assert "does not know the model 'standin'. Did you mean 'stand-in'" in said
    assert "It serves: stand-in, stand-in-large" in said


@pytest.mark.slow
def test_a_key_that_is_missing_or_wrong(capsys: Capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "no API key: set OPENAI_API_KEY" in refused(capsys, "reverse-text", "-m", "gpt-5-mini")
    with standing(key="secret") as (url, _):
        argv = ["reverse-text", "-m", MODEL, "-b", url, "-n", "1"]
        assert "requires an API key: OPENAI_API_KEY: it is not set" in refused(capsys, *argv)
        said = refused(capsys, *argv, "--api-key-env", "MY_KEY")
        assert "no API key: set MY_KEY" in said
        monkeypatch.setenv("MY_KEY", "wrong")
        said = refused(capsys, *argv, "--api-key-env", "MY_KEY")
        assert "MY_KEY: the key in it was rejected" in said
        assert "wrong" not in said
        monkeypatch.setenv("MY_KEY", "secret")
        assert call(capsys, *argv, "--api-key-env", "MY_KEY")[0] == 0
    written = [path.read_text() for path in Path().rglob("*") if path.is_file()]
    assert written
    assert not any("secret" in text for text in written)


def test_a_model_that_is_not_there_is_named_with_both_ways(
    capsys: Capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    said = refused(capsys, "reverse-text", "-m", "nobody/nothing")
    assert "the hub's cache" in said
    assert "For a model behind an API, name the server with -b" in said
    said = refused(capsys, "reverse-text", "-m", "nothing")
    assert "no API key: set OPENAI_API_KEY, or name another server with -b" in said
    assert "For a local model, name a folder, a hub name (OWNER/NAME) or tiny" in said


def test_what_a_model_runs_on_follows_from_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    from vf.evaluation.eval_config import ModelConfig

    def engine(model: str, **how: str) -> str | None:
        return ModelConfig.model_validate({"model": model, **how}).engine

    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    assert engine("tiny") == engine("Qwen/Qwen3-0.6B") == "embedded"
    assert engine("gpt-5-mini") == engine("Qwen/Qwen3-0.6B", base_url="http://x/v1") == "api"
    assert engine("qwen/qwen3", api_key_env="OPENROUTER_KEY") == "api"
    monkeypatch.setenv("OPENAI_BASE_URL", "http://x/v1")
    assert engine("qwen/qwen3-8b") == "api"


def test_a_server_that_answers_as_a_model_that_it_does_not_list_is_used_with_a_note(
    capsys: Capsys,
) -> None:
    with standing(models=[MODEL], lists=["other"]) as (url, _):
        code, _, err = call(capsys, "reverse-text", "-m", MODEL, "-b", url, "-n", "1")
    assert code == 0
    assert f"note: {url} answers as 'stand-in', though it lists only other" in err


@pytest.mark.slow
@pytest.mark.parametrize("status", [429, 503, 500])
def test_a_server_that_is_busy_or_loading_is_asked_again(capsys: Capsys, status: int) -> None:
    with standing(busy=[status] * 3) as (url, _):
        code, _, err = call(capsys, "reverse-text", "-m", MODEL, "-b", url, "-n", "1")
    assert code == 0, err


def test_a_busy_server_is_asked_again_for_its_models(capsys: Capsys) -> None:
    with standing(busy=[404, 429]) as (url, _):
        said = refused(capsys, "reverse-text", "-m", "standin", "-b", url)
    assert "does not know the model 'standin'. Did you mean 'stand-in'" in said


@pytest.mark.parametrize("lists", [True, False])
def test_a_context_smaller_than_max_tokens_ends_answers(capsys: Capsys, lists: bool) -> None:
    with standing(context=60, lists_context=lists) as (url, _):
        code, out, err = call(
            capsys, "reverse-text", "-m", MODEL, "-b", url, "-n", "3", "--max-tokens", "60"
        )
    assert code == 0, out
    note = "note: 'stand-in' has a context of 60 tokens: an answer ends where it is full"
    assert (note in err) == lists


def test_a_context_with_no_room_for_the_environment_is_said(capsys: Capsys) -> None:
    with standing(context=20, lists_context=True) as (url, _):
        said = refused(capsys, "calculator", "-m", MODEL, "-b", url)
    assert "the context of 'stand-in', 20 tokens, has no room for the environment's tools" in said


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["calculater", "-m", "tiny"], "Did you mean 'calculator'"),
        (
            ["calculator", "-b", "http://127.0.0.1:1/v1"],
            "--base-url needs a model: name it with -m",
        ),
        (["calculator", "-m", "tiny", "--args", '{"max_operation": 2}'], "Did you mean 'max_op"),
        (["calculator", "-m", "tiny", "--args", "max_operations=2"], "argument --args: not JSON"),
        (["calculator", "--rolouts", "2"], "Did you mean '--rollouts-per-example'"),
        (["calculator", "--rollouts", "2"], "unrecognized arguments: --rollouts 2. Did you mean"),
        (["calculator", "-m", "./nowhere"], "model './nowhere': there is no such folder"),
        (["calculator", "-m", "."], "holds neither config.json nor an adapter"),
        (["calculator", "-m", "tiny", "-n", "0"], "tasks = 0"),
        (["calculator", "-m", "tiny", "--temperature", "-1"], "temperature = -1.0"),
        (["calculator", "-m", "tiny", "--max-cost", "1"], "max_cost needs a price for tiny"),
        (
            ["calculator", "-m", "tiny", "--engine", "embedded", "-b", "http://x/v1"],
            "base_url has no effect with the embedded engine",
        ),
        (["calculator", "-m", "tiny", "--vllm-python", "python"], "needs --engine vllm"),
        (
            ["calculator", "-m", "tiny", "--engine", "vllm", "--vllm-python", "no/python"],
            "inference.python = 'no/python': there is no such program",
        ),
        (["none.toml"], "there is no file none.toml"),
        (["--compare", "a", "b"], "there are no traces in a. Name a traces file, a run's"),
    ],
)
def test_settings_that_cannot_be(capsys: Capsys, argv: list[str], said: str) -> None:
    assert said in refused(capsys, *argv)


TOML = """
tasks = 2
[[environments]]
id = "reverse-text"
[[models]]
model = "m"
base_url = "http://127.0.0.1:9/v1"
"""


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("task = 1" + TOML, "task: unknown key. Did you mean 'tasks'"),
        (TOML + "temprature = 1", "models[0].temprature: unknown key."),
        (TOML + "base-url = 1", "models[0].base-url: unknown key. Did you mean 'base_url'"),
        (TOML + '[[models]]\nmodel = "m"', "two of the models are called m; give them a name"),
        (TOML + '[[models]]\nname = "m"', "models[1].model: missing. Name at the API"),
        (TOML + "[limits]\nmax_turn = 1", "limits.max_turn: unknown key. Did you mean 'max_turns'"),
        (TOML + '[prices."m"]\nin = 1', "prices.m.in: unknown key. Did you mean 'input'"),
        (TOML + '[prices."m"]\ninput = -1\noutput = 1', "prices.m.input = -1"),
        ("rollouts = 1\nrollouts_per_example = 2" + TOML, "are the same setting; keep"),
        ("[[models]]\nmodel = 'm'", "environments: missing. The environments to measure in"),
        ("tasks = ", "not valid TOML"),
        (TOML + 'engine = "embeded"', "models[0].engine = 'embeded'"),
        (
            "[[environments]]\nid = 'calculator'\n[[models]]\nmodel = 'tiny'\n"
            "[models.inference]\nprot = 1",
            "inference.prot: unknown key. Did you mean 'port'",
        ),
        (
            "[[environments]]\nid = 'calculator'\n[[models]]\nmodel = 'tiny'\n"
            "[models.inference]\nlogprob_tolerance = 1",
            "inference.logprob_tolerance is for training",
        ),
        ("model = 'tiny'\n[env]\nid = 'calculator'", "the settings of a training run"),
    ],
)
def test_a_toml_that_cannot_be(capsys: Capsys, text: str, said: str) -> None:
    Path("bad.toml").write_text(text)
    assert said in refused(capsys, "bad.toml")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "--prices my.toml: prices: missing. Tables `[prices."),
        (f'[price."{MODEL}"]\ninput = 1\noutput = 1', "unknown key. Did you mean 'prices'"),
        (f"[{MODEL}]\ninput = 1\noutput = 1", f"{MODEL}: unknown key. Known here: prices"),
        (f"[prices.{MODEL}]\ninput = 1\nouput = 1", "ouput: unknown key. Did you mean 'output'"),
    ],
)
def test_a_table_of_prices_that_cannot_be(capsys: Capsys, url: str, text: str, said: str) -> None:
    Path("my.toml").write_text(text)
    argv = ["reverse-text", "-m", MODEL, "-b", url, "--prices", "my.toml"]
    assert said in refused(capsys, *argv)


def test_prices_without_the_model_are_said(capsys: Capsys, url: str) -> None:
    Path("my.toml").write_text("[prices.stand-inn]\ninput = 1\noutput = 1")
    argv = ["reverse-text", "-m", MODEL, "-b", url, "-n", "1", "--prices", "my.toml"]
    code, _, err = call(capsys, *argv)
    assert code == 0
    assert "the prices have none for 'stand-in', so its cost is not counted" in err
    assert "Did you mean 'stand-inn'? They are for: stand-inn" in err


def test_a_toml_takes_no_single_model(capsys: Capsys) -> None:
    Path("two.toml").write_text(TOML)
    assert "--model needs a single environment" in refused(capsys, "two.toml", "-m", "x")


def test_a_folder_of_another_evaluation_is_refused_with_the_differences(
    capsys: Capsys, url: str
) -> None:
    argv = ["reverse-text", "-m", MODEL, "-b", url, "-o", "out"]
    assert call(capsys, *argv, "-n", "2")[0] == 0
    before = {path: path.read_bytes() for path in Path("out").rglob("*") if path.is_file()}
    code, _, err = call(
        capsys, *argv, "-n", "1", "--temperature", "0.5", "--args", '{"max_letters": 5}', "-c", "2"
    )
    assert code == 2
    assert "out holds another evaluation. What differs (there → now):" in err
    assert "name a new folder with --output" in err
    assert "  -n (tasks of reverse-text): 2 → 1" in err
    assert "  temperature: 1.0 → 0.5" in err
    assert "  environments[0].args.max_letters: (none) → 5" in err
    assert "  tasks.reverse-text" not in err  # a digest says nothing, and follows from -n
    assert "max_concurrent" not in err
    assert {path: path.read_bytes() for path in before} == before
    assert call(capsys, *argv, "-n", "2", "-c", "2", "--retry-errors", "3")[0] == 0


def test_a_folder_of_before_a_setting_existed_means_its_default(capsys: Capsys, url: str) -> None:
    argv = ["reverse-text", "-m", MODEL, "-b", url, "-o", "out", "-n", "2"]
    assert call(capsys, *argv)[0] == 0
    file = Path("out/config.json")
    measured = json.loads(file.read_text())
    for table, names in [
        (measured["settings"], ("repetition_penalty", "min_p", "limits")),
        (measured["settings"]["models"][0], ("send_reasoning", "request_fields", "tool_style")),
    ]:
        for name in names:
            del table[name]
    file.write_text(json.dumps(measured))
    code, _, err = call(capsys, *argv, "--max-turns", "3")
    assert code == 2
    assert "  limits.max_turns: (none) → 3" in err
    assert "send_reasoning" not in err
    assert "resuming: 2 of 2" in call(capsys, *argv)[2]


def test_another_evaluation_has_a_folder_of_its_own(capsys: Capsys, url: str) -> None:
    def evaluate(*more: str) -> str:
        code, _, err = call(capsys, "reverse-text", "-m", MODEL, "-b", url, *more)
        assert code == 0, err
        return err

    base = Path("evals/reverse-text-stand-in")
    evaluate("-n", "5", "-r", "2")
    first = results(base)
    said = evaluate("-n", "2")
    assert f"{base} holds another evaluation (there → now: " in said
    assert "-n (tasks of reverse-text): 5 → 2" in said
    assert f"The results of this one are in {base}@2" in said
    assert "temperature: 1.0 → 0.5" in evaluate("-n", "2", "--temperature", "0.5")
    assert results(base) == first
    # Each command finds its own again, also one whose beginning another holds.
    assert "resuming: 10 of 10" in evaluate("-n", "5", "-r", "2")
    assert "resuming: 2 of 2" in evaluate("-n", "2")
    assert "resuming: 2 of 2" in evaluate("-n", "2", "--temperature", "0.5")
    assert "resuming: 10 of 12" in evaluate("-n", "6", "-r", "2")
    assert {path.name for path in Path("evals").iterdir()} == {
        base.name,
        f"{base.name}@2",
        f"{base.name}@3",
    }


def test_a_checkpoint_that_was_replaced_is_another_model(tmp_path: Path) -> None:
    from vf.evaluation.eval_config import ModelConfig
    from vf.evaluation.models import fingerprint

    (tmp_path / "model.safetensors").write_bytes(b"\0" * 3_000_000)
    (tmp_path / "config.json").write_text("{}")
    config = ModelConfig(model=str(tmp_path))
    first = fingerprint(config)
    assert first == fingerprint(config)
    with (tmp_path / "model.safetensors").open("r+b") as file:
        file.seek(2_999_000)
        file.write(b"\1")
    assert fingerprint(config) != first
    assert fingerprint(ModelConfig(model="m", base_url="http://x/v1")) is None


def test_the_current_folder_can_hold_the_results(
    capsys: Capsys, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    for _ in range(2):  # the second is resumed, and finished
        argv = ("calculator", "--agent", "oracle", "-n", "1", "-o", ".")
        assert call(capsys, *argv)[0] == 0
        assert results(Path())["rollouts"] == 1
    assert [folder.name for folder in tmp_path.iterdir()] == ["here"]


def test_a_folder_with_other_things_in_it_is_left_alone(capsys: Capsys, url: str) -> None:
    Path("mine").mkdir()
    Path("mine/thesis.txt").write_text("years of work")
    code, _, err = call(capsys, "reverse-text", "-m", MODEL, "-b", url, "-o", "mine")
    assert code == 2
    assert "mine is not a results folder (it holds 'thesis.txt')" in err


def test_when_one_rollout_after_the_other_fails_it_stops(capsys: Capsys) -> None:
    with standing(fails=["backwards"], fixed="never") as (url, _):
        code, out, err = call(capsys, "reverse-text", "-m", MODEL, "-b", url, "-n", "100")
    assert (code, out) == (1, "")
    assert "25 rollouts in a row failed, the last in the model" in err
    assert "backwards cannot be answered" in err
    assert json.loads(Path("evals/reverse-text-stand-in/config.json").read_text())
