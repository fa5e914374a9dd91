# The daemon with Python 3.11, Java 17 and Spark's jars. The configuration is mounted at /etc/dvsync/config.yaml.
ARG BASE=python:3.11-slim-bookworm

FROM ${BASE} AS dependencies
WORKDIR /src
# How the build reaches its package index, where a proxy or a mirror of your own is in the way; the image keeps neither.
ARG PIP_INDEX_URL
ARG PIP_CERT
COPY requirements.lock pyproject.toml ./
RUN python -m venv /opt/dvsync \
    && python -c "import tomllib; print(*tomllib.load(open('pyproject.toml', 'rb'))['project']['dependencies'], sep='\n')" \
        >dependencies.txt \
    && /opt/dvsync/bin/pip install --no-cache-dir --constraint requirements.lock --requirement dependencies.txt

FROM dependencies AS wheel
ARG PIP_INDEX_URL
ARG PIP_CERT
COPY README.md ./
COPY daemon daemon
COPY state state
RUN python -m venv /opt/build \
    && /opt/build/bin/pip install --no-cache-dir --constraint requirements.lock hatchling \
    && /opt/build/bin/pip wheel --no-cache-dir --no-deps --no-build-isolation --wheel-dir /dist .

FROM ${BASE} AS java
# Debian's mirrors keep only the newest build of a version, and a security fix is wanted.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends openjdk-17-jre-headless procps \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --create-home --uid 10001 dvsync \
    && install --directory --owner=dvsync --group=dvsync /var/lib/dvsync /etc/dvsync
COPY --from=dependencies /opt/dvsync /opt/dvsync
ENV PATH=/opt/dvsync/bin:$PATH

FROM java AS jars
# For the same reason, as -Djavax.net.ssl.trustStore=… or -Dhttps.proxyHost=…
ARG JAVA_TOOL_OPTIONS
COPY --from=wheel /dist /opt/dvsync/dist
RUN pip install --no-cache-dir --no-deps --no-index /opt/dvsync/dist/*.whl
USER 10001:10001
# Those for S3, too. Further jars: COPY a configuration that names them in spark.conf, and `dvsync setup --config` it.
RUN dvsync setup --s3

FROM java
COPY --from=jars --chown=dvsync:dvsync /home/dvsync/.ivy2.5.2 /home/dvsync/.ivy2.5.2
# Last, and small: a new release of dvsync leaves the layers above as they are.
COPY --from=wheel /dist /opt/dvsync/dist
RUN pip install --no-cache-dir --no-deps --no-index /opt/dvsync/dist/*.whl
USER 10001:10001
WORKDIR /var/lib/dvsync
ENV PYTHONUNBUFFERED=1 \
    DVSYNC_CONFIG=/etc/dvsync/config.yaml \
    DVSYNC_STATE__URL=sqlite:////var/lib/dvsync/dvsync.db \
    DVSYNC_HEALTH__HOST=0.0.0.0 \
    DVSYNC_LOG__FORMAT=json
VOLUME /var/lib/dvsync
EXPOSE 8080
HEALTHCHECK --interval=15s --timeout=10s --start-period=30s --retries=3 \
    CMD ["dvsync", "healthcheck"]
STOPSIGNAL SIGTERM
ENTRYPOINT ["dvsync"]
CMD ["run"]
