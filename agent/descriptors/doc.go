// Package descriptors divides the file descriptors of the process.
package descriptors
