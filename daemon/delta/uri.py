"""The paths of actions: whether Delta can parse one as a URI, which file it is for Delta, and where that is. Pure.

Delta PROTOCOL.md, "Add File and Remove File": a path is a URI of RFC 2396. Delta parses it with `java.net.URI`, which
also accepts every visible character beyond ASCII, and passes it to Hadoop's `Path`, which normalises it. Delta compares
the result as it is, without decoding: `x-y` and `x%2Dy` are two files for it, although both are at one place.
"""

from __future__ import annotations

import posixpath
import re
from unicodedata import category
from urllib.parse import quote, unquote

from daemon.delta.actions import Identity
from daemon.errors import CorruptInput

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
# A relative path that is a canonical URI, and equals the file's name on disk: nothing to decode, no scheme, no `.`,
# `..` or empty part. Arrow understands it, too.
_PLAIN_PART = r"[A-Za-z0-9_=+\-,~!$&'()*;@][A-Za-z0-9_=+\-.,~!$&'()*;@]*"
PLAIN_PATH = rf"^{_PLAIN_PART}(/{_PLAIN_PART})*$"
# A path that nothing normalises, with or without a scheme, and whose escapes are those that Java writes.
_EASY_PART = r"(?!\.)(?:[A-Za-z0-9_=+\-.,~!$&'()*;@]++|%(?:2[0235]|3[CEF]|5[B-E]|60|7[B-D]))++"
_EASY_PATH = re.compile(rf"([a-z][a-z0-9+\-.]*+://[A-Za-z0-9_.\-@:]*+/)?{_EASY_PART}(?:/{_EASY_PART})*+")
# What `java.net.URI` escapes in a path that it is given unescaped.
_TO_ESCAPE = re.compile(r"[\x00-\x20\"#%<>?\[\\\]^`{|}\x7f-\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]")
_ESCAPED = re.compile(_ESCAPE)
_EMPTY_AUTHORITY = re.compile(r"^([A-Za-z][A-Za-z0-9+\-.]*):(?://)?/(?!/)")


def find_uri_fault(path: str) -> str | None:
    """Return in a few words why Delta cannot read a file by this path; None if it can."""
    if not path.isascii():
        for sign in path:
            if not sign.isascii() and category(sign) in ("Cc", "Zs", "Zl", "Zp"):
                return f"{sign!r} is not escaped"
    scheme, authority, inner, query, fragment = _split(path)
    if scheme is not None and not (_SCHEME.fullmatch(scheme) and (authority or inner.startswith("/"))):
        return "a ':' in its first part is not escaped (%3A)"
    if authority in (None, "//") and not (query or fragment) and posixpath.normpath(inner) == ".":
        return "it names no file"
    parts = (
        (_PATH, inner, 0),
        (_AUTHORITY, authority or "//", 2),
        (_QUERY, query or "?", 1),
        (_QUERY, fragment or "#", 1),
    )
    for grammar, text, start in parts:
        legal = grammar.match(text, start)
        assert legal is not None, "the grammar also matches the empty text"
        if sign := text[legal.end() : legal.end() + 1]:
            return f"{sign!r} is not escaped (%{ord(sign):02X})"
    return None


def name_file(table_location: str, path: str) -> tuple[str, str | None]:
    """Return the plain absolute path of an action's `path`, and the URI by which Delta knows the file.

    The URI is None if it is the one that Spark would write: relative to the table, and escaped as Java does.

    Example, in the table s3://b/t: `x-y` is s3://b/t/x-y; `x%2Dy` is the same with the URI `x%2Dy`, which makes it
    another file for Delta. `k/../x-y` is s3://b/t/x-y, because Delta normalises it to `x-y`.

    Raises `CorruptInput` if Delta cannot read a file by this path.
    """
    if easy := _EASY_PATH.fullmatch(path):
        return (unquote(path), path) if easy[1] else (f"{table_location}/{unquote(path)}", None)
    if fault := find_uri_fault(path):
        what = f"Delta cannot read the path {path!r} of a data file: {fault}"
        raise CorruptInput(what, hint="Fix the program that wrote the checkpoint.")
    uri = _canonical(table_location, path)
    place = _place(table_location, uri)
    folder, relative = f"{table_location}/", place.removeprefix(f"{table_location}/")
    return place, None if place.startswith(folder) and uri == _escape(relative) else uri


