package check

import (
	"bytes"
	"errors"
	"fmt"
	"regexp"

	monitoringv1 "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"sigs.k8s.io/yaml"
)

// kinds makes an object of each kind that the chart may have.
var kinds = map[string]func() any{
	"v1 ConfigMap":                             func() any { return new(corev1.ConfigMap) },
	"v1 Secret":                                func() any { return new(corev1.Secret) },
	"v1 Service":                               func() any { return new(corev1.Service) },
	"v1 ServiceAccount":                        func() any { return new(corev1.ServiceAccount) },
	"apps/v1 DaemonSet":                        func() any { return new(appsv1.DaemonSet) },
	"apps/v1 Deployment":                       func() any { return new(appsv1.Deployment) },
	"apps/v1 StatefulSet":                      func() any { return new(appsv1.StatefulSet) },
	"autoscaling/v2 HorizontalPodAutoscaler":   func() any { return new(autoscalingv2.HorizontalPodAutoscaler) },
	"networking.k8s.io/v1 NetworkPolicy":       func() any { return new(networkingv1.NetworkPolicy) },
	"policy/v1 PodDisruptionBudget":            func() any { return new(policyv1.PodDisruptionBudget) },
	"rbac.authorization.k8s.io/v1 Role":        func() any { return new(rbacv1.Role) },
	"rbac.authorization.k8s.io/v1 RoleBinding": func() any { return new(rbacv1.RoleBinding) },
	"monitoring.coreos.com/v1 ServiceMonitor":  func() any { return new(monitoringv1.ServiceMonitor) },
	"monitoring.coreos.com/v1 PrometheusRule":  func() any { return new(monitoringv1.PrometheusRule) },
}

var separator = regexp.MustCompile(`(?m)^---[ \t]*$`)

// decodeAll returns the objects of a YAML stream. A field that the object's type does not have,
// or that is there twice, is an error.
func decodeAll(stream []byte) (objects []any, err error) {
	for _, text := range separator.Split(string(stream), -1) {
		if len(bytes.TrimSpace(stripComments([]byte(text)))) == 0 {
			continue
		}
		var head struct{ APIVersion, Kind string }
		if e := yaml.Unmarshal([]byte(text), &head); e != nil {
			err = errors.Join(err, e)
			continue
		}
		make, ok := kinds[head.APIVersion+" "+head.Kind]
		if !ok {
			err = errors.Join(err, fmt.Errorf("unknown kind %s %s", head.APIVersion, head.Kind))
			continue
		}
		o := make()
		if e := yaml.UnmarshalStrict([]byte(text), o); e != nil {
			err = errors.Join(err, fmt.Errorf("%s: %w", head.Kind, e))
			continue
		}
		objects = append(objects, o)
	}
	return objects, err
}

var comment = regexp.MustCompile(`(?m)^\s*#.*$`)

func stripComments(b []byte) []byte { return comment.ReplaceAll(b, nil) }

// workload is an object that makes pods.
type workload struct {
	name string
	pod  corev1.PodTemplateSpec
	// claims has the names of the volumes that a StatefulSet makes for each pod.
	claims map[string]bool
}

func workloads(objects []any) (all []workload) {
	for _, o := range objects {
		switch o := o.(type) {
		case *appsv1.DaemonSet:
			all = append(all, workload{"DaemonSet " + o.Name, o.Spec.Template, nil})
		case *appsv1.Deployment:
			all = append(all, workload{"Deployment " + o.Name, o.Spec.Template, nil})
		case *appsv1.StatefulSet:
			claims := map[string]bool{}
			for _, c := range o.Spec.VolumeClaimTemplates {
				claims[c.Name] = true
			}
			all = append(all, workload{"StatefulSet " + o.Name, o.Spec.Template, claims})
		}
	}
	return all
}

// hasPort reports whether a container of the pods has a port of that name or number.
func (w *workload) hasPort(port string) bool {
	for _, c := range append(w.pod.Spec.Containers, w.pod.Spec.InitContainers...) {
		for _, p := range c.Ports {
			if p.Name == port || fmt.Sprint(p.ContainerPort) == port {
				return true
			}
		}
	}
	return false
}
