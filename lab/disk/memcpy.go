package disk

// #include <string.h>
import "C"

import "unsafe"

// memcpy is C's, which is what an engine copies host memory with. Both must have
// the same length, more than 0, and must not overlap.
func memcpy(to, from []byte) {
	C.memcpy(unsafe.Pointer(&to[0]), unsafe.Pointer(&from[0]), C.size_t(len(from)))
}
