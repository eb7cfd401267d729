package extent

import (
	"path/filepath"
	"testing"
	"testing/fstest"
)

func TestQueueDepthFollowsTheDevice(t *testing.T) {
	file := func(text string) *fstest.MapFile { return &fstest.MapFile{Data: []byte(text + "\n")} }
	sys := fstest.MapFS{
		"devices/nvme0n1/queue/rotational":    file("0"),
		"devices/nvme0n1/queue/nr_requests":   file("1023"),
		"devices/nvme0n1/nvme0n1p2/partition": file("2"),
		"devices/sda/queue/rotational":        file("1"),
		"devices/sda/queue/nr_requests":       file("64"),
		"devices/vda/queue/rotational":        file("0"),
		"devices/vda/queue/nr_requests":       file("2"),
		"devices/md0/queue/rotational":        file("0"),
		"devices/md0/slaves/sdx/a":            file(""),
		"devices/md0/slaves/sdy/a":            file(""),
		"class/block/sdx/queue/rotational":    file("0"),
		"class/block/sdy/queue/rotational":    file("0"),
		"devices/loop/slaves/loop/a":          file(""),
		"class/block/loop/slaves/loop/a":      file(""),
	}
	for device, want := range map[string]int{
		"nvme0n1": solidDepth, "nvme0n1/nvme0n1p2": solidDepth, "sda": defaultDepth, "vda": 2, "md0": 2 * solidDepth,
		"loop": 0, "nothing": 0,
	} {
		if got := deviceDepth(sys, "devices/"+device, maxStacked); got != want {
			t.Errorf("%s: %d, want %d", device, got, want)
		}
	}
	if n := QueueDepth(filepath.Join(t.TempDir(), "not", "yet")); n < 1 || n > maxDepth {
		t.Errorf("a directory that does not exist yet: %d", n)
	}
}
