/**
 * The chart's values as a schema. What the agent's configuration file has too is the agent's own schema, so the two
 * cannot come apart; `generate.ts` writes it to vmlet/values.schema.json, by which Helm refuses wrong values.
 */
import { z } from "zod";
import { providerSchema } from "../src/config/provider-schema.ts";
import { agentConfigSchema, nodeSchema } from "../src/config/schema.ts";

const agent = agentConfigSchema.shape;
const election = agent.leaderElection.unwrap().shape;

const dns1123 = z.string().regex(/^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$/);
const name = z.union([dns1123, z.literal("")]);
const strings = z.record(z.string(), z.string());
/** Kubernetes objects that are passed on as they stand: the API server checks them. */
const passedOn = z.record(z.string(), z.unknown());
const passedOnList = z.array(passedOn);
const resources = z.strictObject({
  requests: passedOn.optional(),
  limits: passedOn.optional(),
  claims: passedOnList.optional(),
});
const tag = z.string().regex(/^[\w][\w.-]{0,127}$|^$/);
/** In a Secret that the chart mounts, or none. */
const secretFile = z.string().regex(/^\/etc\/vmlet\/secrets\/[-a-z0-9.]+\/[-._a-zA-Z0-9]+$|^$/);
const credentialFiles = { tokenFile: secretFile, caFile: secretFile, certFile: secretFile, keyFile: secretFile };
const digest = z.string().regex(/^sha256:[0-9a-f]{64}$|^$/);

const sidecar = z.strictObject({ tag, digest });

