"""Whether a server's certificate is good, and for how long: by a TLS handshake with itself in memory, on no socket."""

from __future__ import annotations

import ssl
import time
from pathlib import Path

from conch_build.errors import SetupError

_PARTIAL_CHAIN = 0x80000
"""OpenSSL's X509_V_FLAG_PARTIAL_CHAIN: a certificate in the file may be trusted without those above it."""
_DAY_SECONDS = 86400.0


def days_left(context: ssl.SSLContext, certificate: Path) -> float:
    """Of the certificate that `context` serves from that file. Raises SetupError when it does not hold now."""
    trusting = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    trusting.check_hostname = False
    trusting.verify_flags |= _PARTIAL_CHAIN
    trusting.load_verify_locations(certificate)
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = trusting.wrap_bio(to_client, to_server)
    server = context.wrap_bio(to_server, to_client, server_side=True)
    for side in (client, server, client):
        try:
            side.do_handshake()
        except ssl.SSLWantReadError:
            continue
        except ssl.SSLCertVerificationError as error:
            raise SetupError(error.verify_message, where=str(certificate)) from None
    told = client.getpeercert() or {}
    return (ssl.cert_time_to_seconds(str(told["notAfter"])) - time.time()) / _DAY_SECONDS
