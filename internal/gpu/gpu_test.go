package gpu

import (
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock"
	"github.com/google/go-cmp/cmp"
)

func fakeLibrary(init nvml.Return, devices ...nvml.Device) *mock.Interface {
	return &mock.Interface{
		InitFunc:           func() nvml.Return { return init },
		ShutdownFunc:       func() nvml.Return { return nvml.SUCCESS },
		ErrorStringFunc:    nvml.ErrorString,
		DeviceGetCountFunc: func() (int, nvml.Return) { return len(devices), nvml.SUCCESS },
		DeviceGetHandleByIndexFunc: func(i int) (nvml.Device, nvml.Return) {
			if devices[i] == nil {
				return nil, nvml.ERROR_GPU_IS_LOST
			}
			return devices[i], nvml.SUCCESS
		},
	}
}

// at returns a function of a fake device at a PCI address.
func at(domain, bus uint32) func() (nvml.PciInfo, nvml.Return) {
	return func() (nvml.PciInfo, nvml.Return) { return nvml.PciInfo{Domain: domain, Bus: bus}, nvml.SUCCESS }
}

// sysfs has one PCI device and the text of its memory node.
func sysfs(address, node string) fstest.MapFS {
	return fstest.MapFS{"bus/pci/devices/" + address + "/numa_node": {Data: []byte(node)}}
}

func TestMemoryNodeOfAGPU(t *testing.T) {
	for _, c := range []struct {
		domain, bus   uint32
		address, text string
		want          int
	}{
		{0, 0x3b, "0000:3b:00.0", "1\n", 1},
		{0x10000, 1, "10000:01:00.0", "0\n", 0},
		{0, 1, "0000:01:00.0", "-1\n", UnknownNode},    // a virtual machine
		{0, 1, "0000:01:00.0", "", UnknownNode},        // not a number
		{0, 1, "0000:02:00.0", "1\n", UnknownNode},     // a device that sysfs does not have
		{0, 1, "00000000:01:00.0", "1\n", UnknownNode}, // NVML's form of the address
	} {
		device := &mock.Device{
			GetNameFunc:       func() (string, nvml.Return) { return "", nvml.SUCCESS },
			GetUUIDFunc:       func() (string, nvml.Return) { return "", nvml.SUCCESS },
			GetMemoryInfoFunc: func() (nvml.Memory, nvml.Return) { return nvml.Memory{}, nvml.SUCCESS },
			GetPciInfoFunc:    at(c.domain, c.bus),
		}
		got, err := list(fakeLibrary(nvml.SUCCESS, device), sysfs(c.address, c.text))
		if err != nil || len(got) != 1 || got[0].MemoryNode != c.want {
			t.Errorf("domain %x, bus %x, sysfs %s %q: got %+v, %v, want node %d", c.domain, c.bus, c.address, c.text, got, err, c.want)
		}
	}
}

func TestMemoryNodesAreAscendingAndDistinct(t *testing.T) {
	var devices []Device
	for _, node := range []int{3, 1, UnknownNode, 1} {
		devices = append(devices, Device{MemoryNode: node})
	}
	if got := MemoryNodes(devices); !slices.Equal(got, []int{1, 3}) {
		t.Errorf("got %v, want [1 3]", got)
	}
	if got := MemoryNodes(nil); len(got) != 0 {
		t.Errorf("without GPUs: got %v", got)
	}
}

func TestNoDriverIsOneClearLine(t *testing.T) {
	for _, ret := range []nvml.Return{nvml.ERROR_LIBRARY_NOT_FOUND, nvml.ERROR_DRIVER_NOT_LOADED} {
		_, err := list(fakeLibrary(ret), nil)
		if err == nil || !strings.HasPrefix(err.Error(), "no NVIDIA driver: libnvidia-ml.so.1: ") || strings.Contains(err.Error(), "\n") {
			t.Errorf("return %d: got error %v", ret, err)
		}
	}
}

func TestListDescribesEachGPU(t *testing.T) {
	device := &mock.Device{
		GetNameFunc:       func() (string, nvml.Return) { return "NVIDIA H200", nvml.SUCCESS },
		GetUUIDFunc:       func() (string, nvml.Return) { return "GPU-1", nvml.SUCCESS },
		GetMemoryInfoFunc: func() (nvml.Memory, nvml.Return) { return nvml.Memory{Total: 141 << 30}, nvml.SUCCESS },
		GetPciInfoFunc:    at(0, 0x3b),
	}
	got, err := list(fakeLibrary(nvml.SUCCESS, device), sysfs("0000:3b:00.0", "1\n"))
	if err != nil {
		t.Fatal(err)
	}
	want := []Device{{Index: 0, UUID: "GPU-1", Name: "NVIDIA H200", MemoryBytes: 141 << 30, PCI: "0000:3b:00.0", MemoryNode: 1}}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("devices (-want +got):\n%s", d)
	}
}

func TestLostGPUIsNamedAndDoesNotHideTheOthers(t *testing.T) {
	device := &mock.Device{
		GetNameFunc:       func() (string, nvml.Return) { return "NVIDIA H200", nvml.SUCCESS },
		GetUUIDFunc:       func() (string, nvml.Return) { return "GPU-1", nvml.SUCCESS },
		GetMemoryInfoFunc: func() (nvml.Memory, nvml.Return) { return nvml.Memory{}, nvml.ERROR_NOT_SUPPORTED },
		GetPciInfoFunc:    func() (nvml.PciInfo, nvml.Return) { return nvml.PciInfo{}, nvml.ERROR_NOT_SUPPORTED },
	}
	got, err := list(fakeLibrary(nvml.SUCCESS, nil, device, nil), fstest.MapFS{})
	if err == nil || !strings.HasPrefix(err.Error(), "GPU 0: ") || !strings.Contains(err.Error(), "; GPU 2: ") {
		t.Errorf("got error %v, want one that names GPUs 0 and 2", err)
	}
	if want := []Device{{Index: 1, UUID: "GPU-1", Name: "NVIDIA H200", MemoryNode: UnknownNode}}; !cmp.Equal(want, got) {
		t.Errorf("devices (-want +got):\n%s", cmp.Diff(want, got))
	}
}

func TestNoGPUIsNoError(t *testing.T) {
	if got, err := list(fakeLibrary(nvml.SUCCESS), nil); err != nil || len(got) != 0 {
		t.Errorf("got %+v, error %v", got, err)
	}
}

// The real library: present or not, List must return, and say why not.
func TestListOnThisMachine(t *testing.T) {
	devices, err := List()
	if err == nil {
		t.Logf("%d GPUs: %+v", len(devices), devices)
		return
	}
	t.Logf("no GPU: %v", err)
}
