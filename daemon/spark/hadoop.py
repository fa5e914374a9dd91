"""Translates PyIceberg's FileIO properties to Hadoop settings, so that Spark uses the same stores as dvsync. Pure.

Hadoop documentation, "Hadoop-AWS module" and "Hadoop Azure Support: ABFS"; Google's connector, "Configuration
properties".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from urllib.parse import urlsplit

from daemon.config.settings import Settings, SparkSettings
from daemon.spark.jars import JAR_LISTS, with_s3_jars

HADOOP = "spark.hadoop."
S3_SCHEMES = ("s3", "s3a", "s3n")
S3A = "org.apache.hadoop.fs.s3a."
# PyIceberg's names of each property, and S3A's name.
S3_KEYS = (
    (("s3.endpoint",), "fs.s3a.endpoint"),
    (("s3.region", "client.region"), "fs.s3a.endpoint.region"),
    (("s3.access-key-id", "client.access-key-id"), "fs.s3a.access.key"),
    (("s3.secret-access-key", "client.secret-access-key"), "fs.s3a.secret.key"),
    (("s3.session-token", "client.session-token"), "fs.s3a.session.token"),
    (("s3.role-arn", "client.role-arn"), "fs.s3a.assumed.role.arn"),
    (("s3.role-session-name", "client.role-session-name"), "fs.s3a.assumed.role.session.name"),
)
S3_DEFAULTS = {
    **{f"fs.{scheme}.impl": f"{S3A}S3AFileSystem" for scheme in S3_SCHEMES},
    **{f"fs.AbstractFileSystem.{scheme}.impl": f"{S3A}S3A" for scheme in S3_SCHEMES},
    # S3A's own retries take minutes before they report that a store is away; dvsync retries by itself.
    "fs.s3a.attempts.maximum": "3",
    "fs.s3a.retry.limit": "3",
}
# Environment, web identity, profile, container, instance, as in PyArrow. S3A's own list is shorter.
DEFAULT_CHAIN = "software.amazon.awssdk.auth.credentials.DefaultCredentialsProvider"


def with_stores(settings: Settings, *sources: str) -> SparkSettings:
    """Add to Spark's settings what the configured stores and those of `sources` need. `spark.conf` wins."""
    conf = {f"{HADOOP}{key}": value for key, value in _hadoop_settings(settings, sources).items()}
    conf |= settings.spark.conf
    has_jars = any("hadoop-aws" in conf.get(key, "") for key in JAR_LISTS)
    spark = settings.spark.model_copy(update={"conf": conf})
    return with_s3_jars(spark) if _uses_s3(settings, sources) and not has_jars else spark


def _hadoop_settings(settings: Settings, sources: Iterable[str]) -> dict[str, str]:
    shared = settings.file_properties()
    found = {**_azure(shared), **_google(shared)}
    if not _uses_s3(settings, sources):
        return found
    found |= S3_DEFAULTS | s3a_settings(shared)
    for table in settings.tables:
        # A catalog's properties apply only to the sources of its tables, so set them by bucket.
        own = s3a_settings(settings.file_properties(table.catalog))
        if _is_on_s3(table.source) and own != s3a_settings(shared):
            found |= _of_bucket(table.source, own)
    return found


def own_settings(location: str, properties: Mapping[str, str]) -> dict[str, str]:
    """Return the settings for the files at `location` alone. Hadoop keeps no client with them."""
    settings = _of_bucket(location, s3a_settings(properties)) if _is_on_s3(location) else {}
    place = urlsplit(location)
    # On ADLS, `container@host`; Hadoop looks for the host as it is spelled.
    _, at, host = place.netloc.rpartition("@")
    return {**_azure(properties, host if at else None), **settings, f"fs.{place.scheme}.impl.disable.cache": "true"}


def _of_bucket(location: str, settings: Mapping[str, str]) -> dict[str, str]:
    bucket = urlsplit(location).netloc
    return {f"fs.s3a.bucket.{bucket}.{key.removeprefix('fs.s3a.')}": value for key, value in settings.items()}


