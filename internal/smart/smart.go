package smart

import (
	"cmp"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	// maxStacked bounds the levels of devices that are made of others, such as a RAID.
	maxStacked = 4
	// smartctlWait bounds one run of smartctl.
	smartctlWait = 5 * time.Second
	// unitBytes is the unit of data_units_written of NVMe: a thousand sectors of 512 bytes.
	unitBytes = 512 * 1000
)

// Device is what one device says of itself.
type Device struct {
	// Name is the kernel's, such as nvme0n1.
	Name string `json:"name"`
	// Used is the share of the device's endurance that is used: 1 is the end that its maker warrants, and
	// more is possible. Written are the bytes written in the device's life. Both are 0 with a Problem.
	Used    float64 `json:"used"`
	Written uint64  `json:"written_bytes"`
	// Problem says why nothing is known; empty when all is.
	Problem string `json:"problem,omitempty"`
}

// Reader reads devices. The zero value reads those of this machine.
type Reader struct {
	// Root is the directory with sys and dev; empty is /.
	Root string
	// Smartctl is the program for devices other than NVMe; empty is smartctl of PATH.
	Smartctl string
}

// Under returns the devices under a directory, or under its nearest parent that exists, by name.
func (r Reader) Under(ctx context.Context, dir string) (all []Device) {
	var st unix.Stat_t
	for err := unix.Stat(dir, &st); err != nil; err = unix.Stat(dir, &st) {
		up := filepath.Dir(dir)
		if !errors.Is(err, unix.ENOENT) || up == dir {
			return nil
		}
		dir = up
	}
	number := fmt.Sprintf("sys/dev/block/%d:%d", unix.Major(st.Dev), unix.Minor(st.Dev))
	device, err := filepath.EvalSymlinks(r.at(number))
	if err != nil {
		return nil
	}
	for _, name := range r.disks(device, maxStacked) {
		all = append(all, r.read(ctx, name))
	}
	return all
}

func (r Reader) at(path string) string { return filepath.Join(cmp.Or(r.Root, "/"), path) }

// disks returns the names of the disks that the block device of a directory in sysfs is made of.
func (r Reader) disks(device string, stacked int) (names []string) {
	if _, err := os.Stat(filepath.Join(device, "partition")); err == nil {
		device = filepath.Dir(device)
	}
	parts, _ := os.ReadDir(filepath.Join(device, "slaves")) // most devices have none
	for _, part := range parts {
		if resolved, err := filepath.EvalSymlinks(r.at("sys/class/block/" + part.Name())); err == nil && stacked > 0 {
			names = append(names, r.disks(resolved, stacked-1)...)
		}
	}
	if len(parts) == 0 {
		names = []string{filepath.Base(device)}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// read asks one device.
func (r Reader) read(ctx context.Context, name string) Device {
	d := Device{Name: name}
	var err error
	if strings.HasPrefix(name, "nvme") && r.Smartctl == "" {
		err = d.askNVMe(r.at("dev/" + name))
	} else {
		err = d.askSmartctl(ctx, cmp.Or(r.Smartctl, "smartctl"), r.at("dev/"+name))
	}
	if err != nil {
		d = Device{Name: name, Problem: err.Error()}
	}
	return d
}

// adminCommand is struct nvme_admin_cmd of linux/nvme_ioctl.h.
type adminCommand struct {
	opcode, flags                            uint8
	_                                        uint16
	namespace, cdw2, cdw3                    uint32
	metadata, address                        uint64
	metadataLength, length                   uint32
	cdw10, cdw11, cdw12, cdw13, cdw14, cdw15 uint32
	timeoutMillis, result                    uint32
}

const (
	// nvmeAdmin is NVME_IOCTL_ADMIN_CMD: _IOWR('N', 0x41, struct nvme_admin_cmd).
	nvmeAdmin uintptr = 3<<30 | 72<<16 | 0x4e<<8 | 0x41
	// getLogPage is an opcode of NVMe, smartPage the number of the SMART page, smartBytes its size.
	getLogPage = 2
	smartPage  = 2
	smartBytes = 512
)

// askNVMe reads the SMART page of an NVMe device.
func (d *Device) askNVMe(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	page := make([]byte, smartBytes)
	command := adminCommand{
		opcode: getLogPage, namespace: 1<<32 - 1, address: uint64(uintptr(unsafe.Pointer(unsafe.SliceData(page)))), length: smartBytes,
		cdw10: (smartBytes/4-1)<<16 | smartPage, timeoutMillis: uint32(smartctlWait.Milliseconds()),
	}
	status, _, errno := unix.Syscall(unix.SYS_IOCTL, f.Fd(), nvmeAdmin, uintptr(unsafe.Pointer(&command)))
	switch {
	case errno != 0:
		return fmt.Errorf("%s: SMART page: %w", path, errno)
	case status != 0:
		return fmt.Errorf("%s: SMART page: NVMe status %#x", path, status)
	}
	d.takePage(page)
	return nil
}

// takePage reads the numbers of a SMART page.
func (d *Device) takePage(page []byte) {
	d.Used = float64(page[5]) / 100
	d.Written = binary.LittleEndian.Uint64(page[48:]) * unitBytes // of 128 bits; the low half is enough for 9 zettabytes
}

// askSmartctl reads what smartctl says of a device.
func (d *Device) askSmartctl(ctx context.Context, program, path string) error {
	ctx, cancel := context.WithTimeout(ctx, smartctlWait)
	defer cancel()
	// The status of smartctl is a set of bits; the output alone tells what was read.
	text, err := exec.CommandContext(ctx, program, "--json", "--all", path).Output()
	if len(text) == 0 {
		return fmt.Errorf("%s: %w", filepath.Base(program), err)
	}
	var a struct {
		NVMe *struct {
			Used    float64 `json:"percentage_used"`
			Written uint64  `json:"data_units_written"`
		} `json:"nvme_smart_health_information_log"`
		Endurance *struct {
			Used float64 `json:"current_percent"`
		} `json:"endurance_used"`
		BlockBytes uint64 `json:"logical_block_size"`
		ATA        struct {
			Table []struct {
				ID  int
				Raw struct{ Value uint64 }
			}
		} `json:"ata_smart_attributes"`
	}
	if err := json.Unmarshal(text, &a); err != nil {
		return fmt.Errorf("%s: %w", filepath.Base(program), err)
	}
	const blocksWritten = 241 // Total_LBAs_Written
	switch {
	case a.NVMe != nil:
		d.Used, d.Written = a.NVMe.Used/100, a.NVMe.Written*unitBytes
	case a.Endurance != nil:
		d.Used = a.Endurance.Used / 100
		for _, row := range a.ATA.Table {
			if row.ID == blocksWritten {
				d.Written = row.Raw.Value * cmp.Or(a.BlockBytes, 512)
			}
		}
	default:
		return fmt.Errorf("%s says nothing of the endurance of %s", filepath.Base(program), path)
	}
	return nil
}
