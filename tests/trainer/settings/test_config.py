"""The TOML: what is understood, and what every mistake is answered with."""

from __future__ import annotations

import ast
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from tests.trainer.configs import configured
from vf.inference.settings import EmbeddedArgs, EmbeddedSettings, VllmSettings
from vf.runtime.errors import ConfigError
from vf.trainer.settings.cluster import ClusterConfig, RoleResources
from vf.trainer.settings.config import TrainerArgs, TrainerConfig
from vf.trainer.settings.environments import EnvConfig
from vf.trainer.settings.load_config import load_config, parse_config
from vf.trainer.settings.rollouts import RolloutsConfig
from vf.trainer.settings.write_config import to_toml

REPOSITORY = Path(__file__).parents[3]


def test_defaults_fit_together() -> None:
    assert configured().args == TrainerArgs()


BASE = {"model": "tiny", "env": {"id": "x"}}
TABLES: list[tuple[dict[str, Any], str]] = [
    ({"env": {"id": "x"}}, "model: missing"),
    ({"model": "tiny"}, "env: missing"),
    (BASE | {"env": {}}, "env.id: missing"),
    (BASE | {"env": {"id": 3}}, "env.id = 3"),
    (BASE | {"trainer": 5}, "trainer = 5: must be a table, [trainer]"),
    (BASE | {"trainr": {}}, "Did you mean 'trainer'"),
    (BASE | {"env": "x"}, """env: it is a table, not 'x': [env], and in it id = "x\""""),
    (BASE | {"env": {"id": "x", "arg": {}}}, "env.arg: unknown key. Did you mean 'args'"),
    (
        BASE | {"env": {"id": "x", "model": "tiny"}},
        "env.model: unknown key. It belongs at the top, be",
    ),
    (
        BASE | {"env": {"id": "x", "max_operand": 2}},
        "Arguments of its own belong in [env.args]",
    ),
    (BASE | {"trainer": {"max_steps": 2}}, "max_steps: unknown key. It belongs in [trainer.args]"),
    (BASE | {"trainer": {"max_step": 2}}, "Did you mean 'max_steps'? It belongs in [trainer.args]"),
    (
        BASE | {"inference": {"max_requests": 2}},
        "max_requests: unknown key. It belongs in [inference.",
    ),
    (BASE | {"inference": {"engine": "sglang"}}, "inference.engine = 'sglang'"),
    (BASE | {"rollouts": {"wokers": 2}}, "rollouts.wokers: unknown key. Did you mean 'workers'"),
    (BASE | {"rollouts": {"worker": 2}}, "Did you mean 'workers'? 'worker' belongs in [cluster]"),
    (
        BASE | {"rollouts": {"workers": "all"}},
        "'all' is neither a number of processes nor \"auto\"",
    ),
    (
        BASE | {"trainer": {"args": {"repetition_penalty": 1.1}}},
        "repetition_penalty: it changes the ",
    ),
]


@pytest.mark.parametrize(("raw", "words"), TABLES)
def test_a_wrong_table_is_named(raw: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError) as error:
        parse_config(raw)
    assert words in str(error.value)


