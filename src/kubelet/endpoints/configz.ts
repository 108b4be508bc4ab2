import type { Handler } from "../router.ts";

/** `/configz`: the effective settings in the shape of a KubeletConfiguration, for tools that compare nodes. */
export function configz(configuration: () => object): Handler {
  return {
    kind: "plain",
    handle: () => {
      const kubeletconfig = {
        kind: "KubeletConfiguration",
        apiVersion: "kubelet.config.k8s.io/v1beta1",
        ...configuration(),
      };
      return Promise.resolve({ status: 200, contentType: "application/json", body: JSON.stringify({ kubeletconfig }) });
    },
  };
}
