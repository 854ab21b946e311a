"""A Docker engine for a test alone, which may be stopped and killed, and ways to reach it."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.parts import REQUIRE_ALL, require
from tests.waiting import wait_until
from vf.sandbox.container.address import Address
from vf.sandbox.container.docker_engine import Engine, EngineProblem
from vf.sandbox.container.hardening import DEFAULT_IMAGE

# A listening socket of this network namespace's, as systemd would give it to a service.
WITH_SOCKET = 'export LISTEN_PID=$$ LISTEN_FDS=1; exec 3<&"$0"; exec "$@"'


class SecondEngine:
    """A dockerd in a network namespace, with a socket and files of its own.

    Args:
        arguments: More of dockerd's.
        certs: A folder with ``ca.pem``, ``server.pem`` and ``server-key.pem``: the engine then
            also listens on a port of 127.0.0.1, with TLS, for clients with a certificate.
    """

    def __init__(self, *arguments: str, certs: Path | None = None) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="vf-dockerd-"))
        self.socket = self.folder / "docker.sock"
        self.address = Address(f"unix://{self.socket}")
        self.process: subprocess.Popen[bytes] | None = None
        self._arguments, self._certs = arguments, certs
        self._listener = socket.create_server(("127.0.0.1", 0)) if certs else None
        self.start()

    @property
    def port(self) -> int:
        """The port with TLS."""
        assert self._listener is not None
        return int(self._listener.getsockname()[1])

    def start(self) -> None:
        """Start it and wait until it answers."""
        folder, prefix, more = self.folder, [], list(self._arguments)
        listener = self._listener.fileno() if self._listener else None
        if listener is not None:
            prefix = ["bash", "-c", WITH_SOCKET, str(listener)]
            more += ["--host", "fd://", "--tlsverify", f"--tlscacert={self._certs}/ca.pem"]
            more += [
                f"--tlscert={self._certs}/server.pem",
                f"--tlskey={self._certs}/server-key.pem",
            ]
        with (folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [
                    *prefix,
                    # In a network of its own: without a bridge it would remove docker0 from ours.
                    *("unshare", "--net", "dockerd"),
                    *("--host", str(self.address), "--data-root", f"{folder}/data"),
                    *("--exec-root", f"{folder}/exec", "--pidfile", f"{folder}/pid"),
                    *("--bridge", "none", "--iptables=false", "--ip-masq=false"),
                    *more,
                ],
                stdout=log,
                stderr=log,
                start_new_session=True,
                pass_fds=[] if listener is None else [listener],
            )
        wait_until(self._answers)

    def _answers(self) -> bool:
        assert self.process is not None
        if self.process.poll() is not None:
            assert not REQUIRE_ALL, self.said()
            pytest.skip(f"no second engine here: {self.said()}")
        with contextlib.suppress(EngineProblem):
            self.connect().close()
            return True
        return False

    def said(self) -> str:
        """Return the end of its log."""
        return (self.folder / "log").read_text("utf-8", "replace")[-1500:]

    def connect(self) -> Engine:
        """Connect to it."""
        return Engine.connect(self.address)

    def load(self, image: str = DEFAULT_IMAGE) -> None:
        """Copy an image from the machine's own engine."""
        with (
            contextlib.closing(Engine.connect()) as engine,
            contextlib.closing(self.connect()) as own,
        ):
            own.copy_image(image, engine)

    def stop(self) -> None:
        """Stop it, and wait until it is gone with its containerd."""
        assert self.process is not None
        self.process.terminate()
        self.process.wait(60)
        wait_until(lambda: not self._processes())

    def kill(self) -> None:
        """Kill it with its containerd and its containers, as a machine that loses power would."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()
        wait_until(self._kill)
        for line in reversed(Path("/proc/mounts").read_text().splitlines()):
            place = line.split()[1]
            if place.startswith(str(self.folder)):
                subprocess.run(["umount", "-l", place], check=False, capture_output=True)
        shutil.rmtree(self.folder / "exec", ignore_errors=True)  # /run is empty after a start
        (self.folder / "pid").unlink(missing_ok=True)

    def _processes(self) -> list[tuple[Path, str]]:
        """Return what belongs to it: where in /proc, and the command line."""
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                line = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                if str(self.folder) in line and folder.name != str(os.getpid()):
                    found.append((folder, line))
        return found

    def _kill(self) -> bool:
        """Kill what belongs to it, containers too; return whether there was nothing left."""
        left = self._processes()
        for folder, _ in left:
            with contextlib.suppress(OSError):
                for child in (folder / "task" / folder.name / "children").read_text().split():
                    os.kill(int(child), signal.SIGKILL)
                os.kill(int(folder.name), signal.SIGKILL)
        return not left

    def close(self) -> None:
        """Kill it with all that it had."""
        self.kill()
        if self._listener:
            self._listener.close()
        shutil.rmtree(self.folder, ignore_errors=True)


def make_certificates(folder: Path) -> None:
    """Make an authority, and certificates for an engine on 127.0.0.1 and for its client."""

    def openssl(*words: str) -> None:
        subprocess.run(["openssl", *words], cwd=folder, check=True, capture_output=True)

    ends = ("-days", "2", "-nodes", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256")
    openssl("req", "-x509", *ends, "-subj", "/CN=ca", "-keyout", "ca-key.pem", "-out", "ca.pem")
    names = {"server": ("server.pem", "server-key.pem"), "client": ("cert.pem", "key.pem")}
    for use, (certificate, key) in names.items():
        Path(folder, "ext").write_text(
            f"extendedKeyUsage={use}Auth\nsubjectAltName=IP:127.0.0.1,DNS:localhost\n"
        )
        asked = ("-keyout", key, "-out", "request.pem")
        openssl("req", *ends[2:], "-subj", f"/CN={use}", *asked)
        signed = ("-CA", "ca.pem", "-CAkey", "ca-key.pem", "-CAcreateserial", "-days", "2")
        openssl(
            *("x509", "-req", "-in", "request.pem", *signed, "-extfile", "ext"),
            *("-out", certificate),
        )


@contextlib.contextmanager
def ssh_server(folder: Path) -> Iterator[tuple[int, subprocess.Popen[bytes]]]:
    """Run an sshd on a port of 127.0.0.1, and write an ``ssh`` that can log in there.

    Yields:
        The port, and the server. ``folder / "bin"`` has the client, for PATH.
    """
    require("sshd")
    sshd = str(shutil.which("sshd"))
    for name in ("host", "user"):
        subprocess.run(
            ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)], check=True
        )
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    (folder / "sshd_config").write_text(
        f"ListenAddress 127.0.0.1:{port}\nHostKey {folder}/host\nPidFile {folder}/sshd.pid\n"
        f"AuthorizedKeysFile {folder}/user.pub\nStrictModes no\nUsePAM no\n"
        "PermitRootLogin prohibit-password\nPasswordAuthentication no\n"
    )
    key = (folder / "host.pub").read_text()
    (folder / "known_hosts").write_text(f"[127.0.0.1]:{port} {key}")
    (folder / "ssh_config").write_text(
        f"IdentityFile {folder}/user\nIdentitiesOnly yes\nUserKnownHostsFile {folder}/known_hosts\n"
    )
    (folder / "bin").mkdir()
    client = folder / "bin" / "ssh"
    client.write_text(f'#!/bin/sh\nexec {shutil.which("ssh")} -F {folder}/ssh_config "$@"\n')
    client.chmod(0o755)
    Path("/run/sshd").mkdir(exist_ok=True)
    with (folder / "sshd.log").open("wb") as log:
        server = subprocess.Popen([sshd, "-D", "-e", "-f", f"{folder}/sshd_config"], stderr=log)
    try:
        wait_until(lambda: not socket.socket().connect_ex(("127.0.0.1", port)))
        yield port, server
    finally:
        server.kill()
        server.wait()
