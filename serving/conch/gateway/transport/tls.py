"""TLS at the gateway's own socket: the plan's certificate and key as a context, or what is wrong with them."""

from __future__ import annotations

import ssl
from pathlib import Path

from conch_build.errors import SetupError
from conch_build.plan_admission import Tls

_KEY = "serving.gateway.tls"


def context_of(tls: Tls) -> ssl.SSLContext | None:
    """None without a certificate. Raises SetupError, which names the plan's key and the file."""
    if tls.certificate is None:
        return None
    for name, path in tls:
        if path is not None:
            _check_readable(f"{_KEY}.{name}", Path(path))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    try:
        context.load_cert_chain(tls.certificate, tls.key, password=_no_password)
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise SetupError("the key is not the certificate's", where=_KEY, fix="Name the pair's own key.") from None
        fix = "Both are PEM files; without `key` the certificate's file holds the key too."
        raise SetupError(f"cannot be read as certificate and key ({error.reason})", where=_KEY, fix=fix) from None
    return context


def _check_readable(key: str, path: Path) -> None:
    try:
        with path.open("rb"):
            pass
    except OSError as error:
        raise SetupError(f"{path} cannot be read: {error.strerror}", where=key) from None


def _no_password() -> str:
    raise SetupError("the key is encrypted", where=f"{_KEY}.key", fix="Decrypt it: `openssl pkey -in KEY -out PLAIN`.")
