# Two images: dvsync, with Java 17 and Spark's jars, and dvsync-slim (--target dvsync-slim), which works without Spark.
# The configuration is mounted at /etc/dvsync/config.yaml.
ARG BASE=python:3.11-slim-bookworm

FROM ${BASE} AS slim-packages
WORKDIR /src
# How the build reaches its package index, where a proxy or a mirror of your own is in the way; the image keeps neither.
ARG PIP_INDEX_URL
ARG PIP_CERT
# hadolint ignore=DL3008
RUN apt-get update && apt-get install --yes --no-install-recommends binutils && rm -rf /var/lib/apt/lists/*
COPY requirements.lock pyproject.toml ./
# Libraries come with symbols for debuggers, 75 MB in all. Those that pip's tools have patched (*.libs) stay as they are.
RUN python -m venv /opt/build \
    && python -m venv --without-pip /opt/dvsync \
    && python -c "import tomllib; project = tomllib.load(open('pyproject.toml', 'rb'))['project']; \
print(*project['dependencies'], sep='\n', file=open('slim.txt', 'w')); \
print(*project['optional-dependencies']['spark'], sep='\n', file=open('spark.txt', 'w'))" \
    && /opt/build/bin/pip --python /opt/dvsync/bin/python install --no-cache-dir \
        --constraint requirements.lock --requirement slim.txt \
    && find /opt/dvsync \( -name '*.so' -o -name '*.so.*' \) -not -path '*.libs/*' -exec strip --strip-unneeded {} +

FROM slim-packages AS packages
ARG PIP_INDEX_URL
ARG PIP_CERT
RUN /opt/build/bin/pip --python /opt/dvsync/bin/python install --no-cache-dir \
        --constraint requirements.lock --requirement spark.txt

FROM slim-packages AS wheel
ARG PIP_INDEX_URL
ARG PIP_CERT
COPY README.md ./
COPY daemon daemon
COPY state state
RUN /opt/build/bin/pip install --no-cache-dir --constraint requirements.lock hatchling \
    && /opt/build/bin/pip wheel --no-cache-dir --no-deps --no-build-isolation --wheel-dir /dist . \
    && /opt/build/bin/pip --python /opt/dvsync/bin/python install --no-cache-dir --no-deps --no-index \
        --prefix /opt/own /dist/*.whl

FROM ${BASE} AS runtime
RUN useradd --create-home --uid 10001 dvsync \
    && install --directory --owner=dvsync --group=dvsync /var/lib/dvsync /etc/dvsync
WORKDIR /var/lib/dvsync
ENV PATH=/opt/dvsync/bin:$PATH \
    PYTHONUNBUFFERED=1 \
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

FROM runtime AS dvsync-slim
COPY --from=slim-packages /opt/dvsync /opt/dvsync
COPY --from=wheel /opt/own /opt/dvsync
ENV DVSYNC_DEFAULTS__ENGINE=local
USER 10001:10001

FROM runtime AS java
# Debian's mirrors keep only the newest build of a version, and a security fix is wanted.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends openjdk-17-jre-headless procps \
    && rm -rf /var/lib/apt/lists/*
COPY --from=packages /opt/dvsync /opt/dvsync

FROM java AS jars
# For the same reason, as -Djavax.net.ssl.trustStore=… or -Dhttps.proxyHost=…
ARG JAVA_TOOL_OPTIONS
COPY --from=wheel /opt/own /opt/dvsync
USER 10001:10001
# Those for S3, too. Further jars: COPY a configuration that names them in spark.conf, and `dvsync setup --config` it.
RUN dvsync setup --s3

FROM java AS dvsync
COPY --from=jars --chown=dvsync:dvsync /home/dvsync/.ivy2.5.2 /home/dvsync/.ivy2.5.2
# Last, and small: a new release of dvsync leaves the layers above as they are.
COPY --from=wheel /opt/own /opt/dvsync
USER 10001:10001
