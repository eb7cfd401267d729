package config_test

import (
	"fmt"
	"log"

	"github.com/blockyard-ai/blockyard/router/config"
)

// A flag wins over a variable, and a variable over the document.
func ExampleResolve() {
	loaded, err := config.Resolve(config.Sources{
		Document: []byte(`{"router_temperature": 0.5, "host_cache_hit_weight": 0.6}`),
		Name:     "router.json",
		Environ:  []string{"DYN_ROUTER_TEMPERATURE=0.25"},
		Flags:    map[string]string{"router-kv-overlap-score-credit": "0.9"},
	})
	if err != nil {
		log.Fatal(err)
	}
	for _, given := range loaded.Given {
		fmt.Printf("%s = %s (%s)\n", given.Name, given.Value, given.Source)
	}
	// Output:
	// overlap_score_credit = 0.9 (--router-kv-overlap-score-credit)
	// host_cache_hit_weight = 0.6 (router.json host_cache_hit_weight)
	// router_temperature = 0.25 (DYN_ROUTER_TEMPERATURE)
}

// A value that is out of range is an error that names the setting and the range.
func ExampleResolve_outOfRange() {
	_, err := config.Resolve(config.Sources{Document: []byte(`{"router_temperature": -1}`)})
	fmt.Println(err)
	// Output:
	// router_temperature "-1": want a number, 0 to 1000000
}