export const valuesSchema = z.strictObject({
  /** Helm passes it to every chart. */
  global: passedOn.optional(),
  /** At least one, as the templates say: a schema would have `helm lint` without values fail. */
  nodes: z.array(nodeSchema.extend({ provider: providerSchema.optional() })),
  existingSecrets: z.array(dns1123),
  clusterId: z.string().max(63),
  identity: z.strictObject({
    mode: z.enum(["node", "certificate", "serviceAccount"]),
    autoApprove: z.boolean(),
    workloadNamespaces: z.array(dns1123),
  }),
  logLevel: agent.logLevel,
  audit: agent.audit,
  /** The agent checks it. */
  tracing: passedOn,
  api: agent.api,
  leaderElection: z.strictObject({
    enabled: election.enabled,
    leaseDuration: election.leaseDuration,
    renewDeadline: election.renewDeadline,
    retryPeriod: election.retryPeriod,
  }),
  health: z.strictObject({
    address: agent.health.unwrap().shape.address,
    port: z.int().min(1).max(65535),
    probePort: z.int().min(1).max(65535),
  }),
  replicas: z.int().min(0).max(10),
  image: z.strictObject({
    registry: z.string(),
    repository: z.string(),
    tag,
    digest,
    pullPolicy: z.enum(["Always", "IfNotPresent", "Never"]),
    pullSecrets: z.array(dns1123),
  }),
  nameOverride: name,
  fullnameOverride: name,
  commonLabels: strings,
  serviceAccount: z.strictObject({ create: z.boolean(), name, annotations: strings }),
  rbac: z.strictObject({ create: z.boolean(), endpointSlices: z.boolean() }),
  podAnnotations: strings,
  podLabels: strings,
  podSecurityContext: z.strictObject({
    // Helm takes a key that is null out before it looks at the schema.
    runAsUser: z.int().min(1).nullable().optional(),
    runAsGroup: z.int().min(1).nullable().optional(),
    fsGroup: z.int().min(1).nullable().optional(),
  }),
  resources,
  priorityClassName: z.string(),
  nodeSelector: strings.optional(),
  affinity: passedOn,
  tolerations: passedOnList.optional(),
  topologySpreadConstraints: passedOnList,
  terminationGracePeriodSeconds: z.int().min(10),
  extraEnv: passedOnList,
  extraVolumes: passedOnList,
  extraVolumeMounts: passedOnList,
  podDisruptionBudget: z.strictObject({ enabled: z.boolean() }),
  networkPolicy: z.strictObject({
    enabled: z.boolean(),
    kubeletFrom: passedOnList,
    metricsFrom: passedOnList,
    egressTo: passedOnList.min(1),
  }),
  serviceMonitor: z.strictObject({ enabled: z.boolean(), interval: z.string(), labels: strings }),
  prometheusRule: z.strictObject({ enabled: z.boolean(), labels: strings, runbookUrl: z.string() }),
  dashboard: z.strictObject({ enabled: z.boolean(), labels: strings }),
  uninstall: z.strictObject({ requireDrained: z.boolean(), deleteNodes: z.boolean() }),
  smokeTest: z.strictObject({
    image: z.string().min(1),
    digest,
    restricted: z.boolean(),
    timeoutSeconds: z.int().min(10),
  }),
  backend: z.strictObject({
    enabled: z.boolean(),
    existingSecret: name,
    engine: z.enum(["process", "oci", "cri"]),
    config: passedOn.optional(),
    image: z.strictObject({ repository: z.string(), tag, digest }),
    resources,
  }),
  webhook: z.strictObject({
    enabled: z.boolean(),
    replicas: z.int().min(1).max(10),
    existingSecret: name,
    caBundle: z.string(),
    resources,
  }),
  csi: z.strictObject({
    enabled: z.boolean(),
    provider: z.strictObject({ url: z.string().regex(/^https:\/\/[^/@]+|^$/), ...credentialFiles }),
    providers: z.array(
      z.strictObject({ url: z.string().regex(/^https:\/\/[^/@]+/), ...z.object(credentialFiles).partial().shape }),
    ),
    replicas: z.int().min(1).max(10),
    storageClasses: z.array(
      z.strictObject({
        name: dns1123,
        annotations: strings.optional(),
        parameters: strings.optional(),
        reclaimPolicy: z.enum(["Delete", "Retain"]).optional(),
        volumeBindingMode: z.enum(["WaitForFirstConsumer", "Immediate"]).optional(),
        allowVolumeExpansion: z.boolean().optional(),
        mountOptions: z.array(z.string()).optional(),
        allowedTopologies: passedOnList.optional(),
      }),
    ),
    snapshots: z.strictObject({
      enabled: z.boolean(),
      className: dns1123,
      deletionPolicy: z.enum(["Delete", "Retain"]),
    }),
    sidecars: z.strictObject({
      registry: z.string().min(1),
      provisioner: sidecar,
      attacher: sidecar,
      resizer: sidecar,
      snapshotter: sidecar,
      resources,
    }),
    resources,
  }),
});

export function valuesJsonSchema(): object {
  return z.toJSONSchema(valuesSchema, {
    io: "input",
    target: "draft-7",
    unrepresentable: "any",
    override: ({ zodSchema, jsonSchema }) => {
      if (zodSchema instanceof z.ZodDiscriminatedUnion) byKind(jsonSchema, zodSchema.def.discriminator);
    },
  });
}

interface Kind {
  properties: Record<string, { const?: unknown }>;
}

/**
 * Judges an object by the kind that it says it is. Of `oneOf` Helm tells what is wrong by each kind, without a word on
 * which was meant.
 */
function byKind(schema: z.core.JSONSchema.BaseSchema, discriminator: string): void {
  const kinds = schema.oneOf as (Kind & z.core.JSONSchema.BaseSchema)[];
  const names = kinds.map(({ properties }) => properties[discriminator]!.const as string);
  delete schema.oneOf;
  Object.assign(schema, {
    type: "object",
    required: [discriminator],
    properties: { [discriminator]: { type: "string", enum: names } },
    allOf: kinds.map((kind, index) => ({
      if: { properties: { [discriminator]: { const: names[index] } }, required: [discriminator] },
      // oxlint-disable-next-line unicorn/no-thenable -- JSON Schema's word, in what is only written to a file.
      then: kind,
    })),
  });
}
