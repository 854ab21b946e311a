"""reasoning-gym's datasets as environments: their problems, their scores, bad input."""

from __future__ import annotations

import asyncio
import random
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

import vf
from tests.late import Late
from vf.bridges.reasoning_gym.environment import ReasoningGym
from vf.bridges.reasoning_gym.scoring import UNREADABLE, is_harmless, score, scorer
from vf.runtime.errors import ConfigError

reasoning_gym = Late("reasoning_gym")

# Scored with the same words by the dataset itself and by the environment.
DATASETS = {
    "leg_counting": {"max_animals": 4},
    "chain_sum": {},
    "prime_factorization": {},
    "letter_jumble": {},
    "spell_backward": {},
    "sentence_reordering": {},
    "countdown": {},
    "simple_integration": {},
    "n_queens": {"min_remove": 1, "max_remove": 3},
    "sudoku": {},
    "game_of_life": {},
    "knights_knaves": {},
    "rush_hour": {},
    "boxnet": {},
    "string_insertion": {},
    "gsm_symbolic": {},
}
# With settings; whose answers are text, sums, formulas, or may be one of many.
QUICK = {"leg_counting", "spell_backward", "countdown", "simple_integration", "n_queens"}


def run(environment: vf.Environment, task: vf.Task, reply: str) -> vf.Trace:
    return asyncio.run(vf.rollout(environment, task, vf.ScriptedModel([reply])))


def their_score(dataset: Any, answer: str | None, entry: dict[str, Any]) -> float:
    """What reasoning-gym gives; 0 where its scorer cannot read the answer at all."""
    try:
        return float(dataset.score_answer(answer, entry))
    except (ValueError, TypeError):
        return 0.0


@pytest.mark.parametrize(
    "name",
    [pytest.param(each, marks=() if each in QUICK else pytest.mark.slow) for each in DATASETS],
)
def test_rewards_are_those_of_reasoning_gym(name: str) -> None:
    config = DATASETS[name]
    environment = ReasoningGym(name, config=config, num_train=1, num_eval=1)
    for task in environment.tasks("train"):
        info = task.info
        dataset = reasoning_gym.create_dataset(name, seed=info["seed"], size=1, **config)
        entry = dataset[info["index"]]
        assert (task.prompt, task.answer) == (entry["question"], entry["answer"])
        right = entry["answer"] or "nothing"
        replies: dict[str, str | None] = {
            f"<think>hm</think>\n<answer>{right}</answer>": right,
            f"<answer>1</answer> no, <answer>\n{right}\n</answer>": right,
            "<answer>12345</answer>": "12345",
            f"<answer>It is {right}, I think</answer>": f"It is {right}, I think",
            "<answer></answer>": "",
            "<answer>[[ ((</answer>": "[[ ((",
            right: None,
            "": None,
        }
        for reply, answer in replies.items():
            trace = run(environment, task, reply)
            if not is_harmless(type(dataset), answer or ""):
                assert answer != right
                answer = UNREADABLE
            assert trace.reward == pytest.approx(their_score(dataset, answer, entry)), reply
            assert trace.score is not None
            assert trace.score.metrics == {"answered": float("</answer>" in reply)}


@pytest.mark.slow
def test_all_of_their_datasets_can_be_made_asked_and_scored() -> None:
    names = [name for name in reasoning_gym.factory.DATASETS if name != "composite"]
    assert len(names) > 90
    for name in names:
        environment = ReasoningGym(name, num_train=2, num_eval=1)
        # Slow to make, not to score.
        if name in ("knight_swap", "futoshiki", "lcm", "arc_agi", "intermediate_integration"):
            continue
        (task,) = environment.tasks("eval")
        problems, entry = environment._problem(task)
        for answer in (task.answer, None, "xyz", "", "1 2"):
            found = scorer(problems.dataset_class, problems.config)(entry, answer)
            assert 0.0 <= found <= 1.0, (name, answer)
            if answer is not None and answer == task.answer:
                assert found == 1.0, name


def test_tasks_are_the_same_again_and_in_one_split_only() -> None:
    state = random.getstate()
    first, again = (ReasoningGym("leg_counting", num_train=50, num_eval=20) for _ in range(2))
    assert list(first.tasks("train")) == list(again.tasks("train"))
    assert random.getstate() == state
    other = ReasoningGym("leg_counting", num_train=50, num_eval=20, seed=1)
    assert next(iter(other.tasks("eval"))).prompt != next(iter(first.tasks("eval"))).prompt

    def seeds(environment: ReasoningGym, split: Any) -> set[int]:
        return {task.info["seed"] + task.info["index"] for task in environment.tasks(split)}

    assert not seeds(first, "train") & (seeds(first, "eval") | seeds(other, "eval"))


