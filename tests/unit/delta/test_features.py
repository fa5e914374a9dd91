"""Table features: what a metadata uses must be listed in the protocol.

`tests/integration/test_broken_logs.py` holds these verdicts against Delta's own.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from daemon.delta.actions import Metadata, Protocol
from daemon.delta.features import SWITCHES, check_features, used_features
from daemon.errors import CorruptInput

LONG = {"name": "id", "type": "long", "nullable": True, "metadata": {}}


def metadata(*fields: dict[str, Any], **configuration: str) -> Metadata:
    return Metadata("t", json.dumps({"type": "struct", "fields": [LONG, *fields]}), [], configuration)


def marked(**marks: Any) -> dict[str, Any]:
    return {**LONG, "name": "x", "metadata": marks}


def nested(field: dict[str, Any]) -> dict[str, Any]:
    """The field inside of a struct in a list in a map."""
    struct = {"type": "struct", "fields": [field]}
    elements = {"type": "array", "elementType": struct, "containsNull": True}
    kind = {"type": "map", "keyType": "string", "valueType": elements, "valueContainsNull": True}
    return {**LONG, "name": "m", "type": kind}


@pytest.mark.parametrize(
    ("found", "features"),
    [
        (metadata(), set()),
        (metadata(**{"delta.enableDeletionVectors": "TRUE", "delta.appendOnly": "false"}), {"deletionVectors"}),
        (metadata(**{"delta.columnMapping.mode": "name"}), {"columnMapping"}),
        (metadata(**{"delta.columnMapping.mode": "none"}), set()),
        (metadata(**{"delta.checkpointPolicy": "v2"}), {"v2Checkpoint"}),
        (metadata(**{"delta.checkpointPolicy": "classic"}), set()),
        (metadata(**{"delta.constraints.positive": "id > 0"}), {"checkConstraints"}),
        (metadata(**{"delta.coordinatedCommits.commitCoordinator-preview": "x"}), {"coordinatedCommits-preview"}),
        (metadata({**LONG, "name": "t", "type": "timestamp_ntz"}), {"timestampNtz"}),
        (metadata(nested({**LONG, "type": "timestamp_ntz"})), {"timestampNtz"}),
        (metadata(nested({**LONG, "type": "variant"})), {"variantType"}),
        (metadata(marked(**{"delta.generationExpression": "id + 1"})), {"generatedColumns"}),
        (metadata(nested(marked(**{"delta.generationExpression": "id + 1"}))), set()),
        (
            metadata(marked(**{f"delta.identity.{key}": 1 for key in ("start", "step", "allowExplicitInsert")})),
            {"identityColumns"},
        ),
        (metadata(marked(**{"delta.identity.start": 1})), set()),
        (metadata(marked(**{"delta.invariants": "{}"})), {"invariants"}),
        (metadata(nested(marked(**{"delta.invariants": "{}"}))), {"invariants"}),
        (metadata({**LONG, "name": "n", "nullable": False}), {"invariants"}),
        (metadata(nested({**LONG, "nullable": False})), {"invariants"}),
        (metadata({"name": "x", "type": "long", "nullable": True}), set()),
        (metadata({**LONG, "name": "l", "type": {"type": "array", "elementType": "long", "fields": 1.5}}), set()),
    ],
)
def test_what_a_metadata_uses_is_found(found: Metadata, features: set[str]) -> None:
    """By the table's properties, the types of its columns and the marks that these carry."""
    assert used_features(found) == features


@pytest.mark.parametrize(("key", "feature"), SWITCHES.items())
def test_each_switch_uses_its_feature(key: str, feature: str) -> None:
    """A property that is true uses its feature; one that is neither true nor false is none of Delta's."""
    assert used_features(metadata(**{key: "true"})) == {feature}
    for value in ("yes", ""):
        with pytest.raises(
            CorruptInput, match=f"the table property {key} is '{value}', but Delta knows only false and true"
        ):
            used_features(metadata(**{key: value}))


def test_an_unknown_checkpoint_policy_is_corrupt() -> None:
    """Delta knows two."""
    with pytest.raises(CorruptInput, match=r"delta\.checkpointPolicy is 'V2', but Delta knows only classic and v2"):
        used_features(metadata(**{"delta.checkpointPolicy": "V2"}))


@pytest.mark.parametrize(
    ("protocol", "used"),
    [
        (Protocol(1, 2), {"deletionVectors", "columnMapping"}),
        (Protocol(1, 7, None, ["deletionVectors"]), {"deletionVectors"}),
        (Protocol(3, 7, [], ["deletionVectors", "someFutureWriterFeature"]), {"deletionVectors"}),
        (Protocol(3, 7, ["typeWidening-preview"], ["typeWidening-preview"]), {"typeWidening"}),
        (
            Protocol(3, 7, ["variantShredding"], ["variantShredding", "variantType-preview"]),
            {"variantShredding-preview"},
        ),
        (Protocol(3, 7, [], ["rowTracking", "domainMetadata"]), {"rowTracking"}),
    ],
)
def test_what_is_listed_fits(protocol: Protocol, used: set[str]) -> None:
    """The writer's list decides; older protocols list nothing; a preview's name stands for the feature."""
    check_features(protocol, used)


@pytest.mark.parametrize(
    ("protocol", "used", "missing"),
    [
        (
            Protocol(3, 7, ["deletionVectors"], []),
            {"deletionVectors"},
            "uses deletionVectors, and .* list this feature",
        ),
        (
            Protocol(1, 7, None, []),
            {"appendOnly", "invariants"},
            "uses appendOnly, invariants, and .* list these features",
        ),
        (Protocol(3, 7, [], ["rowTracking"]), set(), "uses domainMetadata, "),
        (
            Protocol(3, 7, [], []),
            {"icebergCompatV3"},
            "uses columnMapping, domainMetadata, icebergCompatV3, rowTracking, ",
        ),
    ],
)
def test_what_is_not_listed_is_named(protocol: Protocol, used: set[str], missing: str) -> None:
    """Also what a listed feature needs in its turn."""
    with pytest.raises(CorruptInput, match=missing):
        check_features(protocol, used)


def test_another_name_counts_as_the_feature() -> None:
    """Some writers list `timestampWithoutTimezone` for columns of the type timestamp_ntz."""
    listing = Protocol(3, 7, ["timestampWithoutTimezone"], ["timestampWithoutTimezone"])
    check_features(listing, {"timestampNtz"})
    with pytest.raises(CorruptInput, match="the table uses rowTracking, timestampNtz, and"):
        check_features(Protocol(3, 7, [], ["domainMetadata"]), {"rowTracking", "timestampNtz"})
