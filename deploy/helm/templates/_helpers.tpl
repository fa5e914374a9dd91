{{- define "dvsync.selector" -}}
app.kubernetes.io/name: dvsync
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "dvsync.metadata" -}}
name: {{ .Release.Name }}
labels:
  {{- include "dvsync.selector" . | nindent 2 }}
  app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
  app.kubernetes.io/managed-by: {{ .Release.Service }}
  helm.sh/chart: dvsync-{{ .Chart.Version }}
{{- end }}
