package gpu

import (
	"strings"
	"testing"

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

func TestNoDriverIsOneClearLine(t *testing.T) {
	for _, ret := range []nvml.Return{nvml.ERROR_LIBRARY_NOT_FOUND, nvml.ERROR_DRIVER_NOT_LOADED} {
		_, err := list(fakeLibrary(ret))
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
	}
	got, err := list(fakeLibrary(nvml.SUCCESS, device))
	if err != nil {
		t.Fatal(err)
	}
	want := []Device{{Index: 0, UUID: "GPU-1", Name: "NVIDIA H200", MemoryBytes: 141 << 30}}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("devices (-want +got):\n%s", d)
	}
}

func TestLostGPUIsNamedAndDoesNotHideTheOthers(t *testing.T) {
	device := &mock.Device{
		GetNameFunc:       func() (string, nvml.Return) { return "NVIDIA H200", nvml.SUCCESS },
		GetUUIDFunc:       func() (string, nvml.Return) { return "GPU-1", nvml.SUCCESS },
		GetMemoryInfoFunc: func() (nvml.Memory, nvml.Return) { return nvml.Memory{}, nvml.ERROR_NOT_SUPPORTED },
	}
	got, err := list(fakeLibrary(nvml.SUCCESS, nil, device, nil))
	if err == nil || !strings.HasPrefix(err.Error(), "GPU 0: ") || !strings.Contains(err.Error(), "; GPU 2: ") {
		t.Errorf("got error %v, want one that names GPUs 0 and 2", err)
	}
	if want := []Device{{Index: 1, UUID: "GPU-1", Name: "NVIDIA H200"}}; !cmp.Equal(want, got) {
		t.Errorf("devices (-want +got):\n%s", cmp.Diff(want, got))
	}
}

func TestNoGPUIsNoError(t *testing.T) {
	if got, err := list(fakeLibrary(nvml.SUCCESS)); err != nil || len(got) != 0 {
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
