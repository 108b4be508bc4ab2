/**
 * Every reason of an event that vmlet writes, with what it means and what to do: the site's page of events. A test holds
 * it to the code. A backend of somebody else's may write others, which are its own to explain.
 */

interface EventReason {
  readonly on: "Node" | "Pod";
  /** Who writes it: the agent, or with a machine's notices the reference backend or the clouds'. */
  readonly from: "agent" | "backend" | "agent, backend";
  readonly meaning: string;
  /** Absent where there is nothing to do. */
  readonly cure?: string;
}

const REFUSED = "The pod asks for what this node's backend has not; the message names field and capability.";
const ELSEWHERE = "Change the field, or keep the pod from this node; `vmlet check` lists what the backend lacks.";
const REFERENCE = "An environment variable refers to it.";

export const EVENT_REASONS: Readonly<Record<string, EventReason>> = {
  AddressIgnored: {
    ...{ on: "Pod", from: "agent" },
    meaning: "The backend gave an address that no pod can have; the pod is shown without it.",
    cure: "Mend the backend: `addresses` are those that other pods reach.",
  },
  AppArmor: { on: "Pod", from: "agent", meaning: REFUSED, cure: ELSEWHERE },
  BackOff: {
    ...{ on: "Pod", from: "agent, backend" },
    meaning:
      "A container crashes again and again, its image cannot be had, or creations fail; there is a wait before the next try.",
    cure: "Look at `kubectl logs --previous`, and at the event before this one.",
  },
  BackendAnswers: { on: "Node", from: "agent", meaning: "The machine backend answers again." },
  BackendUnavailable: {
    ...{ on: "Node", from: "agent" },
    meaning: "The machine backend does not answer. Pods stay as they are.",
    cure: "Look at the backend, at the way to it, and at its credentials; the message says what came back.",
  },
  BandwidthNotLimited: {
    ...{ on: "Pod", from: "agent" },
    meaning: "The backend cannot hold the pod to its annotations for bandwidth, or the pod is on its host's network.",
    cure: "Take them away, or limit it on the backend's network.",
  },
  CannotCordon: {
    ...{ on: "Node", from: "agent" },
    meaning: "The node was taken out of the configuration, or put back, and its agent may not cordon it.",
    cure: "Run the command that the message has.",
  },
  CannotTaint: {
    ...{ on: "Node", from: "agent" },
    meaning: "The configured taints differ from the Node's, and its agent may not change them.",
    cure: "Run the command that the message has.",
  },
  CannotWriteCSINode: {
    ...{ on: "Node", from: "agent" },
    meaning:
      "The node's CSINode cannot be written, so pods with persistent volumes stay Pending; or a CSI driver of the backend's host says what the Node contradicts, or may not be told.",
    cure: "Grant the right; `vmlet check` names it. Of a driver: do what the message says, as with a kubelet.",
  },
  CertificateExpired: {
    ...{ on: "Pod", from: "agent" },
    meaning: "The pod's certificate is over, and its signer has issued no newer one.",
    cure: "Look at the signer, and at `kubectl get podcertificaterequests`.",
  },
  CertificateOverdueForRefresh: {
    ...{ on: "Pod", from: "agent" },
    meaning: "The pod's certificate should have been replaced ten minutes ago; the pod goes on with the old one.",
    cure: "Look at the signer, and at `kubectl get podcertificaterequests`.",
  },
  Created: { on: "Pod", from: "backend", meaning: "A container was made." },
  DNSConfigForming: {
    ...{ on: "Pod", from: "agent" },
    meaning: "The pod has more name servers or search domains than are taken; some were left out.",
    cure: "Give the pod fewer.",
  },
  DaemonSetNotSupported: {
    ...{ on: "Pod", from: "agent" },
    meaning:
      "A pod of a DaemonSet asks for what this node has not. It is held, for its controller would make it again at once.",
    cure: "Keep the DaemonSet from this node by a node affinity, or take away its toleration.",
  },
  DeadlineExceeded: {
    ...{ on: "Pod", from: "agent" },
    meaning: "The pod ran longer than its `activeDeadlineSeconds`.",
    cure: "Give it more time, or less to do.",
  },
  Denied: {
    ...{ on: "Pod", from: "agent" },
    meaning: "A signer refuses to issue a certificate that a volume of the pod wants; it is not asked again.",
    cure: "Change the volume's source, or what the signer allows, and make the pod again.",
  },
  ErrImageNeverPull: {
    ...{ on: "Pod", from: "backend" },
    meaning: "`imagePullPolicy: Never`, and the image is not on the backend's host.",
    cure: "Bring the image there, or change the policy.",
  },
  Evicted: {
    ...{ on: "Pod", from: "backend" },
    meaning: "The backend's host ran out of memory, disk or processes, or the pod used more storage than its limit.",
    cure: "Give pods requests that are true, or the host more.",
  },
  Failed: {
    ...{ on: "Pod", from: "agent, backend" },
    meaning:
      "A container could not be made: its image, its configuration or its command; the message says which. Or a signer could not issue the pod's certificate.",
    cure: "Do what the message says; CreateContainerConfigError names a ConfigMap, Secret or key that is missing.",
  },
  EvictionHeld: {
    ...{ on: "Pod", from: "agent" },
    meaning: "The pod's machine is said to go, and so are those of many others at once: evictions are held back.",
    cure: "The message says what is doubtful; see whether the backend tells the truth.",
  },
  FailedCreate: {
    ...{ on: "Pod", from: "agent" },
    meaning: "The backend could not make the machine yet; it is tried again, later and later.",
    cure: "The message is the backend's own.",
  },
  FailedCreatePodSandBox: {
    ...{ on: "Pod", from: "agent, backend" },
    meaning: "The machine's surroundings, its network above all, could not be made.",
    cure: "Look at the backend's log; the message is its tool's.",
  },
  FailedDelete: {
    ...{ on: "Pod", from: "agent" },
    meaning: "The API server does not let the pod's object be removed, though nothing of it runs.",
    cure: "Grant the right to delete pods, or look at the admission webhook that the message names.",
  },
  FailedEviction: {
    ...{ on: "Pod", from: "agent" },
    meaning: "The pod's machine is about to go, and a PodDisruptionBudget does not let the pod be evicted yet.",
    cure: "Make room in the budget; when time is up, the pod is ended all the same.",
  },
  FailedKillPod: {
    ...{ on: "Pod", from: "agent" },
    meaning: "The machine could not be stopped or removed yet; it is tried again.",
    cure: "Look at the backend; the message is its own.",
  },
  FailedMount: {
    ...{ on: "Pod", from: "agent, backend" },
    meaning: "A volume, or what it refers to, is not there yet.",
    cure: "Create the ConfigMap, Secret or claim that the message names; of a CSI driver, look at its node plugin on the backend's host.",
  },
  FailedPostStartHook: {
    ...{ on: "Pod", from: "backend" },
    meaning: "The hook `postStart` failed, and the container was ended.",
    cure: "Look at the container's log.",
  },
  FailedPreStopHook: {
    ...{ on: "Pod", from: "backend" },
    meaning: "The hook `preStop` failed; the container was stopped without it.",
    cure: "Look at the container's log.",
  },
  FailedPrepareDynamicResources: {
    ...{ on: "Pod", from: "agent, backend" },
    meaning: "A ResourceClaim is not allocated, or its driver is away or failed.",
    cure: "Look at the driver's plugin on the backend's host, and at its log.",
  },
  FailedStatusUpdate: {
    ...{ on: "Pod", from: "agent" },
    meaning: "The API server does not take the pod's status, or a part of it.",
    cure: "The message has its words: a right, an admission webhook, or a field that it does not know.",
  },
  FailedSync: {
    ...{ on: "Pod", from: "agent" },
    meaning: "A step for this pod failed in a way that nobody had foreseen; it is tried again.",
    cure: "Report it, with the agent's log.",
  },
  FailedToRetrieveImagePullSecret: {
    ...{ on: "Pod", from: "agent" },
    meaning: "A Secret of `imagePullSecrets` is not there; the image is pulled without it.",
    cure: "Create the Secret, or take its name away.",
  },
  FailedUnmount: {
    ...{ on: "Pod", from: "backend" },
    meaning:
      "A CSI driver does not take a volume of the pod back. After two minutes the pod goes all the same, and the driver is asked on; but a persistent volume is waited for, for the cluster detaches it when the pod is gone.",
    cure: "Look at the driver's node plugin on the backend's host, and at its log.",
  },
  FailedUnprepareDynamicResources: {
    ...{ on: "Pod", from: "backend" },
    meaning: "A driver did not take back what the machine had; it is tried again.",
    cure: "Look at the driver's plugin on the backend's host.",
  },
  FailedUpdate: {
    ...{ on: "Pod", from: "agent" },
    meaning: "A change of the pod cannot be brought to its machine.",
    cure: "Make the pod anew where the message says that the backend cannot change it.",
  },
  FileSystemResizeSuccessful: {
    ...{ on: "Pod", from: "agent" },
    meaning: "A volume of a CSI driver has become larger while the pod has it, and can be used whole.",
    cure: "Nothing is to be done.",
  },
  HostEvacuated: {
    ...{ on: "Pod", from: "backend" },
    meaning: "The cloud's host of the pod's VM is being evacuated.",
  },
  HostOutOfSight: {
    ...{ on: "Pod", from: "backend" },
    meaning: "The cloud's host of the pod's VM has not been seen for minutes.",
    cure: "Look at the host; the pod is evicted.",
  },
  ImagePullSecretsNotUsed: {
    ...{ on: "Pod", from: "agent" },
    meaning: "The backend takes no credentials for registries.",
    cure: "Give the backend its own, or use images that need none.",
  },
  InstanceTypeForbidden: {
    ...{ on: "Pod", from: "agent" },
    meaning: "The configuration does not let this pod have the instance type that it asks for.",
    cure: "Ask for another, or change `instanceTypes` of the node.",
  },
  InstanceTypeNotUsed: {
    ...{ on: "Pod", from: "agent" },
    meaning: "The pod asks for an instance type, and the backend has none.",
    cure: "Take the annotation away.",
  },
  InstanceTypeSoldOut: {
    ...{ on: "Pod", from: "backend" },
    meaning: "The cloud had no room for an instance type; the next one of the list was taken.",
  },
  InvalidNodeInfo: {
    ...{ on: "Pod", from: "agent" },
    meaning: "The node has only just begun; the pod waits until its capacity is known.",
    cure: "If it stays: the backend says no capacity, and the configuration has none.",
  },
  Killing: { on: "Pod", from: "backend", meaning: "A container is being stopped; the message says why." },
  LifecycleHTTPFallback: {
    ...{ on: "Pod", from: "backend" },
    meaning: "A hook asked for HTTPS, and the container speaks plain HTTP: it was called by that.",
    cure: "Write `scheme: HTTP`.",
  },
  MachineCreated: {
    on: "Pod",
    from: "agent",
    meaning: "The backend has made the pod's machine; the message has its id.",
  },
  MachineDisruption: {
    ...{ on: "Pod", from: "agent" },
    meaning: "The pod's machine is about to be taken away; the pod is evicted.",
  },
  MachineLost: {
    ...{ on: "Pod", from: "agent" },
    meaning: "The backend says that the pod's machine is not there any more; the pod is failed.",
    cure: "See whether the backend has lost its state, or somebody removed the machine behind the agent's back.",
  },
  MachineUnknown: {
    ...{ on: "Pod", from: "agent" },
    meaning: "What the backend says of the pod's machine makes no sense; the pod's status stays as it was.",
    cure: "Mend the backend: `vmlet conformance` finds the rule that it breaks.",
  },
  MachinesMissing: {
    ...{ on: "Node", from: "agent" },
    meaning: "The backend answers, and lacks most machines at once. Their pods are failed a few a minute.",
    cure: "See whether the backend has lost its state before all are failed.",
  },
  MissingClusterDNS: {
    ...{ on: "Pod", from: "agent" },
    meaning: "The pod wants the cluster's DNS, and the agent does not know its address.",
    cure: "Set `dns` of the node in the configuration.",
  },
  NodeNotReady: {
    ...{ on: "Node", from: "agent" },
    meaning: "The Node is not ready any more.",
    cure: "Its condition Ready says why; mostly the backend has been silent for longer than the grace period.",
  },
  NodeNotSchedulable: { on: "Node", from: "agent", meaning: "The Node was cordoned." },
  NodeReady: { on: "Node", from: "agent", meaning: "The Node is ready." },
  NodeSchedulable: { on: "Node", from: "agent", meaning: "The Node was uncordoned." },
  PodRangeNotReady: {
    ...{ on: "Node", from: "agent" },
    meaning:
      "The backend gives machines addresses of the Node's podCIDR, and cannot: there is none, another node has the backend, the host has the range otherwise, or machines still have addresses of another range. New pods wait.",
    cure: "The message has the cure; the Node's condition PodRangeReady says it for as long as it lasts.",
  },
  Preempting: {
    ...{ on: "Pod", from: "agent" },
    meaning: "The pod was ended to make room for a critical one.",
    cure: "Give the node more, or the pod a higher priority.",
  },
  ProbeWarning: {
    ...{ on: "Pod", from: "agent, backend" },
    meaning: "A probe succeeded, but not quite as it should: a redirect to another host, for one.",
    cure: "Probe an address that answers by itself.",
  },
  Pulled: {
    on: "Pod",
    from: "backend",
    meaning: "The image is there; the message says how long it took, or that it was there.",
  },
  Pulling: { on: "Pod", from: "backend", meaning: "The image is being pulled." },
  ResizeCompleted: { on: "Pod", from: "agent", meaning: "The containers have what the pod was changed to." },
  ResizeDeferred: {
    ...{ on: "Pod", from: "agent" },
    meaning: "There is no room for the resize now; it is tried again.",
  },
  ResizeError: {
    on: "Pod",
    from: "agent",
    meaning: "The backend failed to resize; it is tried again.",
    cure: "Look at the backend.",
  },
  ResizeInfeasible: {
    ...{ on: "Pod", from: "agent" },
    meaning: "The resize cannot be had here.",
    cure: "Ask for less, or make the pod anew elsewhere.",
  },
  ResizeStarted: { on: "Pod", from: "agent", meaning: "The backend was asked to resize." },
  ResourceLimitsNotEnforced: {
    ...{ on: "Pod", from: "agent" },
    meaning: "The backend does not hold containers to their limits.",
    cure: "Use a backend that has `resource_limits` where that matters.",
  },
  SELinuxNotUsed: {
    on: "Pod",
    from: "agent",
    meaning: "The pod's SELinux options are not heeded.",
    cure: "Take them away.",
  },
  SandboxChanged: {
    ...{ on: "Pod", from: "backend" },
    meaning: "The machine's surroundings were gone, after a restart of the host mostly; its containers begin anew.",
  },
  ServiceAccountVolumeOmitted: {
    ...{ on: "Pod", from: "agent" },
    meaning: "The backend takes no files, so the pod runs without its token.",
    cure: "`automountServiceAccountToken: false` says that it needs none.",
  },
  ServicesNotTold: {
    ...{ on: "Node", from: "agent" },
    meaning:
      "The backend's machines reach the cluster's Services by what the agent tells it, and it does not take that. They reach them as they were.",
    cure: "The message says why; it is told again and again.",
  },
  SpecConflict: {
    ...{ on: "Pod", from: "agent" },
    meaning: "The backend has another machine under this pod's id.",
    cure: "See whether another agent with the same `clusterId` runs elsewhere.",
  },
  Started: { on: "Pod", from: "backend", meaning: "A container was started." },
  Starting: { on: "Node", from: "agent", meaning: "The agent has begun to serve the node." },
  StaticPodRefused: {
    ...{ on: "Node", from: "agent" },
    meaning:
      "The folder of static pods cannot be read, or no pod can be made of one of its files; what runs by it goes on.",
    cure: "Do what the message says: it names the file and the field.",
  },
  SupplementalGroupsPolicyNotSupported: { on: "Pod", from: "agent", meaning: REFUSED, cure: ELSEWHERE },
  Terminated: {
    ...{ on: "Pod", from: "agent" },
    meaning: "The pod's machine is about to go, and the time that it had is up: the pod was ended.",
  },
  Unhealthy: {
    ...{ on: "Pod", from: "agent, backend" },
    meaning: "A probe failed; the message has its output.",
    cure: "Look at the container's log, and at the probe's time limit.",
  },
  UnsupportedFeature: { on: "Pod", from: "agent", meaning: REFUSED, cure: ELSEWHERE },
  VmNeverReady: {
    ...{ on: "Pod", from: "backend" },
    meaning: "A VM of the cloud did not come up; another takes its place.",
    cure: "If it goes on: look at the guest's console, and at its image.",
  },
  VolumeConditionAbnormal: {
    ...{ on: "Pod", from: "backend" },
    meaning: "A persistent volume of the pod is damaged; the message says how.",
    cure: "Bring its data to a new volume, from the last snapshot if it cannot be read.",
  },
  VolumeResizeFailed: {
    ...{ on: "Pod", from: "agent" },
    meaning:
      "A volume of a CSI driver has become larger while the pod has it, and its driver does not let it grow there.",
    cure: "None for now and then: it is tried again. Else look at what the driver says; a claim may be asked for less again.",
  },
  VolumeNotRepublished: {
    ...{ on: "Pod", from: "agent" },
    meaning:
      "The driver of an inline CSI volume asks to be called again and again (requiresRepublish), and is called once.",
    cure: "What the volume shows stays as it was at first: replace the pod when that has to change.",
  },
  ...Object.fromEntries(
    ["ConfigMap", "Secret"].flatMap((kind) => [
      [
        `Mandatory${kind}NotFound`,
        { on: "Pod", from: "agent", meaning: `A ${kind} is not there. ${REFERENCE}`, cure: `Create the ${kind}.` },
      ],
      [
        `Mandatory${kind}KeyNotFound`,
        { on: "Pod", from: "agent", meaning: `A ${kind} lacks a key. ${REFERENCE}`, cure: "Add the key." },
      ],
      [
        `Optional${kind}NotFound`,
        { on: "Pod", from: "agent", meaning: `An optional ${kind} is not there. ${REFERENCE}` },
      ],
      [
        `Optional${kind}KeyNotFound`,
        { on: "Pod", from: "agent", meaning: `An optional ${kind} lacks a key. ${REFERENCE}` },
      ],
    ]),
  ),
};
