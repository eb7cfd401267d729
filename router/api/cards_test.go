package api

import (
	"encoding/json"
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/blockyard-ai/blockyard/router/routertest"
	"github.com/blockyard-ai/blockyard/router/source/registry"
)

// What is registered of a worker, over HTTP or in the file, is shown, and a value out of
// range is named.
func TestRegisteredCards(t *testing.T) {
	file := filepath.Join(t.TempDir(), "workers.json")
	routertest.WriteFile(t, file, `{"workers":[{"worker_id":9,"model":"m","block_size":4,"device_blocks":70,"taints":["b","a"]}]}`)
	routertest.OnRegistry(t, registry.Options{File: file}, func(b *routertest.Bench, r *registry.Source) {
		h := New(b.Router, Options{}).Handler()
		body := `{"worker_id":5,"model":"m","block_size":4,`
		if got := routertest.Text(t, routertest.Call(t, New(b.Router, Options{}).ControlHandler(), "POST", "/v1/workers", "", body+`"total_kv_blocks":100,"max_num_batched_tokens":8192,"taints":["x","x"]}`)); !strings.Contains(got, `"worker_id":5`) {
			t.Error(got)
		}
		b.Pass(time.Second)
		var workers []workerAnswer
		if err := json.Unmarshal([]byte(routertest.Text(t, routertest.Call(t, h, "GET", "/v1/workers", "", ""))), &workers); err != nil || len(workers) != 2 {
			t.Fatalf("%+v, %v", workers, err)
		}
		if w := workers[0]; w.DeviceBlocks != 100 || w.MaxBatchedTokens != 8192 || fmt.Sprint(w.Taints) != "[x]" {
			t.Errorf("over HTTP: %+v", w)
		}
		if w := workers[1]; w.DeviceBlocks != 70 || w.MaxBatchedTokens != 0 || fmt.Sprint(w.Taints) != "[a b]" {
			t.Errorf("of the file: %+v", w)
		}
		for fields, want := range map[string]string{
			`"device_blocks":9007199254740992}`:          "device_blocks: 9007199254740992 is not in 0..9007199254740991",
			`"total_kv_blocks":9007199254740992}`:        "total_kv_blocks: 9007199254740992 is not in 0..9007199254740991",
			`"device_blocks":1,"total_kv_blocks":2}`:     "total_kv_blocks: 2 contradicts device_blocks, which is 1",
			`"max_num_batched_tokens":9007199254740992}`: "max_num_batched_tokens: 9007199254740992 is not in 0..9007199254740991",
			`"taints":["a",""]}`:                         "taints[1]: 0 bytes, want 1 to 128",
			`"taints":["a,b"]}`:                          `taints[0]: \"a,b\"`,
			`"taints":"a"}`:                              "taints",
		} {
			answer := routertest.Call(t, New(b.Router, Options{}).ControlHandler(), "POST", "/v1/workers", "", body+fields)
			if got := routertest.Text(t, answer); answer.StatusCode != http.StatusBadRequest || !strings.Contains(got, want) {
				t.Errorf("%s: %d %s, want %s", fields, answer.StatusCode, got, want)
			}
		}
	})
}
