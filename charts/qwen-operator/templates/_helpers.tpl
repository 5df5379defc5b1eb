{{/* Names are cut before anything is added, and never end on a dash. */}}
{{- define "qwen-operator.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 53 | trimSuffix "-" -}}
{{- end -}}

{{- define "qwen-operator.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 53 | trimSuffix "-" -}}
{{- else if contains (include "qwen-operator.name" .) .Release.Name -}}
{{- .Release.Name | trunc 53 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name (include "qwen-operator.name" .) | trunc 53 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{/* Roles are cluster-wide, so their names carry the release's namespace. */}}
{{- define "qwen-operator.clusterName" -}}
{{- printf "%s-%s" .Release.Namespace (include "qwen-operator.fullname" .) -}}
{{- end -}}

{{/* Services and roles of the metrics API. */}}
{{- define "qwen-operator.metricsName" -}}
{{- printf "%s-metrics" (include "qwen-operator.fullname" .) -}}
{{- end -}}

{{- define "qwen-operator.selector" -}}
app.kubernetes.io/name: {{ include "qwen-operator.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "qwen-operator.labels" -}}
{{ include "qwen-operator.selector" . }}
app.kubernetes.io/component: operator
app.kubernetes.io/part-of: qwen-operator
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
{{- end -}}

{{- define "qwen-operator.serviceAccount" -}}
{{- default (ternary (include "qwen-operator.fullname" .) "default" .Values.serviceAccount.create) .Values.serviceAccount.name -}}
{{- end -}}

{{/*
An image by its reference: (dict "root" $ "image" .Values.image "tag" TAG). imageRegistry takes the place of the registry's
host, where the repository names one: a first part with a dot or a port, or localhost.
*/}}
{{- define "qwen-operator.imageOf" -}}
{{- $repository := .image.repository -}}
{{- with .root.Values.imageRegistry -}}
{{- $repository = printf "%s/%s" . (regexReplaceAll "^(localhost|[^/]*[.:][^/]*)/" $repository "") -}}
{{- end -}}
{{- $reference := printf "%s:%s" $repository (default .tag .image.tag) -}}
{{- with .image.digest -}}{{- $reference = printf "%s@%s" $reference . -}}{{- end -}}
{{- $reference -}}
{{- end -}}

{{- define "qwen-operator.image" -}}
{{- include "qwen-operator.imageOf" (dict "root" . "image" .Values.image "tag" .Chart.AppVersion) -}}
{{- end -}}

{{- define "qwen-operator.engineImage" -}}
{{- include "qwen-operator.imageOf" (dict "root" . "image" .Values.engineImage "tag" .Chart.AppVersion) -}}
{{- end -}}

{{- define "qwen-operator.vllmImage" -}}
{{- include "qwen-operator.imageOf" (dict "root" . "image" .Values.vllmImage "tag" "") -}}
{{- end -}}

{{/* The activator's own: Services of the operator must not find its pod. */}}
{{- define "qwen-operator.activatorSelector" -}}
app.kubernetes.io/name: {{ include "qwen-operator.name" . }}-activator
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{/* Whom every engine with spec.networkPolicy admits, as a JSON list of a NetworkPolicy's peers. */}}
{{- define "qwen-operator.enginePeers" -}}
{{- $here := dict "matchLabels" (dict "kubernetes.io/metadata.name" .Release.Namespace) -}}
{{- $peers := list (dict "namespaceSelector" $here "podSelector" (dict "matchLabels" (include "qwen-operator.selector" . | fromYaml))) -}}
{{- if .Values.activator.enabled -}}
{{- $peers = append $peers (dict "namespaceSelector" $here "podSelector" (dict "matchLabels" (include "qwen-operator.activatorSelector" . | fromYaml))) -}}
{{- end -}}
{{- toJson (concat $peers .Values.networkPolicy.engineFrom) -}}
{{- end -}}

{{/* HTTP_PROXY and the like as a JSON object; {} without a proxy. */}}
{{- define "qwen-operator.proxy" -}}
{{- $env := dict -}}
{{- with .Values.proxy.httpProxy }}{{- $_ := set $env "HTTP_PROXY" . -}}{{- end -}}
{{- with .Values.proxy.httpsProxy }}{{- $_ := set $env "HTTPS_PROXY" . -}}{{- end -}}
{{- if or $env .Values.proxy.noProxy -}}
{{- $_ := set $env "NO_PROXY" (join "," (compact (list .Values.proxy.noProxy "localhost" "127.0.0.1" ".svc" ".cluster.local"))) -}}
{{- end -}}
{{- toJson $env -}}
{{- end -}}

{{/* What the operator gives every engine's pod, as JSON. */}}
{{- define "qwen-operator.engineDefaults" -}}
{{- $secrets := list -}}
{{- range .Values.engineDefaults.imagePullSecrets }}{{- $secrets = append $secrets .name -}}{{- end -}}
{{- $env := merge (dict) .Values.engineDefaults.env (include "qwen-operator.proxy" . | fromJson) -}}
{{- toJson (dict "env" $env "imagePullSecrets" $secrets) -}}
{{- end -}}
