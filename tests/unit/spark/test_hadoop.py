from __future__ import annotations

from importlib.metadata import version
from pathlib import Path
from typing import Any

import pyspark
import pytest

from daemon.config.settings import Settings, TableSettings
from daemon.spark.hadoop import DEFAULT_CHAIN, S3A, own_settings, with_stores
from daemon.spark.jars import hadoop_version, joined, s3_jars
from daemon.spark.session import launch_conf, session_conf

MINIO = {
    "s3.endpoint": "http://127.0.0.1:9000",
    "s3.region": "eu-north-7",
    "s3.access-key-id": "AKIDMADEUP",
    "s3.secret-access-key": "made-up-secret",
}


@pytest.fixture(autouse=True)
def no_region(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name, raising=False)


def conf_of(*sources: str, **settings: Any) -> dict[str, str]:
    tables = tuple(TableSettings(source=source, target=f"a.t{number}") for number, source in enumerate(sources))
    return with_stores(Settings(tables=tables, **settings)).conf


def s3a(conf: dict[str, str], key: str, bucket: str = "") -> str | None:
    return conf.get(f"spark.hadoop.fs.s3a.{f'bucket.{bucket}.' if bucket else ''}{key}")


def test_local_tables_need_nothing():
    """No jar is fetched and nothing set where nobody speaks of an object store."""
    assert conf_of("file:///lake/t", catalogs={"c": {"type": "sql", "warehouse": "file:///w"}}) == {}


@pytest.mark.parametrize(
    "settings",
    [
        {"storage": {"s3.region": "r"}},
        {"catalogs": {"c": {"warehouse": "s3://b/w"}}},
        {"catalogs": {"c": {"s3.endpoint": "http://x"}}},
        {"tables": ({"source": "s3a://b/t", "target": "a.b"},)},
        {"tables": ({"source": "/t", "target": "a.b", "location": "s3://b/t"},)},
        {"tables": ({"source": "/t", "target": "a.b", "delete_files_location": "s3n://b/t"},)},
    ],
)
def test_s3_brings_its_jars(settings):
    """Any source, location or property of S3 does; the bundle of all of AWS stays away."""
    conf = with_stores(Settings(**settings)).conf
    assert conf["spark.jars.packages"] == ",".join(s3_jars())
    assert "software.amazon.awssdk:bundle" in conf["spark.jars.excludes"].split(",")
    for scheme in ("s3", "s3a", "s3n"):
        assert conf[f"spark.hadoop.fs.{scheme}.impl"] == "org.apache.hadoop.fs.s3a.S3AFileSystem"


def test_a_path_on_the_command_line_brings_them_too():
    """`dvsync doctor s3://…` needs no configuration."""
    assert "spark.jars.packages" in with_stores(Settings(), "s3://b/t").conf
    assert with_stores(Settings(), "/data/s3/t").conf == {}


def test_hadoop_is_the_one_that_pyspark_ships():
    """hadoop-aws of another version than the client's fails at its first call."""
    jars = Path(pyspark.__file__).parent / "jars"
    assert (jars / f"hadoop-client-runtime-{hadoop_version()}.jar").is_file(), version("pyspark")


def test_an_endpoint_of_its_own():
    """Paths instead of host names, plain HTTP where the endpoint says so, the given keys and no others."""
    conf = conf_of(storage=MINIO)
    assert s3a(conf, "endpoint") == "http://127.0.0.1:9000"
    assert s3a(conf, "endpoint.region") == "eu-north-7"
    assert s3a(conf, "path.style.access") == "true"
    assert s3a(conf, "connection.ssl.enabled") == "false"
    assert s3a(conf, "access.key") == "AKIDMADEUP"
    assert s3a(conf, "secret.key") == "made-up-secret"
    assert s3a(conf, "aws.credentials.provider") == f"{S3A}SimpleAWSCredentialsProvider"
    over_tls = conf_of(storage={"s3.endpoint": "https://x", "s3.force-virtual-addressing": "true"})
    assert s3a(over_tls, "path.style.access") == "false"
    assert s3a(over_tls, "connection.ssl.enabled") == "true"


@pytest.mark.parametrize(
    ("properties", "provider"),
    [
        ({}, DEFAULT_CHAIN),
        ({"client.access-key-id": "x", "client.secret-access-key": "y"}, f"{S3A}SimpleAWSCredentialsProvider"),
        ({**MINIO, "s3.session-token": "t"}, f"{S3A}TemporaryAWSCredentialsProvider"),
        ({"s3.anonymous": "true"}, f"{S3A}AnonymousAWSCredentialsProvider"),
        ({"s3.role-arn": "arn:aws:iam::1:role/x"}, f"{S3A}auth.AssumedRoleCredentialProvider"),
    ],
)
def test_who_gives_the_credentials(properties, provider):
    """Without keys the default chain of AWS is asked, as PyArrow does."""
    conf = conf_of("s3://b/t", storage=properties)
    assert s3a(conf, "aws.credentials.provider") == provider
    if "s3.role-arn" in properties:
        assert s3a(conf, "assumed.role.credentials.provider") == DEFAULT_CHAIN


