// CoreDNS as Kubernetes' test image agnhost has it, with the plugins alone that the tests' Corefiles in pods name.
package main

import (
	"github.com/coredns/coredns/coremain"

	_ "github.com/coredns/coredns/plugin/hosts"
	_ "github.com/coredns/coredns/plugin/log"
)

func main() { coremain.Run() }
