package kv

import "fmt"

// Tier is where the bytes of a block lie. Tiers are ordered from fast to slow. Slot
// tables and dumps store the numbers, so the numbers never change.
type Tier uint8

const (
	// TierDevice is G1, the engine's own GPU (or CPU-engine) block pool.
	TierDevice Tier = 0
	// TierHost is G2, the node's shared pinned host memory.
	TierHost Tier = 1
	// TierDisk is G3, local NVMe.
	TierDisk Tier = 2
	// TierExternal is G4, anything off this node.
	TierExternal Tier = 3

	// NumTiers is the number of tiers; arrays indexed by Tier have this length.
	NumTiers = 4
)

// Tiers lists every tier from fast to slow.
var Tiers = [NumTiers]Tier{TierDevice, TierHost, TierDisk, TierExternal}

// String returns the tier's name on the wire, in Dynamo's spelling of storage_tier.
func (t Tier) String() string {
	switch t {
	case TierDevice:
		return "device"
	case TierHost:
		return "host_pinned"
	case TierDisk:
		return "disk"
	case TierExternal:
		return "external"
	}
	return fmt.Sprintf("tier(%d)", uint8(t))
}

// ParseTier returns the tier with the name that String gives it on the wire.
func ParseTier[T string | []byte](name T) (Tier, error) {
	for _, t := range Tiers {
		if t.String() == string(name) {
			return t, nil
		}
	}
	return 0, fmt.Errorf("tier %.64q: want device, host_pinned, disk or external", name)
}

// TierFromMedium returns the tier of an engine event's medium. An empty or absent
// medium is the device. ok is false for an unknown medium. Events with an unknown
// medium must not be indexed.
func TierFromMedium(medium string) (Tier, bool) {
	switch medium {
	case "", "GPU", "DEVICE":
		return TierDevice, true
	case "CPU", "CPU_PINNED", "CPU_TIER1":
		return TierHost, true
	case "CPU_TIER2", "DISK", "NVME", "STORAGE":
		return TierDisk, true
	case "EXTERNAL", "NETWORK", "REMOTE", "SHARED":
		return TierExternal, true
	}
	return 0, false
}

// Medium returns the tier's name in engine events. Host memory and disk have the names of KVBM's
// consolidator. TierFromMedium is the inverse.
func (t Tier) Medium() string {
	switch t {
	case TierDevice:
		return "GPU"
	case TierHost:
		return "CPU_TIER1"
	case TierDisk:
		return "CPU_TIER2"
	}
	return "EXTERNAL"
}

// TierMask is a set of tiers: bit 1<<t for each member t.
type TierMask uint8

// Has reports whether t is in the set.
func (m TierMask) Has(t Tier) bool { return m&(1<<t) != 0 }

// With returns the set with t added.
func (m TierMask) With(t Tier) TierMask { return m | 1<<t }

// Without returns the set without t.
func (m TierMask) Without(t Tier) TierMask { return m &^ (1 << t) }
