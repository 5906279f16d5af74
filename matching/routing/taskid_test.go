package routing

import (
	"encoding/binary"
	"testing"

	"github.com/google/uuid"
)

func TestTaskBits_spread_tasks_evenly_whatever_their_ids_look_like(t *testing.T) {
	const n, tasks = 16, 32_000
	for name, id := range map[string]func(i int) [16]byte{
		"random and ordered by time": func(int) [16]byte { return uuid.Must(uuid.NewV7()) },
		"random":                     func(int) [16]byte { return uuid.New() },
		"counted at the end": func(i int) (id [16]byte) {
			binary.BigEndian.PutUint64(id[8:], uint64(i))
			return id
		},
		"counted at the start": func(i int) (id [16]byte) {
			binary.BigEndian.PutUint32(id[:], uint32(i))
			return id
		},
	} {
		var count [n]int
		for i := range tasks {
			count[Uniform(n, TaskBits(id(i)))]++
		}
		for p, c := range count {
			if c < tasks/n*8/10 || c > tasks/n*12/10 {
				t.Errorf("%s: partition %d has %d of %d tasks", name, p, c, tasks)
			}
		}
	}
}
