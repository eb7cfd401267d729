// Package gpu lists the GPUs of a node through NVML, with the memory node (NUMA) of each. The
// agent needs no GPU and makes no CUDA context.
//
//	devices, err := gpu.List()
//	nodes := gpu.MemoryNodes(devices) // where host memory is near the GPUs
//
// NVML is loaded at run time. Without an NVIDIA driver List returns an error of one line,
// which is a normal state and not a failure. List may be called concurrently.
package gpu
