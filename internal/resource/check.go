package resource

import (
	"errors"
	"fmt"
	"os"
	"runtime/debug"

	"github.com/blockyard-ai/blockyard/internal/bytesize"
)

// Want has the sizes that the tiers ask for. A tier of 0 bytes is not checked.
type Want struct {
	// HostDir and DiskDir are the directories of the tiers.
	HostDir, DiskDir string
	// HostBytes and DiskBytes are the sizes asked for.
	HostBytes, DiskBytes uint64
	// HostHeld and DiskHeld are the bytes that an earlier agent allocated there. This
	// agent takes them over and needs no space for them again.
	HostHeld, DiskHeld uint64
	// HostSlots and DiskSlots are the numbers of slots, which the sizes of the slot
	// tables follow; 0 when they are not known yet.
	HostSlots, DiskSlots uint64
	// HostSetting and DiskSetting name the flag or variable of the size in messages;
	// empty for "the host size" and "the disk size".
	HostSetting, DiskSetting string
}

// Bytes of memory that a slot table takes for each slot: a record, and for host slots
// also a pin word and a recency.
const (
	hostSlotTable = 140
	diskSlotTable = 128
)

// tier is one tier's part of a Want, with the space in its file system.
type tier struct {
	name, setting, dir string
	bytes, held        uint64
	// table is the size of the slot table.
	table uint64
	space Space
}

// tiers returns the host tier and the disk tier, without one of size 0. host and disk are the file
// systems of their directories.
func (w *Want) tiers(host, disk Space) []*tier {
	var tiers []*tier
	for _, t := range []*tier{
		{"host", w.HostSetting, w.HostDir, w.HostBytes, w.HostHeld, w.HostSlots * hostSlotTable, host},
		{"disk", w.DiskSetting, w.DiskDir, w.DiskBytes, w.DiskHeld, w.DiskSlots * diskSlotTable, disk},
	} {
		if t.bytes == 0 {
			continue
		}
		if t.setting == "" {
			t.setting = "the " + t.name + " size"
		}
		tiers = append(tiers, t)
	}
	return tiers
}

// Memory returns how much ordinary memory outside Go's heap the tiers take: their bytes
// on tmpfs, held bytes included, and the slot tables. Control groups count this memory.
// Huge pages are not ordinary memory.
func (w *Want) Memory(host, disk Space) uint64 {
	var sum uint64
	for _, t := range w.tiers(host, disk) {
		if t.takesMemory() {
			sum += t.bytes
		}
		sum += t.tableMemory()
	}
	return sum
}

// more returns how many bytes the tier still has to allocate.
func (t *tier) more() uint64 { return t.bytes - min(t.held, t.bytes) }

// takesMemory reports whether the tier's bytes are ordinary memory. Huge pages are
// reserved beforehand, and no limit counts them.
func (t *tier) takesMemory() bool { return t.space.InMemory && t.space.Kind != kindHugetlbfs }

// tableMemory returns how much ordinary memory the tier's slot table takes. The host tier's
// is a file beside its extents; the disk tier's is an image in memory.
func (t *tier) tableMemory() uint64 {
	if t.name == "host" && !t.takesMemory() {
		return 0
	}
	return t.table
}

func (t *tier) String() string {
	return fmt.Sprintf("%s size %v (%s)", t.name, bytesize.Size(t.bytes), t.setting)
}

// rounded formats a measured number of bytes for a message.
func rounded(bytes uint64) string { return bytesize.Size(bytes).Rounded() }

// location names the tier's mount point and file system in messages.
func (t *tier) location() string { return fmt.Sprintf("%s (%s)", t.space.Mount, t.space.Kind) }

