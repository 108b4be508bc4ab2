{{- define "vmlet.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{- define "vmlet.fullname" -}}
{{- $name := include "vmlet.name" . -}}
{{- $full := ternary .Release.Name (printf "%s-%s" .Release.Name $name) (contains $name .Release.Name) -}}
{{- /* Room for the longest suffix, -backend or -drained, and for a Job's own. */ -}}
{{- default $full .Values.fullnameOverride | trunc 46 | trimSuffix "-" -}}
{{- end -}}

{{- /* Objects without a namespace carry it in their name, so that releases of one name do not meet. */ -}}
{{- define "vmlet.clusterName" -}}
{{ .Release.Namespace }}.{{ include "vmlet.fullname" . }}
{{- end -}}

{{- define "vmlet.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "vmlet.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- required "serviceAccount.name is required when serviceAccount.create is false" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{- define "vmlet.selectorLabels" -}}
app.kubernetes.io/name: {{ include "vmlet.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- /*
Takes (dict "root" . "component" "agent"), with "more" labels if need be. Each key once: what is selected by stays, then the
nearest wins.
*/ -}}
{{- define "vmlet.labels" -}}
{{- $fixed := include "vmlet.selectorLabels" .root | fromYaml -}}
{{- $_ := set $fixed "app.kubernetes.io/component" .component -}}
{{- $_ := set $fixed "app.kubernetes.io/managed-by" .root.Release.Service -}}
{{- $own := dict "app.kubernetes.io/version" .root.Chart.AppVersion "app.kubernetes.io/part-of" "vmlet" -}}
{{- $_ := set $own "helm.sh/chart" (printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_") -}}
{{- toYaml (mergeOverwrite $own .root.Values.commonLabels (default dict .more) $fixed) -}}
{{- end -}}

{{- /* Takes (dict "root" . "image" .Values.image "field" "image"). */ -}}
{{- define "vmlet.image" -}}
{{- $missing := printf "%s.repository: is required, because no image of vmlet is published yet: build the Dockerfile's, push it, and name it here" .field -}}
{{- $base := required $missing .image.repository -}}
{{- with .root.Values.image.registry -}}{{- $base = printf "%s/%s" . $base -}}{{- end -}}
{{- if .image.digest -}}{{ $base }}@{{ .image.digest }}{{- else -}}{{ $base }}:{{ default .root.Chart.AppVersion .image.tag }}{{- end -}}
{{- end -}}

{{- define "vmlet.smokeImage" -}}
{{- with .Values.smokeTest -}}
{{- /* A reference may have both, and runtimes differ about what a tag beside a digest means. */ -}}
{{- if .digest -}}{{ regexReplaceAll "(:[^:/@]+)?(@.*)?$" .image "" }}@{{ .digest }}{{- else -}}{{ .image }}{{- end -}}
{{- end -}}
{{- end -}}

{{- define "vmlet.kubeletFrom" -}}
{{- if .Values.networkPolicy.kubeletFrom -}}
{{- toYaml .Values.networkPolicy.kubeletFrom -}}
{{- else -}}
{{- $cidrs := list "10.0.0.0/8" "172.16.0.0/12" "192.168.0.0/16" "100.64.0.0/10" "fc00::/7" -}}
{{- /* API servers with public addresses. */ -}}
{{- range (lookup "discovery.k8s.io/v1" "EndpointSlice" "default" "kubernetes").endpoints -}}
{{- range .addresses -}}{{- $cidrs = append $cidrs (printf "%s/%s" . (ternary "128" "32" (contains ":" .))) -}}{{- end -}}
{{- end -}}
{{- $from := list -}}
{{- range uniq $cidrs -}}{{- $from = append $from (dict "ipBlock" (dict "cidr" .)) -}}{{- end -}}
{{- toYaml $from -}}
{{- end -}}
{{- end -}}

{{- define "vmlet.clusterId" -}}
{{- if .Values.clusterId -}}
{{ .Values.clusterId }}
{{- else -}}
{{- $namespace := lookup "v1" "Namespace" "" "kube-system" -}}
{{- /* `else`: `helm lint` goes on after `fail`. */ -}}
{{- if $namespace -}}
{{ $namespace.metadata.uid }}
{{- else -}}
{{- fail "clusterId is required where Helm cannot ask the cluster (helm template, --dry-run=client): take the UID of the namespace kube-system" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- /* The nodes as the agent's file has them, as JSON: with a port each, and a backend. */ -}}
{{- define "vmlet.nodes" -}}
{{- $root := . -}}
{{- $nodes := list -}}
{{- $ports := dict (toString (int .Values.health.port)) "health.port" (toString (int .Values.health.probePort)) "health.probePort" -}}
{{- $addressed := 0 -}}
{{- range $index, $node := .Values.nodes -}}
{{- $node = deepCopy $node -}}
{{- $kubelet := default dict $node.kubelet -}}
{{- if not (hasKey $kubelet "port") -}}{{- $_ := set $kubelet "port" (add 10250 $index) -}}{{- end -}}
{{- $port := toString (int $kubelet.port) -}}
{{- if eq $port "0" -}}{{- fail (printf "nodes[%d].kubelet.port: 0 is not a port that the network policy could let through" $index) -}}{{- end -}}
{{- if hasKey $ports $port -}}
{{- fail (printf "nodes[%d].kubelet.port: %s is taken by %s" $index $port (get $ports $port)) -}}
{{- end -}}
{{- $_ := set $ports $port (printf "nodes[%d]" $index) -}}
{{- /* The cluster's signer signs for nodes only. */ -}}
{{- if and (eq $root.Values.identity.mode "serviceAccount") (not $kubelet.certFile) (not $kubelet.certificate) -}}
{{- $_ := set $kubelet "certificate" "self-signed" -}}
{{- end -}}
{{- $_ := set $node "kubelet" $kubelet -}}
{{- if not $node.provider -}}
{{- if not $root.Values.backend.enabled -}}
{{- fail (printf "nodes[%d].provider is required (or backend.enabled, for a first try)" $index) -}}
{{- end -}}
{{- $url := printf "https://%s-backend.%s.svc:8080" (include "vmlet.fullname" $root) $root.Release.Namespace -}}
{{- $folder := printf "/etc/vmlet/secrets/%s" $root.Values.backend.existingSecret -}}
{{- $_ := set $node "provider" (dict "type" "http-vm" "url" $url "tokenFile" (printf "%s/token" $folder) "caFile" (printf "%s/ca.crt" $folder)) -}}
{{- end -}}
{{- if $node.addresses -}}{{- $addressed = add1 $addressed -}}{{- end -}}
{{- $nodes = append $nodes $node -}}
{{- end -}}
{{- if and $addressed (ne (int $addressed) (len $nodes)) -}}
{{- fail "nodes[].addresses: give them for all nodes or for none; without them every node has the address of the agent's pod" -}}
{{- end -}}
{{- toJson $nodes -}}
{{- end -}}

{{- define "vmlet.config" -}}
{{- $mode := get (dict "node" "impersonate" "certificate" "certificate" "serviceAccount" "direct") .Values.identity.mode -}}
apiVersion: vmlet.dev/v1
kind: AgentConfig
clusterId: {{ include "vmlet.clusterId" . | quote }}
identity:
  mode: {{ $mode }}
logLevel: {{ .Values.logLevel }}
audit:
  {{- toYaml .Values.audit | nindent 2 }}
{{- with .Values.tracing }}
tracing:
  {{- toYaml . | nindent 2 }}
{{- end }}
health:
  {{- toYaml .Values.health | nindent 2 }}
leaderElection:
  {{- toYaml .Values.leaderElection | nindent 2 }}
  namespace: {{ .Release.Namespace }}
  name: {{ include "vmlet.fullname" . }}
api:
  {{- toYaml .Values.api | nindent 2 }}
nodes:
  {{- toYaml (include "vmlet.nodes" . | fromJsonArray) | nindent 2 }}
{{- end -}}

{{- /* A token that is replaced every hour, instead of one that is mounted for good. */ -}}
{{- define "vmlet.tokenVolume" -}}
- name: api-access
  projected:
    defaultMode: 0440
    sources:
      - serviceAccountToken: { path: token, expirationSeconds: 3600 }
      - configMap:
          name: kube-root-ca.crt
          items: [{ key: ca.crt, path: ca.crt }]
      - downwardAPI:
          items: [{ path: namespace, fieldRef: { fieldPath: metadata.namespace } }]
{{- end -}}

{{- define "vmlet.tokenMount" -}}
- { name: api-access, mountPath: /var/run/secrets/kubernetes.io/serviceaccount, readOnly: true }
{{- end -}}

{{- define "vmlet.podSecurityContext" -}}
runAsNonRoot: true
seccompProfile: { type: RuntimeDefault }
{{- range $key, $value := .Values.podSecurityContext }}
{{- if not (kindIs "invalid" $value) }}
{{ $key }}: {{ int64 $value }}
{{- end }}
{{- end }}
{{- end -}}

{{- define "vmlet.securityContext" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: { drop: [ALL] }
{{- end -}}

{{- /* What a short-lived pod of this chart has in common with the others. */ -}}
{{- define "vmlet.pullSecrets" -}}
{{- with .Values.image.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
{{- end -}}

{{- /* Never on a virtual node: the agent must not depend on itself. */ -}}
{{- define "vmlet.affinity" -}}
nodeAffinity:
  requiredDuringSchedulingIgnoredDuringExecution:
    nodeSelectorTerms:
      - matchExpressions:
          - { key: type, operator: NotIn, values: [virtual-kubelet] }
{{- end -}}

{{- /* Where the pods of this chart may run, beside the affinity. */ -}}
{{- define "vmlet.placement" -}}
{{- with .Values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{- define "vmlet.nodeNames" -}}
{{- $names := list -}}
{{- range .Values.nodes -}}{{- $names = append $names .name -}}{{- end -}}
{{- toJson $names -}}
{{- end -}}

{{- /* Not empty when a node has static pods: the agent then creates their mirrors. */ -}}
{{- define "vmlet.staticPods" -}}
{{- range .Values.nodes -}}{{- if .staticPodPath -}}true{{- end -}}{{- end -}}
{{- end -}}

{{- /* Not empty when a node's machines are VMs of a cloud, whose guests are told where Services lead. */ -}}
{{- define "vmlet.tellsServices" -}}
{{- range .Values.nodes -}}
{{- with .provider -}}{{- if and (eq (toString .type) "cloud") (ne (toString .services) "false") -}}true{{- end -}}{{- end -}}
{{- end -}}
{{- end -}}

{{- define "vmlet.validate" -}}
{{- if not .Values.nodes -}}
{{- fail "nodes: name at least one virtual node and its provider; the chart's README has an example" -}}
{{- end -}}
{{- if and (gt (int .Values.replicas) 1) (not .Values.leaderElection.enabled) -}}
{{- fail "leaderElection.enabled: must be true when replicas is more than 1" -}}
{{- end -}}
{{- if and .Values.backend.enabled (not .Values.backend.existingSecret) -}}
{{- fail "backend.existingSecret: is required with backend.enabled; the chart's README has the two commands that make it" -}}
{{- end -}}
{{- end -}}
