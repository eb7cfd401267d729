# The image runs any subcommand: docker run IMAGE agent --help. An agent needs
# its host directory on a tmpfs or hugetlbfs mount and a socket directory that
# it shares with the engines on its node.

FROM golang:1.26-bookworm AS build
RUN apt-get update \
 && apt-get install -y --no-install-recommends libzmq3-dev pkg-config \
 && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY . .
ARG VERSION=devel
RUN CGO_ENABLED=1 go build -trimpath -ldflags "-s -w -X main.version=${VERSION}" -o /out/ ./cmd/blockyard ./cmd/blockyard-lab

FROM debian:bookworm-slim
RUN apt-get update \
 && apt-get install -y --no-install-recommends libzmq5 ca-certificates \
 && rm -rf /var/lib/apt/lists/* \
 && useradd --system --uid 10001 --no-create-home blockyard
COPY --from=build /out/blockyard /out/blockyard-lab /usr/local/bin/
USER 10001
ENTRYPOINT ["/usr/local/bin/blockyard"]
CMD ["--help"]
