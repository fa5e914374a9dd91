"""The protocol check: tables that we would misread are refused by the name of the feature."""

from __future__ import annotations

import pytest

from daemon.delta.actions import Metadata, Protocol
from daemon.delta.features import FEATURES, check_metadata, check_protocol, is_readable
from daemon.errors import CorruptInput, Unsupported


@pytest.mark.parametrize(
    "protocol",
    [
        Protocol(1, 2),
        Protocol(1, 7, None, ["appendOnly", "someFutureWriterFeature"]),
        Protocol(2, 5),
        Protocol(3, 7, [], []),
        Protocol(3, 7, [name for name in FEATURES if is_readable(name)], ["rowTracking", "changeDataFeed"]),
    ],
)
def test_known_protocols_pass(protocol: Protocol) -> None:
    """Every reader feature that we know passes, and writer features are none of our business."""
    check_protocol(protocol)


@pytest.mark.parametrize(
    ("features", "message", "hint"),
    [
        (["deletionVectors", "zebra", "apple"], "reader feature apple, zebra is not supported", "DROP FEATURE"),
        (["catalogManaged"], "reader feature catalogManaged ", "ratified by its catalog"),
        (["variantType", "catalogOwned-preview"], "reader feature catalogOwned-preview ", "ratified by its catalog"),
        (
            ["catalogManaged", "catalogOwned-preview"],
            "catalogManaged, catalogOwned-preview ",
            "ratified by its catalog",
        ),
        (["zebra", "catalogManaged"], "reader feature catalogManaged, zebra ", "ratified by its catalog"),
        (["rowTracking"], "reader feature rowTracking ", "DROP FEATURE"),
        (["adaptiveMetadata-preview"], "reader feature adaptiveMetadata-preview ", "not in the Delta log"),
        (["DeletionVectors"], "reader feature DeletionVectors ", "DROP FEATURE"),
    ],
)
def test_unknown_reader_features_are_named(features: list[str], message: str, hint: str) -> None:
    """An unknown reader feature means stop; all of them are named, known and unknown reasons apart."""
    with pytest.raises(Unsupported, match=message) as caught:
        check_protocol(Protocol(3, 7, features, features))
    assert caught.value.hint.count(hint) == 1


@pytest.mark.parametrize(
    "protocol", [Protocol(4, 8, [], []), Protocol(99, 99), Protocol(0, 0), Protocol(-1, 7, None, [])]
)
def test_other_reader_versions_are_refused(protocol: Protocol) -> None:
    """A reader version that nobody has specified is refused with its number."""
    with pytest.raises(Unsupported, match=f"reader version {protocol.min_reader_version} is not known"):
        check_protocol(protocol)


@pytest.mark.parametrize(
    ("protocol", "message"),
    [
        (Protocol(1, 7, [], []), "reader version 1 with a list of reader features"),
        (Protocol(2, 5, ["columnMapping"]), "reader version 2 with a list of reader features"),
        (Protocol(3, 7, None, []), "reader version 3 without a list of reader features"),
        (Protocol(3, 5, [], []), "writer version 5 with a list of writer features"),
        (Protocol(3, 7, []), "writer version 7 without a list of writer features"),
        (Protocol(1, 2, None, ["appendOnly"]), "writer version 2 with a list of writer features"),
    ],
)
def test_a_protocol_that_contradicts_itself_is_corrupt(protocol: Protocol, message: str) -> None:
    """Lists of features belong to the versions that have them, and to no others; Delta reads no such table."""
    with pytest.raises(CorruptInput, match=message):
        check_protocol(protocol)


@pytest.mark.parametrize("mode", [None, "none", "name", "id"])
def test_known_column_mapping_modes_pass(mode: str | None) -> None:
    """The three modes of the protocol, and none given, are known."""
    configuration = {"delta.columnMapping.mode": mode} if mode else {}
    check_metadata(Metadata("id", "{}", [], configuration))


def test_a_table_with_a_commit_coordinator_is_refused() -> None:
    """What is in its log may not be its newest version."""
    with pytest.raises(Unsupported, match="through a coordinator"):
        check_metadata(Metadata("id", "{}", [], {"delta.coordinatedCommits.commitCoordinator-preview": "dynamodb"}))


def test_an_unknown_column_mapping_mode_is_refused() -> None:
    """Files of a mode that we do not know would be misread."""
    with pytest.raises(Unsupported, match="column mapping mode physical is not known"):
        check_metadata(Metadata("id", "{}", [], {"delta.columnMapping.mode": "physical"}))
