package resource

import (
	"math"
	"strings"
	"testing"
)

const gib = 1 << 30

var (
	shm  = Space{Dir: "/dev/shm", Mount: "/dev/shm", Kind: kindTmpfs, InMemory: true, Free: 10 * gib, Total: 16 * gib, Device: 1}
	nvme = Space{Dir: "/cache", Mount: "/cache", Kind: "xfs", Free: 100 * gib, Total: 400 * gib, Device: 2}
	huge = Space{Dir: "/huge", Mount: "/huge", Kind: kindHugetlbfs, InMemory: true, Unit: 2 << 20, Device: 3}
)

func wanted() Want {
	return Want{
		HostDir: "/dev/shm/by", HostBytes: 4 * gib, HostSetting: "--host-size",
		DiskDir: "/cache/by", DiskBytes: 50 * gib, DiskSetting: "--disk-size",
	}
}

func TestCheckSaysWhatWasAskedWhatIsThereAndWhatToChange(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(l *Limits, host, disk *Space, w *Want)
		// err and warn must be in the error and in one warning; empty for none.
		err, warn string
	}{
		{"fits", func(*Limits, *Space, *Space, *Want) {}, "", ""},
		{"nothing asked", func(_ *Limits, host, disk *Space, w *Want) { *host, *disk, *w = Space{}, Space{}, Want{} }, "", ""},
		{
			"host beyond free", func(_ *Limits, host, _ *Space, w *Want) { host.Free = gib; w.HostBytes = 8 * gib },
			"host size 8GiB (--host-size): /dev/shm (tmpfs) has 1 GiB free of 16 GiB; make it larger (mount -o remount,size=…, or --shm-size in containers) or lower --host-size", "",
		},
		{"host held by an earlier agent", func(_ *Limits, host, _ *Space, w *Want) { host.Free = gib; w.HostHeld = 3 * gib }, "", ""},
		{
			"host held, but not enough", func(_ *Limits, host, _ *Space, w *Want) { host.Free = gib - 1; w.HostHeld = 3 * gib },
			"and 3 GiB that an earlier agent allocated; make", "",
		},
		{"host beyond total", func(_ *Limits, _, _ *Space, w *Want) { w.HostBytes, w.HostHeld = 17*gib, 17*gib }, "of 16 GiB", ""},
		{"tmpfs without a size", func(_ *Limits, host, _ *Space, w *Want) { host.Free, host.Total = 0, 0 }, "", ""},
		{
			"disk beyond free", func(_ *Limits, _, _ *Space, w *Want) { w.DiskBytes = 101 * gib; w.DiskSetting = "" },
			"disk size 101GiB (the disk size): /cache (xfs) has 100 GiB free of 400 GiB; free some space or lower the disk size", "",
		},
		{"disk held", func(_ *Limits, _, _ *Space, w *Want) { w.DiskBytes, w.DiskHeld = 200*gib, 100*gib }, "", ""},
		{
			"both on one file system", func(_ *Limits, host, disk *Space, w *Want) { *disk = *host; w.DiskBytes = 7 * gib },
			"(--host-size) and disk size 7GiB (--disk-size): both are on /dev/shm (tmpfs), which has 10 GiB free", "so the disk tier takes memory",
		},
		{
			"control group", func(l *Limits, _, _ *Space, _ *Want) {
				l.Groups = []Group{{"/wide", 100 * gib, 0}, {"/tight", 6 * gib, 3 * gib}}
			},
			"host size 4GiB (--host-size): control group /tight has 3 GiB left of its limit of 6 GiB; raise the limit (--memory in containers, MemoryMax in systemd) or lower --host-size", "",
		},
		{"control group used beyond its limit", func(l *Limits, _, _ *Space, _ *Want) { l.Groups = []Group{{"/g", gib, 2 * gib}} }, "has 0 B left", ""},
		{"control group holds it already", func(l *Limits, _, _ *Space, w *Want) {
			l.Groups = []Group{{"/g", 6 * gib, 5 * gib}}
			w.HostHeld = 4 * gib
		}, "", ""},
		{"control group nearly used", func(l *Limits, _, _ *Space, _ *Want) { l.Groups = []Group{{"/g", 4*gib + 1000, 0}} }, "", "leaves 1000 B of control group /g"},
		{"available memory", func(l *Limits, _, _ *Space, _ *Want) { l.MemAvailable = gib }, "", "1 GiB of memory are available on the node"},
		{"memory and swap", func(l *Limits, _, _ *Space, _ *Want) { l.MemTotal, l.SwapTotal = 3*gib, gib-1 }, "the node has 4.0 GiB of memory and swap", ""},
		{"locked memory", func(l *Limits, _, _ *Space, _ *Want) { l.Memlock = 8 << 20 }, "", "the limit of locked memory is 8 MiB"},
		{"host on disk", func(l *Limits, host, _ *Space, _ *Want) { *host = nvme; l.MemAvailable = gib }, "", "host directory /dev/shm/by: is on /cache (xfs), not in memory"},
		{
			"huge pages", func(l *Limits, host, _ *Space, _ *Want) {
				*host = huge
				l.HugePages = []HugePages{{2 << 20, 4096, 100}}
			},
			"/huge (hugetlbfs) has 200 MiB free in 100 huge pages of 2MiB; make more in /sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages or lower --host-size", "",
		},
		{
			"huge pages are not ordinary memory", func(l *Limits, host, _ *Space, _ *Want) {
				*host = huge
				l.HugePages = []HugePages{{1 << 30, 0, 0}, {2 << 20, 4096, 4096}}
				l.Groups, l.MemAvailable = []Group{{"/g", gib, 0}}, gib
			}, "", "",
		},
		{
			"disk on huge pages", func(_ *Limits, _, disk *Space, _ *Want) { *disk = huge },
			"disk directory /cache/by: is on /huge (hugetlbfs), where files cannot be written", "",
		},
		{
			"hugetlbfs with a size", func(_ *Limits, host, _ *Space, _ *Want) { *host = huge; host.Free, host.Total = gib, gib },
			"mount it with a larger size or lower --host-size", "",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			l, host, disk, w := Limits{MemTotal: 64 * gib, MemAvailable: 32 * gib}, shm, nvme, wanted()
			c.change(&l, &host, &disk, &w)
			warnings, err := Check(l, host, disk, w)
			if (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) {
				t.Errorf("error %v\nwant  %s", err, c.err)
			}
			all := strings.Join(warnings, "\n")
			if (all == "") != (c.warn == "") || !strings.Contains(all, c.warn) {
				t.Errorf("warnings %s\nwant     %s", all, c.warn)
			}
		})
	}
}

