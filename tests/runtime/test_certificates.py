"""Who is trusted to speak for which server."""

from __future__ import annotations

import ssl

import pytest

from vf.runtime.certificates import verify_for


@pytest.mark.parametrize("url", ["http://127.0.0.1:8000/v1", "http://localhost", "http://[::1]:1"])
def test_a_server_of_this_machine_needs_no_authority(url: str) -> None:
    context = verify_for(url)
    assert isinstance(context, ssl.SSLContext)
    assert (context.verify_mode, context.check_hostname) == (ssl.CERT_REQUIRED, True)
    assert context.cert_store_stats()["x509"] == 0


@pytest.mark.parametrize(
    "url",
    [None, "", "https://127.0.0.1", "http://10.0.0.5/v1", "https://api.openai.com", "http://[::1"],
)
def test_any_other_is_checked_as_always(url: str | None) -> None:
    assert verify_for(url) is True
