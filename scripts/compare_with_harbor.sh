#!/usr/bin/env bash
# Compare verdicts on task folders with those of Harbor's own package: the fifty of the tests and the
# bundled ones, with the reference solution and with doing nothing. Takes a quarter of an hour.
#
#   sudo scripts/compare_with_harbor.sh [FOLDER]      FOLDER: where to work; default /tmp/vf-harbor
#
# Harbor needs Python 3.12 or newer, and Docker's Compose. Both come from a Debian of its own, made by
# debootstrap, which shares this machine's engine. Left out are tasks that restrict the network: for
# them Harbor starts a container from an image of a registry (gogost/gost). The bundled tasks run
# without their restriction.
set -euo pipefail
cd "$(dirname "$0")/.."
work=${1:-/tmp/vf-harbor}
debian=$work/debian tasks=$work/tasks jobs=$work/jobs
python=${PYTHON:-.venv/bin/python}
version=0.25.0
certificates=/etc/ssl/certs/ca-certificates.crt

inside() { # run a command in the Debian, with the engine and the folders of tasks and jobs
    unshare -m bash -c '
        debian=$1 work=$2; shift 2
        mount --make-rprivate /
        for place in proc sys dev; do mount --rbind "/$place" "$debian/$place"; done
        for place in tasks jobs; do mount --bind "$work/$place" "$debian$work/$place"; done
        touch "$debian/run/docker.sock" && mount --bind /run/docker.sock "$debian/run/docker.sock"
        exec chroot "$debian" env -i PATH=/opt/harbor/bin:/usr/bin:/bin:/usr/sbin HOME=/root \
            TERM=dumb HARBOR_TELEMETRY=off PIP_CERT=/opt/certificates.crt "$@"
    ' inside "$debian" "$work" "$@"
}

mkdir -p "$work" "$jobs"
if [[ ! -e $debian/ready ]]; then
    debootstrap --variant=minbase \
        --include=python3,python3-venv,docker-cli,docker-compose,ca-certificates trixie "$debian"
    touch "$debian/ready"
fi
rm -rf "$tasks" "${jobs:?}"/*
mkdir -p "$tasks/older" "$debian$tasks" "$debian$jobs"
cp -L /etc/resolv.conf "$debian/etc/resolv.conf"
cp -L "$certificates" "$debian/opt/certificates.crt"
if [[ ! -x $debian/opt/harbor/bin/harbor ]]; then
    inside python3 -m venv /opt/harbor
    # Without its bound on certifi, which is a day's version, and may be newer than an index has.
    inside pip download -q --no-deps -d /opt "harbor==$version"
    inside sh -c "cd /opt && python3 -m zipfile -e harbor-$version-*.whl wheel && \
        sed -n '/extra ==/d; s/^Requires-Dist: //p' wheel/harbor-$version.dist-info/METADATA \
        | sed 's/^certifi.*/certifi/' > needs && pip install -q -r needs && \
        pip install -q --no-deps harbor-$version-*.whl"
fi

"$python" -m tests.bridges.harbor.conventions.make "$tasks/folders"
cp -r bridges/harbor/bundled/. "$tasks/folders"
find "$tasks/folders" -name __pycache__ -prune -exec rm -r {} +
rm -r "$tasks"/folders/network-*
sed -i '/^network_mode = "no-network"$/d' "$tasks"/folders/*/task.toml
ours=0
"$python" scripts/check_task_folders.py "$tasks/folders" --json "$work/ours.json" || ours=$?

mv "$tasks"/folders/older-* "$tasks/older"
inside python3 -c "
from pathlib import Path
from harbor.mappers.terminal_bench import TerminalBenchMapper
given = {'cpus': 1, 'memory_mb': 1024}
TerminalBenchMapper(given).map(Path('$tasks/older'), Path('$tasks/folders'))"
for agent in oracle nop; do
    inside harbor run -q -y -n 2 -p "$tasks/folders" -a "$agent" -o "$jobs" --job-name "$agent"
done

"$python" - "$work" <<'END'
import json
import sys
from pathlib import Path

work = Path(sys.argv[1])
ours, theirs = json.loads((work / "ours.json").read_text()), {}
for path in work.glob("jobs/*/*/result.json"):
    result = json.loads(path.read_text())
    rewards = (result.get("verifier_result") or {}).get("rewards") or {}
    task = theirs.setdefault(result["task_name"].rpartition("/")[2], {})
    task[path.parts[-3]] = rewards.get("reward")
different = [name for name in ours if ours[name] != theirs.get(name.rpartition("/")[2])]
for name in different:
    print(f"{name}: {ours[name]} here, {theirs.get(name)} there")
print(f"{len(ours) - len(different)} of {len(ours)} tasks have the same verdicts")
sys.exit(bool(different))
END
exit "$ours"
