#!/usr/bin/env bash
# Installs the two SDKs of the Tinker API that are tested against, and tinker-cookbook, each in an
# environment of its own in the folder that is named: they need different versions of one package.
# What .venv has, such as torch and transformers, they share with it. `make tinker-sdks` runs it.
set -euo pipefail
folder=$1
shared=$(.venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
while read -r name packages; do
    .venv/bin/python -m venv "$folder/$name"
    own=$("$folder/$name/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
    echo "$shared" >"$own/shared.pth"
    "$folder/$name/bin/python" -m pip install --quiet --no-compile $packages
done <<'SDKS'
tinker tinker==0.38.0
mint mindlab-toolkit==0.2.0
cookbook tinker==0.38.0 anyio blobfile chz cloudpickle pillow pyrage pylatexenc termcolor tiktoken tqdm
SDKS
# By itself: it asks for a version of tml-renderers that is not on PyPI, and runs with the last one.
"$folder/cookbook/bin/python" -m pip install --quiet --no-compile --no-deps \
    tinker-cookbook==0.6.1 tml-renderers==0.2.1
