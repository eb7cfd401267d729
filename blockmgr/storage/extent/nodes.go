package extent

import (
	"fmt"
	"runtime"

	"golang.org/x/sys/unix"
)

// MaxNode is the highest memory node (NUMA) that OnNodes takes. The kernel ignores the last bit of a mask of
// 1024 nodes.
const MaxNode = 1022

// OnNodes runs fn on a thread whose new memory lies on the given memory nodes: on one node as long
// as the node has free memory, or on several in turn, page by page. Without nodes the thread has no
// preference. An error says that the kernel refuses the nodes; fn did not run then.
func OnNodes(nodes []int, fn func()) error {
	if len(nodes) == 0 {
		fn()
		return nil
	}
	// Bound memory would make the kernel kill a process when one node is full.
	mode := unix.MPOL_PREFERRED
	if len(nodes) > 1 {
		mode = unix.MPOL_INTERLEAVE
	}
	var mask unix.CPUSet
	for _, n := range nodes {
		mask.Set(n)
	}
	refused := make(chan error, 1)
	go func() {
		// The thread stays locked: it ends with the goroutine, and its policy with it.
		runtime.LockOSThread()
		err := unix.SetMemPolicy(mode, &mask)
		if err != nil {
			err = fmt.Errorf("prefer memory nodes %v: %w", nodes, err)
		} else {
			fn()
		}
		refused <- err
	}()
	return <-refused
}
