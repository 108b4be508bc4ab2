/** What `vmlet dev` prints when it is up. */
import { relative, resolve } from "node:path";
import { fileURLToPath } from "node:url";
import { FIRST_PORT } from "./dev-cluster.ts";
import type { DevMachines } from "./dev-machines.ts";
import { packageFile } from "./version.ts";

export function printWelcome(options: {
  alone: boolean;
  machines: DevMachines;
  kubeconfig: string;
  page: string;
  metrics: string;
  /** Of the small cluster, unless its port was asked for. */
  url: string | undefined;
}): void {
  const { alone, machines, kubeconfig, page, metrics, url } = options;
  const { kind, said, nodeCount = 1 } = machines;
  const many = nodeCount > 1;
  const what = many ? `${nodeCount} virtual nodes` : "one virtual node";
  const joined = many ? `${nodeCount} virtual nodes have` : "The virtual node has";
  const where = alone ? `A cluster of ${what} is up.` : `${joined} joined the cluster.`;
  const elsewhere =
    url === undefined || new URL(url).port === String(FIRST_PORT)
      ? []
      : [`Port ${FIRST_PORT} is taken by another program, so the API server is at ${url}; the kubeconfig knows.`];
  const example = (name: string) => relative(process.cwd(), fileURLToPath(packageFile(`examples/${name}`)));
  // In a cluster that is not ours images have no stand-ins, and pods without a toleration stay on other nodes.
  const withPrograms = !alone
    ? []
    : [
        "kubectl run web --image=nginx && kubectl port-forward web 8080:80",
        "kubectl run -it --rm box --image=busybox -- sh",
      ];
  const commands = [
    `export KUBECONFIG=${resolve(kubeconfig)}`,
    "kubectl get nodes",
    `kubectl apply -f ${example("burst.yaml")}`,
    "kubectl get pods --watch",
    "kubectl logs burst-00",
    ...(machines.engine === "memory" ? ["kubectl create deployment many --image=any --replicas=50"] : withPrograms),
    `kubectl apply -f ${example("hard.yaml")} && kubectl rollout status deployment/hard`,
  ];
  console.log(`
${[`${where} Machines are ${kind}.`, ...(said === undefined ? [] : [said]), ...elsewhere].join("\n")}

Look at it in the browser (the address is for you alone):

  ${page}

The agent's figures, for Prometheus: ${metrics}

In another terminal:

${commands.map((command) => `  ${command}`).join("\n")}

Ctrl-C stops ${alone ? "everything" : "the agent"}.`);
}
