"""Loading environments of verifiers: the errors for those that cannot be used."""

from __future__ import annotations

import asyncio
import signal
import threading
from pathlib import Path
from typing import Any

import pytest

import vf
from vf.bridges.verifiers import from_verifiers as loading
from vf.bridges.verifiers.from_verifiers import from_verifiers
from vf.environments import registry

pytestmark = pytest.mark.usefixtures("their_envs")


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Register the adapter, as its entry point does in an installed package."""
    monkeypatch.setattr(registry, "_registered", {})
    vf.register("verifiers", "vf.bridges.verifiers.from_verifiers:from_verifiers")


@pytest.mark.usefixtures("registered")
def test_it_is_made_by_its_name() -> None:
    environment = vf.make("verifiers:their-words", num_train=2)
    assert environment.id == "verifiers:their-words"
    assert len(list(environment.tasks("train"))) == 2
    trace = asyncio.run(
        vf.rollout(environment, next(iter(environment.tasks("train"))), vf.ScriptedModel(["x"]))
    )
    assert trace.environment == "verifiers:their-words"
    assert vf.make("verifiers:owner/their-words").id == "verifiers:owner/their-words"


def test_one_that_is_not_installed_says_how_to_install_it() -> None:
    with pytest.raises(vf.ConfigError) as raised:
        from_verifiers("owner/no-such-thing")
    assert str(raised.value).startswith(
        "there is no installed environment 'verifiers:owner/no-such-thing' (no module "
        "'no_such_thing'). Installed packages that need verifiers: "
    )
    assert "prime env install OWNER/no-such-thing" in str(raised.value)
    with pytest.raises(vf.ConfigError, match="no installed environment"):
        from_verifiers("not a name!")


def test_packages_that_need_verifiers_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, needs in (("quiz-words", "verifiers>=0.3"), ("quiz-other", "verifiers-lookalike")):
        folder = tmp_path / f"{name.replace('-', '_')}-1.0.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\nRequires-Dist: {needs}\n"
        )
    monkeypatch.syspath_prepend(tmp_path)
    assert "quiz-words" in loading.installed()
    assert "quiz-other" not in loading.installed()
    with pytest.raises(vf.ConfigError, match="Did you mean 'quiz-words'"):
        from_verifiers("quiz-wrods")


def test_a_module_that_is_no_environment_says_what_it_lacks() -> None:
    with pytest.raises(vf.ConfigError, match=r"neither a function load_environment \(v0\) nor"):
        from_verifiers("their-tally-tools")


def test_arguments_that_it_does_not_take_are_reported() -> None:
    with pytest.raises(vf.ConfigError) as raised:
        from_verifiers("their-words", num_trian=3)
    assert str(raised.value) == (
        "verifiers:their-words: got an unexpected keyword argument 'num_trian'. Did you mean "
        "'num_train'? Its load_environment takes: num_train, with_eval; "
        "reward_range is an argument of vf-rl"
    )
    with pytest.raises(vf.ConfigError, match="missing a required argument: 'kind'"):
        from_verifiers("their-oddities")
    with pytest.raises(vf.ConfigError, match="eval_args are for v1 tasksets"):
        from_verifiers("their-words", eval_args={"split": "test"})


def test_what_its_code_raises_is_reported_with_the_authors_lines(tmp_path: Path) -> None:
    with pytest.raises(vf.ConfigError) as raised:
        from_verifiers("their-oddities", kind="raises")
    told = str(raised.value)
    assert told.startswith("verifiers:their-oddities: loading it failed:\n")
    assert "their_oddities.py" in told
    assert 'raise KeyError("the data set is not there")' in told
    assert "from_verifiers" not in told


def test_a_module_that_cannot_be_imported_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "their_broken.py").write_text("import a_module_that_nobody_has\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(vf.ConfigError, match=r"importing it failed:\n.*their_broken\.py"):
        from_verifiers("their-broken")


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("none", "load_environment returned NoneType, which is not a verifiers.Environment"),
        ("remote", r"it needs Prime's remote sandboxes \(Remote\), which cannot be given here"),
        ("rewrites", r"it needs to shape each request itself \(Rewriter.get_prompt_messages\)"),
        ("weightless", "its rubric has no reward function that has a weight"),
        ("mixed", "it needs other tools in each of its environments"),
        ("grouped state", "it needs its live states when a whole group is scored"),
    ],
)
def test_what_it_needs_and_cannot_have_is_reported_when_it_is_loaded(
    kind: str, message: str
) -> None:
    with pytest.raises(vf.ConfigError, match=f"^verifiers:their-oddities: {message}"):
        from_verifiers("their-oddities", kind=kind)


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("eval only", "it has no train dataset, only one for evaluation"),
        ("own tools", "task 'train-0' brings tools of its own"),
        ("picture", "task 'train-0' cannot be shown as text"),
    ],
)
def test_rows_that_cannot_be_tasks_are_reported_before_a_run_begins(
    kind: str, message: str
) -> None:
    environment = from_verifiers("their-oddities", kind=kind)
    with pytest.raises(vf.ConfigError, match=message):
        list(environment.tasks("train"))


def test_a_second_conversation_with_the_model_is_reported() -> None:
    environment = from_verifiers("their-oddities", kind="second")
    task = next(iter(environment.tasks("train")))
    trace = asyncio.run(vf.rollout(environment, task, vf.ScriptedModel(["1", "2"])))
    assert trace.error is not None
    assert "something that does not continue the conversation" in trace.error.message


def test_our_signal_handlers_stay() -> None:
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    from_verifiers("their-words")
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before


def test_outside_of_the_main_thread_it_says_where_it_can_be_made() -> None:
    raised: list[BaseException] = []

    def make() -> None:
        try:
            from_verifiers("their-words")
        except vf.ConfigError as error:
            raised.append(error)

    thread = threading.Thread(target=make)
    thread.start()
    thread.join()
    assert "only the main thread can" in str(raised[0])


def test_a_v0_environment_needs_a_version_that_has_the_api(monkeypatch: Any) -> None:
    monkeypatch.setattr("vf.runtime.extras.version", lambda name: "0.4.0")
    with pytest.raises(vf.ConfigError, match=r"pip install 'verifiers>=0\.3\.1,<0\.4'"):
        from_verifiers("their-words")