def test_a_question_of_the_eval_split_is_left_out_of_the_train_split() -> None:
    few = {"min_animals": 1, "max_animals": 1, "min_instances": 1, "max_instances": 2}
    environment = ReasoningGym("leg_counting", config=few, num_train=200, num_eval=20)
    asked = {str(task.prompt) for task in environment.tasks("eval")}
    train = {str(task.prompt) for task in environment.tasks("train")}
    assert train
    assert not asked & train


def test_problems_are_made_when_they_are_asked_for() -> None:
    environment = ReasoningGym("knight_swap", num_train=10**8, num_eval=1)
    assert len(list(islice(environment.tasks("train"), 1))) == 1


def test_numpys_global_numbers_are_left_alone() -> None:
    import numpy as np

    np.random.seed(3)
    expected = np.random.RandomState(3).random()
    list(ReasoningGym("pool_matrix", num_train=2, num_eval=1).tasks("train"))
    assert np.random.random() == expected


def test_a_composite_mixes_datasets_and_scores_by_the_one_that_asked() -> None:
    parts = [
        {"name": "leg_counting", "weight": 2, "config": {"max_animals": 3}},
        {"name": "spell_backward"},
    ]
    environment = ReasoningGym("composite", config={"datasets": parts}, num_train=12, num_eval=1)
    tasks = list(environment.tasks("train"))
    assert {"legs" in str(task.prompt) for task in tasks} == {True, False}
    assert {run(environment, task, f"<answer>{task.answer}</answer>").reward for task in tasks} == {
        1.0
    }


def test_a_level_is_that_of_their_curriculum_and_config_goes_before() -> None:
    curriculum = reasoning_gym.factory.create_curriculum("leg_counting")
    curriculum.set_global_level(2)
    theirs = curriculum.generate_configuration()
    ours = ReasoningGym("leg_counting", level=2, config={"min_instances": 7})
    config = ours._problems["train"].config
    assert config.max_animals == theirs.max_animals
    assert (config.min_instances, theirs.min_instances != 7) == (7, True)


def test_the_system_prompt_is_one_of_theirs_or_a_text_or_none() -> None:
    prompts = reasoning_gym.utils.SYSTEM_PROMPTS
    assert ReasoningGym("chain_sum").system_prompt == prompts["default"]
    assert ReasoningGym("chain_sum", system_prompt="direct").system_prompt == prompts["direct"]
    assert ReasoningGym("chain_sum", system_prompt="Be brief.").system_prompt == "Be brief."
    assert ReasoningGym("chain_sum", system_prompt=None).system_prompt is None


@pytest.mark.parametrize(
    ("dataset", "code"),
    [
        ("countdown", "__import__('pathlib').Path({path!r}).touch()"),
        ("simple_integration", "sin('__imp' 'ort__(\"pathlib\").Path({path!r}).touch()')"),
        ("n_queens", "[open({path!r}, 'w')]"),
        ("spiral_matrix", "[(lambda: open({path!r}, 'w'))()]"),
        ("polynomial_multiplication", "exec(chr(112))"),
    ],
)
def test_an_answer_that_is_code_is_not_run(dataset: str, code: str, tmp_path: Path) -> None:
    made = tmp_path / "made"
    environment = ReasoningGym(dataset, num_train=1, num_eval=1)
    task = next(iter(environment.tasks("eval")))
    trace = run(environment, task, f"<answer>{code.format(path=str(made))}</answer>")
    assert trace.error is None
    assert trace.reward is not None
    assert trace.reward < 0.1
    assert not made.exists()


