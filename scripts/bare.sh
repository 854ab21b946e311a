#!/usr/bin/env bash
# Runs a command as on a machine that has Python and a compiler, but no container engine, browser,
# terminal multiplexer, vLLM or SDK of the Tinker API:
#   scripts/bare.sh make test
# Their programs are hidden in a mount namespace of the command's own, which takes root.
set -euo pipefail

HIDDEN=(docker dockerd containerd podman runsc bwrap tmux busybox sshd debootstrap
    chromium chromium-browser google-chrome google-chrome-stable)

if [[ ${VF_BARE:-} != hidden ]]; then
    [[ $(id -u) == 0 ]] || { echo "bare: needs root, to hide programs from the command" >&2; exit 1; }
    VF_BARE=hidden exec unshare --mount "$0" "$@"
fi
unset VF_BARE VF_REQUIRE_ALL
for name in "${HIDDEN[@]}"; do
    for program in $(type -ap "$name" | xargs -r realpath | sort -u); do
        mount --bind /dev/null "$program" # it cannot be executed, so no search of PATH finds it
    done
done
export DOCKER_HOST=unix:///nonexistent.sock VF_VLLM_PYTHON=/nonexistent VF_TINKER_SDKS=/nonexistent
exec "$@"
