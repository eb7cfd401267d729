// Package smart reads how worn the devices under a directory are, as they say themselves (SMART).
//
//	for _, d := range smart.Reader{}.Under(ctx, "/var/lib/blockyard") { … d.Used, d.Written, d.Problem … }
//
// NVMe devices are asked by ioctl, others through the program smartctl where it is installed. Both need
// root: a device that cannot be read has the reason in Problem, which is a normal state.
//
// Under may take as long as the disk does. Network file systems and those without one block device have
// no devices.
package smart