func TestMemoryLimitLeavesRoomBesideTheArena(t *testing.T) {
	groups := func(limits ...uint64) (l Limits) {
		for _, n := range limits {
			l.Groups = append(l.Groups, Group{Limit: n})
		}
		return l
	}
	for _, c := range []struct {
		name  string
		l     Limits
		arena uint64
		user  string
		want  int64
		ok    bool
	}{
		{"no group", Limits{}, gib, "", 0, false},
		{"set by the user", groups(8 * gib), gib, "off", 0, false},
		{"a tenth stays free", groups(20*gib, 11*gib), gib, "", 9 * gib, true},
		{"at least 64 MiB stay free", groups(gib + 256<<20), gib, "", 192 << 20, true},
		{"the heap keeps a minimum", groups(gib), gib, "", 64 << 20, true},
		{"an arena beyond the limit", groups(gib), math.MaxUint64, "", 64 << 20, true},
	} {
		if got, ok := MemoryLimit(c.l, c.arena, c.user); got != c.want || ok != c.ok {
			t.Errorf("%s: %d, %v, want %d, %v", c.name, got, ok, c.want, c.ok)
		}
	}
}

func TestMemoryIsWhatTheTiersTakeOfTheControlGroup(t *testing.T) {
	ramDisk := shm
	for _, c := range []struct {
		name       string
		host, disk Space
		slots      uint64
		want       uint64
	}{
		{"host on tmpfs", shm, nvme, 0, 4 * gib},
		{"host on huge pages", huge, nvme, 0, 0},
		{"disk on tmpfs too", shm, ramDisk, 0, 54 * gib},
		{"slot tables", shm, nvme, 1000, 4*gib + 268_000},
		{"host table on huge pages", huge, nvme, 1000, 128_000},
	} {
		w := wanted()
		w.HostSlots, w.DiskSlots = c.slots, c.slots
		if got := w.Memory(c.host, c.disk); got != c.want {
			t.Errorf("%s: %d, want %d", c.name, got, c.want)
		}
	}
	if off := new(Want).Memory(shm, shm); off != 0 {
		t.Errorf("no tiers take %d bytes", off)
	}
}
