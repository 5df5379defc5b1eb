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

{{- define "qwen-operator.engineImage" -}}
{{- printf "%s:%s" .Values.engineImage.repository (default .Chart.AppVersion .Values.engineImage.tag) -}}
{{- end -}}
