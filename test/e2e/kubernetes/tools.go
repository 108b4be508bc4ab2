//go:build tools

// Package tools keeps the programs that the end-to-end tests build in go.mod and go.sum: Kubernetes' own e2e suite, the
// programs of its test images, kube-proxy, metrics-server and the sample of an API server. ../controlplane has the same versions
// of everything, so what they share is compiled once.
package tools

import (
	_ "k8s.io/kubernetes/cmd/kube-proxy"
	_ "k8s.io/kubernetes/test/e2e"
	_ "k8s.io/kubernetes/test/images/agnhost"
	_ "k8s.io/kubernetes/test/images/nonewprivs"
	_ "k8s.io/sample-apiserver"
	_ "sigs.k8s.io/metrics-server/cmd/metrics-server"
)
