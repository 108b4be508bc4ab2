// Package e2e runs virtual-kubelet's own end-to-end suite, unchanged, against a node of vmlet.
package e2e

import (
	"flag"
	"testing"
	"time"

	vke2e "github.com/virtual-kubelet/virtual-kubelet/test/e2e"
)

var (
	kubeconfig = flag.String("kubeconfig", "", "kubeconfig of a user who may do everything")
	namespace  = flag.String("namespace", "default", "namespace that the suite makes its objects in")
	nodeName   = flag.String("node-name", "", "name of the node under test")
)

func TestEndToEnd(t *testing.T) {
	suite := vke2e.NewEndToEndTestSuite(vke2e.EndToEndTestSuiteConfig{
		Kubeconfig:   *kubeconfig,
		Namespace:    *namespace,
		NodeName:     *nodeName,
		WatchTimeout: time.Minute,
		Setup:        func() error { return nil },
		Teardown:     func() error { return nil },
		// Nothing is skipped: the suite counts as passed only when all of its tests ran.
		ShouldSkipTest: func(string) bool { return false },
	})
	suite.Run(t)
}
