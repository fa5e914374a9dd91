#!/usr/bin/env bash
# Builds the image of the Dockerfile without Docker, and proves that it starts and answers. Run it as root on Debian.
#
# The script makes a Debian base, buildah builds the image on it, and the image's own command runs as its own user in a
# chroot with its own namespaces and no network but loopback. dvsync syncs and follows a Delta table, PyIceberg and DuckDB
# read the Iceberg table from outside, SIGTERM ends dvsync, and a second start continues with the kept volume.
#
#   deploy/prove-image.sh PYTHON      a Python with dvsync's packages and those of its tests, such as .venv/bin/python
#
# TARGET=dvsync-slim proves the image without Spark, which overrides the engine of the configuration here.
# Needs debootstrap, buildah, iproute2 and Java 17, about ten minutes and 10 GB. Files stay in buildah's store and in $WORK.
# For registries behind a proxy with its own certificate, set CA=bundle.pem JAVA_TRUST_STORE=cacerts.
set -euo pipefail
cd "$(dirname "$0")/.."
PYTHON=$(realpath --no-symlinks "${1:?a Python with dvsync}")
WORK=${WORK:-/var/tmp/dvsync-image}
TARGET=${TARGET:-dvsync}
export BUILDAH_ISOLATION=chroot STORAGE_DRIVER=vfs PYTHONPATH=$PWD
mkdir -p "$WORK"/{outside,run}
say() { echo "== $*"; }

make_base() {
    say "a base from Debian"
    rm -rf "$WORK/root"
    debootstrap --variant=minbase --include=ca-certificates bookworm "$WORK/root" http://deb.debian.org/debian >"$WORK/base.log"
    chroot "$WORK/root" apt-get install --yes --no-install-recommends python3.11 python3.11-venv >>"$WORK/base.log" 2>&1
    chroot "$WORK/root" apt-get clean
    rm -rf "$WORK/root/var/lib/apt/lists/"*
    ln -sf python3.11 "$WORK/root/usr/bin/python"
    local container
    container=$(buildah from scratch)
    buildah add --quiet "$container" "$WORK/root" / >/dev/null
    buildah config --env PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin --env LANG=C.UTF-8 "$container"
    buildah commit --quiet --rm "$container" localhost/dvsync-base >/dev/null
}

build() {
    say "the Dockerfile"
    local reach=()
    if [[ -n ${CA:-} ]]; then
        cp -L "$CA" "$WORK/outside/ca.pem"
        reach+=(--build-arg PIP_CERT=/run/outside/ca.pem)
    fi
    if [[ -n ${JAVA_TRUST_STORE:-} ]]; then
        cp -L "$JAVA_TRUST_STORE" "$WORK/outside/cacerts"
        reach+=(--build-arg JAVA_TOOL_OPTIONS=-Djavax.net.ssl.trustStore=/run/outside/cacerts)
    fi
    buildah bud --layers --format docker --volume "$WORK/outside:/run/outside:ro" \
        --build-arg BASE=localhost/dvsync-base "${reach[@]}" --target "$TARGET" --tag dvsync . >"$WORK/build.log" 2>&1 ||
        { tail -n 20 "$WORK/build.log"; exit 1; }
    buildah inspect --type image dvsync >"$WORK/image.json"
    rm -rf "$WORK/oci"
    buildah push --quiet dvsync "oci:$WORK/oci"
    "$PYTHON" - "$WORK/image.json" "$WORK/oci" <<'PYTHON'
import json, pathlib, sys, tarfile
image, oci = json.loads(pathlib.Path(sys.argv[1]).read_text()), pathlib.Path(sys.argv[2])
blob = lambda digest: oci / "blobs" / digest.replace(":", "/")
manifest = json.loads(blob(json.loads((oci / "index.json").read_text())["manifests"][0]["digest"]).read_text())
layers = []
for layer in manifest["layers"]:
    with tarfile.open(blob(layer["digest"])) as tar:
        layers.append((layer["size"], sum(member.size for member in tar)))
steps = [step["created_by"] for step in image["Docker"]["history"] if not step.get("empty_layer")]
for step, (packed, size) in zip(steps, layers):
    print(f"{size / 1e6:8.1f} MB {packed / 1e6:8.1f} MB packed  {step[:90]}")
print(f"{sum(size for _, size in layers) / 1e6:8.1f} MB {sum(packed for packed, _ in layers) / 1e6:8.1f} MB packed  in all")
PYTHON
}

# Runs the image's own command without a network, as the image's user and with the image's environment.
start() {
    "$PYTHON" - "$WORK" <<'PYTHON'
import json, pathlib, shlex, sys
work = pathlib.Path(sys.argv[1])
config = json.loads((work / "image.json").read_text())["Docker"]["config"]
environment = [f"{key}" for key in (*config["Env"], "HOME=/home/dvsync")]
inside = ["chroot", f"--userspec={config['User']}", str(work / "container"), "env", "-i", *environment,
          "sh", "-c", f"cd {config['WorkingDir']} && exec \"$@\"", "sh"]
(work / "inside").write_text(shlex.join(inside))
(work / "command").write_text(shlex.join([*config["Entrypoint"], *config["Cmd"]]))
(work / "healthcheck").write_text(shlex.join(config["Healthcheck"]["Test"][1:]))
PYTHON
    cat >"$WORK/pid1.sh" <<SH
set -e
ip link set lo up
mount --make-rprivate /
mount --bind "$WORK/container" "$WORK/container"
mount -t proc proc "$WORK/container/proc"
mount --rbind /dev "$WORK/container/dev"
for folder in lake warehouse; do
    mkdir -p "$WORK/container$WORK/run/\$folder"
    mount --bind "$WORK/run/\$folder" "$WORK/container$WORK/run/\$folder"
done
mount -o remount,bind,ro "$WORK/container$WORK/run/lake"
mount --bind "$WORK/run/state" "$WORK/container/var/lib/dvsync"
cp "$WORK/run/config.yaml" "$WORK/container/etc/dvsync/config.yaml"
# The hosts file that container engines provide.
printf '127.0.0.1 localhost\n127.0.1.1 %s\n' "\$(hostname)" >"$WORK/container/etc/hosts"
exec $(cat "$WORK/inside") $(cat "$WORK/command")
SH
    unshare --net --mount --pid --fork --kill-child bash "$WORK/pid1.sh" >"$WORK/run/log" 2>&1 &
    unshared=$!
    until daemon=$(pgrep --parent "$unshared"); do sleep 0.1; done
}

