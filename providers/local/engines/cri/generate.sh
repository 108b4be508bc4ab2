#!/usr/bin/env bash
# Makes api.gen.js and api.gen.d.ts again: CRI v1's messages and services from k8s.io/cri-api (Apache License 2.0).
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
# The first lines are its licence's.
"$here/../../../../.ci/generate-grpc" "$here" k8s.io/cri-api v0.36.3 pkg/apis/runtime/v1/api.proto 19
