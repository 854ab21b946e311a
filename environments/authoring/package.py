"""A new environment's package, made from templates."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from string import Template

from vf.environments.authoring.names import Names
from vf.runtime.errors import ConfigError

_CONTAINERS = """
It runs code in sandboxes: containers where an engine answers, and otherwise bubblewrap's, of Linux
itself. `vf-rl sandbox doctor` says which this machine has and what they lack, and
`vf-rl sandbox build` builds the image of containers; without any, the tests that need one are
skipped.
"""

_PRIME_RL = """
## In prime-rl

verifiers, and prime-rl with it, load the environment by its name where this package is installed
together with vf-rl:

```toml
[[orchestrator.train.source]]
name = "$id"
env.taskset.id = "$id"
# env.taskset.args.NAME = ...   arguments of the environment

[[orchestrator.eval.source]]
name = "$id-held-out"
env.taskset.id = "$id"
env.taskset.split = "eval"
```

The page "prime-rl" of vf-rl's documentation says what else goes into such a file.
"""


@dataclass(frozen=True, slots=True)
class Kind:
    """What is written for a combination of options.

    Attributes:
        template: Name of the template of the environment; with ``_test``, of its tests.
        about: What the environment asks, in one line.
        max_prompt_len: Tokens that the first prompt may have with the tiny model.
        max_seq_len: The same for one context.
        validate_tasks: How many tasks its test validates: few where each takes containers.
        requires: What the package needs.
        target: What makes the environment; its class by default.
    """

    template: str
    about: str
    max_prompt_len: int
    max_seq_len: int
    validate_tasks: int
    requires: tuple[str, ...] = ("vf-rl",)
    target: str = ""


SANDBOXED = ("vf-rl[sandbox]",)
# By whether there are tools, and whether there is a sandbox.
KINDS = {
    (False, False): Kind("plain", "Add two numbers.", 128, 256, 8),
    (True, False): Kind("tools", "Say what a basket costs, asking for prices.", 384, 768, 8),
    (False, True): Kind(
        "sandbox", "Write a small function, tested in a sandbox.", 128, 256, 2, SANDBOXED
    ),
    (True, True): Kind(
        "tools_sandbox", "Work out a number of data with Python.", 512, 1024, 2, SANDBOXED
    ),
}
AGENTS = Kind("agents", "Two agents add up what each of them knows.", 128, 256, 8)
AGENT = Kind(
    "agent",
    "Say what a basket costs, with an agent's own loop.",
    max_prompt_len=384,
    max_seq_len=768,
    validate_tasks=4,
    requires=("vf-rl", "openai"),
    target="environment",
)


def package_files(names: Names, kind: Kind, *, prime_rl: bool = False) -> Iterator[tuple[str, str]]:
    """Yield the path within the package's folder, and the text, of every file.

    Args:
        names: The names in the package.
        kind: The kind of environment.
        prime_rl: Whether verifiers and prime-rl load it by its id.
    """
    values = {
        "id": names.id,
        "package": names.package,
        "cls": names.cls,
        "about": kind.about,
        "target": kind.target or names.cls,
        "requires": ", ".join(f'"{requirement}"' for requirement in kind.requires),
        "needs": _CONTAINERS if kind.requires == SANDBOXED else "",
        "prime_rl": Template(_PRIME_RL).substitute(id=names.id) if prime_rl else "",
        "test_requires": ', "vf-rl[verifiers]"' if prime_rl else "",
        "max_prompt_len": str(kind.max_prompt_len),
        "max_seq_len": str(kind.max_seq_len),
        "validate_tasks": str(kind.validate_tasks),
    }
    templates = files("vf.environments.authoring") / "templates"
    # Gymnasium's environments have one agent.
    for_gymnasium = {} if kind is AGENTS else {"tests/test_gymnasium.py": "test_gymnasium.py"}
    for_prime_rl = {"tests/test_prime_rl.py": "prime_rl_test.py"} if prime_rl else {}
    for path, template in {
        f"{names.package}/environment.py": f"{kind.template}.py",
        f"{names.package}/__init__.py": "init_prime_rl.py" if prime_rl else "init.py",
        f"tests/test_{names.package}.py": f"{kind.template}_test.py",
        "tests/test_checks.py": "test_checks.py",
        **for_gymnasium,
        "tests/conftest.py": "conftest.py",
        **for_prime_rl,
        f"{names.id}.toml": "run.toml",
        "README.md": "README.md",
        "pyproject.toml": "pyproject.toml",
        ".gitignore": "gitignore",
    }.items():
        text = (templates / f"{template}.txt").read_text(encoding="utf-8")
        yield path, Template(text).substitute(values).rstrip("\n") + "\n"


def write_package(
    folder: Path,
    names: Names,
    *,
    tools: bool = False,
    sandbox: bool = False,
    agent: bool = False,
    agents: bool = False,
    prime_rl: bool = False,
) -> Iterator[Path]:
    """Write the package, and yield each file when it is there.

    Args:
        folder: The folder to create; it must not exist.
        names: The names in the package.
        tools: Whether the model has tools.
        sandbox: Whether code runs in a sandbox: the model's answer, or with ``tools``, what it
            tries on its way.
        agent: Whether it is an agent, with a loop and tools of its own.
        agents: Whether several agents act in an episode.
        prime_rl: Whether verifiers and prime-rl load it by its id.

    Raises:
        ConfigError: If options exclude one another, the folder exists, or its parent folder
            does not.
        OSError: If a file cannot be written.
    """
    if agent and (tools or sandbox or prime_rl):
        raise ConfigError(
            "--agent writes an agent with tools of its own, for vf-rl; leave out --tools, "
            "--sandbox and --prime-rl"
        )
    if agents and (agent or tools or sandbox or prime_rl):
        raise ConfigError(
            "--agents writes an environment with several roles, for vf-rl; leave out --agent, "
            "--tools, --sandbox and --prime-rl"
        )
    kind = AGENTS if agents else AGENT if agent else KINDS[tools, sandbox]
    if folder.exists() or folder.is_symlink():
        raise ConfigError(f"{folder} exists, and nothing is overwritten; take another name")
    if not folder.parent.is_dir():
        raise ConfigError(f"there is no folder {folder.parent} to write {folder.name} into")
    for name, text in package_files(names, kind, prime_rl=prime_rl):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        yield path
