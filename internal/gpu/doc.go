// Package gpu lists the GPUs of a node through NVML, for people and logs. The agent needs
// no GPU and makes no CUDA context.
//
//	devices, err := gpu.List()
//
// NVML is loaded at run time. Without an NVIDIA driver List returns an error of one line,
// which is a normal state and not a failure. List may be called concurrently.
package gpu
