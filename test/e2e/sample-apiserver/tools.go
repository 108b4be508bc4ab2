//go:build tools

// Package tools keeps Kubernetes' sample of an API server of one's own, which its test of the aggregator has run in pods.
package tools

import (
	_ "k8s.io/sample-apiserver"
)
