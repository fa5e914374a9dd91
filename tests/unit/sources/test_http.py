"""Connections to a catalog's server: they stay open, and may end at any time."""

from __future__ import annotations

import socket
import ssl
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Thread

import pytest

from daemon.sources import http
from daemon.sources.http import Connections

WHOLE = b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nyes"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nye\r\n1\r\ns\r\n0\r\n\r\n"
LAST = b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nyes"
CUT = b"HTTP/1.1 200 OK\r\nContent-Length: 30\r\n\r\nyes"


@contextmanager
def server(*connections: list[bytes], tls: ssl.SSLContext | None = None) -> Iterator[str]:
    """Each connection gives these answers, and then ends."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def accept() -> socket.socket:
            connection, _ = listening.accept()
            return tls.wrap_socket(connection, server_side=True) if tls else connection

        def serve() -> None:
            for answers in connections:
                # Who does not trust the certificate ends the handshake.
                with suppress(ssl.SSLError), accept() as connection:
                    for answer in answers:
                        if asked := connection.recv(65536):
                            assert asked.startswith(b"GET /a?b=c HTTP/1.1\r\n")
                            connection.sendall(answer)

        thread = Thread(target=serve)
        thread.start()
        yield f"http{'s' if tls else ''}://127.0.0.1:{listening.getsockname()[1]}/a?b=c"
        thread.join()


def test_a_connection_is_used_again_until_it_ends() -> None:
    with server([WHOLE, CHUNKED], [WHOLE, LAST]) as url:
        connections = Connections()
        for _ in range(4):
            assert connections.request("GET", url, {}) == (200, 0, b"yes")


@pytest.mark.parametrize("answer", [CUT, b"", b"no HTTP"])
def test_an_answer_that_is_cut(answer: bytes) -> None:
    """Is none. A new connection that ends is not tried again."""
    with server([answer]) as url, pytest.raises(OSError):
        Connections().request("GET", url, {})


@pytest.mark.parametrize("token", ["a\r\nHost: evil", "a\n", "a\0b", "é"])
def test_a_token_that_is_no_header(token: str) -> None:
    """Is refused before anybody is asked, and not quoted."""
    with pytest.raises(ValueError, match=r"more than one line|can't encode") as refused:
        Connections().request("GET", "http://127.0.0.1:9/", {"Authorization": f"Bearer {token}"})
    assert "evil" not in str(refused.value)


def test_a_proxy_of_the_environment_gets_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:9")
    with server([WHOLE]) as url:
        assert Connections().request("GET", url, {}).data == b"yes"


def test_a_server_is_asked_if_its_certificate_is_trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As for Python's own clients: SSL_CERT_FILE names authorities besides those of the system."""
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    made = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", key, "-out", certificate]
    subprocess.run(
        [*made, "-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"], check=True, capture_output=True
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    with server([WHOLE], tls=context) as url, pytest.raises(OSError, match="certificate"):
        Connections().request("GET", url, {})
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    http._options.cache_clear()
    with server([WHOLE], tls=context) as url:
        assert Connections().request("GET", url, {}).data == b"yes"
    http._options.cache_clear()
