package agent

import (
	"slices"

	"go.uber.org/zap"

	"github.com/blockyard-ai/blockyard/internal/gpu"
)

// logGPUs logs the node's GPUs and returns them. The agent needs none.
func logGPUs(log *zap.Logger, list func() ([]gpu.Device, error)) []gpu.Device {
	devices, err := list()
	for _, d := range devices {
		log.Info("GPU found", zap.Int("index", d.Index), zap.String("name", d.Name), zap.String("uuid", d.UUID), zap.Uint64("memory_bytes", d.MemoryBytes),
			zap.String("pci", d.PCI), zap.Int("memory_node", d.MemoryNode))
	}
	switch {
	case err != nil && len(devices) > 0:
		log.Warn("some GPUs are not listed", zap.String("reason", err.Error()))
	case err != nil:
		log.Info("GPUs are not listed", zap.String("reason", err.Error()))
	case len(devices) == 0:
		log.Info("no GPU visible")
	}
	return devices
}

// hostNodes returns the memory nodes for new host extents: those of the GPUs. The result is empty on
// a machine with one memory node, and where no GPU has a known one. present are the machine's memory
// nodes; err says why they are not known. hostNodes logs the choice in one line.
func hostNodes(log *zap.Logger, devices []gpu.Device, present []int, err error) []int {
	nodes := slices.DeleteFunc(gpu.MemoryNodes(devices), func(n int) bool { return !slices.Contains(present, n) })
	switch {
	case err != nil:
		log.Info("host extents lie on any memory node: the machine's are not known", zap.NamedError("reason", err))
	case len(present) < 2:
		log.Debug("the machine has one memory node")
	case len(nodes) == 0:
		log.Info("host extents lie on any memory node: no GPU has a known one", zap.Ints("memory_nodes", present))
	default:
		log.Info("new host extents lie near the GPUs", zap.Ints("memory_nodes", nodes))
		return nodes
	}
	return nil
}
