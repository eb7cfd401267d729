package extent

import (
	"errors"
	"path/filepath"
	"runtime"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// policy returns the calling thread's memory policy, its mode and the first 64 nodes of its mask.
func policy(t *testing.T) (mode int32, nodes uint64) {
	t.Helper()
	var mask unix.CPUSet // 1024 nodes
	memPolicy(t, &mode, &mask, 0, 0)
	for n := range 64 {
		if mask.IsSet(n) {
			nodes |= 1 << n
		}
	}
	return mode, nodes
}

// nodeOf returns the memory node that holds the page of b.
func nodeOf(t *testing.T, b []byte) (node int32) {
	t.Helper()
	memPolicy(t, &node, nil, addressOf(b), unix.MPOL_F_NODE|unix.MPOL_F_ADDR)
	return node
}

// memPolicy is get_mempolicy(2). It skips the test where the kernel or a sandbox refuses the call.
func memPolicy(t *testing.T, mode *int32, mask *unix.CPUSet, at uintptr, flags int) {
	t.Helper()
	var size uintptr
	if mask != nil {
		size = 8 * unsafe.Sizeof(*mask)
	}
	_, _, err := unix.Syscall6(unix.SYS_GET_MEMPOLICY, uintptr(unsafe.Pointer(mode)), uintptr(unsafe.Pointer(mask)), size, at, uintptr(flags), 0)
	if err != 0 {
		t.Skipf("get_mempolicy: %v", err)
	}
}

func TestOnNodesPrefersOneNodeAndLeavesOtherThreadsAlone(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	mode, nodes := policy(t)
	var ext *Host
	var err error
	var within int32
	var preferred uint64
	refused := OnNodes([]int{0}, func() {
		within, preferred = policy(t)
		ext, err = CreateHost(filepath.Join(t.TempDir(), "x"), HostGeometry(4, testSlot, PageSize))
	})
	if errors.Is(refused, unix.EPERM) || errors.Is(refused, unix.ENOSYS) {
		t.Skip(refused)
	}
	if err := errors.Join(refused, err); err != nil {
		t.Fatal(err)
	}
	defer ext.Close()
	if within != unix.MPOL_PREFERRED || preferred != 1 {
		t.Errorf("policy %d of nodes %b, want %d of node 0", within, preferred, unix.MPOL_PREFERRED)
	}
	if got := nodeOf(t, ext.Slot(3)); got != 0 {
		t.Errorf("the extent lies on node %d", got)
	}
	if m, n := policy(t); m != mode || n != nodes {
		t.Errorf("the calling thread has policy %d of nodes %b, had %d of %b", m, n, mode, nodes)
	}
}

func TestOnNodesWithoutNodesRunsInTheCallersThread(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	ran := 0
	if err := OnNodes(nil, func() { ran = unix.Gettid() }); err != nil || ran != unix.Gettid() {
		t.Errorf("ran on thread %d, want %d, %v", ran, unix.Gettid(), err)
	}
}

func TestOnNodesThatAreNotThereRunsNothing(t *testing.T) {
	ran := false
	if err := OnNodes([]int{MaxNode}, func() { ran = true }); err == nil || ran {
		t.Errorf("ran: %v, %v", ran, err)
	}
}
