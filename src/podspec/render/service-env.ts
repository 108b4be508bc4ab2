/** The environment variables that tell a container where services are (pkg/kubelet/envvars). */
import type { Service } from "../../kube/wire.ts";
import { Budget, POD_LIMITS } from "../budget.ts";

/**
 * Variables of the services that a pod sees: `default/kubernetes` always, the others of its namespace when
 * `enableServiceLinks` is on. Headless services and those without an address have none.
 *
 * @throws OverBudgetError when they are more than a process can be given
 */
export function serviceVariables(
  services: readonly Service[],
  namespace: string,
  enableServiceLinks: boolean,
): Map<string, string> {
  const visible = new Map<string, Service>();
  for (const service of services) {
    const name = service.metadata?.name ?? "";
    const address = service.spec?.clusterIP;
    if (address === undefined || address === "" || address === "None") continue;
    const isMaster = service.metadata?.namespace === "default" && name === "kubernetes";
    if (isMaster) {
      // A service of the same name in the pod's own namespace takes precedence, as in the kubelet's map.
      if (!visible.has(name)) visible.set(name, service);
    } else if (enableServiceLinks && service.metadata?.namespace === namespace) {
      visible.set(name, service);
    }
  }
  const variables = new Map<string, string>();
  const what = `the variables of the Services in namespace "${namespace}" (see enableServiceLinks)`;
  const budget = new Budget(what, POD_LIMITS.processBytes);
  for (const [name, service] of [...visible].sort(([a], [b]) => (a < b ? -1 : 1)))
    addVariables(name, service, (variable, value) => {
      budget.take(variable.length + value.length + 2);
      variables.set(variable, value);
    });
  return variables;
}

function addVariables(serviceName: string, service: Service, set: (name: string, value: string) => void): void {
  const prefix = variableName(serviceName);
  const address = service.spec?.clusterIP ?? "";
  const ports = service.spec?.ports ?? [];
  const first = ports[0];
  if (first === undefined) return;
  set(`${prefix}_SERVICE_HOST`, address);
  set(`${prefix}_SERVICE_PORT`, String(first.port));
  for (const port of ports) {
    if (port.name) set(`${prefix}_SERVICE_PORT_${variableName(port.name)}`, String(port.port));
  }
  for (const port of ports) {
    const protocol = port.protocol ?? "TCP";
    const url = `${protocol.toLowerCase()}://${address.includes(":") ? `[${address}]` : address}:${port.port}`;
    if (port === first) set(`${prefix}_PORT`, url);
    const portPrefix = `${prefix}_PORT_${port.port}_${protocol.toUpperCase()}`;
    set(portPrefix, url);
    set(`${portPrefix}_PROTO`, protocol.toLowerCase());
    set(`${portPrefix}_PORT`, String(port.port));
    set(`${portPrefix}_ADDR`, address);
  }
}

function variableName(text: string): string {
  return text.replaceAll("-", "_").toUpperCase();
}
