package frontend

import (
	"google.golang.org/grpc/codes"

	"github.com/switchyard-dev/switchyard/api/reason"
)

// faults are the errors of a batch's items by index; nil means that all are
// right, which is the usual case and costs nothing.
type faults []error

// add records the fault of item i of n.
func (f *faults) add(i, n int, err error) {
	if *f == nil {
		*f = make([]error, n)
	}
	(*f)[i] = err
}

// count returns the number of faults.
func (f faults) count() int {
	n := 0
	for _, err := range f {
		if err != nil {
			n++
		}
	}
	return n
}

// right returns the items without a fault, in order. It makes a new slice
// unless all are right.
func right[T any](items []T, f faults) []T {
	if f == nil {
		return items
	}
	kept := make([]T, 0, len(items)-f.count())
	for i, item := range items {
		if f[i] == nil {
			kept = append(kept, item)
		}
	}
	return kept
}

// merge puts the backend's results and the faults together in the order of the
// request, which has n items. failed makes the result of item i.
func merge[R any](n int, f faults, results []R, failed func(i int, err error) R) ([]R, error) {
	if want := n - f.count(); len(results) != want {
		return nil, reason.New(codes.Internal, reason.Internal, nil,
			"the backend returned %d results for %d items", len(results), want)
	}
	if f == nil {
		return results, nil
	}
	all := make([]R, n)
	next := 0
	for i := range all {
		if f[i] != nil {
			all[i] = failed(i, f[i])
			continue
		}
		all[i] = results[next]
		next++
	}
	return all, nil
}
