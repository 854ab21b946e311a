"""No pickle is loaded but what this library's own processes send one another."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

# Between processes that this library has started, over pipes, or connections whose key both know.
OWN_PROCESSES = {
    "runtime/async_worker.py",
    "runtime/peers.py",
    "runtime/process_pool.py",
    "runtime/process_worker.py",
    "sandbox/supervisor.py",  # its own code, from who starts it
}
# A subclass that finds only an index's own classes.
RESTRICTED = {"trainer/learning/sharding/safe_unpickling.py": "pickle.Unpickler"}
NEVER = {
    *(f"{module}.{name}" for module in ("pickle", "marshal", "dill", "cloudpickle", "joblib")
      for name in ("load", "loads", "Unpickler")),
    "shelve.open",
    "pandas.read_pickle",
    "yaml.unsafe_load",
    "yaml.full_load",
}  # fmt: skip
ONLY_WITH = {"torch.load": ("weights_only", True), "np.load": ("allow_pickle", False)}


MODULES = re.compile("|".join({name.partition(".")[0] for name in (*NEVER, *ONLY_WITH)}))


def pickles(nodes: list[ast.AST]) -> Iterator[str]:
    """Yield what loads a pickle, or names what does."""
    for node in nodes:
        if isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{name.name}" for name in node.names if node.level == 0)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            yield f"{node.value.id}.{node.attr}"


def loaded(source: str) -> list[str]:
    """Return which loads of pickles are in a source."""
    if not MODULES.search(source):
        return []
    nodes = [*ast.walk(ast.parse(source))]
    found = [name for name in pickles(nodes) if name in NEVER]
    for node in nodes:
        if isinstance(node, ast.Call) and (name := ast.unparse(node.func)) in ONLY_WITH:
            argument, value = ONLY_WITH[name]
            given = {word.arg: word.value for word in node.keywords}.get(argument)
            if not (isinstance(given, ast.Constant) and given.value is value):
                found.append(name)
    return found


def test_a_load_of_a_pickle_is_found() -> None:
    assert loaded("import pickle\npickle.load(file)") == ["pickle.load"]
    assert loaded("from pickle import loads as read") == ["pickle.loads"]
    assert loaded("torch.load(path)") == loaded("torch.load(path, weights_only=no)")
    assert loaded("torch.load(path, weights_only=True)") == []
    assert loaded("np.load(path)") == ["np.load"]


def test_no_file_is_unpickled() -> None:
    rooms = [link.name for link in (ROOT / "vf").iterdir() if link.is_symlink()]
    found = {
        f"{path.relative_to(ROOT)}: {name}"
        for room in rooms
        for path in (ROOT / room).rglob("*.py")
        if str(path.relative_to(ROOT)) not in OWN_PROCESSES
        for name in loaded(path.read_text())
        if RESTRICTED.get(str(path.relative_to(ROOT))) != name
    }
    assert found == set()
