// Package sealed encrypts the slots of a disk tier with AES-256-GCM.
//
//	key, err := sealed.Source{File: "/etc/blockyard/disk.key"}.Load(ctx)
//	err = sealed.Check(dir, key)        // of an arena of an earlier agent
//	arena, err := sealed.Open(dir, key) // makes dir/slots.key where there is none
//	cipher, err := arena.Extent(namespace, id)
//	cipher.Seal(sealed, slot, 3, extent.Life{Key: block, Generation: 7})
//	err = cipher.Open(slot, sealed, 3, extent.Life{Key: block, Generation: 7})
//
// # Guarantees
//
//   - No key encrypts two slots with one nonce: each extent has a key of its own, derived with the random
//     salt of its arena, and each Seal a random nonce of 96 bits.
//   - Open returns the bytes that were sealed for the same arena, extent, namespace, slot, block and
//     generation, or extent.ErrForged. It tells no bytes of a slot that it refuses.
//   - Check finds the arena of another key, or of none, before anything is read or written.
//   - No text form of a Key has its bytes.
//
// # Ownership and concurrency
//
// The caller keeps the Key while arenas are opened. Arena and Extent may be used from any goroutine.
// slots.key is written by the agent that has the arena's slot table locked.
//
// # Failure
//
// ErrKey says that an arena was not written with the key; the text has the file and the way out. docs/disk-encryption.md
// is the page for operators, docs/formats.md has the bytes.
package sealed
