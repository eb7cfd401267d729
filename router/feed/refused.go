package feed

import (
	"fmt"
	"time"
	"unicode/utf8"

	"go.uber.org/zap"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
	"github.com/blockyard-ai/blockyard/router/source"
)

// maxRefused bounds the refused publishers that are remembered; the others are
// counted at each announcement and not logged.
const maxRefused = 1024

type refusal struct {
	seen   time.Time
	reason string
}

// objectionLocked says why an announcement is not accepted; f is its feed, nil
// for a new publisher. An empty text is no objection.
func (s *Set) objectionLocked(f *feed, a *kvevent.Announcement) string {
	if f != nil && f.owner() != a.Owner {
		return fmt.Sprintf("it announced %s before", f.owner())
	}
	if a.Owner.Kind == kv.OwnerWorker && a.Owner.ID == 0 || a.BlockSize == 0 {
		return fmt.Sprintf("worker id %d or block size %d is 0", a.Owner.ID, a.BlockSize)
	}
	if !utf8.ValidString(a.Model) {
		return fmt.Sprintf("its model %.64q is not valid UTF-8", a.Model)
	}
	if s.blockSize != 0 && a.BlockSize != s.blockSize {
		return fmt.Sprintf("its block size is %d, that of the configuration %d", a.BlockSize, s.blockSize)
	}
	former := s.byOwner[a.Owner]
	if former != nil && former != f && source.IsRegistered(a) && !source.IsRegistered(&former.announcement) {
		return "a publisher speaks for its owner"
	}
	if f == nil && former == nil && len(s.feeds) >= s.limit {
		return fmt.Sprintf("there are %d feeds already", len(s.feeds))
	}
	return ""
}

func (s *Set) refuseLocked(a *kvevent.Announcement, now time.Time, reason string) {
	if f := s.feeds[a.PublisherID]; f != nil {
		s.endLocked(f, reason)
		s.refreshLocked()
	}
	known, ok := s.refused[a.PublisherID]
	if known.reason != reason {
		s.counters.Refused++
	}
	if !ok && len(s.refused) >= maxRefused {
		return
	}
	if known.reason != reason {
		s.log.Warn("publisher is refused", zap.Stringer("owner", a.Owner),
			zap.String("publisher", source.PublisherName(a.PublisherID)), zap.String("reason", reason))
	}
	s.refused[a.PublisherID] = refusal{now, reason}
}
