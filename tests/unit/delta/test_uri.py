"""Paths of actions: those that `java.net.URI` and Hadoop's `Path` refuse are refused, and no others.

`tests/integration/test_broken_logs.py` holds the same function against Java itself.
"""

from __future__ import annotations

from posixpath import normpath

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from daemon.delta.uri import find_uri_fault, name_file

TABLE = "s3://b/t"


@pytest.mark.parametrize(
    "path",
    [
        "part-00000-c000.snappy.parquet",
        "day=2020-01-01/part.parquet",
        "time=10%3A00/part.parquet",
        "a/time=10:00/part.parquet",
        "./time=10:00/part.parquet",
        "a%20b%25c.parquet",
        "é/日本/\U0001f600.parquet",
        "a'b(c)!d~e*f&g=h+i,j;k@l$m.parquet",
        "../other/part.parquet",
        "/data/lake/t/part.parquet",
        "file:/data/time=10:00/part.parquet",
        "file:///data/part.parquet",
        "s3://my_bucket.name/a/part.parquet",
        "abfss://container@account.dfs.core.windows.net/a.parquet",
        "hdfs://[2001:db8::1]:8020/a.parquet",
    ],
)
def test_what_delta_reads_passes(path: str) -> None:
    """Escaped, absolute and plain paths, signs beyond ASCII as they are, and colons where no scheme ends at them."""
    assert find_uri_fault(path) is None


@pytest.mark.parametrize(
    ("path", "fault"),
    [
        ("time=10:00/part.parquet", "a ':' in its first part is not escaped (%3A)"),
        ("a:b.parquet", "a ':' in its first part is not escaped (%3A)"),
        (":a.parquet", "a ':' in its first part is not escaped (%3A)"),
        ("file:a.parquet", "a ':' in its first part is not escaped (%3A)"),
        ("a b.parquet", "' ' is not escaped (%20)"),
        ("s3://bucket/a b.parquet", "' ' is not escaped (%20)"),
        ("s3://buc ket/a.parquet", "' ' is not escaped (%20)"),
        ("a%zz.parquet", "'%' is not escaped (%25)"),
        ("a%2", "'%' is not escaped (%25)"),
        ("a[1].parquet", "'[' is not escaped (%5B)"),
        ("a\\b.parquet", r"'\\' is not escaped (%5C)"),
        ("a|b", "'|' is not escaped (%7C)"),
        ('a"b', "'\"' is not escaped (%22)"),
        ("a\tb", r"'\t' is not escaped (%09)"),
        ("a\x85b", r"'\x85' is not escaped"),
        ("a\u00a0b", r"'\xa0' is not escaped"),
        ("a?b%", "'%' is not escaped (%25)"),
        ("a#b#c", "'#' is not escaped (%23)"),
        ("", "it names no file"),
        ("a/..", "it names no file"),
        ("file://", "it names no file"),
    ],
)
def test_what_delta_cannot_read_is_told(path: str, fault: str) -> None:
    """The sign that is at fault is named, with its escape."""
    assert find_uri_fault(path) == fault


@pytest.mark.parametrize(
    ("path", "place", "uri"),
    [
        ("x-y", "s3://b/t/x-y", None),
        ("x%2Dy", "s3://b/t/x-y", "x%2Dy"),
        ("k/../x-y", "s3://b/t/x-y", None),
        ("t=a%253A%20b/%5B", "s3://b/t/t=a%3A b/[", None),
        ("a%5b", "s3://b/t/a[", "a%5b"),
        ("k%2Fx", "s3://b/t/k/x", "k%2Fx"),
        ("s3://c/t=a%253A%20b", "s3://c/t=a%3A b", "s3://c/t=a%253A%20b"),
        ("S3://c/x", "s3://c/x", "S3://c/x"),
        ("/d/x%2Dy", "s3://b/d/x-y", "s3://b/d/x-y"),
        ("///d/x%2Dy", "s3://b/d/x-y", "s3://b/d/x-y"),
        ("////d/x", "s3://b/d/x", "s3://b/d/x"),
        ("file:////d/x", "file:///d/x", "file:/d/x"),
    ],
)
def test_names_of_files(path: str, place: str, uri: str | None) -> None:
    """Where a file is, and by which URI Delta knows it. Two slashes begin a host, three or more begin none."""
    assert name_file(TABLE, path) == (place, uri)


@given(st.lists(st.sampled_from(["a", "-", ".", "/", "%20", "%25", "%2E", "%2F", "%5B", "%5b", "%C3%A9", "é"])))
def test_easy_paths_are_named_as_all_others(signs: list[str]) -> None:
    """Paths that need no normalising are recognised; what is normalised first gives the same."""
    path = "x" + "".join(signs)
    assume(normpath(path) != ".")  # Such a path names no file.
    assert name_file(TABLE, path) == name_file(TABLE, f"./{path}")
    assert name_file(TABLE, f"s3://c/{path}") == name_file(TABLE, f"s3://c//{path}")
