"""Making a repository: a package of a few modules, some of them broken, with tests that show it."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass

from vf.environments.bundled.repos.module import Bug, Module
from vf.environments.bundled.repos.numbers_kit import CACHE, SERIES, TABLES
from vf.environments.bundled.repos.office import CALENDAR, CONTACTS, LEDGER
from vf.environments.bundled.repos.shop import ORDERS, PRICES, STOCK
from vf.environments.environment import Split
from vf.rubrics.outcomes.grading import Case

# No module is in both splits: who has seen its right source could repair it from memory. Of all
# ways to hold three out, this one makes the splits most alike, by the kinds of bugs (all eleven are
# in both) and the length of the source.
MODULES: Mapping[Split, list[Module]] = {
    "train": [STOCK, PRICES, ORDERS, LEDGER, CONTACTS, SERIES],
    "eval": [CALENDAR, TABLES, CACHE],
}
MODULES_IN_A_REPO = 3
_FIRST = ["amber", "birch", "cedar", "delta", "ember", "fjord", "grove", "heron", "iris", "juniper"]
_SECOND = ["box", "desk", "kit", "lab", "line", "works"]


@dataclass(frozen=True, slots=True)
class Repo:
    """A repository with bugs.

    Attributes:
        package: The package's name; its source lies in a folder of that name.
        modules: What it consists of.
        bugs: The bugs put in, by module name.
    """

    package: str
    modules: list[Module]
    bugs: dict[str, Bug]

    def files(self) -> dict[str, str]:
        """Return the text of every file by its path."""
        files = {
            "README.md": self._readme(),
            f"{self.package}/__init__.py": f'"""The package {self.package}."""\n',
            "tests/__init__.py": "",
        }
        for module in self.modules:
            bug = self.bugs.get(module.name)
            source = module.source if bug is None else module.broken(bug)
            files[f"{self.package}/{module.name}.py"] = source
            files[f"tests/test_{module.name}.py"] = self._tests(module)
        return files

    def hidden_cases(self) -> list[Case]:
        """Return the tests that grade a repair."""
        return [
            Case(
                f"from {self.package}.{module.name} import *\n{case.code}", case.value, case.raises
            )
            for module in self.modules
            for case in module.hidden
        ]

    def _readme(self) -> str:
        parts = "\n".join(f"- `{self.package}/{m.name}.py`: {m.about}" for m in self.modules)
        return f"# {self.package}\n\n{parts}\n\nRun the tests with `python3 -m unittest`.\n"

    def _tests(self, module: Module) -> str:
        title = "".join(part.title() for part in module.name.split("_"))
        lines = [
            "import unittest",
            "",
            f"from {self.package}.{module.name} import *",
            "",
            "",
            f"class Test{title}(unittest.TestCase):",
        ]
        for number, case in enumerate(module.visible, 1):
            *before, last = case.code.split("\n")
            lines.append(f"    def test_{number}(self):")
            lines += [f"        {line}" for line in before]
            if case.raises:
                lines += [f"        with self.assertRaises({case.raises}):", f"            {last}"]
            else:
                lines.append(f"        self.assertEqual({last}, {case.value!r})")
            lines.append("")
        return "\n".join(lines)


def draw_repo(rng: random.Random, split: Split, bugs: int) -> Repo:
    """Draw a repository of a split's modules, so many of them broken."""
    modules = rng.sample(MODULES[split], MODULES_IN_A_REPO)
    broken = rng.sample(modules, bugs)
    return Repo(
        package=rng.choice(_FIRST) + rng.choice(_SECOND),
        modules=sorted(modules, key=lambda module: module.name),
        bugs={module.name: rng.choice(module.bugs) for module in broken},
    )
