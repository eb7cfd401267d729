package policyfile_test

import (
	"fmt"

	"github.com/blockyard-ai/blockyard/router/policyfile"
)

func Example() {
	f, err := policyfile.Parse([]byte(`
default_policy_family: standard
uncached_isl_buckets: [{min_tokens: 0, bucket: short}, {min_tokens: 4096, bucket: long}]
policy_classes:
  - {name: short, policy_family: standard, cache_bucket: short, quantum: 2048, prefill_busy_threshold: 4096}
  - {name: long, policy_family: standard, cache_bucket: long, quantum: 512, prefill_busy_threshold: 4096, queue_policy: wspt}
`))
	if err != nil {
		panic(err)
	}
	p := f.Profile("any model")
	fmt.Println(p.Classes[p.Classify("", 9000)].Name)
	// Output: long
}
