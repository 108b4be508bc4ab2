# The image of vmlet: a program, the Node that it runs on, and nothing else: no shell, no package manager, no root.
#
#   docker build --build-arg BUILD_IMAGE=docker.io/library/node:24-bookworm-slim@sha256:... \
#                --build-arg BASE_IMAGE=gcr.io/distroless/cc-debian12@sha256:... --tag vmlet .
#
# Bases must be given by digest, so that what is built today can be built again. `--target backend` makes the image of the
# reference backend, which needs a userland and container tools; its base is BACKEND_IMAGE (debian:bookworm-slim@sha256:...),
# and GO_IMAGE (golang:1.26-bookworm@sha256:..., of the same Debian) builds what Debian has too old; both are given besides
# the other two.

ARG BUILD_IMAGE
ARG BASE_IMAGE
ARG BACKEND_IMAGE=scratch
ARG GO_IMAGE=scratch

FROM ${BUILD_IMAGE} AS build
ARG BUILD_IMAGE
ARG BASE_IMAGE
RUN for image in "$BUILD_IMAGE" "$BASE_IMAGE"; do \
      case "$image" in *@sha256:*) ;; *) echo "$image: give the image by digest (NAME@sha256:...)" >&2; exit 1 ;; esac; \
    done
WORKDIR /src
COPY package.json package-lock.json .npmrc ./
RUN npm ci --ignore-scripts
COPY . .
ARG SOURCE_DATE_EPOCH=0
RUN SOURCE_DATE_EPOCH=$SOURCE_DATE_EPOCH npm run assemble -- /image

# containerd of engine cri and runc of both engines. Debian's containerd is older than 2.0, its runc has no user namespaces
# for volumes. The modules pin them; no script of theirs runs. Another Go than this fetches it, for which it has a checksum;
# without their build's id programs are the same wherever they are built.
FROM ${GO_IMAGE} AS runtime
ENV GOTOOLCHAIN=go1.26.8
ARG BACKEND_IMAGE
ARG GO_IMAGE
RUN for image in "$BACKEND_IMAGE" "$GO_IMAGE"; do \
      case "$image" in *@sha256:*) ;; *) echo "$image: give the image by digest (NAME@sha256:...)" >&2; exit 1 ;; esac; \
    done
RUN apt-get update && apt-get install --yes --no-install-recommends gcc libc6-dev libseccomp-dev pkg-config
COPY helm/runtime /runtime
RUN cd /runtime/containerd \
 && CGO_ENABLED=0 go build -trimpath -tags "no_btrfs no_devmapper no_zfs" \
      -ldflags "-s -w -buildid= -X github.com/containerd/containerd/v2/version.Version=v2.2.0" -o /runtime/bin/ \
      github.com/containerd/containerd/v2/cmd/containerd github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2
RUN cd /runtime/runc \
 && CGO_ENABLED=1 go build -trimpath -tags seccomp -ldflags "-s -w -buildid= -X main.version=1.3.3" -o /runtime/bin/ \
      github.com/opencontainers/runc

FROM ${BACKEND_IMAGE} AS backend
RUN apt-get update \
 && apt-get install --yes --no-install-recommends \
      ca-certificates conntrack containernetworking-plugins golang-github-containers-common iproute2 libseccomp2 nftables \
      procps tini umoci util-linux \
 && rm -rf /var/lib/apt/lists/*
COPY --from=runtime /runtime/bin /usr/local/bin
COPY --from=build /image/app /app
# Engines oci and cri make networks, mounts and cgroups.
USER 0:0
# Commands whose callers have gone come to process 1, which has to reap them: their containers could not end otherwise.
ENTRYPOINT ["/usr/bin/tini", "--", "/app/bin/node", "--disable-proto=delete", "--disable-sigusr1", "/app/dist/src/cli/main.js"]

FROM ${BASE_IMAGE} AS agent
COPY --from=build /image/app /app
# Garbage that is kept is memory all the same: V8's young generation has semispaces of 4 MiB instead of 16, malloc one
# arena instead of eight for each core. With 1,000 pods that is 80 MiB less, for no CPU time that could be measured.
ENV MALLOC_ARENA_MAX=1
USER 65532:65532
# 10250 the kubelet API, 10248 health and metrics.
EXPOSE 10250 10248
ENTRYPOINT ["/app/bin/node", "--disable-proto=delete", "--disable-sigusr1", "--max-semi-space-size=4", "/app/dist/src/cli/main.js"]
CMD ["--help"]
