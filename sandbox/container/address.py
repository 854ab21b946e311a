"""The address of a container engine: its URL, and the certificates for it."""

from __future__ import annotations

import os
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, urlsplit

LOCAL = "unix:///var/run/docker.sock"
ENGINE_SOCKET = "/var/run/docker.sock"
FORMS = "unix:///PATH, tcp://HOST:PORT, https://HOST:PORT or ssh://[USER@]HOST[:PORT][/SOCKET]"
FILES = ("ca.pem", "cert.pem", "key.pem")


@dataclass(frozen=True, slots=True)
class Address:
    """The address of an engine.

    Attributes:
        url: ``unix:///PATH``; ``tcp://HOST:PORT``, without encryption unless there are
            certificates; ``https://HOST:PORT``; or ``ssh://[USER@]HOST[:PORT][/SOCKET]``, where the
            path is the engine's socket there.
        certs: The folder with ``ca.pem``, ``cert.pem`` and ``key.pem``, as in
            ``DOCKER_CERT_PATH``. The engine's certificate is always verified: by ``ca.pem``, or
            without such a file by the authorities that requests trusts.

    Raises:
        ValueError: If it is not such a URL, or certificates come with another scheme.
    """

    url: str
    certs: Path | None = None

    def __post_init__(self) -> None:
        """Check the URL, and expand the folder's name."""
        if self.url.startswith("npipe:"):
            raise ValueError(
                f"{self.url!r} is a named pipe, whose streams cannot be held open: run in WSL, or "
                "let the engine listen on TCP"
            )
        parts = self.parts
        good = {
            "unix": bool(self.path),
            "tcp": bool(parts.hostname) and self.port is not None,
            "http": bool(parts.hostname) and self.port is not None,
            "https": bool(parts.hostname) and self.port is not None,
            "ssh": bool(parts.hostname) and not str(parts.hostname).startswith("-"),
        }
        if not good.get(parts.scheme) or parts.password or parts.query or parts.fragment:
            raise ValueError(f"{self.url!r} is no address of an engine: it must be {FORMS}")
        if self.certs is not None:
            object.__setattr__(self, "certs", Path(self.certs).expanduser())
            if parts.scheme not in ("tcp", "https"):
                raise ValueError(f"{self.url!r} takes no certificates: only tcp and https do")

    def __str__(self) -> str:
        """Return the URL."""
        return self.url

    @classmethod
    def from_environment(cls) -> Address:
        """Read ``DOCKER_HOST``, ``DOCKER_TLS_VERIFY`` and ``DOCKER_CERT_PATH``.

        Raises:
            ValueError: If ``DOCKER_HOST`` is not an address.
        """
        url, certs = os.environ.get("DOCKER_HOST") or LOCAL, os.environ.get("DOCKER_CERT_PATH")
        secure = bool(certs or os.environ.get("DOCKER_TLS_VERIFY"))
        try:
            address = cls(url)
            if address.parts.scheme in ("tcp", "https") and secure:
                address = cls(url, Path(certs or "~/.docker"))
        except ValueError as error:
            raise ValueError(f"DOCKER_HOST: {error}") from None
        return address

    @property
    def parts(self) -> SplitResult:
        """The components of the URL."""
        return urlsplit(self.url)

    @property
    def path(self) -> str:
        """The path of the engine's socket: on this machine, or for ssh on the other."""
        parts = self.parts
        if parts.scheme == "ssh":
            return parts.path.rstrip("/") or ENGINE_SOCKET
        return f"{parts.netloc}{parts.path}"

    @property
    def port(self) -> int | None:
        """The port; None where the URL has none."""
        try:
            return self.parts.port
        except ValueError:
            raise ValueError(f"{self.url!r} has no valid port") from None

    @property
    def encrypted(self) -> bool:
        """Whether the connection uses TLS."""
        return self.parts.scheme == "https" or self.certs is not None

    def context(self) -> ssl.SSLContext | None:
        """Return the TLS context of a connection; None without encryption.

        Raises:
            OSError: If a certificate cannot be read.
        """
        if not self.encrypted:
            return None
        import certifi

        authorities, own = self._certificates()
        context = ssl.create_default_context(cafile=authorities or certifi.where())
        if own:
            context.load_cert_chain(*own)
        return context

    def client_settings(self) -> dict[str, Any]:
        """Return the arguments ``base_url`` and ``tls`` of the SDK's client.

        Raises:
            docker.errors.TLSParameterError: If a certificate is missing.
        """
        if not self.encrypted:
            return {"base_url": self.url}
        from docker.tls import TLSConfig

        authorities, own = self._certificates()
        return {
            "base_url": self.url,
            "tls": TLSConfig(client_cert=own, ca_cert=authorities, verify=True),
        }

    def _certificates(self) -> tuple[str | None, tuple[str, str] | None]:
        """Return the authorities' file, and the client's certificate and key; None: there is none.

        Raises:
            FileNotFoundError: If the folder has neither, or a certificate without its key.
        """
        if self.certs is None:
            return None, None
        authorities, certificate, key = (self.certs / name for name in FILES)
        present = [path for path in (authorities, certificate, key) if path.is_file()]
        if not present or (certificate in present) != (key in present):
            raise FileNotFoundError(
                f"{self.certs} needs {', '.join(FILES)} for the engine at {self.url}: it has "
                f"{', '.join(path.name for path in present) or 'none of them'}"
            )
        own = (str(certificate), str(key)) if certificate in present else None
        return (str(authorities) if authorities in present else None), own
