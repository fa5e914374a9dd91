# The daemon with Python 3.11, Java 17 and Spark's jars. The configuration is mounted at /etc/dvsync/config.yaml.
FROM python:3.11-slim-bookworm AS build
WORKDIR /src
RUN python -m venv /opt/dvsync
COPY requirements.lock pyproject.toml README.md ./
COPY daemon daemon
COPY state state
RUN /opt/dvsync/bin/pip install --no-cache-dir --constraint requirements.lock .

FROM python:3.11-slim-bookworm
RUN apt-get update \
    && apt-get install --yes --no-install-recommends openjdk-17-jre-headless procps \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --create-home --uid 10001 dvsync \
    && install --directory --owner=dvsync --group=dvsync /var/lib/dvsync /etc/dvsync
COPY --from=build /opt/dvsync /opt/dvsync
USER dvsync
WORKDIR /var/lib/dvsync
ENV PATH=/opt/dvsync/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    DVSYNC_CONFIG=/etc/dvsync/config.yaml \
    DVSYNC_STATE__URL=sqlite:////var/lib/dvsync/dvsync.db \
    DVSYNC_HEALTH__HOST=0.0.0.0 \
    DVSYNC_LOG__FORMAT=json
# Into the user's Ivy cache, so that the container needs no Maven repository when it runs.
RUN python -m daemon.pipeline.jars --s3
VOLUME /var/lib/dvsync
EXPOSE 8080
HEALTHCHECK --interval=15s --timeout=5s --start-period=30s --retries=3 \
    CMD ["dvsync", "healthcheck"]
STOPSIGNAL SIGTERM
ENTRYPOINT ["dvsync"]
CMD ["run"]
