package check

import (
	"slices"
	"strings"
	"testing"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"
)

// routerSettings returns the settings that the routers of the chart start with.
func routerSettings(t *testing.T, v map[string]any) (settings map[string]any) {
	t.Helper()
	for _, o := range renderObjects(t, v) {
		if m, ok := o.(*corev1.ConfigMap); ok && m.Data["router.json"] != "" {
			if err := yaml.Unmarshal([]byte(m.Data["router.json"]), &settings); err != nil {
				t.Fatal(err)
			}
		}
	}
	if settings["router_mode"] != "kv" {
		t.Fatalf("settings %v", settings)
	}
	return settings
}

// TestRoutersShareBookings: routers that do not know of one another's requests send them to one idle
// worker. A value of the user wins, and without NATS nothing can be shared.
func TestRoutersShareBookings(t *testing.T) {
	noNATS := map[string]any{"enabled": false}
	for name, c := range map[string]struct {
		values map[string]any
		want   any
	}{
		"defaults":      {map[string]any{}, true},
		"one replica":   {map[string]any{"router": map[string]any{"replicas": 1}}, true},
		"autoscaled":    {map[string]any{"router": map[string]any{"autoscaling": map[string]any{"enabled": true}}}, true},
		"other setting": {map[string]any{"router": map[string]any{"settings": map[string]any{"score": "price"}}}, true},
		"existing NATS": {map[string]any{"nats": map[string]any{"enabled": false, "url": "nats://x:4222"}}, true},
		"switched off":  {map[string]any{"router": map[string]any{"settings": map[string]any{"router_replica_sync": false}}}, false},
		"without NATS":  {map[string]any{"nats": noNATS, "router": map[string]any{"replicas": 1}}, nil},
	} {
		if got := routerSettings(t, c.values)["router_replica_sync"]; got != c.want {
			t.Errorf("%s: router_replica_sync %v, want %v", name, got, c.want)
		}
	}
}

// scaledBy returns the metrics that the routers are scaled by.
func scaledBy(objects []any) (names []string) {
	for _, o := range objects {
		if h, ok := o.(*autoscalingv2.HorizontalPodAutoscaler); ok {
			for _, m := range h.Spec.Metrics {
				if m.Pods != nil {
					names = append(names, m.Pods.Metric.Name)
				} else {
					names = append(names, string(m.Resource.Name))
				}
			}
		}
	}
	return names
}

// TestRoutersScaleByMetricsThatTheyHave: only a front door counts requests. A router without one is
// scaled by CPU, and the chart refuses to scale it by nothing.
func TestRoutersScaleByMetricsThatTheyHave(t *testing.T) {
	all := exposed(t)
	scale := func(autoscaling map[string]any, workers ...any) map[string]any {
		autoscaling["enabled"] = true
		return map[string]any{"router": map[string]any{"autoscaling": autoscaling, "workers": map[string]any{"urls": workers}}}
	}
	for _, c := range []struct {
		values map[string]any
		want   []string
	}{
		{scale(map[string]any{}, "http://a:8000"), []string{"blockyard_frontend_requests_running", "cpu"}},
		{scale(map[string]any{"cpuPercent": 0}, "http://a:8000"), []string{"blockyard_frontend_requests_running"}},
		{scale(map[string]any{"requestsPerPod": 0}, "http://a:8000"), []string{"cpu"}},
		{scale(map[string]any{}), []string{"cpu"}},
	} {
		got := scaledBy(renderObjects(t, c.values))
		if !slices.Equal(got, c.want) {
			t.Errorf("%v: scaled by %q, want %q", c.values, got, c.want)
		}
		for _, name := range got {
			if name != "cpu" && all[name] == nil {
				t.Errorf("no program exposes %s", name)
			}
		}
	}
	for _, v := range []map[string]any{scale(map[string]any{"cpuPercent": 0}), scale(map[string]any{"cpuPercent": 0, "requestsPerPod": 0}, "http://a:8000")} {
		if _, err := render(v); err == nil || !strings.Contains(err.Error(), "router.autoscaling: nothing to scale by") {
			t.Errorf("%v: error %v", v, err)
		}
	}
}
