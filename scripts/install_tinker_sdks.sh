#!/usr/bin/env bash
# Installs the two SDKs of the Tinker API that are tested against, each in an environment of its
# own in the folder that is named: they need different versions of one package. What .venv has,
# such as torch and transformers, they share with it. `make tinker-sdks` runs it.
set -euo pipefail
folder=$1
shared=$(.venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
while read -r name package; do
    .venv/bin/python -m venv "$folder/$name"
    own=$("$folder/$name/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
    echo "$shared" >"$own/shared.pth"
    "$folder/$name/bin/python" -m pip install --quiet --no-compile "$package"
done <<'SDKS'
tinker tinker==0.38.0
mint mindlab-toolkit==0.2.0
SDKS