def test_timeouts_and_proxy():
    """PyIceberg counts seconds; Hadoop takes a unit."""
    properties = {"s3.connect-timeout": "1.5", "s3.request-timeout": "60", "s3.proxy-uri": "http://me:pw@proxy:3128"}
    conf = conf_of("s3://b/t", storage=properties)
    assert s3a(conf, "connection.establish.timeout") == "1500ms"
    assert s3a(conf, "connection.timeout") == "60000ms"
    assert [s3a(conf, f"proxy.{key}") for key in ("host", "port", "username", "password")] == [
        "proxy",
        "3128",
        "me",
        "pw",
    ]


def test_a_catalog_s_keys_hold_for_the_sources_of_its_tables():
    """By bucket: another catalog's tables are read with what `storage` says."""
    settings = Settings(
        catalogs={"own": {"s3.access-key-id": "own", "s3.secret-access-key": "x"}, "plain": {"uri": "http://x"}},
        storage={"s3.endpoint": "http://shared", "s3.region": "r"},
        tables=(
            TableSettings(source="s3a://mine/t", target="a.b", catalog="own"),
            TableSettings(source="s3a://theirs/t", target="a.c", catalog="plain"),
            TableSettings(source="file:///t", target="a.d", catalog="own"),
        ),
    )
    conf = with_stores(settings).conf
    assert s3a(conf, "access.key", "mine") == "own"
    assert s3a(conf, "endpoint", "mine") == s3a(conf, "endpoint") == "http://shared"
    assert s3a(conf, "access.key") is None
    assert not [key for key in conf if ".bucket." in key and ".bucket.mine." not in key]


def test_spark_conf_wins():
    """What somebody wrote for Spark is not written over; lists are joined."""
    own = {
        "spark.hadoop.fs.s3a.endpoint": "http://other",
        "spark.hadoop.fs.s3a.secret.key": "other",
        "spark.jars.packages": "a:b:1",
        "spark.jars.excludes": "c:d",
    }
    conf = conf_of(storage=MINIO, spark={"conf": own})
    assert s3a(conf, "endpoint") == "http://other"
    assert s3a(conf, "secret.key") == "other"
    assert conf["spark.jars.packages"] == joined("a:b:1", *s3_jars())
    assert conf["spark.jars.excludes"].startswith("c:d,")


@pytest.mark.parametrize("key", ["spark.jars.packages", "spark.jars"])
def test_jars_of_one_s_own_are_enough(key):
    """Who brings hadoop-aws brings what it needs."""
    conf = conf_of(storage=MINIO, spark={"conf": {key: "org.apache.hadoop:hadoop-aws:3.4.3"}})
    assert conf[key] == "org.apache.hadoop:hadoop-aws:3.4.3"
    assert "spark.jars.excludes" not in conf


def test_azure_and_google():
    """By the account's host; Google's credentials are the application default's on both sides."""
    host = "lake.dfs.core.windows.net"
    assert conf_of(storage={"adls.account-name": "lake", "adls.account-key": "k"}) == {
        f"spark.hadoop.fs.azure.account.key.{host}": "k"
    }
    sas = conf_of(storage={"adls.account-host": "h", "adls.sas-token": "s"})
    assert sas == {"spark.hadoop.fs.azure.account.auth.type.h": "SAS", "spark.hadoop.fs.azure.sas.fixed.token.h": "s"}
    client = {"adls.tenant-id": "t", "adls.client-id": "c", "adls.client-secret": "s"}
    oauth = conf_of(storage={"adls.account-name": "lake", **client})
    assert oauth[f"spark.hadoop.fs.azure.account.auth.type.{host}"] == "OAuth"
    assert oauth[f"spark.hadoop.fs.azure.account.oauth2.client.secret.{host}"] == "s"
    assert conf_of(storage={"adls.account-name": "lake"}) == conf_of(storage={"adls.token": "x"}) == {}
    vended = own_settings(f"abfss://raw@{host}/t", {"adls.account-name": "other", "adls.sas-token": "s"})
    assert vended[f"fs.azure.sas.fixed.token.{host}"] == "s", "that of the path"
    google = conf_of(storage={"gcs.project-id": "p", "gcs.service.host": "http://h"})
    assert google["spark.hadoop.fs.gs.project.id"] == "p"
    assert google["spark.hadoop.fs.gs.storage.root.url"] == "http://h"


def test_no_secret_is_on_the_command_line():
    """The JVM starts with what it needs to start: jars, memory, cluster; properties of stores come later."""
    own = {"spark.driver.memory": "1g", "spark.kubernetes.x.oauthToken": "made-up", "spark.sql.catalog.c.uri": "me:pw"}
    settings = with_stores(Settings(storage=MINIO, spark={"conf": own}))
    conf = session_conf(settings)
    started = launch_conf(conf)
    assert started["spark.driver.memory"] == "1g"
    assert started["spark.jars.packages"] == conf["spark.jars.packages"]
    assert started["spark.jars.excludes"] == conf["spark.jars.excludes"]
    assert not [key for key in started if key.startswith(("spark.hadoop.", "spark.sql.")) or "oauth" in key]
