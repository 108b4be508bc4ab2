//go:build tools

// Package tools pins kube-router, whose firewall is run beside the nodes.
package tools

import _ "github.com/cloudnativelabs/kube-router/v2/cmd/kube-router"
