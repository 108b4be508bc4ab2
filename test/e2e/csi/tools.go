//go:build tools

// Package tools keeps csi-sanity in go.mod and go.sum: the CSI project's own checks of a driver.
package tools

import _ "github.com/kubernetes-csi/csi-test/v5/cmd/csi-sanity"
