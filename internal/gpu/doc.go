// Package gpu looks up which GPUs a node has, through NVML. It is only for
// people and logs: the agent needs no GPU and makes no CUDA context.
//
// NVML is loaded at run time. Where there is no NVIDIA driver List returns an
// error that says so in one line; that is a normal state, not a failure.
package gpu
