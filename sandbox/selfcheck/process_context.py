"""The context of programs: variables, directories, users."""

from __future__ import annotations

import os

from vf.sandbox.contract import Sandbox
from vf.sandbox.selfcheck.check import Skipped, check, expect, refusal, require

ODD = "$HOME `id` 'a' \"b\" \\ = 世界\nsecond line"


@check("env", "variables arrive as they are")
async def variables(sandbox: Sandbox) -> None:
    env = {"VF_ODD": ODD, "VF_EMPTY": ""}
    result = await sandbox.exec(
        ["sh", "-c", 'printf "%s|%s" "$VF_ODD" "${VF_EMPTY-unset}"'], env=env
    )
    expect("the variables", ODD + "|", result.stdout)


@check("env", "they come on top of the sandbox's own, for one call")
async def on_top(sandbox: Sandbox) -> None:
    result = await sandbox.exec(
        'echo $VF_ONCE; test -n "$PATH" && test -n "$HOME"', env={"VF_ONCE": "1"}
    )
    expect("stdout and return code", ("1\n", 0), (result.stdout, result.returncode))
    result = await sandbox.exec("echo ${VF_ONCE-unset}")
    expect("the variable in the next call", "unset\n", result.stdout)


@check("env", "nothing of the client's own arrives")
async def secrets(sandbox: Sandbox) -> None:
    name = "VF_SELF_CHECK_SECRET"
    os.environ[name] = "secret"
    try:
        result = await sandbox.exec(["env"])
    finally:
        del os.environ[name]
    require("secret" not in result.stdout, f"no {name}", result.stdout)


@check("cwd", "unset, it is always the working directory")
async def unset(sandbox: Sandbox) -> None:
    first = (await sandbox.exec("pwd; cd /")).stdout
    require(first.startswith("/"), "an absolute path", first)
    expect("the directory of the next call", first, (await sandbox.exec("pwd")).stdout)


@check("cwd", "relative, it is below the working directory")
async def relative(sandbox: Sandbox) -> None:
    home = (await sandbox.exec(["pwd"])).stdout.strip()
    await sandbox.exec(["mkdir", "-p", "sub dir/inner"])
    result = await sandbox.exec(["pwd"], cwd="sub dir/inner")
    expect("the directory", f"{home.rstrip('/')}/sub dir/inner\n", result.stdout)


@check("cwd", "absolute, it is that one")
async def absolute(sandbox: Sandbox) -> None:
    result = await sandbox.exec('pwd; echo "$PWD"', cwd="/usr")
    expect("the directory, and $PWD", "/usr\n/usr\n", result.stdout)


@check("cwd", "a missing one is a result, not an error")
async def missing(sandbox: Sandbox) -> None:
    result = await sandbox.exec(["echo", "ran"], cwd="no/such/directory")
    expect("stdout", "", result.stdout)
    require(not result.ok and result.stderr, "a failure and its reason on stderr", result)


@check("users", "by default it is one and the same user everywhere")
async def default(sandbox: Sandbox) -> None:
    user = (await sandbox.exec(["id", "-u"])).stdout.strip()
    expect("the user of bash", user, (await sandbox.bash("id -u")).stdout.strip())
    python = await sandbox.python("import os; os.getuid()")
    expect("the user of python", user, python.stdout.strip())
    await sandbox.write_file("mine.txt", "x")
    owner = await sandbox.exec("stat -c %u mine.txt")
    expect("the owner of a written file", user, owner.stdout.strip())


@check("users", "that user may be named")
async def same(sandbox: Sandbox) -> None:
    user = (await sandbox.exec(["id", "-u"])).stdout.strip()
    expect("the user", user, (await sandbox.exec(["id", "-u"], user=user)).stdout.strip())


@check("users", "another one may be named, by name or number")
async def another(sandbox: Sandbox) -> None:
    number = (await sandbox.exec(["id", "-u", "nobody"])).stdout.strip()
    for user in ("nobody", number):
        try:
            result = await sandbox.exec(["id", "-u"], user=user, cwd="/")
        except ValueError as exc:
            raise Skipped(f"it runs nothing as another user: {exc}") from exc
        expect("the user", number, result.stdout.strip())


@check("users", "one that does not exist is ValueError")
async def unknown(sandbox: Sandbox) -> None:
    with refusal(ValueError, "an unknown user"):
        await sandbox.exec(["true"], user="no-such-user")
    expect("the return code afterwards", 0, (await sandbox.exec(["true"])).returncode)
