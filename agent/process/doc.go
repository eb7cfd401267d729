// Package process watches the processes of engines.
package process
