//go:build tools

// Package tools pins Multus, which gives pods more networks than one.
package tools

import _ "gopkg.in/k8snetworkplumbingwg/multus-cni.v4/cmd/multus"