inside() { nsenter --target "$daemon" --net --pid --mount bash -c "$(cat "$WORK/inside") $*"; }

wait_until() { # SECONDS COMMAND...
    local end=$((SECONDS + $1))
    shift
    until "$@" >"$WORK/run/answer" 2>&1; do
        if ((SECONDS > end)) || ! kill -0 "$daemon"; then
            cat "$WORK/run/answer" "$WORK/run/log"
            echo "FAILED: $*"
            exit 1
        fi
        sleep 1
    done
}

shows_version() {
    inside dvsync status --json | "$PYTHON" -c "import json, sys; sys.exit(json.load(sys.stdin)[0]['synced_version'] != $1)"
}

stop() {
    local begun=$SECONDS code=0
    kill -TERM "$daemon"
    wait "$unshared" || code=$?
    say "SIGTERM: exit code $code after $((SECONDS - begun)) s"
    [[ $code -eq 0 ]]
}

compare() {
    "$PYTHON" - "$WORK/run" "$1" <<'PYTHON'
import sys
from pyiceberg.catalog import load_catalog
from tests.kit.readers import duckdb_connection
run, expected = sys.argv[1], int(sys.argv[2])
table = load_catalog("local", type="sql", uri=f"sqlite:///{run}/state/catalog.db").load_table("sales.orders")
pyiceberg = table.scan().to_arrow()
found = duckdb_connection().execute(
    "select count(*), sum(order_id) from iceberg_scan(?)", [table.metadata_location]
).fetchone()
summed = sum(pyiceberg["order_id"].to_pylist())
print(f"== Delta {expected} rows, PyIceberg {pyiceberg.num_rows}, DuckDB {found[0]}; sums {summed} and {found[1]}")
sys.exit((pyiceberg.num_rows, *found) != (expected, expected, summed))
PYTHON
}

# Runs Spark outside of the container, as the writer of the Delta table: SQL in which {t} is the table. Prints its live rows.
spark_sql() {
    "$PYTHON" - "$WORK/run/lake/orders" "$@" 2>>"$WORK/spark.log" <<'PYTHON'
import sys
from daemon.observe.log import configure_logging
from daemon.config.settings import LogSettings
configure_logging(LogSettings(), sys.stderr)
from daemon.spark.session import SparkPipeline
from daemon.config.settings import SparkSettings
folder, statements = sys.argv[1], sys.argv[2:]
pipeline = SparkPipeline(SparkSettings(master="local[1]"))
with pipeline.session() as spark:
    for statement in statements:
        spark.sql(statement.format(t=f"delta.`{folder}`"))
    sys.stdout.write(f"{spark.read.format('delta').load(folder).count()}\n")
pipeline.close()
PYTHON
}

buildah inspect --type image localhost/dvsync-base >/dev/null 2>&1 || make_base
build

rm -rf "$WORK/run"
mkdir -p "$WORK"/run/{lake,warehouse,state}
rows=$(spark_sql "CREATE TABLE {t} (order_id BIGINT, status STRING) USING delta TBLPROPERTIES ('delta.enableDeletionVectors' = true)" \
    "INSERT INTO {t} SELECT id, 'open' FROM range(0, 10000, 1, 2)" "DELETE FROM {t} WHERE order_id % 10 = 3")
say "a Delta table of 3 versions, $rows rows"
cat >"$WORK/run/config.yaml" <<YAML
catalogs: {local: {type: sql, uri: "sqlite:////var/lib/dvsync/catalog.db", warehouse: $WORK/run/warehouse}}
defaults: {engine: spark}
tables: [{source: $WORK/run/lake/orders, target: sales.orders, poll_interval: 1s}]
YAML
chown -R 10001:10001 "$WORK"/run/{warehouse,state}

container=$(buildah from dvsync)
mounted=$(buildah mount "$container")
ln -sfn "$mounted" "$WORK/container"
trap 'kill -KILL "${daemon:-}" 2>/dev/null || true; buildah rm "$container" >/dev/null' EXIT

begun=$SECONDS
start
wait_until 30 inside "$(cat "$WORK/healthcheck")"
say "alive after $((SECONDS - begun)) s: $(cat "$WORK/run/answer")"
wait_until 120 shows_version 2
wait_until 30 inside dvsync healthcheck --ready
say "ready after $((SECONDS - begun)) s, the first sync without a network: $(cat "$WORK/run/answer")"
say "it runs as user $(stat --format '%u' "/proc/$daemon"), process $(awk '/^NSpid/ {print $NF}' "/proc/$daemon/status") there"
if [[ $TARGET == dvsync ]]; then inside dvsync setup; fi
compare "$rows"
rows=$(spark_sql "DELETE FROM {t} WHERE order_id % 10 = 4")
wait_until 30 shows_version 3
compare "$rows"
stop
say "started again on the kept volume"
start
wait_until 30 inside dvsync healthcheck --ready
shows_version 3
compare "$rows"
stop
say "proven"
