#!/usr/bin/env bash
# Makes sure that a container engine answers: installs one and starts it where none does. For
# continuous integration and fresh machines; needs root and Debian's or Ubuntu's packages.
# Prints one line and exits 0 when the engine answers, 1 when it cannot be had.
set -euo pipefail

LOG=${DOCKERD_LOG:-/var/log/dockerd.log}

answers() { docker version --format '{{.Server.Version}}' >/dev/null 2>&1; }
die() {
    echo "start_docker: $*" >&2
    exit 1
}

install() {
    [[ $(id -u) == 0 ]] || die "not root, so these cannot be installed: $*"
    command -v apt-get >/dev/null || die "install these by hand: $*"
    echo "start_docker: installing $*"
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq "$@" >/dev/null
}

missing=()
if ! answers; then
    command -v dockerd >/dev/null || missing+=(docker.io)
    command -v iptables >/dev/null || missing+=(iptables)
fi
# Where no registry answers `vf-rl sandbox build` makes its image with these, which takes root.
if [[ $(id -u) == 0 ]] && command -v apt-get >/dev/null; then
    command -v debootstrap >/dev/null || missing+=(debootstrap)
    [[ -e /usr/share/keyrings/debian-archive-keyring.gpg ]] || missing+=(debian-archive-keyring)
fi
((${#missing[@]} == 0)) || install "${missing[@]}"
# Newer releases have the client in a package of its own.
command -v docker >/dev/null || install docker-cli

if ! answers; then
    [[ $(id -u) == 0 ]] || die "no engine answers this user, and only root can start one"
    # A pid file of an engine that was killed would keep the next from starting.
    pidfile=/var/run/docker.pid
    if [[ -f $pidfile && $(cat "/proc/$(<"$pidfile")/comm" 2>/dev/null) != dockerd ]]; then
        rm -f "$pidfile"
    fi
    setsid dockerd >>"$LOG" 2>&1 </dev/null &
    for _ in $(seq 120); do
        answers && break
        sleep 0.5
    done
    answers || die "dockerd does not answer; the end of $LOG:"$'\n'"$(tail -n 15 "$LOG")"
fi
echo "start_docker: Docker $(docker version --format '{{.Server.Version}}') answers"
