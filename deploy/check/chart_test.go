package check

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/engine"
	"helm.sh/helm/v3/pkg/lint"
	"helm.sh/helm/v3/pkg/lint/support"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"sigs.k8s.io/yaml"
)

const (
	chartDir  = "../helm/blockyard"
	namespace = "inference"
	release   = "cache"
)

// valuesFiles returns the names of the values files that the chart is checked with, and
// "defaults" for none.
func valuesFiles(t *testing.T) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(chartDir, "ci", "*.yaml"))
	if err != nil || len(files) < 4 {
		t.Fatalf("%d values files, error %v", len(files), err)
	}
	return append(files, "")
}

func values(t *testing.T, file string) map[string]any {
	t.Helper()
	if file == "" {
		return map[string]any{}
	}
	v, err := chartutil.ReadValuesFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// render returns the chart's objects as helm template prints them, by file.
func render(v map[string]any) (map[string]string, error) {
	chart, err := loader.LoadDir(chartDir)
	if err != nil {
		return nil, err
	}
	if err := chartutil.ProcessDependenciesWithMerge(chart, v); err != nil {
		return nil, err
	}
	given, err := chartutil.ToRenderValues(chart, v, chartutil.ReleaseOptions{Name: release, Namespace: namespace, IsInstall: true, Revision: 1}, nil)
	if err != nil {
		return nil, err
	}
	return engine.Render(chart, given)
}

// renderObjects returns the typed objects of the chart with a values file.
func renderObjects(t *testing.T, v map[string]any) []any {
	t.Helper()
	files, err := render(v)
	if err != nil {
		t.Fatal(err)
	}
	var all []any
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if !strings.HasSuffix(name, ".yaml") {
			continue
		}
		objects, err := decodeAll([]byte(files[name]))
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		all = append(all, objects...)
	}
	return all
}

func caseName(file string) string {
	if file == "" {
		return "defaults"
	}
	return strings.TrimSuffix(filepath.Base(file), ".yaml")
}

func TestChartIsLinted(t *testing.T) {
	for _, file := range valuesFiles(t) {
		t.Run(caseName(file), func(t *testing.T) {
			for _, m := range lint.All(chartDir, values(t, file), namespace, true).Messages {
				if m.Severity > support.InfoSev {
					t.Error(m)
				}
			}
		})
	}
}

// TestChartRendersObjectsOfKubernetes: every object decodes strictly, has a name of its own, and
// its references to Secrets, ConfigMaps, accounts and selectors are to objects that are there.
func TestChartRendersObjectsOfKubernetes(t *testing.T) {
	for _, file := range valuesFiles(t) {
		t.Run(caseName(file), func(t *testing.T) {
			objects := renderObjects(t, values(t, file))
			if len(objects) < 4 {
				t.Fatalf("%d objects", len(objects))
			}
			seen := map[string]bool{}
			for _, o := range objects {
				id := identity(o)
				if seen[id] {
					t.Errorf("%s is there twice", id)
				}
				seen[id] = true
			}
			for _, w := range workloads(objects) {
				checkReferences(t, w, seen)
				checkSelectors(t, w, objects)
			}
			t.Logf("%d objects", len(objects))
		})
	}
}

func checkReferences(t *testing.T, w workload, seen map[string]bool) {
	t.Helper()
	own := func(name string) bool { return strings.HasPrefix(name, release+"-") }
	need := func(kind, name string) {
		if own(name) && !seen[kind+"/"+name] {
			t.Errorf("%s names the %s %s, which the chart does not make", w.name, kind, name)
		}
	}
	if w.pod.Spec.ServiceAccountName != "" {
		need("ServiceAccount", w.pod.Spec.ServiceAccountName)
	}
	for _, v := range w.pod.Spec.Volumes {
		if v.ConfigMap != nil {
			need("ConfigMap", v.ConfigMap.Name)
		}
		if v.Secret != nil {
			need("Secret", v.Secret.SecretName)
		}
	}
	for _, c := range w.pod.Spec.Containers {
		for _, e := range c.EnvFrom {
			need("Secret", e.SecretRef.Name)
		}
		for _, m := range c.VolumeMounts {
			if !w.claims[m.Name] && !slices.ContainsFunc(w.pod.Spec.Volumes, func(v corev1.Volume) bool { return v.Name == m.Name }) {
				t.Errorf("%s mounts the volume %s, which it does not have", w.name, m.Name)
			}
		}
	}
}

