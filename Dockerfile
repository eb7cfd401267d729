# The image runs any subcommand as a user of its own: docker run IMAGE agent --help.
#
# Its defaults (deploy/image/blockyard.yaml) fit a container, and a flag or variable wins over them. The agent and the
# router listen at all addresses of the container (9400, 8090): publish the ports only where
# Prometheus, routers and gateways are. An agent needs room for its host tier in /dev/shm
# (--shm-size), and shares /run/blockyard and its pid namespace with the engines of its node.

FROM golang:1.26-bookworm AS build
RUN apt-get update \
 && apt-get install -y --no-install-recommends libzmq3-dev pkg-config \
 && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY . .
ARG VERSION=devel
RUN CGO_ENABLED=1 go build -trimpath -buildvcs=false -ldflags "-s -w -X main.version=${VERSION}" -o /out/ ./cmd/blockyard ./cmd/blockyard-lab

FROM debian:bookworm-slim
RUN apt-get update \
 && apt-get install -y --no-install-recommends libzmq5 ca-certificates \
 && rm -rf /var/lib/apt/lists/* \
 && useradd --system --uid 10001 --user-group --no-create-home blockyard \
 && install -d -m 0755 -o blockyard -g blockyard /run/blockyard /var/lib/blockyard /tiers/host /tiers/disk
COPY --from=build /out/blockyard /out/blockyard-lab /usr/local/bin/
COPY deploy/image/blockyard.yaml /etc/blockyard/
ENV BLOCKYARD_CONFIG=/etc/blockyard/blockyard.yaml
USER 10001:10001
VOLUME ["/run/blockyard", "/var/lib/blockyard"]
EXPOSE 9400 8090 8000
STOPSIGNAL SIGTERM
ENTRYPOINT ["/usr/local/bin/blockyard"]
CMD ["--help"]
