"""Requests to the servers of a catalog, on connections that stay open. Redirects are not followed: a token stays here.

By libcurl: each idle poll of a managed table is a request, and Python's clients take two to six times the processor's
time for one.
"""

from __future__ import annotations

import os
import re
import ssl
from collections.abc import Mapping
from functools import cache
from typing import NamedTuple

import certifi
import pycurl

CONNECT_MAX_S = 10
# A server that sends nothing for so long has hung.
SILENCE_MAX_S = 10
ANSWER_MAX_S = 60
ANSWER_BYTES_MAX = 64 << 20
# A connection keeps its last answer in memory: after a larger one it is closed.
KEPT_BYTES_MAX = 1 << 20


class Answer(NamedTuple):
    """`retry_after_s` is 0 if the server did not ask for patience."""

    status: int
    retry_after_s: int
    data: bytes


class Connections:
    """To all servers of one catalog: never more than threads that ask at the same time. From any thread."""

    def __init__(self) -> None:
        self._idle: list[pycurl.Curl] = []

    def request(self, method: str, url: str, headers: Mapping[str, str], body: bytes | None = None) -> Answer:
        """Raises TimeoutError, or another OSError if there is no answer, or one of more than ANSWER_BYTES_MAX;
        ValueError for a header that cannot be sent.
        """
        lines = [f"{name}: {value}" for name, value in headers.items()]
        if not "".join(lines).isprintable():
            raise ValueError("the token has more than one line, or an invisible character")
        try:
            curl = self._idle.pop()
        except IndexError:
            curl = _open()
        curl.setopt(pycurl.URL, url.encode())
        curl.setopt(pycurl.CUSTOMREQUEST, method)
        curl.setopt(pycurl.HTTPHEADER, lines)
        if body is None:
            curl.setopt(pycurl.HTTPGET, 1)
        else:
            curl.setopt(pycurl.POSTFIELDS, body)
        try:
            data = curl.perform_rb()
        except pycurl.error as error:
            if error.args[0] == pycurl.E_FILESIZE_EXCEEDED:
                raise OSError(f"it answers with more than {ANSWER_BYTES_MAX >> 20} MiB") from error
            kind = TimeoutError if error.args[0] == pycurl.E_OPERATION_TIMEDOUT else OSError
            # Without the time that it took: the same fault has the same text, and is said once.
            raise kind(re.sub(r" after \d+ m(s|illiseconds.*)\b", "", curl.errstr())) from error
        answer = Answer(curl.getinfo(pycurl.RESPONSE_CODE), curl.getinfo(pycurl.RETRY_AFTER), data)
        if len(data) < KEPT_BYTES_MAX:
            self._idle.append(curl)
        return answer


def _open() -> pycurl.Curl:
    curl = pycurl.Curl()
    for option, value in _options().items():
        curl.setopt(option, value)
    return curl


@cache
def _options() -> Mapping[int, int | str]:
    # As Python's own clients find them: libcurl has no certificates.
    trusted = ssl.get_default_verify_paths()
    return {
        pycurl.PROTOCOLS: pycurl.PROTO_HTTP | pycurl.PROTO_HTTPS,
        pycurl.PROXY: "",  # One of the environment would get the token.
        pycurl.HTTP_VERSION: pycurl.CURL_HTTP_VERSION_1_1,
        pycurl.NOSIGNAL: 1,  # Else it may not be used from threads.
        pycurl.CONNECTTIMEOUT: CONNECT_MAX_S,
        pycurl.LOW_SPEED_LIMIT: 1,
        pycurl.LOW_SPEED_TIME: SILENCE_MAX_S,
        pycurl.TIMEOUT: ANSWER_MAX_S,
        pycurl.MAXFILESIZE: ANSWER_BYTES_MAX,
        pycurl.USERAGENT: "dvsync",
        pycurl.CAINFO: trusted.cafile or certifi.where(),
        pycurl.CAPATH: os.environ.get(trusted.openssl_capath_env) or trusted.capath or "",
    }
