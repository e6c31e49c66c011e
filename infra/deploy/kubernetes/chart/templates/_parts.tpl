{{- /* Labels of everything; takes a dict of root and component. */ -}}
{{- define "freshet.labels" -}}
app.kubernetes.io/name: freshet
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end }}

{{- /* Labels of pods; Prometheus takes the name of the run from them. */ -}}
{{- define "freshet.podLabels" -}}
{{ include "freshet.labels" . }}
freshet-run: {{ .root.Values.run }}
{{- end }}

{{- /* What is the same in every container; takes a dict of root and metrics (a port). */ -}}
{{- define "freshet.container" -}}
image: {{ .root.Values.image.repository }}:{{ .root.Values.image.tag }}
workingDir: /data
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities:
    drop: [ALL]
{{- end }}

{{- define "freshet.pod" -}}
automountServiceAccountToken: false
enableServiceLinks: false
securityContext:
  runAsNonRoot: true
  runAsUser: 1000
  runAsGroup: 1000
  fsGroup: 1000
  fsGroupChangePolicy: OnRootMismatch
  seccompProfile:
    type: RuntimeDefault
{{- end }}

{{- define "freshet.environment" -}}
- name: POD_IP
  valueFrom:
    fieldRef:
      fieldPath: status.podIP
- name: XDG_CACHE_HOME
  value: /cache
- name: FRESHET_RUN
  value: {{ .root.Values.run }}
- name: FRESHET_FOLDER
  value: /data/runs/{{ .root.Values.run }}
- name: FRESHET_CURVE_FOLDER
  value: /etc/freshet/keys
- name: FRESHET_PS__SHARDS
  value: {{ .root.Values.shards.replicas | quote }}
{{- $workers := 0 }}
{{- range .root.Values.workers }}
{{- $workers = add $workers .replicas }}
{{- end }}
- name: FRESHET_DISPATCH__WORKERS
  value: {{ $workers | quote }}
- name: FRESHET_TELEMETRY__LOG_FORMAT
  value: json
- name: FRESHET_TELEMETRY__METRICS_HOST
  value: $(POD_IP)
- name: FRESHET_TELEMETRY__METRICS_PORT
  value: {{ .metrics | quote }}
{{- end }}

{{- define "freshet.database" -}}
- name: FRESHET_API__DATABASE
  valueFrom:
    secretKeyRef:
      name: {{ .Values.secrets.database }}
      key: url
{{- end }}

{{- define "freshet.storage" -}}
envFrom:
  - secretRef:
      name: {{ .Values.secrets.storage }}
{{- end }}

{{- define "freshet.mounts" -}}
- {name: settings, mountPath: /etc/freshet/settings, readOnly: true}
- {name: data, mountPath: /data}
- {name: cache, mountPath: /cache}
- {name: temporary, mountPath: /tmp}
{{- end }}

{{- define "freshet.serverMounts" -}}
{{ include "freshet.mounts" . }}
- {name: keys, mountPath: /etc/freshet/keys, readOnly: true}
- {name: kafka, mountPath: /etc/freshet/kafka, readOnly: true}
{{- end }}

{{- define "freshet.volumes" -}}
- name: settings
  configMap:
    name: {{ .Release.Name }}-settings
- name: cache
  emptyDir: {}
- name: temporary
  emptyDir: {}
{{- end }}

{{- define "freshet.serverVolumes" -}}
{{ include "freshet.volumes" . }}
- name: keys
  secret:
    secretName: {{ .Values.secrets.serverKeys }}
    defaultMode: 0440
- name: kafka
  secret:
    secretName: {{ .Values.secrets.kafka }}
    defaultMode: 0440
    optional: true
{{- end }}

{{- /* A process whose metrics are answered is alive; the dispatcher finds out about anything else. Takes a port's name.
     The first start compiles kernels, which a probe must not cut short: metrics are answered before. */ -}}
{{- define "freshet.liveness" -}}
livenessProbe:
  httpGet:
    path: /metrics
    port: {{ . }}
  initialDelaySeconds: 60
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: 6
{{- end }}
