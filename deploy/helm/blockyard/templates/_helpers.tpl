{{- define "blockyard.name" -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- end }}

{{- define "blockyard.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{- define "blockyard.selector" -}}
app.kubernetes.io/name: blockyard
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end }}

{{- define "blockyard.labels" -}}
{{ include "blockyard.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ .root.Chart.Name }}-{{ .root.Chart.Version }}
{{- end }}

{{- define "blockyard.natsURL" -}}
{{- if and .Values.nats.url .Values.nats.enabled }}
{{- fail "nats.url: want it empty, or nats.enabled false: there is one server" }}
{{- end }}
{{- if .Values.nats.enabled -}}
nats://{{ include "blockyard.name" . }}-nats:4222
{{- else -}}
{{ .Values.nats.url }}
{{- end }}
{{- end }}

{{- define "blockyard.natsEnv" -}}
{{- $url := include "blockyard.natsURL" . }}
{{- if $url }}
- name: BLOCKYARD_NATS
  value: {{ $url | quote }}
{{- end }}
- name: BLOCKYARD_CLUSTER
  value: {{ .Values.cluster | quote }}
{{- end }}

{{- define "blockyard.natsLogin" -}}
{{- if .Values.nats.enabled }}
envFrom:
  - secretRef: {name: {{ include "blockyard.name" . }}-nats}
{{- else if .Values.nats.existingSecret }}
envFrom:
  - secretRef: {name: {{ .Values.nats.existingSecret }}}
{{- end }}
{{- end }}

{{/* Routers share their bookings wherever NATS connects them: also one replica has a second beside it in a rollout. */}}
{{- define "blockyard.routerSettings" -}}
{{- $settings := deepCopy .Values.router.settings }}
{{- if and (include "blockyard.natsURL" .) (not (hasKey $settings "router_replica_sync")) }}
{{- $_ := set $settings "router_replica_sync" true }}
{{- end }}
{{- $settings | toPrettyJson }}
{{- end }}

{{- define "blockyard.placement" -}}
{{- with .nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .affinity }}
affinity: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- end }}

{{- define "blockyard.pull" -}}
{{- with .Values.image.pullSecrets }}
imagePullSecrets: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}