// Check compares the sizes that the tiers ask for with the node's memory and disk space. The
// error has one line for each size that cannot work, warnings the sizes that may not work. Each
// line has the size asked for, the available size and the setting to change. host and disk are
// the SpaceOf of the tiers' directories. Generation words, 8 bytes for a slot, are not counted.
func Check(l Limits, host, disk Space, w Want) (warnings []string, err error) {
	tiers := w.tiers(host, disk)
	for _, t := range tiers {
		switch {
		case t.space.Kind != kindHugetlbfs:
			err = errors.Join(err, checkSpace(t))
		case t.name == "disk":
			err = errors.Join(err, fmt.Errorf("disk directory %s: is on %s, where files cannot be written; use a directory on a disk", t.dir, t.location()))
		default:
			err = errors.Join(err, checkHugePages(l, t))
		}
	}
	if len(tiers) == 2 && err == nil {
		err = checkShared(tiers[0], tiers[1])
	}
	memWarnings, memErr := checkMemory(l, tiers)
	return append(warnLocations(l, tiers), memWarnings...), errors.Join(err, memErr)
}

// checkSpace returns an error when the file system of a tier has too little space for it. Space
// that an earlier agent allocated for the tier counts as available. A Total of 0 is unknown.
func checkSpace(t *tier) error {
	s := t.space
	if s.Total == 0 || t.bytes <= s.Total && t.more() <= s.Free {
		return nil
	}
	remedy := "free some space"
	if s.Kind == kindTmpfs {
		remedy = "make it larger (mount -o remount,size=…, or --shm-size in containers)"
	}
	held := ""
	if t.held > 0 {
		held = fmt.Sprintf(" and %s that an earlier agent allocated", rounded(t.held))
	}
	return fmt.Errorf("%v: %s has %s free of %s%s; %s or lower %s", t, t.location(), rounded(s.Free), rounded(s.Total), held, remedy, t.setting)
}

// checkHugePages returns an error when a tier on hugetlbfs wants more than the free huge pages of
// its size, or than the mount allows. A Total of 0 is a mount without a limit.
func checkHugePages(l Limits, t *tier) error {
	s := t.space
	for _, p := range l.HugePages {
		if p.PageBytes != s.Unit {
			continue
		}
		free := p.Free * p.PageBytes
		if t.more() > free {
			return fmt.Errorf("%v: %s has %s free in %d huge pages of %v; make more in /sys/kernel/mm/hugepages/hugepages-%dkB/nr_hugepages or lower %s",
				t, t.location(), rounded(free), p.Free, bytesize.Size(p.PageBytes), p.PageBytes>>10, t.setting)
		}
	}
	if s.Total != 0 && (t.bytes > s.Total || t.more() > s.Free) {
		return fmt.Errorf("%v: %s has %s free of %s; mount it with a larger size or lower %s", t, t.location(), rounded(s.Free), rounded(s.Total), t.setting)
	}
	return nil
}

// checkShared returns an error when two tiers on one file system do not fit together. The caller has
// checked that each fits alone.
func checkShared(a, b *tier) error {
	if a.space.Device != b.space.Device || a.space.Total == 0 {
		return nil
	}
	if a.more() > a.space.Free-b.more() {
		return fmt.Errorf("%v and %v: both are on %s, which has %s free; lower %s or %s, or move one of %s and %s",
			a, b, a.location(), rounded(a.space.Free), a.setting, b.setting, a.dir, b.dir)
	}
	return nil
}

