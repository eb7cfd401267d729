package smart

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// fakeDisk makes a root in which the directory lies on a partition of a RAID of the disks, and a smartctl
// that answers with the text.
func fakeDisk(t *testing.T, dir, answer string, disks ...string) Reader {
	t.Helper()
	root := t.TempDir()
	var st unix.Stat_t
	if err := unix.Stat(dir, &st); err != nil {
		t.Fatal(err)
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(os.MkdirAll(filepath.Join(root, "sys/devices/md0/md0p1/slaves"), 0o755))
	must(os.WriteFile(filepath.Join(root, "sys/devices/md0/md0p1/partition"), []byte("1\n"), 0o644))
	must(os.MkdirAll(filepath.Join(root, "sys/dev/block"), 0o755))
	must(os.MkdirAll(filepath.Join(root, "sys/class/block"), 0o755))
	must(os.MkdirAll(filepath.Join(root, "sys/devices/md0/slaves"), 0o755))
	must(os.Symlink("../../devices/md0/md0p1", filepath.Join(root, "sys/dev/block", fmt.Sprintf("%d:%d", unix.Major(st.Dev), unix.Minor(st.Dev)))))
	for _, d := range disks {
		must(os.MkdirAll(filepath.Join(root, "sys/devices", d), 0o755))
		must(os.Symlink("../../devices/"+d, filepath.Join(root, "sys/class/block", d)))
		must(os.MkdirAll(filepath.Join(root, "sys/devices/md0/slaves", d), 0o755))
	}
	program := filepath.Join(root, "smartctl")
	must(os.WriteFile(program, []byte("#!/bin/sh\necho '"+answer+"'\nexit 4\n"), 0o755))
	return Reader{Root: root, Smartctl: program}
}

func TestDevicesUnderADirectoryAreAsked(t *testing.T) {
	dir := t.TempDir()
	for answer, want := range map[string]Device{
		`{"nvme_smart_health_information_log":{"percentage_used":12,"data_units_written":1000}}`:                                                                           {Used: 0.12, Written: 512e6},
		`{"endurance_used":{"current_percent":101},"logical_block_size":4096,"ata_smart_attributes":{"table":[{"id":9,"raw":{"value":5}},{"id":241,"raw":{"value":10}}]}}`: {Used: 1.01, Written: 40960},
		`{"smartctl":{"exit_status":2}}`: {Problem: "says nothing of the endurance"},
		`oops`:                           {Problem: "invalid character"},
	} {
		r := fakeDisk(t, dir, answer, "sda", "nvme3n1")
		got := r.Under(t.Context(), filepath.Join(dir, "absent"))
		if len(got) != 2 || got[0].Name != "nvme3n1" || got[1].Name != "sda" {
			t.Fatalf("%s: %+v", answer, got)
		}
		for _, d := range got {
			if d.Used != want.Used || d.Written != want.Written || !strings.Contains(d.Problem, want.Problem) || (d.Problem == "") != (want.Problem == "") {
				t.Errorf("%s: %+v, want %+v", answer, d, want)
			}
		}
	}
}

func TestAbsentProgramAndDeviceAreProblems(t *testing.T) {
	dir := t.TempDir()
	r := fakeDisk(t, dir, "", "sda", "nvme0n1")
	r.Smartctl = filepath.Join(dir, "no-such-program")
	if got := r.Under(t.Context(), dir); len(got) != 2 || !strings.Contains(got[1].Problem, "no-such-program") {
		t.Errorf("%+v", got)
	}
	r.Smartctl = "" // NVMe by ioctl
	if got := r.Under(t.Context(), dir); len(got) != 2 || !strings.Contains(got[0].Problem, "dev/nvme0n1") {
		t.Errorf("%+v", got)
	}
	if got := (Reader{Root: dir}).Under(t.Context(), dir); got != nil {
		t.Errorf("devices %+v of a file system without one", got)
	}
}

// TestSmartPage: the offsets are those of the NVMe specification, section "SMART / Health Information", and
// the size of the command that of linux/nvme_ioctl.h.
func TestSmartPage(t *testing.T) {
	page := make([]byte, smartBytes)
	page[5] = 250
	page[48], page[49] = 0x34, 0x12
	var d Device
	d.takePage(page)
	if d.Used != 2.5 || d.Written != 0x1234*512000 {
		t.Errorf("%+v", d)
	}
	if n := unsafe.Sizeof(adminCommand{}); n != 72 || nvmeAdmin != 0xc0484e41 {
		t.Errorf("a command of %d bytes, ioctl %#x", n, nvmeAdmin)
	}
}