MASK, CLIP_MAX = "importance_sampling_mode", "importance_sampling_clip_max"
TEACHER = {"teacher_model": "t"}
ARGS: list[tuple[dict[str, Any], str]] = [
    ({"batchsize": 8}, "trainer.args.batchsize: unknown key. Did you mean 'batch_size'"),
    ({"batch_size": "many"}, "trainer.args.batch_size = 'many'"),
    ({"temperature": 0}, "trainer.args.temperature = 0"),
    ({"batch_size": 20}, "batch_size = 20 is not a multiple of rollouts_per_example = 8; try"),
    ({"num_substeps": 3}, "num_substeps = 3 does not divide the 8 groups"),
    ({"max_prompt_len": 4096}, "max_prompt_len = 4096 leaves no room"),
    ({"micro_batch_tokens": "all"}, "'all' is neither a number of tokens nor 'auto'"),
    ({"micro_batch_tokens": 100}, "micro_batch_tokens = 100 is below max_seq_len"),
    ({"use_lora": False, "lora_rank": 4}, "lora_rank is set, but use_lora = false"),
    ({"use_lora": False, "load_in_4bit": True}, "load_in_4bit = true needs use_lora = true"),
    ({"optim": "adamw_4bit"}, "trainer.args.optim = 'adamw_4bit'"),
    ({"clip_high": 0.3}, "clip_high is set, but only loss_fn = 'ppo' or 'cispo' reads it"),
    ({"rollouts_per_example": 1}, "trainer.args.rollouts_per_example = 1"),
    ({"loss_fn": "gspo", "clip_low": 0.1}, "clip_low bounds a token's ratio, but loss_fn = 'gspo'"),
    ({"loss_fn": "ppo", "dro_beta": 0.1}, "dro_beta is set, but only loss_fn = 'dro' reads it"),
    ({"loss_fn": "custom"}, "loss_fn = 'custom' needs import_path"),
    ({"loss_fn": "gropo"}, "there is no loss 'gropo'. 'grpo' is these settings: loss_fn = "),
    ({"loss_fn": "dapoo"}, "there is no loss 'dapoo'. 'dapo' is these settings: loss_fn = "),
    ({"loss_fn": "pppo"}, "there is no loss 'pppo'. Did you mean 'ppo'"),
    ({"loss_fn": "gsp"}, "there is no loss 'gsp'. Did you mean 'gspo'?"),
    ({"loss_fn": "nonsense"}, "there is no loss 'nonsense'. Known: importance_sampling"),
    ({"fixed_length": 9}, "only loss_normalisation = 'fixed' reads it"),
    ({"kl_penalty_coef": 0.1, "use_lora": False}, "kl_penalty_coef = 0.1 without a reference"),
    ({MASK: "off", CLIP_MAX: 3.0}, f"{CLIP_MAX} is set, but {MASK} = 'off'"),
    (
        {MASK: "token_truncate", "importance_sampling_clip_min": 0.1},
        f"only {MASK} = 'token_mask' or 'sequence_mask' reads it",
    ),
    ({CLIP_MAX: 0.5}, f"trainer.args.{CLIP_MAX} = 0.5"),
    ({"reference_model": "tiny"}, "reference_model is set, but kl_penalty_coef = 0"),
    (
        {"kl_penalty_coef": 0.1, "reference_update_rate": 0.5},
        "reference_update_rate = 0.5 is set without reference_update_steps",
    ),
    ({"kl_penalty_coef": 0.1, "kl_discount_factor": 0.5}, "only kl_penalty_type = 'advantage'"),
    (
        {"kl_penalty_coef": 0.1, "reference_model": "x", "reference_update_steps": 2},
        "cannot become with use_lora = true",
    ),
    (
        {"kl_penalty_coef": 0.1, "kl_penalty_type": "advantage", "stream_minibatches": True},
        "kl_penalty_type = 'advantage' needs the mean over all of them",
    ),
    ({"teacher_coef": 0.5}, "teacher_coef is set without teacher_model"),
    ({"teacher_loss": "forward_kl"}, "teacher_loss is set without teacher_model"),
    (TEACHER | {"teacher_coef": 0.0}, "teacher_coef = 0.0: Input should be greater than 0"),
    (TEACHER | {"teacher_loss": "jsd"}, "teacher_loss = 'jsd': Input should be 'reverse_kl' or"),
    (TEACHER | {"teacher_top_k": 5}, "only teacher_loss = 'forward_kl' reads it"),
    (TEACHER | {"top_p": 0.9}, "top_p changes what is sampled"),
    (TEACHER | {"max_refill": 0.5}, "with teacher_reward_coef = 0 rewards give"),
    (
        TEACHER | {"teacher_base_url": "http://h/v1", "temperature": 0.9},
        "temperature = 0.9, but a teacher at teacher_base_url answers at temperature 1",
    ),
    ({"credit_discount": 0.9}, "only credit = 'turn' discounts"),
    ({"overlong_penalty": 0.5}, "overlong_penalty is set without overlong_buffer"),
    ({"overlong_buffer": 512}, "overlong_buffer = 512 leaves no turn free of cost"),
    ({"advantage": "max_rl", "credit": "turn"}, "divides by the mean reward"),
    ({"train_attn": False, "train_mlp": False}, "so nothing is trained; set at least one"),
    (
        {"train_attn": False, "lora_target_modules": ["q_proj"]},
        "lora_target_modules and train_attn both say what is adapted",
    ),
    ({"use_lora": False, "train_unembed": True}, "train_unembed is set, but use_lora = false"),
    ({"betas": [0.9]}, "trainer.args.betas = [0.9]"),
    ({"learning_rate": "fast"}, "learning_rate: 'fast' is neither a number above 0 nor 'auto'"),
    ({"learning_rate": 0}, "learning_rate: 0 is neither a number above 0 nor 'auto'"),
    ({"gradient_accumulation_steps": 4}, "gradient_accumulation_steps: here the whole of"),
    ({"groups_per_batch": 4, "batch_size": 64}, "means batch_size = 32 (4 groups of rollouts"),
    ({"run_name": "../up"}, "trainer.args.run_name = '../up'"),
    ({"group_size": 4, "rollouts_per_example": 8}, "are the same setting"),
]


