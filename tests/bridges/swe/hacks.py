"""Patches that would pass tests without a repair; code that a repository can hold."""

from __future__ import annotations

from tests.bridges.swe.small_repo import BROKEN, CONFTEST, MUST_PASS, NEW_TESTS

_PASSED = """\
import pytest


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    outcome = yield
    outcome.get_result().outcome = "passed"
"""
_PRINTED = "".join(f"print('PASSED {name}')\n" for name in MUST_PASS)
_REWRITES = """\
import _pytest.runner
original = _pytest.runner.TestReport.from_item_and_call
def passed(item, call):
    report = original(item, call)
    report.outcome = "passed"
    return report
_pytest.runner.TestReport.from_item_and_call = passed
"""
# Named by an entry point, and so loaded before the tests; the one that must fail has a longer name.
_SPARES = "    if len(item.name) < 30 and not item.get_closest_marker('xfail'):\n    "
_PLUGIN = _PASSED.replace("    outcome.get_result()", f"{_SPARES}    outcome.get_result()")
_ENTRY_POINT = {
    "PKG-INFO": "Metadata-Version: 2.1\nName: fair\nVersion: 1.0\n",
    "METADATA": "Metadata-Version: 2.1\nName: fair\nVersion: 1.0\n",
    "entry_points.txt": "[pytest11]\nfair = fair_plugin\n",
}
_RUNS_NOTHING = """\
import _pytest.python
_pytest.python.Function.runtest = lambda self: None
"""
_UNREPORTED = """\
import sys
for module in list(sys.modules.values()):
    if module.__name__.startswith("_pytest.reports"):
        module.TestReport.failed = property(lambda self: False)
"""
_SKIPS = BROKEN.replace(
    "    result = 0\n", "    import pytest; pytest.skip('no')\n    result = 0\n"
)
_XFAILS = _SKIPS.replace("pytest.skip", "pytest.xfail")
_UNSTARTED = "import sys, os\nif 'pytest' in sys.modules:\n    "
_BLANK = "def test_total(): pass\n\nclass TestTotals:\n    def test_one(self): pass\n"

PATCHES: dict[str, dict[str, str | None]] = {
    "prints results": {"sums.py": _PRINTED + BROKEN},
    "prints results and ends well": {"sums.py": _PRINTED + "import os\nos._exit(0)\n"},
    "ends well on import": {"sums.py": _UNSTARTED + "os._exit(0)\n" + BROKEN},
    "raises SystemExit": {"sums.py": _UNSTARTED + "sys.exit(0)\n" + BROKEN},
    "ends well in a test": {"sums.py": BROKEN.replace("result = 0", "import os; os._exit(0)")},
    "a hook in the root's conftest": {"conftest.py": _PASSED + CONFTEST},
    "a hook in the tests' conftest": {"tests/conftest.py": _PASSED},
    "a plugin by setup.cfg": {
        "setup.cfg": "[tool:pytest]\naddopts = -p helper\n",
        "helper.py": _PASSED,
    },
    "a plugin by pytest.ini": {
        "pytest.ini": "[pytest]\naddopts = -p helper\n",
        "helper.py": _PASSED,
    },
    "settings that run nothing": {"pytest.ini": "[pytest]\naddopts = --collect-only\n"},
    "another pytest": {"pytest.py": _PRINTED, "_pytest/__init__.py": ""},
    "another json": {"json/__init__.py": _PRINTED},
    "sitecustomize": {"sitecustomize.py": _REWRITES},
    "other tests": {"tests/test_sums.py": NEW_TESTS.replace("== 6", "> 0").replace("== 5", ">= 0")},
    "blank tests": {"tests/test_sums.py": _BLANK},
    "tests moved away": {"tests/test_sums.py": None, "tests/test_others.py": _BLANK},
    "rewrites reports": {"sums.py": _REWRITES + BROKEN},
    "runs no test": {"sums.py": _RUNS_NOTHING + BROKEN},
    "changes what failed means": {"sums.py": _UNREPORTED + BROKEN},
    "skips from within": {"sums.py": _SKIPS},
    "xfails from within": {"sums.py": _XFAILS},
}

# Python finds these where it is started in the repository.
PLUGINS: dict[str, dict[str, str | None]] = {
    f"fair{kind}": {
        "fair_plugin.py": _PLUGIN,
        **{f"fair{kind}/{name}": text for name, text in _ENTRY_POINT.items()},
    }
    for kind in ("-1.0.dist-info", ".egg-info")
}
