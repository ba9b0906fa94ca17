{{/* The beginning of the names of all objects. */}}
{{- define "tierce.name" -}}
{{ .Release.Name | trunc 49 | trimSuffix "-" }}
{{- end }}

{{/* Labels of a component: (list . "node"). */}}
{{- define "tierce.labels" -}}
{{- $root := first . -}}
{app.kubernetes.io/name: {{ $root.Chart.Name }}, app.kubernetes.io/instance: {{ $root.Release.Name }}, app.kubernetes.io/component: {{ last . }}}
{{- end }}

{{- define "tierce.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{/* Fields of a pod for which the chart has values: (list . .Values.node). */}}
{{- define "tierce.placement" -}}
{{- $root := first . -}}
{{- $part := last . -}}
{{- with $root.Values.imagePullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
{{- with $part.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $part.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* Bytes of a size as Tierce reads it: 8GiB, 1.5 TB, 4096. */}}
{{- define "tierce.bytes" -}}
{{- $units := dict "" 1 "B" 1 "KB" 1e3 "MB" 1e6 "GB" 1e9 "TB" 1e12 "PB" 1e15 "KiB" 1024 "MiB" 1048576 "GiB" 1073741824 "TiB" 1099511627776 "PiB" 1125899906842624 -}}
{{- $size := toString . -}}
{{- if kindIs "float64" . -}}
{{- $size = printf "%.0f" . -}}
{{- end -}}
{{- $number := regexFind "^[0-9]+([.][0-9]+)?" $size -}}
{{- $unit := trimPrefix $number $size | trim -}}
{{- if or (not $number) (not (hasKey $units $unit)) }}
{{- fail (printf "%q is not a size: a number with a unit is, for example 8GiB" $size) }}
{{- end }}
{{- mulf (float64 $number) (get $units $unit | float64) | int64 -}}
{{- end }}

{{/* Gi, or Mi, of a number of MiB. */}}
{{- define "tierce.quantity" -}}
{{- if mod . 1024 }}{{ . }}Mi{{ else }}{{ div . 1024 }}Gi{{ end }}
{{- end }}

{{/*
The memory of the node's pod: memory.size, the other memory of the configuration, and 2 GiB. Its limit has memory.size twice:
engines keep the memory of a container that has ended until they have noticed it. tests/python/deploy compares the sizes that
hold without a configuration with those of the program.
*/}}
{{- define "tierce.nodeResources" -}}
{{- $config := .Values.node.config -}}
{{- $sizes := list (dig "memory" "coded_size" "0" $config) (dig "pool" "memory" "0" $config) -}}
{{- if dig "pool" "disk" "" $config -}}
{{- $sizes = append $sizes (dig "pool" "disk_buffer" "256MiB" $config) -}}
{{- end -}}
{{- $managers := dig "mover" "manager" "" $config | default (dig "pool" "manager" "" $config) -}}
{{- if and $managers (ne $managers "none") -}}
{{- $sizes = append $sizes (dig "mover" "memory" "256MiB" $config) -}}
{{- end -}}
{{- $other := 2147483648 -}}
{{- range $sizes -}}
{{- $other = add $other (include "tierce.bytes" .) -}}
{{- end -}}
{{- $size := include "tierce.bytes" (dig "memory" "size" "1GiB" $config) -}}
{{- $request := div (add $size $other 1048575) 1048576 -}}
{{- $limit := div (add $size $size $other 1048575) 1048576 -}}
{{- $computed := dict "requests" (dict "memory" (include "tierce.quantity" $request)) "limits" (dict "memory" (include "tierce.quantity" $limit)) -}}
{{- toYaml (mergeOverwrite $computed (deepCopy .Values.node.resources)) -}}
{{- end }}
