//go:build tools

// Package tools pins the OCI runtime below engine cri's containerd: Debian's has no user namespaces for volumes.
package tools

import (
	_ "github.com/opencontainers/runc"
)
