"""Self-play, and a league of frozen checkpoints, with the tiny model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import vf
from vf.trainer.commands.main import main
from vf.trainer.rl_trainer import RLTrainer
from vf.trainer.run.run_folder import RunFolder
from vf.trainer.settings.load_config import load_config

pytestmark = pytest.mark.slow

CONFIG = Path(__file__).parents[2] / "configs" / "self-play.toml"
POOL = {"itself": "policy", "random": "random", "frozen": {"checkpoint": "tiny"}}
QUICK = {"batch_size": 48}
LEAGUE = """
model = "tiny"
[env]
id = "kuhn-poker"
curriculum = "league"
args = { num_train = 96, opponents = { random = "random" } }
[trainer.args]
run_name = "league-1"
max_steps = 1
batch_size = 16
rollouts_per_example = 2
max_tokens = 3
max_prompt_len = 96
max_seq_len = 160
save_steps = 1
eval_strategy = "no"
"""


def assert_only_the_trained_carry_loss(trace: vf.Trace) -> None:
    for lineage in trace.lineages:
        lossy = any(any(trace.branches[place].loss_mask) for place in lineage.branches)
        role = trace.roles[str(lineage.role)]
        assert lossy is (role.trained and role.answers > 0)


def test_a_league_meets_its_opponents_and_trains_only_the_policy(make_trainer: Any) -> None:
    args = {"openings": 6, "opponents": POOL, "num_train": 96}
    env = {"id": "tic-tac-toe", "args": args, "curriculum": "league"}
    trainer: RLTrainer = make_trainer(
        env=env, **QUICK, max_steps=2, rollouts_per_example=4, max_tokens=3, max_seq_len=320
    )
    trainer.train()
    traces = [trace for step in (1, 2) for trace in trainer.folder.step_traces(step)]
    assert {trace.task.info["opponent"] for trace in traces} == set(POOL)
    names = {"itself": "policy", "random": "script", "frozen": "tiny"}
    for trace in traces:
        mine, theirs = trace.task.info["side"], {"X": "O", "O": "X"}[trace.task.info["side"]]
        opponent = trace.task.info["opponent"]
        assert trace.roles[mine].player == "policy"
        assert trace.roles[theirs].player == names[opponent]
        assert trace.roles[theirs].trained is (opponent == "itself")
        assert_only_the_trained_carry_loss(trace)


def test_a_pool_grows_when_a_run_is_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("league.toml").write_text(LEAGUE)
    assert main(["league.toml"]) == 0
    past = "env.args.opponents.past.checkpoint=runs/league-1/checkpoints/step-1"
    resume = ["--resume", "runs/league-1", "--set", past]
    assert main([*resume, "--set", "max_steps=2"]) == 0
    traces = RunFolder(Path("runs/league-1")).step_traces(2)
    assert {trace.task.info["opponent"] for trace in traces} == {"random", "past"}


def test_the_shipped_settings_are_read_and_play_both_sides(make_trainer: Any) -> None:
    shipped, _ = load_config(CONFIG)
    [env] = shipped.env
    trainer: RLTrainer = make_trainer(
        env={"id": env.id, "args": env.args | {"num_train": 96}},
        **QUICK,
        max_steps=1,
        rollouts_per_example=8,
        max_tokens=shipped.args.max_tokens,
        max_prompt_len=shipped.args.max_prompt_len,
        max_seq_len=shipped.args.max_seq_len,
        use_lora=shipped.args.use_lora,
    )
    trainer.train()
    traces = [*trainer.folder.step_traces(1)]
    assert {role.player for trace in traces for role in trace.roles.values()} == {"policy"}
    line = json.loads((trainer.folder.path / "metrics.jsonl").read_text().splitlines()[-1])
    rewards = line["roles/first/reward_mean"], line["roles/second/reward_mean"]
    assert sum(rewards) == pytest.approx(1.0)


def test_both_players_of_a_textarena_game_are_trained(make_trainer: Any) -> None:
    pytest.importorskip("textarena")
    args = {"opponent": "policy", "max_turns": 6, "num_train": 4}
    env = {"id": "textarena:TicTacToe-v0", "args": args}
    room = {"max_seq_len": 900, "max_prompt_len": 500}
    trainer: RLTrainer = make_trainer(
        env=env, batch_size=8, rollouts_per_example=4, max_steps=1, **room
    )
    trainer.train()
    traces = [*trainer.folder.step_traces(1)]
    assert len(traces) == 8
    for trace in traces:
        assert all(role.trained for role in trace.roles.values())
        assert_only_the_trained_carry_loss(trace)
