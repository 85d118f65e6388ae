"""Classification of client errors, and the pauses that servers request."""

import ssl
import time
from email.utils import formatdate

import pytest

from branchwise.base.errors import EndpointError
from branchwise.engines.endpoint.endpoint_errors import retry_after_s, to_endpoint_error
from branchwise.engines.endpoint.retry import FaultKind, TransientError

NOON = 1_800_000_000.0


def answered(status: int, **headers: str) -> Exception:
    import httpx2
    import openai

    named = {name.replace("_", "-"): value for name, value in headers.items()}
    request = httpx2.Request("POST", "http://server/v1")
    response = httpx2.Response(status, headers=named, request=request)
    fault = openai.APIStatusError("no", response=response, body=None)
    return to_endpoint_error(fault, url="http://server/v1", secrets=(), key_env="KEY")


@pytest.mark.parametrize(
    ("status", "kind"),
    [(429, "overload"), (503, "overload"), (529, "overload"), (500, "trouble"), (502, "trouble")],
)
def test_transient_faults_are_classified_by_status(status: int, kind: FaultKind) -> None:
    fault = answered(status)
    assert isinstance(fault, TransientError)
    assert fault.kind == kind


@pytest.mark.parametrize(
    ("status", "fatal"), [(400, False), (422, False), (401, True), (402, True)]
)
def test_permanent_faults_are_fatal_by_status(status: int, fatal: bool) -> None:
    fault = answered(status)
    assert isinstance(fault, EndpointError)
    assert fault.fatal == fatal


@pytest.mark.parametrize("at_connect", [False, True])
def test_only_an_untrusted_certificate_is_fatal_among_tls_faults(at_connect: bool) -> None:
    import aiohttp
    import httpx2
    import openai
    from aiohttp.client_reqrep import ConnectionKey

    def to_error(cause: Exception) -> Exception:
        fault = openai.APIConnectionError(request=httpx2.Request("POST", "https://server"))
        fault.__cause__ = cause
        return to_endpoint_error(fault, url="https://server/v1", secrets=(), key_env="KEY")

    key = ConnectionKey("server", 443, True, True, None, None, None)
    torn = ssl.SSLEOFError(8, "UNEXPECTED_EOF_WHILE_READING")
    untrusted = ssl.SSLCertVerificationError(1, "CERTIFICATE_VERIFY_FAILED")
    network: Exception = aiohttp.ClientOSError(*torn.args)
    network.__cause__ = torn
    certificate: Exception = untrusted
    if at_connect:
        network = aiohttp.ClientConnectorSSLError(key, torn)
        certificate = aiohttp.ClientConnectorCertificateError(key, untrusted)
    passing = to_error(network)
    assert isinstance(passing, TransientError)
    assert passing.kind == ("refused" if at_connect else "trouble")
    assert "certificate" not in str(passing)
    lasting = to_error(certificate)
    assert isinstance(lasting, EndpointError) and lasting.fatal
    assert "SSL_CERT_FILE" in str(lasting)


def test_a_retry_after_date_is_relative_to_the_server_clock() -> None:
    wrong = answered(
        429, Date=formatdate(NOON, usegmt=True), Retry_After=formatdate(NOON + 45, usegmt=True)
    )
    assert isinstance(wrong, TransientError)
    assert wrong.retry_after_s == 45
    without = answered(429, Retry_After=formatdate(time.time() + 45, usegmt=True))
    assert isinstance(without, TransientError)
    assert without.retry_after_s is not None
    assert 0 < without.retry_after_s <= 45


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        ("0", 0.0),
        ("1.5", 1.5),
        (formatdate(NOON + 30, usegmt=True), 30.0),
        (formatdate(NOON + 30).replace("-0000", ""), 30.0),  # without a time zone
        (formatdate(NOON - 30, usegmt=True), 0.0),
        ("", None),
        ("-1", None),
        ("nan", None),
        ("inf", None),
        ("1e400", None),
        ("soon", None),
        ("Wed, 99 Oct 2015 07:28:00 GMT", None),
        ("Sat, 01 Jan 0000 00:00:00 -9999", None),
    ],
)
def test_retry_after_is_parsed_to_seconds(
    header: str, seconds: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as elsewhere:
        elsewhere.setenv("TZ", "America/New_York")
        time.tzset()
        asked = retry_after_s(header, NOON)
    time.tzset()
    assert asked == seconds