def usual_uri(table_location: str, place: str) -> str:
    """Return the URI that Spark would write for the file at `place` in the table: that of `name_file`'s None."""
    return _escape(place.removeprefix(f"{table_location}/"))


def resolve_path(table_location: str, path: str) -> str:
    """Return the plain absolute path of a path in the log, which begins at the table if it is relative.

    `a%20b` names the file `a b`. Hive-style partition folders are escaped on disk too: their `%` is `%25` here.
    """
    return _place(table_location, _canonical(table_location, path))


def fold_identity(path: str, identity: Identity) -> Identity:
    """Return one identity for all of the file at `path` that differ only as `java.net.URI` ignores it.

    These are the case of escapes and schemes, and an empty authority: `%c3` is `%C3`, and `file:/x` is `file:///x`.
    Delta compares them only if their texts are hashed to one partition of its replay, so nobody can tell whether a
    remove of one removes the other.
    """
    uri, dv_unique_id = identity
    if uri is None:
        return identity
    uri = _ESCAPED.sub(lambda found: found[0].upper(), uri)
    uri = _EMPTY_AUTHORITY.sub(lambda found: f"{found[1].lower()}:///", uri)
    # The URI that Spark would write is the end of the escaped path.
    return None if _escape(path).endswith(f"/{uri}") else uri, dv_unique_id


def describe(identity: Identity) -> str:
    """Name the spelling and the deletion vector of a file whose path is named already."""
    uri, dv_unique_id = identity
    spelled = f"spelled {uri}" if uri else "in its usual spelling"
    return f"{spelled}, with {f'the deletion vector {dv_unique_id}' if dv_unique_id else 'no deletion vector'}"


def _split(path: str) -> tuple[str | None, str | None, str, str | None, str | None]:
    parts = _PARTS.fullmatch(path)
    assert parts is not None, "the pattern matches every text"
    scheme, authority, inner, query, fragment = parts.groups()
    return scheme, authority, inner, query, fragment


def _canonical(table_location: str, path: str) -> str:
    """Return the URI that Delta compares: that of Hadoop's `new Path(new URI(path))`.

    If it is absolute without a scheme, Hadoop decodes it, and escapes it again with the scheme of the file system.
    """
    scheme, authority, inner, query, fragment = _split(path)
    normalized = _normalize(inner)
    # Three slashes begin with an empty authority, which is none for Java.
    if scheme is None and authority in (None, "//") and unquote(normalized).startswith("/"):
        scheme, _, rest = table_location.partition("://")
        authority = "//" + rest.partition("/")[0]
        inner = _escape(re.sub("/+", "/", unquote(normalized)).rstrip("/"))
        normalized = _normalize(inner)
    if normalized != inner and authority == "//":
        authority = None  # Java makes a new text, without an empty authority.
    prefix = f"{scheme}:" if scheme is not None else ""
    return f"{prefix}{authority or ''}{normalized}{query or ''}{fragment or ''}"


def _normalize(path: str) -> str:
    """Remove `.`, `..` and empty parts as `java.net.URI.normalize` does, without decoding."""
    parts, kept = path.split("/"), list[str]()
    for part in parts:
        if part == ".." and kept and kept[-1] != "..":
            kept.pop()
        elif part not in ("", "."):
            kept.append(part)
    is_folder = bool(kept) and (parts[-1] in ("", ".") or (parts[-1] == ".." and kept[-1] != ".."))
    # A first part with a colon would be a scheme.
    start = "/" if path.startswith("/") else "./" if kept and ":" in kept[0] else ""
    return start + "/".join(kept) + ("/" if is_folder else "")


def _place(table_location: str, uri: str) -> str:
    """Return the plain absolute path to which a canonical URI leads. Hadoop normalises it again after decoding."""
    scheme, authority, inner, query, fragment = _split(uri)
    path = unquote(inner + (query or "") + (fragment or ""))
    if scheme is None and authority is None:
        place = f"{table_location}/{path}"
    else:
        scheme = scheme or table_location.partition("://")[0]
        place = f"{scheme.lower()}:{unquote(authority or '//')}{path}"
    if "//" not in path and "/." not in f"/{path}" and not path.endswith("/"):
        return place
    scheme, _, rest = place.partition("://")
    host, _, path = rest.partition("/")
    return f"{scheme}://{host}{posixpath.normpath('/' + path.lstrip('/'))}"


def _escape(path: str) -> str:
    return _TO_ESCAPE.sub(lambda found: quote(found[0], safe=""), path)
