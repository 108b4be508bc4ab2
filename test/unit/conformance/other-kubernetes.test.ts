import { expect, test } from "vitest";
import { controlPlaneGoMod, wantedKubernetes } from "../../e2e/harness/other-kubernetes.ts";

test.each([
  ["that is pinned where the environment names none", {}, "1.36.3"],
  ["that is pinned where the environment's is empty", { VMLET_TEST_KUBERNETES: "" }, "1.36.3"],
  ["of the environment", { VMLET_TEST_KUBERNETES: "1.37.1" }, "1.37.1"],
])("the control plane is of the version %s", (_, env, version) => {
  expect(wantedKubernetes("1.36.3", env)).toBe(version);
});

test.each(["v1.37.1", "1.37", "1.37.1 -o /etc/passwd", "1.37.0-rc.1"])(
  "%j is no version of a control plane",
  (wanted) => {
    expect(() => wantedKubernetes("1.36.3", { VMLET_TEST_KUBERNETES: wanted })).toThrow(
      /VMLET_TEST_KUBERNETES is .*1\.36\.3/,
    );
  },
);

const KUBERNETES = `// a comment
module k8s.io/kubernetes

go 1.26.0

require (
	github.com/spf13/cobra v1.10.2
	k8s.io/api v0.0.0
	k8s.io/klog/v2 v2.140.0
)

require (
	go.etcd.io/etcd/server/v3 v3.7.0 // indirect
)

replace (
	k8s.io/api => ./staging/src/k8s.io/api
	k8s.io/kubelet => ./staging/src/k8s.io/kubelet
)
`;

test("its module takes what was published of the staging modules, and all else as Kubernetes does", () => {
  const module = controlPlaneGoMod("1.37.1", KUBERNETES);
  expect(module).toBe(`module vmlet.dev/controlplane
go 1.26.0
require (
	k8s.io/kubernetes v1.37.1
	k8s.io/component-base v0.37.1
	github.com/spf13/cobra v1.10.2
	go.etcd.io/etcd/server/v3 v3.7.0
)
replace k8s.io/api => k8s.io/api v0.37.1
replace k8s.io/kubelet => k8s.io/kubelet v0.37.1
`);
});

test("a dependency that is gone is told by name", () => {
  expect(() => controlPlaneGoMod("1.99.0", KUBERNETES.replace("spf13/cobra", "spf13/viper"))).toThrow(
    "k8s.io/kubernetes 1.99.0 does not require github.com/spf13/cobra",
  );
});