@pytest.mark.parametrize(("args", "words"), ARGS)
def test_a_wrong_setting_is_named_with_its_fix(args: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError) as error:
        configured(args)
    assert words in str(error.value)


VLLM, RAY = {"engine": "vllm"}, {"backend": "ray"}
APART: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({"load_in_4bit": True}, {"inference": VLLM}, 'set inference.engine = "embedded", or load_in'),
    ({}, {"cluster": RAY, "trainer": {"gpus": [0, 2]}}, "say how many, trainer.gpus = 2"),
    ({}, {"cluster": RAY, "inference": VLLM | {"gpus": [1]}}, "inference.gpus_per_replica"),
    (
        {"max_steps_off_policy": 1},
        {"inference": VLLM | {"sleep": True}},
        "set trainer.args.max_steps_off_policy = 0",
    ),
    (
        {"stream_minibatches": True},
        {"inference": VLLM | {"sleep": True}},
        "stream_minibatches = true trains while it generates",
    ),
    *(
        ({}, {"trainer": {"gpus": gpus}}, f"trainer.gpus: {gpus!r} is neither a number of devices")
        for gpus in (0, -1, True, 1.5, "all", [], [0, 0], [-1], [True], ["0"])
    ),
]


@pytest.mark.parametrize(("args", "tables", "words"), APART)
def test_tables_that_contradict_each_other_are_named(
    args: dict[str, Any], tables: dict[str, Any], words: str
) -> None:
    with pytest.raises(ConfigError) as error:
        configured(args, **tables)
    assert words in str(error.value)


@pytest.mark.parametrize("name", ["GRPO", "Dr. GRPO", "dapo", "REINFORCE", "rloo", "bnpo", "MaxRL"])
def test_an_algorithm_is_answered_with_the_settings_that_it_is_here(name: str) -> None:
    with pytest.raises(ConfigError, match="is no loss by itself here") as error:
        configured({"loss_type": name})
    settings = re.findall(r'(\w+) = ("\w+"|\d+\.\d+)', str(error.value).partition("settings:")[2])
    assert len(settings) >= 2
    configured({key: ast.literal_eval(value) for key, value in settings})


def test_all_problems_are_listed_at_once() -> None:
    with pytest.raises(ConfigError) as error:
        configured({"batchsize": 8, "temperature": -1})
    assert len(str(error.value).splitlines()) == 2


def test_synonyms_are_understood_and_said() -> None:
    raw: dict[str, Any] = {
        "model": "tiny",
        "env": {"id": "x"},
        "trainer": {"args": {"num_generations": 4, "rank": 2, "per_device_train_batch_size": 3}},
    }
    config, notes = parse_config(raw)
    assert config.args.rollouts_per_example == 4
    assert config.args.lora_rank == 2
    assert config.args.micro_batch_size == 3
    assert len(notes) == 3
    assert "trainer.args.num_generations is called rollouts_per_example" in notes[0]


@pytest.mark.parametrize(
    ("args", "ours", "said"),
    [
        ({"beta": 0.1}, {"kl_penalty_coef": 0.1}, "beta is called kl_penalty_coef"),
        ({"advantage": "leave_one_out"}, {"advantage": "rloo"}, "is called 'rloo' here"),
        ({"adv_estimator": "grpo"}, {"advantage": "mean_std"}, "is called 'mean_std' here"),
        (
            {"groups_per_batch": 4, "group_size": 6},
            {"batch_size": 24},
            "batch_size = 24 rollouts (4 groups of rollouts_per_example = 6)",
        ),
        (
            {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 6},
            {"batch_size": 24, "micro_batch_size": 4},
            "batch_size = 24 rollouts (micro_batch_size = 4 × 6 passes × 1 devices)",
        ),
        ({"batch_size": 32, "gradient_accumulation_steps": 6}, {"batch_size": 32}, "was left out"),
        (
            {"rollout_is": "token", "rollout_is_threshold": 3.0},
            {"importance_sampling_mode": "token_truncate", "importance_sampling_clip_max": 3.0},
            "importance_sampling_mode = 'token' is called 'token_truncate' here",
        ),
        (
            {"vllm_importance_sampling_correction": True, "vllm_importance_sampling_cap": 3.0},
            {"importance_sampling_mode": "sequence_mask", "importance_sampling_clip_max": 3.0},
            "was understood as importance_sampling_mode = 'sequence_mask'",
        ),
        (
            {
                "vllm_importance_sampling_correction": False,
                "vllm_importance_sampling_mode": "token_mask",
                "vllm_importance_sampling_clip_max": 3.0,
            },
            {"importance_sampling_mode": "off"},
            "was understood as importance_sampling_mode = 'off'",
        ),
    ],
)
def test_names_that_people_bring_along(
    args: dict[str, Any], ours: dict[str, Any], said: str
) -> None:
    raw = {"model": "tiny", "env": {"id": "x"}, "trainer": {"args": args}}
    config, notes = parse_config(raw)
    assert {name: getattr(config.args, name) for name in ours} == ours
    assert said in notes[-1]


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "run.toml"
    path.write_text(text)
    return path


