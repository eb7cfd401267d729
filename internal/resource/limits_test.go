package resource

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// tree makes files under a new root.
func tree(t *testing.T, files map[string]string) string {
	t.Helper()
	root := t.TempDir()
	for name, content := range files {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

const (
	mountV2 = "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"
	mountV1 = "34 31 0:30 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n" +
		"35 31 0:31 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
)

func TestLimitsAreReadFromWhereTheKernelPutsThem(t *testing.T) {
	for _, c := range []struct {
		name  string
		files map[string]string
		want  Limits
	}{
		{name: "nothing is there"},
		{
			name: "node",
			files: map[string]string{
				"proc/meminfo":     "MemTotal:       1000 kB\nMemFree:  1 kB\nMemAvailable:    600 kB\nSwapTotal: 50 kB\nHugePages_Total:       0\n",
				"proc/self/limits": "Limit  Soft Limit Hard Limit Units\nMax locked memory         8388608              unlimited              bytes     \n",
				"sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages":      "8\n",
				"sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages":    "3\n",
				"sys/kernel/mm/hugepages/hugepages-1048576kB/nr_hugepages":   "0\n",
				"sys/kernel/mm/hugepages/hugepages-1048576kB/free_hugepages": "0\n",
			},
			want: Limits{
				MemTotal: 1000 << 10, MemAvailable: 600 << 10, SwapTotal: 50 << 10, Memlock: 8388608,
				HugePages: []HugePages{{2 << 20, 8, 3}, {1 << 30, 0, 0}},
			},
		},
		{
			name:  "locked memory is not limited",
			files: map[string]string{"proc/self/limits": "Max locked memory         unlimited            unlimited            bytes     \n"},
		},
		{
			name:  "no locked memory is allowed",
			files: map[string]string{"proc/self/limits": "Max locked memory         0            0            bytes     \n"},
			want:  Limits{Memlock: 1},
		},
		{
			name: "version 2, a limit above our group",
			files: map[string]string{
				"proc/self/cgroup":                           "0::/kubepods/pod1/ctr\n",
				"proc/self/mountinfo":                        mountV2,
				"sys/fs/cgroup/kubepods/pod1/ctr/memory.max": "max\n",
				"sys/fs/cgroup/kubepods/pod1/memory.max":     "1000\n",
				"sys/fs/cgroup/kubepods/pod1/memory.current": "700\n",
				"sys/fs/cgroup/kubepods/pod1/memory.stat":    "anon 100\nfile 500\nshmem 400\ninactive_anon 400\ninactive_file 60\nactive_file 40\n",
				"sys/fs/cgroup/kubepods/memory.max":          "2000\n",
				"sys/fs/cgroup/kubepods/memory.current":      "900\n",
			},
			want: Limits{Groups: []Group{
				{"/sys/fs/cgroup/kubepods/pod1", 1000, 600},
				{"/sys/fs/cgroup/kubepods", 2000, 900},
			}},
		},
		{
			name: "version 2 in a container with groups of its own",
			files: map[string]string{
				"proc/self/cgroup":             "0::/\n",
				"proc/self/mountinfo":          mountV2,
				"sys/fs/cgroup/memory.max":     "1000\n",
				"sys/fs/cgroup/memory.current": "1200\n",
			},
			want: Limits{Groups: []Group{{"/sys/fs/cgroup", 1000, 1200}}},
		},
		{
			name: "version 1 beside version 2, unlimited at the top",
			files: map[string]string{
				"proc/self/cgroup":                               "4:cpu:/x\n3:memory,pids:/a/b\n0::/\n",
				"proc/self/mountinfo":                            mountV1 + "38 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n",
				"sys/fs/cgroup/memory/memory.limit_in_bytes":     "9223372036854771712\n",
				"sys/fs/cgroup/memory/a/memory.limit_in_bytes":   "9223372036854771712\n",
				"sys/fs/cgroup/memory/a/b/memory.limit_in_bytes": "5000\n",
				"sys/fs/cgroup/memory/a/b/memory.usage_in_bytes": "3000\n",
				"sys/fs/cgroup/memory/a/b/memory.stat":           "inactive_file 7\ntotal_inactive_file 200\ntotal_active_file 300\n",
			},
			want: Limits{Groups: []Group{{"/sys/fs/cgroup/memory/a/b", 5000, 2500}}},
		},
		{
			name: "version 1 in a container that sees the node's names",
			files: map[string]string{
				"proc/self/cgroup":                                "3:memory:/docker/abc/sub\n",
				"proc/self/mountinfo":                             "35 31 0:31 /docker/abc /sys/fs/cgroup/mem\\040ory rw - cgroup cgroup rw,memory\n",
				"sys/fs/cgroup/mem ory/memory.limit_in_bytes":     "6000\n",
				"sys/fs/cgroup/mem ory/memory.usage_in_bytes":     "10\n",
				"sys/fs/cgroup/mem ory/sub/memory.limit_in_bytes": "0\n",
				"sys/fs/cgroup/mem ory/sub/memory.usage_in_bytes": "1\n",
			},
			want: Limits{Groups: []Group{
				{"/sys/fs/cgroup/mem ory/sub", 1, 1},
				{"/sys/fs/cgroup/mem ory", 6000, 10},
			}},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := Read(tree(t, c.files))
			if diff := cmp.Diff(c.want, got); err != nil || diff != "" {
				t.Errorf("%v\n%s", err, diff)
			}
		})
	}
}

func TestFilesThatMakeNoSenseAreNamedAndTheRestIsRead(t *testing.T) {
	for name, content := range map[string]string{
		"proc/meminfo":     "MemTotal: lots\n",
		"proc/self/limits": "Max locked memory some some bytes\n",
		"proc/self/cgroup": "nonsense\n",
		"sys/kernel/mm/hugepages/hugepages-xkB/nr_hugepages":    "1\n",
		"sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages": "-1\n",
		"sys/fs/cgroup/memory.max":                              "a lot\n",
		"sys/fs/cgroup/memory.current":                          "-5\n",
		"sys/fs/cgroup/memory.stat":                             "inactive_file much\n",
	} {
		files := map[string]string{
			"proc/self/cgroup": "0::/\n", "proc/self/mountinfo": "bad line\n" + mountV2,
			"sys/fs/cgroup/memory.max": "10\n", "sys/fs/cgroup/memory.current": "5\n",
			"proc/meminfo": "MemTotal: 4 kB\n",
		}
		files[name] = content
		got, err := Read(tree(t, files))
		base := filepath.Dir(name)
		if err == nil || !strings.Contains(err.Error(), strings.TrimSuffix(base, "/hugepages-xkB")) {
			t.Errorf("%s: %v", name, err)
		}
		if name != "proc/meminfo" && got.MemTotal != 4<<10 {
			t.Errorf("%s: the node's memory was not read", name)
		}
	}
}

func TestThisProcessCanReadItsLimits(t *testing.T) {
	l, err := Read("/")
	if err != nil || l.MemTotal == 0 || l.MemAvailable > l.MemTotal {
		t.Errorf("%+v, %v", l, err)
	}
	t.Logf("%+v", l)
}
