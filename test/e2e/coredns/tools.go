//go:build tools

// Package tools keeps CoreDNS in go.mod and go.sum: the DNS server of the cluster that Kubernetes' own tests run against.
package tools

import _ "github.com/coredns/coredns"
