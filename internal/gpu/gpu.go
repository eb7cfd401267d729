package gpu

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// Device is one GPU.
type Device struct {
	Index       int
	UUID        string
	Name        string
	MemoryBytes uint64
	// PCI is the GPU's address as sysfs has it, such as 0000:3b:00.0; empty when unknown.
	PCI string
	// MemoryNode is the memory node (NUMA) that the GPU is attached to; UnknownNode when the
	// system names none, as in most virtual machines.
	MemoryNode int
}

// UnknownNode is Device.MemoryNode of a GPU without a known memory node.
const UnknownNode = -1

// MemoryNodes returns the memory nodes of the devices, ascending, each once. Devices without a
// known node are left out.
func MemoryNodes(devices []Device) []int {
	var nodes []int
	for _, d := range devices {
		if d.MemoryNode != UnknownNode {
			nodes = append(nodes, d.MemoryNode)
		}
	}
	slices.Sort(nodes)
	return slices.Compact(nodes)
}

// library is the part of NVML that List calls.
type library interface {
	Init() nvml.Return
	Shutdown() nvml.Return
	ErrorString(nvml.Return) string
	DeviceGetCount() (int, nvml.Return)
	DeviceGetHandleByIndex(int) (nvml.Device, nvml.Return)
}

// List returns the GPUs that the NVIDIA driver shows to this process; there may be none.
// With an error it returns the GPUs that it could read: a lost GPU does not hide the
// others.
func List() ([]Device, error) { return list(nvml.New(), os.DirFS("/sys")) }

// list returns the GPUs that lib, NVIDIA's management library, reports. sys is /sys. With an error
// list returns the GPUs that could be read as well.
func list(lib library, sys fs.FS) ([]Device, error) {
	switch ret := lib.Init(); ret {
	case nvml.SUCCESS:
	case nvml.ERROR_LIBRARY_NOT_FOUND:
		return nil, fmt.Errorf("no NVIDIA driver: libnvidia-ml.so.1: cannot be loaded")
	default:
		return nil, fmt.Errorf("no NVIDIA driver: libnvidia-ml.so.1: %s", lib.ErrorString(ret))
	}
	defer lib.Shutdown()
	n, ret := lib.DeviceGetCount()
	if ret != nvml.SUCCESS {
		return nil, fmt.Errorf("count GPUs: %s", lib.ErrorString(ret))
	}
	devices := make([]Device, 0, n)
	var unread []string
	for i := range n {
		d, err := describe(lib, sys, i)
		if err != nil {
			unread = append(unread, err.Error())
			continue
		}
		devices = append(devices, d)
	}
	if len(unread) > 0 {
		return devices, errors.New(strings.Join(unread, "; "))
	}
	return devices, nil
}

// describe reads GPU i. A GPU that does not report its memory (some MIG and integrated
// devices) has MemoryBytes 0.
func describe(lib library, sys fs.FS, i int) (Device, error) {
	h, ret := lib.DeviceGetHandleByIndex(i)
	if ret != nvml.SUCCESS {
		return Device{}, fmt.Errorf("GPU %d: %s", i, lib.ErrorString(ret))
	}
	d := Device{Index: i, MemoryNode: UnknownNode}
	if d.Name, ret = h.GetName(); ret != nvml.SUCCESS {
		return Device{}, fmt.Errorf("GPU %d: name: %s", i, lib.ErrorString(ret))
	}
	if d.UUID, ret = h.GetUUID(); ret != nvml.SUCCESS {
		return Device{}, fmt.Errorf("GPU %d: UUID: %s", i, lib.ErrorString(ret))
	}
	if m, ret := h.GetMemoryInfo(); ret == nvml.SUCCESS {
		d.MemoryBytes = m.Total
	}
	if info, ret := h.GetPciInfo(); ret == nvml.SUCCESS {
		d.PCI = pciAddress(info)
		d.MemoryNode = memoryNode(sys, d.PCI)
	}
	return d, nil
}

// pciAddress returns the address of a GPU as sysfs names it. NVML's own text has eight digits of
// the domain, sysfs has at least four.
func pciAddress(info nvml.PciInfo) string {
	return fmt.Sprintf("%04x:%02x:%02x.0", info.Domain, info.Bus, info.Device)
}

// memoryNode returns the memory node of the PCI device at that address.
func memoryNode(sys fs.FS, address string) int {
	text, err := fs.ReadFile(sys, path.Join("bus/pci/devices", address, "numa_node"))
	if err != nil {
		return UnknownNode
	}
	node, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil || node < 0 {
		return UnknownNode
	}
	return node
}