def s3a_settings(properties: Mapping[str, str]) -> dict[str, str]:
    """Translate the S3 properties in `properties` to S3A settings under Hadoop's keys."""
    found = {}
    for names, key in S3_KEYS:
        if value := next((properties[name] for name in names if name in properties), None):
            found[key] = value
    if endpoint := found.get("fs.s3a.endpoint"):
        # With an own endpoint, put the bucket into the path: its host name works only if someone added it to the DNS.
        virtual = properties.get("s3.force-virtual-addressing", "false").lower() == "true"
        found["fs.s3a.path.style.access"] = "false" if virtual else "true"
        found["fs.s3a.connection.ssl.enabled"] = "false" if endpoint.startswith("http://") else "true"
    for name, key in (
        ("s3.connect-timeout", "fs.s3a.connection.establish.timeout"),
        ("s3.request-timeout", "fs.s3a.connection.timeout"),
    ):
        if seconds := properties.get(name):
            found[key] = f"{round(float(seconds) * 1000)}ms"
    proxy = urlsplit(properties.get("s3.proxy-uri", ""))
    proxies = {"host": proxy.hostname, "port": proxy.port, "username": proxy.username, "password": proxy.password}
    found |= {f"fs.s3a.proxy.{key}": str(value) for key, value in proxies.items() if value}
    provider = _provider(properties, found)
    if "fs.s3a.assumed.role.arn" in found:
        found["fs.s3a.assumed.role.credentials.provider"] = provider
        provider = f"{S3A}auth.AssumedRoleCredentialProvider"
    return {**found, "fs.s3a.aws.credentials.provider": provider}


def _provider(properties: Mapping[str, str], found: Mapping[str, str]) -> str:
    if properties.get("s3.anonymous", "false").lower() == "true":
        return f"{S3A}AnonymousAWSCredentialsProvider"
    if "fs.s3a.session.token" in found:
        return f"{S3A}TemporaryAWSCredentialsProvider"
    return f"{S3A}SimpleAWSCredentialsProvider" if "fs.s3a.access.key" in found else DEFAULT_CHAIN


def _azure(properties: Mapping[str, str], host: str | None = None) -> dict[str, str]:
    account = properties.get("adls.account-name")
    host = host or properties.get("adls.account-host") or (account and f"{account}.dfs.core.windows.net")
    if not host:
        return {}
    if key := properties.get("adls.account-key"):
        return {f"fs.azure.account.key.{host}": key}
    if token := properties.get("adls.sas-token"):
        return {f"fs.azure.account.auth.type.{host}": "SAS", f"fs.azure.sas.fixed.token.{host}": token}
    tenant, client, secret = (properties.get(f"adls.{name}") for name in ("tenant-id", "client-id", "client-secret"))
    if tenant and client and secret:
        oauth = "org.apache.hadoop.fs.azurebfs.oauth2.ClientCredsTokenProvider"
        return {
            f"fs.azure.account.auth.type.{host}": "OAuth",
            f"fs.azure.account.oauth.provider.type.{host}": oauth,
            f"fs.azure.account.oauth2.client.endpoint.{host}": f"https://login.microsoftonline.com/{tenant}/oauth2/token",
            f"fs.azure.account.oauth2.client.id.{host}": client,
            f"fs.azure.account.oauth2.client.secret.{host}": secret,
        }
    return {}


def _google(properties: Mapping[str, str]) -> dict[str, str]:
    """Translate the `gcs.` properties. PyIceberg and Spark both use Google's application default credentials.

    A token cannot be passed on, because the connector has no setting for it.
    """
    if not any(name.startswith("gcs.") for name in properties):
        return {}
    found = {
        "fs.gs.impl": "com.google.cloud.hadoop.fs.gcs.GoogleHadoopFileSystem",
        "fs.AbstractFileSystem.gs.impl": "com.google.cloud.hadoop.fs.gcs.GoogleHadoopFS",
    }
    if project := properties.get("gcs.project-id"):
        found["fs.gs.project.id"] = project
    if host := properties.get("gcs.service.host"):
        found["fs.gs.storage.root.url"] = host
    return found


def _uses_s3(settings: Settings, sources: Iterable[str]) -> bool:
    stores = (settings.storage, *settings.catalogs.values())
    if any(name.startswith("s3.") for properties in stores for name in properties):
        return True
    locations = [*sources, *(properties.get("warehouse", "") for properties in settings.catalogs.values())]
    for table in settings.tables:
        locations += (table.source, table.location or "", table.delete_files_location or "")
    return any(map(_is_on_s3, locations))


def _is_on_s3(location: str) -> bool:
    return location.partition("://")[0] in S3_SCHEMES and "://" in location
