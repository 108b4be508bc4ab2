//go:build tools

// Package tools keeps the CSI project's sidecars, and its example of a populator of volumes, in go.mod and go.sum, in one module so that they share what they are
// built from: the libraries of Kubernetes that csi-provisioner's own release names.
package tools

import (
	_ "github.com/kubernetes-csi/external-attacher/v4/cmd/csi-attacher"
	_ "github.com/kubernetes-csi/external-provisioner/v6/cmd/csi-provisioner"
	_ "github.com/kubernetes-csi/external-resizer/cmd/csi-resizer"
	_ "github.com/kubernetes-csi/external-snapshotter/v8/cmd/csi-snapshotter"
	_ "github.com/kubernetes-csi/external-snapshotter/v8/cmd/snapshot-controller"
	_ "github.com/kubernetes-csi/lib-volume-populator/example/hello-populator"
)
