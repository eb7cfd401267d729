package gpu

import (
	"errors"
	"fmt"
	"strings"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// Device is one GPU.
type Device struct {
	Index       int
	UUID        string
	Name        string
	MemoryBytes uint64
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
func List() ([]Device, error) { return list(nvml.New()) }

// list returns the GPUs that lib, NVIDIA's management library, reports. With an error it returns the
// GPUs that could be read as well.
func list(lib library) ([]Device, error) {
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
		d, err := describe(lib, i)
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
func describe(lib library, i int) (Device, error) {
	h, ret := lib.DeviceGetHandleByIndex(i)
	if ret != nvml.SUCCESS {
		return Device{}, fmt.Errorf("GPU %d: %s", i, lib.ErrorString(ret))
	}
	d := Device{Index: i}
	if d.Name, ret = h.GetName(); ret != nvml.SUCCESS {
		return Device{}, fmt.Errorf("GPU %d: name: %s", i, lib.ErrorString(ret))
	}
	if d.UUID, ret = h.GetUUID(); ret != nvml.SUCCESS {
		return Device{}, fmt.Errorf("GPU %d: UUID: %s", i, lib.ErrorString(ret))
	}
	if m, ret := h.GetMemoryInfo(); ret == nvml.SUCCESS {
		d.MemoryBytes = m.Total
	}
	return d, nil
}
