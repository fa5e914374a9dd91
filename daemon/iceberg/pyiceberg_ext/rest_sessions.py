"""HTTP sessions of REST catalogs that do not wait for ever."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec
from requests import RequestException, Response, Session

from daemon.iceberg.pyiceberg_ext import silence

# Unauthorized, and Iceberg's own code for what has expired.
REFUSED_TOKEN: Final = (401, 419)


class PatientSession(Session):
    """A session whose requests end, with an error, if the server does not answer."""

    # By the server's origin, and by the token server, without which requests cannot be sent.
    _servers: Final[dict[tuple[str, str | None], silence.Server]] = {}

    def request(self, method: str, url: str | bytes, *args: Any, **options: Any) -> Response:
        options.setdefault("timeout", (silence.CONNECT_MAX_S, silence.ANSWER_MAX_S))
        address = urlsplit(str(url))
        origin = f"{address.scheme}://{address.hostname}:{address.port}"
        provider = getattr(getattr(self.auth, "auth_manager", None), "token_provider", None)
        key = (origin, provider and provider.token_url)
        with self._servers.setdefault(key, silence.Server(origin, RequestException)).asked():
            answer = super().request(method, url, *args, **options)
        if provider and answer.status_code in REFUSED_TOKEN:
            # PyIceberg tries once more, but asks for another token only when the time of this one is over.
            provider._expires_at = 0
        return answer


class _Token(msgspec.Struct, omit_defaults=True):
    access_token: str
    expires_in: float | None = None


_decode_token = msgspec.json.Decoder(_Token, strict=False).decode


def _fetch_token(url: str, **options: Any) -> Response:
    """Ask a token server. Some write the seconds as a text, which PyIceberg cannot add."""
    # Not a PatientSession: the request that needs the token is one of those already.
    with Session() as session:
        answer = session.post(url, timeout=(silence.CONNECT_MAX_S, silence.ANSWER_MAX_S), **options)
    if answer.ok:
        try:
            token = _decode_token(answer.content)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise RequestException(f"the token server {urlsplit(url).hostname} gave no token: {error}") from error
        answer._content = msgspec.json.encode(token)
    return answer


def limit_waiting() -> None:
    """Make clients of REST catalogs that are opened from now on end their requests. Patches PyIceberg.

    A release with https://github.com/apache/iceberg-python/pull/3418 has time limits. It lacks the rest of this module.
    """
    # Imported only here: see `complete_rest_requests`.
    from pyiceberg.catalog import rest  # noqa: PLC0415
    from pyiceberg.catalog.rest import auth  # noqa: PLC0415

    rest.Session = PatientSession  # type: ignore[attr-defined]
    # Its only use is to fetch tokens.
    auth.requests = SimpleNamespace(post=_fetch_token)  # type: ignore[attr-defined,assignment]