// checkMemory compares the memory that the tiers need beyond what they have with the memory that
// control groups and the node leave. More than a group leaves, or than the node has, is an error.
// Less than minHeap left for the agent, or more than is available now, is a warning.
func checkMemory(l Limits, tiers []*tier) (warnings []string, err error) {
	var need uint64
	var asked, settings string
	for _, t := range tiers {
		if !t.takesMemory() {
			continue
		}
		if need > 0 {
			asked, settings = asked+" and ", settings+" or "
		}
		asked, settings = asked+t.String(), settings+t.setting
		need += t.more()
	}
	if need > 0 {
		for _, t := range tiers {
			need += t.tableMemory()
		}
	}
	if need == 0 {
		return nil, nil
	}
	if tight := tightest(l.Groups); tight != nil {
		if left := tight.Left(); need > left {
			err = fmt.Errorf("%s: control group %s has %s left of its limit of %s; raise the limit (--memory in containers, MemoryMax in systemd) or lower %s",
				asked, tight.Path, rounded(left), rounded(tight.Limit), settings)
		} else if left-need < minHeap {
			warnings = append(warnings, fmt.Sprintf("%s: leaves %s of control group %s to the agent and all else in it; raise its limit of %s or lower %s",
				asked, rounded(left-need), tight.Path, rounded(tight.Limit), settings))
		}
	}
	node := l.MemTotal + l.SwapTotal
	switch {
	case l.MemTotal != 0 && need > node:
		err = errors.Join(err, fmt.Errorf("%s: the node has %s of memory and swap; lower %s", asked, rounded(node), settings))
	case l.MemAvailable != 0 && need > l.MemAvailable:
		warnings = append(warnings, fmt.Sprintf("%s: %s of memory are available on the node; stop something or lower %s",
			asked, rounded(l.MemAvailable), settings))
	}
	return warnings, err
}

// tightest returns the control group that leaves the fewest bytes, nil without groups.
func tightest(groups []Group) *Group {
	var found *Group
	for i := range groups {
		if g := &groups[i]; found == nil || g.Left() < found.Left() {
			found = g
		}
	}
	return found
}

// warnLocations returns warnings about directories that work badly: a host tier on a disk, a disk
// tier in memory, and a host tier larger than the limit of locked memory.
func warnLocations(l Limits, tiers []*tier) (warnings []string) {
	for _, t := range tiers {
		switch {
		case t.name == "host" && !t.space.InMemory:
			warnings = append(warnings, fmt.Sprintf("host directory %s: is on %s, not in memory; use a directory on tmpfs (/dev/shm) or hugetlbfs", t.dir, t.location()))
		case t.name == "disk" && t.takesMemory():
			warnings = append(warnings, fmt.Sprintf("disk directory %s: is on %s, so the disk tier takes memory and does not outlive the node; use a directory on a disk", t.dir, t.location()))
		}
		if t.name == "host" && l.Memlock != 0 && t.bytes > l.Memlock {
			warnings = append(warnings, fmt.Sprintf("%v: the limit of locked memory is %s; engines with that limit may fail to pin the pool for their devices; raise theirs (ulimit -l, LimitMEMLOCK in systemd, --ulimit memlock=-1 in containers)",
				t, rounded(l.Memlock)))
		}
	}
	return warnings
}

// minHeap is the least that MemoryLimit leaves to the Go heap, and its least margin. A
// smaller heap would be collected all the time.
const minHeap = 64 << 20

// LimitHeap limits the Go heap of this process to MemoryLimit, by the variable GOMEMLIMIT of its
// environment, and returns the limit. ok is false when it has not changed the limit.
func LimitHeap(l Limits, arenaBytes uint64) (limit int64, ok bool) {
	limit, ok = MemoryLimit(l, arenaBytes, os.Getenv("GOMEMLIMIT"))
	if ok {
		debug.SetMemoryLimit(limit)
	}
	return limit, ok
}

// MemoryLimit returns the argument for debug.SetMemoryLimit, so that the Go heap is
// collected before the tightest control group kills the process. It is the group's limit
// without arenaBytes and without a margin for C libraries and the kernel: a tenth of the
// rest, at least 64 MiB. arenaBytes is the group's memory that is not Go's, Want.Memory.
// ok is false when no group has a limit, and when goMemLimit, the variable GOMEMLIMIT, is
// set: then the user has decided.
func MemoryLimit(l Limits, arenaBytes uint64, goMemLimit string) (limit int64, ok bool) {
	if goMemLimit != "" || len(l.Groups) == 0 {
		return 0, false
	}
	least := l.Groups[0].Limit
	for _, g := range l.Groups {
		least = min(least, g.Limit)
	}
	rest := least - min(arenaBytes, least)
	margin := max(rest/10, minHeap)
	return int64(max(rest-min(margin, rest), minHeap)), true
}
