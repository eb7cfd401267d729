package doctor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/blockyard-ai/blockyard/internal/bytesize"
	"github.com/blockyard-ai/blockyard/internal/resource"
	"github.com/blockyard-ai/blockyard/internal/smart"
)

// checkNode checks what an agent with the tiers of c needs of this node.
func (c *Command) checkNode(ctx context.Context) {
	c.checked("node")
	c.checkTiers()
	c.checkWear(ctx)
	c.checkDescriptors()
	c.checkProc()
	dir := filepath.Dir(c.Socket)
	_, err := os.Stat(c.Socket)
	if errors.Is(err, os.ErrNotExist) {
		err = unix.Access(dir, unix.W_OK)
	}
	if err != nil && !errors.Is(err, os.ErrNotExist) && !errors.Is(err, os.ErrPermission) || errors.Is(err, unix.EROFS) {
		c.found("socket-directory", dir, fmt.Sprintf("install -d -o USER %s, or another --socket for agent and connector", dir), "%v", err)
	}
}

// checkTiers makes the checks that an agent makes at its start.
func (c *Command) checkTiers() {
	limits, err := resource.Read(c.root)
	if err != nil {
		c.found("tier-memory", c.root, "mount /proc and the control groups", "the node's limits cannot be read: %v", err)
	}
	want := resource.Want{HostDir: c.HostDir, DiskDir: c.DiskDir, HostBytes: uint64(c.HostSize), DiskBytes: uint64(c.DiskSize),
		HostHeld: held(c.HostDir), DiskHeld: held(c.DiskDir), HostSetting: "--host-size", DiskSetting: "--disk-size"}
	host, err := resource.SpaceOf(c.HostDir)
	if err != nil {
		c.found("tier-space", c.HostDir, "--host-dir with a directory that can be read", "%v", err)
	}
	disk, err := resource.SpaceOf(c.DiskDir)
	if err != nil {
		c.found("tier-space", c.DiskDir, "--disk-dir with a directory that can be read", "%v", err)
	}
	warnings, err := resource.Check(limits, host, disk, want)
	if err != nil {
		warnings = append(strings.Split(err.Error(), "\n"), warnings...)
	}
	for _, w := range warnings {
		// A line of Check names the tier first, and what to change last.
		subject, seen, _ := strings.Cut(w, ": ")
		seen, change, _ := strings.Cut(seen, "; ")
		c.found(resourceCause(w), subject, change, "%s", seen)
	}
}

// wornRatio is the share of a device's endurance from which on doctor warns.
const wornRatio = 0.9

// checkWear asks the devices of the disk tier how worn they are.
func (c *Command) checkWear(ctx context.Context) {
	if c.DiskSize == 0 {
		return
	}
	for _, d := range (smart.Reader{Root: c.root, Smartctl: c.smartctl}).Under(ctx, c.DiskDir) {
		if d.Problem != "" {
			c.checked("device " + d.Name + ": its wear cannot be read: " + d.Problem)
			continue
		}
		seen := fmt.Sprintf("%.0f %% of its endurance used, %s written", 100*d.Used, bytesize.Size(d.Written).Rounded())
		c.checked("device " + d.Name + ": " + seen)
		if d.Used >= wornRatio {
			c.found("disk-worn", d.Name, "--disk-write-budget SIZE at the agent, and another device before this one fails", "%s", seen)
		}
	}
}

// resourceCause returns the cause that a line of resource.Check is about.
func resourceCause(line string) string {
	switch {
	case strings.Contains(line, "locked memory"):
		return "memlock"
	case strings.Contains(line, "not in memory") || strings.Contains(line, "takes memory"):
		return "tier-location"
	case strings.Contains(line, "control group") || strings.Contains(line, "of memory"):
		return "tier-memory"
	}
	return "tier-space"
}

// held returns the bytes of the files in a tier's directory: what an agent has allocated.
func held(dir string) (sum uint64) {
	_ = filepath.WalkDir(dir, func(_ string, d os.DirEntry, err error) error {
		if err != nil {
			return nil //nolint:nilerr // what cannot be read counts as absent
		}
		var st unix.Stat_t
		if info, err := d.Info(); err == nil && info.Mode().IsRegular() && unix.Stat(filepath.Join(dir, d.Name()), &st) == nil {
			sum += uint64(st.Blocks) * 512
		}
		return nil
	})
	return sum
}

const (
	// descriptorsOfEngines is what eight engines and the agent itself need; docs/operations.md.
	descriptorsOfEngines = 1000
	// extentBytes is the smallest extent that an agent chooses.
	extentBytes = 64 << 20
)

// checkDescriptors compares the limit of file descriptors with what the tiers need.
func (c *Command) checkDescriptors() {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return
	}
	need := descriptorsOfEngines + (uint64(c.HostSize)+uint64(c.DiskSize))/extentBytes
	// Go raises the soft limit to the hard one.
	if limit.Max < need {
		c.found("descriptors", "RLIMIT_NOFILE", "LimitNOFILE= in systemd, --ulimit nofile= in containers", "the limit is %d, want about %d", limit.Max, need)
	}
}

// checkProc looks whether /proc hides processes.
func (c *Command) checkProc() {
	mounts, err := os.ReadFile(filepath.Join(c.root, "proc/self/mounts"))
	if err != nil {
		return
	}
	for line := range strings.Lines(string(mounts)) {
		f := strings.Fields(line)
		if len(f) < 4 || f[1] != "/proc" || f[2] != "proc" {
			continue
		}
		for _, option := range strings.Split(f[3], ",") {
			if v, ok := strings.CutPrefix(option, "hidepid="); ok && v != "0" && v != "off" {
				c.found("proc-hidden", "/proc", "mount -o remount,hidepid=0 /proc; no ProtectProc= in the agent's unit", "/proc is mounted with %s", option)
			}
		}
	}
}
