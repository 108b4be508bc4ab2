/**
 * Every code that an error of vmlet's own can have, with what it means and what to do: ERRORS.md is written from this
 * (`npm run docs`). A test holds it to the classes. The codes of provider calls are the contract's and stand beside
 * `ProviderError`.
 */

interface CodeMeaning {
  /** When this is thrown, as a sentence. */
  readonly meaning: string;
  /** What the reader can do, as a sentence. */
  readonly cure: string;
}

/** @internal */
export const ERROR_CODES: Readonly<Record<string, CodeMeaning>> = {
  CERTIFICATE: {
    meaning:
      "A certificate could not be had: the cluster denied or did not sign the request in time, or file and key do not belong together.",
    cure: "Approve the CertificateSigningRequest (`kubectl certificate approve`) or have it approved by a controller; give files that belong together.",
  },
  COMMAND: {
    meaning:
      "A tool of the backend's host (`ip`, `nft`, `runc`, `umoci`, `mount`...) failed; the message is the tool's.",
    cure: "Do what the tool says. `vmlet backend` names missing tools, and their packages, when it starts.",
  },
  CONFIG: {
    meaning:
      "The configuration is wrong, or the host lacks something that it asks for. The process ends with status 2.",
    cure: "Change each file and field that the message names; CONFIGURATION.md lists what they may be.",
  },
  CLAIMS: {
    meaning: "A machine's ResourceClaims are not ready: a driver's plugin is away, or says why not.",
    cure: "As for a kubelet's FailedPrepareDynamicResources: look at the driver's plugin on the backend's host, and at its log.",
  },
  CSI_VOLUME: {
    meaning: "A machine's volume is not mounted: its CSI driver is away, or says why not.",
    cure: "As for a kubelet's FailedMount: look at the driver's node plugin on the backend's host, and at its log.",
  },
  CONFORMANCE: {
    meaning: "A backend breaks a rule of the Machine API: `vmlet conformance` expected one thing and another came.",
    cure: "Change the backend; the rule stands in the contract beside the operation that the check names.",
  },
  IMAGES: {
    meaning: "`vmlet images` was asked for an image that the backend could not pull in time, or does not keep.",
    cure: "Read what the line above it says: a name that is misspelt, credentials (`--auth-file`), a registry that is away, or no room (`prewarm.maxSize`).",
  },
  CONTAINER: {
    meaning:
      "A container cannot start (yet). The reason is one of the kubelet's waiting reasons and stands in the pod's status.",
    cure: "As for a kubelet: look at the reason, above all at the image's name and at the pull secrets.",
  },
  DEVICES: {
    meaning:
      "A machine cannot have the devices that it asks for: there are too few, or their plugin does not give them.",
    cure: "As for a kubelet's UnexpectedAdmissionError: look at the device plugin's own log, and at the Node's allocatable.",
  },
  DEVCLUSTER_CRON_SCHEDULE: {
    meaning: "The schedule of a CronJob cannot be read (devcluster).",
    cure: "Write five fields, `@daily` and its like, or `@every 5m`.",
  },
  DEVCLUSTER_PROXY: {
    meaning: "devcluster cannot pass logs, exec, attach or port-forward on to a node's kubelet API.",
    cure: "Look at the agent's log: the node is gone, does not listen, or refused the request.",
  },
  DEVCLUSTER_STATUS: {
    meaning: "devcluster refuses a request, with the Status that an API server would send.",
    cure: "As for an API server: the message names the field or the object.",
  },
  EXEC_PLUGIN: {
    meaning: "The credential plugin of the kubeconfig failed, took too long, or answered what cannot be used.",
    cure: "Run the command that the message names by hand, as the agent's user and with its environment.",
  },
  GUEST: {
    meaning: "The guest of a VM ran a command of the engine, and it failed there.",
    cure: "Look at the machine's containers; when it happens to every VM, make the guest image again.",
  },
  HOST: {
    meaning:
      "The backend cannot use this host as its configuration says: a range, a name, a folder or a lock is taken or wrong.",
    cure: "Choose another value for the field that the message names, or free what it says is taken.",
  },
  HTTP: {
    meaning: "A request is answered by this status: the client asked for what it may not have or what does not exist.",
    cure: "The client's to mend. Many of 401 or 403 in the kubelet's log: look at the API server's client certificate and at RBAC for `nodes/proxy`.",
  },
  IMAGE_DESTINATION: {
    meaning:
      "A registry, or what it led to, is where the backend does not connect to: the host itself, its networks, metadata services.",
    cure: "If the registry is yours, name it in `engine.images.localRegistries`; else nothing: this is what keeps tenants out.",
  },
  IMAGE_LAYER: {
    meaning:
      "A layer of an image is not what the image says, cannot be read, or unpacks to more than this host accepts.",
    cure: "Push the image again with a current tool; for a large one, raise `engine.images.maxUnpackedBytes` or `maxUnpackedFiles`.",
  },
  IMAGE_REGISTRY: {
    meaning: "A registry refused, does not have the image, cannot be reached, or answers what cannot be used.",
    cure: "Look at the image's name and at the pull secret; try again later when it was not to be reached.",
  },
  INVALID_DURATION: {
    meaning: "A text is not a duration as Go reads them.",
    cure: "Write a number with its unit, such as `30s`, `5m` or `1h30m`.",
  },
  INVALID_NAME: {
    meaning: "The name of an object cannot be part of a path of the Kubernetes API.",
    cure: "Use a name that the API server accepts: lower-case letters, digits, `-` and `.`.",
  },
  INVALID_QUANTITY: {
    meaning: "A text is not a quantity as Kubernetes reads them.",
    cure: "Write a number with one of the suffixes m, k, M, G, T, P, E, Ki, Mi, Gi, Ti, Pi, Ei.",
  },
  INVALID_REPLY: {
    meaning: "A backend answered what its contract does not allow; nothing of the answer is believed.",
    cure: "Mend the backend; `vmlet conformance` finds which rule it breaks.",
  },
  INVALID_SELECTOR: {
    meaning: "A text is not a label selector.",
    cure: "Write requirements as for kubectl: `app=web`, `tier in (a,b)`, `!legacy`.",
  },
  KUBE_API: {
    meaning:
      "The API server refused a request, could not be reached, or answered what cannot be used. `status` is 0 when no answer came.",
    cure: "401 and 403: look at credentials and RBAC (`vmlet check` names what is missing). Others heal themselves or are the API server's.",
  },
  KUBECONFIG: {
    meaning: "The kubeconfig cannot be used. The process ends with status 2.",
    cure: "Change what the message names: the file, its context, or a file that it refers to.",
  },
  LISTEN: {
    meaning: "The Machine API cannot be served at its address: it would be open to others, or another server has it.",
    cure: "Give credentials (`auth`, `tls.clientCaFile`), choose another address, or stop the other server.",
  },
  NODE_STAYS: {
    meaning: "`vmlet node remove` deleted a Node, and an agent registered it again.",
    cure: "Stop the agent that serves this node, then remove it again.",
  },
  NO_METRICS: {
    meaning: "`vmlet top` needs metrics-server, which the cluster lacks or which does not answer.",
    cure: "Install metrics-server; `kubectl top pods` must work.",
  },
  NO_SUCH_MACHINE: {
    meaning: "A command was given a name that neither a pod nor a machine has. The process ends with status 2.",
    cure: "Correct the name or the namespace; `kubectl vmlet machines -A` lists those that there are.",
  },
  NO_SUCH_NODE: {
    meaning: "A command was given the name of a Node that the cluster does not have. The process ends with status 2.",
    cure: "Correct the name; `kubectl get nodes` lists those that there are.",
  },
  NOT_DRAINED: {
    meaning: "`vmlet node drained` found pods on a node that is to go: without the agent their machines would run on.",
    cure: "`kubectl drain` the node, and wait until the pods are gone.",
  },
  NOT_LEADER: {
    meaning: "This agent does not hold the lease any more, so it may not write: another one leads.",
    cure: "None is needed. If the lease changes often, look at the API server's latency and at the clocks.",
  },
  OVER_BUDGET: {
    meaning: "Something of a pod takes more room than it may: environment, volumes' files, arguments, names.",
    cure: "Make what the message names smaller, or mount less of it.",
  },
  PROBE_TIMEOUT: {
    meaning: "A probe or hook was not answered within its time.",
    cure: "As for a kubelet: a longer `timeoutSeconds`, or a faster answer.",
  },
  QMP: {
    meaning: "QEMU closed its control socket, or refused a command.",
    cure: "Look at the VM's log and at the host's memory; the machine is restarted by its restart policy.",
  },
  SMOKE: {
    meaning: "`vmlet smoke` did not see a pod come, speak and go; the message says how far it came.",
    cure: "Look at the pod's events and at the agent's log for this pod.",
  },
  SPDY_PROTOCOL: {
    meaning: "The other end of an exec, attach or port-forward session broke the protocol; the session is over.",
    cure: "Use a current kubectl, and look for a proxy in between that changes the stream.",
  },
  TRACING: {
    meaning: "The collector did not take traces, which are dropped, or a file that `tracing` names cannot be used.",
    cure: "Look at the collector and at `tracing.endpoint`; correct the file that the message names.",
  },
};
