package extent

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// hasDirect reports whether a file has O_DIRECT set.
func hasDirect(t *testing.T, f *os.File) bool {
	t.Helper()
	flags, err := unix.FcntlInt(f.Fd(), unix.F_GETFL, 0)
	if err != nil {
		t.Fatal(err)
	}
	return flags&unix.O_DIRECT != 0
}

func TestDirectIOIsUsedAsAskedAndSaysSo(t *testing.T) {
	for _, c := range []struct {
		name string
		o    DiskOptions
	}{
		{"auto", DiskOptions{}},
		{"at open", DiskOptions{OpenDirect: true}},
		{"off", DiskOptions{Direct: DirectIOOff}},
		{"off at open", DiskOptions{Direct: DirectIOOff, OpenDirect: true}},
	} {
		t.Run(c.name, func(t *testing.T) {
			ext := newExtent(t, c.o)
			direct, asked := hasDirect(t, ext.raw.f), c.o.Direct != DirectIOOff
			if direct != (asked && ext.DirectRefusal() == "") || !asked && ext.DirectRefusal() != "" {
				t.Errorf("O_DIRECT is %v, asked for %v, refusal %q", direct, asked, ext.DirectRefusal())
			}
			t.Logf("O_DIRECT %v %s", direct, ext.DirectRefusal())
		})
	}
	if DirectIOMode(3).Validate() == nil || DirectIORequire.Validate() != nil {
		t.Error("want modes 0 to 2")
	}
}

func TestAlignmentThatSlotsDoNotHaveIsRefused(t *testing.T) {
	for _, c := range []struct {
		offset, memory uint32
		want           string
	}{
		{512, 4, ""},
		{4096, 4096, ""},
		{0, 0, "no direct I/O"},
		{8192, 512, "units of 8192 bytes, want at most 4096"},
		{512, 65536, "aligned to 65536 bytes, want at most 4096"},
	} {
		got := alignmentRefusal(c.offset, c.memory)
		if (c.want == "") != (got == "") || !strings.Contains(got, c.want) {
			t.Errorf("%d, %d: %q, want %q", c.offset, c.memory, got, c.want)
		}
	}
}

func TestFileSystemWithoutDirectIOIsNamedAndRefusedWhereRequired(t *testing.T) {
	const path = "/proc/self/status"
	for _, atOpen := range []bool{false, true} {
		f, refusal, err := openExtentFile(path, os.O_RDONLY, DiskOptions{OpenDirect: atOpen})
		if err != nil {
			t.Fatal(err)
		}
		if refusal == "" || strings.Contains(refusal, "\n") || hasDirect(t, f) {
			t.Errorf("at open %v: refusal %q, O_DIRECT %v", atOpen, refusal, hasDirect(t, f))
		}
		f.Close()
		_, _, err = openExtentFile(path, os.O_RDONLY, DiskOptions{Direct: DirectIORequire, OpenDirect: atOpen})
		if err == nil || !strings.Contains(err.Error(), "direct I/O on "+path+" is required") {
			t.Errorf("required: %v", err)
		}
	}
	if _, _, err := openExtentFile(filepath.Join(t.TempDir(), "none"), os.O_RDWR, DiskOptions{}); !os.IsNotExist(err) {
		t.Errorf("no such file: %v", err)
	}
}

// The attempt that decides where statx is silent must not change the file.
func TestProbeLeavesTheFileAsItWas(t *testing.T) {
	for _, size := range []int64{0, PageSize, 4 * PageSize} {
		f, refusal, err := openDirect(filepath.Join(t.TempDir(), "x"), os.O_RDWR|os.O_CREATE, false)
		if err != nil {
			t.Fatal(err)
		}
		if refusal != "" {
			t.Skip("no O_DIRECT here: " + refusal)
		}
		defer f.Close()
		page := AlignedBytes(int(size))
		for i := range page {
			page[i] = byte(i)
		}
		if _, err := f.WriteAt(page, 0); err != nil {
			t.Fatal(err)
		}
		if refusal := probeDirect(f); refusal != "" {
			t.Errorf("size %d: %s", size, refusal)
		}
		got, err := os.ReadFile(f.Name())
		if err != nil || string(got) != string(page) {
			t.Errorf("size %d: now %d bytes, %v", size, len(got), err)
		}
	}
}

func TestOddPageIsAlignedToOnePageOnly(t *testing.T) {
	for range 20 {
		if a := addressOf(oddPage()); a%PageSize != 0 || a%(2*PageSize) == 0 {
			t.Errorf("address %#x", a)
		}
	}
}
