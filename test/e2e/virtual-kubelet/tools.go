//go:build tools

// Keeps the packages of virtual-kubelet's own command in go.mod and go.sum: the bench builds it from this module.
package e2e

import _ "github.com/virtual-kubelet/virtual-kubelet/cmd/virtual-kubelet"
