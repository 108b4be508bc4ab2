//go:build tools

// Package tools keeps Prometheus' node exporter in go.mod and go.sum: a program that wants the node itself.
package tools

import _ "github.com/prometheus/node_exporter"
