package storage

import (
	"context"
	"slices"
	"time"

	"github.com/switchyard-dev/switchyard/shard"
)

// rounds sends what was written meanwhile, until that is little.
func (sd *send) rounds(ctx context.Context) error {
	for n := 0; ; n++ {
		// What was noted so far must be visible in the next view.
		changes, count, err := sd.changes()
		if err != nil {
			return err
		}
		if _, err := sd.s.system(ctx, fnNothing, nil); err != nil {
			return err
		}
		if err := sd.delta(ctx, changes, messageTime); err != nil {
			return err
		}
		if count <= smallRound || len(sd.moves) == 0 {
			return nil
		}
		if n >= maxRounds {
			if count > hopelessKeys {
				return tooFast(sd.to)
			}
			return nil
		}
	}
}

// changes takes what was noted since the last round. A move that lost track is aborted.
func (sd *send) changes() (map[*move]dirty, int, error) {
	all, count := map[*move]dirty{}, 0
	for _, m := range slices.Clone(sd.moves) {
		d, ok := m.capture.take()
		if !ok {
			sd.abort([]*move{m}, &shard.Error{Code: shard.TransferIsOver, Bucket: m.bucket, Destination: sd.to, Reason: "more was written meanwhile than can be noted"})
			continue
		}
		if len(d.keys)+len(d.ranges) > 0 {
			all[m] = d
			count += len(d.keys) + smallRound*len(d.ranges)
		}
	}
	sd.drop()
	return all, count, nil
}

// delta sends the rows of changes as they are now. What a key was before is what was sent
// of it last, not what a view of some moment has: a write between two moments may be in
// a view before it is among the changes.
func (sd *send) delta(ctx context.Context, changes map[*move]dirty, patience time.Duration) error {
	if len(changes) == 0 {
		return nil
	}
	view, err := sd.s.hold(context.WithoutCancel(ctx))
	if err != nil {
		return err
	}
	defer view.close()
	moves := slices.Clone(sd.moves)
	return sd.stream(ctx, patience, func(_ context.Context, give func(*move, *chunkMaker) error) error {
		for _, m := range moves {
			if d, ok := changes[m]; ok {
				if err := sd.deltaOf(m, d, readBucket(view, m.bucket), give); err != nil {
					return err
				}
			}
		}
		return nil
	})
}

func (sd *send) deltaOf(m *move, d dirty, now bucketReader, give func(*move, *chunkMaker) error) error {
	copied := readBucket(sd.copied, m.bucket)
	keys := d.keys
	for _, r := range d.ranges {
		for k, row := range m.sent {
			if row.there && k >= r[0] && (r[1] == "" || k < r[1]) {
				keys = append(keys, k)
			}
		}
		if err := copied.scan(r[0], r[1], func(key, _ []byte) bool { keys = append(keys, string(key)); return true }); err != nil {
			return err
		}
	}
	slices.Sort(keys)
	c := newChunk(&m.given, false, 0)
	for _, k := range slices.Compact(keys) {
		before, known := m.sent[k]
		if !known {
			value, had, err := copied.get(k)
			if err != nil {
				return err
			}
			if before.there = had; had {
				before.hash = rowHash([]byte(k), value)
			}
			if m.sentBytes += len(k) + 64; m.sentBytes > maxCaptureBytes {
				return tooFast(sd.to)
			}
		}
		value, has, err := now.get(k)
		if err != nil {
			return err
		}
		if !has && !before.there {
			continue
		}
		if len(c.b)+len(k)+len(value) > chunkBytes && !c.empty() {
			if err := give(m, &c); err != nil {
				return err
			}
			c = newChunk(&m.given, false, chunkBytes/4)
		}
		if before.there {
			c.takeBack(before.hash)
		}
		row := sentRow{there: has}
		if has {
			row.hash = c.there([]byte(k), value)
		} else {
			c.gone([]byte(k))
		}
		m.sent[k] = row
	}
	return give(m, &c)
}

func tooFast(destination string) error {
	return &shard.Error{Code: shard.TransferIsOver, Destination: destination,
		Reason: "the buckets are written faster than they can be copied: move them when less is written"}
}
