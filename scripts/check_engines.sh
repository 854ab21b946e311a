#!/usr/bin/env bash
# Holds containers on Podman to the contract of a sandbox, and those on gVisor (runsc) to what of it
# Debian's version can do. Each runs on an engine with files of its own: Podman's service, and a dockerd
# in a network namespace that knows the runtime. Installs Debian's packages where they are missing.
# Needs root and a Docker engine with the default image (`vf-rl sandbox build`).
set -euo pipefail
cd "$(dirname "$0")/.."

VF_RL=${VF_RL:-.venv/bin/vf-rl}
folder=$(mktemp -d -t vf-engines-XXXXXX)
started=()

die() {
    echo "check_engines: $*" >&2
    tail -n 20 "$folder"/*.log >&2 || true
    exit 1
}

finish() {
    for pid in "${started[@]}"; do
        kill "$pid" 2>/dev/null || true
        wait "$pid" 2>/dev/null || true
    done
    awk -v at="$folder/" 'index($2, at) == 1 { print $2 }' /proc/mounts | sort -r |
        while read -r place; do umount -l "$place" || true; done
    rm -rf "$folder"
}
trap finish EXIT

[[ $(id -u) == 0 ]] || die "needs root"
missing=()
command -v podman >/dev/null || missing+=(podman)
command -v runsc >/dev/null || missing+=(runsc)
if ((${#missing[@]})); then
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
fi

# Podman's choice of runtime, crun, refuses machines with both versions of cgroups; runc does not.
# Its monitor leaves a file where it starts when a container runs out of memory.
(
    cd "$folder"
    exec podman --runtime runc --cgroup-manager cgroupfs --root "$folder/podman" \
        --runroot "$folder/podman-run" --tmpdir "$folder/podman-tmp" \
        system service --time=0 "unix://$folder/podman.sock" >"$folder/podman.log" 2>&1
) &
started+=($!)

# runsc needs no virtualisation with ptrace, and takes cgroups of version 2 only.
cat >"$folder/runsc" <<'RUNSC'
#!/bin/sh
exec runsc --platform=ptrace --network=none --ignore-cgroups "$@"
RUNSC
chmod +x "$folder/runsc"
unshare --net dockerd --host "unix://$folder/docker.sock" --data-root "$folder/docker" \
    --exec-root "$folder/docker-run" --pidfile "$folder/docker.pid" \
    --bridge none --iptables=false --ip-masq=false --add-runtime "runsc=$folder/runsc" \
    >"$folder/docker.log" 2>&1 &
started+=($!)

for name in podman docker; do
    for _ in $(seq 100); do
        DOCKER_HOST="unix://$folder/$name.sock" docker version >/dev/null 2>&1 && break
        sleep 0.2
    done
    docker save vf-sandbox:latest | DOCKER_HOST="unix://$folder/$name.sock" docker load >/dev/null ||
        die "$name does not take the image"
done

check() {
    local name=$1
    shift
    "$VF_RL" sandbox self-check "$@" >"$folder/$name.check" 2>&1 ||
        { cat "$folder/$name.check"; die "$name does not keep the contract"; }
    echo "check_engines: $name: $(tail -n 1 "$folder/$name.check")"
}

DOCKER_HOST="unix://$folder/podman.sock" check podman

# Debian's runsc is of December 2022. Its kernel does not know PR_SET_CHILD_SUBREAPER, so what a
# program leaves behind in a session of its own cannot be found; lets no other user than the maker
# open a pipe by /proc/self/fd, so there is no persistent shell; and refuses the statx of `ls`.
groups=()
for group in $("$VF_RL" sandbox self-check --list); do
    case $group in
        background | bash | folders | timeouts | users) ;;
        *) groups+=(--group "$group") ;;
    esac
done
DOCKER_HOST="unix://$folder/docker.sock" check runsc --runtime runsc "${groups[@]}"
