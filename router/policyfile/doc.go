// Package policyfile reads the YAML file that sorts requests into classes of the router's queue. Its
// form is Dynamo's policy file; docs/router-queue.md describes it.
//
//	f, err := policyfile.Load("classes.yaml")
//	profile := f.Profile("meta-llama/Llama-3.1-8B") // nil without one
//
// A profile of a model replaces the file's own profile; nothing of it is inherited. An error names the
// file, the model and the field. A key that is unknown or not supported yet is an error. A File does
// not change and may be used from any goroutine.
package policyfile
