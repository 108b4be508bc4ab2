#!/usr/bin/env bash
# Makes api.gen.js and api.gen.d.ts again: CSI's messages and services from its specification (Apache License 2.0).
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
"$here/../../.ci/generate-grpc" "$here" github.com/container-storage-interface/spec v1.13.0 csi.proto
