/** The files that a configuration names, looked at before anything depends on them. */
import { readFileSync } from "node:fs";
import { toError } from "../util/errors.ts";
import { certificatesFault, pairFault } from "../util/pem.ts";
import type { AgentConfig, CloudProviderConfig, NodeConfig } from "./schema.ts";

/** A file that cannot be used. `field` names it as the configuration does. */
interface FileFault {
  field: string;
  problem: string;
  cure: string;
}

/** Files of TLS, of one object in the configuration: the paths by the names of their fields. */
interface TlsFiles {
  certFile?: string | undefined;
  keyFile?: string | undefined;
  /** Certificates of a CA, by the name of their field. */
  ca?: { field: string; path: string | undefined } | undefined;
}

/** The faults of all files that a node needs. */
export function nodeFileFaults(node: NodeConfig): FileFault[] {
  const { kubelet, provider } = node;
  const { certFile, keyFile, clientCAFile } = kubelet;
  // Files that another way of getting a certificate leaves unused do not matter.
  const pair = (kubelet.certificate ?? "files") === "files" ? { certFile, keyFile } : {};
  return [
    ...tlsFaults(`nodes[${node.name}].kubelet`, { ...pair, ca: { field: "clientCAFile", path: clientCAFile } }),
    ...(provider.type === "http-vm" ? providerFaults(`nodes[${node.name}].provider`, provider) : []),
    ...(provider.type === "cloud" ? cloudFaults(`nodes[${node.name}].provider.cloud`, provider.cloud) : []),
    ...(provider.type === "cloud"
      ? tokenFaults(`nodes[${node.name}].provider.guestKeysFile`, provider.guestKeysFile)
      : []),
  ];
}

function providerFaults(
  field: string,
  { tokenFile, caFile, certFile, keyFile }: Extract<AgentConfig["nodes"][number]["provider"], { type: "http-vm" }>,
): FileFault[] {
  return [
    ...tokenFaults(`${field}.tokenFile`, tokenFile),
    ...tlsFaults(field, { certFile, keyFile, ca: { field: "caFile", path: caFile } }),
  ];
}

function cloudFaults(field: string, { caFile, certFile, keyFile }: CloudProviderConfig["cloud"]): FileFault[] {
  return tlsFaults(field, { certFile, keyFile, ca: { field: "caFile", path: caFile } });
}

/** A file of tokens, or of another secret, with nothing in it. Its content is not repeated. */
export function tokenFaults(field: string, path: string | undefined): FileFault[] {
  if (path === undefined) return [];
  const cure = `write a secret into it: openssl rand -hex 32 > ${path}, with the same content wherever it is asked for`;
  const content = read(field, path);
  if ("problem" in content) return [content];
  return content.text.trim() === "" ? [{ field, problem: `${path} is empty`, cure }] : [];
}

export function tlsFaults(field: string, { certFile, keyFile, ca }: TlsFiles): FileFault[] {
  const faults: FileFault[] = [];
  if (ca?.path !== undefined) {
    const content = read(`${field}.${ca.field}`, ca.path);
    if ("problem" in content) faults.push(content);
    else {
      const fault = certificatesFault(content.text);
      const cure = "give the PEM file of the CA that signed the other end's certificate";
      if (fault !== undefined) faults.push({ field: `${field}.${ca.field}`, problem: `${ca.path} ${fault}`, cure });
    }
  }
  if (certFile === undefined || keyFile === undefined) return faults;
  const [cert, key] = [read(`${field}.certFile`, certFile), read(`${field}.keyFile`, keyFile)];
  for (const content of [cert, key]) if ("problem" in content) faults.push(content);
  if ("problem" in cert || "problem" in key) return faults;
  const problem = pairFault({ cert: cert.text, key: key.text }, { cert: certFile, key: keyFile });
  const cure = "give a certificate and its own key, both in PEM";
  if (problem !== undefined) faults.push({ field: `${field}.certFile, keyFile`, problem, cure });
  return faults;
}

function read(field: string, path: string): { text: string } | FileFault {
  try {
    return { text: readFileSync(path, "utf8") };
  } catch (thrown) {
    const cure = "correct the path, or give this user the right to read it";
    return { field, problem: `cannot be read: ${toError(thrown).message}`, cure };
  }
}
