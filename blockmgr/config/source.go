package config

import "fmt"

// EventSource is who reports that a block was stored or removed. Zero is
// nobody.
type EventSource uint8

const (
	// SourceVLLM is a vLLM engine.
	SourceVLLM EventSource = iota + 1
	// SourceTRTLLM is a TensorRT-LLM engine.
	SourceTRTLLM
	// SourceKVBM is the block manager itself.
	SourceKVBM
)

// String is "vllm", "trtllm" or "kvbm".
func (s EventSource) String() string {
	switch s {
	case SourceVLLM:
		return "vllm"
	case SourceTRTLLM:
		return "trtllm"
	case SourceKVBM:
		return "kvbm"
	}
	return fmt.Sprintf("event source %d", uint8(s))
}

// ParseEventSource reads a source's name in the spellings that KVBM takes.
func ParseEventSource(s string) (EventSource, error) {
	switch s {
	case "vllm", "VLLM", "GPU":
		return SourceVLLM, nil
	case "trtllm", "TRTLLM", "TensorRT-LLM":
		return SourceTRTLLM, nil
	case "kvbm", "KVBM":
		return SourceKVBM, nil
	}
	return 0, fmt.Errorf("event source %q: want vllm, VLLM or GPU, trtllm, TRTLLM or TensorRT-LLM, kvbm or KVBM", s)
}