// checkSelectors: each Service and NetworkPolicy of a workload's component selects its pods, and
// names ports that they have.
func checkSelectors(t *testing.T, w workload, objects []any) {
	t.Helper()
	served := false
	for _, o := range objects {
		s, ok := o.(*corev1.Service)
		if !ok || !selects(s.Spec.Selector, w.pod.Labels) {
			continue
		}
		served = true
		for _, p := range s.Spec.Ports {
			if !w.hasPort(p.TargetPort.String()) {
				t.Errorf("Service %s: the pods of %s have no port %s", s.Name, w.name, p.TargetPort.String())
			}
		}
	}
	if !served {
		t.Errorf("no Service selects the pods of %s", w.name)
	}
	for _, o := range objects {
		n, ok := o.(*networkingv1.NetworkPolicy)
		if !ok || !selects(n.Spec.PodSelector.MatchLabels, w.pod.Labels) {
			continue
		}
		for _, rule := range n.Spec.Ingress {
			for _, p := range rule.Ports {
				if name := p.Port.String(); p.Port.StrVal != "" && !w.hasPort(name) {
					t.Errorf("NetworkPolicy %s: the pods of %s have no port %s", n.Name, w.name, name)
				}
			}
		}
	}
}

func selects(selector, labels map[string]string) bool {
	for k, v := range selector {
		if labels[k] != v {
			return false
		}
	}
	return len(selector) > 0
}

// TestAgentSeesItsEngines: an agent without the host's processes cannot tell when a slot is free,
// and one whose limit does not hold its host tier is killed.
func TestAgentSeesItsEngines(t *testing.T) {
	objects := renderObjects(t, map[string]any{"agent": map[string]any{"hostGiB": 64, "overheadGiB": 3}})
	for _, o := range objects {
		d, ok := o.(*appsv1.DaemonSet)
		if !ok {
			continue
		}
		pod := d.Spec.Template.Spec
		if !pod.HostPID {
			t.Error("hostPID is off")
		}
		c := pod.Containers[0]
		if got := c.Resources.Limits.Memory().String(); got != "67Gi" {
			t.Errorf("memory limit %s, want 67Gi: the host tier and the overhead", got)
		}
		if add := c.SecurityContext.Capabilities.Add; !slices.Equal(add, []corev1.Capability{"IPC_LOCK"}) {
			t.Errorf("capabilities %v, want IPC_LOCK", add)
		}
		if !slices.Contains(c.Args, "--host-size=64GiB") {
			t.Errorf("args %q lack the host tier", c.Args)
		}
		return
	}
	t.Fatal("no DaemonSet")
}

// TestAgentReadsTheDiskKey: the file of the key has a mode that the agent takes, and its user may
// read it: root owns it, and the group is the pod's fsGroup.
func TestAgentReadsTheDiskKey(t *testing.T) {
	for _, user := range []int64{0, 10001} {
		key := map[string]any{"existingSecret": "disk", "key": "hex"}
		objects := renderObjects(t, map[string]any{"agent": map[string]any{"user": user, "diskGiB": 100, "diskKey": key}})
		i := slices.IndexFunc(objects, func(o any) bool { _, ok := o.(*appsv1.DaemonSet); return ok })
		if i < 0 {
			t.Fatal("no DaemonSet")
		}
		pod := objects[i].(*appsv1.DaemonSet).Spec.Template.Spec
		group := pod.SecurityContext.FSGroup
		if c := pod.Containers[0].SecurityContext; user != 0 && (group == nil || *group != *c.RunAsGroup) {
			t.Errorf("user %d: fsGroup %v, group %d", user, group, *c.RunAsGroup)
		}
		v := volumeOf(t, &pod, "--disk-key-file=")
		if v.Secret == nil || v.Secret.SecretName != "disk" || *v.Secret.DefaultMode != 0o440 || v.Secret.Items[0].Key != "hex" {
			t.Errorf("user %d: volume %+v", user, v)
		}
	}
	noDisk := map[string]any{"agent": map[string]any{"diskKey": map[string]any{"existingSecret": "disk"}}}
	if _, err := render(noDisk); err == nil || !strings.Contains(err.Error(), "agent.diskGiB") {
		t.Errorf("a key without a disk tier: error %v", err)
	}
}