def test_overrides(tmp_path: Path) -> None:
    path = write(tmp_path, 'model = "tiny"\n[env]\nid = "calculator"\n')
    config, _ = load_config(
        path,
        ["max_steps=7", "env.args.max_operations=3", "model=other/model", "trainer.args.seed=5"],
    )
    assert (config.args.max_steps, config.args.seed, config.model) == (7, 5, "other/model")
    assert config.env[0].args == {"max_operations": 3}
    with pytest.raises(ConfigError, match="key=value"):
        load_config(path, ["max_steps"])
    with pytest.raises(ConfigError, match="'model' is not a table"):
        load_config(path, ["model.x=1"])


def test_a_file_that_is_missing_or_not_toml(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"there is no file .*missing\.toml"):
        load_config(tmp_path / "missing.toml")
    with pytest.raises(ConfigError, match=r"there is no file .*rum\.toml\. Did you mean"):
        load_config(write(tmp_path, "").with_name("rum.toml"))
    with pytest.raises(ConfigError, match="not valid TOML"):
        load_config(write(tmp_path, "model = "))
    with pytest.raises(ConfigError, match=r"settings of an evaluation, .*: vf-rl eval .*\.toml"):
        load_config(write(tmp_path, "[[environments]]\nid = 'x'\n[[models]]\nmodel = 'tiny'"))


def test_the_resolved_config_reads_back_as_itself(tmp_path: Path) -> None:
    raw = {
        "model": 'a "quoted" \\ path/ü',
        "env": {"id": "x", "args": {"flag": True, "list": [1, "two"], "nested": {"a b": 0.5}}},
        "trainer": {"args": {"lora_target_modules": ["q_proj"], "learning_rate": 1e-7}},
    }
    config, _ = parse_config(raw)
    assert load_config(write(tmp_path, to_toml(config)))[0] == config


def test_what_toml_has_no_less_than_json_is_written_as_it_was(tmp_path: Path) -> None:
    args = "since = 2024-01-02\nat = 2024-01-02T03:04:05+01:00\nhours = [03:04:05, 06:00:00]\n"
    path = write(tmp_path, f'model = "tiny"\n[env]\nid = "x"\n[env.args]\n{args}')
    config, _ = load_config(path)
    assert args in to_toml(config)
    made = config.model_copy(update={"env": [EnvConfig(id="x", args={"data": Path("a/b")})]})
    assert 'data = "a/b"' in to_toml(made)


@pytest.mark.parametrize("path", sorted((REPOSITORY / "configs").glob("*.toml")), ids=str)
def test_the_shipped_configs_are_valid(path: Path) -> None:
    assert parse_config(tomllib.loads(path.read_text()))[1] == []


def test_no_setting_is_dead() -> None:
    """Every field is read somewhere outside of the config models."""
    read = {
        node.attr
        for room in ("trainer", "inference")
        for path in (REPOSITORY / room).rglob("*.py")
        if path.name
        not in (
            *("cluster.py", "config.py", "rollouts.py", "settings.py"),
            *("environments.py", "loop_args.py", "loss_args.py", "shared.py"),
        )
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute)
    }
    models = (
        *(TrainerConfig, TrainerArgs, EmbeddedArgs, EmbeddedSettings, VllmSettings),
        *(ClusterConfig, RoleResources, RolloutsConfig, EnvConfig),
    )
    assert {name for model in models for name in model.model_fields} <= read


def test_the_file_of_an_environment_is_found_from_the_tomls_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    path = write(tmp_path, 'model = "tiny"\n[env]\nid = "envs/my_env.py:MyEnv"\n')
    config, _ = load_config(path)
    assert config.env[0].id == f"{tmp_path}/envs/my_env.py:MyEnv"
    config, _ = load_config(path, ["env.id=my_env.py"])  # as one types it, from here
    assert config.env[0].id == f"{here}/my_env.py"
    resumed = write(here, to_toml(config))
    monkeypatch.chdir(tmp_path)
    assert load_config(resumed)[0].env[0].id == f"{here}/my_env.py"
