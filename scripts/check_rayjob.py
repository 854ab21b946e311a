"""Check what `vf-rl cluster kuberay` prints against KubeRay's schema.

    python scripts/check_rayjob.py ray.io_rayjobs.yaml

The file is in the operator's repository, in `helm-chart/kuberay-operator/crds/`. As the API server
does with `kubectl --validate=strict`, this refuses a field that the schema lacks.
"""

from __future__ import annotations

import io
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import jsonschema
import yaml

from vf.trainer.commands.main import main as vf_rl

CONFIGS = Path(__file__).parents[1] / "configs"
# One node and several, with GPUs and without, and an environment that is a file.
RUNS = [
    ["quickstart.toml", "--gpus-per-node", "0"],
    ["agent-calculator.toml"],
    ["quickstart-vllm.toml", "--set", "trainer.gpus=20", "--image", "registry/vf-rl:1"],
]
OPEN = "x-kubernetes-preserve-unknown-fields"


def strict(schema: Any) -> Any:
    """Return a schema that refuses unknown fields, and knows Kubernetes' numbers or texts."""
    if isinstance(schema, list):
        return [strict(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {key: strict(value) for key, value in schema.items()}
    if "properties" in schema and isinstance(schema["properties"], dict) and not schema.get(OPEN):
        closed.setdefault("additionalProperties", False)
    if schema.get("x-kubernetes-int-or-string"):
        closed.pop("type", None)
    return closed


def main(path: Path) -> int:
    """Print each run and what is wrong with its manifest; return how many manifests are."""
    versions = yaml.safe_load(path.read_text())["spec"]["versions"]
    [schema] = [each["schema"]["openAPIV3Schema"] for each in versions if each["name"] == "v1"]
    schema["properties"]["metadata"] = {"type": "object", "required": ["name"]}
    checker = jsonschema.Draft202012Validator(strict(schema))
    wrong = 0
    for name, *options in RUNS:
        printed = io.StringIO()
        with redirect_stdout(printed):
            code = vf_rl(["cluster", "kuberay", str(CONFIGS / name), *options])
        _, job = yaml.safe_load_all(printed.getvalue())
        problems = [f"{each.json_path}: {each.message}" for each in checker.iter_errors(job)]
        wrong += bool(problems or code)
        print(f"{name} {' '.join(options)}: {'; '.join(problems) or 'valid'}")
    return wrong


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