// volumeOf returns the Secret's volume from which the agent reads the file that a flag names.
func volumeOf(t *testing.T, pod *corev1.PodSpec, flag string) corev1.Volume {
	t.Helper()
	c := pod.Containers[0]
	for _, a := range c.Args {
		file, ok := strings.CutPrefix(a, flag)
		for _, m := range c.VolumeMounts {
			if !ok || m.MountPath != filepath.Dir(file) || !m.ReadOnly {
				continue
			}
			for _, v := range pod.Volumes {
				if v.Name == m.Name && v.Secret != nil && v.Secret.Items[0].Path == filepath.Base(file) {
					return v
				}
			}
		}
	}
	t.Fatalf("no Secret is mounted for %s in %q", flag, c.Args)
	return corev1.Volume{}
}

// TestSchemaNamesWhatIsWrong: each wrong value is refused with its path.
func TestSchemaNamesWhatIsWrong(t *testing.T) {
	for path, v := range map[string]any{
		"agent.hostGiB": -1, "agent.hostGib": 8, "agent.paths.run": "run", "agent.extraArgs": []any{"disk"},
		"agent.diskKey.existingSecret": "Disk Key", "agent.diskKey.key": "a/b",
		"router.ports.door": 70000, "router.workers.urls": []any{"a:8000"}, "nats.url": "http://x", "cluster": "a b",
		"monitoring.serviceMonitor.interval": "fast", "image.pullPolicy": "Sometimes",
	} {
		keys := strings.Split(path, ".")
		tree := v
		for _, k := range slices.Backward(keys) {
			tree = map[string]any{k: tree}
		}
		_, err := render(tree.(map[string]any))
		last := keys[len(keys)-1]
		if err == nil || !strings.Contains(err.Error(), last) && !strings.Contains(err.Error(), keys[0]) {
			t.Errorf("%s: %v: error %v, want one that names it", path, v, err)
		}
	}
	both := map[string]any{"nats": map[string]any{"enabled": true, "url": "nats://x:4222"}}
	if _, err := render(both); err == nil || !strings.Contains(err.Error(), "nats.url") {
		t.Errorf("two NATS servers: error %v", err)
	}
}

// TestExamplesAreObjectsOfKubernetes: the manifests of deploy/kubernetes decode strictly.
func TestExamplesAreObjectsOfKubernetes(t *testing.T) {
	files, err := filepath.Glob("../kubernetes/*.yaml")
	if err != nil || len(files) < 2 {
		t.Fatalf("%d files, error %v", len(files), err)
	}
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		objects, err := decodeAll(b)
		if err != nil || len(objects) == 0 {
			t.Errorf("%s: %d objects, error %v", f, len(objects), err)
		}
		for _, w := range workloads(objects) {
			checkReferences(t, w, map[string]bool{})
		}
	}
}

// TestMisspeltFieldsAreFound: the strict decoder sees what Kubernetes would drop in silence.
func TestMisspeltFieldsAreFound(t *testing.T) {
	files, err := render(values(t, ""))
	if err != nil {
		t.Fatal(err)
	}
	text := files["blockyard/templates/agent-daemonset.yaml"]
	for _, field := range []string{"hostPID", "readOnlyRootFilesystem", "mountPath", "matchLabels"} {
		wrong := regexp.MustCompile(field+`\b`).ReplaceAllString(text, field+"s")
		if wrong == text {
			t.Fatalf("the DaemonSet has no %s", field)
		}
		if _, err := decodeAll([]byte(wrong)); err == nil {
			t.Errorf("%ss was taken", field)
		}
	}
}

func identity(o any) string {
	b, err := yaml.Marshal(o)
	if err != nil {
		return err.Error()
	}
	var head struct {
		Kind     string
		Metadata struct{ Name string }
	}
	if err := yaml.Unmarshal(b, &head); err != nil {
		return err.Error()
	}
	return fmt.Sprintf("%s/%s", head.Kind, head.Metadata.Name)
}
