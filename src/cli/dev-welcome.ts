/** What `vmlet dev` prints when it is up. */
import { relative, resolve } from "node:path";
import { fileURLToPath } from "node:url";
import type { DevMachines } from "./dev-machines.ts";
import { packageFile } from "./version.ts";

export function printWelcome(options: {
  alone: boolean;
  machines: DevMachines;
  kubeconfig: string;
  page: string;
}): void {
  const { alone, machines, kubeconfig, page } = options;
  const { kind, said, nodeCount = 1 } = machines;
  const many = nodeCount > 1;
  const what = many ? `${nodeCount} virtual nodes` : "one virtual node";
  const joined = many ? `${nodeCount} virtual nodes have` : "The virtual node has";
  const where = alone ? `A cluster of ${what} is up.` : `${joined} joined the cluster.`;
  const example = (name: string) => relative(process.cwd(), fileURLToPath(packageFile(`examples/${name}`)));
  const withPrograms = [
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
${where} Machines are ${kind}.${said === undefined ? "" : `\n${said}`}

Look at it in the browser (the address is for you alone):

  ${page}

In another terminal:

${commands.map((command) => `  ${command}`).join("\n")}

Ctrl-C stops ${alone ? "everything" : "the agent"}.`);
}
