// Package limits reads the YAML file that says how much of a node's tiers each model and each tenant may
// have. docs/tenants.md describes the file.
//
//	l, err := limits.Load("/etc/blockyard/limits.yaml")
//	manager.SetModelLimits(l.Models)
//	manager.SetTenants(l.Tenants)
//
// An error names the file and the field. It shows no salt: salts keep tenants apart.
package limits