@pytest.mark.parametrize(
    "call", ["(sympify)({})", "[sympify][0]({})", "(sympify #\n({}))", "(sympify # +\n({}))"]
)
def test_no_function_is_called_in_a_roundabout_way(
    call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SymPy's names hold printers, which give any text, and parsers, which run it."""
    monkeypatch.chdir(tmp_path)
    special = {"(": "a)[6]", "'": "a)[7]", ")": "a)[10]", ".": "0.5)[8]", "_": "a_a)[9]"}
    code = "__import__('os').mkdir('made')"
    text = "+".join(f"(srepr)({special.get(char, f'{char})[8]')}" for char in code)
    made, config = reasoning_gym.factory.DATASETS["puzzle24"]
    settings = config(seed=1, size=1)
    score(made(settings), made(settings)[0], call.format(text))
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize(
    ("dataset", "answer"),
    [
        ("countdown", "(94 - 6)*4 / 2"),
        ("countdown", "((94 - 6) * (3 + 1)) - (-2) / sqrt (4)"),
        ("simple_integration", "-34*x**8/15 + exp(2*x)*sin(x) + C"),
        ("intermediate_integration", "-4*(-2*x - 8)**(3/2)/3 + C"),
        ("polynomial_multiplication", "x*(x + 1)*(y - 2.5)"),
        ("n_queens", "_ Q _ _\nQ _ _ _"),
        ("n_queens", "[['_', 'Q'], ['Q', '_']]"),
        ("string_insertion", "['A', 'B']"),
        ("spiral_matrix", "The answer: 1 2 3"),
        ("leg_counting", "__import__('os')"),  # it evaluates nothing
    ],
)
def test_what_answers_look_like_is_harmless(dataset: str, answer: str) -> None:
    assert is_harmless(reasoning_gym.factory.DATASETS[dataset][0], answer)


def test_an_answer_that_would_take_for_ever_is_worth_nothing() -> None:
    environment = ReasoningGym("countdown", num_train=1, num_eval=1, score_timeout=0.2)
    task = next(iter(environment.tasks("eval")))
    trace = run(environment, task, "<answer>9**9**9**9</answer>")
    assert (trace.reward, trace.error) == (0.0, None)


@pytest.mark.slow
def test_answers_that_never_end_hold_up_no_other() -> None:
    """More than there are workers: a right answer that comes later is scored before any of them."""
    environment = ReasoningGym("countdown", num_train=1, num_eval=1, score_timeout=600)
    task = next(iter(environment.tasks("eval")))

    def roll_out(answer: object) -> asyncio.Future[vf.Trace]:
        model = vf.ScriptedModel([f"<answer>{answer}</answer>"])
        return asyncio.ensure_future(vf.rollout(environment, task, model))

    async def run_all() -> list[bool]:
        endless = [roll_out("9**9**9**9") for _ in range(24)]
        await asyncio.sleep(0)  # they have begun
        assert (await roll_out(task.answer)).reward == 1.0
        ended = [call.done() for call in endless]
        for call in endless:
            call.cancel()
        await asyncio.gather(*endless, return_exceptions=True)
        return ended

    assert not any(asyncio.run(run_all()))


def test_a_task_of_other_arguments_is_not_scored() -> None:
    task = next(iter(ReasoningGym("leg_counting", num_train=1, num_eval=1).tasks("eval")))
    other = ReasoningGym("leg_counting", config={"max_animals": 3}, num_train=1, num_eval=1)
    trace = run(other, task, "<answer>1</answer>")
    assert trace.reward is None
    assert trace.error is not None
    assert "is no problem of this environment" in trace.error.message


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"task": "leg_count"}, "Did you mean 'leg_counting'"),
        ({"config": {"max_animal": 3}}, "config has no 'max_animal'. Did you mean 'max_animals'"),
        ({"config": {"seed": 3}}, "'seed' is set by seed of the environment"),
        ({"config": {"size": 3}}, "'size' is set by num_train and num_eval"),
        ({"config": {"min_animals": 0}}, "min_animals must be positive"),
        ({"config": {"min_animals": "two"}}, "self.min_animals > 0"),
        ({"level": 99}, "level must be 0 to "),
        ({"task": "rush_hour", "num_train": 0}, "num_train and num_eval must be at least 1"),
        ({"system_prompt": "defalt"}, "Did you mean 'default'"),
        ({"score_timeout": 0}, "score_timeout must be positive"),
        ({"task": "composite"}, "Must specify at least one dataset"),
        ({"task": "composite", "config": {"datasets": [{"name": "sudko"}]}}, "'sudoku'"),
        (
            {"task": "composite", "config": {"datasets": [{"name": "ab", "config": {"seed": 1}}]}},
            "ab: config: 'seed' is set by",
        ),
        ({"task": "composite", "config": {"datasets": ["ab"]}}, "a table of 'name'"),
        ({"task": "word_ladder", "num_train": 30_000}, "Dataset size too large"),
    ],
)
def test_bad_input(arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=r"reasoning-gym") as caught:
        ReasoningGym(**{"task": "leg_counting", **arguments})
    assert said in str(caught.value)


def test_it_is_found_by_its_name() -> None:
    environment = vf.make("reasoning-gym:leg_counting", num_train=5, num_eval=2)
    assert isinstance(environment, ReasoningGym)
    assert len(list(environment.tasks("eval"))) == 2
