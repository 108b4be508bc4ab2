//go:build tools

// Package tools pins gVisor, another handler of engine cri's containerd.
package tools

import (
	_ "gvisor.dev/gvisor/runsc"
	_ "gvisor.dev/gvisor/shim"
)
