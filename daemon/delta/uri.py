"""Checks whether Delta can parse an action's path as a URI. Pure.

Delta PROTOCOL.md, "Add File and Remove File": a path is a URI of RFC 2396. Delta parses it with `java.net.URI`, which
also accepts every visible character beyond ASCII, and passes it to Hadoop's `Path`.
"""

from __future__ import annotations

import posixpath
import re
from unicodedata import category

_UNRESERVED = r"A-Za-z0-9_\-!.~'()*"
_NOT_ASCII = r"\x80-\U0010ffff"
_ESCAPE = "%[0-9A-Fa-f]{2}"
_PATH = re.compile(rf"(?:[{_UNRESERVED}:@&=+$,;/{_NOT_ASCII}]++|{_ESCAPE})*+")
_QUERY = re.compile(rf"(?:[{_UNRESERVED};/?:@&=+$,\[\]{_NOT_ASCII}]++|{_ESCAPE})*+")
# With an IPv6 address at its end, or without.
_AUTHORITY = re.compile(rf"(?:[{_UNRESERVED}$,;:@&=+{_NOT_ASCII}]++|{_ESCAPE})*+(?:\[[0-9A-Fa-f:.]+\](?::[0-9]*)?)?")
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+\-.]*")
# The parts of a URI, RFC 2396, appendix B.
_PARTS = re.compile(
    r"(?:(?P<scheme>[^:/?#]*+):)?(?P<authority>//[^/?#]*+)?(?P<path>[^?#]*+)(?P<query>\?[^#]*+)?(?P<fragment>#.*+)?",
    re.DOTALL,
)


def find_uri_fault(path: str) -> str | None:
    """Return in a few words why Delta cannot read a file by this path; None if it can."""
    if not path.isascii():
        for sign in path:
            if not sign.isascii() and category(sign) in ("Cc", "Zs", "Zl", "Zp"):
                return f"{sign!r} is not escaped"
    parts = _PARTS.fullmatch(path)
    assert parts is not None, "the pattern matches every text"
    scheme, authority, inner, query, fragment = parts.groups()
    if scheme is not None and not (_SCHEME.fullmatch(scheme) and (authority or inner.startswith("/"))):
        return "a ':' in its first part is not escaped (%3A)"
    if authority in (None, "//") and not (query or fragment) and posixpath.normpath(inner) == ".":
        return "it names no file"
    rest = ((_PATH, inner, 0), (_AUTHORITY, authority, 2), (_QUERY, query, 1), (_QUERY, fragment, 1))
    return next(filter(None, (_find_illegal(grammar, text, start) for grammar, text, start in rest if text)), None)


def _find_illegal(grammar: re.Pattern[str], text: str, start: int) -> str | None:
    legal = grammar.match(text, start)
    assert legal is not None, "the grammar also matches the empty text"
    sign = text[legal.end() : legal.end() + 1]
    return f"{sign!r} is not escaped (%{ord(sign):02X})" if sign else None
