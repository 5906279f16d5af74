package admin

import (
	"slices"

	v1 "github.com/switchyard-dev/switchyard/api/switchyard/v1"
	"github.com/switchyard-dev/switchyard/shard"
)

// list returns the buckets of spans, in order and each once. There must be at least one;
// NO_ROUTE_TO_BUCKET when one of them cannot be.
func list(spans []*v1.BucketSpan, count uint32) ([]shard.BucketID, error) {
	if len(spans) == 0 {
		return nil, invalid("no bucket is named")
	}
	named := make([]bool, count+1)
	n := 0
	for _, s := range spans {
		first, last := s.GetFirst(), s.GetLast()
		if first > last {
			return nil, invalid("the buckets %d to %d: the first is behind the last", first, last)
		}
		for _, b := range [...]uint32{first, last} {
			if b < 1 || b > count {
				return nil, noBucket(b, count)
			}
		}
		for b := first; b <= last; b++ {
			if !named[b] {
				named[b] = true
				n++
			}
		}
	}
	out := make([]shard.BucketID, 0, n)
	for b, yes := range named {
		if yes {
			out = append(out, shard.BucketID(b))
		}
	}
	return out, nil
}

// listOrAll is list, where no span means all.
func listOrAll(spans []*v1.BucketSpan, count uint32) ([]shard.BucketID, error) {
	if len(spans) == 0 {
		spans = []*v1.BucketSpan{{First: 1, Last: count}}
	}
	return list(spans, count)
}

// spansOf is the reverse of list. It sorts the buckets.
func spansOf(buckets []shard.BucketID) (out []*v1.BucketSpan) {
	slices.Sort(buckets)
	for _, b := range buckets {
		n := uint32(b)
		switch k := len(out) - 1; {
		case k >= 0 && out[k].GetLast() == n: // named twice
		case k >= 0 && out[k].GetLast() == n-1:
			out[k].Last = n
		default:
			out = append(out, &v1.BucketSpan{First: n, Last: n})
		}
	}
	return out
}

func numbers(buckets []shard.BucketID) []uint32 {
	out := make([]uint32, len(buckets))
	for i, b := range buckets {
		out[i] = uint32(b)
	}
	return out
}

func rangesOf(spans []*v1.BucketSpan) []*v1.BucketRange {
	out := make([]*v1.BucketRange, len(spans))
	for i, s := range spans {
		out[i] = &v1.BucketRange{First: s.GetFirst(), Last: s.GetLast()}
	}
	return out
}
