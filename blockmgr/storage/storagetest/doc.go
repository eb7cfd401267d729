// Package storagetest makes disks fail: for tests and for the stress harness, never
// for the product.
//
//	power := storagetest.NewPowerLoss()
//	plan, err := storagetest.RandomPlan(seed, storagetest.FaultRates{
//		storagetest.OpWrite: {storagetest.FaultTorn: 0.01},
//	})
//	options.Wrap = func(path string, f extent.File) extent.File {
//		return &storagetest.Faulty{File: power.Wrap(path, f), Plan: plan}
//	}
//
// Faulty fails, shortens, tears, flips, delays or drops single operations of one
// file. PowerLoss remembers what was written since the last sync of each file, and
// Lose drops or tears these writes sector by sector.
//
// # Guarantees
//
//   - Equal seeds and equal operations give equal faults and equal losses.
//   - After Lose each sector holds its content at the last sync or any content that
//     was written to the sector since.
//
// # Ownership and concurrency
//
// A Faulty belongs to one file. A PowerLoss serves all files of a machine and keeps
// a descriptor of each until Lose or Close. All methods are safe for concurrent use.
package storagetest
