package feed

import (
	"fmt"
	"maps"
	"time"
	"unicode/utf8"

	"go.uber.org/zap"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
	"github.com/blockyard-ai/blockyard/router/source"
)

// Two publishers of one owner cannot both be right, and their messages do not tell which
// one is: the later one may be a restarted process, or one that was cut off for a while.
// The router follows the later one and fences the other: it drops the events of the fenced
// publisher. While the fenced publisher still announces itself, the owner is ambiguous, its
// feed is degraded, and the log names both. The fence falls when the followed publisher
// ends, or falls silent while the fenced one does not.

const (
	// maxFenced bounds the fenced publishers.
	maxFenced = 1 << 14
	// keepFenced is how long a silent fenced publisher is remembered.
	keepFenced = time.Hour
	// minContest is how long a publisher must be fenced before its announcements count as
	// signs of life. Earlier ones may have been overtaken.
	minContest = 2 * time.Second
)

// fence is a publisher that the router follows no more.
type fence struct {
	owner kv.Owner
	// since is when the publisher was fenced, seen when it last announced itself.
	since, seen time.Time
	// gone is true after the publisher's goodbye: later messages are old.
	gone bool
}

// fenceLocked stops following a publisher. It forgets an arbitrary fenced publisher
// when there are too many.
func (s *Set) fenceLocked(a *kvevent.Announcement, now time.Time, gone bool) {
	if len(s.fenced) >= maxFenced {
		for id := range s.fenced {
			delete(s.fenced, id)
			s.counters.Unfenced++
			break
		}
	}
	s.fenced[a.PublisherID] = fence{owner: a.Owner, since: now, seen: now, gone: gone}
}

// fencedLocked takes in an announcement if its publisher is fenced, and reports whether the
// announcement is handled. False means that the caller treats the publisher like any other:
// it was never fenced, or it takes the owner over now.
func (s *Set) fencedLocked(a *kvevent.Announcement, from int, now time.Time) bool {
	p, ok := s.fenced[a.PublisherID]
	if !ok {
		return false
	}
	followed := s.byOwner[p.owner]
	if a.Owner == p.owner && !p.gone && a.Health != kvevent.HealthGone && s.takesOverLocked(followed, &p, now) {
		delete(s.fenced, a.PublisherID)
		return false
	}
	s.counters.Fenced++
	p.seen = now
	p.gone = p.gone || a.Health == kvevent.HealthGone
	s.fenced[a.PublisherID] = p
	switch {
	case followed == nil || s.offline[from] || source.IsRegistered(a):
	case p.gone && followed.rival == a.PublisherID:
		s.endContestLocked(followed)
	case !p.gone && now.Sub(p.since) >= minContest:
		s.contestLocked(followed, a.PublisherID, now)
	}
	return true
}

// takesOverLocked reports whether a fenced publisher takes over: the owner has no feed, only
// a registration, or a followed publisher that fell silent while the fenced one did not.
func (s *Set) takesOverLocked(followed *feed, p *fence, now time.Time) bool {
	if followed == nil || source.IsRegistered(&followed.announcement) {
		return true
	}
	return !s.offline[followed.source] && p.seen.After(followed.seen) && now.Sub(followed.seen) > s.silenceTimeout/3
}

// contestLocked notes that a fenced publisher of the feed's owner is alive.
func (s *Set) contestLocked(f *feed, rival uint64, now time.Time) {
	if f.rival == 0 {
		s.counters.Contests++
		s.log.Warn("two publishers announce one owner; the owner is degraded until one of them ends. "+
			"Two nodes may have the same --node, or two engines the same worker id",
			zap.Stringer("owner", f.owner()), zap.String("followed", source.PublisherName(f.announcement.PublisherID)),
			zap.String("fenced", source.PublisherName(rival)))
	}
	f.rival, f.rivalSeen = rival, now
	s.recountLocked(f)
}

// endContestLocked notes that only one publisher of the feed's owner is left.
func (s *Set) endContestLocked(f *feed) {
	s.log.Info("one publisher announces the owner again", zap.Stringer("owner", f.owner()),
		zap.String("followed", source.PublisherName(f.announcement.PublisherID)), zap.String("fenced", source.PublisherName(f.rival)))
	f.rival = 0
	s.recountLocked(f)
}

// sweepFencedLocked ends the contests whose fenced publisher fell silent, and forgets
// publishers that have been silent for long.
func (s *Set) sweepFencedLocked(now time.Time) {
	for _, f := range s.feeds {
		if f.rival != 0 && !s.offline[f.source] && now.Sub(f.rivalSeen) > s.silenceTimeout {
			s.endContestLocked(f)
		}
	}
	maps.DeleteFunc(s.fenced, func(_ uint64, p fence) bool {
		silent := now.Sub(p.seen)
		return silent > keepFenced || p.gone && silent > 2*s.silenceTimeout
	})
}

// maxRefused bounds the refused publishers that are remembered. Others are counted at
// each announcement and not logged.
const maxRefused = 1024

// refusal is a refused publisher.
type refusal struct {
	seen   time.Time
	reason string
}

// refusalReasonLocked returns why an announcement is refused; empty when it is accepted. f is
// the publisher's feed, nil for a new publisher.
func (s *Set) refusalReasonLocked(f *feed, a *kvevent.Announcement) string {
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
	previous := s.byOwner[a.Owner]
	if previous != nil && previous != f && source.IsRegistered(a) && !source.IsRegistered(&previous.announcement) {
		return "a publisher announces its owner"
	}
	if f == nil && previous == nil && len(s.feeds) >= s.maxFeeds {
		return fmt.Sprintf("there are %d feeds already", len(s.feeds))
	}
	return ""
}

// refuseLocked ends the feed of a refused publisher, if there is one, and logs each new
// reason once.
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
