#!/usr/bin/env bash
# Makes the messages and services in api/ again: the APIs between a kubelet and the plugins of its node, from
# k8s.io/kubelet (Apache License 2.0).
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
make() { "$here/../../../.ci/generate-grpc" "$here/api/$1" k8s.io/kubelet "${3:-v0.36.3}" "pkg/apis/$2/api.proto"; }
make device-plugin deviceplugin/v1beta1
make registration pluginregistration/v1
make pod-resources podresources/v1
make dra dra/v1
make dra-v1beta1 dra/v1beta1
make dra-health dra-health/v1 v0.37.1
make dra-health-v1alpha1 dra-health/v1alpha1 v0.37.1
